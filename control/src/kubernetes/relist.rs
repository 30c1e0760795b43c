//! Watches that begin with a list again where kube's would go on without what they missed, and that leave a
//! server alone after an error, and for as long as it asks for.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use kube::core::Status;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::backoff::{Patience, asked_pause};

/// How long the server is asked to keep a watch open: a server that has gone without a word is noticed a few
/// seconds later.
const WATCH_SECONDS: u32 = 60;

/// Watches objects of a kind for ever, with [`Patience`].
pub(crate) fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watch_with(api, config, Patience::default)
}

/// Watches objects of a kind for ever, with the given pauses after errors that come one after the other.
pub(crate) fn watch_with<K, P>(
    api: Api<K>,
    config: watcher::Config,
    pauses: impl Fn() -> P,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    P: Iterator<Item = Duration> + Send + 'static,
{
    let config = config.timeout(WATCH_SECONDS);
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    stream::unfold(Watch::new(begin, pauses), next)
}

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

struct Watch<K, B, P> {
    events: Events<K>,
    begin: B,
    /// The pauses while the server does not answer.
    silence: P,
    /// Those while it answers something else: one that is back is not to wait for what the first have grown to.
    refusal: P,
    /// When the server may be asked again.
    not_before: Option<Instant>,
}

impl<K, B: Fn() -> Events<K>, P> Watch<K, B, P> {
    fn new(begin: B, pauses: impl Fn() -> P) -> Self {
        Self {
            events: begin(),
            begin,
            silence: pauses(),
            refusal: pauses(),
            not_before: None,
        }
    }
}

async fn next<K, B, P>(
    mut watch: Watch<K, B, P>,
) -> Option<(watcher::Result<Event<K>>, Watch<K, B, P>)>
where
    B: Fn() -> Events<K>,
    P: Iterator<Item = Duration>,
{
    if let Some(time) = watch.not_before {
        tokio::time::sleep_until(time).await;
    }
    let event = watch.events.next().await?;
    watch.not_before = match &event {
        Ok(_) => None,
        Err(error) => {
            if has_missed(error) {
                watch.events = (watch.begin)();
            }
            let (pauses, asked) = match answer(error) {
                Some(status) => (&mut watch.refusal, asked_pause(status)),
                None => (&mut watch.silence, None),
            };
            let pause = pauses.next().max(asked);
            pause.map(|pause| Instant::now() + pause)
        }
    };
    Some((event, watch))
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

/// Returns what the server has answered, if it has, in place of what it was asked for.
fn answer(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::WatchError(status)
        | watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::super::backoff::tests::overloaded;
    use super::*;

    const NO_PAUSE: fn() -> iter::Repeat<Duration> = || iter::repeat(Duration::ZERO);

    type Heard = Vec<watcher::Result<Event<()>>>;

    /// Returns how long after the event before it each of these is told.
    async fn told_after<P>(heard: Heard, pauses: fn() -> P) -> Vec<Duration>
    where
        P: Iterator<Item = Duration>,
    {
        let count = heard.len();
        let mut watch = Watch::new(|| stream::empty().boxed(), pauses);
        watch.events = stream::iter(heard).boxed();
        let mut last = Instant::now();
        let told = stream::unfold(watch, next).take(count);
        told.map(|_| {
            let before = std::mem::replace(&mut last, Instant::now());
            before.elapsed()
        })
        .collect()
        .await
    }

    fn expired() -> watcher::Error {
        let status = Status::failure("too old resource version", "Expired").with_code(410);
        watcher::Error::WatchError(status.boxed())
    }

    fn away() -> watcher::Error {
        watcher::Error::NoResourceVersion
    }

    #[tokio::test(start_paused = true)]
    async fn server_is_left_alone_for_as_long_as_it_asks() {
        let error = watcher::Error::InitialListFailed(kube::Error::Api(overloaded(7)));
        let heard = vec![Err(error), Ok(Event::Init), Ok(Event::InitDone)];
        let after = told_after(heard, NO_PAUSE).await;
        assert_eq!(after, [0, 7, 0].map(Duration::from_secs));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_whatever_was_heard_between() {
        let mut heard: Heard = (0..8)
            .flat_map(|_| [Err(away()), Ok(Event::Init)])
            .collect();
        heard.push(Err(away()));
        heard.push(Ok(Event::Init));
        let after = told_after(heard, Patience::default).await;
        let last = after.last().unwrap();
        assert!(*last >= Duration::from_secs(30), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_is_back_is_asked_soon_for_what_was_missed() {
        let mut heard: Heard = (0..8).map(|_| Err(away())).collect();
        heard.push(Err(expired()));
        heard.push(Ok(Event::Init));
        let after = told_after(heard, Patience::default).await;
        let [.., back, listed] = after[..] else {
            panic!("{after:?}");
        };
        assert!(back >= Duration::from_secs(30), "{after:?}");
        assert!(listed < Duration::from_secs(2), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn server_whose_versions_expire_again_and_again_is_asked_less_and_less() {
        let heard = (0..8).map(|_| Err(expired())).collect();
        let after = told_after(heard, Patience::default).await;
        let last = after.last().unwrap();
        assert!(*last >= Duration::from_secs(30), "{after:?}");
    }
}
