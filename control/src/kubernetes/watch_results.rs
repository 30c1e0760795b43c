//! Joins the lists and watches of several kinds into one stream for one follower, and keeps their status.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::list_watch::{Event, WatchError, list_watch};

/// One result of a list or watch, for a follower of type `F`.
pub(crate) struct WatchResult<F> {
    /// Name of the kind, as in logs and metrics.
    pub(crate) kind: &'static str,
    /// The server's answer, or why there is none.
    pub(crate) outcome: Result<WatchAnswer<F>, WatchError>,
}

/// An answer of the server about a kind.
pub(crate) struct WatchAnswer<F> {
    /// Whether it carries an event. A watch that the server has accepted has none yet.
    pub(crate) is_event: bool,
    /// Applies the answer to the follower. Returns whether the follower has to act on it.
    pub(crate) take: Box<dyn FnOnce(&mut F) -> bool + Send>,
}

/// Lists and watches a kind for ever. The follower applies each event with `take`.
pub(crate) fn watch_results<K, F>(
    kind: &'static str,
    api: Api<K>,
    which: ListParams,
    take: impl Fn(&mut F, Event<K>) -> bool + Clone + Send + 'static,
) -> BoxStream<'static, WatchResult<F>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    let change = move |event| {
        let take = take.clone();
        WatchAnswer {
            is_event: !matches!(event, Event::Init | Event::Watching),
            take: Box::new(move |follower: &mut F| take(follower, event)),
        }
    };
    let events = list_watch(api, which).map(move |event| WatchResult {
        kind,
        outcome: event.map(&change),
    });
    events.boxed()
}

/// Status of lists and watches, by kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WatchStatus {
    /// Number of events.
    pub events: BTreeMap<&'static str, u64>,
    /// Number of errors.
    pub errors: BTreeMap<&'static str, u64>,
    /// Reason of each failure that has not been followed by an answer.
    pub broken: BTreeMap<&'static str, String>,
}

impl WatchStatus {
    /// Records an answer of the server, with or without an event.
    pub(crate) fn note_answer(&mut self, kind: &'static str, is_event: bool) {
        if self.broken.remove(kind).is_some() {
            tracing::info!(kind, "the API server tells of changes again");
        }
        *self.events.entry(kind).or_default() += u64::from(is_event);
    }

    /// Records an error. Repetitions of the same error are not logged.
    pub(crate) fn note_error(&mut self, kind: &'static str, reason: String) {
        *self.errors.entry(kind).or_default() += 1;
        if self.broken.get(kind) != Some(&reason) {
            tracing::warn!(kind, reason, "cannot watch; what is known stays in force");
        }
        self.broken.insert(kind, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_is_broken_from_a_failure_until_the_server_answers() {
        let mut status = WatchStatus::default();
        status.note_error("services", "refused".to_owned());
        status.note_error("nodes", "refused".to_owned());
        status.note_answer("nodes", false);
        assert_eq!(status.broken.into_keys().collect::<Vec<_>>(), ["services"]);
    }
}
