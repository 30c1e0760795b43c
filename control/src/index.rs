//! Turns Kubernetes objects into the desired state of this machine.
//!
//! ```text
//! Service --------\                     +-- service: what is captured, and by which rules
//! EndpointSlice --+-> entry (dirty) --> +-- select:  endpoints by conditions, policy, hints   --> claims --> State
//! Node, machines -/                     +-- outcome: services of the dataplane
//! ```
//!
//! The index is synchronous and pure: it has no clock, no client and no lock. The order in which objects arrive
//! does not change the state. Each Service keeps its slices. [`Index::update`] recomputes only the Services
//! that an object touched, and the new state shares everything else with the old one. [`crate::kubernetes`]
//! feeds the index and passes its state to the agent.
//!
//! **What is captured.** The index serves three kinds of addresses:
//! - the NodePorts of every Service;
//! - the addresses in the status of a LoadBalancer Service of our class, or without a class if the options say
//!   so. Services of another class have an implementation of their own;
//! - external addresses within the networks of the options.
//!
//! kube-proxy keeps everything else: cluster addresses, the traffic of pods and hosts, `internalTrafficPolicy`,
//! headless Services. A Service with a service-proxy-name label belongs to another proxy.
//!
//! **`externalTrafficPolicy: Local`** applies on a machine that is a Node and has the role `node`. There the
//! service lists the Local sets of all nodes. The tables use this machine's part of it, and drop packets while
//! only other nodes have endpoints. Every other machine is a load balancer in front: it has no pods and uses
//! the Cluster set. It lists endpoints that only their own node uses with weight 0. So all machines list the
//! same nodes, and the client's address is preserved either way.
//!
//! **Pods of this machine** that get no new connections here are listed with weight 0, whatever their
//! condition: the tables deliver to them but never choose them. Agents follow the API server at different
//! speeds. An edge may send to a pod before the pod's own node has heard that it is ready, and for a while
//! after it stops being ready.
//!
//! **Topology hints** count in the Cluster set only. They depend on the machine's zone: if a router moves a
//! flow to an edge in another zone, that edge sends it to another pod. The options can ignore hints where that
//! matters more than locality.
//!
//! **Machines without Guideway** can be reached by NAT only, and a port has one forwarding mode. While more
//! than half of a port's endpoints are on such machines, the whole port uses NAT. Otherwise those endpoints get
//! no traffic. So one pod that starts on the wrong machine moves no flow, and during a migration the pods of
//! the first migrated node do not get all the traffic. A problem names the endpoint in both cases.
//!
//! **Two Services that claim the same** address, port and protocol: a Service that was assigned the address
//! wins over one that names it in `externalIPs`, because anyone who may write a Service can do the latter.
//! After that the older Service wins, then the first by name. The loser gets the key when the winner is
//! deleted.

mod apply;
mod machines;
pub mod objects;
mod options;
mod outcome;
mod parse;
mod port;
mod problem;
mod quota;
mod select;
mod service;
mod slice;
mod sorted_vec_map;
mod state;
mod table_entries;
mod update;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

pub use self::machines::{GuidewayMachines, Reserved};
pub use self::options::{Options, TopologyHints};
pub(crate) use self::parse::address;
pub(crate) use self::problem::quoted;
pub use self::problem::{BrokenRule, Object, Problem};
pub use self::state::{Changes, HealthCheck, State};
pub use self::table_entries::TableEntries;

use self::machines::Machines;
use self::objects::ObjectName;
use self::outcome::AddressOrigin;
use self::problem::Findings;
use self::quota::Quotas;
use self::slice::Names;
use self::update::{Entry, ServiceClaim, put};
use crate::desired::ServiceKey;

/// The known objects, and the state computed from them.
#[derive(Debug, Default)]
pub struct Index {
    options: Options,
    machines: Machines,
    quotas: Quotas,
    entries: HashMap<ObjectName, Box<Entry>>,
    /// Number of entries whose Service is known; the other entries have slices only.
    services_known: usize,
    services_of_slices: BTreeMap<ObjectName, Option<ObjectName>>,
    names: Names,
    dirty: BTreeSet<ObjectName>,
    claims: HashMap<ServiceKey, Vec<ServiceClaim>>,
    /// For each address, the Services that claim it and why.
    captured: HashMap<IpAddr, Vec<(ObjectName, AddressOrigin)>>,
    state: State,
    changes: Changes,
    /// Why the newest version of an object cannot be decoded.
    unreadable: BTreeMap<Object, String>,
}

