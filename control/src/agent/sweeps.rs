//! What the agent does now and then: removes flows of NAT mode that are over, where there may be any, counts the
//! other flows, gives back what is not in use, and looks whether the kernel masquerades by addresses of NAT mode.

use std::time::{Duration, Instant};

use fastpath::{capture, facts, memory};

use super::Agent;
use crate::check;

/// Flows of NAT mode that one sweep looks at: all of a table of the usual size.
const SWEEP_FLOWS: usize = 262_144;
/// How often the agent sweeps at most.
const SWEEP_PAUSE: Duration = Duration::from_secs(5);
/// Entries of the tables of flows that the agent counts at a time.
const COUNT_FLOWS: usize = 65_536;
/// How long the agent leaves the flows uncounted once it has counted those of all tables.
const COUNT_PAUSE: Duration = Duration::from_secs(60);
/// How often the agent gives back freed memory at most: it takes milliseconds, in which nothing else is done.
const RELEASE_PAUSE: Duration = Duration::from_secs(60);
/// How often flows of NAT mode are looked for where none is expected. A service that the desired state has no more,
/// but could not be taken from the tables yet, still makes some.
const LOOK_PAUSE: Duration = Duration::from_secs(300);
/// How often the rules of the kernel are listed, where NAT mode has an address that they could masquerade by: a
/// node of a large cluster has tens of thousands, and nothing else is done meanwhile.
const RULES_PAUSE: Duration = Duration::from_secs(600);

/// When what was done last.
#[derive(Debug)]
pub(super) struct Sweeps {
    swept: Instant,
    nat: NatSweeps,
    /// When all flows had been counted; nothing while they are.
    counted: Option<Instant>,
    /// When what changes had freed was given back.
    released: Instant,
    /// When the rules of the kernel were listed; nothing if they have to be, once an address is shared.
    rules: Option<Instant>,
    /// What masquerading does to NAT mode, and what to do about it.
    masquerade: Option<String>,
    /// Why other machines may refuse what this one sends.
    distrust: Vec<String>,
    /// Whether it was logged that this machine is no Node.
    is_outside_told: bool,
}

impl Sweeps {
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

    /// Has the rules of the kernel listed with the next sweep.
    pub(super) const fn look_at_rules(&mut self) {
        self.rules = None;
    }

    /// Returns what a human should look at.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &String> {
        self.masquerade.iter().chain(&self.distrust)
    }

    /// Returns how long the agent may sleep: a count that is under way goes on with every sweep.
    pub(super) const fn pause(&self) -> Option<Duration> {
        match self.counted {
            Some(_) => None,
            None => Some(SWEEP_PAUSE),
        }
    }
}

impl Agent {
    /// Removes flows of NAT mode that are over, what a capture has left that was killed, and memory that is not in
    /// use; counts the other flows.
    pub(super) fn sweep(&mut self) {
        if self.sweeps.swept.elapsed() < SWEEP_PAUSE {
            return;
        }
        let now = Instant::now();
        self.sweeps.swept = now;
        if self.sweeps.nat.are_due(now, self.totals.has_nat()) {
            self.sweep_nat();
        }
        let pause = self.sweeps.counted.map(|counted| now - counted);
        if pause.is_none_or(|pause| pause >= COUNT_PAUSE) {
            self.count_flows();
        }
        self.look_for_masquerade();
        self.look_for_distrust();
        if let Err(error) = capture::clear_away(&self.attachments.pins) {
            tracing::warn!(%error, "cannot look for what a capture has left");
        }
        let released = &mut self.sweeps.released;
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
        self.sweeps.nat.note(self.sweeps.swept, may_be_left);
    }

    fn look_for_masquerade(&mut self) {
        let shared = &self.tables.addresses().nat & &self.machine.primary;
        if shared.is_empty() {
            self.sweeps.rules = None;
            self.sweeps.masquerade = None;
            return;
        }
        let now = self.sweeps.swept;
        let listed = self.sweeps.rules;
        if listed.is_some_and(|listed| now - listed < RULES_PAUSE) {
            return;
        }
        self.sweeps.rules = Some(now);
        // If the kernel does not tell, what it told last stands.
        let Some(masquerades) = facts::masquerades() else {
            return;
        };
        let found = check::masquerade_warning(&shared, masquerades);
        if let Some(warning) = &found
            && self.sweeps.masquerade != found
        {
            tracing::warn!(warning, "NAT mode shares its ports with the kernel");
        }
        self.sweeps.masquerade = found;
    }

    /// Looks whether other machines know this one, and by the addresses that it sends from.
    fn look_for_distrust(&mut self) {
        let found = self.distrust();
        for warning in &found {
            if !self.sweeps.distrust.contains(warning) {
                tracing::warn!(warning, "other machines do not know this one");
            }
        }
        self.sweeps.distrust = found;
        let node = self.node_name();
        let is_outside = node.is_some_and(|(_, has_node)| !has_node);
        if is_outside && !self.sweeps.is_outside_told {
            let name = self.node_name().map(|(name, _)| name);
            tracing::warn!(
                name,
                "no Node has this name: this machine is an edge outside the cluster"
            );
        }
        self.sweeps.is_outside_told = is_outside;
    }

    fn count_flows(&mut self) {
        let is_done = self.tables.count_live(COUNT_FLOWS).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot count the flows");
            true
        });
        self.sweeps.counted = is_done.then_some(self.sweeps.swept);
    }
}

/// What is known of the flows in the tables of NAT mode.
#[derive(Debug)]
struct NatSweeps {
    last: Instant,
    /// Whether the last sweep has left any, as far as is known.
    may_be_left: bool,
}

impl NatSweeps {
    /// Begins with a table that an earlier agent may have left flows in.
    const fn new(now: Instant) -> Self {
        Self {
            last: now,
            may_be_left: true,
        }
    }

    /// Tells whether a walk through the table may find flows.
    fn are_due(&self, now: Instant, has_nat: bool) -> bool {
        has_nat || self.may_be_left || now.saturating_duration_since(self.last) >= LOOK_PAUSE
    }

    /// Notes a sweep, and whether flows may be left.
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
