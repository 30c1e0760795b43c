//! Packet + tables -> [`Verdict`](crate::verdict::Verdict): the load balancer itself.
//!
//! No I/O, no packet bytes changed. A room for each step of the way: [`edge`] balances, [`node`] delivers, [`nat`] does
//! both in NAT mode, [`icmp`] and [`fragment`] find the flow of what does not show its ports, [`answer`] judges what this
//! machine answers itself.

mod address;
pub mod answer;
pub mod edge;
pub mod fragment;
mod head;
pub mod icmp;
mod message;
pub mod nat;
pub mod node;
pub mod owner;
