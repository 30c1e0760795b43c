//! Takes services, nodes and addresses from the Kubernetes API instead of the file.
//!
//! Until the first state arrives, what an earlier agent left goes on serving. This agent replaces its programs
//! and follows next hops, and changes nothing else.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath::nexthop::Resolution;
use fastpath::tables::Tables;
use imbl::OrdMap;
use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;

use super::Agent;
use super::view::ClusterView;
use crate::api;
use crate::check::cluster::{UNTRUSTED_REMEDY, untrusted_source};
use crate::config::effective::effective;
use crate::config::host::HostFacts;
use crate::desired::{Desired, ForwardMode, NodePortAddresses, Role};
use crate::durations::Durations;
use crate::first_few::first_few;
use crate::healthz::HealthCheckPorts;
use crate::index::{Object, Problem, State};
use crate::kubernetes::{ClusterFeed, Identity, OwnMachine, Update};
use crate::peers::WAITS_FOR_PAST;
use crate::plan::Operation;
use crate::versions::sides;

/// Upper bounds, in seconds, of the histogram of times from a change in the cluster to the tables. kube-proxy
/// has the same. The first bucket also has changes that lie in the future by another machine's clock.
const PROGRAMMING_BOUNDS: &[f64] = &[
    0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0,
    15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0, 27.0, 28.0, 29.0, 30.0,
    31.0, 32.0, 33.0, 34.0, 35.0, 36.0, 37.0, 38.0, 39.0, 40.0, 41.0, 42.0, 43.0, 44.0, 45.0, 46.0,
    47.0, 48.0, 49.0, 50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 56.0, 57.0, 58.0, 59.0, 60.0, 65.0, 70.0,
    75.0, 80.0, 85.0, 90.0, 95.0, 100.0, 105.0, 110.0, 115.0, 120.0, 150.0, 180.0, 210.0, 240.0,
    270.0, 300.0,
];
/// Upper bounds, in seconds, of the histogram of times from a change's arrival here to the tables.
const SYNC_BOUNDS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];

/// Problems by object.
type Problems = OrdMap<Object, Arc<[Problem]>>;

/// The state of the cluster, as far as it is known.
#[derive(Debug)]
pub(super) struct Cluster {
    feed: ClusterFeed,
    /// When the first state arrived.
    synced: Option<Instant>,
    /// Whether the tables have contained a state.
    is_programmed: bool,
    state: State,
    hash_seed: u64,
    /// Times from a change's arrival to the tables.
    sync: Durations,
    /// Times from a change in the cluster to the tables.
    programming: Durations,
}

impl Cluster {
    pub(super) fn new(feed: ClusterFeed) -> Self {
        Self {
            feed,
            synced: None,
            is_programmed: false,
            state: State::default(),
            hash_seed: 0,
            sync: Durations::new(SYNC_BOUNDS),
            programming: Durations::new(PROGRAMMING_BOUNDS),
        }
    }

    /// Fills in the part of the desired state that comes from the cluster, once it is known.
    pub(super) fn complete(&self, desired: &mut Desired) {
        if self.synced.is_none() {
            return;
        }
        let state = self.state.clone();
        desired.services = state.services;
        desired.draining = state.draining;
        desired.vips = state.vips;
        desired.shared = state.shared;
        desired.nodes = state.nodes;
        desired.trusted_edges = state.trusted_edges;
        desired.hash_seed = self.hash_seed;
    }

    /// Tells the watchers this machine's addresses and role. Addresses on `lo` are left out, because VIPs may
    /// be there.
    pub(super) fn show_machine(&self, facts: &HostFacts, desired: &Desired) {
        let own = facts.addresses.iter().filter(|(_, name)| *name != "lo");
        self.feed.set_machine(OwnMachine {
            addresses: own.map(|(address, _)| *address).collect(),
            edge_only: desired.node == Role::No,
        });
    }
}

/// Changes whose time to the tables is to be measured.
#[derive(Debug)]
pub(super) struct Taken {
    change_times: Vec<Timestamp>,
    arrived: Instant,
}

impl Agent {
    /// Returns whether the desired state is still unknown.
    pub(super) fn waits_for_state(&self) -> bool {
        let cluster = self.cluster.as_ref();
        cluster.is_some_and(|cluster| cluster.synced.is_none())
    }

    /// Lists, from the tables, the machines that run Guideway: nodes that packets are sent to other than by
    /// NAT, and trusted edges.
    pub(crate) fn inherited_nodes(&self) -> BTreeSet<IpAddr> {
        let backends = self.tables.backends().map(|(backend, _)| backend.key);
        let nodes = backends.filter(|backend| backend.pod.is_some() && !backend.nat);
        let edges = single(self.tables.trusted_edges());
        nodes.map(|node| node.address).chain(edges).collect()
    }

