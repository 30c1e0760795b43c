//! Counters, summed over all CPUs.

use std::{mem::offset_of, net::IpAddr, time::Duration};

use aya::maps::{Map, MapData, PerCpuArray, PerCpuValues};
use xdp_prog::{
    abi::{Traffic, Untrusted, map},
    failure::Failure,
    reason::{self, ReasonKind},
};

use super::{OwnedBackend, ServiceKey, TableError, mapped::Mapped, types::address_of};
use crate::{clock::monotonic_ns, cpus, load::Loaded};

/// The sums over all CPUs at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets per reason; every reason is included.
    pub reasons: Vec<ReasonCount>,
    /// Frames of the whole machine that XDP could not send, per cause; every cause is included.
    pub failures: Vec<(Failure, u64)>,
    /// Packets and bytes per service.
    pub services: Vec<(ServiceKey, Traffic)>,
    /// Packets and bytes per backend and owner.
    pub backends: Vec<(OwnedBackend, Traffic)>,
}

/// The packets that were counted under one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonCount {
    /// Whether the packets went on, ended, or were answered.
    pub kind: ReasonKind,
    /// Metric label.
    pub label: &'static str,
    pub packets: u64,
}

/// Handles to the maps of counters.
pub(super) struct Maps {
    pub(super) reasons: OfEachCpu<u64>,
    failures: PerCpu<u64>,
    untrusted: PerCpu<Untrusted>,
    pub(super) services: TrafficById,
    pub(super) backends: TrafficById,
}

impl Maps {
    pub(super) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        Ok(Self {
            reasons: OfEachCpu::open(loaded, map::REASONS)?,
            failures: PerCpu::open(loaded, map::FAILURES)?,
            untrusted: PerCpu::open(loaded, map::UNTRUSTED)?,
            services: TrafficById::open(loaded, map::SERVICE_TRAFFIC)?,
            backends: TrafficById::open(loaded, map::BACKEND_TRAFFIC)?,
        })
    }

    /// Returns the same counters for a reader.
    pub(super) fn shared(&self, loaded: &Loaded) -> Result<Self, TableError> {
        Ok(Self {
            reasons: self.reasons.shared(),
            failures: PerCpu::open(loaded, map::FAILURES)?,
            untrusted: PerCpu::open(loaded, map::UNTRUSTED)?,
            services: TrafficById(self.services.0.shared()),
            backends: TrafficById(self.backends.0.shared()),
        })
    }

    pub(super) fn reasons(&self) -> Vec<ReasonCount> {
        let count = |(index, (kind, label))| ReasonCount {
            kind,
            label,
            packets: self.reason(index),
        };
        (0..).zip(reason::all()).map(count).collect()
    }

    pub(super) fn reason(&self, index: u32) -> u64 {
        self.reasons.sum(index, 0)
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

/// A per-CPU array of the kernel.
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

/// An array with a region for each CPU; see [`cpus`].
pub(super) struct OfEachCpu<V> {
    memory: Mapped<V>,
    /// Distance between the regions, in entries.
    entries: u32,
}

impl<V: aya::Pod + Default + PartialEq> OfEachCpu<V> {
    fn open(loaded: &Loaded, name: &'static str) -> Result<Self, TableError> {
        Self::over(&loaded.map(name)?, name)
    }

    pub(super) fn over(map: &MapData, name: &'static str) -> Result<Self, TableError> {
        let memory = Mapped::<V>::over(map, name)?;
        let bytes = u32::try_from(size_of::<V>()).unwrap_or(u32::MAX);
        let entries = cpus::entries_of_one(memory.length(), bytes);
        Ok(Self {
            entries: entries.map_err(|source| TableError::Mapping { map: name, source })?,
            memory,
        })
    }

    /// Returns the same memory for a reader.
    fn shared(&self) -> Self {
        Self {
            memory: self.memory.shared(),
            entries: self.entries,
        }
    }

    /// Lists the places of an index in the regions of all CPUs.
    fn places(&self, index: u32) -> impl Iterator<Item = u32> + use<V> {
        let regions = (0..self.memory.length()).step_by(self.entries.max(1) as usize);
        let is_there = index < self.entries;
        regions.filter(move |_| is_there).map(move |of| of + index)
    }

    /// Goes on with what other counters have under `old`, unless something is counted under `index`.
    pub(super) fn inherit(&mut self, index: u32, others: &Self, old: u32) {
        let mut counted = self.places(index).map(|place| self.memory.read(place));
        if counted.any(|counted| counted != Some(V::default())) {
            return;
        }
        for (place, old) in self.places(index).zip(others.places(old)) {
            if let Some(counted) = others.memory.read(old) {
                self.memory.write(place, counted);
            }
        }
    }

    /// Sums the words at `offset` of an entry over all CPUs.
    fn sum(&self, index: u32, offset: usize) -> u64 {
        let words = self
            .places(index)
            .filter_map(|place| self.memory.load_u64(place, offset));
        words.sum()
    }
}

/// Packets and bytes of services or backends, by id.
pub(super) struct TrafficById(OfEachCpu<Traffic>);

const PACKETS: usize = offset_of!(Traffic, packets);
const BYTES: usize = offset_of!(Traffic, bytes);

impl TrafficById {
    fn open(loaded: &Loaded, name: &'static str) -> Result<Self, TableError> {
        Ok(Self(OfEachCpu::open(loaded, name)?))
    }

    /// Uses an open map.
    pub(super) fn over(map: &MapData, name: &'static str) -> Result<Self, TableError> {
        Ok(Self(OfEachCpu::over(map, name)?))
    }

    /// Returns how many ids each CPU has counters for.
    pub(super) const fn of_cpu(&self) -> u32 {
        self.0.entries
    }

    /// Returns the sum over all CPUs for one id.
    pub(super) fn of(&self, id: u32) -> Traffic {
        Traffic {
            packets: self.0.sum(id, PACKETS),
            bytes: self.0.sum(id, BYTES),
        }
    }

    /// Goes on with what other counters have under `old`, unless something is counted under `id`.
    pub(super) fn inherit(&mut self, id: u32, others: &Self, old: u32) {
        self.0.inherit(id, &others.0, old);
    }

    /// Clears the counters of an id before it is allocated.
    ///
    /// Clearing it when it is freed would not do: an agent that is killed frees nothing.
    pub(super) fn clear(&mut self, id: u32) {
        for place in self.0.places(id) {
            self.0.memory.write(place, Traffic::default());
        }
    }

    /// Copies the counters of an old id to the id that replaces it, before the new one is allocated.
    ///
    /// Packets that are counted under the old id after that are lost: those of a few microseconds.
    pub(super) fn copy(&mut self, old: u32, id: u32) {
        for (old, place) in self.0.places(old).zip(self.0.places(id)) {
            if let Some(counted) = self.0.memory.read(old) {
                self.0.memory.write(place, counted);
            }
        }
    }
}
