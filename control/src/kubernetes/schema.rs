//! Objects of the API as Guideway reads them: the fields that something reads, and no others.
//!
//! Whoever may write an object chooses what stands in it, and a decoder that knows every field of it can be made to
//! fail by any of them. So nothing here is decoded that is not used, `metadata.managedFields` least of all: a time in it
//! of the year 0 is stored by the API server. What is used is read as leniently as it can be: enumerations and times are
//! texts, numbers of any size come as near as 32 bits can, and null is nothing. An object that is wrong all the same
//! is [`Unreadable`], alone.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1 as coordination;
use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde::de::{DeserializeOwned, Error, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::index::objects::{self, LAST_CHANGE, ObjectName, Text, optional_number};

/// Characters that are told of why an object cannot be read.
const LONGEST_REASON: usize = 200;
/// What the annotations begin with that mean something to Guideway.
const OURS: &str = "guideway.dev/";

/// An object that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// Its name, empty if not even that can be read.
    pub(crate) name: ObjectName,
    /// Its version, if that can be read.
    pub(crate) version: Option<String>,
    /// Where it is wrong, and how.
    pub(crate) reason: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Reads an object.
pub(crate) fn read<K>(json: &[u8]) -> Result<K, Unreadable>
where
    K: DeserializeOwned + Resource<DynamicType = ()>,
{
    match serde_json::from_slice::<K>(json) {
        Ok(object)
            if object
                .meta()
                .name
                .as_ref()
                .is_some_and(|name| !name.is_empty()) =>
        {
            Ok(object)
        }
        Ok(object) => Err(Unreadable {
            name: name(object.meta()),
            version: object.meta().resource_version.clone(),
            reason: "metadata.name: there is none".to_owned(),
        }),
        Err(_) => Err(unreadable::<K>(json)),
    }
}

/// Finds out what is wrong with an object.
fn unreadable<K: DeserializeOwned>(json: &[u8]) -> Unreadable {
    let mut decoder = serde_json::Deserializer::from_slice(json);
    let reason = match serde_path_to_error::deserialize::<_, K>(&mut decoder) {
        Ok(_) => "it is followed by something else".to_owned(),
        Err(error) => {
            let (path, cause) = (error.path().to_string(), error.into_inner());
            // Line and column are those of what the API server sent, which nobody sees.
            let cause = cause.to_string();
            let cause = cause.split(" at line ").next().unwrap_or_default();
            format!("{path}: {cause}")
        }
    };
    let head: Head = serde_json::from_slice(json).unwrap_or_default();
    Unreadable {
        name: name(&head.metadata),
        version: head.metadata.resource_version,
        reason: reason.chars().take(LONGEST_REASON).collect(),
    }
}

/// What an object is told from others by.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(deserialize_with = "identity")]
    metadata: ObjectMeta,
}

/// Names an object.
pub(crate) fn name(metadata: &ObjectMeta) -> ObjectName {
    let text = |text: &Option<String>| text.as_deref().map(Text::from).unwrap_or_default();
    ObjectName::new(text(&metadata.namespace), text(&metadata.name))
}

/// Names an object, be it one that cannot be read.
pub(crate) fn name_of<K: Resource>(object: &Result<K, Unreadable>) -> ObjectName {
    match object {
        Ok(object) => name(object.meta()),
        Err(unreadable) => unreadable.name.clone(),
    }
}

/// Reads when the change happened that a slice tells of.
pub(super) fn last_change(metadata: &ObjectMeta) -> Option<Timestamp> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.get(LAST_CHANGE)?.parse().ok()
}

fn identity<'de, D: Deserializer<'de>>(decoder: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Identity {
        namespace: Option<String>,
        name: Option<String>,
        resource_version: Option<String>,
    }
    let Identity {
        namespace,
        name,
        resource_version,
    } = Option::deserialize(decoder)?.unwrap_or_default();
    Ok(ObjectMeta {
        namespace,
        name,
        resource_version,
        ..ObjectMeta::default()
    })
}

