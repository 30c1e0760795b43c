//! Lists and watches a kind of objects for ever. It lists again when changes may have been missed.
//!
//! ```text
//! list, page by page -> watch -> watch again from the last version, each minute
//!   ^                     |
//!   +---------------------+ the version is gone, or an event is not valid JSON
//! ```
//!
//! kube's own watcher is not used, for three reasons. Here an object that cannot be decoded is reported as
//! [`Unreadable`]; kube's list would fail as a whole, and its watch would lose the event. A page is never held
//! in memory as a whole. And the caller learns when the server has accepted a watch, after which there may be
//! no event for days.
//!
//! After an error there is a pause, at least as long as the server asks for.

mod page;
#[cfg(test)]
mod tests;
mod watch_line;

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

/// How long the server keeps a watch open, in seconds. A server that has vanished is noticed a few seconds later.
const WATCH_SECONDS: u32 = 60;
/// How long a watch may send nothing.
const WATCH_SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// A watch that ends sooner without an event counts as failed. Otherwise it would be restarted without a pause.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
const PAGE: u32 = 500;

/// A decoded object, or what is known of an unreadable one.
pub(crate) type Decoded<K> = Result<K, Unreadable>;

/// A report about the objects of a kind.
#[derive(Debug)]
pub(crate) enum Event<K> {
    Init,
    /// An object of a list.
    InitApply(Decoded<K>),
    /// End of a list with the names of all its objects. Other known objects are gone.
    InitDone(BTreeSet<ObjectName>),
    /// The server accepted the watch and reports all changes from here on.
    Watching,
    /// An object was added or changed.
    Apply(Decoded<K>),
    Delete(ObjectName),
}

/// Why a list or watch starts again.
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
    /// Returns the server's answer, if it answered with a Status.
    fn answer(&self) -> Option<&Status> {
        match self {
            Self::List(kube::Error::Api(status))
            | Self::Watch(kube::Error::Api(status))
            | Self::Ended(status) => Some(status),
            _ => None,
        }
    }

    /// Returns whether changes may have been missed, so that everything must be listed again.
    fn misses_changes(&self) -> bool {
        let expired = self.answer().is_some_and(|status| status.code == 410);
        expired || matches!(self, Self::NoEvent(_))
    }
}

type Watched<K> = Result<Event<K>, WatchError>;

/// Lists and watches objects of a kind for ever.
///
/// After errors it pauses as kube does: 0.8 s to 30 s, plus up to the same again at random. The pauses start
/// small again after two minutes without an error, not after the first answer: a server can answer every list
/// and break off each one.
pub(crate) fn list_watch<K>(api: Api<K>, which: ListParams) -> BoxStream<'static, Watched<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    list_watch_with(api, which, DefaultBackoff::default)
}

/// Like [`list_watch`], with the given pauses after consecutive errors.
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

/// Pauses after each error.
fn with_pauses<K, P: Iterator<Item = Duration>>(
    events: impl Stream<Item = Watched<K>>,
    pauses: impl Fn() -> P,
) -> impl Stream<Item = Watched<K>> {
    // Two series of pauses: one while the server is silent, one while it answers with errors. A server that is
    // back is asked again soon, although the first series has grown long.
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
    /// Resource version up to which the objects are known; `None` if everything must be listed.
    version: Option<String>,
}

type Body = Pin<Box<dyn AsyncBufRead + Send>>;

impl Source {
    /// Lists all objects if necessary, then watches them once.
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
                let (event, version) = watch_line::read::<K>(&line)?;
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

/// Reads a line. Returns `None` at the end of the watch, which comes every minute, or after too long a silence.
async fn next_line(body: &mut Body) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    match timeout(WATCH_SILENCE, body.read_until(b'\n', &mut line)).await {
        Ok(Ok(_)) => Ok(Some(line).filter(|line| line.ends_with(b"\n"))),
        // A server that goes away leaves the stream unfinished. The next request will show whether it is gone.
        Ok(Err(error)) if is_end(&error) => Ok(None),
        Ok(Err(error)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Returns whether a stream ended early and nothing else is wrong with it.
fn is_end(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        // hyper has no error kind for the second case, only a text.
        if kind == Some(io::ErrorKind::UnexpectedEof)
            || cause.to_string().contains("unexpected EOF during chunk")
        {
            return true;
        }
        next = cause.source();
    }
    false
}
