//! What the index is told beside the objects.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::Room;
use crate::desired::ForwardMode;

/// What does not come from objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Name of the Node that this machine is, if it is one.
    pub node_name: Option<String>,
    /// Whether this machine takes the edge role only, so that pods here are not handed their packets.
    pub edge_only: bool,
    /// The class of load balancers whose addresses are captured.
    pub load_balancer_class: String,
    /// Whether Services without a class are of ours.
    pub serve_unset_class: bool,
    /// Networks within which external addresses are captured.
    pub external_ips: BTreeSet<IpNet>,
    /// Whether topology hints count.
    pub topology_hints: TopologyHints,
    /// How packets reach backends of Services that do not say.
    pub default_mode: ForwardMode,
    /// Seed of session affinity; equal on all edges.
    pub hash_seed: u64,
    /// What one Service takes of the tables at most.
    pub service_room: Room,
    /// The same for all Services of a namespace, if that is bounded.
    pub namespace_room: Option<Room>,
}

impl Options {
    /// The class of load balancers that the controller serves.
    pub const DEFAULT_CLASS: &str = "guideway.dev/guideway";
    /// The share of each table that one Service has at most, in percent.
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
            service_room: Room::DEFAULT.share(Self::DEFAULT_SHARE),
            namespace_room: None,
        }
    }
}

/// What becomes of the topology hints of endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyHints {
    /// They count, as for kube-proxy.
    #[default]
    Honour,
    /// All edges use the same endpoints.
    Ignore,
}
