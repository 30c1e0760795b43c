//! Connects the [`Election`] with the Leases by which edges show each other that they are alive.
//!
//! While an edge may announce addresses and its agent's loop runs, it renews its Lease every 0.7 s. It watches
//! the Leases of all edges. By another Lease it tells the controller what it announces. It writes no other object.
//! The Leases have a namespace of their own, so that the right to write them does not include the controller's.
//! Edges of the previous version keep theirs in the controller's namespace: those are read, but not written.

pub(crate) mod announced;
mod format;
mod own_node;
mod renewal;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::IpAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::select_all;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use self::format::{LABEL, LABEL_VALUE};
use self::format::{LEASE_PREFIX, LeaseContent, edge_of};
use self::own_node::OwnNode;
use self::renewal::{renew, write_drained};
use super::list_watch::{Event, WatchError, list_watch, list_watch_with};
use super::request_errors::{Purpose, RequestErrors};
use super::schema::{Lease, NodeMetadata};
use super::worker::Worker;
use super::{FollowError, Watchers};
use crate::announce::{Candidates, Election, ElectionResult, LeaseNamespace, LoopHeartbeat, Mac};
use crate::chain::chain;
use crate::first_few::first_few;
use crate::healthz::{AnnouncedServices, tell_if_new};
use crate::index::objects::ObjectName;
use crate::timer::sleep_until;

/// A Node with this label gets no traffic from outside the cluster, so it announces nothing.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Pause before a watch of Leases starts again, however often it fails. It has to be back within a second, and
/// there are only as many watchers as edges.
const WATCH_PAUSE: Duration = Duration::from_millis(500);
/// Number of edges above which their Leases load the API server. Each edge receives each renewal: 30 edges
/// cause 1300 events per second, and the number grows with the square.
const MANY_EDGES: usize = 30;

/// The identity of this edge in the election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Name of its Node, or of the machine if it is no Node.
    pub name: String,
    /// Namespace of the edges' Leases.
    pub namespace: String,
    /// Namespace of the controller, where edges of the previous version keep their Leases.
    pub shared_namespace: String,
}

/// What the agent has to announce, once it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announceable {
    /// The addresses to announce, each with the edges that may announce it.
    pub wanted: BTreeMap<IpAddr, Candidates>,
    /// Addresses by which endpoints name this machine's Node.
    pub node_addresses: BTreeSet<IpAddr>,
    /// MACs by which this machine announces addresses. Empty if it answers on no interface; it then announces
    /// nothing.
    pub macs: BTreeSet<Mac>,
    /// Labels that this machine's Node must have. `None` if it must not announce at all.
    pub node_selector: Option<BTreeMap<String, String>>,
}

