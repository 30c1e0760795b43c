//! The targets of checks: when each is checked next, and whether it is healthy.
//!
//! A pure state machine: it gets every time as an argument and sends nothing. A target is healthy until results
//! say otherwise. Results that contradict its state are counted; a result that agrees resets the count. `fall`
//! contradicting results in a row make it unhealthy, `rise` make it healthy again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::hash::mix;

/// How results change the state of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckThresholds {
    /// Time from the start of one check to the start of the next, before jitter.
    pub interval: Duration,
    /// Successes in a row that make an unhealthy target healthy.
    pub rise: u32,
    /// Failures in a row that make a healthy target unhealthy.
    pub fall: u32,
    /// Whether the first result decides alone if the target or its check is new. There is no earlier result
    /// that it could contradict.
    pub first_decides: bool,
    /// How long a target that has never passed its check counts as starting: [`BegunCheck::may_be_starting`].
    pub starting: Duration,
}

/// All targets of one kind. `K` identifies a target, `C` says how it is checked.
#[derive(Debug)]
pub struct Schedule<K, C> {
    targets: BTreeMap<K, CheckedTarget<C>>,
    /// Time of the next check of each target that is not being checked.
    due: BTreeSet<(Instant, K)>,
    jitter: Jitter,
    tickets: u64,
}

/// The state of one target.
#[derive(Clone, Debug)]
pub struct CheckedTarget<C> {
    check: C,
    thresholds: CheckThresholds,
    /// Whether it should get traffic.
    pub healthy: bool,
    /// When it became healthy or unhealthy.
    pub since: Instant,
    /// When the target or its check was new.
    begun: Instant,
    /// Whether there was a result since then.
    pub decided: bool,
    /// Whether a check has succeeded since then.
    has_passed: bool,
    /// Number of consecutive results that contradict `healthy`.
    against: u32,
    failure: Option<String>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Waiting { until: Instant },
    UnderCheck { ticket: u64, started: Instant },
}

/// A check to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BegunCheck<K, C> {
    /// The target.
    pub key: K,
    /// How it is checked.
    pub check: C,
    /// Whether the target has not passed this check yet but may still be starting, so that a failure may mean little.
    pub may_be_starting: bool,
    /// Whether the target is healthy and passed this check the last time.
    pub has_just_passed: bool,
    /// Distinguishes this check from others of the same target, for [`Schedule::finish`].
    pub ticket: u64,
    /// When it began.
    pub began: Instant,
}

/// A check with its result.
#[derive(Debug)]
pub struct EndedCheck<K, C> {
    /// The check.
    pub begun: BegunCheck<K, C>,
    /// Success, or the reason of the failure; `None` if the check had no result.
    pub outcome: Option<Result<(), String>>,
}

impl<C> CheckedTarget<C> {
    /// Returns the last failure; `None` for a healthy target whose last check succeeded.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns how many consecutive results contradict the state, and how many would change it.
    pub fn against(&self) -> (u32, u32) {
        (self.against, self.limit())
    }

    fn limit(&self) -> u32 {
        match (self.decided || !self.thresholds.first_decides, self.healthy) {
            (false, _) => 1,
            (true, true) => self.thresholds.fall,
            (true, false) => self.thresholds.rise,
        }
    }

    /// Counts a result. Returns whether it changed the state.
    fn count(&mut self, now: Instant, outcome: Result<(), String>) -> bool {
        let limit = self.limit();
        let succeeded = outcome.is_ok();
        if succeeded == self.healthy {
            self.against = 0;
        } else {
            self.against += 1;
        }
        let turns = self.against >= limit;
        if turns {
            self.healthy = succeeded;
            self.against = 0;
            self.since = now;
        }
        self.decided = true;
        self.has_passed |= succeeded;
        match outcome {
            Err(failure) => self.failure = Some(failure),
            // While successes are being counted, the target is still unhealthy for its last failure.
            Ok(()) if self.healthy => self.failure = None,
            Ok(()) => {}
        }
        turns
    }
}

impl<K: Ord + Clone, C: Clone + PartialEq> Schedule<K, C> {
    /// Creates a schedule without targets. The seed spreads the checks of different machines over time.
    pub fn new(seed: u64) -> Self {
        Self {
            targets: BTreeMap::new(),
            due: BTreeSet::new(),
            jitter: Jitter(seed),
            tickets: 0,
        }
    }

