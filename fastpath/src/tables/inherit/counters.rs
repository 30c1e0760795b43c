//! Carries counters over from tables of this layout.

use aya::maps::MapData;
use xdp_prog::{
    abi::{Backend, Service, map},
    reason::REASON_COUNT,
};

use super::FormerTables;
use crate::tables::{
    TableError, Tables,
    counters::{OfEachCpu, TrafficById},
    encode::{key_of_entry, owned_backend},
    mapped::Mapped,
};

/// The counters, and what they belong to.
pub(super) struct FormerCounters {
    reasons: OfEachCpu<u64>,
    service: Mapped<Service>,
    service_traffic: TrafficById,
    backends: Mapped<Backend>,
    backend_traffic: TrafficById,
}

impl FormerCounters {
    pub(super) const NAMES: [&str; 5] = [
        map::REASONS,
        map::SERVICE,
        map::SERVICE_TRAFFIC,
        map::BACKENDS,
        map::BACKEND_TRAFFIC,
    ];

    /// The maps whose contents are carried over.
    pub(super) const COUNTED: [&str; 3] =
        [map::REASONS, map::SERVICE_TRAFFIC, map::BACKEND_TRAFFIC];

    /// Uses open maps of these names.
    pub(super) fn over(maps: &[MapData; 5]) -> Result<Self, TableError> {
        let [reasons, service, service_traffic, backends, backend_traffic] = maps;
        Ok(Self {
            reasons: OfEachCpu::over(reasons, map::REASONS)?,
            service: Mapped::over(service, map::SERVICE)?,
            service_traffic: TrafficById::over(service_traffic, map::SERVICE_TRAFFIC)?,
            backends: Mapped::over(backends, map::BACKENDS)?,
            backend_traffic: TrafficById::over(backend_traffic, map::BACKEND_TRAFFIC)?,
        })
    }
}

impl Tables {
    /// Goes on with the counters of former tables where these have counted nothing. Packets that former programs count
    /// after that are lost.
    pub fn inherit_counters(&mut self, former: &FormerTables) {
        let Some(former) = &former.counters else {
            return;
        };
        let ours = &mut self.counters;
        for reason in (0..).take(REASON_COUNT) {
            ours.reasons.inherit(reason, &former.reasons, reason);
        }
        for old in 1..former.service.length() {
            let entry = former
                .service
                .read(old)
                .filter(|entry| entry.word.base() != 0);
            let key = entry.and_then(|entry| key_of_entry(&entry));
            if let Some(service) = key.and_then(|key| self.contents.installed.get(&key)) {
                let traffic = &former.service_traffic;
                ours.services.inherit(service.id, traffic, old);
            }
        }
        for old in 1..former.backends.length() {
            let entry = former.backends.read(old).filter(|entry| entry.flags != 0);
            let key = entry.map(|entry| owned_backend(&entry));
            if let Some(backend) = key.and_then(|key| self.contents.backend_by_key.get(&key)) {
                let traffic = &former.backend_traffic;
                ours.backends.inherit(backend.id, traffic, old);
            }
        }
    }
}
