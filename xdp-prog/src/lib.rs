//! What the kernel and user space must agree on.
#![no_std]

pub mod csum;
pub mod maglev;
