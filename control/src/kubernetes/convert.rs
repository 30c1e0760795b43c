//! From the API's types to the index's: fields are moved, and what no rule reads is dropped.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::desired::unusable;
use crate::index;
use crate::index::objects::{
    Endpoint, EndpointPort, EndpointSlice, Ingress, NODE_LABELS, NODE_TAINTS, Node, NodeAddress,
    ObjectName, SERVICE_ANNOTATIONS, SERVICE_LABELS, SLICE_LABELS, Service, ServicePort, Text,
};

/// Annotation of a slice: when the change happened that last made the controller write it.
const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Names an object.
pub(crate) fn name(metadata: &ObjectMeta) -> ObjectName {
    let text = |text: &Option<String>| text.as_deref().map(Text::from).unwrap_or_default();
    ObjectName::new(text(&metadata.namespace), text(&metadata.name))
}

/// Reads when the change happened that a slice tells of.
pub(super) fn last_change(metadata: &ObjectMeta) -> Option<Timestamp> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.get(LAST_CHANGE)?.parse().ok()
}

/// Reads the address of an edge outside the cluster.
pub(crate) fn edge(text: &str) -> Option<IpAddr> {
    index::address(text).filter(|edge| unusable(*edge).is_none())
}

/// Converts a Service.
pub(crate) fn service(service: core::Service) -> Service {
    let metadata = service.metadata;
    let spec = service.spec.unwrap_or_default();
    let balancer = service.status.and_then(|status| status.load_balancer);
    let ingress = balancer.and_then(|balancer| balancer.ingress);
    let cluster_ips = spec.cluster_ips.filter(|all| !all.is_empty());
    let cluster_ips = cluster_ips.or_else(|| Some(vec![spec.cluster_ip?]));
    Service {
        name: name(&metadata),
        created: metadata
            .creation_timestamp
            .map(|created| created.0.as_second()),
        labels: only(metadata.labels, &SERVICE_LABELS),
        annotations: only(metadata.annotations, &SERVICE_ANNOTATIONS),
        kind: spec.type_.map(Text::from),
        cluster_ips: list(cluster_ips, Text::from),
        ports: list(spec.ports, port),
        external_ips: list(spec.external_ips, Text::from),
        ingress: list(ingress, |ingress| Ingress {
            ip: ingress.ip.map(Text::from),
            ip_mode: ingress.ip_mode.map(Text::from),
        }),
        source_ranges: list(spec.load_balancer_source_ranges, Text::from),
        load_balancer_class: spec.load_balancer_class.map(Text::from),
        external_traffic_policy: spec.external_traffic_policy.map(Text::from),
        session_affinity: spec.session_affinity.map(Text::from),
        health_check_node_port: spec.health_check_node_port,
    }
}

fn port(port: core::ServicePort) -> ServicePort {
    ServicePort {
        name: port.name.map(Text::from),
        protocol: port.protocol.map(Text::from),
        port: port.port,
        node_port: port.node_port,
    }
}

/// Converts an EndpointSlice.
pub(crate) fn slice(slice: discovery::EndpointSlice) -> EndpointSlice {
    let metadata = slice.metadata;
    EndpointSlice {
        name: name(&metadata),
        labels: only(metadata.labels, &SLICE_LABELS),
        address_type: slice.address_type,
        endpoints: slice
            .endpoints
            .into_iter()
            .flatten()
            .map(endpoint)
            .collect(),
        ports: slice
            .ports
            .into_iter()
            .flatten()
            .map(|port| EndpointPort {
                name: port.name,
                protocol: port.protocol,
                port: port.port,
            })
            .collect(),
    }
}

fn endpoint(endpoint: discovery::Endpoint) -> Endpoint {
    let conditions = endpoint.conditions.unwrap_or_default();
    let hints = endpoint.hints.unwrap_or_default();
    let nodes = hints.for_nodes.into_iter().flatten();
    let zones = hints.for_zones.into_iter().flatten();
    Endpoint {
        addresses: endpoint.addresses,
        ready: conditions.ready,
        serving: conditions.serving,
        terminating: conditions.terminating,
        node_name: endpoint.node_name,
        for_nodes: nodes.map(|node| node.name).collect(),
        for_zones: zones.map(|zone| zone.name).collect(),
    }
}

/// Converts a Node.
pub(crate) fn node(node: core::Node) -> Node {
    let addresses = node.status.and_then(|status| status.addresses);
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let taints = taints.into_iter().map(|taint| taint.key);
    Node {
        deleting: node.metadata.deletion_timestamp.is_some(),
        taints: taints
            .filter(|key| NODE_TAINTS.contains(&key.as_str()))
            .collect(),
        name: node.metadata.name.unwrap_or_default(),
        labels: only(node.metadata.labels, &NODE_LABELS),
        addresses: addresses
            .into_iter()
            .flatten()
            .map(|address| NodeAddress {
                kind: address.type_,
                address: address.address,
            })
            .collect(),
    }
}

fn only(map: Option<BTreeMap<String, String>>, names: &[&str]) -> BTreeMap<String, String> {
    // A map out of which everything was taken would keep its room.
    let all = map.into_iter().flatten();
    all.filter(|(name, _)| names.contains(&name.as_str()))
        .collect()
}

