//! The whole of Guideway between real sockets: a client, a router, edges and
//! nodes as network namespaces, the agents as they are installed. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

mod affinity;
mod alone;
mod announce;
mod capture;
mod changes;
mod checksums;
mod commands;
mod egress;
mod health;
mod interfaces;
mod masquerade;
mod mending;
mod nat;
mod observer;
mod past_owners;
mod path_mtu;
mod peers;
mod pings;
mod planted;
mod pod_networks;
mod pods;
mod policies;
mod programs;
mod prometheus;
mod quic;
mod reload;
mod resize;
mod restart;
mod support;
mod threads;
mod traffic;
mod trust;
mod uplinks;
mod without_returns;
