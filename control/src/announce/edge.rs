//! Edges as they show themselves in their Leases, and the addresses that they announce.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Mac;

/// The namespace of an edge's Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseNamespace {
    /// The namespace that has only edges' Leases.
    Own,
    /// The controller's namespace. Edges of the previous version have their Leases there, and look nowhere else.
    Shared,
}

/// An edge according to its Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Its name.
    pub name: String,
    /// Namespace of its Lease.
    pub namespace: LeaseNamespace,
    /// MACs by which it announces addresses; empty if the Lease does not list any.
    pub macs: BTreeSet<Mac>,
    /// Addresses by which endpoints name its Node; empty for an edge that is no Node.
    pub addresses: BTreeSet<IpAddr>,
    /// A text that changes with every renewal.
    pub renewal: String,
    /// Whether it hands its addresses over to others; see [`super::election`].
    pub is_drained: bool,
}

/// The edges that may announce an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Candidates {
    /// All live edges.
    #[default]
    Every,
    /// Edges that are no Nodes, and Nodes with one of these addresses (`externalTrafficPolicy: Local`).
    NodesAt(BTreeSet<IpAddr>),
}

impl Candidates {
    pub(super) fn include(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        match self {
            Self::Every => true,
            // For an edge that is no Node, all backends are on other machines.
            Self::NodesAt(nodes) => addresses.is_empty() || !addresses.is_disjoint(nodes),
        }
    }
}

/// What an edge should announce.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElectionResult {
    /// The addresses to announce.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses to announce once more, because another machine has announced them.
    pub again: BTreeSet<IpAddr>,
    /// Machines that are no edges and announced one of the addresses. Each is reported once.
    pub strangers: Vec<(IpAddr, Mac)>,
    /// Whether this edge is drained.
    pub is_drained: bool,
}
