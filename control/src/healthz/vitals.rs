//! The rules by which probes are answered.
//!
//! A change gathers with others, is passed on to the agent, taken by it, and then in the tables. One that is
//! not there in time makes the machine unhealthy, whoever holds it up. Nothing that arrives, such as
//! from an API server that is away, is no change.
//!
//! A step that fails with a named problem is done with, unlike for kube-proxy, whose rules are
//! replaced together: one Service that does not fit takes no load off the others' node.

use std::time::{Duration, Instant};

/// How long a change may take; twice the sync period of kube-proxy.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(60);

/// How far the agent is with what it was told.
#[derive(Clone, Debug)]
pub struct Vitals {
    /// Since when the first change waits that was not passed on.
    gathering: Option<Instant>,
    /// The same of those that were passed on.
    passed: Option<Instant>,
    /// The same of those that are being programmed.
    taken: Option<Instant>,
    /// Whether anything was passed on: all was listed then.
    is_listed: bool,
    /// Whether anything was programmed.
    is_synced: bool,
    /// When that was last, or when the process began.
    updated: Instant,
    /// Whether the Node is about to go, as long as there is one.
    leaving: Option<bool>,
    /// Whether there was one.
    had_node: bool,
    /// The devices without their program, each with the reason.
    unattached: Vec<String>,
}

impl Vitals {
    /// Begins at the time `now`, with nothing to do.
    pub const fn new(now: Instant) -> Self {
        Self {
            gathering: None,
            passed: None,
            taken: None,
            is_listed: false,
            is_synced: false,
            updated: now,
            leaving: None,
            had_node: false,
            unattached: Vec::new(),
        }
    }

    /// Notes since when changes gather, if any do.
    pub const fn gather(&mut self, since: Option<Instant>) {
        self.gathering = since;
    }

    /// Notes that the changes since then were passed on.
    ///
    /// What gathers before all was listed is no delay of ours, so the first ones count from `now`.
    pub fn pass(&mut self, since: Instant, now: Instant) {
        let since = if self.is_listed { since } else { now };
        self.is_listed = true;
        self.gathering = None;
        self.passed = earlier(self.passed, Some(since));
    }

    /// Notes that the agent has begun to program what was passed on.
    pub fn take(&mut self) {
        self.taken = earlier(self.taken, self.passed.take());
    }

    /// Notes that what was taken is in the tables.
    pub const fn finish(&mut self, now: Instant) {
        self.taken = None;
        self.is_synced = true;
        self.updated = now;
    }

    /// Notes whether the Node is about to go, if there is one.
    pub const fn set_leaving(&mut self, leaving: Option<bool>) {
        self.leaving = leaving;
        self.had_node |= leaving.is_some();
    }

    /// Notes the devices without their program, each with the reason.
    pub fn set_unattached(&mut self, unattached: Vec<String>) {
        self.unattached = unattached;
    }

    /// Tells whether every change is in the tables, or may yet get there in time.
    pub fn is_healthy(&self, now: Instant) -> bool {
        let gathering = self.gathering.filter(|_| self.is_listed);
        let oldest = earlier(earlier(gathering, self.passed), self.taken);
        oldest.is_none_or(|since| now.saturating_duration_since(since) <= HEALTH_TIMEOUT)
    }

    /// Tells whether load balancers may count on the Node: it is neither gone nor about to go.
    pub const fn is_eligible(&self) -> bool {
        match self.leaving {
            Some(is_leaving) => !is_leaving,
            None => !self.had_node,
        }
    }

    /// Returns how long ago the tables had all that was known: no time if the machine is healthy.
    pub fn age(&self, now: Instant) -> Duration {
        match self.is_healthy(now) {
            true => Duration::ZERO,
            false => now.saturating_duration_since(self.updated),
        }
    }

