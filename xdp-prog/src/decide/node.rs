//! Node role: what is for pods of this machine, or for its stack.

pub mod deliver;
pub mod local;
pub mod pod_flow;
pub mod receive;
pub mod stack;
pub mod unproved;

use crate::abi::{BACKEND_LOCAL, BACKEND_POD, Backend};

/// Tells whether a backend is a pod of this machine.
#[inline(always)]
pub const fn is_here(backend: &Backend) -> bool {
    const HERE: u32 = BACKEND_LOCAL | BACKEND_POD;
    backend.flags & HERE == HERE
}