/// A Service as written, independent of any machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What is wrong with the Service.
    pub problems: Vec<Problem>,
    /// External addresses within the networks of the options.
    pub external: BTreeSet<IpAddr>,
}

/// Reads a Service without considering any machine's addresses.
pub fn read(service: &objects::Service, options: &Options) -> Reading {
    let mut findings = Findings::default();
    let wanted = service::read(service, options, &Machines::default(), &mut findings);
    Reading {
        problems: findings.problems(&Object::Service(service.name.clone())),
        external: wanted.map(|wanted| wanted.external).unwrap_or_default(),
    }
}

/// Returns the problems of a Service whose external addresses `of_machines` belong to machines.
pub fn problems_of_addresses(
    name: &ObjectName,
    of_machines: impl Iterator<Item = IpAddr>,
) -> Vec<Problem> {
    let mut findings = Findings::default();
    of_machines
        .for_each(|address| service::name_machine(address, service::NOT_SERVED, &mut findings));
    findings.problems(&Object::Service(name.clone()))
}

/// Returns the problems of a Service whose assigned addresses `claimed` were later claimed by machines.
pub fn problems_of_claims(
    name: &ObjectName,
    claimed: impl Iterator<Item = IpAddr>,
) -> Vec<Problem> {
    let mut findings = Findings::default();
    claimed.for_each(|address| service::name_claim(address, &mut findings));
    findings.problems(&Object::Service(name.clone()))
}

impl Index {
    /// Creates an index without objects.
    pub fn new(options: Options) -> Self {
        let mut index = Self::default();
        index.set_options(options);
        index
    }

    /// Replaces the options. All Services are computed again if they differ.
    pub fn set_options(&mut self, options: Options) {
        if self.options != options {
            let name = options.node_name.as_ref();
            self.machines.set_own(name, options.edge_only);
            self.quotas.set_most(options.namespace_room);
            self.options = options;
            self.dirty.extend(self.entries.keys().cloned());
            self.machines_changed();
        }
    }

    /// Sets whether this machine has the edge role only.
    pub fn set_edge_only(&mut self, edge_only: bool) {
        let options = self.options.clone();
        self.set_options(Options {
            edge_only,
            ..options
        });
    }

    /// Replaces the set of machines that run Guideway.
    pub fn set_guideway_machines(&mut self, guideway_machines: GuidewayMachines) {
        let edges = guideway_machines.edges.clone();
        let nodes = guideway_machines.nodes.clone();
        let old = self.machines.set_guideway_machines(guideway_machines);
        let moved: BTreeSet<&str> = old
            .nodes
            .symmetric_difference(&nodes)
            .map(String::as_str)
            .collect();
        if !moved.is_empty() {
            self.touch_pods_of(|node| moved.contains(node));
        }
        self.touch_addresses(old.edges.symmetric_difference(&edges));
        let slices = old.unreadable.keys();
        let slices = slices.chain(self.machines.guideway_machines().unreadable.keys());
        for slice in slices.cloned().collect::<BTreeSet<_>>() {
            let problems = self.machines.guideway_machines().problems(&slice);
            self.set_problems(Object::Slice(slice), problems);
        }
        self.machines_changed();
    }

    /// Replaces the addresses that must not become virtual.
    pub fn set_reserved(&mut self, reserved: Reserved) {
        let new: BTreeSet<IpAddr> = reserved.addresses().into_iter().collect();
        let api_servers = reserved.api_servers.clone();
        let old = self.machines.set_reserved(reserved);
        let moved = old.api_servers.symmetric_difference(&api_servers);
        let moved: Vec<IpAddr> = moved.map(SocketAddr::ip).collect();
        let old: BTreeSet<IpAddr> = old.addresses().into_iter().collect();
        self.touch_addresses(old.symmetric_difference(&new).chain(&moved));
    }

