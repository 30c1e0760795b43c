//! Kubernetes objects as the index reads them: the fields that a rule needs, and no others.
//!
//! What the API has as text that may be wrong stays text here: the index judges it and names
//! what is wrong. An absent or null list is an empty one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use compact_str::CompactString;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// A text that is kept for each of many objects: up to 24 bytes, as nearly all have, take no memory elsewhere.
pub type Text = CompactString;

/// Namespace and name of an object; cluster-wide ones have an empty namespace. A clone shares the text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(Arc<Parts>);

/// The parts of an object's name.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parts {
    /// The namespace.
    pub namespace: Text,
    /// The name.
    pub name: Text,
}

impl ObjectName {
    /// Names an object of a namespace.
    pub fn new(namespace: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self(Arc::new(Parts {
            namespace: namespace.into(),
            name: name.into(),
        }))
    }
}

impl Deref for ObjectName {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// A `v1` Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// `metadata.namespace` and `metadata.name`.
    pub name: ObjectName,
    /// `metadata.creationTimestamp` in seconds since 1970.
    pub created: Option<i64>,
    /// `metadata.labels`; those of [`SERVICE_LABELS`] suffice.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`; those of [`SERVICE_ANNOTATIONS`] suffice.
    pub annotations: BTreeMap<String, String>,
    /// `spec.type`.
    pub kind: Option<Text>,
    /// `spec.clusterIPs`, or `spec.clusterIP` alone where there are none.
    pub cluster_ips: Vec<Text>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<Text>,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: Vec<Text>,
    /// `spec.loadBalancerClass`.
    pub load_balancer_class: Option<Text>,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: Option<Text>,
    /// `spec.sessionAffinity`.
    pub session_affinity: Option<Text>,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<i32>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// `name`; the only port of a Service needs none.
    pub name: Option<Text>,
    /// `protocol`; TCP if not given.
    pub protocol: Option<Text>,
    /// `port`.
    #[serde(deserialize_with = "number")]
    pub port: i32,
    /// `nodePort`.
    #[serde(deserialize_with = "optional_number")]
    pub node_port: Option<i32>,
}

/// An entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// `ip`; none where there is a host name only.
    pub ip: Option<Text>,
    /// `ipMode`.
    pub ip_mode: Option<Text>,
}

/// A `discovery.k8s.io/v1` EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSlice {
    /// `metadata.namespace` and `metadata.name`.
    pub name: ObjectName,
    /// `metadata.labels`; those of [`SLICE_LABELS`] suffice.
    pub labels: BTreeMap<String, String>,
    /// `addressType`.
    pub address_type: String,
    /// `endpoints`.
    pub endpoints: Vec<Endpoint>,
    /// `ports`.
    pub ports: Vec<EndpointPort>,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses`, of which the first one counts.
    pub addresses: Vec<String>,
    /// `conditions.ready`.
    pub ready: Option<bool>,
    /// `conditions.serving`.
    pub serving: Option<bool>,
    /// `conditions.terminating`.
    pub terminating: Option<bool>,
    /// `nodeName`.
    pub node_name: Option<String>,
    /// `hints.forNodes[].name`.
    pub for_nodes: Vec<String>,
    /// `hints.forZones[].name`.
    pub for_zones: Vec<String>,
}

/// A port of a slice.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointPort {
    /// `name`.
    pub name: Option<String>,
    /// `protocol`; TCP if not given.
    pub protocol: Option<String>,
    /// `port`.
    #[serde(deserialize_with = "optional_number")]
    pub port: Option<i32>,
}

/// A `v1` Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`; those of [`NODE_LABELS`] suffice.
    pub labels: BTreeMap<String, String>,
    /// `status.addresses`.
    pub addresses: Vec<NodeAddress>,
    /// Whether there is a `metadata.deletionTimestamp`.
    pub deleting: bool,
    /// Keys of `spec.taints`; those of [`NODE_TAINTS`] suffice.
    pub taints: BTreeSet<String>,
}

/// An entry of a Node's `status.addresses`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeAddress {
    /// `type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `address`.
    pub address: String,
}

/// Reads a number: one that 32 bits cannot hold as the nearest that they can, which is no port.
pub(crate) fn number<'de, D: Deserializer<'de>>(decoder: D) -> Result<i32, D::Error> {
    Ok(optional_number(decoder)?.unwrap_or_default())
}

/// Reads a number that may be left out.
pub(crate) fn optional_number<'de, D: Deserializer<'de>>(
    decoder: D,
) -> Result<Option<i32>, D::Error> {
    struct Number;

    impl Visitor<'_> for Number {
        type Value = Option<i32>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number")
        }

        fn visit_unit<E: Error>(self) -> Result<Option<i32>, E> {
            Ok(None)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<Option<i32>, E> {
            let nearest = if number < 0 { i32::MIN } else { i32::MAX };
            Ok(Some(i32::try_from(number).unwrap_or(nearest)))
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Option<i32>, E> {
            Ok(Some(i32::try_from(number).unwrap_or(i32::MAX)))
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<Option<i32>, E> {
            Ok(Some(if number < 0.0 { i32::MIN } else { i32::MAX }))
        }
    }

    decoder.deserialize_any(Number)
}

/// Namespace and name of the API servers' own Service, and of the slice that they keep for it. Slices of other names say
/// what somebody else claims.
pub const API_SERVICE: (&str, &str) = ("default", "kubernetes");
/// Label of a slice: the Service that it belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of a Service or slice that another proxy takes care of.
pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label of a headless Service and its slices.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// Label of a Node: its zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Annotation of a Service: how packets reach its pods.
pub const MODE: &str = "guideway.dev/mode";
/// Annotation of a Service: the length of its lookup tables.
pub const TABLE_SIZE: &str = "guideway.dev/table-size";
/// Taint of a Node that the cluster autoscaler is about to remove.
pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Annotation of a slice: when the change happened that last made the controller write it.
pub const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Labels of a Service that rules read.
pub const SERVICE_LABELS: [&str; 2] = [SERVICE_PROXY_NAME, HEADLESS];
/// Annotations of a Service that rules read.
pub const SERVICE_ANNOTATIONS: [&str; 2] = [MODE, TABLE_SIZE];
/// Labels of a slice that rules read.
pub const SLICE_LABELS: [&str; 3] = [SERVICE_NAME, SERVICE_PROXY_NAME, HEADLESS];
/// Labels of a Node that rules read.
pub const NODE_LABELS: [&str; 1] = [ZONE];
/// Taints of a Node that rules read.
pub const NODE_TAINTS: [&str; 1] = [TO_BE_DELETED];
