//! Applies the desired state to one machine: its roles, and NodePorts at its own addresses.
//!
//! All machines may have the same configuration. This module knows what differs: a node accepts decapsulated
//! packets and has pods, an edge balances, and each machine serves NodePorts at its own addresses.

mod machine;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use fastpath::tables::{Addresses, Settings, Specs};
use imbl::OrdSet;
use ipnet::IpNet;

pub use self::machine::Machine;
use self::machine::{nat_addresses, node_port_addresses};
use crate::desired::{
    AttachMode, Desired, ForwardMode, Service, ServiceKey, ServiceSpec, Services, TrafficPolicy,
    unspecified,
};
use crate::service_totals::{Counts, ServiceTotals};
use crate::versions::sides;

/// Returns the service behind a key of the tables, with the key in the configuration. NodePorts have the
/// unspecified address there.
pub fn service_at<'a>(
    services: &'a Services,
    key: &ServiceKey,
) -> Option<(ServiceKey, &'a Service)> {
    let as_node_port = ServiceKey {
        address: unspecified(key.address.is_ipv4()),
        ..*key
    };
    [*key, as_node_port]
        .into_iter()
        .find_map(|key| Some((key, services.get(&key)?.as_ref())))
}

pub(crate) fn name_of(services: &Services, key: &ServiceKey) -> Option<String> {
    let (_, service) = service_at(services, key)?;
    Some(service.name.clone())
}

/// Returns a service's name and key, as messages show it.
pub(crate) fn title(services: &Services, key: &ServiceKey) -> String {
    match name_of(services, key) {
        Some(name) => format!("{name} ({key})"),
        None => key.to_string(),
    }
}

/// The content that the tables of a machine should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetState {
    /// Machine-wide settings.
    pub settings: Settings,
    /// Virtual addresses and the machine's own addresses.
    pub addresses: Arc<Addresses>,
    /// Prefixes from which IP-in-IP is accepted.
    pub trusted_edges: BTreeSet<IpNet>,
    /// Services.
    pub services: Specs,
    /// Addresses that packets are sent to, including this machine's if its own pods are backends.
    pub nodes: BTreeSet<IpAddr>,
    /// Those of `nodes` that are reached by NAT only. Whoever writes a service's endpoints decides which these are.
    pub by_nat: BTreeSet<IpAddr>,
    /// Interfaces with their attach modes.
    pub interfaces: BTreeMap<String, AttachMode>,
    /// Devices that need the egress program.
    pub egress: BTreeSet<String>,
}

impl TargetState {
    /// Applies a desired state to a machine.
    pub fn of(desired: &Desired, machine: &Machine) -> Self {
        let mut totals = ServiceTotals::default();
        totals.follow(desired, &machine.addresses);
        MachineServices::default().target(desired, &totals, machine)
    }

    /// Returns the trusted edges from which L2 DSR frames may come: the single addresses among the prefixes.
    pub fn l2dsr_edges(&self) -> BTreeSet<IpAddr> {
        let mut services = self.services.values();
        if !self.settings.node || !services.any(|spec| spec.mode == ForwardMode::L2dsr) {
            return BTreeSet::new();
        }
        let single = |net: &&IpNet| net.prefix_len() == net.max_prefix_len();
        let edges = self.trusted_edges.iter().filter(single);
        edges.map(IpNet::addr).collect()
    }
}

/// The services as the tables of this machine should have them. It is kept from one target to the next: while
/// the machine does not change, unchanged services are not computed again.
#[derive(Debug, Default)]
pub struct MachineServices {
    roles: MachineRoles,
    /// The services that `specs` was computed from.
    services: Services,
    specs: Specs,
    /// Addresses that services send packets to, and whether by NAT.
    nodes: Counts<(IpAddr, bool)>,
    /// NodePorts that are served, by whether they are IPv4.
    node_ports: Counts<bool>,
    inputs: AddressInputs,
    addresses: Arc<Addresses>,
}

/// What every service depends on. A change of it recomputes all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MachineRoles {
    edge: bool,
    node: bool,
    own: BTreeSet<IpAddr>,
    node_ports: BTreeSet<IpAddr>,
}

/// The traffic policies of one service on a machine.
#[derive(Clone, Copy, Debug)]
struct Policies {
    /// For packets from clients, if this machine balances the service.
    balanced: Option<TrafficPolicy>,
    /// For packets from edges, if this machine has the service only for its own pods.
    for_pods: Option<TrafficPolicy>,
}

