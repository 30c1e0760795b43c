//! Watches that begin with a list again where kube's would go on without what they missed, and that leave a
//! server alone for as long as it asks for.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::backoff::asked_pause;

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
    let watch = Watch {
        events: begin(),
        begin,
        not_before: None,
    };
    stream::unfold(watch, next)
}

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

struct Watch<K, B> {
    events: Events<K>,
    begin: B,
    /// When the server may be asked again.
    not_before: Option<Instant>,
}

async fn next<K, B>(mut watch: Watch<K, B>) -> Option<(watcher::Result<Event<K>>, Watch<K, B>)>
where
    B: Fn() -> Events<K>,
{
    if let Some(time) = watch.not_before {
        tokio::time::sleep_until(time).await;
    }
    let event = watch.events.next().await?;
    let error = event.as_ref().err();
    if error.is_some_and(has_missed) {
        watch.events = (watch.begin)();
    }
    // The pauses of the caller's own run meanwhile: the longer one counts.
    watch.not_before = error.and_then(asked).map(|pause| Instant::now() + pause);
    Some((event, watch))
}

fn asked(error: &watcher::Error) -> Option<Duration> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => asked_pause(error),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    }
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

#[cfg(test)]
mod tests {
    use super::super::backoff::tests::overloaded;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn server_is_left_alone_for_as_long_as_it_asks() {
        let error = watcher::Error::InitialListFailed(overloaded(7));
        let heard: [watcher::Result<Event<()>>; 3] =
            [Err(error), Ok(Event::Init), Ok(Event::InitDone)];
        let watch = Watch {
            events: stream::iter(heard).boxed(),
            begin: || stream::empty().boxed(),
            not_before: None,
        };
        let begin = Instant::now();
        let mut heard = std::pin::pin!(stream::unfold(watch, next));
        for (number, after) in [0, 7, 7].into_iter().enumerate() {
            assert_eq!(heard.next().await.unwrap().is_err(), number == 0);
            assert_eq!(begin.elapsed(), Duration::from_secs(after));
        }
    }
}
