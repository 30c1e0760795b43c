//! Edges and the addresses that they announce, as edges tell each other by Leases.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Mac;

/// Where an edge has its Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Home {
    /// Where edges have none but their own.
    Own,
    /// Beside the controller's, as edges of the version before do, which look nowhere else.
    Shared,
}

/// An edge, as its Lease shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Its name.
    pub name: String,
    /// Where its Lease is.
    pub home: Home,
    /// MACs by which it announces addresses; none where the Lease does not tell.
    pub macs: BTreeSet<Mac>,
    /// Addresses by which pods name their node; none where it is no Node.
    pub addresses: BTreeSet<IpAddr>,
    /// What every renewal changes.
    pub renewal: String,
}

/// The edges that may announce an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Candidates {
    /// All that are alive.
    #[default]
    Every,
    /// Of those that are Nodes, the ones with one of these addresses (`externalTrafficPolicy: Local`).
    NodesAt(BTreeSet<IpAddr>),
}

impl Candidates {
    pub(super) fn include(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        match self {
            Self::Every => true,
            // To a machine that is no Node, all backends are elsewhere.
            Self::NodesAt(nodes) => addresses.is_empty() || !addresses.is_disjoint(nodes),
        }
    }
}

/// What an edge should announce.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// The addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them that are to be announced once more, since another machine has done it.
    pub again: BTreeSet<IpAddr>,
    /// Machines that are no edges and have announced one of them, each told of once.
    pub strangers: Vec<(IpAddr, Mac)>,
}
