//! What the tables have, in user space's words.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use imbl::OrdMap;
use ipnet::IpNet;

use super::{BackendKey, ForwardMode, OwnedBackend, Run, ServiceKey, ServiceSpec, policy::Pods};
use crate::nexthop::Resolution;

/// A service as the tables have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledService {
    pub id: u32,
    pub run: Run,
    /// The table of this machine's pods, if it has any: the same one where there are no others.
    pub local: Option<Run>,
    pub mode: ForwardMode,
    /// Ids of the backends that it uses.
    pub(super) backends: Box<[u32]>,
    /// Whose its backends are ([`ServiceSpec::owner`]).
    pub owner: u32,
    /// This machine's pods by tag.
    pub(super) pods: Pods,
    /// The clients that may use it, of its own family; all, if the specification names none.
    pub(super) source_ranges: BTreeSet<IpNet>,
    /// Pods that another one of their node has the tag of.
    pub(super) left_out: Box<[BackendKey]>,
}

impl InstalledService {
    /// Counts the slots of its lookup tables.
    pub fn slots(&self) -> u64 {
        let local = self.local.filter(|local| *local != self.run);
        let runs = [Some(self.run), local].into_iter().flatten();
        runs.map(|run| u64::from(run.length())).sum()
    }

    /// Lists the pods that get no traffic because their node could not tell them from another one.
    pub fn left_out(&self) -> &[BackendKey] {
        &self.left_out
    }

    /// Counts the pods of this machine that serve it.
    pub fn local_pods(&self) -> usize {
        self.pods.len()
    }

    /// Counts the backends that it uses; some may be other services' of its owner too.
    pub fn backends(&self) -> usize {
        self.backends.len()
    }

    /// Counts the source ranges that can hold its clients.
    pub fn source_ranges(&self) -> usize {
        self.source_ranges.len()
    }
}

/// Specifications of services.
pub type Specs = OrdMap<ServiceKey, Arc<ServiceSpec>>;

/// A backend as the tables have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstalledBackend {
    pub id: u32,
    /// Services of its owner whose lookup table names it.
    pub services: u32,
}

/// The route to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeRoute {
    /// Id of the next hop; 0 for none.
    pub(super) next_hop: u32,
    /// As it was told; unknown after adoption.
    pub(super) resolution: Option<Resolution>,
    /// Whether the node is this machine.
    pub(super) local: bool,
}

/// What the tables have, in user space's words. A clone shares everything, so that it costs the same however much that
/// is; what changes afterwards is copied then, node by node of a tree.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub(super) installed: OrdMap<ServiceKey, Arc<InstalledService>>,
    pub(super) specs: Specs,
    pub(super) backend_by_key: OrdMap<OwnedBackend, InstalledBackend>,
    pub(super) node_routes: OrdMap<IpAddr, NodeRoute>,
    /// Of nodes to which the path takes less than the next hop does.
    pub(super) path_mtus: OrdMap<IpAddr, u32>,
}

impl Contents {
    /// Lists the services in the tables.
    pub fn services(&self) -> impl ExactSizeIterator<Item = (&ServiceKey, &InstalledService)> {
        let services = self.installed.iter();
        services.map(|(key, service)| (key, service.as_ref()))
    }

    /// Returns an installed service.
    pub fn service(&self, key: &ServiceKey) -> Option<&InstalledService> {
        self.installed.get(key).map(Arc::as_ref)
    }

    /// Returns what services were made from under the present settings. Those that an earlier agent made are not
    /// among them, nor is one that could not be made anew.
    ///
    /// A clone shares everything, and two versions are compared without a look at what they share.
    pub const fn specs(&self) -> &Specs {
        &self.specs
    }

    /// Lists the backends in the tables, once for each owner.
    pub fn backends(&self) -> impl ExactSizeIterator<Item = (&OwnedBackend, &InstalledBackend)> {
        self.backend_by_key.iter()
    }

    /// Returns an installed backend.
    pub fn backend(&self, key: &OwnedBackend) -> Option<&InstalledBackend> {
        self.backend_by_key.get(key)
    }

    /// Returns how a node address is reached, as told last.
    pub fn next_hop(&self, target: IpAddr) -> Option<Resolution> {
        self.node_routes.get(&target)?.resolution
    }

    /// Returns the MTU of the path to a node, where it is smaller than the next hop's.
    pub fn path_mtu(&self, node: IpAddr) -> Option<u32> {
        self.path_mtus.get(&node).copied()
    }
}
