//! What the tables have at one time, for those who look at them beside their owner.
//!
//! A view shares what it has with the tables, so that making one costs the same however much that is; what changes
//! afterwards is copied by the tables then, node by node of a tree.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use imbl::OrdMap;

use super::{
    ArenaFill, Fill, InstalledBackend, InstalledService, OwnedBackend, ServiceKey, Specs, Tables,
    Usage, Way, ids::Ids,
};
use crate::nexthop::Resolution;

/// What the tables have at one time.
#[derive(Clone, Debug, Default)]
pub struct TableView {
    installed: OrdMap<ServiceKey, Arc<InstalledService>>,
    specs: Specs,
    backends: OrdMap<OwnedBackend, InstalledBackend>,
    ways: OrdMap<IpAddr, Way>,
    path_mtus: OrdMap<IpAddr, u32>,
    arena: ArenaFill,
    service_ids: Usage,
    service_overflow: Usage,
    backend_ids: Usage,
    next_hop_ids: Usage,
    pods_capacity: usize,
    source_ranges_capacity: usize,
    nat: Usage,
    live: Vec<(&'static str, Usage)>,
}

impl TableView {
    /// Lists the services.
    pub fn services(&self) -> impl ExactSizeIterator<Item = (&ServiceKey, &InstalledService)> {
        let services = self.installed.iter();
        services.map(|(key, service)| (key, service.as_ref()))
    }

    /// Returns an installed service.
    pub fn service(&self, key: &ServiceKey) -> Option<&InstalledService> {
        self.installed.get(key).map(Arc::as_ref)
    }

    /// Returns what services were made from; see [`Tables::specs`].
    pub const fn specs(&self) -> &Specs {
        &self.specs
    }

    /// Lists the backends, once for each owner.
    pub fn backends(&self) -> impl ExactSizeIterator<Item = (&OwnedBackend, &InstalledBackend)> {
        self.backends.iter()
    }

    /// Returns an installed backend.
    pub fn backend(&self, key: &OwnedBackend) -> Option<&InstalledBackend> {
        self.backends.get(key)
    }

    /// Returns how a node address is reached, as told last.
    pub fn next_hop(&self, target: IpAddr) -> Option<Resolution> {
        self.ways.get(&target)?.resolution
    }

    /// Returns the MTU of the path to a node, where it is smaller than the next hop's.
    pub fn path_mtu(&self, node: IpAddr) -> Option<u32> {
        self.path_mtus.get(&node).copied()
    }

    /// Reports how full the tables are.
    pub fn fill(&self) -> Fill {
        let sum = |count: fn(&InstalledService) -> usize| {
            let services = self.installed.values();
            services.map(|service| count(service)).sum()
        };
        Fill {
            arena: self.arena,
            services: self.service_ids,
            service_overflow: self.service_overflow,
            backends: self.backend_ids,
            next_hops: self.next_hop_ids,
            pods: Usage {
                used: sum(|service| service.pods.len()),
                capacity: self.pods_capacity,
            },
            source_ranges: Usage {
                used: sum(|service| service.source_ranges.len()),
                capacity: self.source_ranges_capacity,
            },
        }
    }

    /// Reports how many flows of NAT mode there are; see [`Tables::nat_fill`].
    pub const fn nat_fill(&self) -> Usage {
        self.nat
    }

    /// Reports how many flows live; see [`Tables::live_fill`].
    pub fn live_fill(&self) -> &[(&'static str, Usage)] {
        &self.live
    }
}

/// The newest view, which whoever counts by ids has to know: they are given out again.
#[derive(Clone, Debug, Default)]
pub(super) struct Newest(Arc<Mutex<Arc<TableView>>>);

impl Newest {
    pub(super) fn get(&self) -> Arc<TableView> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, view: Arc<TableView>) {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *newest, view);
        drop(newest);
        // If nobody else has it any more, parts of it are freed.
        drop(before);
    }
}

impl Tables {
    /// Shows what the tables have to their readers, and returns it.
    pub fn publish(&self) -> Arc<TableView> {
        let view = Arc::new(self.view());
        self.newest.put(Arc::clone(&view));
        view
    }

    pub(super) fn view(&self) -> TableView {
        let usage = |ids: &Ids| Usage {
            used: ids.capacity() - ids.free(),
            capacity: ids.capacity(),
        };
        TableView {
            installed: self.installed.clone(),
            specs: self.specs.clone(),
            backends: self.backend_by_key.clone(),
            ways: self.ways.clone(),
            path_mtus: self.path_mtus.clone(),
            arena: self.arena.fill(),
            service_ids: usage(&self.service_ids),
            service_overflow: self.index.overflow(),
            backend_ids: usage(&self.backend_ids),
            next_hop_ids: usage(&self.next_hop_ids),
            pods_capacity: self.pods_capacity,
            source_ranges_capacity: self.source_ranges_capacity,
            nat: self.nat_fill(),
            live: self.live_fill().collect(),
        }
    }
}
