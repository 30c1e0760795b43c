//! Watches that never end: a list, then the changes since, and a list again where some of them were missed.
//!
//! ```text
//! list, page by page -> watch -> watch again from the last version, each minute
//!   ^                     |
//!   +---------------------+ the version is gone, or an event was no JSON
//! ```
//!
//! Made here, not by kube's watcher, for three reasons. An object that cannot be decoded is told as one that is
//! [`Unreadable`], where kube's list would fail as a whole and its watch would lose the event. A page is never held
//! as a whole. And it is told when the server has taken a watch, after which nothing may happen for days.
//!
//! A server is left alone after an error, and for as long as it asks for.

mod line;
mod page;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use async_stream::{stream, try_stream};
use futures_util::io::{AsyncBufRead, AsyncBufReadExt};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use kube::api::{ListParams, WatchParams};
use kube::core::{Request, Status};
use kube::runtime::watcher::DefaultBackoff;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};

use self::page::PageCutter;
use super::backoff::asked_pause;
use super::schema::{self, Unreadable};
use crate::index::objects::ObjectName;

/// How long the server is asked to keep a watch open: a server that has gone without a word is noticed a few
/// seconds later.
const WATCH_SECONDS: u32 = 60;
/// How long a watch may tell nothing.
const WATCH_SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// A watch that ends sooner, and has told nothing, is taken for a failure: it would be begun again without end.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
const PAGE: u32 = 500;

/// An object, or what is known of one that cannot be read.
pub(crate) type Decoded<K> = Result<K, Unreadable>;

/// What the server tells of the objects of a kind.
#[derive(Debug)]
pub(crate) enum Event<K> {
    Init,
    /// An object of the list.
    InitApply(Decoded<K>),
    /// The list was complete, of these names: what it did not have is gone.
    InitDone(BTreeSet<ObjectName>),
    /// The server tells of all changes from here on.
    Watching,
    /// An object is new, or was changed.
    Apply(Decoded<K>),
    Delete(ObjectName),
}

