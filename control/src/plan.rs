//! Computes the operations that lead from the installed state to the desired one.
//!
//! It is pure: it reads and writes no table. The order of the operations ensures that no packet meets half of a
//! change. Trusted edges, addresses and next hops are added before the services that need them and removed
//! after those. The XDP program is attached last. The egress program, which translates replies, is attached
//! before it and detached after it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use fastpath::tables::{Addresses, Settings, Specs};
use ipnet::IpNet;

use crate::desired::{AttachMode, ServiceKey, ServiceSpec};
use crate::target_state::TargetState;
use crate::versions::sides;

/// The state of the dataplane.
#[derive(Debug, Default)]
pub struct Installed {
    /// Machine-wide settings; `None` in new tables.
    pub settings: Option<Settings>,
    /// Virtual addresses and the machine's own addresses.
    pub addresses: Arc<Addresses>,
    /// Prefixes from which IP-in-IP is accepted.
    pub trusted_edges: BTreeSet<IpNet>,
    /// Services.
    pub services: Specs,
    /// Services of an earlier agent. Nobody knows the specifications that they were made from.
    pub unknown: BTreeSet<ServiceKey>,
    /// Interfaces with their attach modes; `None` for an interface of an earlier agent.
    pub interfaces: BTreeMap<String, Option<AttachMode>>,
    /// Devices with the egress program, and whether this agent has attached its own program there.
    pub egress: BTreeMap<String, bool>,
}

/// One operation; it is done completely or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Set the machine-wide settings.
    Settings(Settings),
    /// Replace the trusted prefixes.
    Trust(BTreeSet<IpNet>),
    /// Replace the addresses.
    Addresses(Arc<Addresses>),
    /// Find the next hops, and follow their changes.
    Resolve {
        /// Addresses that packets are sent to.
        nodes: BTreeSet<IpAddr>,
        /// Those of `nodes` that are reached by NAT only.
        by_nat: BTreeSet<IpAddr>,
        /// Addresses of edges from whose MACs L2 DSR frames come.
        edges: BTreeSet<IpAddr>,
    },
    /// Add or change a service.
    Put(ServiceKey, Arc<ServiceSpec>),
    /// Remove a service.
    Remove(ServiceKey),
    /// Attach the XDP program to an interface, or replace the program that an earlier agent attached.
    Attach(String, AttachMode),
    /// Detach the XDP program from an interface.
    Detach(String),
    /// Attach the egress program to a device, or replace the program that an earlier agent attached.
    AttachEgress(String),
    /// Detach the egress program from a device.
    DetachEgress(String),
}

impl Operation {
    /// Returns whether packets may meet our programs after the operation where they did not before.
    pub const fn attaches(&self) -> bool {
        matches!(self, Self::Attach(..) | Self::AttachEgress(..))
    }
}

/// Returns the operations that keep the installed state while no desired state is known. Programs of an earlier
/// agent are replaced by this agent's, and interfaces without a program get it.
pub fn hold(installed: &Installed, interfaces: &BTreeMap<String, AttachMode>) -> Vec<Operation> {
    let inherited = installed.egress.iter().filter(|(_, ours)| !**ours);
    let egress = inherited.map(|(device, _)| Operation::AttachEgress(device.clone()));
    let missing = interfaces
        .iter()
        .filter(|(name, mode)| installed.interfaces.get(*name) != Some(&Some(**mode)));
    let attach = missing.map(|(name, mode)| Operation::Attach(name.clone(), *mode));
    egress.chain(attach).collect()
}

/// Sorts the services to be put by age: if a table is full, the oldest get the room.
pub fn oldest_first<A: Ord>(operations: &mut [Operation], age: impl Fn(&ServiceKey) -> A) {
    let is_put = |operation: &Operation| matches!(operation, Operation::Put(..));
    // `plan` leaves all of these next to each other.
    let Some(first) = operations.iter().position(is_put) else {
        return;
    };
    let puts = operations[first..].partition_point(is_put);
    operations[first..first + puts].sort_by_cached_key(|operation| match operation {
        Operation::Put(key, _) => Some((age(key), *key)),
        _ => None,
    });
}

