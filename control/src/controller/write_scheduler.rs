//! Decides when the controller writes next, and which objects must wait.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::index::objects::ObjectName;
use crate::kubernetes::request_errors::Reasons;
use crate::timer::sleep_until;

/// Shortest time between two decisions.
const PACE: Duration = Duration::from_millis(100);
/// First and longest pause after a failed write, and before repeating a write that somebody undid.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Time without anybody undoing a write after which pauses start small again.
const QUIET: Duration = Duration::from_secs(120);

/// Returns a digest of a write's content, without times and versions.
pub(super) fn digest(patch: Option<&Value>, finalizers: Option<&[String]>) -> u64 {
    let mut patch = patch.cloned().unwrap_or_default();
    let forget = |part: &mut Value, key: &str| part.as_object_mut().map(|part| part.remove(key));
    if let Some(metadata) = patch.pointer_mut("/metadata") {
        forget(metadata, "resourceVersion");
    }
    let conditions = patch.pointer_mut("/status/conditions");
    for condition in conditions
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        forget(condition, "lastTransitionTime");
    }
    let mut hasher = DefaultHasher::new();
    (patch, finalizers).hash(&mut hasher);
    hasher.finish()
}

/// Kind and name of an object that is written.
pub(super) type Object = (&'static str, ObjectName);

/// Decides when to act next, and which objects must wait.
#[derive(Default)]
pub(super) struct WriteScheduler {
    /// Whether something has changed since the last decision.
    pub(super) dirty: bool,
    earliest: Option<Instant>,
    /// Objects whose write failed, and when to try again. Other objects do not wait for them.
    failed: BTreeMap<Object, Failed>,
    /// Recent writes. If the same write is due again, somebody has undone it. Without a pause the two programs
    /// would write as fast as they can.
    written: BTreeMap<Object, Written>,
}

struct Failed {
    pause: Pause,
    reasons: Reasons,
}

struct Pause {
    length: Duration,
    end: Instant,
}

struct Written {
    /// Digest of what was written.
    digest: u64,
    pause: Pause,
    /// Whether the same write is due again and waits for the pause to end.
    awaited: bool,
}

impl Written {
    fn is_recent(&self, now: Instant) -> bool {
        self.pause.end + QUIET > now
    }
}

impl WriteScheduler {
    /// Waits until there may be something to write.
    pub(super) async fn due(&self) {
        let undone = self.written.values().filter(|written| written.awaited);
        let undone = undone.map(|written| &written.pause);
        let failed = self.failed.values().map(|failed| &failed.pause);
        let retry = failed.chain(undone);
        let retry = retry.map(|pause| pause.end).min();
        let wanted = self.dirty.then(Instant::now).or(retry);
        sleep_until(wanted.map(|wanted| wanted.max(self.earliest.unwrap_or(wanted)))).await;
    }

    /// Returns whether an object may be written now. If not, [`Self::due`] ends when it may.
    pub(super) fn allows(&mut self, object: &Object, digest: u64) -> bool {
        let now = Instant::now();
        let is_over = |pause: &Pause| pause.end <= now;
        let failed = self.failed.get(object);
        if !failed.is_none_or(|failed| is_over(&failed.pause)) {
            return false;
        }
        let Some(written) = self.written.get_mut(object) else {
            return true;
        };
        written.awaited = written.digest == digest && !is_over(&written.pause);
        !written.awaited
    }

    /// Records a write. If it equals the previous write to the object, the next equal one has to wait.
    pub(super) fn wrote(&mut self, object: Object, digest: u64) {
        let now = Instant::now();
        if self.failed.remove(&object).is_some() {
            let (object, name) = &object;
            tracing::info!(object, %name, "written after all");
        }
        let before = self.written.get(&object);
        let before = before.filter(|before| before.digest == digest && before.is_recent(now));
        let length = before.map_or(Duration::ZERO, |before| {
            let (first, longest) = PAUSES;
            (before.pause.length * 2).clamp(first, longest)
        });
        if !length.is_zero() {
            let (object, name) = &object;
            tracing::warn!(object, %name, pause = ?length, "somebody has undone what was written; it is written again");
        }
        let written = Written {
            digest,
            pause: Pause {
                length,
                end: now + length,
            },
            awaited: false,
        };
        self.written.insert(object, written);
    }

    /// Records a failed write. The object waits twice as long as the last time, or as long as the server asks
    /// for if that is longer. Each reason is logged once; returns whether this one was.
    pub(super) fn fail(&mut self, object: Object, reason: &str, asked: Option<Duration>) -> bool {
        let before = self.failed.remove(&object);
        let length = before
            .as_ref()
            .map_or(PAUSES.0, |before| (before.pause.length * 2).min(PAUSES.1));
        let length = length.max(asked.unwrap_or_default());
        let end = Instant::now() + length;
        let mut reasons = before.map(|before| before.reasons).unwrap_or_default();
        let is_new = reasons.note(reason);
        if is_new {
            let (object, name) = &object;
            tracing::warn!(object, %name, reason, "cannot write; it is tried again");
        }
        let pause = Pause { length, end };
        self.failed.insert(object, Failed { pause, reasons });
        is_new
    }

    /// Ends an attempt. `more` says whether another attempt must follow.
    pub(super) fn done(&mut self, begun: Instant, more: bool) {
        self.dirty = more;
        self.earliest = Some(Instant::now() + PACE);
        // Drops the pauses that ended before this attempt and were not renewed by it.
        self.failed.retain(|_, failed| failed.pause.end > begun);
        self.written.retain(|_, written| {
            written.awaited &= written.pause.end > begun;
            written.is_recent(begun)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> Object {
        ("service", ObjectName::new("default", name))
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_fails_waits_longer_each_time_and_keeps_no_other_waiting() {
        let mut schedule = WriteScheduler::default();
        let begin = Instant::now();
        for pause in [1, 2, 4, 8, 16, 30, 30] {
            assert!(schedule.allows(&service("a"), 0));
            let begun = Instant::now();
            schedule.fail(service("a"), "why", None);
            schedule.done(begun, false);
            assert!(!schedule.allows(&service("a"), 0));
            assert!(schedule.allows(&service("b"), 0));
            schedule.due().await;
            assert_eq!(begun.elapsed(), Duration::from_secs(pause));
        }
        // What succeeds, or is gone, begins anew.
        schedule.done(Instant::now(), false);
        let again = Instant::now();
        schedule.fail(service("a"), "why", None);
        schedule.done(again, false);
        schedule.due().await;
        assert_eq!(again.elapsed(), PAUSES.0);
        schedule.done(again + PAUSES.0, true);
        let again = Instant::now();
        schedule.due().await;
        assert_eq!(again.elapsed(), PACE, "something was written");
        assert!(begin.elapsed() > Duration::from_secs(91));

        // A failure counts too if the attempt goes on for longer than the pause after it.
        let begun = Instant::now();
        schedule.fail(service("b"), "why", None);
        tokio::time::advance(PAUSES.0 * 3).await;
        schedule.done(begun, false);
        let begun = Instant::now();
        schedule.fail(service("b"), "why", None);
        schedule.done(begun, false);
        schedule.due().await;
        assert_eq!(begun.elapsed(), PAUSES.0 * 2);

        // The server asks for more, and the pauses go on from there.
        for (asked, pause) in [(Some(7), 7), (None, 14)] {
            let begun = Instant::now();
            schedule.fail(service("b"), "why", asked.map(Duration::from_secs));
            schedule.done(begun, false);
            schedule.due().await;
            assert_eq!(begun.elapsed(), Duration::from_secs(pause));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_fails_is_logged_once_for_each_reason_until_it_succeeds() {
        let mut schedule = WriteScheduler {
            dirty: true,
            ..WriteScheduler::default()
        };
        let mut attempt = async |outcome: Result<(), &str>| {
            schedule.due().await;
            let begun = Instant::now();
            assert!(schedule.allows(&service("a"), 1));
            let logged = match outcome {
                Ok(()) => {
                    schedule.wrote(service("a"), 1);
                    false
                }
                Err(reason) => schedule.fail(service("a"), reason, None),
            };
            schedule.done(begun, true);
            logged
        };
        for (outcome, logged) in [
            (Err("away"), true),
            (Err("away"), false),
            (Err("forbidden"), true),
            (Err("away"), false),
            (Ok(()), false),
            (Err("away"), true),
        ] {
            tokio::time::advance(PAUSES.1).await;
            assert_eq!(attempt(outcome).await, logged, "{outcome:?}");
        }
        assert!(schedule.fail(service("b"), "away", None), "another object");
    }

    /// Writes the same to `a` when it may be; returns how long that took.
    async fn write_again(schedule: &mut WriteScheduler) -> Duration {
        let begun = Instant::now();
        while !schedule.allows(&service("a"), 1) {
            schedule.done(Instant::now(), false);
            schedule.due().await;
        }
        schedule.wrote(service("a"), 1);
        schedule.done(Instant::now(), false);
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn what_somebody_undoes_is_written_again_less_and_less_often() {
        let mut schedule = WriteScheduler::default();
        for pause in [0, 0, 1, 2, 4, 8, 16, 30, 30] {
            let took = write_again(&mut schedule).await;
            assert_eq!(took, Duration::from_secs(pause));
        }
        // Something else is news, and another object is another one.
        assert!(!schedule.allows(&service("a"), 1));
        assert!(schedule.allows(&service("a"), 2));
        assert!(schedule.allows(&service("b"), 1));
        tokio::time::advance(PAUSES.1 + QUIET).await;
        for pause in [0, 0, 1] {
            let took = write_again(&mut schedule).await;
            assert_eq!(took, Duration::from_secs(pause));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_waited_for_only_by_who_has_something_to_write() {
        let mut schedule = WriteScheduler::default();
        for _ in 0..2 {
            write_again(&mut schedule).await;
        }
        let due = tokio::time::timeout(QUIET, schedule.due());
        assert!(due.await.is_err(), "nobody has undone it");

        // Somebody has, and then put it right: nothing is left to be done at the end of the pause.
        write_again(&mut schedule).await;
        assert!(!schedule.allows(&service("a"), 1));
        schedule.done(Instant::now(), false);
        schedule.due().await;
        schedule.done(Instant::now(), false);
        let due = tokio::time::timeout(QUIET, schedule.due());
        assert!(due.await.is_err());
    }
}