    /// Iterates over the names of the known Services.
    pub fn services(&self) -> impl Iterator<Item = &ObjectName> {
        let known = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.service.is_some());
        known.map(|(name, _)| name)
    }

    /// Returns the number of known Services.
    pub const fn services_known(&self) -> usize {
        self.services_known
    }

    /// Iterates over the names of the known EndpointSlices.
    pub fn slices(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.services_of_slices.keys()
    }

    /// Returns whether a Node is known.
    pub fn has_node(&self, name: &str) -> bool {
        self.machines.node(name).is_some()
    }

    /// Lists the Nodes that have one of these addresses.
    pub fn nodes_at(&self, addresses: &BTreeSet<IpAddr>) -> Vec<String> {
        let nodes = self.machines.node_names();
        let has_one = |name: &&String| {
            let node = self.machines.node(name);
            node.is_some_and(|node| !node.addresses.is_disjoint(addresses))
        };
        nodes.filter(has_one).cloned().collect()
    }

    /// Iterates over the names of the known Nodes.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &String> {
        self.machines.node_names()
    }

    /// Returns the number of Services that the next update computes.
    pub fn pending(&self) -> usize {
        self.dirty.len()
    }

    /// Returns the state as of the last update.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Sets why an object cannot be decoded; `None` if it can be, or is gone.
    pub fn set_unreadable(&mut self, object: Object, reason: Option<String>) {
        let known = self.state.problems.get(&object);
        let known = known.into_iter().flat_map(|known| known.iter());
        let known = known.filter(|problem| problem.rule != BrokenRule::Unreadable);
        let known = known.cloned().collect();
        match reason {
            Some(reason) => drop(self.unreadable.insert(object.clone(), reason)),
            None => drop(self.unreadable.remove(&object)),
        }
        self.set_problems(object, known);
    }

    /// Replaces the problems of an object. Returns whether they differ.
    fn set_problems(&mut self, object: Object, mut problems: Vec<Problem>) -> bool {
        if let Some(reason) = self.unreadable.get(&object) {
            problems.push(Problem {
                object: object.clone(),
                rule: BrokenRule::Unreadable,
                text: format!("it cannot be read: {reason}"),
                remedy: "mend or delete it; until then what it was before stays in force"
                    .to_owned(),
                only_here: false,
            });
        }
        let old = self.state.problems.get(&object);
        if old.map_or(&[][..], |old| old) == problems {
            return false;
        }
        let problems = Some(problems).filter(|problems| !problems.is_empty());
        put(&mut self.state.problems, object, problems.map(Into::into));
        self.changes.problems = true;
        true
    }

    /// Marks Services that have pods on the Nodes that `is_meant` selects.
    fn touch_pods_of(&mut self, is_meant: impl Fn(&str) -> bool) {
        for (name, entry) in &self.entries {
            let mut endpoints = entry.slices.values().flat_map(|slice| &slice.endpoints);
            if endpoints.any(|endpoint| endpoint.node.as_deref().is_some_and(&is_meant)) {
                self.dirty.insert(name.clone());
            }
        }
    }

    /// Marks Services that claim one of these addresses.
    fn touch_addresses<'a>(&mut self, addresses: impl Iterator<Item = &'a IpAddr>) {
        for address in addresses {
            let holders = self.captured.get(address).into_iter().flatten();
            self.dirty.extend(holders.map(|(name, _)| name.clone()));
        }
    }

    /// Copies the addresses of machines into the state.
    fn machines_changed(&mut self) {
        let nodes = self.machines.with_guideway();
        let edges = self.machines.edges().iter().copied().map(IpNet::from);
        let edges: BTreeSet<IpNet> = edges.collect();
        if self.state.nodes != nodes || self.state.trusted_edges != edges {
            self.state.nodes = nodes;
            self.state.trusted_edges = edges;
            self.changes.addresses = true;
        }
        let known_as = self.machines.known_as();
        let peers = self.machines.peers();
        if self.state.known_as != known_as || self.state.peers != peers {
            self.state.known_as = known_as;
            self.state.peers = peers;
            self.changes.addresses = true;
        }
        let leaving = self.machines.is_leaving();
        self.changes.leaving |= self.state.leaving != leaving;
        self.state.leaving = leaving;
    }
}

#[cfg(test)]
mod tests;
