//! Converts decoded API objects into the index's own.

use std::collections::BTreeMap;

use super::{Endpoint, EndpointSlice, Named, Node, Service, name};
use crate::index::objects;

impl From<Service> for objects::Service {
    fn from(service: Service) -> Self {
        let metadata = service.metadata;
        let spec = service.spec.unwrap_or_default();
        let balancer = service.status.and_then(|status| status.load_balancer);
        let ingress = balancer.and_then(|balancer| balancer.ingress);
        let cluster_ips = spec.cluster_ips.filter(|all| !all.is_empty());
        let cluster_ips = cluster_ips.or_else(|| Some(vec![spec.cluster_ip?]));
        let created = metadata.creation_timestamp.as_ref();
        Self {
            name: name(&metadata),
            created: created.map(|created| created.0.as_second()),
            labels: only(metadata.labels, &objects::SERVICE_LABELS),
            annotations: only(metadata.annotations, &objects::SERVICE_ANNOTATIONS),
            kind: spec.type_,
            cluster_ips: list(cluster_ips, |address| address),
            ports: list(spec.ports, |port| port),
            external_ips: list(spec.external_ips, |address| address),
            ingress: list(ingress, |ingress| objects::Ingress {
                ip: ingress.ip,
                ip_mode: ingress.ip_mode,
            }),
            source_ranges: list(spec.load_balancer_source_ranges, |range| range),
            load_balancer_class: spec.load_balancer_class,
            external_traffic_policy: spec.external_traffic_policy,
            session_affinity: spec.session_affinity,
            affinity_seconds: spec
                .session_affinity_config
                .and_then(|config| config.client_ip?.timeout_seconds),
            health_check_node_port: spec.health_check_node_port,
        }
    }
}

impl From<EndpointSlice> for objects::EndpointSlice {
    fn from(slice: EndpointSlice) -> Self {
        Self {
            name: name(&slice.metadata),
            labels: only(slice.metadata.labels, &objects::SLICE_LABELS),
            address_type: slice.address_type.unwrap_or_default(),
            endpoints: list(slice.endpoints, objects::Endpoint::from),
            ports: slice.ports.unwrap_or_default(),
        }
    }
}

impl From<Endpoint> for objects::Endpoint {
    fn from(endpoint: Endpoint) -> Self {
        let conditions = endpoint.conditions.unwrap_or_default();
        let hints = endpoint.hints.unwrap_or_default();
        let names = |hints: Option<Vec<Named>>| {
            let names = hints.into_iter().flatten();
            names.filter_map(|hint| hint.name).collect()
        };
        Self {
            addresses: endpoint.addresses.unwrap_or_default(),
            ready: conditions.ready,
            serving: conditions.serving,
            terminating: conditions.terminating,
            node_name: endpoint.node_name,
            for_nodes: names(hints.for_nodes),
            for_zones: names(hints.for_zones),
        }
    }
}

impl From<Node> for objects::Node {
    fn from(node: Node) -> Self {
        let addresses = node.status.and_then(|status| status.addresses);
        let taints = node.spec.and_then(|spec| spec.taints);
        let keys = taints.into_iter().flatten().filter_map(|taint| taint.key);
        Self {
            deleting: node.metadata.deletion_timestamp.is_some(),
            taints: keys
                .filter(|key| objects::NODE_TAINTS.contains(&key.as_str()))
                .collect(),
            name: node.metadata.name.unwrap_or_default(),
            labels: only(node.metadata.labels, &objects::NODE_LABELS),
            addresses: addresses.unwrap_or_default(),
        }
    }
}

fn only(map: Option<BTreeMap<String, String>>, names: &[&str]) -> BTreeMap<String, String> {
    // Copies, because a map from which entries are removed keeps its memory.
    let all = map.into_iter().flatten();
    all.filter(|(name, _)| names.contains(&name.as_str()))
        .collect()
}

/// Converts a list without spare capacity.
fn list<T, U>(list: Option<Vec<T>>, convert: impl Fn(T) -> U) -> Vec<U> {
    let all = list.unwrap_or_default();
    let mut converted = Vec::with_capacity(all.len());
    converted.extend(all.into_iter().map(convert));
    converted
}
