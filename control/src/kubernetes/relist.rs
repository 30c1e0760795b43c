//! Watches that begin with a list again where kube's would go on without what they missed.

use std::fmt::Debug;

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// How long the server is asked to keep a watch open: a server that has gone without a word is noticed a few
/// seconds later.
const WATCH_SECONDS: u32 = 60;

/// Watches objects of a kind for ever.
pub(crate) fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = config.timeout(WATCH_SECONDS);
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    let first = begin();
    stream::unfold((first, begin), next)
}

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

async fn next<K, B>(
    (mut events, begin): (Events<K>, B),
) -> Option<(watcher::Result<Event<K>>, (Events<K>, B))>
where
    B: Fn() -> Events<K>,
{
    let event = events.next().await?;
    if event.as_ref().is_err_and(has_missed) {
        events = begin();
    }
    Some((event, (events, begin)))
}

/// Tells whether a watch that goes on after an error does so without something, or not at all.
fn has_missed(error: &watcher::Error) -> bool {
    match error {
        // The version that it would begin from is gone. Within a stream, kube sees to that.
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        // An event could not be read, and the next one would hide it.
        watcher::Error::WatchFailed(kube::Error::SerdeError(_)) => true,
        _ => false,
    }
}
