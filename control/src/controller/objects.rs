//! Pools and Services as allocation sees them: only the fields that its rules use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kube::core::{Selector, SelectorExt};

use super::address_range::{AddressRange, Family};
use crate::desired::Protocol;
use crate::index::objects::ObjectName;

/// The labels of an object, or the pod selector of a Service.
pub(super) type Labels = BTreeMap<String, String>;

/// A pool: addresses, and the Services that may have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pool {
    /// The addresses. Those of the first range are assigned first.
    pub(super) ranges: Vec<AddressRange>,
    /// Selects Services by their labels.
    pub(super) services: Selector,
    /// Selects namespaces by their labels.
    pub(super) namespaces: Selector,
    /// Whether Services get its addresses that request neither a pool nor an address.
    pub(super) auto_assign: bool,
    /// Whether the pool is being deleted. Services keep its addresses, but none gets a new one.
    pub(super) terminating: bool,
    /// Whether a selector is unreadable. All Services keep its addresses, but none gets a new one.
    pub(super) unreadable: bool,
    /// For each sharing key, the namespaces whose Services may share an address of the pool by it.
    pub(super) sharing: BTreeMap<String, BTreeSet<String>>,
}

impl Pool {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    /// Returns whether a Service with these labels, in a namespace with these labels, may have the pool's
    /// addresses. If the namespace's labels are unknown, only a selector of all namespaces matches.
    pub(super) fn admits(&self, service: &Labels, namespace: Option<&Labels>) -> bool {
        let in_namespace = match namespace {
            Some(labels) => self.namespaces.matches(labels),
            None => self.namespaces.selects_all(),
        };
        self.services.matches(service) && in_namespace
    }

    /// Returns whether the pool gives no new addresses.
    pub(super) fn is_closed(&self) -> bool {
        self.terminating || self.unreadable
    }

    /// Returns whether Services of both namespaces may share an address of the pool by a key.
    pub(super) fn lets_share(&self, key: &str, namespaces: [&str; 2]) -> bool {
        let named = self.sharing.get(key);
        named.is_some_and(|named| namespaces.iter().all(|one| named.contains(*one)))
    }
}

/// A Service that this controller assigns addresses to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) name: ObjectName,
    /// Distinguishes it from earlier Services of the same name.
    pub(super) uid: String,
    /// Creation time in seconds since 1970. The older Service goes first.
    pub(super) created: i64,
    pub(super) labels: Labels,
    /// The families of which it wants an address.
    pub(super) families: Vec<Family>,
    /// Whether it wants addresses of both families or none.
    pub(super) dual_stack_required: bool,
    pub(super) ports: BTreeSet<(Protocol, u16)>,
    /// Whether `externalTrafficPolicy` is `Local`.
    pub(super) local: bool,
    /// Its pod selector.
    pub(super) selector: Labels,
    pub(super) request: Request,
    /// The addresses in its status.
    pub(super) held: Vec<IpAddr>,
}

/// What a Service requests, as text.
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
