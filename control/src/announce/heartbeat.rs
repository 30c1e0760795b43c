//! The sign of life of the agent's loop, for tasks that act on its behalf.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The last sign of life of the agent's loop. Clones share it.
#[derive(Clone, Debug)]
pub struct LoopHeartbeat {
    began: Instant,
    /// Time of the last sign, in nanoseconds since `began`.
    last: Arc<AtomicU64>,
}

impl LoopHeartbeat {
    /// Creates it with a sign of life at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            began: now,
            last: Arc::default(),
        }
    }

    /// Records that the loop runs.
    pub fn beat(&self, now: Instant) {
        let since = now.saturating_duration_since(self.began).as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Release);
    }

    /// Returns the time since the last sign of life.
    pub fn age(&self, now: Instant) -> Duration {
        let last = Duration::from_nanos(self.last.load(Ordering::Acquire));
        now.saturating_duration_since(self.began + last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_ask_hear_of_the_last_beat() {
        let begin = Instant::now();
        let heartbeat = LoopHeartbeat::new(begin);
        let asker = heartbeat.clone();
        let second = Duration::from_secs(1);
        assert_eq!(asker.age(begin + 2 * second), 2 * second);
        heartbeat.beat(begin + second);
        assert_eq!(asker.age(begin + 2 * second), second);
        assert_eq!(asker.age(begin), Duration::ZERO);
    }
}
