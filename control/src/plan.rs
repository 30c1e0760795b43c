//! The way from what is installed to what is desired: an ordered list of operations.
//!
//! Pure: no table is read or written here. The order never lets a packet meet half
//! of a change: trust, addresses and next hops come before the services that need
//! them and go after those that needed them, the XDP program is attached last, and
//! the egress program, which translates replies, is there before it and after it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use fastpath::tables::{Addresses, NatSettings, Settings};
use ipnet::IpNet;

use crate::desired::{AttachMode, Desired, ForwardMode, ServiceKey, ServiceSpec};

/// What the dataplane has.
#[derive(Debug, Default)]
pub struct Installed<'tables> {
    /// Machine-wide settings; unknown in tables that nobody has set yet.
    pub settings: Option<Settings>,
    /// Virtual addresses and those of this machine.
    pub addresses: Addresses,
    /// Prefixes from which it is accepted.
    pub trusted_edges: BTreeSet<IpNet>,
    /// Services; those of an earlier agent without what they were made from.
    pub services: BTreeMap<ServiceKey, Option<&'tables ServiceSpec>>,
    /// Interfaces; those of an earlier agent without the mode that it was allowed.
    pub interfaces: BTreeMap<String, Option<AttachMode>>,
    /// Devices with the egress program, and whether this agent has put its own there.
    pub egress: BTreeMap<String, bool>,
}

/// What the plan needs to know of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// The devices that lead to its pods.
    pub pod_devices: BTreeSet<String>,
}

/// Lists the addresses of those pods that run on a machine with the addresses `own`.
pub fn pods_of(desired: &Desired, own: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    let services = desired.services.values().map(|service| &service.spec);
    let tunnelled = services.filter(|spec| spec.mode != ForwardMode::Nat);
    let backends = tunnelled.flat_map(|spec| &spec.backends);
    backends
        .filter(|backend| desired.node && own.contains(&backend.address))
        .filter_map(|backend| backend.pod)
        .map(|pod| pod.ip())
        .collect()
}

/// One step; each is whole in itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Set the machine-wide settings.
    Settings(Settings),
    /// Make these the trusted prefixes.
    Trust(BTreeSet<IpNet>),
    /// Make these the addresses.
    Addresses(Addresses),
    /// Find the next hops of these node addresses, and follow their changes.
    Resolve(BTreeSet<IpAddr>),
    /// Add or change a service.
    Put(ServiceKey, ServiceSpec),
    /// Remove a service.
    Remove(ServiceKey),
    /// Attach to an interface, or take over what is attached there.
    Attach(String, AttachMode),
    /// Detach from an interface.
    Detach(String),
    /// Attach the egress program to a device, or take over what is attached there.
    AttachEgress(String),
    /// Detach the egress program from a device.
    DetachEgress(String),
}

