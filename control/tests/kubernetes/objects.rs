//! Objects as the programs of a cluster would write them.

use std::net::IpAddr;

use lab::{Machine, Topology};
use serde_json::{Value, json};

/// Namespace of Guideway's own objects.
pub(crate) const SYSTEM: &str = "guideway-system";
/// Where pods listen.
pub(crate) const TARGET_PORT: u16 = 8080;

/// The Secret with the seed.
pub(crate) fn seed() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"namespace": SYSTEM, "name": "guideway-seed"},
        // 0x1234567890abcdef
        "data": {"seed": "MHgxMjM0NTY3ODkwYWJjZGVm"},
    })
}

/// The slices of Guideway's own Service: its pods on these nodes, and the edges.
pub(crate) fn presence<'net>(
    nodes: impl IntoIterator<Item = &'net Machine>,
    edges: &[Machine],
) -> [Value; 2] {
    let pod = |node: &Machine| {
        json!({
            "addresses": [node.v4().to_string()], "nodeName": node.label(),
            "conditions": {"ready": true},
        })
    };
    let edge = |edge: &Machine| json!({"addresses": [edge.v4().to_string()]});
    let nodes: Vec<Value> = nodes.into_iter().map(pod).collect();
    let edges: Vec<Value> = edges.iter().map(edge).collect();
    [("guideway-1", nodes), ("edges", edges)].map(|(name, endpoints)| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": SYSTEM, "name": name, "labels": {
                "kubernetes.io/service-name": "guideway", "service.kubernetes.io/headless": "",
            }},
            "addressType": "IPv4", "ports": [], "endpoints": endpoints,
        })
    })
}

/// A Service of type LoadBalancer, TCP and UDP at port 80, before it has addresses.
pub(crate) fn service(name: &str, node_port: u16) -> Value {
    let port = |protocol: &str| {
        json!({
            "name": protocol.to_lowercase(), "protocol": protocol, "port": 80, "nodePort": node_port,
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "guideway.dev/guideway",
            "ipFamilyPolicy": "RequireDualStack", "ports": [port("TCP"), port("UDP")],
        },
    })
}

/// What its status says when it has addresses.
pub(crate) fn status(addresses: &[IpAddr]) -> Value {
    let ingress = addresses
        .iter()
        .map(|address| json!({"ip": address.to_string()}));
    json!({"loadBalancer": {"ingress": ingress.collect::<Vec<_>>()}})
}

/// The slices of a Service, IPv4 and IPv6: these pods, each ready or not.
pub(crate) fn slices(net: &Topology, service: &str, pods: &[(&Machine, bool)]) -> [Value; 2] {
    [("IPv4", true), ("IPv6", false)].map(|(kind, is_v4)| {
        let endpoint = |(pod, ready): &(&Machine, bool)| {
            let address = if is_v4 { pod.v4() } else { pod.v6() };
            json!({
                "addresses": [address.to_string()], "nodeName": node_of(net, pod).label(),
                "conditions": {"ready": ready},
            })
        };
        let port = |protocol: &str| {
            json!({
                "name": protocol.to_lowercase(), "protocol": protocol, "port": TARGET_PORT,
            })
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{service}-{}", kind.to_lowercase()),
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": kind, "ports": [port("TCP"), port("UDP")],
            "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
        })
    })
}

fn node_of<'net>(net: &'net Topology, pod: &Machine) -> &'net Machine {
    let is_here = |node: &&Machine| node.pods().iter().any(|other| other.label() == pod.label());
    net.nodes().iter().find(is_here).unwrap()
}
