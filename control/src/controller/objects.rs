//! What allocation reads: exactly the fields that its rules ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kube::core::{Selector, SelectorExt};

use super::block::{Block, Family};
use crate::desired::Protocol;
use crate::index::objects::ObjectName;

/// Labels of an object, or what a Service selects pods by.
pub(super) type Labels = BTreeMap<String, String>;

/// Addresses to give out, and to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pool {
    /// The addresses; those of the first block are given first.
    pub(super) blocks: Vec<Block>,
    /// Which Services get them.
    pub(super) services: Selector,
    /// The Services of which namespaces get them.
    pub(super) namespaces: Selector,
    /// Whether Services get them that ask for nothing.
    pub(super) auto_assign: bool,
    /// Whether the pool is being deleted: Services keep its addresses, and none gets another one.
    pub(super) terminating: bool,
    /// Whether it cannot be read for whom the pool is: Services keep its addresses, whoever they are, and none gets
    /// another one.
    pub(super) unreadable: bool,
    /// The namespaces whose Services may share an address of the pool by a key, by the key.
    pub(super) sharing: BTreeMap<String, BTreeSet<String>>,
}

impl Pool {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| block.contains(address))
    }

    /// Tells whether a Service with these labels, in a namespace with these, may have the pool's addresses;
    /// a namespace whose labels are not known is only in a selector of all.
    pub(super) fn admits(&self, service: &Labels, namespace: Option<&Labels>) -> bool {
        let in_namespace = match namespace {
            Some(labels) => self.namespaces.matches(labels),
            None => self.namespaces.selects_all(),
        };
        self.services.matches(service) && in_namespace
    }

    /// Tells whether Services keep its addresses and none gets another one.
    pub(super) fn is_closed(&self) -> bool {
        self.terminating || self.unreadable
    }

    /// Tells whether Services of both namespaces may share an address of the pool by a key.
    pub(super) fn lets_share(&self, key: &str, namespaces: [&str; 2]) -> bool {
        let named = self.sharing.get(key);
        named.is_some_and(|named| namespaces.iter().all(|one| named.contains(*one)))
    }
}

/// A Service that gets its addresses from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) name: ObjectName,
    /// What tells it from others that have had its name.
    pub(super) uid: String,
    /// When it was created, in seconds since 1970: who came first.
    pub(super) created: i64,
    pub(super) labels: Labels,
    /// The families it wants an address of.
    pub(super) families: Vec<Family>,
    /// Whether it wants both families or nothing.
    pub(super) dual_stack_required: bool,
    pub(super) ports: BTreeSet<(Protocol, u16)>,
    /// Whether its external traffic policy is Local.
    pub(super) local: bool,
    /// What it selects pods by.
    pub(super) selector: Labels,
    pub(super) request: Request,
    /// The addresses that its status has.
    pub(super) held: Vec<IpAddr>,
}

/// What a Service asks for, as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    /// The annotation `guideway.dev/addresses`.
    pub(super) addresses: Option<String>,
    /// The deprecated field `loadBalancerIP`.
    pub(super) load_balancer_ip: Option<String>,
    /// The annotation `guideway.dev/pool`.
    pub(super) pools: Option<String>,
    /// The annotation `guideway.dev/sharing-key`.
    pub(super) sharing_key: Option<String>,
}
