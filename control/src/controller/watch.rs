//! The watches, and the one task that owns what they tell.
//!
//! The first change is acted on at once, those of a storm together. Nothing is decided before all kinds were listed to
//! their end, and nothing while another controller leads. A write that fails, or that somebody undoes, is tried
//! again with growing pauses.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::{BoxStream, select_all};
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tokio::sync::watch as channel;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::convert::{self, Classes, Seen, SeenPool};
use super::crd::Pool;
use super::lease::Term;
use super::metrics::Values;
use super::mirror::{Event, Versioned};
use super::objects::Labels;
use super::pacer::Pacer;
use super::seed;
use super::write::{WriteError, Writer};
use crate::chain::chain;
use crate::index::objects::{API_SERVICE, ObjectName, SERVICE_NAME};
use crate::kubernetes::relist::{self, Decoded, Selection, WatchError};
use crate::kubernetes::request_errors::Purpose;
use crate::kubernetes::schema::{self, Namespace, Service, Unreadable};
use crate::timer::sleep_until;

/// Events taken before something is decided.
const EVENTS_AT_ONCE: usize = 1024;
/// Pause after a failure to read or make the seed.
const SEED_PAUSE: Duration = Duration::from_secs(5);

/// Where Guideway's own objects and the API server are, and whose Services are ours.
pub(super) struct Scope {
    /// Namespace of our objects.
    pub(super) namespace: String,
    /// Our headless Service.
    pub(super) service: String,
    /// Addresses of the API server.
    pub(super) api_server: BTreeSet<IpAddr>,
    /// Whose Services are ours.
    pub(super) classes: Classes,
}

/// What a watch tells.
enum ControllerEvent {
    Service(Boxed<Seen>),
    Pool(Boxed<SeenPool>),
    Node(Boxed<Vec<IpAddr>>),
    ApiServers(Boxed<Vec<IpAddr>>),
    Edges(Boxed<Vec<IpAddr>>),
    Namespace(Boxed<Labels>),
}

/// An event about an object; in a box, since the kinds differ much in size.
type Boxed<T> = Box<Event<T>>;

/// What is heard of a watch.
struct ControllerArrival {
    /// The watch.
    kind: &'static str,
    /// Nothing where the server only lets know that it tells of changes.
    told: Result<Option<ControllerEvent>, WatchError>,
}

/// Follows the API, and writes what follows from it, for ever.
pub(super) async fn follow(
    client: Client,
    scope: Scope,
    secrets: Api<Secret>,
    writer: Writer,
    mut terms: channel::Receiver<Term>,
    values: channel::Sender<Values>,
) -> Infallible {
    let mut events = watches(&client, &scope).ready_chunks(EVENTS_AT_ONCE);
    let mut cluster = Cluster::new(scope.api_server);
    let classes = scope.classes;
    let mut broken = Broken::default();
    let mut pacer = Pacer::default();
    let mut term = Term::default();
    // When to see to the seed, which agents wait for, whatever else is missing.
    let mut seed_due = Some(Instant::now());
    loop {
        let leads = terms.borrow().is_leading();
        let is_ready = leads && cluster.missing().is_empty();
        tokio::select! {
            Some(heard) = events.next() => {
                for ControllerArrival { kind, told } in heard {
                    broken.note(kind, told.as_ref().err());
                    match told {
                        Ok(Some(told)) => pacer.dirty |= take(&mut cluster, told),
                        Ok(None) => {}
                        Err(_) => {
                            values.send_modify(|values| *values.watch_errors.entry(kind).or_default() += 1);
                        }
                    }
                }
                values.send_modify(|values| values.missing = cluster.missing());
            }
            Ok(()) = terms.changed() => {
                let before = std::mem::replace(&mut term, *terms.borrow_and_update());
                if term.number != before.number {
                    cluster.forget();
                    pacer = Pacer::default();
                    pacer.dirty = true;
                }
                if !term.is_leading() {
                    // The one that leads tells.
                    values.send_modify(Values::forget);
                }
            }
            () = sleep_until(seed_due), if leads => {
                seed_due = match writer.counted(Purpose::Seed, seed::ensure(&secrets)).await {
                    Ok(()) => None,
                    Err(_) => Some(Instant::now() + SEED_PAUSE),
                };
            }
            () = pacer.due(), if is_ready => {
                let begun = Instant::now();
                let more = act(&mut cluster, &classes, &writer, &mut pacer, &values).await;
                pacer.done(begun, more);
            }
        }
    }
}

