//! The Leases by which edges tell each other that they live, and the [`Election`] over them.
//!
//! An edge renews its Lease each 0.7 s while it may announce addresses and its agent's loop runs, and watches those
//! of all edges. It reads them no more often than they change, and writes no other object. They are in a namespace
//! of their own, so that who may write them may not write the controller's. Edges of the version before have theirs
//! in the controller's namespace, where they are read and not written.

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
use tokio::sync::{mpsc, watch};

use self::format::{LABEL, LABEL_VALUE, LEASE_PREFIX, edge_of};
use self::own_node::OwnNode;
use self::renewal::{Renewal, renew};
use super::list_watch::{Event, WatchError, list_watch, list_watch_with};
use super::request_errors::{Purpose, RequestErrors};
use super::schema::{Lease, NodeMetadata};
use super::worker::Worker;
use super::{FollowError, Watchers};
use crate::announce::{Candidates, Election, Holdings, Home, Mac, Pulse};
use crate::chain::chain;
use crate::first_few::first_few;
use crate::healthz::tell_if_new;
use crate::index::objects::ObjectName;
use crate::timer::sleep_until;

/// A Node with this label gets no traffic from outside the cluster.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// How long to wait before a watch of Leases begins anew, however often it fails: it has to be back within a second,
/// and there are no more watchers than edges.
const WATCH_PAUSE: Duration = Duration::from_millis(500);
/// Edges beyond which their Leases are a load: each is told of each renewal, so that the API server sends
/// 1300 events in a second to 30 edges and grows with the square.
const MANY_EDGES: usize = 30;

/// Who this edge is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Name of its Node, or of the machine if it is none.
    pub name: String,
    /// Namespace of the edges' Leases.
    pub namespace: String,
    /// Namespace where edges of the version before have them, beside the controller's.
    pub shared_namespace: String,
}

/// What the agent shows: what there is to announce, once it serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announceable {
    /// Addresses, and who may have them.
    pub wanted: BTreeMap<IpAddr, Candidates>,
    /// Addresses by which endpoints name this machine's Node.
    pub node_addresses: BTreeSet<IpAddr>,
    /// MACs by which addresses are announced from here; none where nobody who asks there is answered.
    pub macs: BTreeSet<Mac>,
    /// Labels that this machine's Node must have; nothing where it is to announce none at all.
    pub node_selector: Option<BTreeMap<String, String>>,
}

impl Announceable {
    /// Tells whether a Node with these labels may announce addresses; no labels for a machine that is no Node.
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

/// What the election hears from the agent.
#[derive(Debug)]
pub struct AgentSignals {
    /// Nothing until the agent serves.
    pub shown: watch::Receiver<Option<Announceable>>,
    /// What other machines have announced.
    pub claims: mpsc::UnboundedReceiver<Claims>,
    /// Whether the agent's loop runs.
    pub pulse: Pulse,
}

/// What other machines have announced of the addresses that this one announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claims {
    /// They were heard while this one answered, too.
    Heard(Vec<(IpAddr, Mac)>),
    /// They were heard while this one had fallen silent, and so have the addresses.
    Lost(BTreeSet<IpAddr>),
}

