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

use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures_util::io::{AsyncBufRead, AsyncBufReadExt};
use futures_util::stream;
use futures_util::{Stream, StreamExt};
use kube::api::{ListParams, WatchParams};
use kube::core::{Request, Status};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::backoff::{Patience, asked_pause};
use super::list::ListCutter;
use super::schema::{self, Unreadable};

/// How long the server is asked to keep a watch open: a server that has gone without a word is noticed a few
/// seconds later.
const WATCH_SECONDS: u32 = 60;
/// How long a watch may tell nothing.
const WATCH_SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// A watch that ends sooner, and has told nothing, is taken for a failure: it would be begun again without end.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// Objects of a page of a list.
const PAGE: u32 = 500;

/// Which objects of a kind are watched.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    labels: Option<String>,
    fields: Option<String>,
}

impl Selection {
    /// Chooses by labels.
    pub(crate) fn labels(selector: &str) -> Self {
        Self {
            labels: Some(selector.to_owned()),
            fields: None,
        }
    }

    /// Chooses by fields.
    pub(crate) fn fields(selector: &str) -> Self {
        Self {
            labels: None,
            fields: Some(selector.to_owned()),
        }
    }

    fn list(&self, more: Option<String>) -> ListParams {
        ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit: Some(PAGE),
            continue_token: more,
            ..ListParams::default()
        }
    }

    fn watch(&self) -> WatchParams {
        WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: Some(WATCH_SECONDS),
            ..WatchParams::default()
        }
    }
}

/// An object, or what is known of one that cannot be read.
pub(crate) type Decoded<K> = Result<K, Unreadable>;

/// What a watch tells; all of it has been heard from the server.
#[derive(Debug)]
pub(crate) enum Event<K> {
    /// A list begins.
    Init,
    /// An object of the list.
    InitApply(Decoded<K>),
    /// The list was complete: what it did not have is gone.
    InitDone,
    /// The server tells of all changes from here on.
    Watching,
    /// An object is new, or was changed.
    Apply(Decoded<K>),
    /// An object is gone.
    Delete(Decoded<K>),
}

impl<K> Event<K> {
    /// Tells whether it says something of objects.
    pub(crate) fn is_of_objects(&self) -> bool {
        !matches!(self, Self::Init | Self::Watching)
    }
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
}

type Watched<K> = Result<Event<K>, WatchError>;

/// Watches objects of a kind for ever, with [`Patience`].
pub(crate) fn watch<K>(
    api: Api<K>,
    selection: Selection,
) -> impl Stream<Item = Watched<K>> + Send + 'static
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    watch_with(api, selection, Patience::default)
}

/// Watches objects of a kind for ever, with the given pauses after errors that come one after the other.
pub(crate) fn watch_with<K, P>(
    api: Api<K>,
    selection: Selection,
    pauses: impl Fn() -> P,
) -> impl Stream<Item = Watched<K>> + Send + 'static
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
    P: Iterator<Item = Duration> + Send + 'static,
{
    let request = Request::new(api.resource_url());
    let source = Source {
        request,
        client: api.into_client(),
        selection,
        state: State::Relist,
    };
    let events = stream::unfold(source, |mut source| async {
        let heard = source.next::<K>().await;
        Some((heard, source))
    });
    patient(events.boxed(), pauses)
}

/// Where the events come from.
struct Source {
    client: Client,
    request: Request,
    selection: Selection,
    state: State,
}

type Body = Pin<Box<dyn AsyncBufRead + Send>>;

enum State {
    /// All is to be listed.
    Relist,
    /// A page is to be asked for.
    NextPage { more: String },
    /// A page is read.
    Page { body: Body, list: ListCutter },
    /// The objects are known as they were in this version.
    Listed { version: String },
    /// The changes since are told.
    Watching {
        body: Body,
        version: String,
        begun: Instant,
        has_told: bool,
    },
}

