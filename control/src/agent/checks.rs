//! The checks of backends and nodes: what is checked, and which backends serve by what came of it.

use super::Agent;
use crate::chain::chain;
use crate::config::host::source_towards;
use crate::health::targets::{NotMade, Surroundings, Targets};
use crate::target::title;

impl Agent {
    /// Has everything checked that the configuration asks for.
    pub(super) fn aim(&mut self) {
        let mut interfaces = self.config.desired.interfaces.keys();
        let around = Surroundings {
            own: &self.machine.addresses,
            diverts: self.census.diverts_checks(&self.config.desired)
                && interfaces.all(|name| self.egress.contains_key(name)),
            source_towards,
        };
        let desired = &self.config.desired;
        let targets = Targets::of(desired, &self.census, &around, &mut self.ways);
        if self.targets.as_ref() == Some(&targets) {
            return;
        }
        let mut unset = 0;
        for (index, way) in &targets.ways {
            if let Err(error) = self.tables.set_probe(*index, way) {
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
        self.health.set_targets(targets);
    }

    /// Selects the backends that serve; true if that is another selection than before.
    pub(super) fn select(&mut self) -> bool {
        let before = self.selection.all_fail.clone();
        let changed = self.selection.follow(
            &self.config.desired,
            self.health.left_out(),
            &self.machine.addresses,
        );
        let all_fail = &self.selection.all_fail;
        for key in all_fail.iter().filter(|key| !before.contains(*key)) {
            tracing::warn!(service = %title(&self.config.desired.services, key), "every backend should be left out, so all serve");
        }
        for key in before.iter().filter(|key| !all_fail.contains(*key)) {
            tracing::info!(service = %title(&self.config.desired.services, key), "some backends can serve again, the others are left out");
        }
        changed
    }
}

/// Says which checks are not made, why, and what to do.
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
