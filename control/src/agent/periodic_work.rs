//! Periodic work of the agent: removes expired flows of NAT mode where there may be any, and past owners of slots and
//! pods that have gone; counts the other flows, frees unused memory, and checks whether the kernel masquerades with
//! addresses of NAT mode.

use std::time::{Duration, Instant};

use fastpath::{capture, facts, memory};

use super::Agent;
use crate::check;

/// Most flows of NAT mode that one sweep visits: all of a table of the default size.
const SWEEP_FLOWS: usize = 262_144;
/// Shortest time between two sweeps.
const SWEEP_PAUSE: Duration = Duration::from_secs(5);
/// Number of entries of the flow tables that the agent counts at a time.
const COUNT_FLOWS: usize = 65_536;
/// Pause after the flows of all tables have been counted.
const COUNT_PAUSE: Duration = Duration::from_secs(60);
/// Shortest time between two releases of freed memory. One takes milliseconds, in which the agent does nothing else.
const RELEASE_PAUSE: Duration = Duration::from_secs(60);
/// Time between two sweeps for flows of NAT mode when none are expected. A service that was removed from the
/// desired state but not yet from the tables still makes some.
const LOOK_PAUSE: Duration = Duration::from_secs(300);
/// Time between two listings of the kernel's rules, if NAT mode has an address that they could masquerade with.
/// A node of a large cluster has tens of thousands of rules, and the agent does nothing else meanwhile.
const RULES_PAUSE: Duration = Duration::from_secs(600);

/// When each kind of work was last done, and what it found.
#[derive(Debug)]
pub(super) struct PeriodicWork {
    swept: Instant,
    nat: NatSweeps,
    /// When all flows had been counted; `None` while a count is going on.
    counted: Option<Instant>,
    /// When freed memory was last released.
    released: Instant,
    /// When the kernel's rules were last listed; `None` to list them with the next sweep.
    rules: Option<Instant>,
    /// Warning about masquerading that interferes with NAT mode.
    masquerade: Option<String>,
    /// Why other machines may refuse this machine's packets.
    distrust: Vec<String>,
    /// Whether it was logged that this machine is no Node.
    is_outside_told: bool,
}

impl PeriodicWork {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            swept: now,
            nat: NatSweeps::new(now),
            counted: None,
            released: now,
            rules: None,
            masquerade: None,
            distrust: Vec::new(),
            is_outside_told: false,
        }
    }

    /// Makes the next sweep list the kernel's rules.
    pub(super) const fn look_at_rules(&mut self) {
        self.rules = None;
    }

    /// Iterates over the current warnings for users.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &String> {
        self.masquerade.iter().chain(&self.distrust)
    }

    /// Returns the longest sleep of the agent; `None` for any. While a count is going on, every sweep continues it.
    pub(super) const fn pause(&self) -> Option<Duration> {
        match self.counted {
            Some(_) => None,
            None => Some(SWEEP_PAUSE),
        }
    }
}

impl Agent {
    /// Removes expired flows of NAT mode, the remains of captures that were killed, and unused memory. Counts
    /// the other flows.
    pub(super) fn sweep(&mut self) {
        if self.periodic_work.swept.elapsed() < SWEEP_PAUSE {
            return;
        }
        let now = Instant::now();
        self.periodic_work.swept = now;
        if self.periodic_work.nat.are_due(now, self.totals.has_nat()) {
            self.sweep_nat();
        }
        let pause = self.periodic_work.counted.map(|counted| now - counted);
        if pause.is_none_or(|pause| pause >= COUNT_PAUSE) {
            self.count_flows();
        }
        self.look_for_masquerade();
        self.look_for_distrust();
        self.tables.expire_past_owners();
        self.tables.expire_needs();
        if self.departed_pods.has_gone(&self.machine.addresses, now) {
            self.settle();
        }
        let edge = self.whole_edge.as_ref();
        let goes_on = edge.is_some_and(|edge| edge.captures().clear_away());
        if !goes_on && let Err(error) = capture::clear_away(&self.attachments.pins) {
            tracing::warn!(%error, "cannot look for what a capture has left");
        }
        let released = &mut self.periodic_work.released;
        if self.programmed.at > *released && released.elapsed() >= RELEASE_PAUSE {
            memory::release_freed();
            *released = Instant::now();
        }
    }

