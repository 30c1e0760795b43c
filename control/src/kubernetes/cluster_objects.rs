//! Collects what the watches report: it feeds the index, tracks who runs Guideway, and knows which kinds are
//! still to be listed.
//!
//! Events are applied as they come. A list is applied as a difference: its objects one by one, and at its end
//! the index forgets what the list does not contain. So a watch that starts again changes nothing by itself.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;

use super::cluster_feed::OwnMachine;
use super::list_watch::{Decoded, Event};
use super::machine_tracker::MachineTracker;
use super::schema::{self, EndpointSlice, Node, Service, Unreadable};
use crate::index::objects::{self, API_SERVICE, ObjectName};
use crate::index::{self, Changes, Index, Object, Options, Problem, Reserved, State};

/// Most problems that are published together.
const MOST_PROBLEMS: usize = 1_000;

/// A watched kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchedKind {
    /// All Services except headless ones and those of another proxy.
    Services,
    /// The EndpointSlices of these Services.
    EndpointSlices,
    /// All Nodes.
    Nodes,
    /// The EndpointSlices of Guideway's own headless Services.
    GuidewayMachines,
}

impl WatchedKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 4] = [
        Self::Services,
        Self::EndpointSlices,
        Self::Nodes,
        Self::GuidewayMachines,
    ];

    /// Returns the name used in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::Nodes => "nodes",
            Self::GuidewayMachines => "presence",
        }
    }

    /// Returns the object of this kind and name, as problems name it.
    fn object(self, name: &ObjectName) -> Object {
        match self {
            Self::Services => Object::Service(name.clone()),
            Self::EndpointSlices | Self::GuidewayMachines => Object::Slice(name.clone()),
            Self::Nodes => Object::Node(name.name.to_string()),
        }
    }
}

/// Everything known about the cluster.
#[derive(Debug)]
pub(super) struct ClusterObjects {
    index: Index,
    machines: MachineTracker,
    /// The machines that run Guideway, as last given to the index.
    published: index::GuidewayMachines,
    /// Kinds that have not been listed completely.
    missing: BTreeSet<WatchedKind>,
    /// Objects whose newest version cannot be decoded. The last readable version stays in force.
    unreadable: BTreeSet<(WatchedKind, ObjectName)>,
    /// The last change of each slice, from its annotation.
    last_changes: BTreeMap<ObjectName, Timestamp>,
    /// This machine's addresses and role, and where it reaches the API server.
    own: OwnMachine,
    api_server: BTreeSet<SocketAddr>,
    /// Where API servers listen, by slice of their own Service.
    api_servers: BTreeMap<ObjectName, BTreeSet<SocketAddr>>,
    /// Addresses of Nodes that an earlier agent sent packets to. Used until Nodes and the machines that run Guideway are listed.
    inherited: BTreeSet<IpAddr>,
    /// Start of this agent. Delays of earlier changes are not measured.
    started: Timestamp,
    /// Times of changes that the state does not contain yet.
    change_times: Vec<Timestamp>,
}

impl ClusterObjects {
    /// Creates an empty collection. `service` names Guideway's headless Service; `inherited` are the addresses of
    /// Nodes that an earlier agent sent packets to; `started` is the start of this agent.
    pub(super) fn new(
        options: Options,
        service: &str,
        inherited: BTreeSet<IpAddr>,
        started: Timestamp,
    ) -> Self {
        Self {
            index: Index::new(options),
            machines: MachineTracker::new(service),
            published: index::GuidewayMachines::default(),
            missing: WatchedKind::ALL.into(),
            unreadable: BTreeSet::new(),
            last_changes: BTreeMap::new(),
            own: OwnMachine::default(),
            api_server: BTreeSet::new(),
            api_servers: BTreeMap::new(),
            inherited,
            started,
            change_times: Vec::new(),
        }
    }

    /// Applies an event about Services. Returns whether the state may have changed, as do the other `take_` functions.
    pub(super) fn take_service(&mut self, event: Event<Service>, _now: Instant) -> bool {
        match event {
            Event::Init | Event::Watching => return false,
            Event::InitApply(service) | Event::Apply(service) => {
                if let Some(service) = self.read(WatchedKind::Services, service) {
                    self.index.apply_service(service.into());
                }
            }
            Event::Delete(name) => {
                self.note_readable(WatchedKind::Services, &name);
                self.index.delete_service(&name);
            }
            Event::InitDone(listed) => {
                self.complete(WatchedKind::Services, &listed);
                self.index.retain_services(&listed);
            }
        }
        true
    }

