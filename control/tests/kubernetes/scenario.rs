//! A Service in a namespace of its own, changed as users and controllers would.

use std::net::IpAddr;

use lab::{Machine, Topology, vip_v4, vip_v6};
use serde_json::{Value, json};

use crate::support::{Protocol, Service};
use crate::world::{World, at};

/// A Service `web`, of TCP and UDP unless told.
pub(crate) struct Scenario<'net> {
    pub(crate) net: &'net Topology,
    world: &'net World<'net>,
    namespace: String,
    name: &'static str,
    /// Tells its addresses and node ports from those of others.
    number: u8,
}

/// What a slice says of a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) enum State {
    Ready,
    Unready,
    /// It ends, and serves meanwhile.
    Leaving,
    /// It ends, and serves no more.
    Gone,
    /// It ends, serves no more, and counts as ready by `publishNotReadyAddresses`.
    Published,
}

/// A port of a slice: name, protocol and number.
pub(crate) type SlicePort = (&'static str, &'static str, u16);

/// Where pods listen, by both protocols.
pub(crate) const TARGETS: [SlicePort; 2] = [("tcp", "TCP", 8080), ("udp", "UDP", 8080)];

impl<'net> Scenario<'net> {
    /// Makes the namespace; there is no Service yet.
    pub(crate) fn new(net: &'net Topology, world: &'net World<'net>, number: u8) -> Self {
        let namespace = format!("scenario-{number}");
        world
            .control
            .kubectl(&["create", "namespace", &namespace])
            .unwrap();
        Self {
            net,
            world,
            namespace,
            name: "web",
            number,
        }
    }

    /// Returns another Service of the namespace.
    pub(crate) fn beside(&self, name: &'static str, number: u8) -> Self {
        Self {
            namespace: self.namespace.clone(),
            name,
            number: self.number + number,
            ..*self
        }
    }

