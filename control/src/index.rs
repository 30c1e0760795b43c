//! Kubernetes objects in, desired state out.
//!
//! ```text
//! Service --------\                     +-- service: what is captured, and by which rules
//! EndpointSlice --+-> entry (dirty) --> +-- select:  endpoints by conditions, policy, hints   --> claims --> State
//! Node, presence -/                     +-- outcome: services of the dataplane
//! ```
//!
//! Synchronous and pure: no clock, no client, no lock. The order in which objects come in does not change
//! the state. Each Service keeps its slices, and [`Index::update`] computes those anew that an object
//! touched; a state shares with the one before it what did not change.
//!
//! **What is captured.** NodePorts of every Service; the addresses in the status of a Service of type
//! LoadBalancer whose class is ours (or has none, where the options say so), because those of another class
//! have an implementation of their own; external addresses within the networks of the options. Cluster
//! addresses stay with kube-proxy, and so do what pods and hosts originate, `internalTrafficPolicy`, and the
//! headless Services and those of another proxy.
//!
//! **`externalTrafficPolicy: Local`** is kept on a machine that is a Node and takes the node role: the service lists the Local sets of
//! all nodes, of which tables take the machine's own, and drop where only others have one. Any other machine
//! is the load balancer in front, which has no pods, and uses the Cluster set; what only its node uses is
//! listed without weight. So all machines list the same nodes, and the client's address is kept either way.
//!
//! **Pods of this machine** that it selects nobody for are listed without weight, whatever their condition: its
//! tables deliver to them, and choose none. Agents follow the API server each at its own pace, so an edge may
//! send to a pod before the pod's own node has heard that it is ready, and for a while after it ceased to be.
//!
//! **Hints** count in the Cluster set only. They depend on where the machine is: edges in two zones then send
//! the packets of one flow to different pods, should a router move it from one to the other. Where that
//! matters more than locality, the options ignore hints.
//!
//! **Machines without Guideway** are reached by NAT, and a service is sent one way. While more than half of a
//! port's endpoints are on such machines, the whole port goes by NAT; else those endpoints get no traffic. So
//! one pod that starts on the wrong machine moves no flow, and a cluster that is being migrated does not send
//! everything to the pods of its first node. The problem names it either way.
//!
//! **Two Services that claim the same** address, port and protocol: one that was assigned the address goes before
//! those that name it as an external one, which whoever may write a Service can do. Else the older one has it, or of
//! equally old ones the first by name; the other one gets it when the first one goes.

mod few;
mod machines;
pub mod objects;
mod outcome;
mod parse;
mod problem;
mod quota;
mod room;
mod select;
mod service;
mod slice;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;

pub use self::machines::{Presence, Reserved};
pub(crate) use self::parse::address;
pub(crate) use self::problem::quoted;
pub use self::problem::{Object, Problem, Rule};
pub use self::room::Room;

use self::machines::{Machines, Node};
use self::objects::ObjectName;
use self::outcome::{Capture, Outcome, World, outcome};
use self::problem::Findings;
use self::quota::Quotas;
use self::slice::{Names, Slices};
use crate::desired::{BackendSpec, ForwardMode, Service, ServiceKey, Services};

/// What does not come from objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Name of the Node that this machine is, if it is one.
    pub node_name: Option<String>,
    /// Whether this machine takes the edge role only, so that pods here are not handed their packets.
    pub edge_only: bool,
    /// The class of load balancers whose addresses are captured.
    pub load_balancer_class: String,
    /// Whether Services without a class are of ours.
    pub serve_unset_class: bool,
    /// Networks within which external addresses are captured.
    pub external_ips: BTreeSet<IpNet>,
    /// Whether topology hints count.
    pub topology_hints: TopologyHints,
    /// How packets reach backends of Services that do not say.
    pub default_mode: ForwardMode,
    /// Seed of session affinity; equal on all edges.
    pub hash_seed: u64,
    /// What one Service takes of the tables at most.
    pub service_room: Room,
    /// The same for all Services of a namespace, if that is bounded.
    pub namespace_room: Option<Room>,
}

