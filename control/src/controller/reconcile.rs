//! The main loop of the controller: follows the API and writes. One task owns all state.
//!
//! The first change is acted on at once, the changes of a storm together. Nothing is decided before all kinds
//! were listed completely, or while another controller leads. A write that fails, or that somebody undoes, is
//! repeated with growing pauses.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, select_all};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::watch as channel;
use tokio::time::Instant;

use super::convert::{self, Classes, ObservedPool};
use super::crd::Pool;
use super::lease::LeadershipTerm;
use super::metrics::Values;
use super::object_cache::Versioned;
use super::planner::Planner;
use super::secrets;
use super::unclaimed::Unclaimed;
use super::write::{WriteError, Writer};
use super::write_scheduler::WriteScheduler;
use crate::chain::chain;
use crate::index::objects::{API_SERVICE, SERVICE_NAME};
use crate::kubernetes::leases::{self, announced};
use crate::kubernetes::schema::{Namespace, Service};
use crate::kubernetes::watch_results::{WatchAnswer, WatchResult, watch_results};
use crate::timer::sleep_until;

/// Most events applied before a decision.
const EVENTS_AT_ONCE: usize = 1024;
/// Most writes at a time that only tell who announces addresses. When an edge is lost, all of its addresses move.
const ANNOUNCERS_AT_ONCE: usize = 100;
/// Pause after a failure to read or make a Secret.
const SECRETS_PAUSE: Duration = Duration::from_secs(5);

/// Where Guideway's own objects and the API server are, and which Services are ours.
pub(super) struct ControllerScope {
    /// Namespace of Guideway's own objects.
    pub(super) namespace: String,
    /// Name of Guideway's headless Service.
    pub(super) service: String,
    /// Namespace of the edges' Leases.
    pub(super) lease_namespace: String,
    /// Addresses of the API server.
    pub(super) api_server: BTreeSet<IpAddr>,
    /// Selects the Services that are ours.
    pub(super) classes: Classes,
}

/// Follows the API and writes, for ever.
pub(super) async fn follow(
    client: Client,
    scope: ControllerScope,
    secrets: Api<Secret>,
    writer: Writer,
    mut terms: channel::Receiver<LeadershipTerm>,
    values: channel::Sender<Values>,
) -> Infallible {
    let mut events = select_all(watches(&client, &scope)).ready_chunks(EVENTS_AT_ONCE);
    let mut planner = Planner::new(scope.api_server);
    let classes = scope.classes;
    let mut schedule = WriteScheduler::default();
    let mut unclaimed = Unclaimed::default();
    let mut term = LeadershipTerm::default();
    // When to make sure of the Secrets. Agents wait for them, so this does not wait for the lists.
    let mut secrets_due = Some(Instant::now());
    loop {
        let leads = terms.borrow().is_leading();
        let is_ready = leads && planner.missing().is_empty();
        tokio::select! {
            Some(watch_results) = events.next() => values.send_modify(|values| {
                for WatchResult { kind, outcome } in watch_results {
                    match outcome {
                        Ok(WatchAnswer { is_event, take }) => {
                            values.watches.note_answer(kind, is_event);
                            schedule.dirty |= take(&mut planner);
                        }
                        Err(error) => values.watches.note_error(kind, chain(&error)),
                    }
                }
                values.missing = planner.missing();
            }),
            Ok(()) = terms.changed() => {
                let before = std::mem::replace(&mut term, *terms.borrow_and_update());
                if term.number != before.number {
                    planner.forget();
                    schedule = WriteScheduler::default();
                    schedule.dirty = true;
                    unclaimed = Unclaimed::default();
                }
                if !term.is_leading() {
                    // Only the leader reports these values.
                    values.send_modify(Values::forget);
                }
            }
            () = sleep_until(secrets_due), if leads => {
                let are_made = secrets::ensure_all(&secrets, &writer).await;
                secrets_due = (!are_made).then(|| Instant::now() + SECRETS_PAUSE);
            }
            () = sleep_until(planner.announcements.due()), if is_ready => {
                schedule.dirty |= planner.announcements.settle(Instant::now());
            }
            () = sleep_until(unclaimed.due()), if is_ready => {
                writer.publish(unclaimed.take_due(Instant::now())).await;
            }
            () = schedule.due(), if is_ready => {
                let begun = Instant::now();
                let more = act(&mut planner, &classes, &writer, &mut schedule, &values).await;
                schedule.done(begun, more);
                unclaimed.set(planner.unclaimed(), begun);
            }
        }
    }
}

