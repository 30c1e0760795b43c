//! Decides when a change is passed on: the first one at once, those of a storm together.
//!
//! After each time a pause follows, in which changes gather. If any did, the next pause is twice as long; so a
//! storm of any rate costs the agent at most ten rounds per second. After a pause without a change the shortest
//! one applies again.

use std::time::{Duration, Instant};

/// The pause after a change that did not have to wait.
const SHORTEST: Duration = Duration::from_millis(10);
/// The longest time that a change waits.
const LONGEST: Duration = Duration::from_millis(100);

/// The current pause.
#[derive(Debug)]
pub(super) struct UpdatePause {
    length: Duration,
    end: Option<Instant>,
}

impl Default for UpdatePause {
    fn default() -> Self {
        Self {
            length: SHORTEST,
            end: None,
        }
    }
}

impl UpdatePause {
    /// Returns when a change that is known at `now` may be passed on.
    pub(super) fn due(&self, now: Instant) -> Instant {
        self.end.map_or(now, |end| end.max(now))
    }

    /// Starts the pause after a change was passed on. `gathered` says whether that change had to wait.
    pub(super) fn passed_on(&mut self, now: Instant, gathered: bool) {
        self.length = if gathered {
            (self.length * 2).min(LONGEST)
        } else {
            SHORTEST
        };
        self.end = Some(now + self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn first_change_is_passed_on_at_once() {
        let now = Instant::now();
        assert_eq!(UpdatePause::default().due(now), now);
    }

    #[test]
    fn storm_is_gathered_in_pauses_that_grow_to_a_tenth_of_a_second() {
        let mut now = Instant::now();
        let mut pause = UpdatePause::default();
        pause.passed_on(now, false);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let due = pause.due(now);
            pauses.push((due - now).as_millis());
            now = due;
            pause.passed_on(now, true);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 100, 100]);
    }

    #[test]
    fn quiet_brings_the_shortest_pause_back() {
        let start = Instant::now();
        let mut pause = UpdatePause::default();
        pause.passed_on(start, true);
        let later = start + milliseconds(21);
        assert_eq!(pause.due(later), later);
        pause.passed_on(later, false);
        assert_eq!(pause.due(later), later + milliseconds(10));
    }
}
