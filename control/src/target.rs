//! The desired state on one machine: roles applied, NodePorts at its own addresses.
//!
//! One configuration may be given to every machine. What differs between them is
//! here: a node takes decapsulated packets and has pods, an edge balances, and
//! each serves NodePorts at addresses of its own.

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
    AttachMode, Desired, ForwardMode, Role, Service, ServiceKey, ServiceSpec, Services,
    TrafficPolicy, unspecified,
};
use crate::service_totals::{Counts, ServiceTotals};
use crate::versions::sides;

impl Desired {
    /// Tells whether a machine with these addresses has the node role.
    pub fn is_node(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        match self.node {
            Role::No => false,
            Role::Yes => true,
            Role::IfListed => !self.nodes.is_disjoint(addresses),
        }
    }
}

/// Returns the one of these services that a key in the tables was made from, with the key it is configured by.
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

/// Writes a service as people know it.
pub(crate) fn title(services: &Services, key: &ServiceKey) -> String {
    match name_of(services, key) {
        Some(name) => format!("{name} ({key})"),
        None => key.to_string(),
    }
}

/// What the tables of a machine should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Machine-wide settings.
    pub settings: Settings,
    /// Virtual addresses and those of the machine.
    pub addresses: Arc<Addresses>,
    /// Prefixes from which IP-in-IP is accepted.
    pub trusted_edges: BTreeSet<IpNet>,
    /// Services.
    pub services: Specs,
    /// Addresses that packets are sent to, and those of this machine's own pods' nodes.
    pub nodes: BTreeSet<IpAddr>,
    /// Those of `nodes` that are reached by NAT alone: who writes a service's endpoints says which they are.
    pub by_nat: BTreeSet<IpAddr>,
    /// Interfaces with the attach mode wanted.
    pub interfaces: BTreeMap<String, AttachMode>,
    /// Devices that the egress program belongs on.
    pub egress: BTreeSet<String>,
}

impl Target {
    /// Applies the desired state to a machine.
    pub fn of(desired: &Desired, machine: &Machine) -> Self {
        let mut totals = ServiceTotals::default();
        totals.follow(desired, &machine.addresses);
        MachineServices::default().target(desired, &totals, machine)
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

/// What became of the services, kept from one target to the next: those that are the same objects as before, on
/// a machine that is as before, are not looked into again.
#[derive(Debug, Default)]
pub struct MachineServices {
    place: Place,
    /// What was shaped.
    services: Services,
    specs: Specs,
    /// Addresses that services send to, and whether by NAT.
    nodes: Counts<(IpAddr, bool)>,
    /// NodePorts that are served; whether of IPv4.
    node_ports: Counts<bool>,
    given: Given,
    addresses: Arc<Addresses>,
}

/// What all services_here depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    edge: bool,
    node: bool,
    own: BTreeSet<IpAddr>,
    node_ports: BTreeSet<IpAddr>,
}

/// The policies of one service on a machine.
#[derive(Clone, Copy, Debug)]
struct Policies {
    /// For packets of clients, where this machine balances it.
    balanced: Option<TrafficPolicy>,
    /// For packets of edges, where this machine has the service for its pods alone.
    for_pods: Option<TrafficPolicy>,
}

/// What the addresses are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Given {
    vips: OrdSet<IpAddr>,
    shared: OrdSet<IpAddr>,
    local: BTreeSet<IpAddr>,
    node_ports: BTreeSet<IpAddr>,
    nat: BTreeSet<IpAddr>,
    /// Virtual addresses, of what edges send to the stack.
    inner: OrdSet<IpAddr>,
}

impl MachineServices {
    /// Applies a desired state to a machine; the totals is of all its services, those included of whose backends
    /// some should not serve.
    pub fn target(
        &mut self,
        desired: &Desired,
        totals: &ServiceTotals,
        machine: &Machine,
    ) -> Target {
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

        let mut given = Given {
            // To nodes as well: who has such an address is a client like others.
            shared: desired.shared.clone(),
            ..Given::default()
        };
        let mut trusted_edges = BTreeSet::new();
        let mut egress = BTreeSet::new();
        if desired.edge {
            given.vips = desired.vips.clone();
            given.nat = nat_addresses(desired, totals, machine);
            let served = self.place.node_ports.iter();
            given.node_ports = served
                .filter(|address| self.node_ports.has(&address.is_ipv4()))
                .copied()
                .collect();
        }
        if node {
            let is_vip = |address: &&IpAddr| desired.vips.contains(*address);
            // A machine whose address as a node is on `lo` has more there than services.
            let served = machine.on_loopback.difference(&desired.nodes);
            given.inner = desired.vips.clone().union(served.copied().collect());
            given.local = own.iter().filter(|one| !is_vip(one)).copied().collect();
            trusted_edges.clone_from(&desired.trusted_edges);
            let others = desired.nodes.difference(own).copied();
            trusted_edges.extend(others.map(IpNet::from));
            trusted_edges.extend(desired.sources.prefixes());
            // Replies leave by the uplinks, and by a pod's device if the client is a pod here.
            egress.extend(desired.interfaces.keys().cloned());
            egress.extend(machine.pod_devices.iter().cloned());
        }
        let diverts_checks = totals.diverts_checks(desired);
        if diverts_checks {
            egress.extend(desired.interfaces.keys().cloned());
        }
        if given != self.given {
            self.addresses = given.addresses().into();
            self.given = given;
        }
        let by_nat = self.nodes.keys().filter(|(_, is_nat)| *is_nat);
        let by_nat = by_nat
            .filter(|(node, _)| !self.nodes.has(&(*node, false)) && !desired.nodes.contains(node));
        Target {
            settings: Settings {
                hash_seed: desired.hash_seed,
                source_v4: desired.sources.ipv4,
                source_v6: desired.sources.ipv6,
                prefix_v4: desired.sources.ipv4_prefix,
                prefix_v6: desired.sources.ipv6_prefix,
                node,
                mtu: machine.mtu.filter(|_| node && desired.clamp_mss),
                probes: diverts_checks,
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

    /// Makes the specifications those of these services.
    fn follow(&mut self, services: &Services) {
        let before = std::mem::replace(&mut self.services, services.clone());
        for change in before.diff(services) {
            let (old, new) = sides(change);
            for (side, is_there) in [(old, false), (new, true)] {
                let Some((key, service)) = side else { continue };
                for node in self.place.nodes(*key, &service.spec) {
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

    /// MachineServices a service anew wherever it is served.
    fn put(&mut self, key: ServiceKey) {
        let at_node_ports = self.place.node_ports_like(key.address);
        let at_node_ports = at_node_ports.filter(|_| key.address.is_unspecified());
        let keys = at_node_ports.map(|address| ServiceKey {
            address: *address,
            ..key
        });
        for key in keys.chain([key]).collect::<Vec<_>>() {
            match self.place.spec(key, &self.services) {
                Some(spec) => drop(self.specs.insert(key, spec)),
                None => drop(self.specs.remove(&key)),
            }
        }
    }
}

impl Given {
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

impl Place {
    /// Returns what the tables have at a key: the service there, else a NodePort.
    fn spec(&self, key: ServiceKey, services: &Services) -> Option<Arc<ServiceSpec>> {
        if let Some(service) = services.get(&key) {
            let Policies { balanced, for_pods } = self.shape(key, &service.spec);
            // At no address of its own a NodePort is there for packets of edges.
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

    /// Lists the addresses that a service sends to.
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
        // A node hands to pods what edges send; what else it has the VIP of is the stack's.
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

/// Returns a specification with a policy, which is mostly its own.
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
