//! What the watchers have told so far: the index, who runs Guideway, and what is still to be listed.
//!
//! Events are taken as they come. A list is taken as a difference: its objects are applied one by one, and
//! only at its end is gone what it does not have, so that a watch that begins anew changes nothing by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;

use super::feed::OwnMachine;
use super::list_watch::{Decoded, Event};
use super::presence::Presence;
use super::schema::{self, EndpointSlice, Node, Service, Unreadable};
use crate::index::objects::{self, API_SERVICE, ObjectName};
use crate::index::{self, Changes, Index, Object, Options, Problem, Reserved, State};

/// A kind of objects that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// All Services that are not somebody else's.
    Services,
    /// Their EndpointSlices.
    EndpointSlices,
    /// All Nodes.
    Nodes,
    /// The EndpointSlices of our own headless Service.
    Presence,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [
        Self::Services,
        Self::EndpointSlices,
        Self::Nodes,
        Self::Presence,
    ];

    /// Returns the name for logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::Nodes => "nodes",
            Self::Presence => "presence",
        }
    }

    /// Names an object of the kind as problems do.
    fn object(self, name: &ObjectName) -> Object {
        match self {
            Self::Services => Object::Service(name.clone()),
            Self::EndpointSlices | Self::Presence => Object::Slice(name.clone()),
            Self::Nodes => Object::Node(name.name.to_string()),
        }
    }
}

/// All that is known of the cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    index: Index,
    presence: Presence,
    /// What the index knows of the presence.
    shown: index::Presence,
    /// Kinds that were not yet listed to their end.
    missing: BTreeSet<Kind>,
    /// Objects that cannot be read as they are: what was known of them before stays.
    unreadable: BTreeSet<(Kind, ObjectName)>,
    /// When each slice was changed last, as it says.
    last_changes: BTreeMap<ObjectName, Timestamp>,
    /// What this machine is, and where it reaches the API server.
    own: OwnMachine,
    api_server: BTreeSet<SocketAddr>,
    /// Where API servers listen by the slices of their own Service.
    api_servers: BTreeMap<ObjectName, BTreeSet<SocketAddr>>,
    /// Nodes that an earlier agent sent to, by their addresses, until it is known who is present.
    inherited: BTreeSet<IpAddr>,
    /// Changes before this are not ours to account for.
    started: Timestamp,
    /// When the changes happened that the state does not have yet.
    changes: Vec<Timestamp>,
}

impl Cluster {
    /// Begins with nothing but the addresses of Nodes that an earlier agent sent to, at the time `started`; our
    /// headless Service is `service`.
    pub(super) fn new(
        options: Options,
        service: &str,
        inherited: BTreeSet<IpAddr>,
        started: Timestamp,
    ) -> Self {
        Self {
            index: Index::new(options),
            presence: Presence::new(service),
            shown: index::Presence::default(),
            missing: Kind::ALL.into(),
            unreadable: BTreeSet::new(),
            last_changes: BTreeMap::new(),
            own: OwnMachine::default(),
            api_server: BTreeSet::new(),
            api_servers: BTreeMap::new(),
            inherited,
            started,
            changes: Vec::new(),
        }
    }

    /// Takes what is told of Services; tells whether anything may follow from it, as of all kinds.
    pub(super) fn take_service(&mut self, event: Event<Service>, _now: Instant) -> bool {
        match event {
            Event::Init | Event::Watching => return false,
            Event::InitApply(service) | Event::Apply(service) => {
                if let Some(service) = self.read(Kind::Services, service) {
                    self.index.apply_service(service.into());
                }
            }
            Event::Delete(name) => {
                self.note_readable(Kind::Services, &name);
                self.index.delete_service(&name);
            }
            Event::InitDone(listed) => {
                self.complete(Kind::Services, &listed);
                self.index.retain_services(&listed);
            }
        }
        true
    }

