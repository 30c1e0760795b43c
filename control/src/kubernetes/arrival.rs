//! What the lists and watches of several kinds tell one who follows them all, and how they go.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::list_watch::{Event, WatchError, list_watch};

/// What has arrived for a follower.
pub(crate) struct Arrival<F> {
    /// What is watched.
    pub(crate) kind: &'static str,
    /// What the server says of it, if it can be asked.
    pub(crate) outcome: Result<Change<F>, WatchError>,
}

/// What the server says of a kind.
pub(crate) struct Change<F> {
    /// Whether it is about objects.
    pub(crate) is_event: bool,
    /// Has the follower take it; tells whether anything may follow from that.
    pub(crate) take: Box<dyn FnOnce(&mut F) -> bool + Send>,
}

/// Lists and watches a kind for ever; the follower takes each event by `take`.
pub(crate) fn arrivals<K, F>(
    kind: &'static str,
    api: Api<K>,
    which: ListParams,
    take: impl Fn(&mut F, Event<K>) -> bool + Clone + Send + 'static,
) -> BoxStream<'static, Arrival<F>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    let change = move |event| {
        let take = take.clone();
        Change {
            is_event: !matches!(event, Event::Init | Event::Watching),
            take: Box::new(move |follower: &mut F| take(follower, event)),
        }
    };
    let events = list_watch(api, which).map(move |event| Arrival {
        kind,
        outcome: event.map(&change),
    });
    events.boxed()
}

/// How lists and watches go, by what is watched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WatchStatus {
    /// Events.
    pub events: BTreeMap<&'static str, u64>,
    /// Errors.
    pub errors: BTreeMap<&'static str, u64>,
    /// Why those fail that are broken: from a failure until the server has answered.
    pub broken: BTreeMap<&'static str, String>,
}

impl WatchStatus {
    /// Notes that the server has answered, with an event or without one.
    pub(crate) fn note_answer(&mut self, kind: &'static str, is_event: bool) {
        if self.broken.remove(kind).is_some() {
            tracing::info!(kind, "the API server tells of changes again");
        }
        *self.events.entry(kind).or_default() += u64::from(is_event);
    }

    /// Notes an error; one that only comes again is logged once.
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
