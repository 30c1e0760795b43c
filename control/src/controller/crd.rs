//! The custom resource `LoadBalancerPool`: its fields, and the rules that the API server itself checks.

#![expect(
    unreachable_pub,
    reason = "the derived schema is read from a copy of the struct inside of a function"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::core::Rule;
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::selector::{
    KEY, LONGEST_KEY, LONGEST_VALUE, MOST_PARTS, VALUE, WITH_VALUES, WITHOUT_VALUES,
};
use crate::kubernetes::schema;

/// The condition that says whether a pool's whole specification is in force.
pub const READY: &str = "Ready";

/// Returns the custom resource definition as YAML.
///
/// # Errors
///
/// Never for the types declared here; the serializer's signature requires it.
pub fn definition() -> Result<String, serde_saphyr::SerializeError> {
    serde_saphyr::to_string(&LoadBalancerPool::crd())
}

/// The addresses of a pool, and the Services that may get them.
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
    /// The addresses of the first entry are handed out first. An entry with addresses in use cannot be removed or
    /// made smaller. To shrink an entry, first add the smaller one, then remove the larger one.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 96)))]
    #[x_kube(validation = Rule::new(
        "self.all(a, isIP(a) || (isCIDR(a) && cidr(a) == cidr(a).masked()) || \
         (a.split('-').size() == 2 && a.split('-').all(e, isIP(e.trim()))))"
    ).message("each is a CIDR without host bits, a range FIRST-LAST or an address"))]
    #[x_kube(
        validation = range_in_order(RANGE_RULES[0]),
        validation = range_in_order(RANGE_RULES[1]),
        validation = range_in_order(RANGE_RULES[2]),
        validation = range_in_order(RANGE_RULES[3]),
    )]
    pub addresses: Vec<String>,
    /// Selects Services by their labels. Without it, all Services may get addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "label_selector")]
    pub service_selector: Option<LabelSelector>,
    /// Selects namespaces by their labels. Without it, Services of all namespaces may get addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "label_selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// Whether Services that request neither this pool nor an address get addresses from it.
    #[serde(default = "yes")]
    pub auto_assign: bool,
    /// Keys by which Services of several namespaces may share an address of the pool. Services of one namespace
    /// may share an address by any key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub sharing: Option<Vec<SharingSpec>>,
}

/// A sharing key that is valid across namespaces.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SharingSpec {
    /// The key, as in the annotation `guideway.dev/sharing-key`.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// The namespaces whose Services may share addresses by this key.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 63)))]
    pub namespaces: Vec<String>,
}

/// The use of a pool, and whether it is in force.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Number of addresses that `guideway controller` has assigned to Services. A shared address counts once.
    pub used: i64,
    /// Number of free IPv4 addresses.
    #[serde(rename = "freeIPv4")]
    pub free_ipv4: i64,
    /// Number of free IPv6 addresses; 9223372036854775807 if there are more.
    #[serde(rename = "freeIPv6")]
    pub free_ipv6: i64,
    /// The entries of spec.addresses with their use. An address counts for the smallest entry that contains it.
    #[schemars(length(max = 64))]
    pub blocks: Vec<BlockStatus>,
    /// `Ready` says whether the whole specification is in force. While a pool is being deleted, it names the
    /// Services that keep the pool.
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

/// The use of one entry of spec.addresses.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockStatus {
    /// The entry, as in spec.addresses.
    #[schemars(length(max = 96))]
    pub addresses: String,
    /// Number of its addresses that Services have.
    pub used: i64,
}

/// A condition, as in other Kubernetes objects.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The name of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason in one word.
    pub reason: String,
    /// The reason in a sentence.
    pub message: String,
    /// Time of the last change of `status`.
    pub last_transition_time: String,
}

impl Condition {
    /// Sets the transition time: `now` (RFC 3339) if the status differs from `before`, else that of `before`.
    pub(super) fn since(mut self, before: Option<&Self>, now: &str) -> Self {
        let before = before.filter(|before| before.status == self.status);
        let since = before.map_or(now, |before| &before.last_transition_time);
        since.clone_into(&mut self.last_transition_time);
        self
    }

