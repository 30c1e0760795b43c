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
mod quiet;
mod service;
mod watch;

use std::time::Duration;

pub(crate) use agent::{Agent, guideway};
pub(crate) use capture::{Capture, bad_checksums};
pub(crate) use cluster::{Cluster, PodService, cluster_config, nat_config, serve_on_pods};
pub(crate) use datagram::{Asked, Sender};
pub(crate) use echo::Echo;
pub(crate) use flow::{Flow, resolve_way};
pub(crate) use quiet::Quiet;
pub(crate) use service::{Mode, Protocol, Service, edge_config, node_config};
pub(crate) use watch::{Traffic, Watched};

/// Longer than anything takes that is going to happen at all.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
