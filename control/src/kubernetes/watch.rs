//! The watchers, and the one task that owns what they tell.
//!
//! The task takes events as they come, computes what they change, and leaves the state for the agent: the
//! first change at once, those of a storm together. Before every kind was listed to its end, nothing leaves
//! it. A watch that fails is begun again with growing pauses; what was known stays.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

use futures_util::stream::{BoxStream, select_all};
use futures_util::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};

use super::cluster::{Cluster, Kind, ObjectEvent};
use super::feed::{Feed, Update};
use super::pace::Pace;
use super::presence;
use super::relist::{self, Event, Selection, WatchError};
use super::schema::{EndpointSlice, Node, Service};
use crate::chain::chain;
use crate::index::objects::{HEADLESS, SERVICE_NAME, SERVICE_PROXY_NAME};
use crate::timer::sleep_until;

/// Events taken before a state is computed.
const EVENTS_AT_ONCE: usize = 1024;

/// Where our own objects are, and what is never a virtual address.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    /// Namespace of our objects.
    pub(super) namespace: String,
    /// Our headless Service.
    pub(super) service: String,
    /// Addresses of the API server.
    pub(super) api_servers: BTreeSet<SocketAddr>,
}

/// Follows the API for ever; calls `changed` for each state that it leaves in the feed.
pub(super) async fn follow(
    client: Client,
    scope: Scope,
    mut cluster: Cluster,
    hash_seed: u64,
    feed: Feed,
    changed: impl Fn(),
) {
    let mut events = watchers(&client, &scope).ready_chunks(EVENTS_AT_ONCE);
    let mut machine = feed.machine();
    cluster.take_machine(
        machine.borrow_and_update().clone(),
        scope.api_servers.clone(),
    );
    let mut pace = Pace::default();
    // When the first change arrived that the agent does not have.
    let mut arrived: Option<Instant> = None;
    let mut is_first = true;
    let mut is_complete = false;
    loop {
        let expiry = cluster.expire(Instant::now());
        if !is_complete && cluster.missing().next().is_none() {
            is_complete = true;
            tracing::info!("every kind is listed to its end");
        }
        feed.reports().vitals().gather(arrived);
        let due = arrived.filter(|_| is_complete).map(|since| pace.due(since));
        tokio::select! {
            biased;
            () = sleep_until(due) => {
                let since = arrived.take().unwrap_or_else(Instant::now);
                let outcome = cluster.update();
                if outcome.problems {
                    feed.reports().set_problems_here(cluster.problems_here());
                }
                // Those that change nothing here are not waited for.
                let changes = cluster.take_changes();
                if is_first || !outcome.is_empty() {
                    is_first = false;
                    feed.put(Update {
                        state: cluster.state().clone(),
                        hash_seed,
                        changes,
                        arrived: since,
                    });
                    changed();
                }
                pace.passed_on(Instant::now(), due > Some(since));
                tell(&feed, &cluster);
            }
            Some(told) = events.next() => {
                let now = Instant::now();
                if take(&mut cluster, &feed, told, now) {
                    arrived = arrived.or(Some(now));
                }
                tell(&feed, &cluster);
            }
            Ok(()) = machine.changed() => {
                let own = machine.borrow_and_update().clone();
                cluster.take_machine(own, scope.api_servers.clone());
                arrived = arrived.or(Some(Instant::now()));
            }
            () = sleep_until(expiry) => arrived = arrived.or(Some(Instant::now())),
        }
    }
}

type ObjectArrival = Result<ObjectEvent, (Kind, WatchError)>;

fn watchers(client: &Client, scope: &Scope) -> impl Stream<Item = ObjectArrival> + use<> {
    let (service, detached) = (&scope.service, presence::detached(&scope.service));
    let ours = format!("{SERVICE_NAME} in ({service},{detached})");
    let theirs = format!("!{SERVICE_PROXY_NAME},!{HEADLESS}");
    let services = Api::<Service>::all(client.clone());
    let slices = Api::<EndpointSlice>::all(client.clone());
    let nodes = Api::<Node>::all(client.clone());
    // The slice controller labels the slices of a headless Service: the usual selector hides ours.
    let presence = Api::<EndpointSlice>::namespaced(client.clone(), &scope.namespace);
    select_all([
        heard(
            Kind::Services,
            relist::watch(services, Selection::labels(&theirs)),
            ObjectEvent::Service,
        ),
        heard(
            Kind::EndpointSlices,
            relist::watch(slices, Selection::labels(&theirs)),
            ObjectEvent::Slice,
        ),
        heard(
            Kind::Nodes,
            relist::watch(nodes, Selection::default()),
            ObjectEvent::Node,
        ),
        heard(
            Kind::Presence,
            relist::watch(presence, Selection::labels(&ours)),
            ObjectEvent::Presence,
        ),
    ])
}

fn heard<K: Send + 'static>(
    kind: Kind,
    events: impl Stream<Item = Result<Event<K>, WatchError>> + Send + 'static,
    told: fn(Box<Event<K>>) -> ObjectEvent,
) -> BoxStream<'static, ObjectArrival> {
    events
        .map_ok(move |event| told(Box::new(event)))
        .map_err(move |error| (kind, error))
        .boxed()
}

/// Takes events and errors; tells whether anything may follow from them. Each watcher goes on after an error by itself.
fn take(cluster: &mut Cluster, feed: &Feed, heard: Vec<ObjectArrival>, now: Instant) -> bool {
    let mut follows = false;
    let at = Timestamp::now().as_second();
    for heard in heard {
        match heard {
            Ok(told) => {
                let at = told.is_event().then_some(at);
                feed.tell(|watching| watching.hear(told.kind(), at));
                follows |= cluster.take(told, now);
            }
            Err((kind, error)) => {
                cluster.fail(kind, now);
                feed.tell(|watching| watching.fail(kind, chain(&error)));
            }
        }
    }
    follows
}

fn tell(feed: &Feed, cluster: &Cluster) {
    feed.tell(|watching| {
        watching.missing = cluster
            .missing()
            .map(|kind| format!("the list of {}", kind.name()))
            .collect();
        watching.pending = cluster.pending();
        watching.objects = Kind::ALL
            .map(|kind| (kind.name(), cluster.count(kind)))
            .into();
    });
}