impl Announceable {
    /// Returns whether a Node with these labels may announce addresses. `None` stands for a machine that is no Node.
    fn may_announce(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let Some(selector) = self
            .node_selector
            .as_ref()
            .filter(|_| !self.macs.is_empty())
        else {
            return false;
        };
        let Some(labels) = labels else {
            return selector.is_empty();
        };
        let mut asked = selector.iter();
        !labels.contains_key(EXCLUDED) && asked.all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// What the agent tells the election.
#[derive(Debug)]
pub struct AgentSignals {
    /// What to announce; `None` until the agent serves.
    pub shown: watch::Receiver<Option<Announceable>>,
    /// Announcements heard from other machines.
    pub claims: mpsc::UnboundedReceiver<Claims>,
    /// Shows whether the agent's loop runs.
    pub heartbeat: LoopHeartbeat,
    /// Wishes to drain this edge, or to end that.
    pub drains: mpsc::UnboundedReceiver<DrainRequest>,
}

/// A wish to drain this edge, or to end that. Its Lease says so from then on, also to the agent's next start.
#[derive(Debug)]
pub struct DrainRequest {
    /// Whether the edge should be drained.
    pub is_drained: bool,
    /// Gets the outcome once the Lease is written, or why it is not.
    pub written: oneshot::Sender<Result<(), String>>,
}

/// Announcements by other machines of addresses that this machine announces too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claims {
    /// Heard while this machine was answering.
    Heard(Vec<(IpAddr, Mac)>),
    /// Heard while this machine had stopped answering. The others have these addresses now.
    Lost(BTreeSet<IpAddr>),
}

/// Starts to take part in the election, in a thread of its own. `ended` is called if that thread ends, which
/// happens only with the agent or by a panic.
///
/// # Errors
///
/// When no client or no thread can be made.
pub fn start(
    watchers: &Watchers,
    announced: BTreeSet<IpAddr>,
    signals: AgentSignals,
    tell: impl Fn(ElectionResult) + Send + 'static,
    ended: impl FnMut(&'static str) + Send + 'static,
) -> Result<(), FollowError> {
    let candidate = Candidate {
        name: watchers.identity.node_name.clone(),
        namespace: watchers.identity.lease_namespace.clone(),
        shared_namespace: watchers.identity.namespace.clone(),
    };
    let request_errors = watchers.feed.request_errors().clone();
    let services = watchers.feed.reports().follow_announced();
    // Not in the watchers' thread: a list of thousands of objects keeps that one busy for longer than a Lease lasts.
    let worker = Worker::new(watchers.server.clone())?;
    worker.start("leases", ended, move |client| {
        follow(
            client,
            candidate,
            announced,
            signals,
            services,
            request_errors,
            tell,
        )
    })?;
    Ok(())
}

/// Takes part in the election for ever. Calls `tell` when this edge should announce something else. Counts
/// failed requests in `request_errors`.
///
/// `announced` are the addresses that an earlier agent left announced, `services` those that this machine answers for.
pub async fn follow(
    client: Client,
    candidate: Candidate,
    announced: BTreeSet<IpAddr>,
    mut signals: AgentSignals,
    services: watch::Receiver<AnnouncedServices>,
    request_errors: RequestErrors,
    tell: impl Fn(ElectionResult),
) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), &candidate.namespace);
    let shared: Api<Lease> = Api::namespaced(client.clone(), &candidate.shared_namespace);
    let noted = |purpose, failed: Option<&WatchError>| {
        let outcome = failed.map_or(Ok(()), |error| Err(chain(error)));
        request_errors.take(purpose, outcome);
    };
    let edges = ListParams::default().labels(&format!("{LABEL}={LABEL_VALUE}"));
    let namespaces = [
        (LeaseNamespace::Own, leases.clone()),
        (LeaseNamespace::Shared, shared),
    ];
    let events = namespaces.map(|(namespace, leases)| {
        let events = list_watch_with(leases, edges.clone(), || iter::repeat(WATCH_PAUSE));
        events.map(move |event| (namespace, event))
    });
    // Both namespaces count as one request, which works again once both do.
    let mut failing = BTreeSet::new();
    let mut events = select_all(events).inspect(|(namespace, outcome)| {
        match outcome {
            Ok(_) => failing.remove(namespace),
            Err(_) => failing.insert(*namespace),
        };
        if outcome.is_err() || failing.is_empty() {
            noted(Purpose::LeaseWatch, outcome.as_ref().err());
        }
    });
    let own = ListParams::default().fields(&format!("metadata.name={}", candidate.name));
    let mut nodes = list_watch(Api::<NodeMetadata>::all(client), own)
        .inspect(|outcome| noted(Purpose::NodeWatch, outcome.as_ref().err()));
    let mut node = OwnNode::default();
    let (renewals, to_renew) = watch::channel(None);
    let mut telling = pin!(announced::tell(
        leases.clone(),
        candidate.name.clone(),
        to_renew.clone(),
        services,
        request_errors.clone()
    ));
    let mut renewing = pin!(renew(
        leases.clone(),
        candidate.name.clone(),
        to_renew,
        signals.heartbeat,
        request_errors.clone()
    ));
    let mut election = Election::new(candidate.name.clone(), announced.clone());
    let (mut told, mut is_drained) = (announced, false);
    let mut crowd = Crowd::default();
    signals.shown.mark_changed();
    loop {
        let deadline = election.deadline(Instant::now());
        tokio::select! {
            () = &mut renewing => return,
            () = &mut telling => return,
            Some(claims) = signals.claims.recv() => match claims {
                Claims::Heard(claims) => {
                    let now = Instant::now();
                    for (address, mac) in claims {
                        election.claim(address, mac, now);
                    }
                }
                Claims::Lost(addresses) => {
                    election.lose(&addresses);
                    told.retain(|address| !addresses.contains(address));
                }
            },
            Ok(()) = signals.shown.changed() => {
                if let Some(shown) = &*signals.shown.borrow_and_update() {
                    election.want(shown.wanted.clone());
                }
            }
            Some(asked) = signals.drains.recv() => {
                let (leases, edge) = (leases.clone(), candidate.name.clone());
                tokio::spawn(async move {
                    let written = write_drained(&leases, &edge, asked.is_drained).await;
                    // This fails only if nobody waits for the outcome any more.
                    let _ = asked.written.send(written);
                });
            }
            // A watch that failed restarts by itself.
            Some((namespace, event)) = events.next() => if let Ok(event) = event {
                take(&mut election, namespace, event);
            },
            Some(event) = nodes.next() => if let Ok(event) = event {
                node.take(event);
            },
            () = sleep_until(deadline) => {}
        }
        crowd.look(election.edges());
        // An edge that serves nothing yet is no candidate for any address.
        if let Some(shown) = &*signals.shown.borrow()
            && let Some(labels) = node.labels()
        {
            let may_announce = shown.may_announce(labels) && !election.is_drained();
            election.set_eligible(may_announce);
            let renewal = may_announce.then(|| LeaseContent {
                addresses: shown.node_addresses.clone(),
                macs: shown.macs.clone(),
                owner: node.as_owner(),
            });
            tell_if_new(&renewals, renewal);
        }
        let result = election.step(Instant::now());
        warn_of_strangers(&result.strangers);
        let was_drained = std::mem::replace(&mut is_drained, result.is_drained);
        if result.addresses != told || !result.again.is_empty() || is_drained != was_drained {
            told.clone_from(&result.addresses);
            tell(result);
        }
    }
}