    pub(super) fn take_slice(&mut self, event: Event<EndpointSlice>, _now: Instant) -> bool {
        match event {
            Event::Init | Event::Watching => return false,
            Event::InitApply(slice) | Event::Apply(slice) => {
                if let Some(slice) = self.read(Kind::EndpointSlices, slice) {
                    let change = schema::last_change(&slice.metadata);
                    let slice = objects::EndpointSlice::from(slice);
                    self.note_change(&slice.name, change);
                    self.note_api_servers(&slice);
                    self.index.apply_slice(slice);
                }
            }
            Event::Delete(name) => {
                self.note_readable(Kind::EndpointSlices, &name);
                self.last_changes.remove(&name);
                self.index.delete_slice(&name);
                self.retain_api_servers(|slice| *slice != name);
            }
            Event::InitDone(listed) => {
                self.complete(Kind::EndpointSlices, &listed);
                self.last_changes.retain(|name, _| listed.contains(name));
                self.index.retain_slices(&listed);
                self.retain_api_servers(|slice| listed.contains(slice));
            }
        }
        true
    }

    /// Takes what is told of Nodes; nearly all are heartbeats, from which nothing follows.
    pub(super) fn take_node(&mut self, event: Event<Node>, now: Instant) -> bool {
        match event {
            Event::Init | Event::Watching => return false,
            Event::InitApply(node) | Event::Apply(node) => {
                let node = self.read(Kind::Nodes, node);
                return node.is_none_or(|node| self.index.apply_node(node.into()));
            }
            Event::Delete(name) => {
                self.note_readable(Kind::Nodes, &name);
                self.presence.delete_node(&name.name);
                self.index.delete_node(&name.name);
            }
            Event::InitDone(listed) => {
                self.complete(Kind::Nodes, &listed);
                let listed = listed.iter().map(|node| node.name.to_string()).collect();
                self.index.retain_nodes(&listed);
                self.match_presence(now);
            }
        }
        self.show_presence();
        true
    }

    pub(super) fn take_presence(&mut self, event: Event<EndpointSlice>, now: Instant) -> bool {
        match event {
            Event::Init | Event::Watching => return false,
            Event::InitApply(slice) | Event::Apply(slice) => {
                if let Some(slice) = self.read(Kind::Presence, slice) {
                    self.presence.apply(&slice.into(), now);
                }
            }
            Event::Delete(name) => {
                self.note_readable(Kind::Presence, &name);
                self.presence.delete(&name, now);
            }
            Event::InitDone(listed) => {
                self.complete(Kind::Presence, &listed);
                self.presence.retain(&listed, now);
            }
        }
        self.match_presence(now);
        self.show_presence();
        true
    }