/// The inputs that `addresses` was computed from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AddressInputs {
    vips: OrdSet<IpAddr>,
    shared: OrdSet<IpAddr>,
    local: BTreeSet<IpAddr>,
    node_ports: BTreeSet<IpAddr>,
    nat: BTreeSet<IpAddr>,
    /// Virtual addresses whose decapsulated packets the machine's own stack accepts.
    inner: OrdSet<IpAddr>,
}

impl MachineServices {
    /// Applies a desired state to a machine. `totals` must be of all its services, including backends that
    /// health checks left out.
    pub fn target(
        &mut self,
        desired: &Desired,
        totals: &ServiceTotals,
        machine: &Machine,
    ) -> TargetState {
        let own = &machine.addresses;
        let node = desired.is_node(own);
        let roles = MachineRoles {
            edge: desired.edge,
            node,
            own: own.clone(),
            node_ports: node_port_addresses(desired, machine),
        };
        if roles != self.roles {
            *self = Self {
                roles,
                ..Self::default()
            };
        }
        self.follow(&desired.services);

        let mut inputs = AddressInputs {
            // Nodes need these too: whoever has such an address may also be a client.
            shared: desired.shared.clone(),
            ..AddressInputs::default()
        };
        let mut trusted_edges = BTreeSet::new();
        let mut egress = BTreeSet::new();
        if desired.edge {
            inputs.vips = desired.vips.clone();
            inputs.nat = nat_addresses(desired, totals, machine);
            let served = self.roles.node_ports.iter();
            inputs.node_ports = served
                .filter(|address| self.node_ports.has(&address.is_ipv4()))
                .copied()
                .collect();
        }
        if node {
            let is_vip = |address: &&IpAddr| desired.vips.contains(*address);
            // The machine's own address under `nodes` may be on `lo` too. It receives more than services.
            let served = machine.on_loopback.difference(&desired.nodes);
            inputs.inner = desired.vips.clone().union(served.copied().collect());
            inputs.local = own.iter().filter(|one| !is_vip(one)).copied().collect();
            trusted_edges.clone_from(&desired.trusted_edges);
            let others = desired.nodes.difference(own).copied();
            trusted_edges.extend(others.map(IpNet::from));
            trusted_edges.extend(desired.sources.prefixes());
            // Replies leave by the uplinks. If the client is a pod of this machine, they leave by that pod's device.
            egress.extend(desired.interfaces.keys().cloned());
            egress.extend(machine.pod_devices.iter().cloned());
        }
        let diverts_checks = totals.diverts_checks(desired);
        if diverts_checks {
            egress.extend(desired.interfaces.keys().cloned());
        }
        if inputs != self.inputs {
            self.addresses = inputs.addresses().into();
            self.inputs = inputs;
        }
        let by_nat = self.nodes.keys().filter(|(_, is_nat)| *is_nat);
        let by_nat = by_nat
            .filter(|(node, _)| !self.nodes.has(&(*node, false)) && !desired.nodes.contains(node));
        TargetState {
            settings: Settings {
                hash_seed: desired.hash_seed,
                source_v4: desired.sources.ipv4,
                source_v6: desired.sources.ipv6,
                prefix_v4: desired.sources.ipv4_prefix,
                prefix_v6: desired.sources.ipv6_prefix,
                node,
                mtu: machine.mtu.filter(|_| node && desired.clamp_mss),
                probes: diverts_checks,
                mend: desired.mend.is_some(),
                nat: (desired.edge && totals.has_nat()).then_some(desired.nat),
            },
            addresses: Arc::clone(&self.addresses),
            trusted_edges,
            services: self.specs.clone(),
            nodes: self.nodes.keys().map(|(node, _)| *node).collect(),
            by_nat: by_nat.map(|(node, _)| *node).collect(),
            interfaces: desired.interfaces.clone(),
            egress,
        }
    }

    /// Updates the specifications to these services.
    fn follow(&mut self, services: &Services) {
        let before = std::mem::replace(&mut self.services, services.clone());
        for change in before.diff(services) {
            let (old, new) = sides(change);
            for (side, is_there) in [(old, false), (new, true)] {
                let Some((key, service)) = side else { continue };
                for node in self.roles.nodes(*key, &service.spec) {
                    let is_nat = service.spec.mode == ForwardMode::Nat;
                    self.nodes.count((node, is_nat), is_there);
                }
                if key.address.is_unspecified() {
                    self.node_ports.count(key.address.is_ipv4(), is_there);
                }
            }
            if let Some((key, _)) = new.or(old) {
                self.put(*key);
            }
        }
    }

