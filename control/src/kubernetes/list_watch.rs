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
/// Objects of a page of a list.
const PAGE: u32 = 500;

/// An object, or what is known of one that cannot be read.
pub(crate) type Decoded<K> = Result<K, Unreadable>;

/// What the server tells of the objects of a kind.
#[derive(Debug)]
pub(crate) enum Event<K> {
    /// A list begins.
    Init,
    /// An object of the list.
    InitApply(Decoded<K>),
    /// The list was complete, of these names: what it did not have is gone.
    InitDone(BTreeSet<ObjectName>),
    /// The server tells of all changes from here on.
    Watching,
    /// An object is new, or was changed.
    Apply(Decoded<K>),
    /// An object is gone.
    Delete(ObjectName),
}

/// Why a list or a watch is begun again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    /// The list was refused.
    #[error("cannot list")]
    List(#[source] kube::Error),
    /// The list broke off.
    #[error("the list broke off")]
    Page(#[source] io::Error),
    /// What came was no list.
    #[error("the answer is no list")]
    NoList(#[source] serde_json::Error),
    /// The list is of no version.
    #[error("the list has no resourceVersion")]
    NoVersion,
    /// The watch was refused.
    #[error("cannot watch")]
    Watch(#[source] kube::Error),
    /// The server ends it.
    #[error("the server ends the watch: {}", .0.message)]
    Ended(Box<Status>),
    /// The connection broke.
    #[error("the watch broke off")]
    Broken(#[source] io::Error),
    /// It ends without a word.
    #[error("the watch ends as soon as it has begun")]
    TooShort,
    /// What came was no event.
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

/// Where the events come from.
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

#[cfg(test)]
mod tests {
    use std::iter;

    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::backoff::tests::overloaded;
    use super::super::schema::Service;
    use super::*;

    const NO_PAUSE: fn() -> iter::Repeat<Duration> = || iter::repeat(Duration::ZERO);

    /// Returns how long after the event before it each of these is told.
    async fn told_after<P>(heard: Vec<Watched<()>>, pauses: fn() -> P) -> Vec<Duration>
    where
        P: Iterator<Item = Duration> + Send + 'static,
    {
        let mut last = Instant::now();
        let told = with_pauses(futures_util::stream::iter(heard), pauses);
        told.map(|_| {
            let before = std::mem::replace(&mut last, Instant::now());
            before.elapsed()
        })
        .collect()
        .await
    }

    fn expired() -> WatchError {
        let status = Status::failure("too old resource version", "Expired").with_code(410);
        WatchError::Ended(status.boxed())
    }

    fn away() -> WatchError {
        WatchError::NoVersion
    }

    #[tokio::test(start_paused = true)]
    async fn server_is_left_alone_for_as_long_as_it_asks() {
        let error = WatchError::List(kube::Error::Api(overloaded(7)));
        let heard = vec![
            Err(error),
            Ok(Event::Init),
            Ok(Event::InitDone(BTreeSet::new())),
        ];
        let after = told_after(heard, NO_PAUSE).await;
        assert_eq!(after, [0, 7, 0].map(Duration::from_secs));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_whatever_was_heard_between() {
        let mut heard: Vec<_> = (0..8)
            .flat_map(|_| [Err(away()), Ok(Event::Init)])
            .collect();
        heard.push(Err(away()));
        heard.push(Ok(Event::Init));
        let after = told_after(heard, DefaultBackoff::default).await;
        let last = after.last().unwrap();
        assert!(*last >= Duration::from_secs(30), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_is_back_is_asked_soon_for_what_was_missed() {
        let mut heard: Vec<_> = (0..8).map(|_| Err(away())).collect();
        heard.push(Err(expired()));
        heard.push(Ok(Event::Init));
        let after = told_after(heard, DefaultBackoff::default).await;
        let [.., back, listed] = after[..] else {
            panic!("{after:?}");
        };
        assert!(back >= Duration::from_secs(30), "{after:?}");
        assert!(listed < Duration::from_secs(2), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn server_whose_versions_expire_again_and_again_is_asked_less_and_less() {
        let heard = (0..8).map(|_| Err(expired())).collect();
        let after = told_after(heard, DefaultBackoff::default).await;
        let last = after.last().unwrap();
        assert!(*last >= Duration::from_secs(30), "{after:?}");
    }

    fn service(name: &str, ports: Value) -> Value {
        json!({
            "metadata": {
                "namespace": "shop", "name": name, "resourceVersion": "9",
                "managedFields": [{"time": "-001-12-31T23:00:00Z"}],
            },
            "spec": {"ports": ports},
        })
    }

    /// Answers a request; a watch stays open.
    async fn answer(mut stream: TcpStream, list: &str, lines: &str) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let request = String::from_utf8(request).unwrap();
        let is_watch = request.contains("watch=true");
        let body = if is_watch { lines } else { list };
        let end = if is_watch {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{end}\r\n");
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .await
            .unwrap();
        if is_watch {
            std::future::pending::<()>().await;
        }
    }

    #[tokio::test]
    async fn object_that_cannot_be_read_is_told_as_such_among_the_others() {
        let (good, bad) = (json!([{"port": 80}]), json!("x"));
        let items = [
            service("a", good.clone()),
            service("b", bad.clone()),
            service("c", good.clone()),
        ];
        let list = json!({"metadata": {"resourceVersion": "7"}, "items": items}).to_string();
        let events = [
            json!({"type": "MODIFIED", "object": service("b", bad)}),
            json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}),
            json!({"type": "ADDED", "object": service("d", good.clone())}),
            json!({"type": "DELETED", "object": service("a", good)}),
        ];
        let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (list, lines) = (list.clone(), lines.clone());
                tokio::spawn(async move { answer(stream, &list, &lines).await });
            }
        });

        let client = Client::try_from(kube::Config::new(server.parse().unwrap())).unwrap();
        let told = list_watch::<Service>(Api::all(client), ListParams::default()).take(9);
        let told = told.map(|heard| {
            let (what, shown) = match heard.unwrap() {
                Event::Init => return "init".to_owned(),
                Event::InitDone(names) => return format!("listed {}", names.len()),
                Event::Watching => return "watching".to_owned(),
                Event::InitApply(shown) => ("list", shown),
                Event::Apply(shown) => ("apply", shown),
                Event::Delete(name) => return format!("delete {name}"),
            };
            match shown {
                Ok(object) => format!("{what} {}", object.metadata.name.unwrap()),
                Err(bad) => format!("{what} {} bad: {}", bad.name, bad.reason),
            }
        });
        let told: Vec<String> = told.collect().await;
        let wrong = "spec.ports: invalid type: string \"x\", expected a sequence";
        let expected = [
            "init",
            "list a",
            &format!("list shop/b bad: {wrong}"),
            "list c",
            "listed 3",
            "watching",
            &format!("apply shop/b bad: {wrong}"),
            "apply d",
            "delete shop/a",
        ];
        assert_eq!(told, expected);
    }
}