/// Warns of machines that announce our addresses but are not known as edges.
pub(crate) fn warn_of_strangers(strangers: &[(IpAddr, Mac)]) {
    if strangers.is_empty() {
        return;
    }
    let addresses = strangers.iter().map(|(address, _)| address);
    let macs: BTreeSet<&Mac> = strangers.iter().map(|(_, mac)| mac).collect();
    tracing::warn!(
        addresses = first_few(addresses),
        macs = first_few(macs),
        "another machine announces these addresses too"
    );
}

/// Warns when there are too many edges, once each time the number becomes too large.
#[derive(Debug, Default)]
struct Crowd {
    are_many: bool,
}

impl Crowd {
    fn look(&mut self, edges: usize) {
        let were_many = std::mem::replace(&mut self.are_many, edges > MANY_EDGES);
        if self.are_many && !were_many {
            tracing::warn!(
                edges,
                "so many Leases are a load for the API server: choose fewer edges by announce.node_selector, \
                 or announce by BGP"
            );
        }
    }
}

/// Passes an event about the Leases of edges on to the election.
fn take(election: &mut Election, namespace: LeaseNamespace, event: Event<Lease>) {
    let edge_of_name =
        |lease: &ObjectName| lease.name.strip_prefix(LEASE_PREFIX).map(str::to_owned);
    match event {
        Event::Init | Event::Watching => {}
        // An unreadable Lease renews nothing. The edge stays until its last renewal expires.
        Event::InitApply(lease) | Event::Apply(lease) => {
            let edge = lease.ok().and_then(|lease| edge_of(namespace, &lease));
            if let Some(edge) = edge {
                election.see(edge, Instant::now());
            }
        }
        Event::InitDone(leases) => {
            election.retain(namespace, &leases.iter().filter_map(edge_of_name).collect());
        }
        Event::Delete(lease) => {
            if let Some(edge) = edge_of_name(&lease) {
                election.forget(namespace, &edge);
            }
        }
    }
}