/// Returns the operations that lead from `installed` to `target`.
pub fn plan(installed: &Installed, target: &TargetState) -> Vec<Operation> {
    let mut operations = Vec::new();
    let reseeded = installed
        .settings
        .is_none_or(|settings| settings.hash_seed != target.settings.hash_seed);
    if installed.settings != Some(target.settings) {
        operations.push(Operation::Settings(target.settings));
    }

    // First both the old and the new prefixes; at the end only the new ones.
    let trust: BTreeSet<IpNet> = installed
        .trusted_edges
        .union(&target.trusted_edges)
        .copied()
        .collect();
    if trust != installed.trusted_edges {
        operations.push(Operation::Trust(trust.clone()));
    }
    let mut addresses = Arc::clone(&installed.addresses);
    if addresses != target.addresses {
        let both = Arc::new(addresses.union(&target.addresses));
        if both != addresses {
            operations.push(Operation::Addresses(Arc::clone(&both)));
        }
        addresses = both;
    }

    operations.push(Operation::Resolve {
        nodes: target.nodes.clone(),
        by_nat: target.by_nat.clone(),
        edges: target.l2dsr_edges(),
    });
    let put =
        |(key, spec): (&ServiceKey, &Arc<ServiceSpec>)| Operation::Put(*key, Arc::clone(spec));
    let changes = installed.services.diff(&target.services).map(sides);
    let mut removed: BTreeSet<&ServiceKey> = installed.unknown.iter().collect();
    removed.retain(|key| !target.services.contains_key(*key));
    for (old, new) in changes {
        match (old, new) {
            (Some((key, _)), None) => drop(removed.insert(key)),
            (_, new) => operations.extend(new.filter(|_| !reseeded).map(put)),
        }
    }
    if reseeded {
        operations.extend(target.services.iter().map(put));
    }
    operations.extend(removed.into_iter().copied().map(Operation::Remove));

    if addresses != target.addresses {
        operations.push(Operation::Addresses(target.addresses.clone()));
    }
    if trust != target.trusted_edges {
        operations.push(Operation::Trust(target.trusted_edges.clone()));
    }
    for name in installed
        .interfaces
        .keys()
        .filter(|name| !target.interfaces.contains_key(*name))
    {
        operations.push(Operation::Detach(name.clone()));
    }
    for device in &target.egress {
        if installed.egress.get(device) != Some(&true) {
            operations.push(Operation::AttachEgress(device.clone()));
        }
    }
    for (name, mode) in &target.interfaces {
        if installed.interfaces.get(name) != Some(&Some(*mode)) {
            operations.push(Operation::Attach(name.clone(), *mode));
        }
    }
    for device in installed
        .egress
        .keys()
        .filter(|device| !target.egress.contains(*device))
    {
        operations.push(Operation::DetachEgress(device.clone()));
    }
    operations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::target_state::Machine;

    const EDGE_AND_NODE: &str = "\
interfaces: [{name: eth0}]
roles: [edge, node]
hash_seed: 7
vips: [10.99.0.1, 10.99.0.2]
services:
  - {name: a, address: 10.99.0.1, port: 80, protocol: tcp, backends: [{address: 10.0.0.1}]}
  - {name: b, address: 10.99.0.2, port: 80, protocol: tcp, backends: [{address: 10.0.0.2}]}
trusted_edges: [10.0.0.8/29]
";

    fn target(text: &str) -> TargetState {
        let machine = Machine {
            addresses: ["10.0.0.9", "10.99.0.1"]
                .map(|text| text.parse().unwrap())
                .into(),
            pod_devices: ["pod0".to_owned()].into(),
            ..Machine::default()
        };
        TargetState::of(&config::parse(text).unwrap().desired, &machine)
    }

    /// The state after everything in a plan for `target` was done.
    fn installed(target: &TargetState) -> Installed {
        let interfaces = target.interfaces.iter();
        Installed {
            settings: Some(target.settings),
            addresses: target.addresses.clone(),
            trusted_edges: target.trusted_edges.clone(),
            services: target.services.clone(),
            unknown: BTreeSet::new(),
            interfaces: interfaces
                .map(|(name, mode)| (name.clone(), Some(*mode)))
                .collect(),
            egress: target
                .egress
                .iter()
                .map(|device| (device.clone(), true))
                .collect(),
        }
    }

    /// Names the steps, for their order.
    fn names(operations: &[Operation]) -> Vec<String> {
        let name = |operation: &Operation| match operation {
            Operation::Settings(_) => "settings".to_owned(),
            Operation::Trust(prefixes) => format!("trust {}", prefixes.len()),
            Operation::Addresses(addresses) => {
                format!(
                    "addresses {} {}",
                    addresses.vips.len(),
                    addresses.local.len()
                )
            }
            Operation::Resolve { nodes, .. } => format!("resolve {}", nodes.len()),
            Operation::Put(key, _) => format!("put {}", key.address),
            Operation::Remove(key) => format!("remove {}", key.address),
            Operation::Attach(name, _) => format!("attach {name}"),
            Operation::Detach(name) => format!("detach {name}"),
            Operation::AttachEgress(device) => format!("attach egress {device}"),
            Operation::DetachEgress(device) => format!("detach egress {device}"),
        };
        operations.iter().map(name).collect()
    }

    #[test]
    fn first_start_fills_the_tables_and_attaches_last() {
        let wanted = target(EDGE_AND_NODE);
        let operations = plan(&Installed::default(), &wanted);
        assert_eq!(
            names(&operations),
            [
                "settings",
                "trust 1",
                "addresses 2 1",
                "resolve 2",
                "put 10.99.0.1",
                "put 10.99.0.2",
                "attach egress eth0",
                "attach egress pod0",
                "attach eth0",
            ]
        );
    }

    #[test]
    fn checks_need_the_egress_program_on_the_uplinks() {
        let edge = EDGE_AND_NODE.replace("[edge, node]", "[edge]");
        let without_nodes = edge.replacen("services:", "node_health: off\nservices:", 1);
        let plain = target(&without_nodes);
        assert!(plain.egress.is_empty() && !plain.settings.probes);
        let backends = without_nodes.replacen("protocol: tcp,", "protocol: tcp, health: {},", 1);
        for checked in [edge, backends].map(|text| target(&text)) {
            assert_eq!(checked.egress, BTreeSet::from(["eth0".to_owned()]));
            assert!(checked.settings.probes);
        }
    }

    #[test]
    fn nothing_changes_when_everything_is_as_desired() {
        let wanted = target(EDGE_AND_NODE);
        assert_eq!(names(&plan(&installed(&wanted), &wanted)), ["resolve 2"]);
    }

    #[test]
    fn what_an_earlier_agent_left_is_confirmed_and_the_rest_removed() {
        let wanted = target(EDGE_AND_NODE);
        let mut before = installed(&wanted);
        before.unknown = std::mem::take(&mut before.services)
            .keys()
            .copied()
            .collect();
        before.interfaces = [("eth0".to_owned(), None), ("eth9".to_owned(), None)].into();
        assert_eq!(
            names(&plan(&before, &wanted)),
            [
                "resolve 2",
                "put 10.99.0.1",
                "put 10.99.0.2",
                "detach eth9",
                "attach eth0"
            ]
        );
    }

    #[test]
    fn without_a_desired_state_programs_are_taken_over_and_nothing_is_removed() {
        let wanted = target(EDGE_AND_NODE);
        let mut before = installed(&wanted);
        before.interfaces = [("eth0".to_owned(), None), ("eth9".to_owned(), None)].into();
        before.egress = [("eth0".to_owned(), false), ("pod0".to_owned(), true)].into();
        assert_eq!(
            names(&hold(&before, &wanted.interfaces)),
            ["attach egress eth0", "attach eth0"]
        );
        assert!(hold(&installed(&wanted), &wanted.interfaces).is_empty());
    }

    #[test]
    fn addresses_come_before_a_service_and_go_after_it() {
        let old = target(EDGE_AND_NODE);
        let new = target(&EDGE_AND_NODE.replace("10.99.0.2", "10.99.0.3"));
        assert_eq!(
            names(&plan(&installed(&old), &new)),
            [
                "addresses 3 1",
                "resolve 2",
                "put 10.99.0.3",
                "remove 10.99.0.2",
                "addresses 2 1"
            ]
        );
    }

    #[test]
    fn another_edge_is_trusted_before_the_old_one_is_dropped() {
        let old = target(EDGE_AND_NODE);
        let new = target(&EDGE_AND_NODE.replace("10.0.0.8/29", "10.0.0.16/29"));
        assert_eq!(
            names(&plan(&installed(&old), &new)),
            ["trust 2", "resolve 2", "trust 1"]
        );
    }

    #[test]
    fn only_the_changed_service_is_put() {
        let old = target(EDGE_AND_NODE);
        let new =
            target(&EDGE_AND_NODE.replace("address: 10.0.0.2}", "address: 10.0.0.2, weight: 2}"));
        assert_eq!(
            names(&plan(&installed(&old), &new)),
            ["resolve 2", "put 10.99.0.2"]
        );
    }

    #[test]
    fn oldest_services_are_put_first_and_all_else_stays_in_order() {
        let wanted = target(EDGE_AND_NODE);
        let mut operations = plan(&Installed::default(), &wanted);
        let mut expected = names(&operations);
        let is_put = |name: &String| name.starts_with("put ");
        let puts: Vec<usize> = (0..expected.len())
            .filter(|index| is_put(&expected[*index]))
            .collect();
        // The last address belongs to the oldest service, and that of the first one is as old.
        oldest_first(&mut operations, |key| {
            key.address != "10.99.0.2".parse::<IpAddr>().unwrap()
        });
        expected.swap(puts[0], puts[1]);
        assert_eq!(names(&operations), expected);
        oldest_first(&mut operations, |_| 0);
        expected.swap(puts[0], puts[1]);
        assert_eq!(names(&operations), expected);
    }

    #[test]
    fn another_seed_rebuilds_every_table() {
        let old = target(EDGE_AND_NODE);
        let new = target(&EDGE_AND_NODE.replace("hash_seed: 7", "hash_seed: 8"));
        assert_eq!(
            names(&plan(&installed(&old), &new)),
            ["settings", "resolve 2", "put 10.99.0.1", "put 10.99.0.2"]
        );
    }

    #[test]
    fn egress_program_is_there_before_the_xdp_program_and_after_it() {
        let node = target(EDGE_AND_NODE);
        let edge = target(
            &EDGE_AND_NODE
                .replace("[edge, node]", "[edge]")
                .replace("services:", "node_health: off\nservices:")
                .replace("eth0", "eth1"),
        );
        let steps = names(&plan(&installed(&node), &edge));
        assert!(
            steps.ends_with(&[
                "detach eth0".to_owned(),
                "attach eth1".to_owned(),
                "detach egress eth0".to_owned(),
                "detach egress pod0".to_owned(),
            ]),
            "{steps:?}"
        );

        let mut before = installed(&node);
        before.egress = [("eth0".to_owned(), false), ("gone".to_owned(), true)].into();
        assert_eq!(
            names(&plan(&before, &node)),
            [
                "resolve 2",
                "attach egress eth0",
                "attach egress pod0",
                "detach egress gone"
            ]
        );
    }
}