    /// Returns whether two conditions agree in everything but their times.
    pub(super) fn says_as(&self, other: &Self) -> bool {
        self.said() == other.said()
    }

    /// Returns the status, the reason and the message.
    pub(super) fn said(&self) -> [&str; 3] {
        [&self.status, &self.reason, &self.message]
    }
}

/// A pool as the API server stores it, with only those metadata that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pool {
    #[serde(deserialize_with = "schema::metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: PoolSpec,
    /// `None` if somebody else wrote something unreadable. It is then written again.
    #[serde(deserialize_with = "schema::or_nothing")]
    pub(crate) status: Option<PoolStatus>,
}

schema::resources! {
    Pool: LoadBalancerPool, false;
}

fn yes() -> bool {
    true
}

/// First prefix length of each rule about ranges. One rule for all lengths would exceed the cost that the API
/// server allows.
const RANGE_RULES: [u32; 4] = [0, 32, 64, 96];

/// Returns the rule that a range does not end before it begins, for ranges whose ends first differ in one of 32 bits.
///
/// CEL cannot compare addresses. Where two addresses in order first differ, the first one has a zero bit: so
/// the network of all bits before has the same first address as the network of one bit more. The API server
/// limits the cost of rules by the lengths of texts. It knows those of parts of a text, but not those of
/// numbers converted to text; so the lengths are cut out of one text.
fn range_in_order(from: u32) -> Rule {
    let first = "a.substring(0, a.indexOf('-')).trim()";
    let last = "a.substring(a.indexOf('-') + 1).trim()";
    let bits = 32;
    let lengths: String = (from..=from + bits)
        .map(|length| format!("{length:3}"))
        .collect();
    let network = |bit: &str| {
        format!("cidr({first} + '/' + '{lengths}'.substring(3 * ({bit}), 3 * ({bit}) + 3).trim())")
    };
    let (before, behind) = (network("i"), network("i + 1"));
    let every: Vec<String> = (0..bits).map(|bit| bit.to_string()).collect();
    // IPv4 has only the 32 bits of the first rule.
    let family = if from < bits {
        format!("ip({first}).family() == ip({last}).family() && ")
    } else {
        format!("ip({first}).family() == 4 || ")
    };
    let rule = format!(
        "self.all(a, !a.contains('-') || !isIP({first}) || !isIP({last}) || ({family}\
         [{}].all(i, !{before}.containsIP({last}) || {behind}.containsIP({last}) || \
         {before}.masked().ip() == {behind}.masked().ip())))",
        every.join(", ")
    );
    Rule::new(rule)
        .message("both ends of a range are of one family, and the first is not behind the last")
}

/// The schema of a label selector with the rules of Kubernetes. `k8s-openapi` has it only behind a feature.
fn label_selector(_: &mut SchemaGenerator) -> Schema {
    let value = json!({"type": "string", "maxLength": LONGEST_VALUE, "pattern": VALUE});
    let operators = [WITH_VALUES, WITHOUT_VALUES].concat();
    let needs = format!("self.operator in ['{}']", WITH_VALUES.join("', '"));
    json_schema!({
        "type": "object",
        "nullable": true,
        "properties": {
            "matchLabels": {
                "type": "object",
                "maxProperties": MOST_PARTS,
                "additionalProperties": value,
                "x-kubernetes-validations": [{
                    "rule": format!("self.all(k, k.size() <= {LONGEST_KEY} && k.matches('{KEY}'))"),
                    "message": "each key is one that a label can have",
                }],
            },
            "matchExpressions": {
                "type": "array",
                "maxItems": MOST_PARTS,
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string", "maxLength": LONGEST_KEY, "pattern": KEY},
                        "operator": {"type": "string", "enum": operators},
                        "values": {"type": "array", "maxItems": MOST_PARTS, "items": value},
                    },
                    "x-kubernetes-validations": [{
                        "rule": format!("({needs}) == (has(self.values) && self.values.size() > 0)"),
                        "message": "In and NotIn need values, Exists and DoesNotExist take none",
                    }],
                },
            },
        },
    })
}