impl Options {
    /// The class of load balancers that the controller serves.
    pub const DEFAULT_CLASS: &str = "guideway.dev/guideway";
    /// The share of each table that one Service has at most, in percent.
    pub const DEFAULT_SHARE: u64 = 25;
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_name: None,
            edge_only: false,
            load_balancer_class: Self::DEFAULT_CLASS.to_owned(),
            serve_unset_class: false,
            external_ips: BTreeSet::new(),
            topology_hints: TopologyHints::default(),
            default_mode: ForwardMode::default(),
            hash_seed: 0,
            service_room: Room::DEFAULT.share(Self::DEFAULT_SHARE),
            namespace_room: None,
        }
    }
}

/// What becomes of the topology hints of endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyHints {
    /// They count, as for kube-proxy.
    #[default]
    Honour,
    /// All edges use the same endpoints.
    Ignore,
}

/// What the objects ask of this machine. A clone shares nearly everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Services by address, port and protocol; NodePorts at the unspecified address of their family.
    pub services: Services,
    /// Endpoints that serve and terminate and get no new connections, where there are any. Those of this
    /// machine are among the backends too, without weight.
    pub draining: OrdMap<ServiceKey, Arc<[BackendSpec]>>,
    /// Of Services with the policy `Local` at assigned addresses, under each of their ports: addresses of the Nodes
    /// that have endpoints, of any of the ports, which share connections. Of the Nodes only these announce the address.
    pub announcers: OrdMap<ServiceKey, Arc<BTreeSet<IpAddr>>>,
    /// Virtual addresses.
    pub vips: OrdSet<IpAddr>,
    /// Those of them that were assigned for our class, so that nothing else can be at their other ports.
    pub assigned: OrdSet<IpAddr>,
    /// The other addresses that ports are served at: external ones, and those of machines.
    pub shared: OrdSet<IpAddr>,
    /// Addresses of the Nodes that run Guideway.
    pub nodes: BTreeSet<IpAddr>,
    /// Addresses of the other edges.
    pub trusted_edges: BTreeSet<IpNet>,
    /// Whether this machine's Node is about to go, where it has one.
    pub leaving: Option<bool>,
    /// Addresses from which other machines take this one's packets: those of its Node, once our slices show it, and
    /// of all edges outside the cluster.
    pub known_as: BTreeSet<IpAddr>,
    /// What is told at the health check ports of Services.
    pub health_checks: OrdMap<ObjectName, HealthCheck>,
    /// What is wrong, by object.
    pub problems: OrdMap<Object, Arc<[Problem]>>,
}

/// What a load balancer that asks at a Service's `healthCheckNodePort` is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: u16,
    /// Number of pods of this machine that are ready.
    pub local_endpoints: usize,
}

/// What an update changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Number of Services that were computed anew.
    pub computed: usize,
    /// Services of the dataplane that were added, changed or removed.
    pub services: BTreeSet<ServiceKey>,
    /// Whether `announcers`, `vips`, `assigned`, `shared`, `nodes`, `trusted_edges` or `known_as` changed.
    pub addresses: bool,
    /// Whether `draining` changed.
    pub draining: bool,
    /// Whether `leaving` changed.
    pub leaving: bool,
    /// Whether `health_checks` changed.
    pub health_checks: bool,
    /// Whether `problems` changed.
    pub problems: bool,
}

impl Changes {
    /// Tells whether the state is as it was.
    pub fn is_empty(&self) -> bool {
        let same = Self {
            computed: self.computed,
            ..Self::default()
        };
        *self == same
    }
}

