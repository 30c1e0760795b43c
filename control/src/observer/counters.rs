//! Counters of packets that were not forwarded, and of frames that could not be sent.

use std::collections::BTreeMap;

use fastpath::facts;
use fastpath::mend::{Counts, Outcome};
use fastpath::nexthop::Resolution;
use fastpath::tables::{ReasonCount, TableError};
use fastpath::whole_edge::{EDGE_LOST, EdgeOutcome, EdgeReader};
use xdp_prog::failure::Failure;
use xdp_prog::reason::{PassReason, ReasonKind};

use super::Observation;
use crate::api::{MendStatus, Reason, Untrusted};
use crate::chain::chain;
use crate::next_hop::DeviceNames;

impl Observation<'_> {
    pub(super) fn last_untrusted(&self) -> Option<Untrusted> {
        // An answer without this is still useful.
        let (source, ago) = self.inputs.reader.last_untrusted().ok()??;
        Some(Untrusted {
            source: source.to_string(),
            seconds_ago: ago.as_secs(),
        })
    }

    /// Lists the reasons that ended packets, and the failures to send frames.
    pub(super) fn drops(&self) -> Result<Vec<Reason>, String> {
        self.go_on()?;
        let mut rows = self.reasons();
        rows.extend(self.failures()?);
        // Drops come first, because users look for them.
        rows.sort_by(|a, b| a.action.cmp(&b.action));
        Ok(rows)
    }

    pub(super) fn failures(&self) -> Result<Vec<Reason>, String> {
        let failures = self.inputs.reader.failures().map_err(describe)?;
        let row = |(failure, packets): (Failure, u64)| {
            let drivers = match failure {
                Failure::Transmit => self.transmit_errors(),
                Failure::Unsupported
                | Failure::DeviceDown
                | Failure::NoDevice
                | Failure::TooLong
                | Failure::Other => BTreeMap::new(),
            };
            Reason {
                action: "fail".to_owned(),
                reason: failure.label().to_owned(),
                // Many drivers count such a frame in both ways.
                packets: packets.max(drivers.values().sum()),
                rates: None,
                drivers,
                last: None,
            }
        };
        Ok(failures.into_iter().map(row).collect())
    }

    /// Reads how many frames the drivers of attached devices failed to send, if they count them.
    fn transmit_errors(&self) -> BTreeMap<String, u64> {
        let mut errors = BTreeMap::new();
        let devices = self.view.xdp_programs.iter();
        for device in devices.map(|running| &running.wanted) {
            let counted = facts::transmit_errors(device).unwrap_or_default();
            let counted = counted.into_iter().filter(|(_, frames)| *frames > 0);
            errors.extend(counted.map(|(name, frames)| (format!("{device} {name}"), frames)));
        }
        errors
    }

    pub(super) fn reasons(&self) -> Vec<Reason> {
        let reasons = self.inputs.reader.reasons();
        let row = |reason: ReasonCount| Reason {
            action: reason.kind.label().to_owned(),
            reason: reason.label.to_owned(),
            packets: reason.packets,
            rates: None,
            drivers: BTreeMap::new(),
            last: if reason.label == PassReason::EncapUntrusted.label() {
                self.last_untrusted()
            } else {
                None
            },
        };
        let reasons = reasons.into_iter().map(row);
        reasons
            .chain(self.mended())
            .chain(self.by_threads())
            .collect()
    }

    /// Lists what threads have done with packets since the agent's start.
    fn by_threads(&self) -> Vec<Reason> {
        let none = EdgeReader::default();
        let threads = self.view.edge.as_ref().unwrap_or(&none);
        let outcomes = EdgeOutcome::ALL.map(|outcome| (outcome.label(), threads.of(outcome)));
        let rows = outcomes.into_iter().chain([(EDGE_LOST, threads.lost())]);
        rows.map(|(reason, packets)| Reason {
            action: "edge".to_owned(),
            reason: reason.to_owned(),
            packets,
            rates: None,
            drivers: BTreeMap::new(),
            last: None,
        })
        .collect()
    }

    /// Lists what became of punted packets since the agent's start.
    fn mended(&self) -> Vec<Reason> {
        let counts = self.view.mend.as_ref().map(|mend| mend.reader.counts());
        let none = Counts::default();
        let counts = counts.unwrap_or(&none);
        let outcomes = Outcome::ALL.map(|outcome| (outcome.label(), counts.of(outcome)));
        let row = |(reason, packets): (&'static str, u64)| Reason {
            action: "mend".to_owned(),
            reason: reason.to_owned(),
            packets,
            rates: None,
            drivers: BTreeMap::new(),
            last: None,
        };
        outcomes
            .into_iter()
            .chain(counts.losses())
            .map(row)
            .collect()
    }

    /// Returns what is known of mending; `None` if packets are not mended.
    pub(super) fn mend_status(&self) -> Option<MendStatus> {
        let mend = self.view.mend.as_ref()?;
        let reasons = self.inputs.reader.reasons();
        let punted = reasons
            .iter()
            .filter(|reason| reason.kind == ReasonKind::Punt);
        let punted: u64 = punted.map(|reason| reason.packets).sum();
        let counts = mend.reader.counts();
        let (held, held_bytes) = counts.held();
        let queues = mend.reader.queues();
        let mut problems: Vec<_> = queues.problems.iter().map(|error| chain(error)).collect();
        problems.dedup();
        Some(MendStatus {
            queues: queues.wanted,
            open: queues.open,
            punted: punted.saturating_sub(mend.punted_before),
            taken: counts.of(Outcome::Taken),
            lost: counts.losses().map(|(_, packets)| packets).sum(),
            held,
            held_bytes,
            memory_bytes: mend.limits.bytes as u64,
            carried: self.carried(),
            problems,
        })
    }

    /// Counts the nodes that are reached by devices that take no frames from XDP.
    fn carried(&self) -> BTreeMap<String, u64> {
        let names = DeviceNames::read();
        let mut carried = BTreeMap::new();
        for node in self.nodes_in_use() {
            if let Some(Resolution::Resolved(hop)) = self.view.tables.next_hop(node)
                && hop.is_carried
            {
                *carried.entry(names.of(hop.ifindex)).or_default() += 1;
            }
        }
        carried
    }
}

/// Returns the text of a table's error.
pub(super) fn describe(error: TableError) -> String {
    chain(&error)
}
