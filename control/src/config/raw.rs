//! The configuration file as written: the shape only.
//!
//! Every leaf is text with its position and every field is optional, so that the
//! rules in `validate` see the whole file and can report all broken ones at once;
//! serde refuses only what has the wrong shape: unknown or repeated fields, a list
//! where a value belongs.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::Spanned;

pub(super) type Text = Option<Spanned<String>>;
pub(super) type List<T> = Option<Spanned<Vec<T>>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) interfaces: List<Spanned<Interface>>,
    pub(super) roles: List<Spanned<String>>,
    pub(super) nodes: List<Spanned<Node>>,
    pub(super) hash_seed: Text,
    pub(super) sources: Option<Sources>,
    pub(super) nat: Option<Nat>,
    pub(super) default_mode: Text,
    pub(super) vips: List<Spanned<String>>,
    pub(super) node_port_addresses: List<Spanned<String>>,
    pub(super) node_port_range: Text,
    pub(super) clamp_mss: Text,
    pub(super) services: List<Spanned<Service>>,
    pub(super) health: Option<Spanned<Health>>,
    pub(super) node_health: Text,
    pub(super) trusted_edges: List<Spanned<String>>,
    pub(super) kubernetes: Option<Spanned<Kubernetes>>,
    pub(super) announce: Option<Spanned<Announce>>,
    pub(super) tables: Option<Tables>,
    pub(super) api: Option<Api>,
    pub(super) metrics: Option<Metrics>,
    pub(super) pin_dir: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Interface {
    pub(super) name: Text,
    pub(super) mode: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) address: Text,
    pub(super) guideway: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sources {
    pub(super) ipv4: Text,
    pub(super) ipv6: Text,
    pub(super) ipv4_prefix: Text,
    pub(super) ipv6_prefix: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nat {
    pub(super) ipv4: Text,
    pub(super) ipv6: Text,
    pub(super) ports: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Service {
    pub(super) name: Text,
    pub(super) address: Text,
    pub(super) port: Text,
    pub(super) node_port: Text,
    pub(super) protocol: Text,
    pub(super) mode: Text,
    pub(super) table_size: Text,
    pub(super) traffic_policy: Text,
    pub(super) source_ranges: List<Spanned<String>>,
    pub(super) session_affinity: Text,
    pub(super) health: Option<Spanned<Health>>,
    pub(super) backends: List<Spanned<Backend>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Health {
    #[serde(rename = "type")]
    pub(super) kind: Text,
    pub(super) port: Text,
    pub(super) path: Text,
    pub(super) host: Text,
    pub(super) status: List<Spanned<String>>,
    pub(super) body: Text,
    pub(super) interval: Text,
    pub(super) timeout: Text,
    pub(super) rise: Text,
    pub(super) fall: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Backend {
    pub(super) address: Text,
    pub(super) port: Text,
    pub(super) node: Text,
    pub(super) weight: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kubernetes {
    pub(super) node_name: Text,
    pub(super) namespace: Text,
    pub(super) lease_namespace: Text,
    pub(super) service: Text,
    pub(super) load_balancer_class: Text,
    pub(super) default_class: Text,
    pub(super) external_ips: List<Spanned<String>>,
    pub(super) topology_hints: Text,
    pub(super) health_check_node_port: Text,
    pub(super) healthz: Text,
    pub(super) table_share: Text,
    pub(super) namespace_table_share: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Announce {
    pub(super) interfaces: List<Spanned<String>>,
    pub(super) addresses: List<Spanned<String>>,
    pub(super) node_selector: Option<Spanned<BTreeMap<String, String>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tables {
    pub(super) lut_arena_mib: Text,
    pub(super) services: Text,
    pub(super) backends: Text,
    pub(super) next_hops: Text,
    pub(super) vips: Text,
    pub(super) trusted_edges: Text,
    pub(super) pods: Text,
    pub(super) source_ranges: Text,
    pub(super) flows: Text,
    pub(super) nat_flows: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Api {
    pub(super) socket: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metrics {
    pub(super) listen: Text,
}