/// The objects, and the state that they ask for.
#[derive(Debug, Default)]
pub struct Index {
    options: Options,
    machines: Machines,
    quotas: Quotas,
    entries: HashMap<ObjectName, Box<Entry>>,
    /// Of them those whose Service is known, and not only slices of it.
    services_known: usize,
    /// The Service of each slice.
    services_of_slices: BTreeMap<ObjectName, Option<ObjectName>>,
    names: Names,
    dirty: BTreeSet<ObjectName>,
    claims: HashMap<ServiceKey, Vec<Claim>>,
    /// The Services that have an address, and why.
    captured: HashMap<IpAddr, Vec<(ObjectName, Capture)>>,
    state: State,
    changes: Changes,
    /// Why objects cannot be read as they are.
    unreadable: BTreeMap<Object, String>,
}

/// A Service as it stands, whatever machine captures it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What is wrong with it.
    pub problems: Vec<Problem>,
    /// Its external addresses that are captured.
    pub external: BTreeSet<IpAddr>,
}

/// Reads a Service without regard to machines.
pub fn read(service: &objects::Service, options: &Options) -> Reading {
    let mut findings = Findings::default();
    let wanted = service::read(service, options, &Machines::default(), &mut findings);
    Reading {
        problems: findings.problems(&Object::Service(service.name.clone())),
        external: wanted.map(|wanted| wanted.external).unwrap_or_default(),
    }
}

/// Tells a Service which of its external addresses machines have.
pub fn problems_of_addresses(
    name: &ObjectName,
    of_machines: impl Iterator<Item = IpAddr>,
) -> Vec<Problem> {
    let mut findings = Findings::default();
    of_machines
        .for_each(|address| service::name_machine(address, service::NOT_SERVED, &mut findings));
    findings.problems(&Object::Service(name.clone()))
}

/// Tells a Service which of the addresses that it was assigned machines have come to have.
pub fn problems_of_claims(
    name: &ObjectName,
    claimed: impl Iterator<Item = IpAddr>,
) -> Vec<Problem> {
    let mut findings = Findings::default();
    claimed.for_each(|address| service::name_claim(address, &mut findings));
    findings.problems(&Object::Service(name.clone()))
}

/// A Service with its slices, and what was made of them.
#[derive(Debug, Default)]
struct Entry {
    service: Option<Box<objects::Service>>,
    slices: Slices,
    outcome: Outcome,
    /// Who has what this Service claims too.
    conflicts: BTreeMap<ServiceKey, ObjectName>,
}

/// What a Service would make of a key; the least one is served.
#[derive(Debug)]
struct Claim {
    /// Whether it names the address as an external one.
    is_external: bool,
    created: i64,
    name: ObjectName,
    service: Arc<Service>,
}

impl Index {
    /// Creates an index without objects.
    pub fn new(options: Options) -> Self {
        let mut index = Self::default();
        index.set_options(options);
        index
    }

    /// Replaces the options.
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

    /// Tells whether this machine takes the edge role only.
    pub fn set_edge_only(&mut self, edge_only: bool) {
        let options = self.options.clone();
        self.set_options(Options {
            edge_only,
            ..options
        });
    }

    /// Replaces what is known of who runs Guideway.
    pub fn set_presence(&mut self, presence: Presence) {
        let edges = presence.edges.clone();
        let nodes = presence.nodes.clone();
        let old = self.machines.set_presence(presence);
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
        let slices = slices.chain(self.machines.presence().unreadable.keys());
        for slice in slices.cloned().collect::<BTreeSet<_>>() {
            let problems = self.machines.presence().problems(&slice);
            self.set_problems(Object::Slice(slice), problems);
        }
        self.machines_changed();
    }

    /// Replaces the addresses that never become virtual ones.
    pub fn set_reserved(&mut self, reserved: Reserved) {
        let new: BTreeSet<IpAddr> = reserved.addresses().into_iter().collect();
        let api_servers = reserved.api_servers.clone();
        let old = self.machines.set_reserved(reserved);
        let moved = old.api_servers.symmetric_difference(&api_servers);
        let moved: Vec<IpAddr> = moved.map(SocketAddr::ip).collect();
        let old: BTreeSet<IpAddr> = old.addresses().into_iter().collect();
        self.touch_addresses(old.symmetric_difference(&new).chain(&moved));
    }

