//! The words that tests say their objects in.

use std::net::IpAddr;

use crate::desired::{BackendSpec, Service as Served, ServiceKey, TrafficPolicy};
use crate::index::objects::{
    Endpoint, EndpointPort, EndpointSlice, Ingress, Node, NodeAddress, ObjectName, SERVICE_NAME,
    Service, ServicePort, Text, ZONE,
};
use crate::index::{Changes, GuidewayMachines, Index, Object, Options, State};

/// The address of the load balancer that [`web`] has.
pub(super) const VIP: &str = "192.0.2.1:80/tcp";
/// Its node port.
pub(super) const NODE_PORT: &str = "0.0.0.0:30080/tcp";

/// An index on `node-1`, beside `node-2` and `node-3`, which all run Guideway.
pub(super) struct Cluster {
    pub(super) index: Index,
}

pub(super) fn cluster() -> Cluster {
    cluster_with(Options {
        node_name: Some("node-1".to_owned()),
        ..Options::default()
    })
}

/// The same cluster, seen from a machine that is no Node.
pub(super) fn edge_of_the_cluster() -> Cluster {
    cluster_with(Options::default())
}

pub(super) fn cluster_with(options: Options) -> Cluster {
    let mut cluster = Cluster {
        index: Index::new(options),
    };
    let names = ["node-1", "node-2", "node-3"];
    for (name, address) in names.iter().zip(["10.0.0.1", "10.0.0.2", "10.0.0.3"]) {
        cluster.node(node(name).internal(address));
    }
    cluster.guideway_on(&names);
    cluster
}

impl Cluster {
    pub(super) fn service(&mut self, service: Service) -> &mut Self {
        self.index.apply_service(service);
        self
    }

    pub(super) fn slice(&mut self, slice: EndpointSlice) -> &mut Self {
        self.index.apply_slice(slice);
        self
    }

    pub(super) fn node(&mut self, node: Node) -> &mut Self {
        self.index.apply_node(node);
        self
    }

    pub(super) fn guideway_on(&mut self, nodes: &[&str]) -> &mut Self {
        self.index.set_guideway_machines(GuidewayMachines {
            nodes: nodes.iter().map(|name| (*name).to_owned()).collect(),
            ..GuidewayMachines::default()
        });
        self
    }

    pub(super) fn update(&mut self) -> Changes {
        self.index.update()
    }

    pub(super) fn state(&mut self) -> &State {
        self.index.update();
        self.index.state()
    }

    pub(super) fn served(&mut self, key: &str) -> Option<&Served> {
        let key: ServiceKey = key.parse().unwrap();
        self.state().services.get(&key).map(AsRef::as_ref)
    }

    /// Lists the sockets that share the new connections to a key, as tables take them; `None` where it is not
    /// served.
    pub(super) fn used(&mut self, key: &str) -> Option<Vec<String>> {
        let is_node = self.index.machines.own_node().is_some();
        let spec = &self.served(key)?.spec;
        let is_local = is_node && spec.traffic_policy == TrafficPolicy::Local;
        let own: IpAddr = [10, 0, 0, 1].into();
        let used = spec
            .sharing()
            .filter(|backend| !is_local || backend.address == own);
        Some(used.map(socket).collect())
    }

    /// Lists the sockets that are delivered to and get no new connections from here.
    pub(super) fn reachable(&mut self, key: &str) -> Vec<String> {
        let backends = &self.served(key).unwrap().spec.backends;
        let others = backends.iter().filter(|backend| !backend.is_sharing());
        others.map(socket).collect()
    }

    /// Lists what is served.
    pub(super) fn keys(&mut self) -> Vec<String> {
        let keys = self.state().services.keys();
        keys.map(ToString::to_string).collect()
    }

    /// Lists the rules that a Service of the default namespace breaks.
    pub(super) fn problems(&mut self, service: &str) -> Vec<&'static str> {
        self.rules(&Object::Service(ObjectName::new("default", service)))
    }

    /// Lists the rules that a slice of the default namespace breaks.
    pub(super) fn slice_problems(&mut self, slice: &str) -> Vec<&'static str> {
        self.rules(&Object::Slice(ObjectName::new("default", slice)))
    }

    pub(super) fn rules(&mut self, object: &Object) -> Vec<&'static str> {
        let problems = self.state().problems.get(object).into_iter();
        let problems = problems.flat_map(|problems| problems.iter());
        problems.map(|problem| problem.rule.name()).collect()
    }
}

fn socket(backend: &BackendSpec) -> String {
    backend.pod.unwrap().to_string()
}

/// A Service with the cluster address 10.96.0.1 and nothing to capture.
pub(super) fn service(name: &str) -> Service {
    Service {
        name: ObjectName::new("default", name),
        created: Some(1),
        kind: Some("ClusterIP".into()),
        cluster_ips: texts(&["10.96.0.1"]),
        ..Service::default()
    }
}

/// A load balancer of our class at 192.0.2.1, port 80, without a node port.
pub(super) fn web() -> Service {
    load_balancer("web", "192.0.2.1")
}

pub(super) fn load_balancer(name: &str, address: &str) -> Service {
    service(name)
        .kind("LoadBalancer")
        .class(Some(Options::DEFAULT_CLASS))
        .port("", 80, "TCP")
        .ingress(address)
}

impl Service {
    pub(super) fn kind(mut self, kind: &str) -> Self {
        self.kind = Some(kind.into());
        self
    }

    pub(super) fn created(mut self, seconds: i64) -> Self {
        self.created = Some(seconds);
        self
    }

    pub(super) fn class(mut self, class: Option<&str>) -> Self {
        self.load_balancer_class = class.map(Text::from);
        self
    }

