//! The desired state on one machine: roles applied, NodePorts at its own addresses.
//!
//! One configuration may be given to every machine. What differs between them is
//! here: a node takes decapsulated packets and has pods, an edge balances, and
//! each serves NodePorts at addresses of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use fastpath::tables::{Addresses, Settings};
use ipnet::IpNet;

use crate::config::host::{self, HostFacts};
use crate::desired::{
    AttachMode, Desired, ForwardMode, NodePortAddresses, Role, Service, ServiceKey, ServiceSpec,
    TrafficPolicy, unspecified,
};

/// What the target depends on of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its addresses that other machines can send to.
    pub addresses: BTreeSet<IpAddr>,
    /// The first of these for each attached interface and family, or the one that is listed as a node,
    /// on any interface.
    pub primary: BTreeSet<IpAddr>,
    /// The smallest MTU of the attached interfaces.
    pub mtu: Option<u32>,
    /// The devices that lead to its pods.
    pub pod_devices: BTreeSet<String>,
}

impl Machine {
    /// Reads out of the machine's facts what matters to the desired state; the pods' devices are not among them.
    pub fn of(desired: &Desired, facts: &HostFacts) -> Self {
        let routed = |address: &&IpAddr| host::is_routed(address);
        let mut primary: BTreeMap<(&str, bool), IpAddr> = BTreeMap::new();
        for address in facts.in_order.iter().filter(routed) {
            let interface = facts.addresses.get(address).map(String::as_str);
            let is_listed = desired.nodes.contains(address);
            // A listed one may lie on a VLAN or a bridge over an attached interface.
            let counts = |name: &&str| is_listed || desired.interfaces.contains_key(*name);
            let Some(interface) = interface.filter(counts) else {
                continue;
            };
            let first = primary
                .entry((interface, address.is_ipv4()))
                .or_insert(*address);
            if is_listed && !desired.nodes.contains(first) {
                *first = *address;
            }
        }
        let mtus = desired.interfaces.keys();
        Self {
            primary: primary.into_values().collect(),
            addresses: facts.addresses.keys().filter(routed).copied().collect(),
            mtu: mtus.filter_map(|name| facts.mtus.get(name)).min().copied(),
            pod_devices: BTreeSet::new(),
        }
    }
}

impl Desired {
    /// Tells whether a machine with these addresses has the node role.
    pub fn is_node(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        match self.node {
            Role::No => false,
            Role::Yes => true,
            Role::IfListed => !self.nodes.is_disjoint(addresses),
        }
    }

    /// Lists the addresses of those pods that run on a machine with the addresses `own`.
    pub fn pods_of(&self, own: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        if !self.is_node(own) {
            return BTreeSet::new();
        }
        let services = self.services.values().map(|service| &service.spec);
        let tunnelled = services.filter(|spec| spec.mode != ForwardMode::Nat);
        let backends = tunnelled.flat_map(|spec| &spec.backends);
        backends
            .filter(|backend| own.contains(&backend.address))
            .filter_map(|backend| backend.pod)
            .map(|pod| pod.ip())
            .collect()
    }

    /// Lists the addresses that replies to NAT mode come to: where none is configured, the next hop's source
    /// may be any of the machine's.
    pub fn nat_addresses(&self, machine: &Machine) -> BTreeSet<IpAddr> {
        let of_family = |is_v4: bool, given: Option<IpAddr>| {
            let own = machine.addresses.difference(&self.vips).copied();
            let own = own.filter(move |address| address.is_ipv4() == is_v4);
            let mut backends = self
                .by_nat()
                .flat_map(|(_, service)| &service.spec.backends);
            match given {
                _ if !backends.any(|backend| backend.address.is_ipv4() == is_v4) => BTreeSet::new(),
                Some(address) => BTreeSet::from([address]),
                None => own.collect(),
            }
        };
        let mut addresses = of_family(true, self.nat.v4.map(IpAddr::V4));
        addresses.append(&mut of_family(false, self.nat.v6.map(IpAddr::V6)));
        addresses
    }