/// Decides and writes. Returns whether another round must follow.
async fn act(
    planner: &mut Planner,
    classes: &Classes,
    writer: &Writer,
    schedule: &mut WriteScheduler,
    values: &channel::Sender<Values>,
) -> bool {
    let plan = planner.plan(&now());
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
        if !schedule.allows(&object, digest) {
            uncounted.push(name);
            continue;
        }
        let written = writer.pool(&name, &write).await;
        count(values, object.0, written.is_ok());
        match written {
            Ok(pool) => {
                more = true;
                schedule.wrote(object, digest);
                planner.refusals.end(&name);
                if let Some(pool) = pool {
                    planner.pools.take_answer(shown(&pool));
                }
            }
            Err(WriteError::NotLeading) => return more,
            Err(error) => {
                schedule.fail(object, &chain(&error), error.asked_pause());
                // Read it again: the watch shows the change too, except after the storage was restored from a backup.
                if error.is_conflict()
                    && let Ok(pool) = writer.read_pool(&name).await
                {
                    planner.pools.take_answer(shown(&pool));
                }
                if let Some(why) = error.refusal() {
                    more |= planner.refusals.note(name.clone(), why);
                }
                uncounted.push(name);
            }
        }
    }
    let services = plan.services.into_iter();
    let services = services.map(|(name, write)| (name, write.digest(), write));
    let services = services.filter(|(name, digest, write)| {
        // A Service gets no address that its pool does not count yet.
        schedule.allows(&("service", name.clone()), *digest)
            && !planner.has_any(&uncounted, &write.given)
    });
    let (late, first): (Vec<_>, Vec<_>) =
        services.partition(|(_, _, write)| write.is_about_announcers);
    let late = late.into_iter().take(ANNOUNCERS_AT_ONCE);
    let mut writes = writer.services(first.into_iter().chain(late).collect());
    while let Some((name, digest, written)) = writes.next().await {
        let object = ("service", name.clone());
        count(values, object.0, written.is_ok());
        match written {
            Ok(service) => {
                more = true;
                schedule.wrote(object, digest);
                let shown = Versioned::new(&service.metadata, classes.service(&service));
                planner.services.take_answer(shown);
            }
            Err(WriteError::NotLeading) => return more,
            Err(error) => {
                schedule.fail(object, &chain(&error), error.asked_pause());
            }
        }
    }
    writer.publish(plan.events).await;
    more || plan.has_more
}

fn shown(pool: &Pool) -> Versioned<ObservedPool> {
    Versioned::new(&pool.metadata, convert::pool(pool))
}

fn count(values: &channel::Sender<Values>, object: &'static str, succeeded: bool) {
    values.send_modify(|values| *values.writes.entry((object, succeeded)).or_default() += 1);
}

/// Returns the current time as conditions have it: RFC 3339, in seconds.
fn now() -> String {
    let seconds = Timestamp::now().as_second();
    Timestamp::from_second(seconds)
        .unwrap_or_default()
        .to_string()
}

fn watches(
    client: &Client,
    scope: &ControllerScope,
) -> [BoxStream<'static, WatchResult<Planner>>; 7] {
    let classes = scope.classes.clone();
    let all = ListParams::default;
    let (namespace, name) = API_SERVICE;
    let of_api_servers = all().fields(&format!("metadata.name={name}"));
    let of_edges = all().labels(&format!("{}={}", leases::LABEL, announced::LABEL_VALUE));
    let of_ours = all().labels(&format!("{SERVICE_NAME}={}", scope.service));
    [
        watch_results(
            "service",
            Api::all(client.clone()),
            all(),
            move |planner: &mut Planner, event| {
                let convert = |service: &Service| classes.service(service);
                planner.services.take("service", event, convert)
            },
        ),
        watch_results(
            "pool",
            Api::all(client.clone()),
            all(),
            |planner: &mut Planner, event| planner.pools.take("pool", event, convert::pool),
        ),
        watch_results(
            "node",
            Api::all(client.clone()),
            all(),
            |planner: &mut Planner, event| planner.nodes.take("node", event, convert::node),
        ),
        watch_results(
            "endpointslice",
            Api::namespaced(client.clone(), namespace),
            of_api_servers,
            |planner: &mut Planner, event| {
                let api_servers = &mut planner.api_servers;
                api_servers.take("endpointslice", event, convert::api_servers)
            },
        ),
        watch_results(
            "endpointslice",
            Api::namespaced(client.clone(), &scope.namespace),
            of_ours,
            |planner: &mut Planner, event| {
                planner.edges.take("endpointslice", event, convert::edges)
            },
        ),
        watch_results(
            "namespace",
            Api::all(client.clone()),
            all(),
            |planner: &mut Planner, event| {
                let labels = |namespace: &Namespace| convert::labels(&namespace.metadata);
                planner.namespaces.take("namespace", event, labels)
            },
        ),
        watch_results(
            "lease",
            Api::namespaced(client.clone(), &scope.lease_namespace),
            of_edges,
            |planner: &mut Planner, event| {
                planner.announcements.take(event, Instant::now());
                false
            },
        ),
    ]
}
