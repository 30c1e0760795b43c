//! What is to happen, by time.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{
    addresses::{BackendId, Client},
    owners::Version,
};

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A minute has passed: backends are replaced.
    Minute,
    /// An hour has passed: what is held is looked at.
    Hour,
    /// The number of backends changes.
    Scale,
    BeginToRoll,
    Roll,
    /// A backend that drains ends.
    End(BackendId),
    Learn(usize, Version),
    Reshuffle,
    Reboot(usize),
    BeginFlow,
    Send(usize),
    Free(Client),
}

/// All events that are planned. Those of one time happen in the order in which they were planned.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    planned: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
}

impl Agenda {
    pub(super) fn plan(&mut self, time: u64, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((time, self.planned, event)));
    }

    /// Takes the next event, if it is before `end`.
    pub(super) fn next_before(&mut self, end: u64) -> Option<(u64, Event)> {
        let Reverse((time, _, event)) = self.events.pop()?;
        (time < end).then_some((time, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_planned() {
        let mut agenda = Agenda::default();
        for (time, event) in [
            (2, Event::Roll),
            (1, Event::Minute),
            (2, Event::Hour),
            (3, Event::Scale),
        ] {
            agenda.plan(time, event);
        }
        let order: Vec<Event> = std::iter::from_fn(|| agenda.next_before(3))
            .map(|(_, event)| event)
            .collect();
        assert_eq!(order, [Event::Minute, Event::Roll, Event::Hour]);
    }
}
