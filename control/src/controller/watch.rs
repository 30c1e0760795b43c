//! The watches, and the one task that owns what they tell.
//!
//! The first change is acted on at once, those of a storm together. Nothing is decided before all kinds were listed to
//! their end, and nothing while another controller leads. A write that fails, or that somebody undoes, is tried
//! again with growing pauses.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::{BoxStream, select_all};
use futures_util::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::sync::watch as channel;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::convert::{self, Classes, Seen, SeenPool};
use super::crd::LoadBalancerPool;
use super::lease::Term;
use super::metrics::Values;
use super::mirror::Versioned;
use super::objects::Labels;
use super::pacer::{Object, Pacer};
use super::seed;
use super::write::{WriteError, Writer};
use crate::index::objects::{API_SERVICE, SERVICE_NAME};
use crate::kubernetes::client::SEED_SECRET;
use crate::kubernetes::relist;
use crate::kubernetes::request_errors::Purpose;
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
enum Told {
    Service(Boxed<Seen>),
    Pool(Boxed<SeenPool>),
    Node(Boxed<Vec<IpAddr>>),
    ApiServers(Boxed<Vec<IpAddr>>),
    Edges(Boxed<Vec<IpAddr>>),
    Namespace(Boxed<Labels>),
}

/// An event about an object; in a box, since the kinds differ much in size.
type Boxed<T> = Box<Event<Versioned<T>>>;

type Heard = Result<Told, (&'static str, watcher::Error)>;

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
                    Err(error) => {
                        tracing::error!(%error, secret = SEED_SECRET, "no seed of the flow hash: agents wait for it");
                        Some(Instant::now() + SEED_PAUSE)
                    }
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
        count(values, &object, written.as_ref().err());
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
                pacer.fail(object, error.asked_pause());
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
        count(values, &object, written.as_ref().err());
        match written {
            Ok(service) => {
                more = true;
                pacer.wrote(object, digest);
                let shown = Versioned::new(&service.metadata, classes.service(&service));
                cluster.services.take_answer(shown);
            }
            Err(WriteError::NotLeading) => return more,
            Err(error) => pacer.fail(object, error.asked_pause()),
        }
    }
    writer.notices(plan.notices).await;
    more || plan.has_more
}

fn shown(pool: &LoadBalancerPool) -> Versioned<SeenPool> {
    Versioned::new(&pool.metadata, convert::pool(pool))
}

fn count(values: &channel::Sender<Values>, (object, name): &Object, error: Option<&WriteError>) {
    if let Some(error) = error {
        tracing::warn!(object, %name, error = ?error, "cannot write; it is tried again");
    }
    values.send_modify(|values| *values.writes.entry((*object, error.is_none())).or_default() += 1);
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
        Told::ApiServers(event) => cluster.api_servers.follow(*event),
        Told::Edges(event) => cluster.edges.follow(*event),
        Told::Namespace(event) => cluster.namespaces.follow(*event),
    }
}

fn watches(client: &Client, scope: &Scope) -> impl Stream<Item = Heard> + use<> {
    let classes = scope.classes.clone();
    let all = watcher::Config::default;
    let slices_of = |namespace: &str, service: &str| {
        let config = all().labels(&format!("{SERVICE_NAME}={service}"));
        relist::watch(Api::namespaced(client.clone(), namespace), config)
    };
    let (namespace, service) = API_SERVICE;
    select_all([
        heard(
            "service",
            relist::watch(Api::<Service>::all(client.clone()), all()),
            Told::Service,
            move |service| classes.service(service),
        ),
        heard(
            "pool",
            relist::watch(Api::all(client.clone()), all()),
            Told::Pool,
            convert::pool,
        ),
        heard(
            "node",
            relist::watch(Api::all(client.clone()), all()),
            Told::Node,
            convert::node,
        ),
        heard(
            "endpointslice",
            slices_of(namespace, service),
            Told::ApiServers,
            convert::api_servers,
        ),
        heard(
            "endpointslice",
            slices_of(&scope.namespace, &scope.service),
            Told::Edges,
            convert::edges,
        ),
        heard(
            "namespace",
            relist::watch(Api::<Namespace>::all(client.clone()), all()),
            Told::Namespace,
            |namespace| convert::labels(&namespace.metadata),
        ),
    ])
}

fn heard<K, T>(
    kind: &'static str,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    told: fn(Boxed<T>) -> Told,
    convert: impl Fn(&K) -> T + Send + 'static,
) -> BoxStream<'static, Heard>
where
    K: kube::Resource<DynamicType = ()> + Send + 'static,
    T: 'static,
{
    let shown = move |object: K| Versioned::new(object.meta(), convert(&object));
    events
        .map_ok(move |event| {
            told(Box::new(match event {
                Event::Apply(object) => Event::Apply(shown(object)),
                Event::Delete(object) => Event::Delete(shown(object)),
                Event::Init => Event::Init,
                Event::InitApply(object) => Event::InitApply(shown(object)),
                Event::InitDone => Event::InitDone,
            }))
        })
        .map_err(move |error| (kind, error))
        .boxed()
}