    /// Lists what is missing to serve.
    pub fn missing(&self) -> Vec<String> {
        let unsynced = (!self.is_synced)
            .then(|| "the first state of the cluster is not in the tables".to_owned());
        unsynced
            .into_iter()
            .chain(self.unattached.clone())
            .collect()
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that stands where the test puts it.
    struct Clock(Instant);

    impl Clock {
        fn at(&self, seconds: u64) -> Instant {
            self.0 + Duration::from_secs(seconds)
        }
    }

    /// A machine that has programmed its first state at second 10.
    fn synced() -> (Clock, Vitals) {
        let clock = Clock(Instant::now());
        let mut vitals = Vitals::new(clock.at(0));
        vitals.pass(clock.at(1), clock.at(9));
        vitals.take();
        vitals.finish(clock.at(10));
        (clock, vitals)
    }

    #[test]
    fn machine_is_healthy_before_the_first_sync() {
        let clock = Clock(Instant::now());
        let mut vitals = Vitals::new(clock.at(0));
        vitals.gather(Some(clock.at(1)));
        assert!(vitals.is_healthy(clock.at(1000)));
        assert_eq!(vitals.age(clock.at(1000)), Duration::ZERO);
    }

    #[test]
    fn first_state_counts_from_when_all_was_listed() {
        let clock = Clock(Instant::now());
        let mut vitals = Vitals::new(clock.at(0));
        vitals.pass(clock.at(1), clock.at(500));
        assert!(vitals.is_healthy(clock.at(560)));
        assert!(!vitals.is_healthy(clock.at(561)));
    }

    #[test]
    fn machine_without_changes_is_healthy_for_ever() {
        let (clock, vitals) = synced();
        assert!(vitals.is_healthy(clock.at(1_000_000)));
        assert_eq!(vitals.age(clock.at(1_000_000)), Duration::ZERO);
    }

    #[test]
    fn change_that_is_not_programmed_in_time_is_unhealthy_whoever_holds_it_up() {
        let (clock, before) = synced();
        let mut gathering = before;
        gathering.gather(Some(clock.at(100)));
        let mut passed = gathering.clone();
        passed.pass(clock.at(100), clock.at(101));
        let mut taken = passed.clone();
        taken.take();
        for vitals in [&gathering, &passed, &taken] {
            assert!(vitals.is_healthy(clock.at(160)), "{vitals:?}");
            assert!(!vitals.is_healthy(clock.at(161)), "{vitals:?}");
            assert_eq!(vitals.age(clock.at(161)), Duration::from_secs(151));
        }
        taken.finish(clock.at(162));
        assert!(taken.is_healthy(clock.at(1000)));
    }

    #[test]
    fn changes_that_come_while_others_are_programmed_wait_on() {
        let (clock, mut vitals) = synced();
        vitals.pass(clock.at(100), clock.at(100));
        vitals.take();
        vitals.pass(clock.at(110), clock.at(110));
        vitals.gather(Some(clock.at(120)));
        vitals.finish(clock.at(150));
        assert!(vitals.is_healthy(clock.at(170)));
        assert!(!vitals.is_healthy(clock.at(171)), "since second 110");
        vitals.take();
        vitals.finish(clock.at(172));
        assert!(!vitals.is_healthy(clock.at(181)), "since second 120");
    }

    #[test]
    fn oldest_of_several_changes_counts() {
        let (clock, mut vitals) = synced();
        vitals.pass(clock.at(100), clock.at(100));
        vitals.pass(clock.at(150), clock.at(150));
        assert!(!vitals.is_healthy(clock.at(161)));
    }

    #[test]
    fn changes_without_effect_are_forgotten() {
        let (clock, mut vitals) = synced();
        vitals.gather(Some(clock.at(100)));
        vitals.gather(None);
        assert!(vitals.is_healthy(clock.at(1000)));
    }

    #[test]
    fn node_is_eligible_until_it_is_about_to_go() {
        let (clock, mut vitals) = synced();
        assert!(vitals.is_eligible(), "before the first Node");
        vitals.set_leaving(None);
        assert!(vitals.is_eligible(), "outside the cluster");
        vitals.set_leaving(Some(true));
        assert!(!vitals.is_eligible());
        assert!(vitals.is_healthy(clock.at(20)));
        vitals.set_leaving(Some(false));
        assert!(vitals.is_eligible());
        vitals.set_leaving(None);
        assert!(!vitals.is_eligible(), "the Node is deleted");
    }

    #[test]
    fn machine_is_ready_with_the_first_sync_and_all_programs() {
        let clock = Clock(Instant::now());
        let mut vitals = Vitals::new(clock.at(0));
        vitals.set_unattached(vec!["no XDP program on eth0".to_owned()]);
        assert_eq!(vitals.missing().len(), 2);
        vitals.pass(clock.at(1), clock.at(1));
        vitals.take();
        assert_eq!(vitals.missing().len(), 2);
        vitals.finish(clock.at(2));
        assert_eq!(vitals.missing(), ["no XDP program on eth0"]);
        vitals.set_unattached(Vec::new());
        assert_eq!(vitals.missing(), [""; 0]);
    }
}
