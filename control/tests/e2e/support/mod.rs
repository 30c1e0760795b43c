//! Agents, echo servers and flows.

#![allow(
    dead_code,
    unused_imports,
    reason = "each of the test programs that share it needs a part"
)]

mod agent;
mod capture;
mod cluster;
mod datagram;
mod echo;
pub(crate) mod faults;
mod flow;
mod held_flows;
mod numbered;
mod quiet;
mod service;
mod sidecar;
mod watch;

use std::{env, time::Duration};

pub(crate) use agent::{Agent, guideway};
pub(crate) use capture::{Capture, bad_checksums};
pub(crate) use cluster::{
    Cluster, PodKind, PodService, cluster_config, nat_config, serve_on_pods, with_field, without,
};
pub(crate) use datagram::{Asked, Sender};
pub(crate) use echo::Echo;
pub(crate) use flow::{Flow, resolve_way};
pub(crate) use held_flows::{
    Agents, Edit, Moved, connections_of_a_removed_pod_go_on, connections_stay,
    datagrams_of_a_removed_pod_go_on, datagrams_stay, edge_apart, edge_with_pods,
    first_node_is_edge, kernel_counter, pod_services,
    ports_used_again_after_a_reset_keep_their_pods, unchanged, use_ports_again_after_a_reset,
};
pub(crate) use numbered::Numbered;
pub(crate) use quiet::Quiet;
pub(crate) use service::{Mode, Protocol, Service, edge_config, node_config};
pub(crate) use sidecar::Sidecar;
pub(crate) use watch::{Traffic, Watched};

/// Longer than anything takes that is going to happen at all, however busy the machine is.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// The number in a variable of the environment, such as one that `make soak` sets, if somebody has set it.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={text:?} is no number")))
}