impl Source {
    /// Returns what is heard next.
    async fn next<K>(&mut self) -> Watched<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        loop {
            // What fails is begun again from here.
            let state = std::mem::replace(&mut self.state, State::Relist);
            match state {
                State::Relist => {
                    self.state = self.ask_for_page::<K>(None).await?;
                    return Ok(Event::Init);
                }
                State::NextPage { more } => self.state = self.ask_for_page::<K>(Some(more)).await?,
                State::Page { mut body, mut list } => {
                    if let Some(item) = list.next_item() {
                        self.state = State::Page { body, list };
                        return Ok(Event::InitApply(schema::read(&item)));
                    }
                    let part = body.fill_buf().await.map_err(WatchError::Page)?;
                    let length = part.len();
                    if length > 0 {
                        list.push(part);
                        body.consume_unpin(length);
                        self.state = State::Page { body, list };
                        continue;
                    }
                    let head = list.finish().map_err(WatchError::NoList)?;
                    if let Some(more) = head.more {
                        self.state = State::NextPage { more };
                        continue;
                    }
                    let version = head.version.ok_or(WatchError::NoVersion)?;
                    self.state = State::Listed { version };
                    return Ok(Event::InitDone);
                }
                State::Listed { version } => {
                    let body = match self.ask_for_changes::<K>(&version).await {
                        Ok(body) => body,
                        Err(error) => {
                            let error = WatchError::Watch(error);
                            self.go_on_from(version, error.answer());
                            return Err(error);
                        }
                    };
                    let (begun, has_told) = (Instant::now(), false);
                    self.state = State::Watching {
                        body,
                        version,
                        begun,
                        has_told,
                    };
                    return Ok(Event::Watching);
                }
                State::Watching {
                    mut body,
                    version,
                    begun,
                    has_told,
                } => {
                    let line = match next_line(&mut body).await {
                        Ok(line) => line,
                        Err(error) => {
                            self.state = State::Listed { version };
                            return Err(WatchError::Broken(error));
                        }
                    };
                    let Some(line) = line else {
                        self.state = State::Listed { version };
                        if !has_told && begun.elapsed() < SHORTEST_WATCH {
                            return Err(WatchError::TooShort);
                        }
                        continue;
                    };
                    let told = Line::read::<K>(&line).map_err(WatchError::NoEvent)?;
                    let event = match told {
                        WatchLine::Error(status) => {
                            self.go_on_from(version, Some(&status));
                            return Err(WatchError::Ended(status));
                        }
                        WatchLine::Bookmark(shown) => Err(shown),
                        WatchLine::Event(event) => Ok(event),
                    };
                    let newer = match &event {
                        Err(shown) | Ok(Event::Apply(shown) | Event::Delete(shown)) => {
                            version_of(shown)
                        }
                        Ok(_) => None,
                    };
                    self.state = State::Watching {
                        body,
                        version: newer.unwrap_or(version),
                        begun,
                        has_told: true,
                    };
                    if let Ok(event) = event {
                        return Ok(event);
                    }
                }
            }
        }
    }

    /// Goes on after an error with the changes since a version, unless the server says that it is too old.
    fn go_on_from(&mut self, version: String, answer: Option<&Status>) {
        if answer.is_none_or(|status| status.code != 410) {
            self.state = State::Listed { version };
        }
    }

    async fn ask_for_page<K: Resource<DynamicType = ()>>(
        &mut self,
        more: Option<String>,
    ) -> Result<State, WatchError> {
        let parameters = self.selection.list(more);
        let request = if K::metadata_api() {
            self.request.list_metadata(&parameters)
        } else {
            self.request.list(&parameters)
        };
        let request =
            request.map_err(|error| WatchError::List(kube::Error::BuildRequest(error)))?;
        let body = self.client.request_stream(request).await;
        Ok(State::Page {
            body: Box::pin(body.map_err(WatchError::List)?),
            list: ListCutter::default(),
        })
    }

    async fn ask_for_changes<K: Resource<DynamicType = ()>>(
        &mut self,
        version: &str,
    ) -> kube::Result<Body> {
        let parameters = self.selection.watch();
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

fn version_of<K: Resource<DynamicType = ()>>(shown: &Decoded<K>) -> Option<String> {
    let version = match shown {
        Ok(object) => &object.meta().resource_version,
        Err(unreadable) => &unreadable.version,
    };
    version.clone().filter(|version| !version.is_empty())
}

/// A line of a watch with an object that can be read.
#[derive(Deserialize)]
struct WholeLine<K> {
    r#type: Kind,
    object: K,
}

/// Any other line of a watch.
#[derive(Deserialize)]
struct Line {
    r#type: Kind,
    object: Value,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// What a line tells.
enum WatchLine<K> {
    Event(Event<K>),
    /// The version that everything is told of until now.
    Bookmark(Decoded<K>),
    Error(Box<Status>),
}

impl Line {
    fn read<K>(line: &[u8]) -> serde_json::Result<WatchLine<K>>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        // Nearly all lines are whole events, and read in one go: the Nodes' are many and long.
        if let Ok(event) = serde_json::from_slice::<WholeLine<K>>(line)
            && event.object.meta().name.is_some()
        {
            let object = Ok(event.object);
            match event.r#type {
                Kind::Added | Kind::Modified => return Ok(WatchLine::Event(Event::Apply(object))),
                Kind::Deleted => return Ok(WatchLine::Event(Event::Delete(object))),
                Kind::Bookmark | Kind::Error => {}
            }
        }
        let line: Self = serde_json::from_slice(line)?;
        let read = || schema::read(line.object.to_string().as_bytes());
        Ok(match line.r#type {
            Kind::Added | Kind::Modified => WatchLine::Event(Event::Apply(read())),
            Kind::Deleted => WatchLine::Event(Event::Delete(read())),
            Kind::Bookmark => WatchLine::Bookmark(read()),
            Kind::Error => WatchLine::Error(serde_json::from_value(line.object)?),
        })
    }
}