    /// Returns the service that a key in the tables was made from, with the key it is configured by.
    pub fn service(&self, key: &ServiceKey) -> Option<(ServiceKey, &Service)> {
        let as_node_port = ServiceKey {
            address: unspecified(key.address.is_ipv4()),
            ..*key
        };
        [*key, as_node_port]
            .into_iter()
            .find_map(|key| Some((key, self.services.get(&key)?.as_ref())))
    }
}

/// What the tables of a machine should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Machine-wide settings.
    pub settings: Settings,
    /// Virtual addresses and those of the machine.
    pub addresses: Addresses,
    /// Prefixes from which IP-in-IP is accepted.
    pub trusted_edges: BTreeSet<IpNet>,
    /// Services.
    pub services: BTreeMap<ServiceKey, Arc<ServiceSpec>>,
    /// Addresses that packets are sent to, and those of this machine's own pods' nodes.
    pub nodes: BTreeSet<IpAddr>,
    /// Interfaces with the attach mode wanted.
    pub interfaces: BTreeMap<String, AttachMode>,
    /// Devices that the egress program belongs on.
    pub egress: BTreeSet<String>,
}

impl Target {
    /// Applies the desired state to a machine.
    pub fn of(desired: &Desired, machine: &Machine) -> Self {
        Shapes::default().target(desired, machine)
    }

    /// Lists the trusted edges from which frames may come by L2 DSR: single addresses.
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

/// What became of each service, kept from one target to the next: a service that is the same object as
/// before, on a machine that is as before, is not looked into again.
#[derive(Debug, Default)]
pub struct Shapes {
    place: Place,
    shapes: BTreeMap<ServiceKey, Shape>,
    /// How many services send to an address.
    nodes: BTreeMap<IpAddr, usize>,
}

/// What all shapes depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    edge: bool,
    node: bool,
    own: BTreeSet<IpAddr>,
    node_ports: BTreeSet<IpAddr>,
}

#[derive(Debug)]
struct Shape {
    service: Arc<Service>,
    /// For packets of clients, where this machine balances it.
    balanced: Option<Arc<ServiceSpec>>,
    /// For packets of edges, where this machine has the service for its pods alone.
    for_pods: Option<Arc<ServiceSpec>>,
    /// Addresses that it sends to.
    nodes: BTreeSet<IpAddr>,
}

impl Shapes {
    /// Applies the desired state to a machine.
    pub fn target(&mut self, desired: &Desired, machine: &Machine) -> Target {
        let own = &machine.addresses;
        let node = desired.is_node(own);
        let place = Place {
            edge: desired.edge,
            node,
            own: own.clone(),
            node_ports: node_port_addresses(desired, machine),
        };
        if place != self.place {
            *self = Self {
                place,
                ..Self::default()
            };
        }
        self.follow(&desired.services);

        let mut target = Target {
            settings: Settings {
                hash_seed: desired.hash_seed,
                source_v4: desired.sources.ipv4,
                source_v6: desired.sources.ipv6,
                node,
                mtu: machine.mtu.filter(|_| node && desired.clamp_mss),
                probes: desired.diverts_checks(),
                nat: desired.by_nat().next().map(|_| desired.nat),
            },
            addresses: Addresses::default(),
            trusted_edges: BTreeSet::new(),
            services: BTreeMap::new(),
            nodes: self.nodes.keys().copied().collect(),
            interfaces: desired.interfaces.clone(),
            egress: BTreeSet::new(),
        };
        if desired.edge {
            target.addresses.vips = &desired.vips - &desired.shared;
            target.addresses.shared.clone_from(&desired.shared);
            target.addresses.nat = desired.nat_addresses(machine);
        }
        if node {
            target.addresses.local = own.difference(&desired.vips).copied().collect();
            target.trusted_edges.clone_from(&desired.trusted_edges);
            let others = desired.nodes.difference(own).copied();
            target.trusted_edges.extend(others.map(IpNet::from));
            // Replies leave by the uplinks, and by a pod's device if the client is a pod here.
            target.egress = desired.interfaces.keys().cloned().collect();
            target.egress.extend(machine.pod_devices.iter().cloned());
        }
        if desired.diverts_checks() {
            target.egress.extend(desired.interfaces.keys().cloned());
        }
        for (key, shape) in &self.shapes {
            self.add(&mut target, *key, shape);
        }
        target
    }

