//! What the objects ask of this machine, and which parts of it an update changed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;

use super::objects::ObjectName;
use super::problem::{Object, Problem};
use crate::desired::{BackendSpec, ServiceKey, Services};

/// What the objects ask of this machine. A clone shares nearly everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Services by address, port and protocol; NodePorts at the unspecified address of their family.
    pub services: Services,
    /// Endpoints that serve and terminate and get no new connections, where there are any. Those of this
    /// machine are among the backends too, without weight.
    pub draining: OrdMap<ServiceKey, Arc<[BackendSpec]>>,
    /// Of Services with the policy `Local` at assigned addresses, under each of their ports: addresses of the Nodes
    /// that have endpoints, of any of the ports, which share connections. Of the Nodes only these announce the address.
    pub announcers: OrdMap<ServiceKey, Arc<BTreeSet<IpAddr>>>,
    /// Virtual addresses.
    pub vips: OrdSet<IpAddr>,
    /// Those of them that were assigned for our class, so that nothing else can be at their other ports.
    pub assigned: OrdSet<IpAddr>,
    /// The other addresses that ports are served at: external ones, and those of machines.
    pub shared: OrdSet<IpAddr>,
    /// Addresses of the Nodes that run Guideway.
    pub nodes: BTreeSet<IpAddr>,
    /// Addresses of the other edges.
    pub trusted_edges: BTreeSet<IpNet>,
    /// Whether this machine's Node is about to go, where it has one.
    pub leaving: Option<bool>,
    /// Addresses from which other machines take this one's packets: those of its Node, once our slices show it, and
    /// of all edges outside the cluster.
    pub known_as: BTreeSet<IpAddr>,
    /// What is told at the health check ports of Services.
    pub health_checks: OrdMap<ObjectName, HealthCheck>,
    /// What is wrong, by object.
    pub problems: OrdMap<Object, Arc<[Problem]>>,
}

/// What a load balancer that asks at a Service's `healthCheckNodePort` is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: u16,
    /// Number of pods of this machine that are ready.
    pub local_endpoints: usize,
}

/// What an update changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Number of Services that were computed anew.
    pub computed: usize,
    /// Services of the dataplane that were added, changed or removed.
    pub services: BTreeSet<ServiceKey>,
    /// Whether `announcers`, `vips`, `assigned`, `shared`, `nodes`, `trusted_edges` or `known_as` changed.
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
    /// Tells whether the state is as it was.
    pub fn is_empty(&self) -> bool {
        let same = Self {
            computed: self.computed,
            ..Self::default()
        };
        *self == same
    }
}