    /// Returns an object if it can be read, and keeps in mind that it is there if not.
    fn read<K: kube::Resource>(&mut self, kind: Kind, object: Decoded<K>) -> Option<K> {
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

    /// Notes that an object can be read, or is gone.
    fn note_readable(&mut self, kind: Kind, name: &ObjectName) {
        if !self.unreadable.is_empty() && self.unreadable.remove(&(kind, name.clone())) {
            self.index.set_unreadable(kind.object(name), None);
        }
    }

    /// Notes that all objects of a kind were listed, which have these names.
    fn complete(&mut self, kind: Kind, listed: &BTreeSet<ObjectName>) {
        self.missing.remove(&kind);
        let unreadable = self.unreadable.iter();
        let gone = unreadable.filter(|(of, name)| *of == kind && !listed.contains(name));
        for (_, name) in gone.cloned().collect::<Vec<_>>() {
            self.note_readable(kind, &name);
        }
    }

    /// Keeps nobody for present whose Node does not exist, and those whom an earlier agent knew.
    fn match_presence(&mut self, now: Instant) {
        if self.missing.contains(&Kind::Nodes) {
            return;
        }
        self.presence.retain_nodes(|name| self.index.has_node(name));
        if !self.missing.contains(&Kind::Presence) {
            let inherited = std::mem::take(&mut self.inherited);
            self.presence.inherit(self.index.nodes_at(&inherited), now);
        }
    }

    /// Notes that the watch of a kind has failed.
    pub(super) fn fail(&mut self, kind: &str, now: Instant) {
        if kind == Kind::Presence.name() {
            self.presence.fail(now);
        }
    }

    /// Keeps the time of a change until it is in force; that of one already told is told no more.
    fn note_change(&mut self, slice: &ObjectName, change: Option<Timestamp>) {
        let Some(change) = change else {
            return;
        };
        let before = self.last_changes.insert(slice.clone(), change);
        if before != Some(change) && change >= self.started {
            self.changes.push(change);
        }
    }

    /// Lets machines go that are gone for too long; returns when the next one is.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        if self.presence.expire(now) {
            self.show_presence();
        }
        self.presence.expiry()
    }

    fn show_presence(&mut self) {
        let shown = index::Presence {
            nodes: self.presence.nodes(),
            edges: self.presence.edges(),
            unreadable: self.presence.unreadable(),
        };
        if shown != self.shown {
            self.shown = shown.clone();
            self.index.set_presence(shown);
        }
    }

    /// Takes what this machine is, and where the API server is: their addresses never become virtual ones.
    pub(super) fn take_machine(&mut self, own: OwnMachine, api_server: BTreeSet<SocketAddr>) {
        self.index.set_edge_only(own.edge_only);
        self.own = own;
        self.api_server = api_server;
        self.reserve();
    }

    /// Takes the sockets of the slice that the API servers keep for their Service: this machine may reach them by
    /// another address.
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

    /// Lists what was not yet read to its end.
    pub(super) fn missing(&self) -> impl Iterator<Item = Kind> {
        self.missing.iter().copied()
    }

    /// Tells how many Services wait for an update.
    pub(super) fn pending(&self) -> usize {
        self.index.pending()
    }

    /// Counts the objects of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Services => self.index.services_known(),
            Kind::EndpointSlices => self.index.slices().len(),
            Kind::Nodes => self.index.nodes().len(),
            Kind::Presence => self.shown.nodes.len() + self.shown.edges.len(),
        }
    }

    /// Computes what changed.
    pub(super) fn update(&mut self) -> Changes {
        self.index.update()
    }

    /// Returns the state as of the last update.
    pub(super) fn state(&self) -> &State {
        self.index.state()
    }

    /// Lists what is wrong on this machine alone, as of the last update.
    pub(super) fn problems_here(&self) -> Vec<Problem> {
        let problems = self.state().problems.values();
        let problems = problems.flat_map(|problems| problems.iter());
        problems
            .filter(|problem| problem.only_here)
            .cloned()
            .collect()
    }

    /// Hands out when the changes happened that the state now has.
    pub(super) fn take_changes(&mut self) -> Vec<Timestamp> {
        std::mem::take(&mut self.changes)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::index::objects::SERVICE_NAME;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn service(name: &str, node_port: u16) -> Service {
        read(json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
                     "ports": [{"port": 80, "protocol": "TCP", "nodePort": node_port}]},
        }))
    }

    fn balancer(address: &str, port: u16) -> Service {
        let mut balancer = service("web", 30_001);
        let spec = balancer.spec.as_mut().unwrap();
        spec.type_ = Some("LoadBalancer".into());
        spec.load_balancer_class = Some(Options::DEFAULT_CLASS.into());
        spec.ports.as_mut().unwrap()[0].port = port.into();
        balancer.status = read(json!({"loadBalancer": {"ingress": [{"ip": address}]}}));
        balancer
    }

    fn slice(name: &str, change: &str) -> EndpointSlice {
        read(json!({
            "metadata": {"namespace": "default", "name": name,
                         "labels": {"kubernetes.io/service-name": "web"},
                         "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": change}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.244.0.1"], "nodeName": "n1"}],
            "ports": [{"port": 8080, "protocol": "TCP"}],
        }))
    }

    fn node(name: &str, address: &str) -> Node {
        read(json!({
            "metadata": {"name": name},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        }))
    }

    fn cluster() -> Cluster {
        cluster_that_follows(&[])
    }

    /// A cluster whose earlier agent sent to these addresses.
    fn cluster_that_follows(inherited: &[&str]) -> Cluster {
        let inherited = inherited.iter().map(|text| text.parse().unwrap()).collect();
        let options = Options {
            node_name: Some("n1".to_owned()),
            ..Options::default()
        };
        let started = "2026-01-01T00:00:00Z".parse().unwrap();
        Cluster::new(options, "guideway", inherited, started)
    }

    type Take = Box<dyn FnOnce(&mut Cluster)>;

    fn take(cluster: &mut Cluster, events: impl IntoIterator<Item = Take>) {
        events.into_iter().for_each(|event| event(cluster));
        cluster.update();
    }

    fn event<K: 'static>(
        take: fn(&mut Cluster, Event<K>, Instant) -> bool,
        event: Event<K>,
    ) -> Take {
        Box::new(move |cluster| {
            take(cluster, event, Instant::now());
        })
    }

    fn list<K: kube::Resource + 'static>(
        take: fn(&mut Cluster, Event<K>, Instant) -> bool,
        objects: Vec<K>,
    ) -> Vec<Take> {
        let names = objects.iter().map(|object| schema::name(object.meta()));
        let names = names.collect();
        let objects = objects
            .into_iter()
            .map(|object| Event::InitApply(Ok(object)));
        let events = [Event::Init].into_iter().chain(objects);
        events
            .chain([Event::InitDone(names)])
            .map(|told| event(take, told))
            .collect()
    }

    fn name(namespace: &str, name: &str) -> ObjectName {
        ObjectName::new(namespace, name)
    }

    fn ports(cluster: &Cluster) -> Vec<u16> {
        cluster
            .state()
            .services
            .keys()
            .map(|key| key.port)
            .collect()
    }

    #[test]
    fn nothing_is_complete_before_every_kind_was_listed() {
        let mut cluster = cluster();
        let missing = |cluster: &Cluster| cluster.missing().map(Kind::name).collect::<Vec<_>>();
        assert_eq!(
            missing(&cluster),
            ["services", "endpointslices", "nodes", "presence"]
        );
        take(
            &mut cluster,
            list(Cluster::take_service, vec![service("web", 30_001)]),
        );
        take(&mut cluster, list(Cluster::take_presence, vec![]));
        take(
            &mut cluster,
            [
                event(Cluster::take_node, Event::Init),
                event(
                    Cluster::take_node,
                    Event::InitApply(Ok(node("n1", "10.0.0.1"))),
                ),
            ],
        );
        assert_eq!(missing(&cluster), ["endpointslices", "nodes"]);
        take(&mut cluster, list(Cluster::take_slice, vec![]));
        take(
            &mut cluster,
            [event(
                Cluster::take_node,
                Event::InitDone([name("", "n1")].into()),
            )],
        );
        assert_eq!(missing(&cluster), [""; 0]);
    }

    #[test]
    fn second_list_is_a_difference() {
        let mut cluster = cluster();
        let both = vec![service("a", 30_001), service("b", 30_002)];
        take(&mut cluster, list(Cluster::take_service, both));
        let before = cluster.state().services.clone();
        take(&mut cluster, [event(Cluster::take_service, Event::Init)]);
        take(
            &mut cluster,
            [event(
                Cluster::take_service,
                Event::InitApply(Ok(service("b", 30_002))),
            )],
        );
        assert_eq!(
            ports(&cluster),
            [30_001, 30_002],
            "nothing is gone before the list's end"
        );
        take(
            &mut cluster,
            [event(
                Cluster::take_service,
                Event::InitDone([name("default", "b")].into()),
            )],
        );
        assert_eq!(ports(&cluster), [30_002]);
        for (key, service) in &cluster.state().services {
            assert!(
                std::sync::Arc::ptr_eq(service, &before[key]),
                "{key} is untouched"
            );
        }
    }

    #[test]
    fn nodes_that_a_new_list_lacks_are_gone() {
        let mut cluster = cluster();
        take(
            &mut cluster,
            list(
                Cluster::take_node,
                vec![node("n1", "10.0.0.1"), node("n2", "10.0.0.2")],
            ),
        );
        let of_ours = json!({
            "metadata": {"namespace": "guideway-system", "name": "guideway-1"}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.2"], "nodeName": "n2", "conditions": {"ready": false}}],
        });
        take(
            &mut cluster,
            list(Cluster::take_presence, vec![read(of_ours)]),
        );
        assert_eq!(
            cluster.state().nodes.len(),
            2,
            "this machine and the one that is present"
        );
        take(
            &mut cluster,
            list(Cluster::take_node, vec![node("n1", "10.0.0.1")]),
        );
        assert_eq!(cluster.state().nodes, ["10.0.0.1".parse().unwrap()].into());
        take(
            &mut cluster,
            [event(Cluster::take_node, Event::Delete(name("", "n1")))],
        );
        assert!(cluster.state().nodes.is_empty());
    }

    fn presence(nodes: &[&str]) -> EndpointSlice {
        let endpoints = nodes
            .iter()
            .map(|node| json!({"addresses": ["10.0.0.99"], "nodeName": node}));
        read(json!({
            "metadata": {"namespace": "guideway-system", "name": "guideway-1"}, "addressType": "IPv4",
            "endpoints": endpoints.collect::<Vec<_>>(),
        }))
    }

    #[test]
    fn nodes_that_an_earlier_agent_sent_to_are_present_at_the_start() {
        let nodes = || {
            list(
                Cluster::take_node,
                vec![
                    node("n1", "10.0.0.1"),
                    node("n2", "10.0.0.2"),
                    node("n3", "10.0.0.3"),
                ],
            )
        };
        for presence_first in [false, true] {
            let mut cluster = cluster_that_follows(&["10.0.0.2", "10.0.0.9"]);
            let present = list(Cluster::take_presence, vec![presence(&["n1"])]);
            if presence_first {
                take(&mut cluster, present);
                take(&mut cluster, nodes());
            } else {
                take(&mut cluster, nodes());
                take(&mut cluster, present);
            }
            let known: BTreeSet<IpAddr> = ["10.0.0.1", "10.0.0.2"]
                .map(|text| text.parse().unwrap())
                .into();
            assert_eq!(cluster.state().nodes, known);
            assert!(cluster.expire(Instant::now()).is_some(), "for a while");
        }
    }

    #[test]
    fn node_that_is_gone_for_too_long_is_present_no_more() {
        let mut cluster = cluster();
        let nodes = [("n1", "10.0.0.1"), ("n2", "10.0.0.2")];
        let nodes = nodes.map(|(name, address)| node(name, address));
        take(&mut cluster, list(Cluster::take_node, nodes.into()));
        for shown in [&["n1", "n2"][..], &["n1"]] {
            take(
                &mut cluster,
                list(Cluster::take_presence, vec![presence(shown)]),
            );
            assert_eq!(cluster.count(Kind::Presence), 2);
        }
        let end = cluster.expire(Instant::now()).unwrap();
        assert_eq!(cluster.expire(end), None);
        cluster.update();
        assert_eq!(cluster.count(Kind::Presence), 1);
        assert_eq!(cluster.state().nodes, ["10.0.0.1".parse().unwrap()].into());
    }

    #[test]
    fn node_that_comes_back_under_its_name_is_not_present_by_that() {
        let mut cluster = cluster();
        take(
            &mut cluster,
            list(
                Cluster::take_node,
                vec![node("n1", "10.0.0.1"), node("n2", "10.0.0.2")],
            ),
        );
        take(
            &mut cluster,
            list(Cluster::take_presence, vec![presence(&["n1", "n2"])]),
        );
        assert_eq!(cluster.state().nodes.len(), 2);
        // The slice controller hears of it later than we do.
        take(
            &mut cluster,
            [event(Cluster::take_node, Event::Delete(name("", "n2")))],
        );
        take(
            &mut cluster,
            [event(
                Cluster::take_presence,
                Event::Apply(Ok(presence(&["n1"]))),
            )],
        );
        take(
            &mut cluster,
            [event(
                Cluster::take_node,
                Event::Apply(Ok(node("n2", "10.0.0.2"))),
            )],
        );
        assert_eq!(cluster.state().nodes, ["10.0.0.1".parse().unwrap()].into());
    }

    #[test]
    fn change_is_accounted_for_once_and_not_from_before_the_start() {
        let mut cluster = cluster();
        let [old, new] = ["2025-12-31T23:59:59Z", "2026-01-01T00:00:01Z"];
        take(
            &mut cluster,
            list(Cluster::take_slice, vec![slice("a", old), slice("b", new)]),
        );
        assert_eq!(cluster.take_changes(), [new.parse().unwrap()]);
        take(
            &mut cluster,
            list(Cluster::take_slice, vec![slice("b", new)]),
        );
        assert_eq!(cluster.take_changes(), []);
        take(
            &mut cluster,
            [event(
                Cluster::take_slice,
                Event::Delete(name("default", "b")),
            )],
        );
        take(
            &mut cluster,
            [event(
                Cluster::take_slice,
                Event::Apply(Ok(slice("b", new))),
            )],
        );
        assert_eq!(cluster.take_changes().len(), 1);
    }

    #[test]
    fn own_addresses_are_never_virtual() {
        let mut cluster = cluster();
        take(
            &mut cluster,
            list(Cluster::take_service, vec![balancer("192.0.2.1", 80)]),
        );
        let vip: IpAddr = "192.0.2.1".parse().unwrap();
        assert!(cluster.state().vips.iter().eq([&vip]));
        let own = OwnMachine {
            addresses: [vip].into(),
            edge_only: false,
        };
        cluster.take_machine(own, BTreeSet::new());
        cluster.update();
        assert!(cluster.state().vips.is_empty());
        assert_eq!(
            ports(&cluster),
            [30_001, 80],
            "its ports are served all the same"
        );
    }

    #[test]
    fn address_that_any_api_server_has_is_never_virtual() {
        let mut cluster = cluster();
        take(
            &mut cluster,
            list(Cluster::take_service, vec![balancer("192.0.2.1", 6443)]),
        );
        assert_eq!(cluster.state().vips.len(), 1);
        let of_api: EndpointSlice = read(json!({
            "metadata": {"namespace": "default", "name": "kubernetes", "labels": {SERVICE_NAME: "kubernetes"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.9"]}, {"addresses": ["192.000.2.01"]}],
            "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
        }));
        let mut of_a_namesake = of_api.clone();
        of_a_namesake.metadata.namespace = Some("other".to_owned());
        let mut of_somebody_else = of_api.clone();
        of_somebody_else.metadata.name = Some("claims".to_owned());
        take(
            &mut cluster,
            list(Cluster::take_slice, vec![of_a_namesake, of_somebody_else]),
        );
        assert_eq!(cluster.state().vips.len(), 1);
        take(
            &mut cluster,
            list(Cluster::take_slice, vec![of_api.clone()]),
        );
        assert!(cluster.state().vips.is_empty());
        assert_eq!(ports(&cluster), [30_001], "its port is left to it");
        take(
            &mut cluster,
            [event(
                Cluster::take_slice,
                Event::Delete(name("default", "kubernetes")),
            )],
        );
        assert_eq!(cluster.state().vips.len(), 1);
    }
}
