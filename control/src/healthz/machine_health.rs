//! The rules by which probes are answered.
//!
//! A change passes four stages: it gathers with others, is passed on to the agent, is taken by the agent, and
//! is in the tables. A change that takes too long makes the machine unhealthy, wherever it is held up. Without
//! changes, for example while the API server is away, the machine stays healthy.
//!
//! A step that fails with a named problem counts as done. kube-proxy differs, because it replaces all its rules
//! together. Here one Service that does not fit must not take the node's other Services out of service.

use std::time::{Duration, Instant};

/// How long a change may take: twice the sync period of kube-proxy.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(60);

/// How far the agent has got with the changes.
#[derive(Clone, Debug)]
pub struct MachineHealth {
    /// Arrival of the oldest change that has not been passed on.
    gathering: Option<Instant>,
    /// Arrival of the oldest change that was passed on but not taken.
    passed: Option<Instant>,
    /// Arrival of the oldest change that was taken but is not in the tables.
    taken: Option<Instant>,
    /// Whether anything was passed on, which requires complete lists.
    is_listed: bool,
    /// Whether anything was ever programmed.
    is_synced: bool,
    /// When the tables were last up to date, or the start of the process.
    updated: Instant,
    /// Whether the Node is about to be removed; `None` if there is no Node.
    leaving: Option<bool>,
    /// Whether there has been a Node.
    had_node: bool,
    /// Devices that lack their program, each with the reason.
    unattached: Vec<String>,
}

impl MachineHealth {
    /// Creates the state of a process that starts at `now`.
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

    /// Sets when the oldest gathering change arrived; `None` if none gathers.
    pub const fn gather(&mut self, since: Option<Instant>) {
        self.gathering = since;
    }

    /// Records that the changes gathered since `since` were passed on.
    ///
    /// Before the lists are complete, waiting is no delay of this machine: the first changes count from `now`.
    pub fn pass(&mut self, since: Instant, now: Instant) {
        let since = if self.is_listed { since } else { now };
        self.is_listed = true;
        self.gathering = None;
        self.passed = earlier(self.passed, Some(since));
    }

    /// Records that the agent has started to program the changes that were passed on.
    pub fn take(&mut self) {
        self.taken = earlier(self.taken, self.passed.take());
    }

    /// Records that the changes that were taken are in the tables.
    pub const fn finish(&mut self, now: Instant) {
        self.taken = None;
        self.is_synced = true;
        self.updated = now;
    }

    /// Sets whether the Node is about to be removed; `None` if there is no Node.
    pub const fn set_leaving(&mut self, leaving: Option<bool>) {
        self.leaving = leaving;
        self.had_node |= leaving.is_some();
    }

    /// Sets the devices that lack their program, each with the reason.
    pub fn set_unattached(&mut self, unattached: Vec<String>) {
        self.unattached = unattached;
    }

    /// Returns whether no change has waited for longer than [`HEALTH_TIMEOUT`].
    pub fn is_healthy(&self, now: Instant) -> bool {
        let gathering = self.gathering.filter(|_| self.is_listed);
        let oldest = earlier(earlier(gathering, self.passed), self.taken);
        oldest.is_none_or(|since| now.saturating_duration_since(since) <= HEALTH_TIMEOUT)
    }

    /// Returns whether load balancers may use the Node: it is neither gone nor about to be removed.
    pub const fn is_eligible(&self) -> bool {
        match self.leaving {
            Some(is_leaving) => !is_leaving,
            None => !self.had_node,
        }
    }

    /// Returns how long the tables have been out of date; zero if the machine is healthy.
    pub fn age(&self, now: Instant) -> Duration {
        match self.is_healthy(now) {
            true => Duration::ZERO,
            false => now.saturating_duration_since(self.updated),
        }
    }

    /// Lists what is missing before the machine can serve.
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
    fn synced() -> (Clock, MachineHealth) {
        let clock = Clock(Instant::now());
        let mut machine_health = MachineHealth::new(clock.at(0));
        machine_health.pass(clock.at(1), clock.at(9));
        machine_health.take();
        machine_health.finish(clock.at(10));
        (clock, machine_health)
    }