    pub(super) fn take_slice(&mut self, event: Event<EndpointSlice>, _now: Instant) -> bool {
        match event {
            Event::Init | Event::Watching => return false,
            Event::InitApply(slice) | Event::Apply(slice) => {
                if let Some(slice) = self.read(WatchedKind::EndpointSlices, slice) {
                    let change = schema::last_change(&slice.metadata);
                    let slice = objects::EndpointSlice::from(slice);
                    self.note_change(&slice.name, change);
                    self.note_api_servers(&slice);
                    self.index.apply_slice(slice);
                }
            }
            Event::Delete(name) => {
                self.note_readable(WatchedKind::EndpointSlices, &name);
                self.last_changes.remove(&name);
                self.index.delete_slice(&name);
                self.retain_api_servers(|slice| *slice != name);
            }
            Event::InitDone(listed) => {
                self.complete(WatchedKind::EndpointSlices, &listed);
                self.last_changes.retain(|name, _| listed.contains(name));
                self.index.retain_slices(&listed);
                self.retain_api_servers(|slice| listed.contains(slice));
            }
        }
        true
    }

    /// Applies an event about Nodes. Nearly all are heartbeats, which change nothing.
    pub(super) fn take_node(&mut self, event: Event<Node>, now: Instant) -> bool {
        match event {
            Event::Init | Event::Watching => return false,
            Event::InitApply(node) | Event::Apply(node) => {
                let node = self.read(WatchedKind::Nodes, node);
                return node.is_none_or(|node| self.index.apply_node(node.into()));
            }
            Event::Delete(name) => {
                self.note_readable(WatchedKind::Nodes, &name);
                self.machines.delete_node(&name.name);
                self.index.delete_node(&name.name);
            }
            Event::InitDone(listed) => {
                self.complete(WatchedKind::Nodes, &listed);
                let listed = listed.iter().map(|node| node.name.to_string()).collect();
                self.index.retain_nodes(&listed);
                self.match_machines(now);
            }
        }
        self.publish_machines();
        true
    }

    pub(super) fn take_machines(&mut self, event: Event<EndpointSlice>, now: Instant) -> bool {
        match event {
            Event::Init | Event::Watching => return false,
            Event::InitApply(slice) | Event::Apply(slice) => {
                if let Some(slice) = self.read(WatchedKind::GuidewayMachines, slice) {
                    self.machines.apply(&slice.into(), now);
                }
            }
            Event::Delete(name) => {
                self.note_readable(WatchedKind::GuidewayMachines, &name);
                self.machines.delete(&name, now);
            }
            Event::InitDone(listed) => {
                self.complete(WatchedKind::GuidewayMachines, &listed);
                self.machines.retain(&listed, now);
            }
        }
        self.match_machines(now);
        self.publish_machines();
        true
    }

    /// Returns a readable object. Records an unreadable one as a problem.
    fn read<K: kube::Resource>(&mut self, kind: WatchedKind, object: Decoded<K>) -> Option<K> {
        let name = schema::name_of(&object);
        match object {
            Ok(object) => {
                self.note_readable(kind, &name);
                Some(object)
            }
            Err(Unreadable { reason, .. }) => {
                self.index.set_unreadable(kind.object(&name), Some(reason));
                self.unreadable.insert((kind, name));
                None
            }
        }
    }

    /// Records that an object is readable or gone.
    fn note_readable(&mut self, kind: WatchedKind, name: &ObjectName) {
        if !self.unreadable.is_empty() && self.unreadable.remove(&(kind, name.clone())) {
            self.index.set_unreadable(kind.object(name), None);
        }
    }

    /// Records that a kind was listed completely, with the objects `listed`.
    fn complete(&mut self, kind: WatchedKind, listed: &BTreeSet<ObjectName>) {
        self.missing.remove(&kind);
        let unreadable = self.unreadable.iter();
        let gone = unreadable.filter(|(of, name)| *of == kind && !listed.contains(name));
        for (_, name) in gone.cloned().collect::<Vec<_>>() {
            self.note_readable(kind, &name);
        }
    }

    /// Forgets present machines whose Node does not exist, and adds those that an earlier agent knew.
    fn match_machines(&mut self, now: Instant) {
        if self.missing.contains(&WatchedKind::Nodes) {
            return;
        }
        self.machines.retain_nodes(|name| self.index.has_node(name));
        if !self.missing.contains(&WatchedKind::GuidewayMachines) {
            let inherited = std::mem::take(&mut self.inherited);
            self.machines.inherit(self.index.nodes_at(&inherited), now);
        }
    }

