//! The decoded API objects, each with the fields that Guideway uses.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1 as coordination;
use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde::de::IgnoredAny;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use super::{metadata, resources};
use crate::index::objects::{self, Text, optional_number};

resources! {
    Service: core::Service, false;
    EndpointSlice: discovery::EndpointSlice, false;
    Node: core::Node, false;
    NodeMetadata: core::Node, true;
    Namespace: core::Namespace, true;
    Secret: core::Secret, false;
    Lease: coordination::Lease, false;
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Service {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Option<ServiceSpec>,
    pub(crate) status: Option<ServiceStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceSpec {
    #[serde(rename = "type")]
    pub(crate) type_: Option<Text>,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<Text>,
    #[serde(rename = "clusterIPs")]
    pub(crate) cluster_ips: Option<Vec<Text>>,
    pub(crate) ports: Option<Vec<objects::ServicePort>>,
    #[serde(rename = "externalIPs")]
    pub(crate) external_ips: Option<Vec<Text>>,
    #[serde(rename = "loadBalancerIP")]
    pub(crate) load_balancer_ip: Option<String>,
    pub(crate) load_balancer_source_ranges: Option<Vec<Text>>,
    pub(crate) load_balancer_class: Option<Text>,
    pub(crate) external_traffic_policy: Option<Text>,
    pub(crate) session_affinity: Option<Text>,
    pub(crate) session_affinity_config: Option<SessionAffinityConfig>,
    #[serde(deserialize_with = "optional_number")]
    pub(crate) health_check_node_port: Option<i32>,
    pub(crate) ip_families: Option<Vec<Text>>,
    pub(crate) ip_family_policy: Option<Text>,
    pub(crate) selector: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SessionAffinityConfig {
    #[serde(rename = "clientIP")]
    pub(crate) client_ip: Option<ClientIpConfig>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClientIpConfig {
    #[serde(deserialize_with = "optional_number")]
    pub(crate) timeout_seconds: Option<i32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceStatus {
    pub(crate) load_balancer: Option<LoadBalancerStatus>,
    pub(crate) conditions: Option<Vec<Condition>>,
}

/// The addresses of a LoadBalancer Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LoadBalancerStatus {
    pub(crate) ingress: Option<Vec<Ingress>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Ingress {
    pub(crate) ip: Option<Text>,
    pub(crate) ip_mode: Option<Text>,
    pub(crate) hostname: Option<IgnoredAny>,
    pub(crate) ports: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) type_: Option<String>,
    pub(crate) status: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) last_transition_time: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EndpointSlice {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) address_type: Option<String>,
    pub(crate) endpoints: Option<Vec<Endpoint>>,
    pub(crate) ports: Option<Vec<objects::EndpointPort>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Endpoint {
    pub(crate) addresses: Option<Vec<String>>,
    pub(crate) conditions: Option<EndpointConditions>,
    pub(crate) node_name: Option<String>,
    pub(crate) hints: Option<EndpointHints>,
}

/// The conditions of an endpoint; an absent one is for the index to interpret.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointConditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

/// Topology hints: which nodes and zones should use an endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EndpointHints {
    pub(super) for_nodes: Option<Vec<Named>>,
    pub(super) for_zones: Option<Vec<Named>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    pub(super) name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(super) spec: Option<NodeSpec>,
    pub(crate) status: Option<NodeStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec {
    pub(super) taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Taint {
    pub(super) key: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatus {
    pub(crate) addresses: Option<Vec<objects::NodeAddress>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeMetadata {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
}

/// A Namespace, of which only the labels are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Namespace {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Secret {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) data: Option<BTreeMap<String, ByteString>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Lease {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Option<LeaseSpec>,
}

impl Serialize for Lease {
    fn serialize<S: Serializer>(&self, encoder: S) -> Result<S::Ok, S::Error> {
        let mut lease = encoder.serialize_struct("Lease", 4)?;
        lease.serialize_field("apiVersion", &Self::api_version(&()))?;
        lease.serialize_field("kind", &Self::kind(&()))?;
        lease.serialize_field("metadata", &self.metadata)?;
        lease.serialize_field("spec", &self.spec)?;
        lease.end()
    }
}

/// Formats a time as Leases have it, with microseconds.
pub(crate) fn micro_time(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// The holder of a Lease, and how long it holds it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct LeaseSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder_identity: Option<String>,
    #[serde(
        deserialize_with = "optional_number",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) lease_duration_seconds: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) acquire_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) renew_time: Option<String>,
    #[serde(
        deserialize_with = "optional_number",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) lease_transitions: Option<i32>,
}
