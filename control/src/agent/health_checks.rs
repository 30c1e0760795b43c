//! The checks of backends and nodes, and the selection of backends by their results.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use fastpath::tables::Tables;

use crate::chain::chain;
use crate::config::host::source_towards;
use crate::desired::Desired;
use crate::health::monitor::Monitor;
use crate::health::probe_indices::ProbeIndices;
use crate::health::selection::Selection;
use crate::health::targets::{NotMade, Surroundings, Targets};
use crate::random::random;
use crate::service_totals::ServiceTotals;
use crate::target_state::title;

/// The checks, and the selection that follows from them.
#[derive(Debug)]
pub(super) struct HealthChecks {
    /// Makes the checks, beside the agent's thread.
    pub(super) monitor: Arc<Monitor>,
    /// The desired state without the backends that should not get traffic.
    pub(super) selection: Selection,
    /// Whether the health of a backend or node has changed since the selection was made.
    pub(super) is_changed: bool,
    probe_indices: ProbeIndices,
    /// The targets in force; `None` if setting them failed.
    targets: Option<Targets>,
    pub(super) not_made: NotMade,
}

impl HealthChecks {
    /// Creates it without targets. The tables have `probe_capacity` entries for probes.
    pub(super) fn new(probe_capacity: u32) -> Self {
        Self {
            monitor: Arc::new(Monitor::new(random())),
            selection: Selection::default(),
            is_changed: false,
            probe_indices: ProbeIndices::new(probe_capacity),
            targets: None,
            not_made: NotMade::default(),
        }
    }

    /// Sets the targets of checks from the configuration. `diverts` says whether packets of checks can be put
    /// on the path of client packets.
    pub(super) fn set_targets(
        &mut self,
        desired: &Desired,
        totals: &ServiceTotals,
        own: &BTreeSet<IpAddr>,
        diverts: bool,
        tables: &mut Tables,
    ) {
        let around = Surroundings {
            own,
            diverts,
            source_towards,
        };
        let targets = Targets::of(desired, totals, &around, &mut self.probe_indices);
        if self.targets.as_ref() == Some(&targets) {
            return;
        }
        let mut unset = 0;
        for (index, probe) in &targets.probes {
            if let Err(error) = tables.set_probe(*index, probe) {
                tracing::debug!(error = chain(&error), "the way of a check is not set");
                unset += 1;
            }
        }
        let mut not_made = targets.not_made;
        not_made.no_way += unset;
        if not_made != self.not_made {
            for reason in reasons(&not_made) {
                tracing::warn!(reason, "backends or nodes are not checked");
            }
        }
        self.not_made = not_made;
        self.targets = (unset == 0).then(|| targets.clone());
        self.monitor.set_targets(targets);
    }

    /// Selects the backends that get traffic. Returns whether the selection changed.
    pub(super) fn select(&mut self, desired: &Desired, own: &BTreeSet<IpAddr>) -> bool {
        let before = self.selection.all_fail.clone();
        let left_out = self.monitor.left_out();
        let changed = self.selection.follow(desired, left_out, own);
        let after = &self.selection.all_fail;
        for key in after.iter().filter(|key| !before.contains(*key)) {
            tracing::warn!(service = %title(&desired.services, key), "every backend should be left out, so all serve");
        }
        for key in before.iter().filter(|key| !after.contains(*key)) {
            tracing::info!(service = %title(&desired.services, key), "some backends can serve again, the others are left out");
        }
        changed
    }
}

/// Returns texts about checks that are not made: how many, why, and what to do.
pub(crate) fn reasons(not_made: &NotMade) -> impl Iterator<Item = String> {
    let NotMade { no_way, too_many } = *not_made;
    let no_way = (no_way > 0).then(|| {
        format!(
            "{no_way} health checks are not made: their packets cannot be put on the way of a client's; \
             see the problems of the egress program"
        )
    });
    let too_many = (too_many > 0).then(|| {
        format!(
            "{too_many} health checks are not made: there are more than this machine makes; \
             spread the services over several edges, or check fewer of them"
        )
    });
    no_way.into_iter().chain(too_many)
}
