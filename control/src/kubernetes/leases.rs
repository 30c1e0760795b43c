//! The Leases by which edges tell each other that they live, and the [`Election`] over them.
//!
//! An edge renews its Lease each 0.7 s while it may announce addresses and its agent's loop runs, and watches those
//! of all edges. It reads them no more often than they change, and writes no other object. They are in a namespace
//! of their own, so that who may write them may not write the controller's. Edges of the version before have theirs
//! in the controller's namespace, where they are read and not written.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::select_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::{mpsc, watch};

use super::list_watch::{Event, WatchError, list_watch, list_watch_with};
use super::request_errors::{Purpose, RequestErrors};
use super::schema::{Lease, LeaseSpec, NodeMetadata, micro_time};
use super::worker::{self, EventLoop};
use super::{FollowError, Watchers, client};
use crate::announce::election::{DURATION, RENEWAL};
use crate::announce::{Candidates, Edge, Election, Holdings, Home, Mac, Pulse};
use crate::chain::chain;
use crate::first_few::first_few;
use crate::healthz::tell_if_new;
use crate::index::objects::ObjectName;
use crate::timer::sleep_until;

/// What the name of an edge's Lease begins with, before the edge's own; the chart's admission policy has it too.
const LEASE_PREFIX: &str = "guideway-edge-";
/// Label of edges' Leases, which tells them from others in the namespace.
const LABEL: &str = "guideway.dev/lease";
const LABEL_VALUE: &str = "edge";
/// Annotation with the addresses by which endpoints name the edge's Node.
const ADDRESSES: &str = "guideway.dev/node-addresses";
/// Annotation with the MACs by which the edge announces addresses.
const MACS: &str = "guideway.dev/macs";
/// A Node with this label gets no traffic from outside the cluster.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// How long to wait before a watch of Leases begins anew, however often it fails: it has to be back within a second,
/// and there are no more watchers than edges.
const WATCH_PAUSE: Duration = Duration::from_millis(500);
/// How long a renewal may take before it is tried anew.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How old the last sign of life of the agent's loop may be for a renewal. Longer than the loop is busy with one
/// change, and short enough for another edge to have taken over once this one answers nobody any more:
/// [`xdp_prog::abi::ANNOUNCE_NS`] after the same sign.
const FRESH: Duration = Duration::from_millis(500);
/// How often a loop that gives none is looked at.
const FRESH_PAUSE: Duration = Duration::from_millis(50);
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
    heard: AgentSignals,
    tell: impl Fn(Holdings) + Send + 'static,
    ended: impl FnMut(&'static str) + Send + 'static,
) -> Result<(), FollowError> {
    let candidate = Candidate {
        name: watchers.identity.node_name.clone(),
        namespace: watchers.identity.lease_namespace.clone(),
        shared_namespace: watchers.identity.namespace.clone(),
    };
    let server = watchers.server.clone();
    let runtime = EventLoop::new()?;
    let client = {
        let _context = runtime.enter();
        client::client(server)?
    };
    let request_errors = watchers.feed.request_errors().clone();
    // Not in the watchers' thread, which a list of thousands of objects keeps busy for longer than a Lease lasts.
    worker::start("leases", ended, move || {
        runtime.block_on(follow(
            client,
            candidate,
            announced,
            heard,
            request_errors,
            tell,
        ));
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
    mut heard: AgentSignals,
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
    let mut events = select_all(events).inspect(|(home, heard)| {
        match heard {
            Ok(_) => failing.remove(home),
            Err(_) => failing.insert(*home),
        };
        if heard.is_err() || failing.is_empty() {
            noted(Purpose::LeaseWatch, heard.as_ref().err());
        }
    });
    let own = ListParams::default().fields(&format!("metadata.name={}", candidate.name));
    let mut nodes = list_watch(Api::<NodeMetadata>::all(client), own)
        .inspect(|heard| noted(Purpose::NodeWatch, heard.as_ref().err()));
    let mut node = OwnNode::default();
    let (renewals, to_renew) = watch::channel(None);
    let mut renewing = std::pin::pin!(renew(
        leases,
        candidate.name.clone(),
        to_renew,
        heard.pulse,
        request_errors.clone()
    ));
    let mut election = Election::new(candidate.name.clone(), announced.clone());
    let mut told = announced;
    let mut crowd = Crowd::default();
    heard.shown.mark_changed();
    loop {
        let deadline = election.deadline(Instant::now());
        tokio::select! {
            () = &mut renewing => return,
            Some(claims) = heard.claims.recv() => match claims {
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
            Ok(()) = heard.shown.changed() => {
                if let Some(shown) = &*heard.shown.borrow_and_update() {
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
        if let Some(shown) = &*heard.shown.borrow()
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

/// Reads who lives by a Lease. One of another name than its holder's counts for nothing: who may write one Lease would
/// speak for all edges.
fn edge_of(home: Home, lease: &Lease) -> Option<Edge> {
    let spec = lease.spec.as_ref()?;
    let name = spec.holder_identity.clone()?;
    if lease.metadata.name.as_deref() != Some(&*lease_name(&name)) {
        return None;
    }
    Some(Edge {
        name,
        home,
        macs: listed_in(lease, MACS),
        addresses: listed_in(lease, ADDRESSES),
        // Every write changes it, whatever the writer's clock says.
        renewal: lease.resource_version()?,
    })
}

/// Reads what an annotation lists, except what cannot be read.
fn listed_in<T: FromStr + Ord>(lease: &Lease, annotation: &str) -> BTreeSet<T> {
    let texts = lease.annotations().get(annotation).into_iter();
    let texts = texts.flat_map(|text| text.split(','));
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// What is known of this machine's Node.
#[derive(Debug, Default)]
struct OwnNode {
    metadata: Option<ObjectMeta>,
    is_listed: bool,
}

impl OwnNode {
    fn take(&mut self, event: Event<NodeMetadata>) {
        match event {
            Event::InitApply(Ok(node)) | Event::Apply(Ok(node)) => {
                self.metadata = Some(node.metadata);
            }
            // One that cannot be read is as it was.
            Event::Init | Event::Watching | Event::InitApply(Err(_)) | Event::Apply(Err(_)) => {}
            Event::InitDone(listed) => {
                self.metadata = self.metadata.take().filter(|_| !listed.is_empty());
                self.is_listed = true;
            }
            Event::Delete(_) => self.metadata = None,
        }
    }

    /// Returns the labels, none within if there is no such Node; nothing until that is known.
    fn labels(&self) -> Option<Option<&BTreeMap<String, String>>> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let metadata = self.metadata.as_ref();
        let labels = metadata.map(|metadata| metadata.labels.as_ref().unwrap_or(&NONE));
        self.is_listed.then_some(labels)
    }

    /// Returns the Node as the owner of its Lease, which goes with it.
    fn as_owner(&self) -> Option<OwnerReference> {
        let metadata = self.metadata.as_ref()?;
        Some(OwnerReference {
            api_version: NodeMetadata::api_version(&()).into_owned(),
            kind: NodeMetadata::kind(&()).into_owned(),
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
            ..OwnerReference::default()
        })
    }
}

/// What this edge's Lease says.
#[derive(Clone, Debug, PartialEq)]
struct Renewal {
    /// The addresses by which endpoints name the edge's Node.
    addresses: BTreeSet<IpAddr>,
    /// The MACs by which it announces addresses.
    macs: BTreeSet<Mac>,
    /// The Node, if the edge is one.
    owner: Option<OwnerReference>,
}

/// Renews this edge's Lease for ever, while there is something to put into it.
async fn renew(
    leases: Api<Lease>,
    edge: String,
    mut to_renew: watch::Receiver<Option<Renewal>>,
    pulse: Pulse,
    request_errors: RequestErrors,
) {
    let mut ticks = tokio::time::interval(RENEWAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Timestamp::UNIX_EPOCH;
    loop {
        if to_renew.wait_for(Option::is_some).await.is_err() {
            return;
        }
        ticks.tick().await;
        // A Lease that outlives what it stands for would keep the addresses from the other edges.
        while pulse.age(Instant::now()) >= FRESH {
            tokio::time::sleep(FRESH_PAUSE).await;
        }
        let Some(said) = to_renew.borrow().clone() else {
            continue;
        };
        last = renewal_time(last, Timestamp::now());
        let renewal = renew_once(&leases, lease(&edge, &said, last), said.owner);
        let outcome = match tokio::time::timeout(RENEWAL_TIMEOUT, renewal).await {
            Ok(outcome) => outcome.map_err(|error| chain(&error)),
            Err(_) => Err("the API server does not answer".to_owned()),
        };
        request_errors.take(Purpose::Lease, outcome);
    }
}

/// Returns the time to write after another: a clock that stands still or goes back would leave the Lease as it is.
fn renewal_time(last: Timestamp, now: Timestamp) -> Timestamp {
    let microsecond = Duration::from_micros(1);
    now.max(last.saturating_add(microsecond).unwrap_or(last))
}

async fn renew_once(
    leases: &Api<Lease>,
    mut lease: Lease,
    owner: Option<OwnerReference>,
) -> kube::Result<()> {
    let name = lease.name_any();
    let patched = leases
        .patch(&name, &PatchParams::default(), &Patch::Merge(&lease))
        .await;
    match patched {
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            // Not in a patch: where OwnerReferencesPermissionEnforcement is on, only who may delete an object
            // may change its owners.
            lease.metadata.owner_references = owner.map(|owner| vec![owner]);
            let created = leases.create(&PostParams::default(), &lease).await;
            created.map(drop)
        }
        outcome => outcome.map(drop),
    }
}

fn lease_name(edge: &str) -> String {
    format!("{LEASE_PREFIX}{edge}")
}

fn lease(edge: &str, said: &Renewal, now: Timestamp) -> Lease {
    let addresses: Vec<String> = said.addresses.iter().map(ToString::to_string).collect();
    let macs: Vec<String> = said.macs.iter().map(ToString::to_string).collect();
    let annotations = [(ADDRESSES, addresses), (MACS, macs)];
    let annotations = annotations.map(|(name, listed)| (name.to_owned(), listed.join(",")));
    Lease {
        metadata: ObjectMeta {
            name: Some(lease_name(edge)),
            labels: Some([(LABEL.to_owned(), LABEL_VALUE.to_owned())].into()),
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(edge.to_owned()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            renew_time: Some(micro_time(now)),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 0x17]);

    fn renewal(addresses: BTreeSet<IpAddr>) -> Renewal {
        Renewal {
            addresses,
            macs: [MAC].into(),
            owner: None,
        }
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn label_excludes_and_selector_chooses() {
        let shown = |selector| Announceable {
            node_selector: Some(labels(selector)),
            macs: [MAC].into(),
            ..Announceable::default()
        };
        assert!(!Announceable::default().may_announce(None), "it is not to");
        let any = shown(&[]);
        assert!(any.may_announce(None));
        let deaf = Announceable {
            macs: BTreeSet::new(),
            ..any.clone()
        };
        assert!(!deaf.may_announce(None), "nobody who asks is answered");
        assert!(any.may_announce(Some(&labels(&[("role", "worker")]))));
        assert!(!any.may_announce(Some(&labels(&[(EXCLUDED, "")]))));
        let edges = shown(&[("role", "edge")]);
        assert!(!edges.may_announce(None), "no Node, no label");
        assert!(!edges.may_announce(Some(&labels(&[("role", "worker")]))));
        assert!(edges.may_announce(Some(&labels(&[("role", "edge")]))));
        assert!(!edges.may_announce(Some(&labels(&[("role", "edge"), (EXCLUDED, "true")]))));
    }

    #[test]
    fn every_renewal_changes_the_lease_whatever_the_clock_does() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let mut last = Timestamp::UNIX_EPOCH;
        for clock in [1_000, 1_000, 5, 4_000_000_000, 1_001] {
            let next = renewal_time(last, at(clock));
            assert!(next > last, "{next} after {last} at {clock}");
            last = next;
        }
    }

    #[test]
    fn lease_that_speaks_for_another_edge_than_its_own_is_ignored() {
        let mut own = lease("node1", &renewal(BTreeSet::new()), Timestamp::UNIX_EPOCH);
        own.metadata.resource_version = Some("7".to_owned());
        assert!(edge_of(Home::Own, &own).is_some());
        let mut forged = own.clone();
        forged.metadata.name = Some(lease_name("node2"));
        assert_eq!(edge_of(Home::Own, &forged), None);
        let mut election = Election::new("node3", BTreeSet::new());
        let end = Event::Delete(ObjectName::new("", lease_name("node2")));
        for event in [Event::Apply(Ok(own)), Event::Apply(Ok(forged)), end] {
            take(&mut election, Home::Own, event);
        }
        assert_eq!(election.edges(), 1, "nor does its end take the other away");
    }

    #[test]
    fn lease_of_an_agent_one_version_apart_is_read_and_written() {
        let first = json!({
            "metadata": {
                "name": "guideway-edge-node1", "labels": {"guideway.dev/lease": "edge"},
                "annotations": {
                    "guideway.dev/node-addresses": "10.0.0.1", "guideway.dev/macs": "02:00:00:00:00:17",
                },
            },
            "spec": {
                "holderIdentity": "node1", "leaseDurationSeconds": 2,
                "renewTime": "1970-01-01T00:00:00.000000Z",
            },
        });
        let mut newer = first.clone();
        newer["metadata"]["resourceVersion"] = json!("7");
        newer["metadata"]["annotations"]["guideway.dev/newer"] = json!("x");
        newer["spec"]["strategy"] = json!("Newer");
        newer["newer"] = json!({});
        let read = |lease| edge_of(Home::Own, &serde_json::from_value(lease).unwrap()).unwrap();
        let edge = read(newer.clone());
        let addresses: BTreeSet<IpAddr> = ["10.0.0.1".parse().unwrap()].into();
        assert_eq!((edge.name.as_str(), &edge.addresses), ("node1", &addresses));
        assert_eq!(edge.macs, [MAC].into());
        newer["metadata"]["annotations"] = first["metadata"]["annotations"].clone();
        let annotations = newer["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("guideway.dev/macs");
        assert_eq!(read(newer).macs, BTreeSet::new());
        let written = lease("node1", &renewal(addresses), Timestamp::UNIX_EPOCH);
        let written = serde_json::to_value(written).unwrap();
        for part in ["metadata", "spec"] {
            assert_eq!(written[part], first[part]);
        }
    }

    #[test]
    fn lease_goes_with_the_node_of_its_edge() {
        let mut node = OwnNode::default();
        assert_eq!(node.as_owner(), None);
        let metadata = json!({"metadata": {"name": "node1", "uid": "7"}});
        let own: NodeMetadata = serde_json::from_value(metadata).unwrap();
        node.take(Event::InitApply(Ok(own)));
        node.take(Event::InitDone([ObjectName::new("", "node1")].into()));
        assert_eq!(
            serde_json::to_value(node.as_owner()).unwrap(),
            json!({"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "7"})
        );
        assert_eq!(node.labels(), Some(Some(&BTreeMap::new())));

        // It went while the watch was down.
        node.take(Event::Init);
        assert!(node.as_owner().is_some());
        node.take(Event::InitDone(BTreeSet::new()));
        assert_eq!((node.as_owner(), node.labels()), (None, Some(None)));
    }

    #[test]
    fn lease_reads_back_as_the_edge_that_wrote_it() {
        let addresses: BTreeSet<IpAddr> = ["10.0.0.1", "fd00::1"]
            .map(|text| text.parse().unwrap())
            .into();
        for addresses in [addresses, BTreeSet::new()] {
            let said = renewal(addresses.clone());
            let mut written = lease("node1", &said, Timestamp::UNIX_EPOCH);
            written.metadata.resource_version = Some("7".to_owned());
            let edge = edge_of(Home::Own, &written).unwrap();
            assert_eq!((edge.home, &edge.macs), (Home::Own, &said.macs));
            assert_eq!((edge.name.as_str(), edge.renewal.as_str()), ("node1", "7"));
            assert_eq!(edge.addresses, addresses);
        }
    }
}