/// Returns the steps from `installed` to `desired` on this machine.
pub fn plan(installed: &Installed<'_>, desired: &Desired, machine: &Machine) -> Vec<Operation> {
    let target = Target::of(desired, machine);
    let mut operations = Vec::new();
    let reseeded = installed
        .settings
        .is_none_or(|settings| settings.hash_seed != desired.hash_seed);
    if installed.settings != Some(target.settings) {
        operations.push(Operation::Settings(target.settings));
    }

    // First everything that is old or new, at the end only what is new.
    let trust: BTreeSet<IpNet> = installed
        .trusted_edges
        .union(&target.trusted_edges)
        .copied()
        .collect();
    if trust != installed.trusted_edges {
        operations.push(Operation::Trust(trust.clone()));
    }
    let addresses = installed.addresses.union(&target.addresses);
    if addresses != installed.addresses {
        operations.push(Operation::Addresses(addresses.clone()));
    }

    operations.push(Operation::Resolve(target.nodes()));
    for (key, spec) in &target.services {
        let present = installed.services.get(key);
        if reseeded || present != Some(&Some(*spec)) {
            operations.push(Operation::Put(*key, (*spec).clone()));
        }
    }
    for key in installed
        .services
        .keys()
        .filter(|key| !target.services.contains_key(key))
    {
        operations.push(Operation::Remove(*key));
    }

    if addresses != target.addresses {
        operations.push(Operation::Addresses(target.addresses));
    }
    if trust != target.trusted_edges {
        operations.push(Operation::Trust(target.trusted_edges));
    }
    for name in installed
        .interfaces
        .keys()
        .filter(|name| !desired.interfaces.contains_key(*name))
    {
        operations.push(Operation::Detach(name.clone()));
    }
    for device in &target.egress {
        if installed.egress.get(device) != Some(&true) {
            operations.push(Operation::AttachEgress(device.clone()));
        }
    }
    for (name, mode) in &desired.interfaces {
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

/// The desired state as tables, with the roles applied.
struct Target<'desired> {
    settings: Settings,
    addresses: Addresses,
    trusted_edges: BTreeSet<IpNet>,
    services: BTreeMap<ServiceKey, &'desired ServiceSpec>,
    egress: BTreeSet<String>,
}

impl<'desired> Target<'desired> {
    fn of(desired: &'desired Desired, machine: &Machine) -> Self {
        let mut target = Self {
            settings: Settings {
                hash_seed: desired.hash_seed,
                source_v4: desired.sources.ipv4,
                source_v6: desired.sources.ipv6,
                node: desired.node,
                nat: desired.edge.then(NatSettings::default),
                ..Settings::default()
            },
            addresses: Addresses::default(),
            trusted_edges: BTreeSet::new(),
            services: BTreeMap::new(),
            egress: BTreeSet::new(),
        };
        if desired.edge {
            target.addresses.vips.clone_from(&desired.vips);
            let services = desired.services.iter();
            target.services = services
                .map(|(key, service)| (*key, &service.spec))
                .collect();
        }
        if desired.node {
            target.addresses.local = &machine.addresses - &desired.vips;
            target.trusted_edges.clone_from(&desired.trusted_edges);
            // Replies leave by the uplinks, and by a pod's device if the client is a pod here.
            target.egress = desired.interfaces.keys().cloned().collect();
            target.egress.extend(machine.pod_devices.iter().cloned());
        }
        if desired.diverts_checks() {
            target.settings.probes = true;
            target.egress.extend(desired.interfaces.keys().cloned());
        }
        target
    }

    fn nodes(&self) -> BTreeSet<IpAddr> {
        let backends = self.services.values().flat_map(|spec| &spec.backends);
        backends.map(|backend| backend.address).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::desired::BackendSpec;

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

    fn desired(text: &str) -> Desired {
        config::parse(text).unwrap().desired
    }

    fn own() -> Machine {
        Machine {
            addresses: addresses(&["10.0.0.9", "10.99.0.1"]),
            pod_devices: BTreeSet::from(["pod0".to_owned()]),
        }
    }

    fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// The state after everything in a plan for `desired` was done.
    fn installed(desired: &Desired) -> Installed<'_> {
        let target = Target::of(desired, &own());
        Installed {
            settings: Some(target.settings),
            addresses: target.addresses,
            trusted_edges: target.trusted_edges,
            services: target
                .services
                .into_iter()
                .map(|(key, spec)| (key, Some(spec)))
                .collect(),
            interfaces: desired
                .interfaces
                .iter()
                .map(|(name, mode)| (name.clone(), Some(*mode)))
                .collect(),
            egress: target
                .egress
                .into_iter()
                .map(|device| (device, true))
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
            Operation::Resolve(nodes) => format!("resolve {}", nodes.len()),
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
        let desired = desired(EDGE_AND_NODE);
        let operations = plan(&Installed::default(), &desired, &own());
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
        let plain = desired(&edge);
        let target = Target::of(&plain, &own());
        assert!(target.egress.is_empty() && !target.settings.probes);
        let checked = desired(&edge.replacen("protocol: tcp,", "protocol: tcp, health: {},", 1));
        let target = Target::of(&checked, &own());
        assert_eq!(target.egress, BTreeSet::from(["eth0".to_owned()]));
        assert!(target.settings.probes);
    }

    #[test]
    fn nothing_changes_when_everything_is_as_desired() {
        let desired = desired(EDGE_AND_NODE);
        assert_eq!(
            names(&plan(&installed(&desired), &desired, &own())),
            ["resolve 2"]
        );
    }

    #[test]
    fn what_an_earlier_agent_left_is_confirmed_and_the_rest_removed() {
        let desired = desired(EDGE_AND_NODE);
        let mut before = installed(&desired);
        before.services.values_mut().for_each(|spec| *spec = None);
        before.interfaces = [("eth0".to_owned(), None), ("eth9".to_owned(), None)].into();
        assert_eq!(
            names(&plan(&before, &desired, &own())),
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
    fn addresses_come_before_a_service_and_go_after_it() {
        let old = desired(EDGE_AND_NODE);
        let new = desired(&EDGE_AND_NODE.replace("10.99.0.2", "10.99.0.3"));
        assert_eq!(
            names(&plan(&installed(&old), &new, &own())),
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
        let old = desired(EDGE_AND_NODE);
        let new = desired(&EDGE_AND_NODE.replace("10.0.0.8/29", "10.0.0.16/29"));
        assert_eq!(
            names(&plan(&installed(&old), &new, &own())),
            ["trust 2", "resolve 2", "trust 1"]
        );
    }

    #[test]
    fn only_the_changed_service_is_put() {
        let old = desired(EDGE_AND_NODE);
        let new =
            desired(&EDGE_AND_NODE.replace("address: 10.0.0.2}", "address: 10.0.0.2, weight: 2}"));
        assert_eq!(
            names(&plan(&installed(&old), &new, &own())),
            ["resolve 2", "put 10.99.0.2"]
        );
    }

    #[test]
    fn another_seed_rebuilds_every_table() {
        let old = desired(EDGE_AND_NODE);
        let new = desired(&EDGE_AND_NODE.replace("hash_seed: 7", "hash_seed: 8"));
        assert_eq!(
            names(&plan(&installed(&old), &new, &own())),
            ["settings", "resolve 2", "put 10.99.0.1", "put 10.99.0.2"]
        );
    }

    #[test]
    fn egress_program_is_there_before_the_xdp_program_and_after_it() {
        let node = desired(EDGE_AND_NODE);
        let edge = desired(
            &EDGE_AND_NODE
                .replace("[edge, node]", "[edge]")
                .replace("eth0", "eth1"),
        );
        let steps = names(&plan(&installed(&node), &edge, &own()));
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
            names(&plan(&before, &node, &own())),
            [
                "resolve 2",
                "attach egress eth0",
                "attach egress pod0",
                "detach egress gone"
            ]
        );
    }

    #[test]
    fn pods_here_are_those_on_an_address_of_this_machine() {
        let mut desired = desired(EDGE_AND_NODE);
        let pod = "10.244.0.5:8080".parse().unwrap();
        for (service, node) in desired.services.values_mut().zip(["10.0.0.9", "10.0.0.8"]) {
            service.spec.backends = vec![
                BackendSpec::pod(node.parse().unwrap(), pod, 1),
                BackendSpec::node("10.0.0.9".parse().unwrap(), 1),
            ];
        }
        let own = own().addresses;
        assert_eq!(pods_of(&desired, &own), BTreeSet::from([pod.ip()]));
        let mut nat = desired.clone();
        for service in nat.services.values_mut() {
            service.spec.mode = ForwardMode::Nat;
        }
        assert_eq!(pods_of(&nat, &own), BTreeSet::new());
        desired.node = false;
        assert_eq!(pods_of(&desired, &own), BTreeSet::new());
    }

    #[test]
    fn edge_does_not_decapsulate_and_node_does_not_balance() {
        let edge = desired(&EDGE_AND_NODE.replace("[edge, node]", "[edge]"));
        let target = Target::of(&edge, &own());
        assert!(target.addresses.local.is_empty() && target.trusted_edges.is_empty());
        let node = desired(
            "interfaces: [{name: eth0}]\nroles: [node]\nvips: [10.99.0.1]\ntrusted_edges: [10.0.0.8]\n",
        );
        let target = Target::of(&node, &own());
        assert!(target.addresses.vips.is_empty() && target.services.is_empty());
        assert_eq!(target.addresses.local, addresses(&["10.0.0.9"]));
    }
}
