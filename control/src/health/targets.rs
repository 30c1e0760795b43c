//! Derives from the desired state which backends and nodes are checked, and by which path.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use fastpath::tables::{ProbeSpec, probe_mark};

use super::Check;
use super::probe::Route;
use super::probe_indices::{Checked, ProbeIndices};
use super::schedule::CheckThresholds;
use super::selection::Member;
use crate::desired::{BackendSpec, Desired, ForwardMode, ServiceKey, ServiceSpec};
use crate::service_totals::ServiceTotals;

/// How a backend is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendCheck {
    /// Where the packets go.
    pub route: Route,
    /// The check.
    pub check: Check,
}

/// How a node is checked: by an echo to its own address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCheck {
    /// Mark of the echo's packet; 0 for none. A marked echo takes the path of client packets.
    pub mark: u32,
}

impl NodeCheck {
    /// An echo every second. Three misses in a row make a node unreachable, one reply makes it reachable.
    ///
    /// Until the first reply through the outer header, for at most five minutes, a reply to an echo without one
    /// prevents a failure.
    pub const THRESHOLDS: CheckThresholds = CheckThresholds {
        interval: Duration::from_secs(1),
        rise: 1,
        fall: 3,
        // The first packet to a node may be delayed until its neighbour entry is resolved.
        first_decides: false,
        // A node that is starting takes no client packets yet. But flows that moved to another backend
        // meanwhile would move again once it does.
        starting: Duration::from_secs(300),
    };
    /// How long a reply may take.
    pub const TIMEOUT: Duration = Duration::from_millis(800);
}

/// All checks to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Backends, each with the name of its service.
    pub backends: BTreeMap<Member, (String, BackendCheck)>,
    /// Nodes.
    pub nodes: BTreeMap<IpAddr, NodeCheck>,
    /// Entries of the table of probes, by index: for checks whose packets do not go straight to their peer.
    pub probes: BTreeMap<u32, ProbeSpec>,
    /// Number of checks that are not made.
    pub not_made: NotMade,
}

/// Number of checks that are not made, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotMade {
    /// Their packets cannot be put on the path of client packets.
    pub no_way: usize,
    /// The limit of checks is reached.
    pub too_many: usize,
}

impl NotMade {
    /// Returns the total.
    pub const fn sum(&self) -> usize {
        self.no_way + self.too_many
    }
}

/// Facts that determine the targets besides the desired state.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'agent> {
    /// Addresses of this machine.
    pub own: &'agent BTreeSet<IpAddr>,
    /// Whether packets of checks can be put on the path of client packets.
    pub diverts: bool,
    /// Returns the address from which the kernel would send to a destination.
    pub source_towards: fn(IpAddr) -> Option<IpAddr>,
}

impl Targets {
    /// Lists the checks for a desired state. `totals` must be of its services.
    ///
    /// There are at most as many targets as indices, even if some need no index: services are defined by
    /// others, and every target costs packets. Nodes come first.
    pub fn of(
        desired: &Desired,
        totals: &ServiceTotals,
        around: &Surroundings<'_>,
        indices: &mut ProbeIndices,
    ) -> Self {
        let mut targets = Self::default();
        if !desired.edge {
            indices.assign(&BTreeSet::new());
            return targets;
        }
        let mut plans = plans(desired, totals, around);
        if let Some((first_left, _)) = plans.iter().nth(indices.capacity()) {
            let first_left = *first_left;
            targets.not_made.too_many = plans.split_off(&first_left).len();
        }
        let wanted = plans.iter().filter(|(_, plan)| plan.way.is_some());
        indices.assign(&wanted.map(|(checked, _)| *checked).collect());
        for (checked, plan) in plans {
            let mark = match &plan.way {
                None => 0,
                Some(way) => match indices.index(&checked).filter(|_| around.diverts) {
                    Some(index) => {
                        targets.probes.insert(index, *way);
                        probe_mark(index)
                    }
                    None => {
                        targets.not_made.no_way += 1;
                        continue;
                    }
                },
            };
            match (checked, plan.check) {
                (Checked::Backend(member), Some((name, check))) => {
                    let route = Route {
                        peer: plan.peer,
                        mark,
                    };
                    let check = check.clone();
                    let check = BackendCheck { route, check };
                    targets.backends.insert(member, (name.to_owned(), check));
                }
                (Checked::Backend(_), None) => {}
                (Checked::Node(node), _) => {
                    targets.nodes.insert(node, NodeCheck { mark });
                }
            }
        }
        targets
    }
}

