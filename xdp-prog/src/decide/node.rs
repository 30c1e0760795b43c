//! Node role: packets for pods of this machine, or for its stack.

pub mod ask;
pub mod decap;
pub mod flow_lookup;
pub(crate) mod known;
pub mod local;
pub mod pod_flow;
pub mod receive;
pub mod stack;
pub mod unproved;