/// Converts a list into one without room to spare.
fn list<T, U>(list: Option<Vec<T>>, convert: impl Fn(T) -> U) -> Vec<U> {
    let all = list.unwrap_or_default();
    let mut converted = Vec::with_capacity(all.len());
    converted.extend(all.into_iter().map(convert));
    converted
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;
    use crate::index::objects::TO_BE_DELETED;

    fn read<T: DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn service_keeps_what_rules_read() {
        let converted = service(read(json!({
            "metadata": {
                "namespace": "shop", "name": "web", "creationTimestamp": "1970-01-01T00:01:00Z",
                "labels": {"app": "web", "service.kubernetes.io/service-proxy-name": "other"},
                "annotations": {"guideway.dev/mode": "nat", "kubectl.kubernetes.io/last-applied": "{}"},
            },
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.96.0.7", "externalIPs": ["192.0.2.9"],
                "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "www", "nodePort": 30080}],
                "loadBalancerSourceRanges": [" 192.0.2.0/24"], "loadBalancerClass": "guideway.dev/guideway",
                "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP", "healthCheckNodePort": 31000,
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}, {"hostname": "x"}]}},
        })));
        let expected = Service {
            name: ObjectName::new("shop", "web"),
            created: Some(60),
            labels: [("service.kubernetes.io/service-proxy-name", "other")]
                .map(owned)
                .into(),
            annotations: [("guideway.dev/mode", "nat")].map(owned).into(),
            kind: Some("LoadBalancer".into()),
            cluster_ips: vec!["10.96.0.7".into()],
            ports: vec![ServicePort {
                name: Some("http".into()),
                protocol: Some("TCP".into()),
                port: 80,
                node_port: Some(30_080),
            }],
            external_ips: vec!["192.0.2.9".into()],
            ingress: vec![
                Ingress {
                    ip: Some("192.0.2.1".into()),
                    ip_mode: Some("VIP".into()),
                },
                Ingress::default(),
            ],
            source_ranges: vec![" 192.0.2.0/24".into()],
            load_balancer_class: Some("guideway.dev/guideway".into()),
            external_traffic_policy: Some("Local".into()),
            session_affinity: Some("ClientIP".into()),
            health_check_node_port: Some(31_000),
        };
        assert_eq!(converted, expected);
    }

    #[test]
    fn traffic_distribution_is_never_read() {
        let with = |distribution: Option<&str>| {
            service(read(json!({
                "metadata": {"namespace": "shop", "name": "web"},
                "spec": {
                    "type": "NodePort", "clusterIP": "10.96.0.7", "trafficDistribution": distribution,
                    "ports": [{"port": 80, "nodePort": 30080}],
                },
            })))
        };
        for distribution in ["PreferClose", "PreferSameZone", "PreferSameNode", "?"] {
            assert_eq!(with(Some(distribution)), with(None), "{distribution}");
        }
    }

    #[test]
    fn slice_keeps_conditions_and_hints() {
        let converted = slice(read(json!({
            "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.244.0.1"], "nodeName": "a", "zone": "z",
                 "conditions": {"ready": false, "serving": true, "terminating": true},
                 "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "a"}]}},
                {"addresses": ["10.244.0.2"]},
            ],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {}],
        })));
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = EndpointSlice {
            name: ObjectName::new("shop", "web-1"),
            labels: [("kubernetes.io/service-name", "web")].map(owned).into(),
            address_type: "IPv4".to_owned(),
            endpoints: vec![
                Endpoint {
                    addresses: names(&["10.244.0.1"]),
                    ready: Some(false),
                    serving: Some(true),
                    terminating: Some(true),
                    node_name: Some("a".to_owned()),
                    for_nodes: names(&["a"]),
                    for_zones: names(&["z"]),
                },
                Endpoint {
                    addresses: names(&["10.244.0.2"]),
                    ..Endpoint::default()
                },
            ],
            ports: vec![
                EndpointPort {
                    name: Some("http".to_owned()),
                    protocol: Some("TCP".to_owned()),
                    port: Some(8080),
                },
                EndpointPort::default(),
            ],
        };
        assert_eq!(converted, expected);
    }

    #[test]
    fn null_lists_are_empty() {
        let converted = slice(read(json!({
            "metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": null, "ports": null,
        })));
        assert_eq!((converted.endpoints, converted.ports), (vec![], vec![]));
    }

    #[test]
    fn node_keeps_zone_addresses_and_signs_that_it_goes() {
        let converted = node(read(json!({
            "metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": "z", "x": "y"},
                         "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"},
                                {"key": "x", "effect": "NoExecute"}]},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
        })));
        assert_eq!(
            converted.labels,
            [("topology.kubernetes.io/zone", "z")].map(owned).into()
        );
        assert!(converted.deleting);
        assert_eq!(converted.taints, [TO_BE_DELETED.to_owned()].into());
        assert_eq!(converted.addresses[0].kind, "InternalIP");
        assert_eq!(converted.addresses[0].address, "10.0.0.1");
    }

    #[test]
    fn time_of_the_change_is_read() {
        let metadata = |time: &str| ObjectMeta {
            annotations: Some([(LAST_CHANGE.to_owned(), time.to_owned())].into()),
            ..ObjectMeta::default()
        };
        let time = last_change(&metadata("1970-01-01T00:00:01.5Z")).unwrap();
        assert_eq!(time.as_millisecond(), 1500);
        assert_eq!(last_change(&metadata("yesterday")), None);
        assert_eq!(last_change(&ObjectMeta::default()), None);
    }

    fn owned((key, value): (&str, &str)) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }
}