    pub(super) fn cluster_ips(mut self, addresses: &[&str]) -> Self {
        self.cluster_ips = texts(addresses);
        self
    }

    pub(super) fn label(mut self, label: &str) -> Self {
        self.labels.insert(label.to_owned(), String::new());
        self
    }

    pub(super) fn annotation(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(super) fn port(mut self, name: &str, port: i32, protocol: &str) -> Self {
        self.ports.push(ServicePort {
            name: Some(name.into()).filter(|name: &Text| !name.is_empty()),
            protocol: Some(protocol.into()),
            port,
            node_port: None,
        });
        self
    }

    /// Gives the port that was named last a node port.
    pub(super) fn node_port(mut self, node_port: i32) -> Self {
        self.ports.last_mut().unwrap().node_port = Some(node_port);
        self
    }

    pub(super) fn ingress(mut self, address: &str) -> Self {
        self.ingress.push(Ingress {
            ip: Some(address.into()),
            ip_mode: None,
        });
        self
    }

    /// Gives the address that was named last a mode.
    pub(super) fn ip_mode(mut self, mode: &str) -> Self {
        self.ingress.last_mut().unwrap().ip_mode = Some(mode.into());
        self
    }

    pub(super) fn without_ingress(mut self) -> Self {
        self.ingress.clear();
        self
    }

    pub(super) fn external(mut self, addresses: &[&str]) -> Self {
        self.external_ips = texts(addresses);
        self
    }

    pub(super) fn source_ranges(mut self, ranges: &[&str]) -> Self {
        self.source_ranges = texts(ranges);
        self
    }

    pub(super) fn local(mut self) -> Self {
        self.external_traffic_policy = Some("Local".into());
        self
    }

    pub(super) fn affinity(mut self) -> Self {
        self.session_affinity = Some("ClientIP".into());
        self
    }

    pub(super) fn health_check(mut self, port: i32) -> Self {
        self.health_check_node_port = Some(port);
        self
    }
}

/// An IPv4 slice of [`web`] with the pods' port 8080.
pub(super) fn slice(name: &str, pods: &[&str]) -> EndpointSlice {
    slice_of("web", name, pods).port("", 8080, "TCP")
}

/// An IPv4 slice of any Service, without ports.
pub(super) fn slice_of(service: &str, name: &str, pods: &[&str]) -> EndpointSlice {
    EndpointSlice {
        name: ObjectName::new("default", name),
        labels: [(SERVICE_NAME.to_owned(), service.to_owned())].into(),
        address_type: "IPv4".to_owned(),
        endpoints: pods.iter().map(|pod| endpoint(pod)).collect(),
        ports: Vec::new(),
    }
}

impl EndpointSlice {
    pub(super) fn port(self, name: &str, port: i32, protocol: &str) -> Self {
        self.raw_port(Some(name), Some(port), Some(protocol))
    }

    pub(super) fn raw_port(
        mut self,
        name: Option<&str>,
        port: Option<i32>,
        protocol: Option<&str>,
    ) -> Self {
        self.ports.push(EndpointPort {
            name: name.map(ToOwned::to_owned),
            protocol: protocol.map(ToOwned::to_owned),
            port,
        });
        self
    }

    pub(super) fn address_type(mut self, kind: &str) -> Self {
        self.address_type = kind.to_owned();
        self
    }

    pub(super) fn label(mut self, label: &str) -> Self {
        self.labels.insert(label.to_owned(), "any".to_owned());
        self
    }

    pub(super) fn without_label(mut self, label: &str) -> Self {
        self.labels.remove(label);
        self
    }
}

/// Reads `ADDRESS[@NODE] [CONDITION | zone=ZONE | node=NODE]...`. Without conditions all of them are unset.
pub(super) fn endpoint(text: &str) -> Endpoint {
    let mut words = text.split(' ');
    let place = words.next().unwrap();
    let (address, node) = match place.split_once('@') {
        Some((address, node)) => (address, Some(node.to_owned())),
        None => (place, None),
    };
    let mut endpoint = Endpoint {
        addresses: strings(&[address]),
        node_name: node,
        ..Endpoint::default()
    };
    for word in words {
        match word {
            "ready" => endpoint.ready = Some(true),
            "unready" => endpoint.ready = Some(false),
            "serving" => endpoint.serving = Some(true),
            "silent" => endpoint.serving = Some(false),
            "terminating" => endpoint.terminating = Some(true),
            _ => match word.split_once('=').unwrap() {
                ("zone", zone) => endpoint.for_zones.push(zone.to_owned()),
                ("node", node) => endpoint.for_nodes.push(node.to_owned()),
                _ => panic!("{word}"),
            },
        }
    }
    endpoint
}

pub(super) fn node(name: &str) -> Node {
    Node {
        name: name.to_owned(),
        ..Node::default()
    }
}

impl Node {
    pub(super) fn internal(self, address: &str) -> Self {
        self.address("InternalIP", address)
    }

    pub(super) fn address(mut self, kind: &str, address: &str) -> Self {
        self.addresses.push(NodeAddress {
            kind: kind.to_owned(),
            address: address.to_owned(),
        });
        self
    }

    pub(super) fn zone(mut self, zone: &str) -> Self {
        self.labels.insert(ZONE.to_owned(), zone.to_owned());
        self
    }
}

pub(super) fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name)
}

pub(super) fn addresses<T: FromIterator<IpAddr>>(texts: &[&str]) -> T {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn texts(texts: &[&str]) -> Vec<Text> {
    texts.iter().map(|text| Text::from(*text)).collect()
}

pub(super) fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// What [`Cluster::used`] returns for a key that is served.
pub(super) fn pods(sockets: &[&str]) -> Option<Vec<String>> {
    Some(strings(sockets))
}
