//! Per-CPU counters, summed.

use std::{net::IpAddr, time::Duration};

use aya::maps::{Map, MapData, PerCpuArray, PerCpuValues};
use xdp_prog::{
    abi::{Traffic, Untrusted, map},
    failure::Failure,
    reason::{self, ReasonKind},
};

use super::{OwnedBackend, ServiceKey, TableError, batch::Entries, types::address_of};
use crate::{clock::monotonic_ns, load::Loaded};

/// What is read of a map of traffic at a time.
const BATCH_BYTES: usize = 1 << 20;

/// The sums over all CPUs at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets per pass and drop reason; every reason is there.
    pub reasons: Vec<ReasonCount>,
    /// Frames of the whole machine that XDP could not send, per cause; every cause is there.
    pub failures: Vec<(Failure, u64)>,
    /// Packets and bytes per service.
    pub services: Vec<(ServiceKey, Traffic)>,
    /// Packets and bytes per backend and owner.
    pub backends: Vec<(OwnedBackend, Traffic)>,
}

/// Packets that ended with one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonCount {
    /// Whether they went on to the stack or ended.
    pub kind: ReasonKind,
    /// Metric label.
    pub label: &'static str,
    pub packets: u64,
}

/// Handles on the maps of counters.
pub(super) struct Maps {
    reasons: PerCpu<u64>,
    failures: PerCpu<u64>,
    untrusted: PerCpu<Untrusted>,
    pub(super) services: TrafficById,
    pub(super) backends: TrafficById,
}

impl Maps {
    pub(super) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        Ok(Self {
            reasons: PerCpu::open(loaded, map::REASONS)?,
            failures: PerCpu::open(loaded, map::FAILURES)?,
            untrusted: PerCpu::open(loaded, map::UNTRUSTED)?,
            services: TrafficById::open(loaded, map::SERVICE_TRAFFIC)?,
            backends: TrafficById::open(loaded, map::BACKEND_TRAFFIC)?,
        })
    }

    pub(super) fn reasons(&self) -> Result<Vec<ReasonCount>, TableError> {
        let count = |(index, (kind, label))| {
            let packets = self.reason(index)?;
            Ok(ReasonCount {
                kind,
                label,
                packets,
            })
        };
        (0..).zip(reason::all()).map(count).collect()
    }

    pub(super) fn reason(&self, index: u32) -> Result<u64, TableError> {
        Ok(self.reasons.values(index)?.iter().sum())
    }

    pub(super) fn failures(&self) -> Result<Vec<(Failure, u64)>, TableError> {
        let count = |failure: Failure| {
            let frames = self.failures.values(failure.index())?;
            Ok((failure, frames.iter().sum()))
        };
        Failure::ALL.into_iter().map(count).collect()
    }

    pub(super) fn last_untrusted(&self) -> Result<Option<(IpAddr, Duration)>, TableError> {
        let noted = self.untrusted.values(0)?;
        let last = noted.iter().max_by_key(|noted| noted.at);
        Ok(last.filter(|last| last.at != 0).map(|last| {
            let ago = monotonic_ns().saturating_sub(last.at);
            (address_of(last.source), Duration::from_nanos(ago))
        }))
    }
}

/// An array with a value for each CPU.
struct PerCpu<V: aya::Pod> {
    name: &'static str,
    map: PerCpuArray<MapData, V>,
}

impl<V: aya::Pod> PerCpu<V> {
    fn open(loaded: &Loaded, name: &'static str) -> Result<Self, TableError> {
        let map = PerCpuArray::try_from(Map::PerCpuArray(loaded.map(name)?));
        Ok(Self {
            name,
            map: map.map_err(TableError::read(name))?,
        })
    }

    fn values(&self, index: u32) -> Result<PerCpuValues<V>, TableError> {
        let values = self.map.get(&index, 0);
        values.map_err(TableError::read(self.name))
    }
}

/// Packets and bytes of services or backends, by id.
pub(super) struct TrafficById {
    map: PerCpu<Traffic>,
    entries: Entries<u32, Traffic>,
    cpus: usize,
}

impl TrafficById {
    fn open(loaded: &Loaded, name: &'static str) -> Result<Self, TableError> {
        let cpus = aya::util::nr_cpus();
        let cpus = cpus.map_err(|(_, error)| TableError::read(name)(error.into()))?;
        Ok(Self {
            map: PerCpu::open(loaded, name)?,
            entries: Entries::of(loaded, name, cpus)?,
            cpus,
        })
    }

    /// Sums over all CPUs what one id has.
    pub(super) fn of(&self, id: u32) -> Result<Traffic, TableError> {
        Ok(sum(&self.map.values(id)?))
    }

    /// Does so for each of these ids.
    pub(super) fn of_each<K>(
        &self,
        ids: impl Iterator<Item = (K, u32)>,
    ) -> Result<Vec<(K, Traffic)>, TableError> {
        let ids: Vec<(K, u32)> = ids.collect();
        let last = ids.iter().map(|(_, id)| *id).max();
        let sums = last.map_or_else(|| Ok(Vec::new()), |last| self.up_to(last))?;
        let sum_of = |id: u32| sums.get(id as usize).copied().unwrap_or_default();
        Ok(ids.into_iter().map(|(key, id)| (key, sum_of(id))).collect())
    }

    /// Sums for all ids up to this one: low ones are given out first.
    fn up_to(&self, last: u32) -> Result<Vec<Traffic>, TableError> {
        let count = last as usize + 1;
        let at_a_time = (BATCH_BYTES / (size_of::<Traffic>() * self.cpus)).clamp(1, count);
        let mut keys = vec![0; at_a_time];
        let mut values = vec![Traffic::default(); at_a_time * self.cpus];
        let mut sums = Vec::with_capacity(count);
        let mut cursor = None;
        while sums.len() < count {
            let batch = self.entries.read(cursor, &mut keys, &mut values)?;
            sums.extend(values.chunks(self.cpus).take(batch.count).map(sum));
            cursor = batch.next;
            if cursor.is_none() {
                break;
            }
        }
        Ok(sums)
    }

    /// Zeroes the counters of an id that is about to be given out.
    ///
    /// Not when it is given back: an agent that is killed never gives back.
    pub(super) fn clear(&mut self, id: u32) {
        if let Ok(zeros) = PerCpuValues::try_from(vec![Traffic::default(); self.cpus]) {
            let _ = self.map.map.set(id, zeros, 0);
        }
    }

    /// Has the counters of an id that is about to be given out go on from those of the one that it replaces.
    ///
    /// What packets add to the old ones from here on is lost: those of a few microseconds.
    pub(super) fn copy(&mut self, old: u32, id: u32) {
        match self.map.values(old) {
            Ok(values) => {
                let _ = self.map.map.set(id, values, 0);
            }
            Err(_) => self.clear(id),
        }
    }
}

fn sum(values: &[Traffic]) -> Traffic {
    let add = |sum: Traffic, one: &Traffic| Traffic {
        packets: sum.packets + one.packets,
        bytes: sum.bytes + one.bytes,
    };
    values.iter().fold(Traffic::default(), add)
}
