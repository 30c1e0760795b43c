//! Per-CPU counters, summed.

use std::{net::IpAddr, time::Duration};

use aya::maps::{MapData, PerCpuArray, PerCpuValues};
use xdp_prog::{
    abi::{Traffic, Untrusted, map},
    failure::Failure,
    reason::{self, ReasonKind},
};

use super::{BackendKey, ServiceKey, TableError, error::read_failed, types::address_of};
use crate::clock::monotonic_ns;

/// The sums over all CPUs at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets per pass and drop reason; every reason is there.
    pub reasons: Vec<ReasonCount>,
    /// Frames of the whole machine that XDP could not send, per cause; every cause is there.
    pub failures: Vec<(Failure, u64)>,
    /// Packets and bytes per service.
    pub services: Vec<(ServiceKey, Traffic)>,
    /// Packets and bytes per backend, over all services.
    pub backends: Vec<(BackendKey, Traffic)>,
}

/// Packets that ended with one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonCount {
    /// Whether they went on to the stack or ended.
    pub kind: ReasonKind,
    /// Metric label.
    pub label: &'static str,
    /// Packets.
    pub packets: u64,
}

pub(super) struct Maps {
    pub(super) reasons: PerCpuArray<MapData, u64>,
    pub(super) failures: PerCpuArray<MapData, u64>,
    pub(super) untrusted: PerCpuArray<MapData, Untrusted>,
    pub(super) service_traffic: PerCpuArray<MapData, Traffic>,
    pub(super) backend_traffic: PerCpuArray<MapData, Traffic>,
}

impl Maps {
    pub(super) fn reasons(&self) -> Result<Vec<ReasonCount>, TableError> {
        let count = |(index, (kind, label))| {
            let packets = self.reasons.get(&index, 0);
            let packets = packets.map_err(read_failed(map::REASONS))?;
            Ok(ReasonCount {
                kind,
                label,
                packets: packets.iter().sum(),
            })
        };
        (0..).zip(reason::all()).map(count).collect()
    }

    pub(super) fn reason(&self, index: u32) -> Result<u64, TableError> {
        let packets = self.reasons.get(&index, 0);
        Ok(packets.map_err(read_failed(map::REASONS))?.iter().sum())
    }

    pub(super) fn failures(&self) -> Result<Vec<(Failure, u64)>, TableError> {
        let count = |failure: Failure| {
            let frames = self.failures.get(&failure.index(), 0);
            let frames = frames.map_err(read_failed(map::FAILURES))?;
            Ok((failure, frames.iter().sum()))
        };
        Failure::ALL.into_iter().map(count).collect()
    }

    pub(super) fn last_untrusted(&self) -> Result<Option<(IpAddr, Duration)>, TableError> {
        let noted = self.untrusted.get(&0, 0);
        let noted = noted.map_err(read_failed(map::UNTRUSTED))?;
        let last = noted.iter().max_by_key(|noted| noted.at);
        Ok(last.filter(|last| last.at != 0).map(|last| {
            let ago = monotonic_ns().saturating_sub(last.at);
            (address_of(last.source), Duration::from_nanos(ago))
        }))
    }

    pub(super) fn service_traffic<K>(
        &self,
        services: impl Iterator<Item = (K, u32)>,
    ) -> Result<Vec<(K, Traffic)>, TableError> {
        totals(&self.service_traffic, map::SERVICE_TRAFFIC, services)
    }

    pub(super) fn backend_traffic<K>(
        &self,
        backends: impl Iterator<Item = (K, u32)>,
    ) -> Result<Vec<(K, Traffic)>, TableError> {
        totals(&self.backend_traffic, map::BACKEND_TRAFFIC, backends)
    }

    /// Zeroes the counters of an id that is about to be given out.
    ///
    /// Not when it is given back: an agent that is killed never gives back.
    pub(super) fn clear_service(&mut self, id: u32) {
        clear(&mut self.service_traffic, id);
    }

    /// Has the counters of an id that is about to be given out go on from those of the one that it replaces.
    ///
    /// What packets add to the old ones from here on is lost: those of a few microseconds.
    pub(super) fn copy_service(&mut self, old: u32, id: u32) {
        match self.service_traffic.get(&old, 0) {
            Ok(values) => {
                let _ = self.service_traffic.set(id, values, 0);
            }
            Err(_) => self.clear_service(id),
        }
    }

    /// Zeroes the counters of an id that is about to be given out.
    pub(super) fn clear_backend(&mut self, id: u32) {
        clear(&mut self.backend_traffic, id);
    }
}

fn clear(map: &mut PerCpuArray<MapData, Traffic>, id: u32) {
    // Without the number of CPUs there is nothing to write; the counters then
    // go on from their old values, which harms no packet.
    let Ok(cpus) = aya::util::nr_cpus() else {
        return;
    };
    if let Ok(zeros) = PerCpuValues::try_from(vec![Traffic::default(); cpus]) {
        let _ = map.set(id, zeros, 0);
    }
}

fn totals<K>(
    map: &PerCpuArray<MapData, Traffic>,
    name: &'static str,
    ids: impl Iterator<Item = (K, u32)>,
) -> Result<Vec<(K, Traffic)>, TableError> {
    let total = |(key, id)| {
        let values = map.get(&id, 0).map_err(read_failed(name))?;
        let sum = |sum: Traffic, one: &Traffic| Traffic {
            packets: sum.packets + one.packets,
            bytes: sum.bytes + one.bytes,
        };
        Ok((key, values.iter().fold(Traffic::default(), sum)))
    };
    ids.map(total).collect()
}
