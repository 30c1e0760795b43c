//! The objects of a cluster of any size, as controllers write them and the API server sends them.
//!
//! Services are of type LoadBalancer and have no NodePorts, because there are only 2768 of these. Each has one
//! EndpointSlice, whose first endpoint is the one that changes.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

/// Namespace of Guideway's own objects.
pub(super) const SYSTEM: &str = "guideway-system";
/// Namespace of the Services.
pub(super) const DEFAULT: &str = "default";
/// Port of the Services.
pub(super) const PORT: u16 = 80;
/// Most endpoints of a Service: the distance between the pods' addresses of two Services.
pub(super) const MOST_ENDPOINTS: u32 = 64;
/// Endpoints of a slice, as many as the EndpointSlice controller puts into one.
const SLICE: u32 = 100;

/// The size of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Number of Services.
    pub services: u32,
    /// Number of endpoints of each Service.
    pub endpoints: u32,
    /// Number of Nodes; it must exceed the endpoints of one Service.
    pub nodes: u32,
}

impl Cluster {
    /// Returns the address of a Node.
    pub(super) fn node_address(number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(0x0a01_0001 + number)
    }

    /// Returns the VIP of a Service.
    pub(super) fn vip(number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(0x6440_0001 + number)
    }

    /// Returns the number of the Node with the changing endpoint after `change` changes. It is another Node
    /// each time, and has none of the Service's other endpoints.
    pub(super) const fn node_of_change(&self, service: u32, change: u32) -> u32 {
        let others = self.nodes - self.endpoints;
        (service + self.endpoints + change % others) % self.nodes
    }

    pub(super) fn node(number: u32) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": metadata(&format!("node-{number}"), ""),
            "spec": {"podCIDR": "10.128.0.0/24"},
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": Self::node_address(number).to_string()},
                    {"type": "Hostname", "address": format!("node-{number}")},
                ],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    }

    /// Returns a Node as its kubelet writes it: with new times, and with the Node's images, which are most of
    /// the object.
    pub(super) fn heartbeat(number: u32, beat: u32) -> Value {
        const IMAGES: u32 = 50;
        const CONDITIONS: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
        let time = format!(
            "2026-11-21T{:02}:{:02}:{:02}Z",
            beat / 3600 % 24,
            beat / 60 % 60,
            beat % 60
        );
        let image = |image: u32| {
            let digest = format!("{:064x}", u64::from(image) << 32 | u64::from(number));
            json!({
                "names": [
                    format!("registry.example/team-{image}/application@sha256:{digest}"),
                    format!("registry.example/team-{image}/application:v1.{image}.0"),
                ],
                "sizeBytes": 100_000_000 + image,
            })
        };
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": if kind == "Ready" { "True" } else { "False" },
                "lastHeartbeatTime": time, "lastTransitionTime": "2026-11-21T00:00:00Z",
                "reason": format!("Kubelet{kind}"), "message": format!("kubelet tells of {kind}"),
            })
        };
        let mut node = Self::node(number);
        let status = &mut node["status"];
        status["conditions"] = CONDITIONS.iter().map(|kind| condition(kind)).collect();
        status["images"] = (0..IMAGES).map(image).collect();
        add_managed(&mut node, "kubelet", &["f:conditions", "f:images"]);
        node
    }

    /// Returns the slices of Guideway's own Service. It runs on all Nodes.
    pub(super) fn presence(&self) -> Vec<Value> {
        let numbers: Vec<u32> = (0..self.nodes).collect();
        let slices = numbers.chunks(SLICE as usize).enumerate();
        let slice = |(number, nodes): (usize, &[u32])| {
            let endpoint = |node: &u32| {
                json!({
                    "addresses": [Self::node_address(*node).to_string()],
                    "nodeName": format!("node-{node}"), "conditions": {"ready": true},
                })
            };
            let mut metadata = metadata(&format!("guideway-{number}"), SYSTEM);
            metadata["labels"] = json!({
                "kubernetes.io/service-name": "guideway", "service.kubernetes.io/headless": "",
            });
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
                "addressType": "IPv4", "ports": [],
                "endpoints": nodes.iter().map(endpoint).collect::<Vec<_>>(),
            })
        };
        slices.map(slice).collect()
    }

    /// Returns a Service as a user writes it; the API server adds the rest.
    pub(super) fn service(number: u32) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": metadata(&name(number), DEFAULT),
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "guideway.dev/guideway",
                "allocateLoadBalancerNodePorts": false, "selector": {"app": name(number)},
                "ports": [{"name": "http", "protocol": "TCP", "port": PORT, "targetPort": 8080}],
            },
        })
    }

    /// Returns the status that a controller gives a Service.
    pub(super) fn service_status(number: u32) -> Value {
        let ingress = json!([{"ip": Self::vip(number).to_string(), "ipMode": "VIP"}]);
        json!({"loadBalancer": {"ingress": ingress}})
    }

    /// Returns a Service as the API server sends it.
    pub(super) fn served_service(number: u32) -> Value {
        let mut service = Self::service(number);
        let cluster_ip = Ipv4Addr::from_bits(0x0a60_0001 + number).to_string();
        let spec = &mut service["spec"];
        spec["clusterIP"] = json!(cluster_ip);
        spec["clusterIPs"] = json!([cluster_ip]);
        spec["ipFamilies"] = json!(["IPv4"]);
        spec["ipFamilyPolicy"] = json!("SingleStack");
        spec["internalTrafficPolicy"] = json!("Cluster");
        spec["externalTrafficPolicy"] = json!("Cluster");
        spec["sessionAffinity"] = json!("None");
        service["status"] = Self::service_status(number);
        add_managed(
            &mut service,
            "kubectl-create",
            &["f:spec", "f:ports", "f:selector", "f:type"],
        );
        service
    }

    /// Returns the slice of a Service after `change` changes, as its controller writes it.
    pub(super) fn slice(&self, service: u32, change: u32) -> Value {
        let endpoint = |index: u32| {
            let (pod, node) = match (index, change) {
                (0, 1..) => (
                    0x0ae0_0000 + service * 16 + change % 16,
                    self.node_of_change(service, change),
                ),
                _ => (
                    0x0a80_0000 + service * MOST_ENDPOINTS + index,
                    (service + index) % self.nodes,
                ),
            };
            json!({
                "addresses": [Ipv4Addr::from_bits(pod).to_string()],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("node-{node}"),
                "targetRef": {
                    "kind": "Pod", "name": format!("{}-{pod:08x}", name(service)),
                    "namespace": DEFAULT, "uid": uid(pod),
                },
                "zone": format!("zone-{}", node % 3),
            })
        };
        let mut metadata = metadata(&format!("{}-x7k2p", name(service)), DEFAULT);
        metadata["labels"] = json!({
            "kubernetes.io/service-name": name(service),
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        });
        metadata["annotations"] =
            json!({"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-21T00:00:00Z"});
        metadata["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Service", "name": name(service), "uid": uid(service),
            "controller": true, "blockOwnerDeletion": true,
        }]);
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "addressType": "IPv4",
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
            "endpoints": (0..self.endpoints).map(endpoint).collect::<Vec<_>>(),
        })
    }

    /// Returns the same slice as the API server sends it.
    pub(super) fn served_slice(&self, service: u32, change: u32) -> Value {
        let mut slice = self.slice(service, change);
        let fields = ["f:addressType", "f:endpoints", "f:metadata", "f:ports"];
        add_managed(&mut slice, "kube-controller-manager", &fields);
        slice
    }
}