/// A check without its index.
struct Plan<'totals> {
    peer: SocketAddr,
    /// The entry of the table of probes; `None` if the packets go straight to the peer.
    way: Option<ProbeSpec>,
    check: Option<(&'totals str, &'totals Check)>,
}

fn plans<'totals>(
    desired: &Desired,
    totals: &'totals ServiceTotals,
    around: &Surroundings<'_>,
) -> BTreeMap<Checked, Plan<'totals>> {
    let mut plans = BTreeMap::new();
    // A backend of NAT mode is not a node. It may not answer echoes, and whoever writes EndpointSlices can name
    // any address. An endpoint on an unknown machine has the unspecified address.
    let nodes = totals.nodes().filter(|(node, mode)| {
        let is_node = *mode != ForwardMode::Nat && !node.is_unspecified();
        desired.node_health && is_node && !around.own.contains(node)
    });
    for (node, mode) in nodes {
        let way = (around.diverts && mode == ForwardMode::Ipip).then_some(ProbeSpec {
            peer: node,
            destination: node,
            outer: Some(node),
            source: None,
            pod: None,
        });
        let plan = Plan {
            peer: SocketAddr::new(node, 0),
            way,
            check: None,
        };
        let known: &mut Plan<'_> = plans.entry(Checked::Node(node)).or_insert(plan);
        known.way = known.way.or(way);
    }
    for (key, service, check) in totals.checked() {
        let mode = service.spec.mode;
        let backends = service.spec.backends.iter();
        for backend in backends.filter(|backend| !backend.address.is_unspecified()) {
            let (peer, way) = check_path(key, &service.spec, backend, check, around);
            let plan = Plan {
                peer,
                way,
                check: Some((&service.name, check)),
            };
            plans.insert(Checked::Backend(Member::new(key, mode, backend)), plan);
        }
    }
    plans
}

