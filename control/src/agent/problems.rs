//! What could not be brought to its desired state, and when to try again.

use std::time::{Duration, Instant};

use fastpath::tables::ServiceKey;
use imbl::OrdMap;

use super::LOGGED_ONE_BY_ONE;

/// Pause before the first retry. It doubles with each failure up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A part of the dataplane that can fail independently.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Item {
    Table(&'static str),
    NextHops,
    Interface(String),
    Egress(String),
    Announce(String),
    Mend,
    WholeEdge,
    Service(ServiceKey),
}

/// The parts that are not as desired, each with the reason. Clones share memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problems {
    current: OrdMap<Item, String>,
    retry: Option<Retry>,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Instant,
    pause: Duration,
}

impl Problems {
    /// Replaces all problems with the outcomes of a complete attempt.
    pub(super) fn replace(&mut self, now: Instant, outcomes: Vec<(Item, Result<(), String>)>) {
        let before = std::mem::take(&mut self.current);
        for (item, outcome) in outcomes {
            self.keep(item, outcome);
        }
        self.log(&before);
        self.schedule(now);
    }

    /// Sets the outcome of one item. The other problems stay.
    pub(super) fn note(&mut self, now: Instant, item: Item, outcome: Result<(), String>) {
        let before = self.current.clone();
        self.keep(item, outcome);
        self.log(&before);
        self.schedule(now);
    }

    /// Returns how long to wait before the next attempt; `None` if none is needed.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        self.retry
            .map(|retry| retry.at.saturating_duration_since(now))
    }

    pub(crate) fn of(&self, item: &Item) -> Option<&String> {
        self.current.get(item)
    }

    pub(crate) fn len(&self) -> usize {
        self.current.len()
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = String> {
        self.current.iter().map(describe)
    }

    /// Sets one outcome. A later operation of an attempt may mend what an earlier one could not do.
    fn keep(&mut self, item: Item, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => drop(self.current.remove(&item)),
            Err(reason) => drop(self.current.insert(item, reason)),
        }
    }

    fn log(&self, before: &OrdMap<Item, String>) {
        let new = self
            .current
            .iter()
            .filter(|(item, reason)| before.get(*item) != Some(reason));
        let mut more = 0;
        for (index, problem) in new.enumerate() {
            if index < LOGGED_ONE_BY_ONE {
                tracing::error!(reason = describe(problem), "not applied, tried again later");
            } else {
                more += 1;
            }
        }
        if more > 0 {
            tracing::error!(
                more,
                "not applied either; `guideway status --json` lists all"
            );
        }
    }

    fn schedule(&mut self, now: Instant) {
        self.retry = match self.retry {
            _ if self.current.is_empty() => None,
            None => Some(FIRST_PAUSE),
            Some(retry) if retry.at <= now => Some((retry.pause * 2).min(LONGEST_PAUSE)),
            // A new problem does not move the time of the next attempt.
            Some(_) => return,
        }
        .map(|pause| Retry {
            at: now + pause,
            pause,
        });
    }
}

/// Returns a problem's text. A service is named, because the reason (such as a full table) does not name it.
fn describe((item, reason): (&Item, &String)) -> String {
    match item {
        Item::Service(key) => format!("{key}: {reason}"),
        Item::Table(_)
        | Item::NextHops
        | Item::Interface(_)
        | Item::Egress(_)
        | Item::Announce(_)
        | Item::Mend
        | Item::WholeEdge => reason.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(item: Item) -> (Item, Result<(), String>) {
        (item, Err("full".to_owned()))
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_end_with_the_problem() {
        let mut problems = Problems::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            problems.replace(now, vec![failed(Item::NextHops)]);
            let pause = problems.pause(now).unwrap();
            pauses.push(pause.as_secs());
            now += pause;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        problems.replace(now, vec![(Item::NextHops, Ok(()))]);
        assert_eq!(problems.pause(now), None);
    }

    #[test]
    fn other_news_do_not_put_an_attempt_off() {
        let mut problems = Problems::default();
        let now = Instant::now();
        problems.replace(now, vec![failed(Item::Table("vips"))]);
        let later = now + Duration::from_millis(900);
        problems.note(later, Item::NextHops, Err("x".to_owned()));
        assert_eq!(problems.pause(later), Some(Duration::from_millis(100)));
    }

    #[test]
    fn complete_attempt_forgets_what_is_gone() {
        let mut problems = Problems::default();
        let now = Instant::now();
        problems.replace(
            now,
            vec![
                failed(Item::Interface("a".to_owned())),
                failed(Item::NextHops),
            ],
        );
        problems.replace(now, vec![failed(Item::NextHops)]);
        assert_eq!(problems.len(), 1);
        assert_eq!(
            problems.of(&Item::NextHops).map(String::as_str),
            Some("full")
        );
    }

    #[test]
    fn problem_of_a_service_names_it() {
        let mut problems = Problems::default();
        let key = "192.0.2.1:80/tcp".parse().unwrap();
        problems.replace(Instant::now(), vec![failed(Item::Service(key))]);
        let texts: Vec<String> = problems.texts().collect();
        assert_eq!(texts, ["192.0.2.1:80/tcp: full"]);
    }

    #[test]
    fn later_step_mends_an_earlier_one() {
        let mut problems = Problems::default();
        let vips = Item::Table("vips");
        problems.replace(Instant::now(), vec![failed(vips.clone()), (vips, Ok(()))]);
        assert_eq!(problems.texts().count(), 0);
    }
}