/// Returns the name of a Service.
pub(super) fn name(service: u32) -> String {
    format!("service-{service}")
}

fn metadata(name: &str, namespace: &str) -> Value {
    let mut metadata = json!({"name": name});
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

/// Adds the metadata that the API server adds to each object.
fn add_managed(object: &mut Value, manager: &str, fields: &[&str]) {
    const CREATED: &str = "2026-11-21T00:00:00Z";
    let fields = fields
        .iter()
        .map(|field| ((*field).to_owned(), json!({".": {}})));
    let metadata = &mut object["metadata"];
    metadata["uid"] = json!(uid(0));
    metadata["generation"] = json!(1);
    metadata["creationTimestamp"] = json!(CREATED);
    metadata["managedFields"] = json!([{
        "manager": manager, "operation": "Update", "apiVersion": "v1", "time": CREATED,
        "fieldsType": "FieldsV1", "fieldsV1": fields.collect::<serde_json::Map<_, _>>(),
    }]);
}

fn uid(number: u32) -> String {
    format!("{number:08x}-0000-4000-8000-000000000000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_endpoint_is_alone_on_its_node_and_leaves_the_one_of_before() {
        let cluster = Cluster {
            services: 10,
            endpoints: 7,
            nodes: 10,
        };
        for change in 0..20 {
            let slice = cluster.slice(3, change + 1);
            let nodes = slice["endpoints"].as_array().unwrap().iter();
            let nodes: Vec<&str> = nodes.map(|one| one["nodeName"].as_str().unwrap()).collect();
            let new = format!("node-{}", cluster.node_of_change(3, change + 1));
            assert_eq!(nodes.iter().filter(|node| **node == new).count(), 1);
            assert_ne!(
                cluster.node_of_change(3, change),
                cluster.node_of_change(3, change + 1)
            );
        }
    }
}
