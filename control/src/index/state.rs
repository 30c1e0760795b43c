//! The state that the index computes for this machine, and what an update changed in it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;

use super::objects::ObjectName;
use super::problem::{Object, Problem};
use crate::desired::{BackendSpec, ServiceKey, Services};

/// The desired state of this machine according to the API. Clones share nearly all memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Services by address, port and protocol. NodePorts have the unspecified address of their family.
    pub services: Services,
    /// Endpoints that terminate and still serve, for services that have any. They get no new connections. Those
    /// on this machine are also among the backends, with weight 0.
    pub draining: OrdMap<ServiceKey, Arc<[BackendSpec]>>,
    /// For Services with policy `Local` at assigned addresses: addresses of the Nodes that have endpoints of
    /// any port and share its connections. Every port of such a Service has an entry. Of all Nodes only these
    /// announce the address.
    pub announcers: OrdMap<ServiceKey, Arc<BTreeSet<IpAddr>>>,
    /// Virtual addresses: assigned and external ones.
    pub vips: OrdSet<IpAddr>,
    /// The VIPs that were assigned for our class. They are ours at all ports, and only these can be announced.
    pub assigned: OrdSet<IpAddr>,
    /// Addresses that are served at the Services' ports only: external ones and those of machines.
    pub shared: OrdSet<IpAddr>,
    /// Addresses of the Nodes that run Guideway.
    pub nodes: BTreeSet<IpAddr>,
    /// Addresses of the edges outside the cluster.
    pub trusted_edges: BTreeSet<IpNet>,
    /// An address of each other Node that runs Guideway, and those of all edges outside the cluster.
    pub peers: BTreeSet<IpAddr>,
    /// Whether this machine's Node is about to be removed; `None` if there is no such Node.
    pub leaving: Option<bool>,
    /// Addresses from which other machines accept this machine's packets: those of its Node, once our slices
    /// list it, and those of all edges outside the cluster.
    pub known_as: BTreeSet<IpAddr>,
    /// Answers at the health check ports of Services.
    pub health_checks: OrdMap<ObjectName, HealthCheck>,
    /// Problems by object.
    pub problems: OrdMap<Object, Arc<[Problem]>>,
}

/// The answer to a load balancer that asks at a Service's `healthCheckNodePort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The `healthCheckNodePort`.
    pub port: u16,
    /// Number of ready pods on this machine.
    pub local_endpoints: usize,
}

/// What an update changed in the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Number of Services that were computed again.
    pub computed: usize,
    /// Keys of dataplane services that were added, changed or removed.
    pub services: BTreeSet<ServiceKey>,
    /// Whether `announcers`, `vips`, `assigned`, `shared`, `nodes`, `trusted_edges`, `known_as` or
    /// `peers` changed.
    pub addresses: bool,
    /// Whether `draining` changed.
    pub draining: bool,
    /// Whether `leaving` changed.
    pub leaving: bool,
    /// Whether `health_checks` changed.
    pub health_checks: bool,
    /// Whether `problems` changed.
    pub problems: bool,
}

impl Changes {
    /// Returns whether the state is unchanged. Services may have been computed again with the same result.
    pub fn is_empty(&self) -> bool {
        let same = Self {
            computed: self.computed,
            ..Self::default()
        };
        *self == same
    }
}