/// Reads of the metadata what something reads.
pub(crate) fn metadata<'de, D: Deserializer<'de>>(decoder: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Metadata {
        namespace: Option<String>,
        name: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<String>,
        deletion_timestamp: Option<IgnoredAny>,
        finalizers: Option<Vec<String>>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<Annotations>,
    }
    let read: Metadata = Option::deserialize(decoder)?.unwrap_or_default();
    let created = read.creation_timestamp.as_deref();
    let created = created.and_then(|text| text.parse().ok());
    Ok(ObjectMeta {
        namespace: read.namespace,
        name: read.name,
        uid: read.uid,
        resource_version: read.resource_version,
        creation_timestamp: created.map(Time),
        // When it was deleted, nobody asks.
        deletion_timestamp: (read.deletion_timestamp).map(|_| Time(Timestamp::UNIX_EPOCH)),
        finalizers: read.finalizers,
        labels: read.labels,
        annotations: read.annotations.map(|annotations| annotations.0),
        ..ObjectMeta::default()
    })
}

/// The annotations that something reads.
struct Annotations(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        struct Ours;

        impl<'de> Visitor<'de> for Ours {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut ours = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if key.starts_with(OURS) || key == LAST_CHANGE {
                        ours.insert(key, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Annotations(ours))
            }
        }

        decoder.deserialize_map(Ours)
    }
}

/// Makes types of ours stand for the objects of others, of which the metadata suffice or not.
macro_rules! resources {
    ($($ours:ident: $theirs:ty, $metadata_only:literal;)*) => {$(
        impl kube::Resource for $ours {
            type DynamicType = ();
            type Scope = <$theirs as kube::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$theirs as kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$theirs as kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$theirs as kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$theirs as kube::Resource>::plural(&())
            }

            fn metadata_api() -> bool {
                $metadata_only
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*};
}
pub(crate) use resources;

resources! {
    Service: core::Service, false;
    EndpointSlice: discovery::EndpointSlice, false;
    Node: core::Node, false;
    NodeMetadata: core::Node, true;
    Namespace: core::Namespace, true;
    Secret: core::Secret, false;
    Lease: coordination::Lease, false;
}

/// A Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Service {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Option<ServiceSpec>,
    pub(crate) status: Option<ServiceStatus>,
}

/// What is wanted of a Service.
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
    #[serde(deserialize_with = "optional_number")]
    pub(crate) health_check_node_port: Option<i32>,
    pub(crate) ip_families: Option<Vec<Text>>,
    pub(crate) ip_family_policy: Option<Text>,
    pub(crate) selector: Option<BTreeMap<String, String>>,
}

/// What a Service has come to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceStatus {
    pub(crate) load_balancer: Option<LoadBalancerStatus>,
    pub(crate) conditions: Option<Vec<Condition>>,
}

/// The addresses of a Service of type LoadBalancer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LoadBalancerStatus {
    pub(crate) ingress: Option<Vec<Ingress>>,
}

/// One of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Ingress {
    pub(crate) ip: Option<Text>,
    pub(crate) ip_mode: Option<Text>,
    pub(crate) hostname: Option<IgnoredAny>,
    pub(crate) ports: Option<IgnoredAny>,
}

/// A condition.
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

/// An EndpointSlice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EndpointSlice {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) address_type: Option<String>,
    pub(crate) endpoints: Option<Vec<Endpoint>>,
    pub(crate) ports: Option<Vec<objects::EndpointPort>>,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Endpoint {
    pub(crate) addresses: Option<Vec<String>>,
    pub(crate) conditions: Option<EndpointConditions>,
    pub(crate) node_name: Option<String>,
    pub(crate) hints: Option<EndpointHints>,
}

/// What an endpoint may be used for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointConditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

/// Where clients of an endpoint should be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EndpointHints {
    for_nodes: Option<Vec<Named>>,
    for_zones: Option<Vec<Named>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: Option<String>,
}

/// A Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    spec: Option<NodeSpec>,
    pub(crate) status: Option<NodeStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: Option<String>,
}

/// What a Node has come to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatus {
    pub(crate) addresses: Option<Vec<objects::NodeAddress>>,
}

/// The metadata of a Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeMetadata {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
}

/// A Namespace, of which the labels count.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Namespace {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
}

/// A Secret.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Secret {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) data: Option<BTreeMap<String, ByteString>>,
}

/// A Lease.
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