/// Leaves the server alone after an error.
fn patient<K: 'static, P>(
    events: impl Stream<Item = Watched<K>> + Send + Unpin + 'static,
    pauses: impl Fn() -> P,
) -> impl Stream<Item = Watched<K>> + Send + 'static
where
    P: Iterator<Item = Duration> + Send + 'static,
{
    let patient = Patient {
        events,
        silence: pauses(),
        refusal: pauses(),
        not_before: None,
    };
    stream::unfold(patient, Patient::next)
}

struct Patient<S, P> {
    events: S,
    /// The pauses while the server does not answer.
    silence: P,
    /// Those while it answers something else: one that is back is not to wait for what the first have grown to.
    refusal: P,
    /// When the server may be asked again.
    not_before: Option<Instant>,
}

impl<K, S, P> Patient<S, P>
where
    S: Stream<Item = Watched<K>> + Unpin,
    P: Iterator<Item = Duration>,
{
    async fn next(mut self) -> Option<(Watched<K>, Self)> {
        if let Some(time) = self.not_before.take() {
            tokio::time::sleep_until(time).await;
        }
        let heard = self.events.next().await?;
        if let Err(error) = &heard {
            let (pauses, asked) = match error.answer() {
                Some(status) => (&mut self.refusal, asked_pause(status)),
                None => (&mut self.silence, None),
            };
            let pause = pauses.next().max(asked);
            self.not_before = pause.map(|pause| Instant::now() + pause);
        }
        Some((heard, self))
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use serde_json::json;
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
        let told = patient(stream::iter(heard), pauses);
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
        let heard = vec![Err(error), Ok(Event::Init), Ok(Event::InitDone)];
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
        let after = told_after(heard, Patience::default).await;
        let last = after.last().unwrap();
        assert!(*last >= Duration::from_secs(30), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_is_back_is_asked_soon_for_what_was_missed() {
        let mut heard: Vec<_> = (0..8).map(|_| Err(away())).collect();
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
        let told = watch::<Service>(Api::all(client), Selection::default()).take(9);
        let told = told.map(|heard| {
            let (what, shown) = match heard.unwrap() {
                Event::Init => return "init".to_owned(),
                Event::InitDone => return "listed".to_owned(),
                Event::Watching => return "watching".to_owned(),
                Event::InitApply(shown) => ("list", shown),
                Event::Apply(shown) => ("apply", shown),
                Event::Delete(shown) => ("delete", shown),
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
            "listed",
            "watching",
            &format!("apply shop/b bad: {wrong}"),
            "apply d",
            "delete a",
        ];
        assert_eq!(told, expected);
    }
}