    /// Recomputes a service at every address where it is served.
    fn put(&mut self, key: ServiceKey) {
        let at_node_ports = self.roles.node_ports_like(key.address);
        let at_node_ports = at_node_ports.filter(|_| key.address.is_unspecified());
        let keys = at_node_ports.map(|address| ServiceKey {
            address: *address,
            ..key
        });
        for key in keys.chain([key]).collect::<Vec<_>>() {
            match self.roles.spec(key, &self.services) {
                Some(spec) => drop(self.specs.insert(key, spec)),
                None => drop(self.specs.remove(&key)),
            }
        }
    }
}

impl AddressInputs {
    fn addresses(&self) -> Addresses {
        let is_alone = |vip: &&IpAddr| self.vips.contains(*vip) && !self.shared.contains(*vip);
        let inner = self.inner.iter().filter(|vip| !is_alone(vip));
        Addresses {
            vips: self.vips.iter().filter(is_alone).copied().collect(),
            inner: inner.copied().collect(),
            shared: self.shared.iter().copied().collect(),
            local: self.local.clone(),
            node_ports: self.node_ports.clone(),
            nat: self.nat.clone(),
        }
    }
}

impl MachineRoles {
    /// Returns the specification that the tables should have at a key: that of the service there, else that of
    /// a NodePort.
    fn spec(&self, key: ServiceKey, services: &Services) -> Option<Arc<ServiceSpec>> {
        if let Some(service) = services.get(&key) {
            let Policies { balanced, for_pods } = self.shape(key, &service.spec);
            // A NodePort without an address of the machine is only for packets from edges.
            let balanced = balanced.filter(|_| !key.address.is_unspecified());
            return Some(with_policy(&service.spec, balanced.or(for_pods)?));
        }
        let as_node_port = ServiceKey {
            address: unspecified(key.address.is_ipv4()),
            ..key
        };
        let is_served = self.node_ports.contains(&key.address);
        let service = services.get(&as_node_port).filter(|_| is_served)?;
        let policy = self.shape(as_node_port, &service.spec).balanced?;
        Some(with_policy(&service.spec, policy))
    }

    /// Returns the addresses that a service sends packets to.
    fn nodes(&self, key: ServiceKey, spec: &ServiceSpec) -> BTreeSet<IpAddr> {
        let Policies { balanced, for_pods } = self.shape(key, spec);
        let policies = [balanced, for_pods];
        let all = policies.contains(&Some(TrafficPolicy::Cluster));
        let own = policies.contains(&Some(TrafficPolicy::Local));
        let used = spec.backends.iter().map(|backend| backend.address);
        used.filter(|node| all || (own && self.own.contains(node)))
            .collect()
    }

    fn shape(&self, key: ServiceKey, spec: &ServiceSpec) -> Policies {
        // On a machine without pods, policy `Local` would leave no backends. Such a machine is a load balancer
        // in front, which sends to the nodes with pods.
        let policy = if self.node {
            spec.traffic_policy
        } else {
            TrafficPolicy::Cluster
        };
        let is_node_port = key.address.is_unspecified();
        let is_balanced =
            self.edge && (!is_node_port || self.node_ports_like(key.address).next().is_some());
        // A node delivers packets from edges to its pods. Without pods here, packets to the VIP are for the stack.
        let has_pods = self.node
            && spec.mode != ForwardMode::Nat
            && spec.backends.iter().any(|backend| backend.pod.is_some());
        Policies {
            balanced: is_balanced.then_some(policy),
            for_pods: (has_pods && (is_node_port || !self.edge)).then_some(TrafficPolicy::Local),
        }
    }

    fn node_ports_like(&self, like: IpAddr) -> impl Iterator<Item = &IpAddr> {
        let is_like = move |address: &&IpAddr| address.is_ipv4() == like.is_ipv4();
        self.node_ports.iter().filter(is_like)
    }
}

/// Returns a specification with another policy. Shares it if the policy is the same, which is the usual case.
fn with_policy(spec: &Arc<ServiceSpec>, traffic_policy: TrafficPolicy) -> Arc<ServiceSpec> {
    if spec.traffic_policy == traffic_policy {
        return Arc::clone(spec);
    }
    Arc::new(ServiceSpec {
        traffic_policy,
        ..ServiceSpec::clone(spec)
    })
}

#[cfg(test)]
mod tests;
