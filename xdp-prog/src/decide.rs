//! Packet + tables -> [`Verdict`](crate::verdict::Verdict): the load balancer itself.
//!
//! This code does no I/O and changes no packet bytes. [`edge`] balances and [`node`] delivers; [`nat`] does both for
//! NAT mode. [`icmp`] and [`fragment`] find the flow of packets that do not show their ports. [`answer`] judges the
//! answers that this machine gives itself.

mod address;
pub(crate) mod allowance;
pub mod answer;
pub mod edge;
mod flow_of;
pub mod fragment;
mod head;
pub mod icmp;
mod message;
pub mod nat;
pub mod node;
pub mod owner;

pub(crate) use self::head::key_of_datagram;
