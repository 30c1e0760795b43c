//! Settings of the index, from the configuration file and the environment.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::TableEntries;
use crate::desired::ForwardMode;

/// Settings of the index that no Kubernetes object holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Name of this machine's Node; `None` for an edge outside the cluster.
    pub node_name: Option<String>,
    /// Whether this machine has the edge role only. Its pods are then not delivered to.
    pub edge_only: bool,
    /// The `loadBalancerClass` whose addresses are captured.
    pub load_balancer_class: String,
    /// Whether LoadBalancer Services without a class are captured too.
    pub serve_unset_class: bool,
    /// Networks within which `spec.externalIPs` are captured.
    pub external_ips: BTreeSet<IpNet>,
    /// How topology hints are treated.
    pub topology_hints: TopologyHints,
    /// Forwarding mode of Services without an annotation.
    pub default_mode: ForwardMode,
    /// Seed of session affinity. It must be equal on all edges, or a client gets another pod behind each edge.
    pub hash_seed: u64,
    /// The most that one Service may take of the tables.
    pub service_room: TableEntries,
    /// The most that all Services of a namespace may take together; `None` for no limit.
    pub namespace_room: Option<TableEntries>,
}

impl Options {
    /// The `loadBalancerClass` that the controller serves unless configured.
    pub const DEFAULT_CLASS: &str = "guideway.dev/guideway";
    /// Default share of each table that one Service may take, in percent.
    pub const DEFAULT_SHARE: u64 = 25;
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_name: None,
            edge_only: false,
            load_balancer_class: Self::DEFAULT_CLASS.to_owned(),
            serve_unset_class: false,
            external_ips: BTreeSet::new(),
            topology_hints: TopologyHints::default(),
            default_mode: ForwardMode::default(),
            hash_seed: 0,
            service_room: TableEntries::DEFAULT.share(Self::DEFAULT_SHARE),
            namespace_room: None,
        }
    }
}

/// How topology hints of endpoints are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyHints {
    /// Hints select endpoints, as in kube-proxy.
    #[default]
    Honour,
    /// Hints are ignored: all edges use the same endpoints.
    Ignore,
}
