//! The contents of the tables, in user space's types.

use std::{collections::BTreeSet, net::IpAddr, ops::AddAssign, sync::Arc};

use imbl::OrdMap;
use ipnet::IpNet;

use super::{BackendKey, ForwardMode, OwnedBackend, Run, ServiceKey, ServiceSpec, policy::Pods};
use crate::nexthop::Resolution;

/// A service in the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledService {
    pub id: u32,
    pub run: Run,
    /// The table of this machine's pods, if it has any; the same as `run` if all backends are such pods.
    pub local: Option<Run>,
    pub mode: ForwardMode,
    /// Ids of its backends.
    pub(super) backends: Box<[u32]>,
    /// Ids of those that own slots: they have a share of new connections.
    pub(super) sharing: Box<[u32]>,
    /// Owner of its backends ([`ServiceSpec::owner`]).
    pub owner: u32,
    /// This machine's pods by tag.
    pub(super) pods: Pods,
    /// The ranges of clients that may use it, of its own family; empty if the specification names none.
    pub(super) source_ranges: BTreeSet<IpNet>,
    /// Pods that are left out because another pod of their node has the same tag.
    pub(super) left_out: Box<[BackendKey]>,
    /// Whether all edges have the same owners for its slots.
    pub(super) is_shared: bool,
    /// Number of the last change of its owners or past owners, among those of all services since the tables were opened.
    pub(super) last_change: u64,
    /// Past owners of its slots that were dropped since the tables were opened.
    pub(super) dropped_owners: DroppedOwners,
}

/// Past owners of slots that were dropped although their day was not over, once for each slot: connections of theirs end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedOwners {
    /// The slot's list had no room for more.
    pub list_full: u64,
    /// The table of all lists had no room for more.
    pub table_full: u64,
}

impl DroppedOwners {
    /// Counts those of both causes.
    pub const fn all(self) -> u64 {
        self.list_full + self.table_full
    }
}

impl AddAssign for DroppedOwners {
    fn add_assign(&mut self, other: Self) {
        self.list_full += other.list_full;
        self.table_full += other.table_full;
    }
}

impl InstalledService {
    /// Counts the slots of its lookup tables.
    pub fn slots(&self) -> u64 {
        let local = self.local.filter(|local| *local != self.run);
        let runs = [Some(self.run), local].into_iter().flatten();
        runs.map(|run| u64::from(run.length())).sum()
    }

    /// Lists the pods that get no traffic, because their node could not distinguish them from another pod.
    pub fn left_out(&self) -> &[BackendKey] {
        &self.left_out
    }

    /// Counts the past owners of its slots that were dropped since the tables were opened.
    pub const fn dropped_owners(&self) -> DroppedOwners {
        self.dropped_owners
    }

    /// Returns the number of pods of this machine that serve it.
    pub fn local_pods(&self) -> usize {
        self.pods.len()
    }

    /// Returns the number of its backends; other services of its owner may use some of them too.
    pub fn backends(&self) -> usize {
        self.backends.len()
    }

    /// Returns the number of source ranges of its own family.
    pub fn source_ranges(&self) -> usize {
        self.source_ranges.len()
    }
}

/// Specifications of services.
pub type Specs = OrdMap<ServiceKey, Arc<ServiceSpec>>;

/// A backend in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstalledBackend {
    pub id: u32,
    /// Number of its owner's services that use it.
    pub services: u32,
    /// Number of lists of past owners that name it. It keeps its id while there are any.
    pub lists: u32,
    /// Number of its owner's services in which it takes new connections.
    pub shared: u32,
}

impl InstalledBackend {
    /// Makes a backend that one service uses.
    pub(super) const fn used(id: u32) -> Self {
        Self {
            id,
            services: 1,
            lists: 0,
            shared: 0,
        }
    }

    /// Tells whether a service uses it.
    pub const fn is_used(&self) -> bool {
        self.services != 0
    }
}

/// The route to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeRoute {
    /// Id of the next hop; 0 for none.
    pub(super) next_hop: u32,
    /// The resolution that was set; unknown after adoption.
    pub(super) resolution: Option<Resolution>,
    /// Whether the node is this machine.
    pub(super) local: bool,
}

/// The contents of the tables, in user space's types. A clone shares everything, so its cost does not depend on the
/// size. Later changes copy only the tree nodes that they touch.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub(super) installed: OrdMap<ServiceKey, Arc<InstalledService>>,
    pub(super) specs: Specs,
    pub(super) backend_by_key: OrdMap<OwnedBackend, InstalledBackend>,
    pub(super) node_routes: OrdMap<IpAddr, NodeRoute>,
    /// MTUs in bytes of paths to nodes that take less than the next hop.
    pub(super) path_mtus: OrdMap<IpAddr, u32>,
}

impl Contents {
    /// Lists the services in the tables.
    pub fn services(&self) -> impl ExactSizeIterator<Item = (&ServiceKey, &InstalledService)> {
        let services = self.installed.iter();
        services.map(|(key, service)| (key, service.as_ref()))
    }

    /// Returns the services in the tables. A clone shares everything, and comparing two versions skips what they share.
    pub const fn installed(&self) -> &OrdMap<ServiceKey, Arc<InstalledService>> {
        &self.installed
    }

    /// Returns an installed service.
    pub fn service(&self, key: &ServiceKey) -> Option<&InstalledService> {
        self.installed.get(key).map(Arc::as_ref)
    }

    /// Returns the specifications from which services were made under the present settings. Services of an earlier
    /// agent are not among them, nor services that could not be made anew.
    ///
    /// A clone shares everything. Comparing two versions skips the parts that they share.
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

    /// Returns the resolution of a node address that was set last.
    pub fn next_hop(&self, target: IpAddr) -> Option<Resolution> {
        self.node_routes.get(&target)?.resolution
    }

    /// Returns the MTU of the path to a node in bytes, if it is smaller than the next hop's.
    pub fn path_mtu(&self, node: IpAddr) -> Option<u32> {
        self.path_mtus.get(&node).copied()
    }
}