    fn sweep_nat(&mut self) {
        let may_be_left = match self.tables.sweep_nat(SWEEP_FLOWS) {
            Ok(removed) => {
                tracing::debug!(removed, "flows of NAT mode swept");
                self.tables.may_have_nat_flows()
            }
            Err(error) => {
                tracing::warn!(%error, "cannot sweep the flows of NAT mode");
                true
            }
        };
        self.periodic_work
            .nat
            .note(self.periodic_work.swept, may_be_left);
    }

    fn look_for_masquerade(&mut self) {
        let shared = &self.tables.addresses().nat & &self.machine.primary;
        if shared.is_empty() {
            self.periodic_work.rules = None;
            self.periodic_work.masquerade = None;
            return;
        }
        let now = self.periodic_work.swept;
        let listed = self.periodic_work.rules;
        if listed.is_some_and(|listed| now - listed < RULES_PAUSE) {
            return;
        }
        self.periodic_work.rules = Some(now);
        // If the kernel does not answer, its last answer stays.
        let Some(masquerades) = facts::masquerades() else {
            return;
        };
        let found = check::masquerade_warning(&shared, masquerades);
        if let Some(warning) = &found
            && self.periodic_work.masquerade != found
        {
            tracing::warn!(warning, "NAT mode shares its ports with the kernel");
        }
        self.periodic_work.masquerade = found;
    }

    /// Checks whether other machines know this one, and know the addresses that it sends from.
    fn look_for_distrust(&mut self) {
        let found = self.distrust();
        for warning in &found {
            if !self.periodic_work.distrust.contains(warning) {
                tracing::warn!(warning, "other machines do not know this one");
            }
        }
        self.periodic_work.distrust = found;
        let node = self.node_name();
        let is_outside = node.is_some_and(|(_, has_node)| !has_node);
        if is_outside && !self.periodic_work.is_outside_told {
            let name = self.node_name().map(|(name, _)| name);
            tracing::warn!(
                name,
                "no Node has this name: this machine is an edge outside the cluster"
            );
        }
        self.periodic_work.is_outside_told = is_outside;
    }

    fn count_flows(&mut self) {
        let is_done = self.tables.count_live(COUNT_FLOWS).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot count the flows");
            true
        });
        self.periodic_work.counted = is_done.then_some(self.periodic_work.swept);
    }
}

/// When the flow table of NAT mode must be swept.
#[derive(Debug)]
struct NatSweeps {
    last: Instant,
    /// Whether the last sweep may have left flows.
    may_be_left: bool,
}

impl NatSweeps {
    /// Assumes that an earlier agent left flows in the table.
    const fn new(now: Instant) -> Self {
        Self {
            last: now,
            may_be_left: true,
        }
    }

    /// Returns whether a sweep may find flows.
    fn are_due(&self, now: Instant, has_nat: bool) -> bool {
        has_nat || self.may_be_left || now.saturating_duration_since(self.last) >= LOOK_PAUSE
    }

    /// Records a sweep, and whether it may have left flows.
    const fn note(&mut self, now: Instant, may_be_left: bool) {
        self.last = now;
        self.may_be_left = may_be_left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_earlier_agents_and_services_left_are_swept_until_none_is_left() {
        let start = Instant::now();
        let mut sweeps = NatSweeps::new(start);
        assert!(sweeps.are_due(start, false));
        sweeps.note(start, true);
        assert!(sweeps.are_due(start, false));
        sweeps.note(start, false);
        assert!(!sweeps.are_due(start, false));
    }

    #[test]
    fn where_a_service_goes_by_nat_every_sweep_is_due() {
        let start = Instant::now();
        let mut sweeps = NatSweeps::new(start);
        sweeps.note(start, false);
        assert!(sweeps.are_due(start, true));
    }

    #[test]
    fn flows_are_looked_for_now_and_then_where_none_is_expected() {
        let start = Instant::now();
        let mut sweeps = NatSweeps::new(start);
        sweeps.note(start, false);
        assert!(!sweeps.are_due(start + LOOK_PAUSE - Duration::from_secs(1), false));
        assert!(sweeps.are_due(start + LOOK_PAUSE, false));
    }
}
