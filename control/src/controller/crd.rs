//! The custom resource `LoadBalancerPool`: its fields, and the rules that the API server checks by itself.

#![expect(
    unreachable_pub,
    reason = "the derived schema is read from a copy of the struct inside of a function"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The condition of a pool that tells whether its specification is in force.
pub const READY: &str = "Ready";

/// The definition as it is installed.
///
/// # Errors
///
/// Never with the types declared here; the serializer has the error in its type.
pub fn definition() -> Result<String, serde_saphyr::SerializeError> {
    serde_saphyr::to_string(&LoadBalancerPool::crd())
}

/// What is wanted of a pool.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "guideway.dev",
    version = "v1alpha1",
    kind = "LoadBalancerPool",
    plural = "loadbalancerpools",
    shortname = "lbpool",
    status = "PoolStatus",
    derive = "PartialEq",
    doc = "Addresses that `guideway controller` hands out to Services of type LoadBalancer.",
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.used"),
    printcolumn(name = "Free IPv4", type_ = "integer", json_path = ".status.freeIPv4"),
    printcolumn(name = "Free IPv6", type_ = "integer", json_path = ".status.freeIPv6"),
    printcolumn(name = "Auto assign", type_ = "boolean", json_path = ".spec.autoAssign"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new(
        "!has(self.status) || !has(self.status.blocks) || self.status.blocks.all(b, b.used == 0 || \
         self.spec.addresses.exists(a, a == b.addresses || \
         (isCIDR(a) && isCIDR(b.addresses) && cidr(a).containsCIDR(b.addresses))))"
    ).message(
        "an entry of spec.addresses with addresses in use, as status.blocks tells, can be made wider, \
         but neither removed nor made smaller"
    ),
)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// CIDRs (192.0.2.0/28), ranges (192.0.2.10-192.0.2.20) and single addresses of both families.
    /// Those of the first entry are handed out first. An entry with addresses in use cannot be removed or made
    /// smaller; to make it smaller, add the smaller one first, then remove it.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 96)))]
    #[x_kube(validation = Rule::new(
        "self.all(a, isIP(a) || (isCIDR(a) && cidr(a) == cidr(a).masked()) || \
         (a.split('-').size() == 2 && a.split('-').all(e, isIP(e.trim()))))"
    ).message("each is a CIDR without host bits, a range FIRST-LAST or an address"))]
    pub addresses: Vec<String>,
    /// Which Services get addresses, by their labels; all if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "label_selector")]
    pub service_selector: Option<LabelSelector>,
    /// The Services of which namespaces get addresses, by the namespaces' labels; all if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "label_selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// Whether Services get addresses that name neither this pool nor an address.
    #[serde(default = "yes")]
    pub auto_assign: bool,
}

/// What a pool has come to.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Addresses that Services have from `guideway controller`; a shared one counts once.
    pub used: i64,
    /// IPv4 addresses that nobody has.
    #[serde(rename = "freeIPv4")]
    pub free_ipv4: i64,
    /// IPv6 addresses that nobody has, 9223372036854775807 if there are more.
    #[serde(rename = "freeIPv6")]
    pub free_ipv6: i64,
    /// The entries of spec.addresses with their use; an address counts for the smallest entry that has it.
    #[schemars(length(max = 64))]
    pub blocks: Vec<BlockStatus>,
    /// `Ready`: whether all of the specification is in force; of a pool that is being deleted, which Services keep it.
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
}

impl PoolStatus {
    /// Returns the condition [`READY`].
    pub fn ready(&self) -> Option<&Condition> {
        let mut conditions = self.conditions.iter();
        conditions.find(|condition| condition.kind == READY)
    }
}

/// One entry of a pool's addresses.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockStatus {
    /// The entry as it is written.
    #[schemars(length(max = 96))]
    pub addresses: String,
    /// Addresses of it that Services have.
    pub used: i64,
}

/// A condition, as conditions are in Kubernetes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in a word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
    /// When `status` last changed.
    pub last_transition_time: String,
}

fn yes() -> bool {
    true
}

/// The schema of a label selector, which `k8s-openapi` has behind a feature only.
fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "nullable": true,
        "properties": {
            "matchLabels": {"type": "object", "additionalProperties": {"type": "string"}},
            "matchExpressions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string"},
                        "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                        "values": {"type": "array", "items": {"type": "string"}},
                    },
                },
            },
        },
    })
}
