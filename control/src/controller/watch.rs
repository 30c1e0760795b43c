//! The watches, and the one task that owns what they tell.
//!
//! The first change is acted on at once, those of a storm together. Nothing is decided before all four kinds were listed to
//! their end, and nothing while another controller leads. A write that fails is tried again with growing pauses.

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::{BoxStream, select_all};
use futures_util::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Node, Secret, Service};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::sync::watch as channel;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::convert::{self, Classes, Seen, SeenPool};
use super::crd::LoadBalancerPool;
use super::lease::Term;
use super::metrics::Values;
use super::objects::Labels;
use super::seed;
use super::write::{WriteError, Writer};
use crate::index::objects::ObjectName;
use crate::kubernetes::backoff::Patience;
use crate::kubernetes::relist;

/// How long the server is asked to keep a watch open: a server that has gone without a word is noticed a few
/// seconds later.
const WATCH_SECONDS: u32 = 60;
/// Events taken before something is decided.
const EVENTS_AT_ONCE: usize = 1024;
/// Shortest time from one decision to the next.
const PACE: Duration = Duration::from_millis(100);
/// Pause after a failure to read or make the seed.
const SEED_PAUSE: Duration = Duration::from_secs(5);
/// First and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What a watch tells.
enum Told {
    Service(Named<Seen>),
    Pool(Named<SeenPool>),
    Node(Named<Vec<IpAddr>>),
    Namespace(Named<Labels>),
}

/// An event about a named object; in a box, since the kinds differ much in size.
type Named<T> = Box<Event<(ObjectName, T)>>;