/// Returns the peer of a backend's check, and the entry of the table of probes if the packets take a client's path.
fn check_path(
    key: &ServiceKey,
    spec: &ServiceSpec,
    backend: &BackendSpec,
    check: &Check,
    around: &Surroundings<'_>,
) -> (SocketAddr, Option<ProbeSpec>) {
    let node = backend.address;
    let mut straight = backend.pod.unwrap_or(SocketAddr::new(node, key.port));
    if let Some(port) = check.port {
        straight.set_port(port);
        return (straight, None);
    }
    let same_family = key.address.is_ipv4() == node.is_ipv4();
    // Every machine has the NodePort; the node must be asked at its own address.
    let is_own =
        spec.node_port || key.address.is_unspecified() || around.own.contains(&key.address);
    let is_here = around.own.contains(&node);
    if spec.mode == ForwardMode::Nat || is_here || (is_own && !same_family) {
        return (straight, None);
    }
    let destination = if is_own { node } else { key.address };
    let peer = if same_family { node } else { key.address };
    let way = ProbeSpec {
        peer,
        destination,
        outer: (spec.mode == ForwardMode::Ipip).then_some(node),
        source: if same_family {
            None
        } else {
            (around.source_towards)(node)
        },
        pod: backend.pod.map(|pod| pod.ip()),
    };
    (SocketAddr::new(peer, key.port), Some(way))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const EDGE: &str = "\
interfaces: [{name: eth0}]
vips: [10.99.0.1]
services:
  - name: a
    address: 10.99.0.1
    port: 80
    protocol: tcp
    health: {fall: 7}
    backends: [{address: 10.0.0.1}, {address: 10.0.0.2}]
  - {name: b, address: 10.99.0.1, port: 81, protocol: tcp, backends: [{address: 10.0.0.2}, {address: 10.0.0.3}]}
";

    #[test]
    fn backends_of_services_with_checks_and_all_nodes_but_this_one_are_checked() {
        let targets = targets(EDGE, true);
        assert_eq!(peers(&targets), ["10.0.0.1:80", "10.0.0.2:80"]);
        let checks = targets.backends.values();
        assert!(
            checks
                .clone()
                .all(|(name, one)| name == "a" && one.check.fall == 7)
        );
        let nodes: Vec<String> = targets.nodes.keys().map(ToString::to_string).collect();
        assert_eq!(nodes, ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn check_takes_the_way_of_a_clients_packet() {
        let targets = targets(EDGE, true);
        let (_, check) = targets.backends.values().next().unwrap();
        let index = targets
            .probes
            .keys()
            .copied()
            .find(|index| probe_mark(*index) == check.route.mark);
        let node = Some(address("10.0.0.1"));
        let way = ProbeSpec {
            peer: address("10.0.0.1"),
            destination: address("10.99.0.1"),
            outer: node,
            source: None,
            pod: None,
        };
        assert_eq!(targets.probes[&index.unwrap()], way);
        assert_eq!(targets.probes.len(), 4, "two backends, two nodes");
    }

    #[test]
    fn l2dsr_has_no_outer_header_and_its_nodes_are_asked_straight() {
        let targets = targets(&EDGE.replace("vips:", "default_mode: l2dsr\nvips:"), true);
        assert!(targets.probes.values().all(|way| way.outer.is_none()));
        assert_eq!(targets.probes.len(), 2);
        assert!(targets.nodes.values().all(|node| node.mark == 0));
    }

    #[test]
    fn node_of_another_family_is_reached_by_the_service_and_an_outer_source() {
        let targets = targets(&EDGE.replace("10.0.0.2", "'2001:db8::2'"), true);
        assert_eq!(peers(&targets), ["10.0.0.1:80", "10.99.0.1:80"]);
        let mixed = targets
            .probes
            .values()
            .find(|way| way.source.is_some())
            .unwrap();
        assert_eq!(mixed.outer, Some(address("2001:db8::2")));
        assert_eq!(mixed.source, Some(address("2001:db8::9")));
    }

    #[test]
    fn another_port_is_asked_instead_and_straight() {
        let targets = targets(&EDGE.replace("fall: 7", "port: 8080"), true);
        assert_eq!(peers(&targets), ["10.0.0.1:8080", "10.0.0.2:8080"]);
        assert!(
            targets
                .backends
                .values()
                .all(|(_, check)| check.route.mark == 0)
        );
    }

    #[test]
    fn without_the_egress_program_only_what_goes_straight_is_checked() {
        let targets = targets(EDGE, false);
        let no_way = NotMade {
            no_way: 2,
            too_many: 0,
        };
        assert_eq!((targets.backends.len(), targets.not_made), (0, no_way));
        assert_eq!(targets.nodes.len(), 2);
        assert!(targets.nodes.values().all(|node| node.mark == 0));
    }

    #[test]
    fn backends_by_nat_are_no_nodes() {
        let by_nat = EDGE.replace("vips:", "default_mode: nat\nvips:");
        let targets = targets(&by_nat, true);
        assert_eq!(targets.nodes, BTreeMap::new());
        assert_eq!(targets.backends.len(), 2, "their own checks are made");

        let both = EDGE.replace("name: b,", "name: b, mode: nat,");
        let nodes = self::targets(&both, true).nodes;
        let nodes: Vec<String> = nodes.keys().map(ToString::to_string).collect();
        assert_eq!(
            nodes,
            ["10.0.0.1", "10.0.0.2"],
            "those of the other service"
        );
    }

    #[test]
    fn targets_are_as_many_as_there_are_indices_and_nodes_come_first() {
        for text in [EDGE, &EDGE.replace("vips:", "default_mode: l2dsr\nvips:")] {
            let targets = bounded(text, true, 3);
            assert_eq!((targets.nodes.len(), targets.backends.len()), (2, 1));
            let one = NotMade {
                no_way: 0,
                too_many: 1,
            };
            assert_eq!(targets.not_made, one);
        }
    }

    #[test]
    fn nodes_are_left_alone_where_that_is_asked_for() {
        let targets = targets(&(EDGE.to_owned() + "node_health: off\n"), true);
        assert!(targets.nodes.is_empty() && !targets.backends.is_empty());
    }

    #[test]
    fn machine_that_balances_nothing_checks_nothing() {
        let node = "interfaces: [{name: eth0}]\nroles: [node]\ntrusted_edges: [10.0.0.8]\n";
        assert_eq!(targets(node, true), Targets::default());
    }

    fn targets(text: &str, diverts: bool) -> Targets {
        bounded(text, diverts, 8)
    }

    /// Has `10.0.0.3` for the machine's own address.
    fn bounded(text: &str, diverts: bool, capacity: u32) -> Targets {
        let own = BTreeSet::from([address("10.0.0.3")]);
        let around = Surroundings {
            own: &own,
            diverts,
            source_towards: |_| Some(address("2001:db8::9")),
        };
        let desired = config::parse(text).unwrap().desired;
        let mut totals = ServiceTotals::default();
        totals.follow(&desired, &own);
        Targets::of(&desired, &totals, &around, &mut ProbeIndices::new(capacity))
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn peers(targets: &Targets) -> Vec<String> {
        let backends = targets.backends.values();
        backends
            .map(|(_, one)| one.route.peer.to_string())
            .collect()
    }
}