    /// Takes a Service that is new or has changed.
    pub fn apply_service(&mut self, mut service: objects::Service) {
        service.name = self.shared(service.name);
        let entry = self.entries.entry(service.name.clone()).or_default();
        if entry.service.as_deref() != Some(&service) {
            self.dirty.insert(service.name.clone());
            self.services_known += usize::from(entry.service.is_none());
            entry.service = Some(Box::new(service));
        }
    }

    /// Forgets a Service.
    pub fn delete_service(&mut self, name: &ObjectName) {
        if let Some(entry) = self.entries.get_mut(name)
            && entry.service.take().is_some()
        {
            self.services_known -= 1;
            self.dirty.insert(name.clone());
        }
    }

    /// Takes an EndpointSlice that is new or has changed.
    pub fn apply_slice(&mut self, slice: objects::EndpointSlice) {
        let mut findings = Findings::default();
        let service = slice::service_of(&slice, &mut findings).map(|name| self.shared(name));
        let read = service
            .is_some()
            .then(|| slice::read(&slice, &mut self.names, &mut findings));
        let old = self
            .services_of_slices
            .insert(slice.name.clone(), service.clone());
        if let Some(old) = old.flatten().filter(|old| Some(old) != service.as_ref()) {
            self.take_slice(&old, &slice.name.name);
        }
        if let (Some(service), Some(read)) = (service, read) {
            let entry = self.entries.entry(service.clone()).or_default();
            let name = slice.name.name.as_str();
            if entry.slices.get(name) != Some(&read) {
                entry.slices.insert(slice.name.name.clone(), read);
                self.dirty.insert(service);
            }
        }
        let object = Object::Slice(slice.name);
        let problems = findings.problems(&object);
        self.set_problems(object, problems);
    }

    /// Returns the same name as a Service has it, or a slice for it, so that their texts are one.
    fn shared(&self, name: ObjectName) -> ObjectName {
        let known = self.entries.get_key_value(&name);
        known.map_or(name, |(known, _)| known.clone())
    }

    /// Forgets an EndpointSlice.
    pub fn delete_slice(&mut self, name: &ObjectName) {
        if let Some(service) = self.services_of_slices.remove(name).flatten() {
            self.take_slice(&service, &name.name);
        }
        self.set_problems(Object::Slice(name.clone()), Vec::new());
    }

    fn take_slice(&mut self, service: &ObjectName, slice: &str) {
        if let Some(entry) = self.entries.get_mut(service)
            && entry.slices.remove(slice).is_some()
        {
            self.dirty.insert(service.clone());
        }
    }

    /// Takes a Node that is new or has changed; tells whether anything follows from it.
    pub fn apply_node(&mut self, node: objects::Node) -> bool {
        let mut findings = Findings::default();
        let read = Node::read(&node, &mut findings);
        let is_new = self.set_node(&node.name, Some(read));
        let object = Object::Node(node.name);
        let problems = findings.problems(&object);
        self.set_problems(object, problems) | is_new
    }

    /// Forgets a Node.
    pub fn delete_node(&mut self, name: &str) {
        self.set_node(name, None);
        self.set_problems(Object::Node(name.to_owned()), Vec::new());
    }

    fn set_node(&mut self, name: &str, node: Option<Node>) -> bool {
        if self.machines.node(name) == node.as_ref() {
            return false;
        }
        let old = self.machines.set_node(name, node);
        let addresses = |node: Option<&Node>| node.map(|node| node.addresses().clone());
        let new = addresses(self.machines.node(name)).unwrap_or_default();
        let old = addresses(old.as_ref()).unwrap_or_default();
        if self.machines.is_own(name) {
            self.dirty.extend(self.entries.keys().cloned());
        } else {
            self.touch_pods_of(|node| node == name);
        }
        self.touch_addresses(old.symmetric_difference(&new));
        self.machines_changed();
        true
    }