type Heard = Result<Told, (&'static str, watcher::Error)>;

/// Follows the API and writes what follows from it, for ever.
pub(super) async fn follow(
    client: Client,
    classes: Classes,
    secrets: Api<Secret>,
    writer: Writer,
    mut terms: channel::Receiver<Term>,
    values: channel::Sender<Values>,
) -> Infallible {
    let mut events = watches(&client, &classes).ready_chunks(EVENTS_AT_ONCE);
    let mut cluster = Cluster::default();
    let mut pacer = Pacer::default();
    let mut term = Term::default();
    // When to see to the seed, which agents wait for, whatever else is missing.
    let mut seed_due = Some(Instant::now());
    loop {
        let leads = terms.borrow().is_leading();
        let is_ready = leads && cluster.missing().is_empty();
        tokio::select! {
            Some(heard) = events.next() => {
                for heard in heard {
                    match heard {
                        Ok(told) => pacer.dirty |= take(&mut cluster, told),
                        Err((kind, error)) => {
                            tracing::warn!(kind, error = ?error, "a watch failed; it is begun again");
                            values.send_modify(|values| *values.watch_errors.entry(kind).or_default() += 1);
                        }
                    }
                }
                values.send_modify(|values| values.missing = cluster.missing());
            }
            Ok(()) = terms.changed() => {
                term = become_of(term, *terms.borrow_and_update(), &mut cluster, &mut pacer);
                if !term.is_leading() {
                    // The one that leads tells.
                    values.send_modify(Values::forget);
                }
            }
            () = due(seed_due), if leads => {
                seed_due = match writer.in_time(seed::ensure(&secrets)).await {
                    Ok(()) => None,
                    Err(error) => {
                        tracing::error!(%error, secret = seed::SECRET, "no seed of the flow hash: agents wait for it");
                        Some(Instant::now() + SEED_PAUSE)
                    }
                };
            }
            () = pacer.due(), if is_ready => {
                let outcome = act(&mut cluster, &classes, &writer, &values).await;
                pacer.done(outcome);
            }
        }
    }
}

async fn due(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn become_of(before: Term, now: Term, cluster: &mut Cluster, pacer: &mut Pacer) -> Term {
    if now.number != before.number {
        cluster.forget();
        *pacer = Pacer {
            dirty: true,
            ..Pacer::default()
        };
    }
    now
}

/// When to act next.
#[derive(Default)]
struct Pacer {
    dirty: bool,
    earliest: Option<Instant>,
    pause: Option<Duration>,
}

impl Pacer {
    async fn due(&self) {
        let earliest = self.earliest.unwrap_or_else(Instant::now);
        due(self.dirty.then_some(earliest)).await;
    }

    fn done(&mut self, outcome: Result<bool, WriteError>) {
        let (dirty, pause) = match outcome {
            Ok(more) => (more, None),
            Err(_) => {
                let longer = self
                    .pause
                    .map_or(PAUSES.0, |pause| (pause * 2).min(PAUSES.1));
                (true, Some(longer))
            }
        };
        self.dirty = dirty;
        self.pause = pause;
        self.earliest = Some(Instant::now() + pause.unwrap_or(PACE));
    }
}

/// Decides and writes; tells whether there may be more to do, which is so after every write.
async fn act(
    cluster: &mut Cluster,
    classes: &Classes,
    writer: &Writer,
    values: &channel::Sender<Values>,
) -> Result<bool, WriteError> {
    let plan = cluster.plan(&now());
    values.send_modify(|values| {
        values.assigned = plan.assigned;
        values.waiting = plan.waiting;
        values.pools = plan.usage;
    });
    let mut outcome = Ok(!plan.pools.is_empty() || !plan.services.is_empty());
    let mut uncounted = Vec::new();
    for (name, patch) in plan.pools {
        let written = writer.pool(&name, &patch).await;
        told(values, "pool", &name, written.as_ref().err());
        match written {
            Ok(pool) => _ = cluster.pools.put(name, convert::pool(&pool)),
            Err(WriteError::NotLeading) => return Err(WriteError::NotLeading),
            Err(error) => {
                outcome = Err(error);
                uncounted.push(name);
            }
        }
    }
    // An address that its pool does not count is not given.
    let mut services = plan.services;
    services.retain(|(_, write)| !cluster.has_any(&uncounted, &write.addresses));
    let mut writes = writer.services(services);
    while let Some((name, written)) = writes.next().await {
        told(values, "service", &name, written.as_ref().err());
        match written {
            Ok(service) => _ = cluster.services.put(name, classes.service(&service)),
            Err(WriteError::NotLeading) => return Err(WriteError::NotLeading),
            // It was deleted: the watch will tell.
            Err(error) if error.is_gone() => {}
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

fn told(
    values: &channel::Sender<Values>,
    object: &'static str,
    name: &ObjectName,
    error: Option<&WriteError>,
) {
    if let Some(error) = error {
        tracing::warn!(object, %name, error = ?error, "cannot write a status; it is tried again");
    }
    values.send_modify(|values| *values.writes.entry((object, error.is_none())).or_default() += 1);
}

/// Tells the time as conditions have it.
fn now() -> String {
    let seconds = Timestamp::now().as_second();
    Timestamp::from_second(seconds)
        .unwrap_or_default()
        .to_string()
}

fn take(cluster: &mut Cluster, told: Told) -> bool {
    match told {
        Told::Service(event) => cluster.services.follow(*event),
        Told::Pool(event) => cluster.pools.follow(*event),
        Told::Node(event) => cluster.nodes.follow(*event),
        Told::Namespace(event) => cluster.namespaces.follow(*event),
    }
}

fn watches(client: &Client, classes: &Classes) -> impl Stream<Item = Heard> + use<> {
    let classes = classes.clone();
    select_all([
        heard::<Service, _>("service", client, Told::Service, move |service| {
            classes.service(service)
        }),
        heard::<LoadBalancerPool, _>("pool", client, Told::Pool, convert::pool),
        heard::<Node, _>("node", client, Told::Node, convert::node),
        heard::<Namespace, _>("namespace", client, Told::Namespace, |namespace| {
            convert::labels(&namespace.metadata)
        }),
    ])
}

fn heard<K, T>(
    kind: &'static str,
    client: &Client,
    told: fn(Named<T>) -> Told,
    convert: impl Fn(&K) -> T + Send + 'static,
) -> BoxStream<'static, Heard>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
    T: 'static,
{
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let events = relist::watch(Api::<K>::all(client.clone()), config).backoff(Patience::default());
    let named = move |object: K| (convert::name(object.meta()), convert(&object));
    events
        .map_ok(move |event| {
            told(Box::new(match event {
                Event::Apply(object) => Event::Apply(named(object)),
                Event::Delete(object) => Event::Delete(named(object)),
                Event::Init => Event::Init,
                Event::InitApply(object) => Event::InitApply(named(object)),
                Event::InitDone => Event::InitDone,
            }))
        })
        .map_err(move |error| (kind, error))
        .boxed()
}
