//! Kubernetes objects, reduced to the fields that the index reads.
//!
//! A field that is text in the API and may be wrong stays text here: the index checks it and reports what is
//! wrong. An absent or null list is an empty list. `kubernetes::schema` decodes these types.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use compact_str::CompactString;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// A text that many objects repeat. Up to 24 bytes, as nearly all are, are stored inline.
pub type Text = CompactString;

/// Namespace and name of an object; the namespace of a cluster-wide object is empty. Clones share the text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(Arc<Parts>);

/// The two parts of an [`ObjectName`].
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parts {
    /// The namespace.
    pub namespace: Text,
    /// The name.
    pub name: Text,
}

impl ObjectName {
    /// Returns the name of an object in a namespace.
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
    /// `metadata.labels`; only [`SERVICE_LABELS`] are needed.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`; only [`SERVICE_ANNOTATIONS`] are needed.
    pub annotations: BTreeMap<String, String>,
    /// `spec.type`.
    pub kind: Option<Text>,
    /// `spec.clusterIPs`, or `spec.clusterIP` if that list is empty.
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
    /// `spec.sessionAffinityConfig.clientIP.timeoutSeconds`.
    pub affinity_seconds: Option<i32>,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<i32>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// `name`; the only port of a Service may have none.
    pub name: Option<Text>,
    /// `protocol`; TCP if absent.
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
    /// `ip`; absent if the entry has only a host name.
    pub ip: Option<Text>,
    /// `ipMode`.
    pub ip_mode: Option<Text>,
}

/// A `discovery.k8s.io/v1` EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSlice {
    /// `metadata.namespace` and `metadata.name`.
    pub name: ObjectName,
    /// `metadata.labels`; only [`SLICE_LABELS`] are needed.
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
    /// `addresses`; only the first counts.
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
    /// `protocol`; TCP if absent.
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
    /// `metadata.labels`; only [`NODE_LABELS`] are needed.
    pub labels: BTreeMap<String, String>,
    /// `status.addresses`.
    pub addresses: Vec<NodeAddress>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Keys of `spec.taints`; only [`NODE_TAINTS`] are needed.
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

/// Reads an integer. A value outside 32 bits becomes the nearest 32-bit value, which is never a valid port.
pub(crate) fn number<'de, D: Deserializer<'de>>(decoder: D) -> Result<i32, D::Error> {
    Ok(optional_number(decoder)?.unwrap_or_default())
}

/// Reads an integer that may be absent, in the same way.
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

/// Namespace and name of the API server's own Service, and of the EndpointSlice that the API servers maintain
/// for it. Any other slice of that Service may have been written by somebody else.
pub const API_SERVICE: (&str, &str) = ("default", "kubernetes");
/// Label of a slice: name of its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of a Service or slice that another proxy handles.
pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label of a headless Service and its slices.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// Label of a Node: the zone it is in.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Annotation of a Service: how packets reach its pods (`ipip`, `l2dsr` or `nat`).
pub const MODE: &str = "guideway.dev/mode";
/// Annotation of a Service: number of slots of its lookup tables.
pub const TABLE_SIZE: &str = "guideway.dev/table-size";
/// Taint of a Node that the cluster autoscaler is about to remove.
pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Annotation of a slice: time of the change that made the controller write it last.
pub const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Service labels that the index reads.
pub const SERVICE_LABELS: [&str; 2] = [SERVICE_PROXY_NAME, HEADLESS];
/// Service annotations that the index reads.
pub const SERVICE_ANNOTATIONS: [&str; 2] = [MODE, TABLE_SIZE];
/// Slice labels that the index reads.
pub const SLICE_LABELS: [&str; 3] = [SERVICE_NAME, SERVICE_PROXY_NAME, HEADLESS];
/// Node labels that the index reads.
pub const NODE_LABELS: [&str; 1] = [ZONE];
/// Node taints that the index reads.
pub const NODE_TAINTS: [&str; 1] = [TO_BE_DELETED];
