//! The user-space dataplane.

pub mod object;