/// Writes a time as Leases have it.
pub(crate) fn micro_time(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// Who has a Lease, and until when.
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

/// Reads what nothing depends on: as nothing where it is wrong.
pub(crate) fn or_nothing<'de, D, T>(decoder: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = serde_json::Value::deserialize(decoder).map_err(D::Error::custom)?;
    Ok(serde_json::from_value(value).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::index::objects::TO_BE_DELETED;

    fn of<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn shown<K>(object: &Value) -> Result<K, Unreadable>
    where
        K: DeserializeOwned + Resource<DynamicType = ()>,
    {
        read(object.to_string().as_bytes())
    }

    fn service(value: Value) -> objects::Service {
        of::<Service>(value).into()
    }

    fn slice(value: Value) -> objects::EndpointSlice {
        of::<EndpointSlice>(value).into()
    }

    fn node(value: Value) -> objects::Node {
        of::<Node>(value).into()
    }

    /// Times and numbers that decoders of all fields cannot read. This is how the API server tells a time in the year 0,
    /// east of Greenwich.
    fn hostile_metadata() -> Value {
        json!({
            "namespace": "shop", "name": "web", "creationTimestamp": "-001-12-31T23:00:00Z",
            "annotations": {"x": 7, "y": {"z": []}},
            "managedFields": [{"time": "-001-12-31T23:00:00Z", "fieldsV1": 7}],
            "generation": 1e300, "ownerReferences": "x", "deletionGracePeriodSeconds": "x",
        })
    }

    #[test]
    fn what_nothing_reads_may_be_anything() {
        let object = json!({
            "metadata": hostile_metadata(),
            "spec": {
                "type": "?", "ports": [{"port": 99_999_999_999_u64, "nodePort": -1e300, "targetPort": [], "appProtocol": 7}],
                "clusterIPs": null, "clusterIP": "10.96.0.1", "trafficDistribution": 7, "internalTrafficPolicy": {},
                "sessionAffinityConfig": "x",
            },
            "status": {
                "conditions": [{"type": "x", "lastTransitionTime": "-001-12-31T23:00:00Z", "observedGeneration": "x"}],
                "loadBalancer": {"ingress": [{"ip": "192.0.2.1", "hostname": 7, "ports": {}}]},
            },
        });
        let service = shown::<Service>(&object).unwrap();
        assert_eq!(service.metadata.managed_fields, None);
        let service = objects::Service::from(service);
        assert_eq!(service.name, ObjectName::new("shop", "web"));
        assert_eq!(
            (service.created, service.annotations),
            (None, BTreeMap::new())
        );
        let port = &service.ports[0];
        assert_eq!((port.port, port.node_port), (i32::MAX, Some(i32::MIN)));
        assert_eq!(service.ingress[0].ip.as_deref(), Some("192.0.2.1"));

        let slice = shown::<EndpointSlice>(&json!({
            "metadata": hostile_metadata(), "addressType": "?",
            "endpoints": [{
                "addresses": null, "conditions": {"ready": null, "x": 7}, "targetRef": "x", "deprecatedTopology": 7,
                "hints": {"forZones": [{"name": null, "x": 7}], "x": []},
            }],
            "ports": [{"port": u64::MAX, "appProtocol": {}}],
        }));
        let slice = objects::EndpointSlice::from(slice.unwrap());
        assert_eq!(slice.ports[0].port, Some(i32::MAX));
        assert_eq!(slice.endpoints[0], objects::Endpoint::default());

        let node = shown::<Node>(&json!({
            "metadata": hostile_metadata(), "spec": {"taints": [{"key": null, "timeAdded": 7}], "unschedulable": "x"},
            "status": {"addresses": null, "conditions": 7, "images": "x", "nodeInfo": []},
        }));
        assert!(objects::Node::from(node.unwrap()).addresses.is_empty());
        let lease = shown::<Lease>(&json!({
            "metadata": hostile_metadata(),
            "spec": {"holderIdentity": "x", "renewTime": "-001-12-31T23:00:00Z", "leaseDurationSeconds": 1e300},
        }));
        let spec = lease.unwrap().spec.unwrap();
        assert_eq!(spec.lease_duration_seconds, Some(i32::MAX));
    }

    #[test]
    fn object_that_cannot_be_read_is_named_with_the_field_that_is_wrong() {
        for (field, value) in [
            ("type", json!(7)),
            ("ports", json!([{"port": 80}, {"port": "x"}])),
            ("externalIPs", json!({})),
        ] {
            let mut object = json!({
                "metadata": {"namespace": "shop", "name": "web", "resourceVersion": "7"}, "spec": {},
            });
            object["spec"][field] = value;
            let unreadable = shown::<Service>(&object).unwrap_err();
            assert_eq!(unreadable.name, ObjectName::new("shop", "web"));
            assert_eq!(unreadable.version.as_deref(), Some("7"));
            let reason = &unreadable.reason;
            assert!(reason.starts_with(&format!("spec.{field}")), "{reason}");
            assert!(
                reason.contains("invalid type") && !reason.contains(" line "),
                "{reason}"
            );
        }
        let long = json!({"metadata": {"name": "web"}, "spec": "x".repeat(5000)});
        let reason = shown::<Service>(&long).unwrap_err().reason;
        assert_eq!(reason.chars().count(), LONGEST_REASON);
        for object in [json!({}), json!({"metadata": {"name": ""}})] {
            let reason = shown::<Service>(&object).unwrap_err().reason;
            assert!(reason.contains("metadata.name"), "{reason}");
        }
        for object in [json!(7), json!({"metadata": 7}), json!([])] {
            assert_eq!(
                shown::<Service>(&object).unwrap_err().name,
                ObjectName::default()
            );
        }
    }

    #[test]
    fn service_keeps_what_rules_read() {
        let converted = service(json!({
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
        }));
        let expected = objects::Service {
            name: ObjectName::new("shop", "web"),
            created: Some(60),
            labels: [("service.kubernetes.io/service-proxy-name", "other")]
                .map(owned)
                .into(),
            annotations: [("guideway.dev/mode", "nat")].map(owned).into(),
            kind: Some("LoadBalancer".into()),
            cluster_ips: vec!["10.96.0.7".into()],
            ports: vec![objects::ServicePort {
                name: Some("http".into()),
                protocol: Some("TCP".into()),
                port: 80,
                node_port: Some(30_080),
            }],
            external_ips: vec!["192.0.2.9".into()],
            ingress: vec![
                objects::Ingress {
                    ip: Some("192.0.2.1".into()),
                    ip_mode: Some("VIP".into()),
                },
                objects::Ingress::default(),
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
            service(json!({
                "metadata": {"namespace": "shop", "name": "web"},
                "spec": {
                    "type": "NodePort", "clusterIP": "10.96.0.7", "trafficDistribution": distribution,
                    "ports": [{"port": 80, "nodePort": 30080}],
                },
            }))
        };
        for distribution in ["PreferClose", "PreferSameZone", "PreferSameNode", "?"] {
            assert_eq!(with(Some(distribution)), with(None), "{distribution}");
        }
    }

    #[test]
    fn slice_keeps_conditions_and_hints() {
        let converted = slice(json!({
            "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.244.0.1"], "nodeName": "a", "zone": "z",
                 "conditions": {"ready": false, "serving": true, "terminating": true},
                 "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "a"}]}},
                {"addresses": ["10.244.0.2"]},
            ],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {}],
        }));
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = objects::EndpointSlice {
            name: ObjectName::new("shop", "web-1"),
            labels: [("kubernetes.io/service-name", "web")].map(owned).into(),
            address_type: "IPv4".to_owned(),
            endpoints: vec![
                objects::Endpoint {
                    addresses: names(&["10.244.0.1"]),
                    ready: Some(false),
                    serving: Some(true),
                    terminating: Some(true),
                    node_name: Some("a".to_owned()),
                    for_nodes: names(&["a"]),
                    for_zones: names(&["z"]),
                },
                objects::Endpoint {
                    addresses: names(&["10.244.0.2"]),
                    ..objects::Endpoint::default()
                },
            ],
            ports: vec![
                objects::EndpointPort {
                    name: Some("http".to_owned()),
                    protocol: Some("TCP".to_owned()),
                    port: Some(8080),
                },
                objects::EndpointPort::default(),
            ],
        };
        assert_eq!(converted, expected);
    }

    #[test]
    fn null_lists_are_empty() {
        let converted = slice(json!({
            "metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": null, "ports": null,
        }));
        assert_eq!((converted.endpoints, converted.ports), (vec![], vec![]));
    }

    #[test]
    fn node_keeps_zone_addresses_and_signs_that_it_goes() {
        let converted = node(json!({
            "metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": "z", "x": "y"},
                         "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"},
                                {"key": "x", "effect": "NoExecute"}]},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
        }));
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
