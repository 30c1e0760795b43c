//! When flows of NAT mode are swept: where there may be any.

use std::time::{Duration, Instant};

/// How often they are looked for where none is expected. A service that the desired state has no more, but could not
/// be taken from the tables yet, still makes some.
const LOOK_PAUSE: Duration = Duration::from_secs(300);

/// What is known of the flows in the table.
#[derive(Debug)]
pub(super) struct NatSweeps {
    last: Instant,
    /// Whether the last sweep has left any, as far as is known.
    may_be_left: bool,
}

impl NatSweeps {
    /// Begins with a table that an earlier agent may have left flows in.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            last: now,
            may_be_left: true,
        }
    }

    /// Tells whether a walk through the table may find flows.
    pub(super) fn are_due(&self, now: Instant, has_nat: bool) -> bool {
        has_nat || self.may_be_left || now.saturating_duration_since(self.last) >= LOOK_PAUSE
    }

    /// Notes a sweep, and whether flows may be left.
    pub(super) const fn note(&mut self, now: Instant, may_be_left: bool) {
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
