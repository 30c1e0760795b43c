//! Which edge announces which address to the neighbours, where no router spreads addresses over edges.
//!
//! Every edge computes the same from what it sees: the edges whose Leases are renewed, and for each
//! address the one with the highest hash among those that may have it ([`rendezvous`]). Edges never talk
//! to each other; [`election`] judges Leases and says when to take an address and when to let go.
//! Both are pure: time and events are arguments.

mod edge;
pub mod election;
mod mac;
pub mod pulse;
pub mod rendezvous;

pub use edge::{Candidates, Edge, Holdings, Home};
pub use election::Election;
pub use mac::Mac;
pub use pulse::Pulse;
