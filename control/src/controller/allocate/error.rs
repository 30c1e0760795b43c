//! Why a Service has no address, or loses the one it held.

use std::fmt;
use std::net::IpAddr;

use crate::controller::address_range::Family;
use crate::controller::objects::Pool;
use crate::desired::Protocol;
use crate::index::objects::ObjectName;
use crate::index::quoted;

/// Why a Service does not get an address. The text is shown to the Service's owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::controller) enum AllocationError {
    #[error("{} is no address; write one per family, separated by a comma", quoted(.0))]
    NoAddress(String),
    #[error(
        "the annotation guideway.dev/addresses and spec.loadBalancerIP ask for different addresses; remove the latter"
    )]
    Contradiction,
    #[error("a Service has one {0} address at most")]
    OnePerFamily(Family),
    #[error("spec.ipFamilies has no {0}")]
    FamilyNotWanted(Family),
    #[error("{0} is asked for")]
    Asked(IpAddr),
    #[error("there is no LoadBalancerPool {}", quoted(.0))]
    NoSuchPool(String),
    #[error(
        "no LoadBalancerPool with {0} addresses is open to this Service; see its selectors and autoAssign"
    )]
    NoPool(Family),
    #[error("{0} is in no LoadBalancerPool that is open to this Service")]
    NotInPools(IpAddr),
    #[error("LoadBalancerPool {0} is being deleted and gives no addresses")]
    PoolTerminating(String),
    /// The only pool with such an address has an unreadable selector.
    #[error(
        "LoadBalancerPool {0} has a selector that cannot be read and gives no addresses; its condition Ready says why"
    )]
    PoolUnreadable(String),
    /// The pool cannot be written, so it cannot count the address.
    #[error(
        "LoadBalancerPool {pool} cannot be written, which has to come before a Service gets an address of it: {why}; \
         see that the ClusterRole of guideway controller is that of its version, and that no admission policy is against it"
    )]
    PoolNotWritable { pool: String, why: String },
    #[error("every {0} address that is open to this Service is in use")]
    Exhausted(Family),
    #[error("{address} {holder}")]
    Taken { address: IpAddr, holder: Holder },
}

impl AllocationError {
    /// Returns why a closed pool gives no addresses.
    pub(super) fn of_closed(name: &str, pool: &Pool) -> Self {
        if pool.terminating {
            Self::PoolTerminating(name.to_owned())
        } else {
            Self::PoolUnreadable(name.to_owned())
        }
    }

    pub(in crate::controller) fn reason(&self) -> &'static str {
        match self {
            Self::NoAddress(_)
            | Self::Contradiction
            | Self::OnePerFamily(_)
            | Self::FamilyNotWanted(_)
            | Self::Asked(_) => "InvalidRequest",
            Self::NoSuchPool(_) => "NoSuchPool",
            Self::NoPool(_) => "NoPool",
            Self::NotInPools(_) => "NotInPools",
            Self::PoolTerminating(_) => "PoolTerminating",
            Self::PoolUnreadable(_) => "PoolUnreadable",
            Self::PoolNotWritable { .. } => "PoolNotWritable",
            Self::Exhausted(_) => "PoolExhausted",
            Self::Taken {
                holder: Holder::Node | Holder::Edge,
                ..
            } => "AddressIsNode",
            Self::Taken {
                holder: Holder::ApiServer,
                ..
            } => "AddressIsApiServer",
            Self::Taken { .. } => "AddressInUse",
        }
    }

    /// Returns whether the Service's own request excludes the address.
    pub(in crate::controller) fn is_wish(&self) -> bool {
        matches!(self, Self::Asked(_) | Self::FamilyNotWanted(_))
    }

    pub(in crate::controller) fn is_conflict(&self) -> bool {
        matches!(self, Self::Taken { .. })
    }

    /// Returns whether a machine has the address, so that no Service can get it.
    pub(in crate::controller) fn is_machine(&self) -> bool {
        let of_machine =
            |holder: &Holder| matches!(holder, Holder::Node | Holder::ApiServer | Holder::Edge);
        matches!(self, Self::Taken { holder, .. } if of_machine(holder))
    }
}

/// Who has an address, and why it cannot be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::controller) enum Holder {
    Node,
    ApiServer,
    Edge,
    /// A Service that got the address from another implementation.
    Foreign(ObjectName),
    /// A Service with another sharing key, or none.
    Service(ObjectName),
    /// A Service with the same sharing key, in a namespace that may not share it.
    OtherNamespace(ObjectName),
    /// A Service with the same sharing key that has the same port.
    Port(ObjectName, Protocol, u16),
    /// A Service with the same sharing key whose policy `Local` needs the same pods.
    OtherPods(ObjectName),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("is an address of a Node"),
            Self::ApiServer => f.write_str("is an address of the API server"),
            Self::Edge => f.write_str("is an address of an edge outside the cluster"),
            Self::Foreign(name) => {
                write!(
                    f,
                    "is used by Service {name}, which did not get it from Guideway"
                )
            }
            Self::Service(name) => write!(
                f,
                "is used by Service {name}; to share it, give both the same guideway.dev/sharing-key"
            ),
            Self::OtherNamespace(name) => write!(
                f,
                "is used by Service {name}; to share it beyond a namespace, have spec.sharing of the pool name the key and both namespaces"
            ),
            Self::Port(name, protocol, port) => {
                write!(
                    f,
                    "is shared with Service {name}, which has port {port}/{protocol} too"
                )
            }
            Self::OtherPods(name) => write!(
                f,
                "is shared with Service {name}; with externalTrafficPolicy Local both need it, in one namespace, with the same selector"
            ),
        }
    }
}
