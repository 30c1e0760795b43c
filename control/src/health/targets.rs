//! Derives from the desired state which backends and nodes are checked, and by which path.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use fastpath::tables::{ProbeSpec, probe_mark};

use super::probe::Route;
use super::probe_indices::{Checked, ProbeIndices};
use super::schedule::CheckThresholds;
use super::selection::Member;
use crate::desired::Check;
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
mod tests;