/// Begins to take part in the election, in a thread of its own; `ended` is called if that ends, which it does
/// with the agent or by a panic only.
///
/// # Errors
///
/// When there is no client for the API, or no thread.
pub fn start(
    watchers: &Watchers,
    announced: BTreeSet<IpAddr>,
    signals: AgentSignals,
    tell: impl Fn(Holdings) + Send + 'static,
    ended: impl FnMut(&'static str) + Send + 'static,
) -> Result<(), FollowError> {
    let candidate = Candidate {
        name: watchers.identity.node_name.clone(),
        namespace: watchers.identity.lease_namespace.clone(),
        shared_namespace: watchers.identity.namespace.clone(),
    };
    let request_errors = watchers.feed.request_errors().clone();
    // Not in the watchers' thread, which a list of thousands of objects keeps busy for longer than a Lease lasts.
    let worker = Worker::new(watchers.server.clone())?;
    worker.start("leases", ended, move |client| {
        follow(client, candidate, announced, signals, request_errors, tell)
    })?;
    Ok(())
}

/// Takes part in the election for ever; calls `tell` when this edge should announce something else, and counts
/// the requests that fail.
///
/// Begins with what an earlier agent has left announced.
pub async fn follow(
    client: Client,
    candidate: Candidate,
    announced: BTreeSet<IpAddr>,
    mut signals: AgentSignals,
    request_errors: RequestErrors,
    tell: impl Fn(Holdings),
) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), &candidate.namespace);
    let shared: Api<Lease> = Api::namespaced(client.clone(), &candidate.shared_namespace);
    let noted = |purpose, failed: Option<&WatchError>| {
        let outcome = failed.map_or(Ok(()), |error| Err(chain(error)));
        request_errors.take(purpose, outcome);
    };
    let edges = ListParams::default().labels(&format!("{LABEL}={LABEL_VALUE}"));
    let places = [(Home::Own, leases.clone()), (Home::Shared, shared)];
    let events = places.map(|(home, leases)| {
        let events = list_watch_with(leases, edges.clone(), || iter::repeat(WATCH_PAUSE));
        events.map(move |event| (home, event))
    });
    // They count as one request, which works once it does in both places.
    let mut failing = BTreeSet::new();
    let mut events = select_all(events).inspect(|(home, outcome)| {
        match outcome {
            Ok(_) => failing.remove(home),
            Err(_) => failing.insert(*home),
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
    let mut renewing = pin!(renew(
        leases,
        candidate.name.clone(),
        to_renew,
        signals.pulse,
        request_errors.clone()
    ));
    let mut election = Election::new(candidate.name.clone(), announced.clone());
    let mut told = announced;
    let mut crowd = Crowd::default();
    signals.shown.mark_changed();
    loop {
        let deadline = election.deadline(Instant::now());
        tokio::select! {
            () = &mut renewing => return,
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
            // What failed is begun again.
            Some((home, event)) = events.next() => if let Ok(event) = event {
                take(&mut election, home, event);
            },
            Some(event) = nodes.next() => if let Ok(event) = event {
                node.take(event);
            },
            () = sleep_until(deadline) => {}
        }
        crowd.look(election.edges());
        // An edge that serves nothing yet counts for no address.
        if let Some(shown) = &*signals.shown.borrow()
            && let Some(labels) = node.labels()
        {
            let may_announce = shown.may_announce(labels);
            election.set_eligible(may_announce);
            let renewal = may_announce.then(|| Renewal {
                addresses: shown.node_addresses.clone(),
                macs: shown.macs.clone(),
                owner: node.as_owner(),
            });
            tell_if_new(&renewals, renewal);
        }
        let holdings = election.step(Instant::now());
        warn_of_strangers(&holdings.strangers);
        if holdings.addresses != told || !holdings.again.is_empty() {
            told.clone_from(&holdings.addresses);
            tell(holdings);
        }
    }
}

/// Tells of machines that are no edges, or not known as such, and announce addresses too.
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

/// Warns of many edges, once each time that they become many.
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

/// Hands what is told of the Leases of edges on to the election.
fn take(election: &mut Election, home: Home, event: Event<Lease>) {
    let edge_of_name =
        |lease: &ObjectName| lease.name.strip_prefix(LEASE_PREFIX).map(str::to_owned);
    match event {
        Event::Init | Event::Watching => {}
        // A Lease that cannot be read renews nothing, and takes nothing away before its time is over.
        Event::InitApply(lease) | Event::Apply(lease) => {
            let edge = lease.ok().and_then(|lease| edge_of(home, &lease));
            if let Some(edge) = edge {
                election.see(edge, Instant::now());
            }
        }
        Event::InitDone(leases) => {
            election.retain(home, &leases.iter().filter_map(edge_of_name).collect());
        }
        Event::Delete(lease) => {
            if let Some(edge) = edge_of_name(&lease) {
                election.forget(home, &edge);
            }
        }
    }
}
