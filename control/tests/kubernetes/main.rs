//! Guideway's control plane against the real API server, etcd and kubectl. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

mod agent;
mod announced;
mod beside;
mod bundle;
mod cluster;
mod conformance;
mod controller;
mod events;
mod faults;
mod healthz;
mod hostile;
mod kubelet;
mod leases;
mod listed;
mod objects;
mod outages;
mod outcome;
mod peers;
mod planted;
mod responders;
mod restored;
mod rollout;
mod scenario;
#[path = "../e2e/support/mod.rs"]
mod support;
mod tried;
mod witness;
mod world;