    /// Puts the newest state of the cluster into the desired state; `None` if there is no new one.
    pub(super) fn take_state(&mut self) -> Option<Taken> {
        let cluster = self.cluster.as_mut()?;
        let Update {
            state,
            hash_seed,
            change_times,
            arrived,
        } = cluster.feed.take()?;
        if cluster.synced.is_none() {
            cluster.synced = Some(Instant::now());
            tracing::info!(
                services = state.services.len(),
                nodes = state.nodes.len(),
                "the first state of the cluster is complete"
            );
        }
        if let Some(problems) = new_problems(&cluster.state.problems, &state.problems) {
            tracing::warn!("{problems}");
        }
        cluster
            .feed
            .reports()
            .machine_health()
            .set_leaving(state.leaving);
        let moved = self.config.desired.nodes != state.nodes;
        let trusts_others = self.config.desired.trusted_edges != state.trusted_edges;
        self.announcing
            .set_announceable(state.assigned.clone(), state.announcers.clone());
        (cluster.state, cluster.hash_seed) = (state, hash_seed);
        cluster.complete(&mut self.config.desired);
        if trusts_others {
            self.settings = Arc::new(effective(&self.config));
        }
        if moved {
            // The Node's addresses decide which address of the machine is the primary one.
            self.look_at_machine();
        }
        Some(Taken {
            change_times,
            arrived,
        })
    }

    /// Returns the name of this machine's Node and whether the Node exists, once that is known.
    pub(super) fn node_name(&self) -> Option<(String, bool)> {
        let state = self.cluster_state()?;
        let options = self.file.started_with.kubernetes.as_ref()?;
        Some((Identity::of(options).node_name, state.leaving.is_some()))
    }

    /// Returns texts about why other machines may refuse this machine's packets, and what to do.
    pub(super) fn distrust(&self) -> Vec<String> {
        let Some(state) = self.cluster_state().filter(|_| self.config.desired.edge) else {
            return Vec::new();
        };
        let Some(options) = self.file.started_with.kubernetes.as_ref() else {
            return Vec::new();
        };
        let Identity {
            node_name,
            namespace,
            ..
        } = Identity::of(options);
        let has_node = state.leaving.is_some();
        let mut reasons = Vec::new();
        if !has_node && state.known_as.is_disjoint(&self.machine.addresses) {
            reasons.push(format!(
                "no Node is named {node_name}: this machine is an edge outside the cluster; set \
                 kubernetes.node_name to the name of its Node, if it has one"
            ));
        }
        let service = format!("{namespace}/{}", options.service);
        let unknown = self.outer_sources();
        let unknown = unknown.difference(&state.known_as);
        let node = has_node.then_some(&*node_name);
        reasons.extend(unknown.map(|source| {
            let text = untrusted_source(source, &service, node);
            format!("{text}; {UNTRUSTED_REMEDY}")
        }));
        reasons
    }

    /// Lists the source addresses of this machine's outer headers.
    fn outer_sources(&self) -> BTreeSet<IpAddr> {
        let given = self.config.desired.sources;
        let tunnelled = self.totals.nodes();
        let tunnelled = tunnelled.filter(|(_, mode)| *mode == ForwardMode::Ipip);
        let source = |node: IpAddr| match self.tables.next_hop(node)? {
            Resolution::Resolved(hop) => {
                // Nodes trust the prefix of their own configuration, which is not known here.
                if given.is_spread(node) {
                    return None;
                }
                given.towards(node).or(hop.source)
            }
            Resolution::Local | Resolution::Unresolved(_) => None,
        };
        tunnelled.filter_map(|(node, _)| source(node)).collect()
    }

    /// Returns the state of the cluster, once it is known.
    pub(super) fn cluster_state(&self) -> Option<&State> {
        let cluster = self.cluster.as_ref()?;
        cluster.synced.map(|_| &cluster.state)
    }

    /// Records how long the changes took that are in the tables.
    pub(super) fn account(&mut self, taken: Taken) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        cluster
            .feed
            .reports()
            .machine_health()
            .finish(Instant::now());
        if !std::mem::replace(&mut cluster.is_programmed, true) {
            tracing::info!("the tables have the first state of the cluster");
        }
        let took = self.programmed.at.saturating_duration_since(taken.arrived);
        cluster.sync.add(took);
        let now = Timestamp::now();
        for change in taken.change_times {
            // The other machine's clock may be ahead; a negative time counts as 0.
            let took = Duration::try_from(now.duration_since(change)).unwrap_or_default();
            cluster.programming.add(took);
        }
    }

    /// Tells the health servers the state of the dataplane.
    pub(super) fn report(&self) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        let reports = cluster.feed.reports();
        let mut unattached = api::unattached(&self.interface_status(), &self.egress_status());
        let waits = self.peering.waits_for_past;
        unattached.extend(waits.then(|| WAITS_FOR_PAST.to_owned()));
        reports.machine_health().set_unattached(unattached);
        let served = &self.config.desired.node_port_addresses;
        reports.set_check_ports(HealthCheckPorts {
            services: cluster.state.health_checks.clone(),
            addresses: health_check_addresses(served, &self.machine.addresses),
        });
    }

    pub(super) fn cluster_view(&self) -> Option<ClusterView> {
        let cluster = self.cluster.as_ref()?;
        Some(ClusterView {
            synced: cluster.synced,
            problems: cluster.state.problems.clone(),
            sync: cluster.sync.clone(),
            programming: cluster.programming.clone(),
        })
    }

    /// Returns the connection to the watchers; `None` without a cluster.
    pub(super) fn feed(&self) -> Option<ClusterFeed> {
        self.cluster.as_ref().map(|cluster| cluster.feed.clone())
    }
}