    /// Replaces the targets. Targets that stay keep their state. A target whose check changed is checked at
    /// once, and its results count as those of a new target.
    pub fn set_targets(&mut self, now: Instant, wanted: BTreeMap<K, (C, CheckThresholds)>) {
        let mut before = std::mem::take(&mut self.targets);
        for (key, (check, thresholds)) in wanted {
            let known = before.remove(&key);
            let target = match known {
                Some(same) if same.check == check && same.thresholds == thresholds => same,
                _ => CheckedTarget {
                    check,
                    thresholds,
                    healthy: known.as_ref().is_none_or(|known| known.healthy),
                    since: known.as_ref().map_or(now, |known| known.since),
                    failure: known.and_then(|known| known.failure),
                    begun: now,
                    decided: false,
                    has_passed: false,
                    against: 0,
                    phase: Phase::Waiting { until: now },
                },
            };
            self.targets.insert(key, target);
        }
        let waiting = self.targets.iter().filter_map(|(key, target)| {
            let Phase::Waiting { until } = target.phase else {
                return None;
            };
            Some((until, key.clone()))
        });
        self.due = waiting.collect();
    }

    /// Starts the check that has been due longest; `None` if none is due.
    pub fn start(&mut self, now: Instant) -> Option<BegunCheck<K, C>> {
        if self.next_due()? > now {
            return None;
        }
        let (_, key) = self.due.pop_first()?;
        let target = self.targets.get_mut(&key)?;
        self.tickets += 1;
        target.phase = Phase::UnderCheck {
            ticket: self.tickets,
            started: now,
        };
        Some(BegunCheck {
            check: target.check.clone(),
            may_be_starting: !target.has_passed && now < target.begun + target.thresholds.starting,
            has_just_passed: target.has_passed && target.healthy && target.against == 0,
            ticket: self.tickets,
            began: now,
            key,
        })
    }

    /// Returns when the next check is due; `None` if every target is being checked.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Records the result of a check; `None` if it had none. Returns whether the target became healthy or unhealthy.
    ///
    /// The result is ignored if the target is gone or has a new check by now.
    pub fn finish(
        &mut self,
        now: Instant,
        key: &K,
        ticket: u64,
        outcome: Option<Result<(), String>>,
    ) -> bool {
        let Some(target) = self.targets.get_mut(key) else {
            return false;
        };
        let started = match target.phase {
            Phase::UnderCheck {
                ticket: own,
                started,
            } if own == ticket => started,
            Phase::UnderCheck { .. } | Phase::Waiting { .. } => return false,
        };
        let until = (started + self.jitter.spread(target.thresholds.interval)).max(now);
        target.phase = Phase::Waiting { until };
        self.due.insert((until, key.clone()));
        let Some(outcome) = outcome else {
            // The results before and after are not consecutive.
            target.against = 0;
            return false;
        };
        target.count(now, outcome)
    }

    /// Returns the state of a target.
    pub fn get(&self, key: &K) -> Option<&CheckedTarget<C>> {
        self.targets.get(key)
    }

    /// Iterates over the targets that should not get traffic.
    pub fn unhealthy(&self) -> impl Iterator<Item = &K> {
        let unhealthy = self.targets.iter().filter(|(_, target)| !target.healthy);
        unhealthy.map(|(key, _)| key)
    }

    /// Iterates over the targets after `last`, or over all.
    pub fn after(&self, last: Option<&K>) -> impl Iterator<Item = (&K, &CheckedTarget<C>)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.targets.range((from, Bound::Unbounded))
    }
}

/// Random variation of intervals. Without it, targets that are due together would stay together.
#[derive(Debug)]
struct Jitter(u64);

impl Jitter {
    /// Returns the interval, varied by up to a tenth.
    fn spread(&mut self, interval: Duration) -> Duration {
        let part = f64::from(self.next() >> 16) / f64::from(u16::MAX);
        interval.mul_f64(0.9 + 0.2 * part)
    }

    /// Returns the upper half of the next number of SplitMix64.
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) >> 32) as u32
    }
}

#[cfg(test)]
mod tests;