    #[test]
    fn machine_is_healthy_before_the_first_sync() {
        let clock = Clock(Instant::now());
        let mut machine_health = MachineHealth::new(clock.at(0));
        machine_health.gather(Some(clock.at(1)));
        assert!(machine_health.is_healthy(clock.at(1000)));
        assert_eq!(machine_health.age(clock.at(1000)), Duration::ZERO);
    }

    #[test]
    fn first_state_counts_from_when_all_was_listed() {
        let clock = Clock(Instant::now());
        let mut machine_health = MachineHealth::new(clock.at(0));
        machine_health.pass(clock.at(1), clock.at(500));
        assert!(machine_health.is_healthy(clock.at(560)));
        assert!(!machine_health.is_healthy(clock.at(561)));
    }

    #[test]
    fn machine_without_changes_is_healthy_for_ever() {
        let (clock, machine_health) = synced();
        assert!(machine_health.is_healthy(clock.at(1_000_000)));
        assert_eq!(machine_health.age(clock.at(1_000_000)), Duration::ZERO);
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
        for machine_health in [&gathering, &passed, &taken] {
            assert!(
                machine_health.is_healthy(clock.at(160)),
                "{machine_health:?}"
            );
            assert!(
                !machine_health.is_healthy(clock.at(161)),
                "{machine_health:?}"
            );
            assert_eq!(machine_health.age(clock.at(161)), Duration::from_secs(151));
        }
        taken.finish(clock.at(162));
        assert!(taken.is_healthy(clock.at(1000)));
    }

    #[test]
    fn changes_that_come_while_others_are_programmed_wait_on() {
        let (clock, mut machine_health) = synced();
        machine_health.pass(clock.at(100), clock.at(100));
        machine_health.take();
        machine_health.pass(clock.at(110), clock.at(110));
        machine_health.gather(Some(clock.at(120)));
        machine_health.finish(clock.at(150));
        assert!(machine_health.is_healthy(clock.at(170)));
        assert!(
            !machine_health.is_healthy(clock.at(171)),
            "since second 110"
        );
        machine_health.take();
        machine_health.finish(clock.at(172));
        assert!(
            !machine_health.is_healthy(clock.at(181)),
            "since second 120"
        );
    }

    #[test]
    fn oldest_of_several_changes_counts() {
        let (clock, mut machine_health) = synced();
        machine_health.pass(clock.at(100), clock.at(100));
        machine_health.pass(clock.at(150), clock.at(150));
        assert!(!machine_health.is_healthy(clock.at(161)));
    }

    #[test]
    fn changes_without_effect_are_forgotten() {
        let (clock, mut machine_health) = synced();
        machine_health.gather(Some(clock.at(100)));
        machine_health.gather(None);
        assert!(machine_health.is_healthy(clock.at(1000)));
    }

    #[test]
    fn node_is_eligible_until_it_is_about_to_go() {
        let (clock, mut machine_health) = synced();
        assert!(machine_health.is_eligible(), "before the first Node");
        machine_health.set_leaving(None);
        assert!(machine_health.is_eligible(), "outside the cluster");
        machine_health.set_leaving(Some(true));
        assert!(!machine_health.is_eligible());
        assert!(machine_health.is_healthy(clock.at(20)));
        machine_health.set_leaving(Some(false));
        assert!(machine_health.is_eligible());
        machine_health.set_leaving(None);
        assert!(!machine_health.is_eligible(), "the Node is deleted");
    }

    #[test]
    fn machine_is_ready_with_the_first_sync_and_all_programs() {
        let clock = Clock(Instant::now());
        let mut machine_health = MachineHealth::new(clock.at(0));
        machine_health.set_unattached(vec!["no XDP program on eth0".to_owned()]);
        assert_eq!(machine_health.missing().len(), 2);
        machine_health.pass(clock.at(1), clock.at(1));
        machine_health.take();
        assert_eq!(machine_health.missing().len(), 2);
        machine_health.finish(clock.at(2));
        assert_eq!(machine_health.missing(), ["no XDP program on eth0"]);
        machine_health.set_unattached(Vec::new());
        assert_eq!(machine_health.missing(), [""; 0]);
    }
}
