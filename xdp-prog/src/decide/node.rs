//! Node role: packets for pods of this machine, or for its stack.

pub mod deliver;
pub mod local;
pub mod noted;
pub mod pod_flow;
pub mod receive;
pub mod stack;
pub mod unproved;
