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

use super::cluster_feed::{ClusterFeed, Update};
use super::cluster_objects::{ClusterObjects, WatchedKind};
use super::list_watch::Event;
use super::machine_tracker;
use super::update_pause::UpdatePause;
use super::watch_results::{WatchAnswer, WatchResult, watch_results};
use crate::chain::chain;
use crate::index::objects::{HEADLESS, SERVICE_NAME, SERVICE_PROXY_NAME};
use crate::timer::sleep_until;

/// Most events applied before a state is computed.
const EVENTS_AT_ONCE: usize = 1024;

/// Where Guideway's own objects are, and the addresses of the API server.
#[derive(Clone, Debug)]
pub(super) struct WatchScope {
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
    scope: WatchScope,
    mut objects: ClusterObjects,
    hash_seed: u64,
    feed: ClusterFeed,
    changed: impl Fn(),
) {
    let mut events = watchers(&client, &scope).ready_chunks(EVENTS_AT_ONCE);
    let mut machine = feed.machine();
    objects.take_machine(
        machine.borrow_and_update().clone(),
        scope.api_servers.clone(),
    );
    let mut pause = UpdatePause::default();
    // When the first of the changes arrived that were not passed on yet.
    let mut arrived: Option<Instant> = None;
    let mut is_first = true;
    let mut is_complete = false;
    loop {
        let expiry = objects.expire(Instant::now());
        if !is_complete && objects.missing().next().is_none() {
            is_complete = true;
            tracing::info!("every kind is listed to its end");
        }
        feed.reports().machine_health().gather(arrived);
        let due = arrived
            .filter(|_| is_complete)
            .map(|since| pause.due(since));
        tokio::select! {
            biased;
            () = sleep_until(due) => {
                let since = arrived.take().unwrap_or_else(Instant::now);
                let changes = objects.update();
                if changes.problems {
                    feed.reports().set_problems_here(objects.problems_here());
                    feed.reports().set_problems_of_all(objects.problems_of_all());
                }
                // Also drops the times of changes that have no effect here: nobody waits for these.
                let change_times = objects.take_change_times();
                if is_first || !changes.is_empty() {
                    is_first = false;
                    feed.put(Update {
                        state: objects.state().clone(),
                        hash_seed,
                        change_times,
                        arrived: since,
                    });
                    changed();
                }
                pause.passed_on(Instant::now(), due > Some(since));
                tell(&feed, &objects);
            }
            Some(watch_results) = events.next() => {
                let now = Instant::now();
                if take(&mut objects, &feed, watch_results) {
                    arrived = arrived.or(Some(now));
                }
                tell(&feed, &objects);
            }
            Ok(()) = machine.changed() => {
                let own = machine.borrow_and_update().clone();
                objects.take_machine(own, scope.api_servers.clone());
                arrived = arrived.or(Some(Instant::now()));
            }
            () = sleep_until(expiry) => arrived = arrived.or(Some(Instant::now())),
        }
    }
}

fn watchers(
    client: &Client,
    scope: &WatchScope,
) -> impl Stream<Item = WatchResult<ClusterObjects>> + use<> {
    let (service, detached) = (&scope.service, machine_tracker::detached(&scope.service));
    let ours = format!("{SERVICE_NAME} in ({service},{detached})");
    let ours = ListParams::default().labels(&ours);
    let theirs = format!("!{SERVICE_PROXY_NAME},!{HEADLESS}");
    let theirs = ListParams::default().labels(&theirs);
    // The slice controller labels the slices of headless Services as such, so `theirs` does not select our own
    // slices.
    let machines = Api::namespaced(client.clone(), &scope.namespace);
    let services = Api::all(client.clone());
    let slices = Api::all(client.clone());
    let nodes = Api::all(client.clone());
    select_all([
        follow_kind(
            WatchedKind::Services,
            services,
            theirs.clone(),
            ClusterObjects::take_service,
        ),
        follow_kind(
            WatchedKind::EndpointSlices,
            slices,
            theirs,
            ClusterObjects::take_slice,
        ),
        follow_kind(
            WatchedKind::Nodes,
            nodes,
            ListParams::default(),
            ClusterObjects::take_node,
        ),
        follow_kind(
            WatchedKind::GuidewayMachines,
            machines,
            ours,
            ClusterObjects::take_machines,
        ),
    ])
}

fn follow_kind<K>(
    kind: WatchedKind,
    api: Api<K>,
    which: ListParams,
    take: fn(&mut ClusterObjects, Event<K>, Instant) -> bool,
) -> BoxStream<'static, WatchResult<ClusterObjects>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    watch_results(kind.name(), api, which, move |objects, event| {
        take(objects, event, Instant::now())
    })
}

/// Applies what has arrived. Returns whether the state may have changed. A failed watch restarts by itself.
fn take(
    objects: &mut ClusterObjects,
    feed: &ClusterFeed,
    watch_results: Vec<WatchResult<ClusterObjects>>,
) -> bool {
    let mut follows = false;
    let at = Timestamp::now().as_second();
    for WatchResult { kind, outcome } in watch_results {
        match outcome {
            Ok(WatchAnswer { is_event, take }) => {
                feed.update_status(|watchers| {
                    watchers.watches.note_answer(kind, is_event);
                    watchers.last_event = is_event.then_some(at).or(watchers.last_event);
                });
                follows |= take(objects);
            }
            Err(error) => {
                objects.fail(kind, Instant::now());
                feed.update_status(|watchers| watchers.watches.note_error(kind, chain(&error)));
            }
        }
    }
    follows
}

fn tell(feed: &ClusterFeed, objects: &ClusterObjects) {
    feed.update_status(|watchers| {
        watchers.missing = objects
            .missing()
            .map(|kind| format!("the list of {}", kind.name()))
            .collect();
        watchers.pending = objects.pending();
        watchers.objects = WatchedKind::ALL
            .map(|kind| (kind.name(), objects.count(kind)))
            .into();
    });
}
