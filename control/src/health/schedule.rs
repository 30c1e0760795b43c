//! What is known of the targets of checks: when each is checked next, and what its results add up to.
//!
//! A pure state machine: every time is an argument, nothing is sent here. A target is healthy until
//! results say otherwise. One that contradicts what is known counts against it, one that agrees
//! clears the count; `fall` in a row make it unhealthy, `rise` in a row healthy again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::hash::mix;

/// How results add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// From the start of one check to the start of the next, before jitter.
    pub interval: Duration,
    /// Good results in a row that make an unhealthy target healthy.
    pub rise: u32,
    /// Bad results in a row that make a healthy target unhealthy.
    pub fall: u32,
    /// Whether the first result after the target or its check is new decides alone: nothing is
    /// known yet that it could contradict.
    pub first_decides: bool,
    /// How long a target that has never passed its check may be starting: [`BegunCheck::may_be_starting`].
    pub starting: Duration,
}

/// All targets of one kind. `K` names a target, `C` says how it is checked.
#[derive(Debug)]
pub struct Schedule<K, C> {
    targets: BTreeMap<K, Target<C>>,
    /// The next check of each target that is not under check.
    due: BTreeSet<(Instant, K)>,
    jitter: Jitter,
    tickets: u64,
}

/// What is known of one target.
#[derive(Clone, Debug)]
pub struct Target<C> {
    check: C,
    rule: Rule,
    /// Whether it should serve.
    pub healthy: bool,
    /// Since when it is so.
    pub since: Instant,
    /// Since when the target is checked in this way.
    begun: Instant,
    /// Whether a result has come since the target or its check was new.
    pub decided: bool,
    /// Whether a check has succeeded since then.
    has_passed: bool,
    /// Results in a row that contradict `healthy`.
    against: u32,
    failure: Option<String>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Waiting { until: Instant },
    UnderCheck { ticket: u64, started: Instant },
}

/// A check that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BegunCheck<K, C> {
    /// The target.
    pub key: K,
    /// How it is checked.
    pub check: C,
    /// Whether the target has not passed this check yet, but may be about to: a failure need not mean much.
    pub may_be_starting: bool,
    /// Whether the target is healthy and passed this check the last time it was made.
    pub has_just_passed: bool,
    /// Tells this check from others of the same target; for [`Schedule::finish`].
    pub ticket: u64,
    /// When it began.
    pub began: Instant,
}

/// A check that came to its end.
#[derive(Debug)]
pub struct EndedCheck<K, C> {
    /// The check.
    pub begun: BegunCheck<K, C>,
    /// Why it failed, if it did; none where it says nothing.
    pub outcome: Option<Result<(), String>>,
}

impl<C> Target<C> {
    /// Returns the last failure; none of a healthy target whose last check succeeded.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns how many results in a row contradict what is known, and how many change it.
    pub fn against(&self) -> (u32, u32) {
        (self.against, self.limit())
    }

    fn limit(&self) -> u32 {
        match (self.decided || !self.rule.first_decides, self.healthy) {
            (false, _) => 1,
            (true, true) => self.rule.fall,
            (true, false) => self.rule.rise,
        }
    }

    /// Counts a result; true if it changed what is known.
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
            // While it rises, the reason why it does not serve is still the last failure.
            Ok(()) if self.healthy => self.failure = None,
            Ok(()) => {}
        }
        turns
    }
}

impl<K: Ord + Clone, C: Clone + PartialEq> Schedule<K, C> {
    /// Makes a schedule without targets; the seed spreads the checks of several machines over time.
    pub fn new(seed: u64) -> Self {
        Self {
            targets: BTreeMap::new(),
            due: BTreeSet::new(),
            jitter: Jitter(seed),
            tickets: 0,
        }
    }

    /// Makes these the targets. Those that stay keep what is known of them; where only the check
    /// changed, it is made at once, and its results count as those of a new target.
    pub fn set_targets(&mut self, now: Instant, wanted: BTreeMap<K, (C, Rule)>) {
        let mut before = std::mem::take(&mut self.targets);
        for (key, (check, rule)) in wanted {
            let known = before.remove(&key);
            let target = match known {
                Some(same) if same.check == check && same.rule == rule => same,
                _ => Target {
                    check,
                    rule,
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

    /// Returns the check that has been due longest, and takes it for started; none if none is due.
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
            may_be_starting: !target.has_passed && now < target.begun + target.rule.starting,
            has_just_passed: target.has_passed && target.healthy && target.against == 0,
            ticket: self.tickets,
            began: now,
            key,
        })
    }

    /// Returns when the next check is due; none if there is no target that is not under check.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the result of a check, none if it says nothing; true if the target turned healthy or unhealthy by it.
    ///
    /// The result of a target that is gone or is checked otherwise by now says nothing either.
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
        let until = (started + self.jitter.spread(target.rule.interval)).max(now);
        target.phase = Phase::Waiting { until };
        self.due.insert((until, key.clone()));
        let Some(outcome) = outcome else {
            // What came before and comes after is not in a row.
            target.against = 0;
            return false;
        };
        target.count(now, outcome)
    }

    /// Returns what is known of a target.
    pub fn get(&self, key: &K) -> Option<&Target<C>> {
        self.targets.get(key)
    }

    /// Lists the targets that should not serve.
    pub fn unhealthy(&self) -> impl Iterator<Item = &K> {
        let unhealthy = self.targets.iter().filter(|(_, target)| !target.healthy);
        unhealthy.map(|(key, _)| key)
    }

    /// Lists the targets after this one, or all.
    pub fn after(&self, last: Option<&K>) -> impl Iterator<Item = (&K, &Target<C>)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.targets.range((from, Bound::Unbounded))
    }
}

/// Keeps targets that became due together from staying together.
#[derive(Debug)]
struct Jitter(u64);

impl Jitter {
    /// Returns the interval, up to a tenth shorter or longer.
    fn spread(&mut self, interval: Duration) -> Duration {
        let part = f64::from(self.next() >> 16) / f64::from(u16::MAX);
        interval.mul_f64(0.9 + 0.2 * part)
    }

    /// SplitMix64, the upper half of each number.
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) >> 32) as u32
    }
}

#[cfg(test)]
mod tests;
