//! Per-CPU counters, summed.

use aya::maps::{MapData, PerCpuArray, PerCpuValues};
use xdp_prog::{
    abi::{Traffic, map},
    failure::Failure,
    reason::{self, ReasonKind},
};

use super::{BackendKey, ServiceKey, TableError, error::read_failed};

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
    pub(super) service_traffic: PerCpuArray<MapData, Traffic>,
    pub(super) backend_traffic: PerCpuArray<MapData, Traffic>,
}

impl Maps {
    pub(super) fn sum(
        &self,
        services: impl Iterator<Item = (ServiceKey, u32)>,
        backends: impl Iterator<Item = (BackendKey, u32)>,
    ) -> Result<Counters, TableError> {
        let mut counters = Counters::default();
        for (index, (kind, label)) in (0..).zip(reason::all()) {
            let values = self
                .reasons
                .get(&index, 0)
                .map_err(read_failed(map::REASONS))?;
            counters.reasons.push(ReasonCount {
                kind,
                label,
                packets: values.iter().sum(),
            });
        }
        for failure in Failure::ALL {
            let values = self.failures.get(&failure.index(), 0);
            let values = values.map_err(read_failed(map::FAILURES))?;
            counters.failures.push((failure, values.iter().sum()));
        }
        for (key, id) in services {
            let values = self.service_traffic.get(&id, 0);
            let values = values.map_err(read_failed(map::SERVICE_TRAFFIC))?;
            counters.services.push((key, total(&values)));
        }
        for (key, id) in backends {
            let values = self.backend_traffic.get(&id, 0);
            let values = values.map_err(read_failed(map::BACKEND_TRAFFIC))?;
            counters.backends.push((key, total(&values)));
        }
        Ok(counters)
    }

    /// Zeroes the counters of an id that is about to be given out.
    ///
    /// Not when it is given back: an agent that is killed never gives back.
    pub(super) fn clear_service(&mut self, id: u32) {
        clear(&mut self.service_traffic, id);
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

fn total(values: &PerCpuValues<Traffic>) -> Traffic {
    values.iter().fold(Traffic::default(), |sum, one| Traffic {
        packets: sum.packets + one.packets,
        bytes: sum.bytes + one.bytes,
    })
}
