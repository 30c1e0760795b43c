//! Runs the watches, and the one task that owns the index.
//!
//! The task applies events as they come, computes their effect and leaves the state for the agent. The first
//! change is passed on at once, the changes of a storm together. No state is passed on before every kind has
//! been listed completely. A watch that fails is started again with growing pauses; the known objects stay in
//! force meanwhile.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

use futures_util::stream::{BoxStream, select_all};
use futures_util::{Stream, StreamExt};
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::arrival::{Arrival, Change, arrivals};
use super::feed::{Feed, Update};
use super::indexer::{Indexer, Kind};
use super::list_watch::Event;
use super::pace::Pace;
use super::presence;
use crate::chain::chain;
use crate::index::objects::{HEADLESS, SERVICE_NAME, SERVICE_PROXY_NAME};
use crate::timer::sleep_until;

/// Most events applied before a state is computed.
const EVENTS_AT_ONCE: usize = 1024;

/// Where Guideway's own objects are, and the addresses of the API server.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    /// Namespace of Guideway's own objects.
    pub(super) namespace: String,
    /// Name of Guideway's headless Service.
    pub(super) service: String,
    /// Addresses and ports of the API server. They never become virtual.
    pub(super) api_servers: BTreeSet<SocketAddr>,
}

/// Follows the API for ever. Calls `changed` after each state that it puts into the feed.
pub(super) async fn follow(
    client: Client,
    scope: Scope,
    mut indexer: Indexer,
    hash_seed: u64,
    feed: Feed,
    changed: impl Fn(),
) {
    let mut events = watchers(&client, &scope).ready_chunks(EVENTS_AT_ONCE);
    let mut machine = feed.machine();
    indexer.take_machine(
        machine.borrow_and_update().clone(),
        scope.api_servers.clone(),
    );
    let mut pace = Pace::default();
    // When the first of the changes arrived that were not passed on yet.
    let mut arrived: Option<Instant> = None;
    let mut is_first = true;
    let mut is_complete = false;
    loop {
        let expiry = indexer.expire(Instant::now());
        if !is_complete && indexer.missing().next().is_none() {
            is_complete = true;
            tracing::info!("every kind is listed to its end");
        }
        feed.reports().vitals().gather(arrived);
        let due = arrived.filter(|_| is_complete).map(|since| pace.due(since));
        tokio::select! {
            biased;
            () = sleep_until(due) => {
                let since = arrived.take().unwrap_or_else(Instant::now);
                let outcome = indexer.update();
                if outcome.problems {
                    feed.reports().set_problems_here(indexer.problems_here());
                }
                // Also drops the times of changes that have no effect here: nobody waits for these.
                let changes = indexer.take_changes();
                if is_first || !outcome.is_empty() {
                    is_first = false;
                    feed.put(Update {
                        state: indexer.state().clone(),
                        hash_seed,
                        changes,
                        arrived: since,
                    });
                    changed();
                }
                pace.passed_on(Instant::now(), due > Some(since));
                tell(&feed, &indexer);
            }
            Some(arrivals) = events.next() => {
                let now = Instant::now();
                if take(&mut indexer, &feed, arrivals) {
                    arrived = arrived.or(Some(now));
                }
                tell(&feed, &indexer);
            }
            Ok(()) = machine.changed() => {
                let own = machine.borrow_and_update().clone();
                indexer.take_machine(own, scope.api_servers.clone());
                arrived = arrived.or(Some(Instant::now()));
            }
            () = sleep_until(expiry) => arrived = arrived.or(Some(Instant::now())),
        }
    }
}

fn watchers(client: &Client, scope: &Scope) -> impl Stream<Item = Arrival<Indexer>> + use<> {
    let (service, detached) = (&scope.service, presence::detached(&scope.service));
    let ours = format!("{SERVICE_NAME} in ({service},{detached})");
    let ours = ListParams::default().labels(&ours);
    let theirs = format!("!{SERVICE_PROXY_NAME},!{HEADLESS}");
    let theirs = ListParams::default().labels(&theirs);
    // The slice controller labels the slices of headless Services as such, so `theirs` does not select our own
    // slices.
    let presence = Api::namespaced(client.clone(), &scope.namespace);
    let services = Api::all(client.clone());
    let slices = Api::all(client.clone());
    let nodes = Api::all(client.clone());
    select_all([
        follow_kind(
            Kind::Services,
            services,
            theirs.clone(),
            Indexer::take_service,
        ),
        follow_kind(Kind::EndpointSlices, slices, theirs, Indexer::take_slice),
        follow_kind(
            Kind::Nodes,
            nodes,
            ListParams::default(),
            Indexer::take_node,
        ),
        follow_kind(Kind::Presence, presence, ours, Indexer::take_presence),
    ])
}

fn follow_kind<K>(
    kind: Kind,
    api: Api<K>,
    which: ListParams,
    take: fn(&mut Indexer, Event<K>, Instant) -> bool,
) -> BoxStream<'static, Arrival<Indexer>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    arrivals(kind.name(), api, which, move |indexer, event| {
        take(indexer, event, Instant::now())
    })
}

/// Applies what has arrived. Returns whether the state may have changed. A failed watch restarts by itself.
fn take(indexer: &mut Indexer, feed: &Feed, arrivals: Vec<Arrival<Indexer>>) -> bool {
    let mut follows = false;
    let at = Timestamp::now().as_second();
    for Arrival { kind, outcome } in arrivals {
        match outcome {
            Ok(Change { is_event, take }) => {
                feed.tell(|watching| {
                    watching.watches.note_answer(kind, is_event);
                    watching.last_event = is_event.then_some(at).or(watching.last_event);
                });
                follows |= take(indexer);
            }
            Err(error) => {
                indexer.fail(kind, Instant::now());
                feed.tell(|watching| watching.watches.note_error(kind, chain(&error)));
            }
        }
    }
    follows
}

fn tell(feed: &Feed, indexer: &Indexer) {
    feed.tell(|watching| {
        watching.missing = indexer
            .missing()
            .map(|kind| format!("the list of {}", kind.name()))
            .collect();
        watching.pending = indexer.pending();
        watching.objects = Kind::ALL
            .map(|kind| (kind.name(), indexer.count(kind)))
            .into();
    });
}