/// Returns the addresses to listen at for health checks. They are all addresses unless networks are configured,
/// as in kube-proxy.
fn health_check_addresses(served: &NodePortAddresses, own: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    match served {
        NodePortAddresses::Primary | NodePortAddresses::All => {
            [Ipv6Addr::UNSPECIFIED.into()].into()
        }
        NodePortAddresses::Within(networks) => {
            let within = |own: &&IpAddr| networks.iter().any(|net| net.contains(*own));
            own.iter().filter(within).copied().collect()
        }
    }
}

/// Returns the operation that finds next hops for the addresses and edges in the tables. It is used while the
/// desired state is unknown.
pub(super) fn in_tables(tables: &Tables) -> Operation {
    let reached = |by_nat: bool| {
        let backends = tables.backends().map(|(backend, _)| backend.key);
        let reached = backends.filter(move |backend| backend.nat == by_nat);
        reached.map(|backend| backend.address).collect()
    };
    let (machines, by_nat): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = (reached(false), reached(true));
    let mut services = tables.services();
    let edges = if services.any(|(_, service)| service.mode == ForwardMode::L2dsr) {
        single(tables.trusted_edges()).collect()
    } else {
        BTreeSet::new()
    };
    Operation::Resolve {
        nodes: &machines | &by_nat,
        by_nat: &by_nat - &machines,
        edges,
    }
}

fn single(networks: BTreeSet<IpNet>) -> impl Iterator<Item = IpAddr> {
    let networks = networks.into_iter();
    networks
        .filter(|net| net.prefix_len() == net.max_prefix_len())
        .map(|net| net.addr())
}

/// Returns a text about objects whose problems changed: the first problem, and which others there are.
fn new_problems(before: &Problems, after: &Problems) -> Option<String> {
    let changes = before.diff(after).map(sides);
    let new: Vec<_> = changes.filter_map(|(_, new)| new).collect();
    let first = new.iter().find_map(|(_, problems)| problems.first())?;
    Some(match new.iter().map(|(_, problems)| problems.len()).sum() {
        1 => first.to_string(),
        count => {
            let count: usize = count;
            let objects = first_few(new.iter().map(|(object, _)| object));
            format!(
                "{first}. These have {count} problems, all of which `guideway status --json` lists: {objects}"
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::BrokenRule;
    use crate::index::objects::ObjectName;

    #[test]
    fn new_problems_are_one_line_with_the_first_and_who_has_others() {
        let problem = |name: &str, text: &str| Problem {
            object: Object::Service(ObjectName::new("shop", name)),
            rule: BrokenRule::InvalidPort,
            text: text.to_owned(),
            remedy: "mend it".to_owned(),
            only_here: false,
        };
        let of = |names: std::ops::Range<u8>, text: &str| -> Problems {
            let problems = names.map(|name| problem(&name.to_string(), text));
            let by_object = problems.map(|one| (one.object.clone(), Arc::from([one])));
            by_object.collect()
        };
        let (none, one, many) = (of(0..0, ""), of(0..1, "bad"), of(0..8, "bad"));
        assert_eq!(new_problems(&many, &many), None);
        assert_eq!(new_problems(&many, &none), None);
        let first = "Service shop/0: bad; mend it";
        assert_eq!(new_problems(&none, &one).unwrap(), first);
        assert_eq!(
            new_problems(&none, &many).unwrap(),
            format!(
                "{first}. These have 8 problems, all of which `guideway status --json` lists: Service shop/0, \
                 Service shop/1, Service shop/2, Service shop/3, Service shop/4 and 3 more"
            )
        );
        let other = new_problems(&one, &of(0..1, "worse")).unwrap();
        assert_eq!(other, "Service shop/0: worse; mend it");
    }

    #[test]
    fn health_check_ports_are_at_all_addresses_or_within_the_networks_of_node_ports() {
        let own = ["10.0.0.1", "192.0.2.1", "fd00::1"].map(|own| own.parse().unwrap());
        let at = |served: &NodePortAddresses| {
            let addresses = health_check_addresses(served, &own.into());
            addresses
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(at(&NodePortAddresses::Primary), ["::"]);
        assert_eq!(at(&NodePortAddresses::All), ["::"]);
        let networks = ["10.0.0.0/8", "fd00::/64"].map(|net| net.parse().unwrap());
        let within = NodePortAddresses::Within(networks.into());
        assert_eq!(at(&within), ["10.0.0.1", "fd00::1"]);
    }
}
