//! Services of type LoadBalancer that no controller gives an address. After a minute, an Event says which class
//! is missing.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::pending_event::PendingEvent;
use crate::index::objects::ObjectName;

/// Time that another controller has to serve a Service of its class.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most Events that are published together.
const AT_ONCE: usize = 20;

/// Services without an address that this controller does not serve. Another one may, or none.
#[derive(Debug, Default)]
pub(super) struct Unclaimed {
    waiting: BTreeMap<ObjectName, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    uid: String,
    reason: String,
    /// When the Event is due; `None` once it was published.
    due: Option<Instant>,
}

impl Unclaimed {
    /// Replaces the Services, each with its uid and what it lacks.
    pub(super) fn set(
        &mut self,
        services: impl Iterator<Item = (ObjectName, String, String)>,
        now: Instant,
    ) {
        let mut before = std::mem::take(&mut self.waiting);
        let waiting = services.map(|(name, uid, reason)| {
            let known = before.remove(&name);
            let known = known.filter(|known| (&known.uid, &known.reason) == (&uid, &reason));
            let due = known.map_or(Some(now + PATIENCE), |known| known.due);
            (name, Waiting { uid, reason, due })
        });
        self.waiting = waiting.collect();
    }

    /// Returns when the next Event is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting
            .values()
            .filter_map(|service| service.due)
            .min()
    }

    /// Returns the Events that are due, up to the number that may be published together.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(ObjectName, String, PendingEvent)> {
        let is_due = |service: &Waiting| service.due.is_some_and(|due| due <= now);
        let due = self
            .waiting
            .iter_mut()
            .filter(|(_, service)| is_due(service));
        let told = due.take(AT_ONCE).map(|(name, service)| {
            service.due = None;
            let event = PendingEvent::warning("NoLoadBalancer", service.reason.clone());
            (name.clone(), service.uid.clone(), event)
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, uid: &str) -> (ObjectName, String, String) {
        let name = ObjectName::new("default", name);
        (name, uid.to_owned(), "no class".to_owned())
    }

    #[test]
    fn service_that_nobody_takes_is_told_once_after_a_minute() {
        let begin = Instant::now();
        let mut unclaimed = Unclaimed::default();
        assert_eq!(unclaimed.due(), None);
        unclaimed.set([service("web", "1")].into_iter(), begin);
        let later = begin + PATIENCE / 2;
        // Other Services change meanwhile.
        unclaimed.set(
            [service("web", "1"), service("late", "2")].into_iter(),
            later,
        );
        assert_eq!(unclaimed.due(), Some(begin + PATIENCE));
        assert_eq!(unclaimed.take_due(later), []);
        let told = unclaimed.take_due(begin + PATIENCE);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].1, "1");
        assert!(told[0].2.warning);
        unclaimed.set(
            [service("web", "1"), service("late", "2")].into_iter(),
            later,
        );
        assert_eq!(
            unclaimed.due(),
            Some(later + PATIENCE),
            "the other one only"
        );
    }

    #[test]
    fn service_that_got_its_address_or_was_made_anew_is_not_told() {
        let begin = Instant::now();
        let mut unclaimed = Unclaimed::default();
        unclaimed.set([service("web", "1")].into_iter(), begin);
        unclaimed.set([service("web", "2")].into_iter(), begin + PATIENCE);
        assert_eq!(unclaimed.take_due(begin + PATIENCE), []);
        unclaimed.set(std::iter::empty(), begin + PATIENCE);
        assert_eq!(unclaimed.due(), None);
    }

    #[test]
    fn many_are_told_some_at_a_time() {
        let now = Instant::now();
        let mut unclaimed = Unclaimed::default();
        let names: Vec<String> = (0..AT_ONCE + 1).map(|n| format!("s{n}")).collect();
        unclaimed.set(names.iter().map(|name| service(name, "1")), now);
        assert_eq!(unclaimed.take_due(now + PATIENCE).len(), AT_ONCE);
        assert_eq!(unclaimed.take_due(now + PATIENCE).len(), 1);
    }
}
