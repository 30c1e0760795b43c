//! The contents of the tables at one moment, for readers other than their owner.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Contents, DroppedOwners, Fill, InstalledService, Tables, Usage, ids::Ids};

/// The contents of the tables at one moment.
#[derive(Clone, Debug, Default)]
pub struct TableView {
    contents: Contents,
    /// The fill of the tables, without the numbers that are sums over all services.
    fill: Fill,
    nat: Usage,
    live: Vec<(&'static str, Usage)>,
    dropped_owners: DroppedOwners,
}

impl Deref for TableView {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.contents
    }
}

impl TableView {
    /// Reports how full the tables are.
    pub fn fill(&self) -> Fill {
        let sum = |count: fn(&InstalledService) -> usize| {
            self.services().map(|(_, service)| count(service)).sum()
        };
        let mut fill = self.fill;
        fill.pods.used = sum(InstalledService::local_pods);
        fill.source_ranges.used = sum(InstalledService::source_ranges);
        fill
    }

    /// Counts the past owners of all slots that were dropped since the tables were opened.
    pub const fn dropped_owners(&self) -> DroppedOwners {
        self.dropped_owners
    }

    /// Returns the number of NAT mode's flows; see [`Tables::nat_fill`].
    pub const fn nat_fill(&self) -> Usage {
        self.nat
    }

    /// Returns the number of live flows; see [`Tables::live_fill`].
    pub fn live_fill(&self) -> &[(&'static str, Usage)] {
        &self.live
    }
}

/// The newest view. Readers that count by ids need it, because ids are reused.
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
        // If nobody else holds the old view, parts of it are freed here, after the lock.
        drop(before);
    }
}

impl Tables {
    /// Publishes the contents of the tables to their readers, and returns them.
    pub fn publish(&self) -> Arc<TableView> {
        let view = Arc::new(self.view());
        self.newest.put(Arc::clone(&view));
        view
    }

    pub(super) fn view(&self) -> TableView {
        let of = |ids: &Ids| Usage {
            used: ids.capacity() - ids.free(),
            capacity: ids.capacity(),
        };
        let entries = |capacity| Usage { used: 0, capacity };
        TableView {
            contents: self.contents.clone(),
            fill: Fill {
                arena: self.arena.fill(),
                services: of(&self.service_ids),
                service_overflow: self.index.overflow(),
                backends: of(&self.backend_ids),
                past_owners: self.pasts.fill(),
                next_hops: of(&self.next_hop_ids),
                pods: entries(self.pods.capacity()),
                source_ranges: entries(self.source_ranges.capacity()),
            },
            nat: self.nat_fill(),
            live: self.live_fill().collect(),
            dropped_owners: self.pasts.dropped,
        }
    }
}