/// Decides and writes; tells whether that leads to more.
async fn act(
    cluster: &mut Cluster,
    classes: &Classes,
    writer: &Writer,
    pacer: &mut Pacer,
    values: &channel::Sender<Values>,
) -> bool {
    let plan = cluster.plan(&now());
    values.send_modify(|values| {
        values.assigned = plan.assigned;
        values.waiting = plan.waiting;
        values.pools = plan.usage;
        values.claimed = plan.claimed.len() as u64;
    });
    let mut more = false;
    let mut uncounted = Vec::new();
    for (name, write) in plan.pools {
        let (object, digest) = (("pool", name.clone()), write.digest());
        if !pacer.allows(&object, digest) {
            uncounted.push(name);
            continue;
        }
        let written = writer.pool(&name, &write).await;
        count(values, object.0, written.is_ok());
        match written {
            Ok(pool) => {
                more = true;
                pacer.wrote(object, digest);
                cluster.refusals.end(&name);
                if let Some(pool) = pool {
                    cluster.pools.take_answer(shown(&pool));
                }
            }
            Err(WriteError::NotLeading) => return more,
            Err(error) => {
                pacer.fail(object, &chain(&error), error.asked_pause());
                // The watch shows what has changed, but for a storage that was restored from a copy.
                if error.is_conflict()
                    && let Ok(pool) = writer.read_pool(&name).await
                {
                    cluster.pools.take_answer(shown(&pool));
                }
                if let Some(why) = error.refusal() {
                    more |= cluster.refusals.note(name.clone(), why);
                }
                uncounted.push(name);
            }
        }
    }
    let services = plan.services.into_iter();
    let services = services.map(|(name, write)| (name, write.digest(), write));
    let services = services.filter(|(name, digest, write)| {
        // An address that its pool does not count is not given.
        pacer.allows(&("service", name.clone()), *digest)
            && !cluster.has_any(&uncounted, &write.given)
    });
    let mut writes = writer.services(services.collect());
    while let Some((name, digest, written)) = writes.next().await {
        let object = ("service", name.clone());
        count(values, object.0, written.is_ok());
        match written {
            Ok(service) => {
                more = true;
                pacer.wrote(object, digest);
                let shown = Versioned::new(&service.metadata, classes.service(&service));
                cluster.services.take_answer(shown);
            }
            Err(WriteError::NotLeading) => return more,
            Err(error) => {
                pacer.fail(object, &chain(&error), error.asked_pause());
            }
        }
    }
    writer.notices(plan.notices).await;
    more || plan.has_more
}

fn shown(pool: &Pool) -> Versioned<SeenPool> {
    Versioned::new(&pool.metadata, convert::pool(pool))
}

fn count(values: &channel::Sender<Values>, object: &'static str, succeeded: bool) {
    values.send_modify(|values| *values.writes.entry((object, succeeded)).or_default() += 1);
}

/// Tells the time as conditions have it.
fn now() -> String {
    let seconds = Timestamp::now().as_second();
    Timestamp::from_second(seconds)
        .unwrap_or_default()
        .to_string()
}