    pub(crate) fn client(&self) -> &'net Machine {
        &self.net.clients()[0]
    }

    pub(crate) fn pods(&self) -> Vec<&'net Machine> {
        self.net.pods().collect()
    }

    /// The API server gives ports above the first 86 to whoever asks for none.
    pub(crate) fn node_port(&self) -> u16 {
        30_000 + u16::from(self.number)
    }

    /// The addresses of the load balancer.
    pub(crate) fn addresses(&self) -> [IpAddr; 2] {
        let number = 20 + self.number;
        [vip_v4(number).into(), vip_v6(number).into()]
    }

    /// A port 80 of the Service, of the protocol that is its name.
    pub(crate) fn port(&self, name: &str) -> Value {
        json!({
            "name": name, "protocol": name.to_uppercase(), "port": 80, "nodePort": self.node_port(),
        })
    }

    /// Applies the Service, of both families.
    pub(crate) fn create(&self, mut spec: Value) {
        if spec["type"] != "ExternalName" {
            spec["ipFamilyPolicy"] = "RequireDualStack".into();
        }
        if spec["ports"].is_null() && spec["type"] != "ExternalName" {
            spec["ports"] = json!([self.port("tcp"), self.port("udp")]);
        }
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": self.name, "namespace": self.namespace}, "spec": spec,
        });
        self.world.control.apply(&service.to_string()).unwrap();
    }

    /// Applies the Service with type LoadBalancer and gives it its addresses.
    pub(crate) fn balance(&self, mut spec: Value) {
        spec["type"] = "LoadBalancer".into();
        spec["loadBalancerClass"] = "guideway.dev/guideway".into();
        self.create(spec);
        self.give_addresses();
    }

    /// Writes the addresses, as the controller would.
    pub(crate) fn give_addresses(&self) {
        self.give(self.addresses(), "VIP");
    }

    /// Writes these addresses as the load balancer's, with how it brings their packets.
    pub(crate) fn give(&self, addresses: [IpAddr; 2], mode: &str) {
        let ingress = addresses.map(|one| json!({"ip": one.to_string(), "ipMode": mode}));
        let status = json!({"status": {"loadBalancer": {"ingress": ingress}}}).to_string();
        self.kubectl(&[
            "patch",
            "service",
            self.name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ]);
    }

    /// Changes the Service.
    pub(crate) fn change(&self, spec: &Value) {
        let patch = json!({"spec": spec}).to_string();
        self.kubectl(&["patch", "service", self.name, "--type=merge", "-p", &patch]);
    }

    /// Deletes the Service; its slices stay.
    pub(crate) fn delete(&self) {
        self.kubectl(&["delete", "service", self.name]);
    }

    /// Writes slices of both families with these pods.
    pub(crate) fn serve(&self, pods: &[(&Machine, State)]) {
        self.slice("", &TARGETS, pods);
    }

    /// Writes slices of both families with these ports and pods; another name makes more of them.
    pub(crate) fn slice(&self, name: &str, ports: &[SlicePort], pods: &[(&Machine, State)]) {
        let slices = [("IPv4", true), ("IPv6", false)].map(|(kind, is_v4)| {
            let endpoint = |(pod, state): &(&Machine, State)| {
                let address = if is_v4 { pod.v4() } else { pod.v6() };
                json!({
                    "addresses": [address.to_string()], "nodeName": self.node_of(pod).label(),
                    "conditions": state.conditions(),
                })
            };
            let port = |(name, protocol, number): &SlicePort| {
                json!({"name": name, "protocol": protocol, "port": number})
            };
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{}-{}{name}", self.name, kind.to_lowercase()),
                    "namespace": self.namespace,
                    "labels": {"kubernetes.io/service-name": self.name},
                },
                "addressType": kind,
                "ports": ports.iter().map(port).collect::<Vec<_>>(),
                "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
            })
            .to_string()
        });
        self.world.control.apply(&slices.join("\n---\n")).unwrap();
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) {
        let arguments = [&["-n", &self.namespace], arguments].concat();
        self.world.control.kubectl(&arguments).unwrap();
    }

    /// The ways by the node ports of all nodes.
    pub(crate) fn node_ports(&self) -> Vec<Service> {
        let nodes = self.net.nodes().iter();
        nodes.flat_map(|node| self.node_ports_of(node)).collect()
    }

    /// The ways by the node ports of one node.
    pub(crate) fn node_ports_of(&self, node: &Machine) -> Vec<Service> {
        both_protocols([node.v4(), node.v6()], self.node_port())
    }

    /// The ways by the load balancer's addresses.
    pub(crate) fn balanced(&self) -> Vec<Service> {
        both_protocols(self.addresses(), 80)
    }

    /// All ways.
    pub(crate) fn ways(&self) -> Vec<Service> {
        [self.node_ports(), self.balanced()].concat()
    }

    fn node_of(&self, pod: &Machine) -> &'net Machine {
        let mut nodes = self.net.nodes().iter();
        let is_here = |node: &&Machine| {
            let mut machines = node.pods().iter().chain([*node]);
            machines.any(|other| other.label() == pod.label())
        };
        nodes.find(is_here).unwrap()
    }
}

impl State {
    fn conditions(self) -> Value {
        let (ready, serving, terminating) = match self {
            Self::Ready => (true, true, false),
            Self::Unready => (false, false, false),
            Self::Leaving => (false, true, true),
            Self::Gone => (false, false, true),
            Self::Published => (true, false, true),
        };
        json!({"ready": ready, "serving": serving, "terminating": terminating})
    }
}

/// Leaves the ways of one protocol.
pub(crate) fn only(protocol: Protocol, ways: &[Service]) -> Vec<Service> {
    let ways = ways.iter().copied();
    ways.filter(|way| way.protocol == protocol).collect()
}

pub(crate) fn both_protocols(addresses: [IpAddr; 2], port: u16) -> Vec<Service> {
    let protocols = [Protocol::Tcp, Protocol::Udp];
    let addresses = addresses.into_iter();
    addresses
        .flat_map(|address| protocols.map(|protocol| at(address, port, protocol)))
        .collect()
}