    /// Records that the watch of a kind has failed.
    pub(super) fn fail(&mut self, kind: &str, now: Instant) {
        if kind == WatchedKind::GuidewayMachines.name() {
            self.machines.fail(now);
        }
    }

    /// Keeps the time of a change until the state contains it. The same change is counted once.
    fn note_change(&mut self, slice: &ObjectName, change: Option<Timestamp>) {
        let Some(change) = change else {
            return;
        };
        let before = self.last_changes.insert(slice.clone(), change);
        if before != Some(change) && change >= self.started {
            self.change_times.push(change);
        }
    }

    /// Forgets machines that have been absent for too long. Returns when the next one will be.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        if self.machines.expire(now) {
            self.publish_machines();
        }
        self.machines.expiry()
    }

    fn publish_machines(&mut self) {
        let published = index::GuidewayMachines {
            nodes: self.machines.nodes(),
            edges: self.machines.edges(),
            unreadable: self.machines.unreadable(),
        };
        if published != self.published {
            self.published = published.clone();
            self.index.set_guideway_machines(published);
        }
    }

    /// Sets this machine's addresses and role, and where it reaches the API server. These addresses never
    /// become virtual.
    pub(super) fn take_machine(&mut self, own: OwnMachine, api_server: BTreeSet<SocketAddr>) {
        self.index.set_edge_only(own.edge_only);
        self.own = own;
        self.api_server = api_server;
        self.reserve();
    }

    /// Takes the addresses and ports from the slice that the API servers maintain for their own Service. This
    /// machine may reach them at other addresses.
    fn note_api_servers(&mut self, slice: &objects::EndpointSlice) {
        if (slice.name.namespace.as_str(), slice.name.name.as_str()) != API_SERVICE {
            return;
        }
        let addresses = slice.endpoints.iter();
        let addresses =
            addresses.filter_map(|endpoint| index::address(endpoint.addresses.first()?));
        let addresses: Vec<IpAddr> = addresses.collect();
        let ports = slice.ports.iter();
        let ports = ports.filter_map(|port| u16::try_from(port.port?).ok());
        let sockets = ports.flat_map(|port| {
            let addresses = addresses.iter();
            addresses.map(move |address| SocketAddr::new(*address, port))
        });
        self.api_servers
            .insert(slice.name.clone(), sockets.collect());
        self.reserve();
    }

    fn retain_api_servers(&mut self, is_there: impl Fn(&ObjectName) -> bool) {
        let before = self.api_servers.len();
        self.api_servers.retain(|slice, _| is_there(slice));
        if self.api_servers.len() != before {
            self.reserve();
        }
    }

    fn reserve(&mut self) {
        let of_slices = self.api_servers.values().flatten();
        self.index.set_reserved(Reserved {
            machine: self.own.addresses.clone(),
            api_servers: self.api_server.iter().chain(of_slices).copied().collect(),
        });
    }

    /// Iterates over the kinds that have not been listed completely.
    pub(super) fn missing(&self) -> impl Iterator<Item = WatchedKind> {
        self.missing.iter().copied()
    }

    pub(super) fn pending(&self) -> usize {
        self.index.pending()
    }

    pub(super) fn count(&self, kind: WatchedKind) -> usize {
        match kind {
            WatchedKind::Services => self.index.services_known(),
            WatchedKind::EndpointSlices => self.index.slices().len(),
            WatchedKind::Nodes => self.index.nodes().len(),
            WatchedKind::GuidewayMachines => {
                self.published.nodes.len() + self.published.edges.len()
            }
        }
    }

    pub(super) fn update(&mut self) -> Changes {
        self.index.update()
    }

    /// Returns the state as of the last update.
    pub(super) fn state(&self) -> &State {
        self.index.state()
    }

    /// Lists the problems of this machine alone, as of the last update.
    pub(super) fn problems_here(&self) -> Vec<Problem> {
        let problems = self.state().problems.values();
        let problems = problems.flat_map(|problems| problems.iter());
        problems
            .filter(|problem| problem.only_here)
            .cloned()
            .collect()
    }

    /// Lists problems that all agents see and the controller does not, as of the last update.
    pub(super) fn problems_of_all(&self) -> Vec<Problem> {
        let problems = self.state().problems.values();
        let problems = problems.flat_map(|problems| problems.iter());
        let problems = problems.filter(|problem| problem.is_for_agents());
        problems.take(MOST_PROBLEMS).cloned().collect()
    }

    /// Returns and clears the times of the changes that the state now contains.
    pub(super) fn take_change_times(&mut self) -> Vec<Timestamp> {
        std::mem::take(&mut self.change_times)
    }
}
