//! Decides which edge announces which address to the neighbours, where no router spreads addresses over edges.
//!
//! Every edge computes the same result from what it sees. For each address it takes the edges whose Leases are
//! being renewed and that may have the address, and picks the one with the highest hash ([`rendezvous`]). Edges
//! never talk to each other. [`election`] judges Leases, and says when to start and stop announcing an address.
//! Both are pure: time and events are arguments.

mod edge;
pub mod election;
pub mod heartbeat;
mod mac;
pub mod rendezvous;

pub use edge::{Candidates, Edge, ElectionResult, LeaseNamespace};
pub use election::Election;
pub use heartbeat::LoopHeartbeat;
pub use mac::Mac;