/// Why a list or a watch is begun again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    #[error("cannot list")]
    List(#[source] kube::Error),
    #[error("the list broke off")]
    Page(#[source] io::Error),
    #[error("the answer is no list")]
    NoList(#[source] serde_json::Error),
    #[error("the list has no resourceVersion")]
    NoVersion,
    #[error("cannot watch")]
    Watch(#[source] kube::Error),
    #[error("the server ends the watch: {}", .0.message)]
    Ended(Box<Status>),
    #[error("the watch broke off")]
    Broken(#[source] io::Error),
    #[error("the watch ends as soon as it has begun")]
    TooShort,
    #[error("what the watch told is no event")]
    NoEvent(#[source] serde_json::Error),
}

impl WatchError {
    /// Returns what the server has answered, if it has, in place of what it was asked for.
    fn answer(&self) -> Option<&Status> {
        match self {
            Self::List(kube::Error::Api(status))
            | Self::Watch(kube::Error::Api(status))
            | Self::Ended(status) => Some(status),
            _ => None,
        }
    }

    /// Tells whether changes were missed, so that all has to be listed again.
    fn misses_changes(&self) -> bool {
        let expired = self.answer().is_some_and(|status| status.code == 410);
        expired || matches!(self, Self::NoEvent(_))
    }
}

type Watched<K> = Result<Event<K>, WatchError>;

/// Lists and watches objects of a kind for ever.
///
/// kube's own pauses, 0.8 s to 30 s and as much again by chance, follow errors. They begin anew after two minutes
/// without one, and not at any sign of life: a list is answered, and breaks off, as often as it is asked for.
pub(crate) fn list_watch<K>(api: Api<K>, which: ListParams) -> BoxStream<'static, Watched<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    list_watch_with(api, which, DefaultBackoff::default)
}

/// Lists and watches objects of a kind for ever, with the given pauses after errors that come one after the other.
pub(crate) fn list_watch_with<K, P>(
    api: Api<K>,
    which: ListParams,
    pauses: impl Fn() -> P + Send + 'static,
) -> BoxStream<'static, Watched<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
    P: Iterator<Item = Duration> + Send + 'static,
{
    let mut source = Source {
        request: Request::new(api.resource_url()),
        client: api.into_client(),
        which,
        version: None,
    };
    let events = stream! {
        loop {
            let failed = {
                let mut round = pin!(source.round::<K>());
                loop {
                    match round.next().await {
                        Some(Ok(event)) => yield Ok(event),
                        Some(Err(error)) => break Some(error),
                        None => break None,
                    }
                }
            };
            if let Some(error) = failed {
                if error.misses_changes() {
                    source.version = None;
                }
                yield Err(error);
            }
        }
    };
    with_pauses(events, pauses).boxed()
}

/// Leaves the server alone after an error.
fn with_pauses<K, P: Iterator<Item = Duration>>(
    events: impl Stream<Item = Watched<K>>,
    pauses: impl Fn() -> P,
) -> impl Stream<Item = Watched<K>> {
    // While the server does not answer; and while it answers something else: one that is back is not to wait for what
    // the first have grown to.
    let (mut silence, mut refusal) = (pauses(), pauses());
    stream! {
        for await event in events {
            let pause = event.as_ref().err().and_then(|error| match error.answer() {
                Some(status) => refusal.next().max(asked_pause(status)),
                None => silence.next(),
            });
            let next = pause.map(|pause| Instant::now() + pause);
            yield event;
            if let Some(next) = next {
                sleep_until(next).await;
            }
        }
    }
}

struct Source {
    client: Client,
    request: Request,
    which: ListParams,
    /// The version as of which the objects are known; none where all are to be listed.
    version: Option<String>,
}

type Body = Pin<Box<dyn AsyncBufRead + Send>>;

impl Source {
    /// Lists all objects if they are not known, and watches them once.
    fn round<K>(&mut self) -> impl Stream<Item = Watched<K>>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        try_stream! {
            if self.version.is_none() {
                let (mut names, mut more) = (BTreeSet::new(), None);
                let version = loop {
                    let is_first = more.is_none();
                    let mut body = self.ask_for_page::<K>(more).await.map_err(WatchError::List)?;
                    if is_first {
                        yield Event::Init;
                    }
                    let mut page = PageCutter::default();
                    loop {
                        while let Some(item) = page.next_item() {
                            let object = schema::read::<K>(&item);
                            names.insert(schema::name_of(&object));
                            yield Event::InitApply(object);
                        }
                        let part = body.fill_buf().await.map_err(WatchError::Page)?;
                        let length = part.len();
                        if length == 0 {
                            break;
                        }
                        page.push(part);
                        body.consume_unpin(length);
                    }
                    let head = page.finish().map_err(WatchError::NoList)?;
                    more = head.more;
                    if more.is_none() {
                        break head.version.ok_or(WatchError::NoVersion)?;
                    }
                };
                self.version = Some(version);
                yield Event::InitDone(names);
            }
            let mut body = self.ask_for_changes::<K>().await.map_err(WatchError::Watch)?;
            let (begun, mut has_told) = (Instant::now(), false);
            yield Event::Watching;
            while let Some(line) = next_line(&mut body).await.map_err(WatchError::Broken)? {
                has_told = true;
                let (event, version) = line::read::<K>(&line)?;
                self.version = version.or(self.version.take());
                if let Some(event) = event {
                    yield event;
                }
            }
            if !has_told && begun.elapsed() < SHORTEST_WATCH {
                Err(WatchError::TooShort)?;
            }
        }
    }

    async fn ask_for_page<K: Resource>(&self, more: Option<String>) -> kube::Result<Body> {
        let parameters = ListParams {
            limit: Some(PAGE),
            continue_token: more,
            ..self.which.clone()
        };
        let request = if K::metadata_api() {
            self.request.list_metadata(&parameters)
        } else {
            self.request.list(&parameters)
        };
        let request = request.map_err(kube::Error::BuildRequest)?;
        Ok(Box::pin(self.client.request_stream(request).await?))
    }

    async fn ask_for_changes<K: Resource>(&self) -> kube::Result<Body> {
        let parameters = WatchParams {
            label_selector: self.which.label_selector.clone(),
            field_selector: self.which.field_selector.clone(),
            timeout: Some(WATCH_SECONDS),
            ..WatchParams::default()
        };
        let version = self.version.as_deref().unwrap_or_default();
        let request = if K::metadata_api() {
            self.request.watch_metadata(&parameters, version)
        } else {
            self.request.watch(&parameters, version)
        };
        let request = request.map_err(kube::Error::BuildRequest)?;
        Ok(Box::pin(self.client.request_stream(request).await?))
    }
}

/// Reads a line; nothing where the watch is over, which it is each minute, or has told nothing for too long.
async fn next_line(body: &mut Body) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    match timeout(WATCH_SILENCE, body.read_until(b'\n', &mut line)).await {
        Ok(Ok(_)) => Ok(Some(line).filter(|line| line.ends_with(b"\n"))),
        // A server that goes leaves the stream without its end; whether it is gone, the next request tells.
        Ok(Err(error)) if is_end(&error) => Ok(None),
        Ok(Err(error)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Tells whether a stream has ended where it should not have, with nothing else wrong.
fn is_end(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        // hyper has no kind for the second.
        if kind == Some(io::ErrorKind::UnexpectedEof)
            || cause.to_string().contains("unexpected EOF during chunk")
        {
            return true;
        }
        next = cause.source();
    }
    false
}
