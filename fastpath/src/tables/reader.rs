//! Counters and slots for readers other than the owner of the tables.
//!
//! Counters are stored under ids. The ids come from a [`TableView`] and may belong to another service or backend when
//! they are read. The owner of the tables publishes the new view before it reuses an id, see
//! [`Tables::reclaim`](super::Tables::reclaim).

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    net::IpAddr,
    time::Duration,
};

use xdp_prog::{abi::Traffic, failure::Failure};

use super::{
    InstalledService, OwnedBackend, ReasonCount, ServiceKey, TableError, TableView, Tables,
    counters::{self, TrafficById},
    flows::{FlowTables, KnownFlow},
    slots::Slots,
    view::Newest,
};
use crate::load::Loaded;

/// Handles to the maps of counters and flows, and the slots.
pub struct TableReader {
    counters: counters::Maps,
    lut: Slots,
    newest: Newest,
    flows: FlowTables,
}

impl fmt::Debug for TableReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableReader").finish_non_exhaustive()
    }
}

impl Tables {
    /// Returns counters and slots for another reader; maps that are not in memory are opened again.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be opened or mapped into memory.
    pub fn reader(&self, loaded: &Loaded) -> Result<TableReader, TableError> {
        Ok(TableReader {
            counters: self.counters.shared(loaded)?,
            lut: self.lut.shared(),
            newest: self.newest.clone(),
            flows: FlowTables::open(loaded)?,
        })
    }
}

impl TableReader {
    /// Sums packets and bytes per service of a view; leaves out services that have gone since.
    pub fn service_traffic(&self, view: &TableView) -> BTreeMap<ServiceKey, Traffic> {
        let services = view.services();
        let services = services.map(|(key, service)| (*key, service.id));
        current(&self.counters.services, services, || {
            let newest = self.newest.get();
            move |key: &ServiceKey| newest.service(key).map(|service| service.id)
        })
    }

    /// Sums packets and bytes per backend and owner of a view; leaves out backends that have gone since.
    pub fn backend_traffic(&self, view: &TableView) -> BTreeMap<OwnedBackend, Traffic> {
        let backends = view.backends();
        let backends = backends.map(|(key, backend)| (*key, backend.id));
        current(&self.counters.backends, backends, || {
            let newest = self.newest.get();
            move |key: &OwnedBackend| newest.backend(key).map(|backend| backend.id)
        })
    }

    /// Sums the packets per reason; every reason is included.
    pub fn reasons(&self) -> Vec<ReasonCount> {
        self.counters.reasons()
    }

    /// Sums the frames of the whole machine that XDP could not send, per cause; every cause is included.
    ///
    /// # Errors
    ///
    /// Fails if the map cannot be read.
    pub fn failures(&self) -> Result<Vec<(Failure, u64)>, TableError> {
        self.counters.failures()
    }

    /// Returns the last source whose IP-in-IP was refused, and how long ago that was.
    ///
    /// # Errors
    ///
    /// Fails if the map cannot be read.
    pub fn last_untrusted(&self) -> Result<Option<(IpAddr, Duration)>, TableError> {
        self.counters.last_untrusted()
    }

    /// Walks through the flows of this machine's pods and of NAT mode while the tables change, and passes each live
    /// flow to `take`; ends early if `take` returns false.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be read.
    pub fn flows(&self, take: impl FnMut(KnownFlow) -> bool) -> Result<(), TableError> {
        self.flows.walk(take)
    }

    /// Counts the slots that each backend of a service owns, by the backend's id.
    pub fn slots_by_id(&self, service: &InstalledService) -> HashMap<u32, u32> {
        let mut slots = HashMap::new();
        for slot in self.lut.of(service.run) {
            *slots.entry(slot.owner()).or_default() += 1;
        }
        slots
    }
}

/// Reads the counters of all ids, and reads again for a key that has another id by then.
fn current<K: Ord, I: Fn(&K) -> Option<u32>>(
    traffic: &TrafficById,
    known: impl Iterator<Item = (K, u32)>,
    newest: impl FnOnce() -> I,
) -> BTreeMap<K, Traffic> {
    let read = known.map(|(key, id)| (key, id, traffic.of(id)));
    let read: Vec<_> = read.collect();
    let id_of = newest();
    let rows = read.into_iter().filter_map(|(key, id, sum)| {
        let sum = match id_of(&key)? {
            same if same == id => sum,
            other => traffic.of(other),
        };
        Some((key, sum))
    });
    rows.collect()
}