    /// Makes the shapes those of these services.
    fn follow(&mut self, services: &BTreeMap<ServiceKey, Arc<Service>>) {
        let Self {
            place,
            shapes,
            nodes,
        } = self;
        shapes.retain(|key, shape| {
            let stays = services
                .get(key)
                .is_some_and(|service| Arc::ptr_eq(service, &shape.service));
            if !stays {
                release(nodes, &shape.nodes);
            }
            stays
        });
        for (key, service) in services {
            shapes.entry(*key).or_insert_with(|| {
                let shape = place.shape(*key, service);
                for node in &shape.nodes {
                    *nodes.entry(*node).or_default() += 1;
                }
                shape
            });
        }
    }

    fn add(&self, target: &mut Target, key: ServiceKey, shape: &Shape) {
        if let Some(spec) = &shape.for_pods {
            target.services.insert(key, Arc::clone(spec));
        }
        let Some(spec) = &shape.balanced else {
            return;
        };
        if !key.address.is_unspecified() {
            target.services.insert(key, Arc::clone(spec));
            return;
        }
        for address in self.place.node_ports_like(key.address) {
            target.addresses.node_ports.insert(*address);
            let key = ServiceKey {
                address: *address,
                ..key
            };
            target.services.insert(key, Arc::clone(spec));
        }
    }
}

impl Place {
    fn shape(&self, key: ServiceKey, service: &Arc<Service>) -> Shape {
        let spec = &service.spec;
        let with_policy = |traffic_policy| {
            Arc::new(ServiceSpec {
                traffic_policy,
                ..spec.clone()
            })
        };
        // To a machine without pods the policy would leave nothing: it is the load balancer in front,
        // which sends to the nodes that have some.
        let policy = if self.node {
            spec.traffic_policy
        } else {
            TrafficPolicy::Cluster
        };
        let is_node_port = key.address.is_unspecified();
        let is_balanced =
            self.edge && (!is_node_port || self.node_ports_like(key.address).next().is_some());
        let balanced = is_balanced.then(|| with_policy(policy));
        // A node hands to pods what edges send; what else it has the VIP of is the stack's.
        let has_pods = self.node
            && spec.mode != ForwardMode::Nat
            && spec.backends.iter().any(|backend| backend.pod.is_some());
        let for_pods =
            (has_pods && (is_node_port || !self.edge)).then(|| with_policy(TrafficPolicy::Local));
        let mut nodes = BTreeSet::new();
        for spec in [&balanced, &for_pods].into_iter().flatten() {
            let used = spec.backends.iter().map(|backend| backend.address);
            let all = spec.traffic_policy == TrafficPolicy::Cluster;
            nodes.extend(used.filter(|node| all || self.own.contains(node)));
        }
        Shape {
            service: Arc::clone(service),
            balanced,
            for_pods,
            nodes,
        }
    }

    fn node_ports_like(&self, like: IpAddr) -> impl Iterator<Item = &IpAddr> {
        let is_like = move |address: &&IpAddr| address.is_ipv4() == like.is_ipv4();
        self.node_ports.iter().filter(is_like)
    }
}

/// Takes one service off the count of each address.
fn release(nodes: &mut BTreeMap<IpAddr, usize>, addresses: &BTreeSet<IpAddr>) {
    for address in addresses {
        if let Some(count) = nodes.get_mut(address) {
            *count -= 1;
            if *count == 0 {
                nodes.remove(address);
            }
        }
    }
}

/// Chooses the addresses of a machine at which NodePorts are served; never a VIP.
fn node_port_addresses(desired: &Desired, machine: &Machine) -> BTreeSet<IpAddr> {
    let mut addresses = match &desired.node_port_addresses {
        NodePortAddresses::Primary => machine.primary.clone(),
        NodePortAddresses::All => machine.addresses.clone(),
        NodePortAddresses::Within(networks) => {
            let within = |address: &&IpAddr| networks.iter().any(|net| net.contains(*address));
            machine.addresses.iter().filter(within).copied().collect()
        }
    };
    addresses.retain(|address| !desired.vips.contains(address));
    addresses
}

#[cfg(test)]
mod tests;
