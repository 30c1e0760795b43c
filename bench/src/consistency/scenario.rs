//! What is simulated: how many of everything, and how often it changes.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// The backends of one Service, the edges in front of them, and their clients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Edges, each with a history of its own.
    pub edges: u32,
    /// Backends that take new connections at a time.
    pub backends: u32,
    /// Connections that begin in all.
    pub flows: u32,
    /// Simulated time in minutes.
    pub minutes: u32,
    /// Percent of the backends that are replaced each minute.
    pub churn_percent: f64,
    /// Minutes between two rolling updates, each of which replaces all backends; 0 for none.
    pub roll_minutes: u32,
    /// Backends that a rolling update replaces at a time, every five seconds.
    pub roll_batch: u32,
    /// Minutes after which the number of backends changes to [`Self::scale_to`], or back; 0 for never.
    pub scale_minutes: u32,
    /// The other number of backends. The length of the lookup table follows.
    pub scale_to: u32,
    /// Minutes for which a backend that was replaced keeps its connections; then it ends.
    pub drain_minutes: u32,
    /// Minutes after which routers spread all connections over the edges anew; 0 for never.
    pub reshuffle_minutes: u32,
    /// The most that an edge learns of a change too late, in ms.
    pub late_ms: u32,
    /// Edges that learn of changes every [`Self::coalesce_seconds`] alone, and only of what they add up to.
    pub coalescing: u32,
    /// See [`Self::coalescing`].
    pub coalesce_seconds: u32,
    /// Times that an edge loses all that it remembers, as by a reboot, at equal distances.
    pub reboots: u32,
    /// Percent of the connections whose client goes without a word. The backend's socket stays.
    pub vanish_percent: f64,
    /// Percent of the connections that have the client's address and port of one before, which ended shortly before.
    pub reuse_percent: f64,
    /// Most entries of the LRU table of an edge, for the policy that has one.
    pub lru: u32,
    /// Whatever is drawn follows from it.
    pub seed: u64,
}

/// Time between two steps of a rolling update.
pub(super) const ROLL_STEP_SECONDS: u32 = 5;
/// Limits of the time between two segments of a client, in seconds. Its logarithm is spread evenly.
pub(super) const IDLE_SECONDS: [f64; 2] = [0.01, 1200.0];
/// Segments that a client sends after the handshake, on average.
pub(super) const SEGMENTS: f64 = 10.0;
/// Time after which a client uses the tuple of a connection again: more than TIME_WAIT, and the lag of a node's memory.
pub(super) const REUSE_SECONDS: u32 = 65;

impl Scenario {
    /// What is simulated unless something else is asked for.
    pub const DEFAULT: Self = Self {
        edges: 16,
        backends: 100,
        flows: 200_000,
        minutes: 24 * 60,
        churn_percent: 1.0,
        roll_minutes: 10,
        roll_batch: 10,
        scale_minutes: 0,
        scale_to: 20,
        drain_minutes: 15,
        reshuffle_minutes: 5,
        late_ms: 1000,
        coalescing: 0,
        coalesce_seconds: 30,
        reboots: 0,
        vanish_percent: 1.0,
        reuse_percent: 10.0,
        lru: 100,
        seed: 1,
    };

    /// Refuses what cannot be simulated.
    ///
    /// # Errors
    ///
    /// Names the value that is wrong, and its limits.
    pub fn check(&self) -> Result<()> {
        let within = |name: &str, value: u32, least: u32, most: u32| {
            ensure!(
                (least..=most).contains(&value),
                "{name} is {value}: it must be from {least} to {most}"
            );
            Ok(())
        };
        within("--edges", self.edges, 1, 64)?;
        within("--backends", self.backends, 2, 1000)?;
        within("--flows", self.flows, 1, 10_000_000)?;
        within("--minutes", self.minutes, 1, 7 * 24 * 60)?;
        within("--roll-minutes", self.roll_minutes, 0, 24 * 60)?;
        within("--roll-batch", self.roll_batch, 1, self.backends)?;
        within("--scale-minutes", self.scale_minutes, 0, 24 * 60)?;
        within("--scale-to", self.scale_to, 2, 1000)?;
        within("--drain-minutes", self.drain_minutes, 1, 24 * 60)?;
        within("--reshuffle-minutes", self.reshuffle_minutes, 0, 24 * 60)?;
        within("--late-ms", self.late_ms, 0, 60_000)?;
        within("--coalescing", self.coalescing, 0, self.edges)?;
        within("--coalesce-seconds", self.coalesce_seconds, 1, 3600)?;
        within("--reboots", self.reboots, 0, 10_000)?;
        within("--lru", self.lru, 1, 100_000_000)?;
        for (name, percent) in [
            ("--churn-percent", self.churn_percent),
            ("--vanish-percent", self.vanish_percent),
            ("--reuse-percent", self.reuse_percent),
        ] {
            ensure!(
                (0.0..=100.0).contains(&percent),
                "{name} is {percent}: it must be from 0 to 100"
            );
        }
        let steps = self.most_backends().div_ceil(self.roll_batch);
        ensure!(
            self.roll_minutes == 0 || steps * ROLL_STEP_SECONDS <= self.roll_minutes * 60,
            "a rolling update of {} backends in steps of {} takes longer than --roll-minutes {}",
            self.most_backends(),
            self.roll_batch,
            self.roll_minutes,
        );
        Ok(())
    }

    /// Returns the most backends that serve at a time.
    pub(super) fn most_backends(&self) -> u32 {
        match self.scale_minutes {
            0 => self.backends,
            _ => self.backends.max(self.scale_to),
        }
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let base = Scenario::default();
        assert!(base.check().is_ok());
        for (scenario, named) in [
            (Scenario { edges: 65, ..base }, "--edges is 65"),
            (
                Scenario {
                    backends: 1,
                    ..base
                },
                "--backends is 1",
            ),
            (
                Scenario {
                    coalescing: 17,
                    ..base
                },
                "--coalescing is 17",
            ),
            (
                Scenario {
                    churn_percent: -1.0,
                    ..base
                },
                "--churn-percent is -1",
            ),
            (
                Scenario {
                    roll_batch: 1,
                    roll_minutes: 1,
                    ..base
                },
                "--roll-minutes 1",
            ),
        ] {
            let refused = scenario.check().unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
    }
}