    /// Lists the Services that are known.
    pub fn services(&self) -> impl Iterator<Item = &ObjectName> {
        let known = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.service.is_some());
        known.map(|(name, _)| name)
    }

    /// Counts the Services that are known.
    pub const fn services_known(&self) -> usize {
        self.services_known
    }

    /// Lists the EndpointSlices that are known.
    pub fn slices(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.services_of_slices.keys()
    }

    /// Tells whether a Node is known.
    pub fn has_node(&self, name: &str) -> bool {
        self.machines.node(name).is_some()
    }

    /// Lists the Nodes that have one of these addresses.
    pub fn nodes_at(&self, addresses: &BTreeSet<IpAddr>) -> Vec<String> {
        let nodes = self.machines.node_names();
        let has_one = |name: &&String| {
            let node = self.machines.node(name);
            node.is_some_and(|node| !node.addresses().is_disjoint(addresses))
        };
        nodes.filter(has_one).cloned().collect()
    }

    /// Lists the Nodes that are known.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &String> {
        self.machines.node_names()
    }

    /// Forgets all Services but these: what a new list does not have.
    pub fn retain_services(&mut self, listed: &BTreeSet<ObjectName>) {
        let gone = self.services().filter(|name| !listed.contains(name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.delete_service(&name);
        }
    }

    /// Forgets all EndpointSlices but these.
    pub fn retain_slices(&mut self, listed: &BTreeSet<ObjectName>) {
        let gone = self.slices().filter(|name| !listed.contains(name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.delete_slice(&name);
        }
    }

    /// Forgets all Nodes but these.
    pub fn retain_nodes(&mut self, listed: &BTreeSet<String>) {
        let gone = self.nodes().filter(|name| !listed.contains(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.delete_node(&name);
        }
    }

    /// Tells how many Services wait for an update.
    pub fn pending(&self) -> usize {
        self.dirty.len()
    }

    /// Returns the state as of the last update.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Computes the Services anew that an object touched, and tells what changed since the last update.
    pub fn update(&mut self) -> Changes {
        let mut touched = Touched::default();
        for name in std::mem::take(&mut self.dirty) {
            self.compute(&name, &mut touched);
        }
        // Whom a namespace has room for depends on all its Services.
        for name in self.quotas.settle() {
            self.compute(&name, &mut touched);
        }
        for key in touched.keys {
            self.serve(key, &mut touched.names);
        }
        for address in touched.addresses {
            self.capture(address);
        }
        for name in touched.names {
            self.finish(name);
        }
        std::mem::take(&mut self.changes)
    }

    /// Computes one Service and stakes its claims.
    fn compute(&mut self, name: &ObjectName, touched: &mut Touched) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        self.changes.computed += 1;
        let world = World {
            options: &self.options,
            machines: &self.machines,
        };
        let mut new = match &entry.service {
            Some(service) => outcome(world, service, &entry.slices),
            None => Outcome::default(),
        };
        let created = entry.service.as_deref().map_or(i64::MAX, outcome::created);
        self.quotas.note(name, created, new.takes);
        if let Some(most) = self.quotas.refusal(name) {
            new = new.refuse(&Object::Service(name.clone()), most);
        }
        let old = std::mem::take(&mut entry.outcome);
        for (key, service) in new.services.values_mut() {
            // Whoever compares states compares pointers first.
            if let Some(old) = old.services.get(key).filter(|old| *old == service) {
                *service = Arc::clone(old);
            }
        }
        for key in old.services.keys() {
            release(&mut self.claims, key, |claim| claim.name != *name);
        }
        for (key, service) in new.services.iter() {
            let claims = self.claims.entry(*key).or_default();
            claims.reserve_exact(1);
            claims.push(Claim {
                is_external: new.captured.get(&key.address) == Some(&Capture::External),
                created,
                name: name.clone(),
                service: Arc::clone(service),
            });
        }
        for address in old.captured.keys() {
            release(&mut self.captured, address, |(holder, _)| holder != name);
        }
        for (address, how) in new.captured.iter() {
            let holders = self.captured.entry(*address).or_default();
            holders.reserve_exact(1);
            holders.push((name.clone(), *how));
        }
        touched.keys.extend(old.services.keys());
        touched.keys.extend(new.services.keys());
        touched.addresses.extend(old.captured.keys());
        touched.addresses.extend(new.captured.keys());
        touched.names.insert(name.clone());
        entry.outcome = new;
    }

    /// Gives a key to the first of those that claim it.
    fn serve(&mut self, key: ServiceKey, touched: &mut BTreeSet<ObjectName>) {
        let claims = self.claims.get(&key).map_or(&[][..], Vec::as_slice);
        let winner = claims
            .iter()
            .min_by_key(|claim| (claim.is_external, claim.created, &claim.name));
        let service = winner.map(|winner| &winner.service);
        let same = match (self.state.services.get(&key), service) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !same {
            put(&mut self.state.services, key, service.map(Arc::clone));
            self.changes.services.insert(key);
        }
        let winner = winner.map(|winner| winner.name.clone());
        let entry = winner.as_ref().and_then(|name| self.entries.get(name));
        let outcome = entry.map(|entry| &entry.outcome);
        let draining = outcome.and_then(|outcome| outcome.draining.get(&key));
        self.changes.draining |= put_new(&mut self.state.draining, key, draining);
        let announcers = outcome.and_then(|outcome| outcome.announcers.get(&key));
        self.changes.addresses |= put_new(&mut self.state.announcers, key, announcers);
        for claim in self.claims.get(&key).into_iter().flatten() {
            let Some(entry) = self.entries.get_mut(&claim.name) else {
                continue;
            };
            let lost_to = winner.clone().filter(|winner| *winner != claim.name);
            if entry.conflicts.get(&key) != lost_to.as_ref() {
                match lost_to {
                    Some(winner) => drop(entry.conflicts.insert(key, winner)),
                    None => drop(entry.conflicts.remove(&key)),
                }
                touched.insert(claim.name.clone());
            }
        }
    }

    /// Decides what an address is.
    fn capture(&mut self, address: IpAddr) {
        let holders = self.captured.get(&address).map_or(&[][..], Vec::as_slice);
        let has = |wanted: Capture| holders.iter().any(|(_, how)| *how == wanted);
        let is_served = has(Capture::Assigned) || has(Capture::External);
        let is_vip = is_served && !self.machines.withholds(address);
        let is_assigned = is_vip && has(Capture::Assigned);
        let state = &mut self.state;
        for (is_member, set) in [
            (is_vip, &mut state.vips),
            (is_assigned, &mut state.assigned),
            (is_served && !is_assigned, &mut state.shared),
        ] {
            if is_member == set.contains(&address) {
                continue;
            }
            if is_member {
                set.insert(address);
            } else {
                set.remove(&address);
            }
            self.changes.addresses = true;
        }
    }

    /// Publishes what concerns a Service alone, and forgets it if nothing is left of it.
    fn finish(&mut self, name: ObjectName) {
        let Some(entry) = self.entries.get_mut(&name) else {
            return;
        };
        let claimed = &entry.outcome.services;
        entry.conflicts.retain(|key, _| claimed.get(key).is_some());
        let mut problems = entry.outcome.problems.clone();
        let object = Object::Service(name.clone());
        problems.extend(conflict(&object, &entry.conflicts));
        problems.sort_unstable();
        let health_check = entry.outcome.health_check;
        if entry.service.is_none() && entry.slices.is_empty() {
            self.entries.remove(&name);
        }
        self.changes.health_checks |=
            put_new(&mut self.state.health_checks, name, health_check.as_ref());
        self.set_problems(object, problems);
    }

    /// Notes why an object cannot be read as it is, or that it can be, or is gone.
    pub fn set_unreadable(&mut self, object: Object, reason: Option<String>) {
        let known = self.state.problems.get(&object);
        let known = known.into_iter().flat_map(|known| known.iter());
        let known = known.filter(|problem| problem.rule != Rule::Unreadable);
        let known = known.cloned().collect();
        match reason {
            Some(reason) => drop(self.unreadable.insert(object.clone(), reason)),
            None => drop(self.unreadable.remove(&object)),
        }
        self.set_problems(object, known);
    }

    /// Replaces what is wrong with an object; tells whether that changes anything.
    fn set_problems(&mut self, object: Object, mut problems: Vec<Problem>) -> bool {
        if let Some(reason) = self.unreadable.get(&object) {
            problems.push(Problem {
                object: object.clone(),
                rule: Rule::Unreadable,
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

    /// Marks the Services that have pods on some Nodes.
    fn touch_pods_of(&mut self, is_meant: impl Fn(&str) -> bool) {
        for (name, entry) in &self.entries {
            let mut endpoints = entry.slices.values().flat_map(|slice| &slice.endpoints);
            if endpoints.any(|endpoint| endpoint.node.as_deref().is_some_and(&is_meant)) {
                self.dirty.insert(name.clone());
            }
        }
    }

    /// Marks the Services that have some of these addresses.
    fn touch_addresses<'a>(&mut self, addresses: impl Iterator<Item = &'a IpAddr>) {
        for address in addresses {
            let holders = self.captured.get(address).into_iter().flatten();
            self.dirty.extend(holders.map(|(name, _)| name.clone()));
        }
    }

    /// Follows the addresses of machines into the state.
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
        if self.state.known_as != known_as {
            self.state.known_as = known_as;
            self.changes.addresses = true;
        }
        let leaving = self.machines.is_leaving();
        self.changes.leaving |= self.state.leaving != leaving;
        self.state.leaving = leaving;
    }
}

/// What an update has to look at again.
#[derive(Debug, Default)]
struct Touched {
    keys: BTreeSet<ServiceKey>,
    addresses: BTreeSet<IpAddr>,
    names: BTreeSet<ObjectName>,
}

/// Takes out of a list what is not to be kept, and the list once it is empty.
fn release<K: std::hash::Hash + Eq, V>(
    map: &mut HashMap<K, Vec<V>>,
    key: &K,
    keep: impl Fn(&V) -> bool,
) {
    if let Some(list) = map.get_mut(key) {
        list.retain(keep);
        if list.is_empty() {
            map.remove(key);
        }
    }
}

/// Sets an entry, or removes it.
fn put<K: Ord + Clone, V: Clone>(map: &mut OrdMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// Sets an entry, or removes it; tells whether that changes anything.
fn put_new<K, V>(map: &mut OrdMap<K, V>, key: K, value: Option<&V>) -> bool
where
    K: Ord + Clone,
    V: Clone + PartialEq,
{
    let is_new = map.get(&key) != value;
    if is_new {
        put(map, key, value.cloned());
    }
    is_new
}

/// Names what is served at a key, as the owner of a Service knows it.
fn front_name(key: &ServiceKey) -> String {
    if key.address.is_unspecified() {
        format!("node port {}/{}", key.port, key.protocol)
    } else {
        key.to_string()
    }
}

/// Tells a Service who has what it claims.
fn conflict(object: &Object, conflicts: &BTreeMap<ServiceKey, ObjectName>) -> Option<Problem> {
    let (key, winner) = conflicts.first_key_value()?;
    let more = match conflicts.len() {
        1 => String::new(),
        all => format!(" (and {} more of this kind)", all - 1),
    };
    let at = front_name(key);
    Some(Problem {
        object: object.clone(),
        rule: Rule::Conflict,
        text: format!("{at} is served for Service {winner}, which goes first{more}"),
        remedy: "give one of the two another address or port".to_owned(),
        only_here: false,
    })
}

#[cfg(test)]
mod tests;