/// The watches that failed last, each with the reason, which is logged once.
#[derive(Default)]
struct Broken(BTreeMap<&'static str, String>);

impl Broken {
    fn note(&mut self, kind: &'static str, error: Option<&WatchError>) {
        match error.map(|error| chain(error)) {
            Some(reason) if self.0.get(kind) == Some(&reason) => {}
            Some(reason) => {
                tracing::warn!(kind, reason, "cannot watch; what is known stays in force");
                self.0.insert(kind, reason);
            }
            None => {
                if self.0.remove(kind).is_some() {
                    tracing::info!(kind, "the API server tells of changes again");
                }
            }
        }
    }
}

/// The objects of a watch that cannot be read, each with the reason, which is logged once.
struct UnreadableObjects {
    kind: &'static str,
    reasons: BTreeMap<ObjectName, String>,
}

impl UnreadableObjects {
    /// Returns an object that can be read, or the name of one that cannot.
    fn sort_out<K: kube::Resource>(&mut self, shown: Decoded<K>) -> Result<K, ObjectName> {
        match shown {
            Ok(object) => {
                if !self.reasons.is_empty() {
                    self.reasons.remove(&schema::name(object.meta()));
                }
                Ok(object)
            }
            Err(Unreadable { name, reason, .. }) => {
                let before = self.reasons.insert(name.clone(), reason.clone());
                if before.as_ref() != Some(&reason) {
                    let kind = self.kind;
                    tracing::warn!(kind, %name, reason, "an object cannot be read; what it was before stays in force");
                }
                Err(name)
            }
        }
    }

    /// Returns the name of an object that is gone.
    fn forget<K: kube::Resource>(&mut self, shown: &Decoded<K>) -> ObjectName {
        let name = match shown {
            Ok(object) => schema::name(object.meta()),
            Err(unreadable) => unreadable.name.clone(),
        };
        self.reasons.remove(&name);
        name
    }
}

fn take(cluster: &mut Cluster, told: ControllerEvent) -> bool {
    match told {
        ControllerEvent::Service(event) => cluster.services.follow(*event),
        ControllerEvent::Pool(event) => cluster.pools.follow(*event),
        ControllerEvent::Node(event) => cluster.nodes.follow(*event),
        ControllerEvent::ApiServers(event) => cluster.api_servers.follow(*event),
        ControllerEvent::Edges(event) => cluster.edges.follow(*event),
        ControllerEvent::Namespace(event) => cluster.namespaces.follow(*event),
    }
}

fn watches(client: &Client, scope: &Scope) -> impl Stream<Item = ControllerArrival> + use<> {
    let classes = scope.classes.clone();
    let all = Selection::default;
    let slices = |namespace: &str, selection| {
        relist::watch(Api::namespaced(client.clone(), namespace), selection)
    };
    let (namespace, name) = API_SERVICE;
    let own_service = format!("{SERVICE_NAME}={}", scope.service);
    select_all([
        heard(
            "service",
            relist::watch(Api::<Service>::all(client.clone()), all()),
            ControllerEvent::Service,
            move |service| classes.service(service),
        ),
        heard(
            "pool",
            relist::watch(Api::all(client.clone()), all()),
            ControllerEvent::Pool,
            convert::pool,
        ),
        heard(
            "node",
            relist::watch(Api::all(client.clone()), all()),
            ControllerEvent::Node,
            convert::node,
        ),
        heard(
            "endpointslice",
            slices(
                namespace,
                Selection::fields(&format!("metadata.name={name}")),
            ),
            ControllerEvent::ApiServers,
            convert::api_servers,
        ),
        heard(
            "endpointslice",
            slices(&scope.namespace, Selection::labels(&own_service)),
            ControllerEvent::Edges,
            convert::edges,
        ),
        heard(
            "namespace",
            relist::watch(Api::<Namespace>::all(client.clone()), all()),
            ControllerEvent::Namespace,
            |namespace| convert::labels(&namespace.metadata),
        ),
    ])
}

fn heard<K, T>(
    kind: &'static str,
    events: impl Stream<Item = Result<relist::Event<K>, WatchError>> + Send + 'static,
    told: fn(Boxed<T>) -> ControllerEvent,
    convert: impl Fn(&K) -> T + Send + 'static,
) -> BoxStream<'static, ControllerArrival>
where
    K: kube::Resource<DynamicType = ()> + Send + 'static,
    T: 'static,
{
    let shown = move |object: K| Versioned::new(object.meta(), convert(&object));
    let mut unreadable = UnreadableObjects {
        kind,
        reasons: BTreeMap::new(),
    };
    let mut event = move |event| {
        Some(match event {
            relist::Event::Init => Event::Init,
            relist::Event::InitApply(object) => match unreadable.sort_out(object) {
                Ok(object) => Event::InitApply(shown(object)),
                Err(name) => Event::InitUnreadable(name),
            },
            relist::Event::InitDone => Event::InitDone,
            relist::Event::Watching => return None,
            relist::Event::Apply(object) => Event::Apply(shown(unreadable.sort_out(object).ok()?)),
            relist::Event::Delete(object) => Event::Delete(unreadable.forget(&object)),
        })
    };
    events
        .map(move |heard| ControllerArrival {
            kind,
            told: heard.map(|heard| event(heard).map(|event| told(Box::new(event)))),
        })
        .boxed()
}
