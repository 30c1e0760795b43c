//! Who is checked, and by which way: derived from the desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::Check;
use super::board::Rule;
use super::probe::Route;
use super::selection::Member;
use crate::desired::Desired;

/// How a backend is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendCheck {
    /// The way to it.
    pub route: Route,
    /// What is done there.
    pub check: Check,
}

/// How a node is checked: by an echo to its own address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCheck {
    /// Mark of the echo's packet; 0 for none.
    pub mark: u32,
}

impl NodeCheck {
    /// An echo every second; three misses in a row and the node is unreachable, one reply and it is not.
    pub const RULE: Rule = Rule {
        interval: Duration::from_secs(1),
        rise: 1,
        fall: 3,
        // The first packet to a node may wait for its neighbour entry.
        first_decides: false,
    };
    /// How long a reply may take.
    pub const TIMEOUT: Duration = Duration::from_millis(800);
}

/// Everything that is to be checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Backends, each with its service's name.
    pub backends: BTreeMap<Member, (String, BackendCheck)>,
    /// Nodes.
    pub nodes: BTreeMap<IpAddr, NodeCheck>,
}

impl Targets {
    /// Lists what a desired state asks to be checked by a machine with the addresses `own`.
    pub fn of(desired: &Desired, own: &BTreeSet<IpAddr>) -> Self {
        let mut targets = Self::default();
        if !desired.edge {
            return targets;
        }
        for (key, service) in &desired.services {
            for backend in &service.spec.backends {
                if desired.node_health && !own.contains(&backend.address) {
                    targets.nodes.insert(backend.address, NodeCheck { mark: 0 });
                }
                let Some(check) = &service.health else {
                    continue;
                };
                let mut peer = backend
                    .pod
                    .unwrap_or(SocketAddr::new(backend.address, key.port));
                if let Some(port) = check.port {
                    peer.set_port(port);
                }
                let route = Route { peer, mark: 0 };
                let check = BackendCheck {
                    route,
                    check: check.clone(),
                };
                targets.backends.insert(
                    Member::new(key, service.spec.mode, backend),
                    (service.name.clone(), check),
                );
            }
        }
        targets
    }
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
        let targets = targets(EDGE);
        assert_eq!(peers(&targets), ["10.0.0.1:80", "10.0.0.2:80"]);
        assert!(
            targets
                .backends
                .values()
                .all(|(name, one)| name == "a" && one.check.fall == 7)
        );
        let nodes: Vec<String> = targets.nodes.keys().map(ToString::to_string).collect();
        assert_eq!(nodes, ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn another_port_is_asked_instead() {
        let targets = targets(&EDGE.replace("fall: 7", "port: 8080"));
        assert_eq!(peers(&targets), ["10.0.0.1:8080", "10.0.0.2:8080"]);
    }

    #[test]
    fn nodes_are_left_alone_where_that_is_asked_for() {
        let targets = targets(&(EDGE.to_owned() + "node_health: off\n"));
        assert!(targets.nodes.is_empty() && !targets.backends.is_empty());
    }

    #[test]
    fn machine_that_balances_nothing_checks_nothing() {
        let node = "interfaces: [{name: eth0}]\nroles: [node]\ntrusted_edges: [10.0.0.8]\n";
        assert_eq!(targets(node), Targets::default());
    }

    /// Has `10.0.0.3` for the machine's own address.
    fn targets(text: &str) -> Targets {
        let own = BTreeSet::from(["10.0.0.3".parse().unwrap()]);
        Targets::of(&config::parse(text).unwrap().desired, &own)
    }

    fn peers(targets: &Targets) -> Vec<String> {
        let backends = targets.backends.values();
        backends
            .map(|(_, one)| one.route.peer.to_string())
            .collect()
    }
}
