//! The desired state of the dataplane. The configuration file or the Kubernetes API defines it;
//! [`crate::target_state`] applies it to a machine.

mod check;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::hash::fnv_1a;

pub use fastpath::mend::Limits as MendLimits;

pub use self::check::{Check, CheckKind, HttpGet};
pub use fastpath::tables::{
    BackendSpec, ForwardMode, NatSettings, Protocol, ServiceKey, ServiceSpec, TrafficPolicy,
};

/// The desired state: everything that a reload may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Whether this machine balances services (role `edge`).
    pub edge: bool,
    /// Whether this machine decapsulates packets for its own pods (role `node`).
    pub node: Role,
    /// Addresses of the machines that run Guideway and have pods.
    pub nodes: BTreeSet<IpAddr>,
    /// Seed of the flow hash and the lookup tables. It must be equal on all edges.
    pub hash_seed: u64,
    /// Outer source addresses.
    pub sources: OuterSources,
    /// Source addresses and ports of NAT mode.
    pub nat: NatSettings,
    /// Interfaces with their attach modes.
    pub interfaces: BTreeMap<String, AttachMode>,
    /// Virtual addresses.
    pub vips: OrdSet<IpAddr>,
    /// Addresses that others may have too, virtual ones or those of machines. Only packets to a service there
    /// are ours.
    pub shared: OrdSet<IpAddr>,
    /// Selects the addresses of this machine at which NodePorts are served.
    pub node_port_addresses: NodePortAddresses,
    /// Whether the MSS of connections to pods is limited to what fits behind the outer header.
    pub clamp_mss: bool,
    /// Prefixes from which IP-in-IP is accepted.
    pub trusted_edges: BTreeSet<IpNet>,
    /// Announcements to neighbours; `None` if there are none.
    pub announce: Option<Announce>,
    /// How much is held of packets that XDP cannot finish; `None` if such packets are dropped.
    pub mend: Option<MendLimits>,
    /// Whether nodes are checked by echoes.
    pub node_health: bool,
    /// Services by address, port and protocol. NodePorts have the unspecified address of their family.
    pub services: Services,
    /// Backends that the file lets drain, or pods that terminate, by service. They have weight 0, so they get no new
    /// connections and keep those that they have.
    pub draining: OrdMap<ServiceKey, Arc<[BackendSpec]>>,
}

impl Desired {
    /// Returns whether a machine with these addresses has the role `node`.
    pub fn is_node(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        match self.node {
            Role::No => false,
            Role::Yes => true,
            Role::IfListed => !self.nodes.is_disjoint(addresses),
        }
    }

    /// Iterates over the services that this machine sends to their backends by NAT.
    pub fn by_nat(&self) -> impl Iterator<Item = &Service> {
        let services = self.services.values().filter(|_| self.edge);
        let services = services.map(Arc::as_ref);
        services.filter(|service| service.spec.mode == ForwardMode::Nat)
    }
}

/// Services by key. Clones share them, and comparing two versions skips what they share.
pub type Services = OrdMap<ServiceKey, Arc<Service>>;

/// Announcements of virtual addresses to neighbours, for networks where no router routes them here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announce {
    /// Interfaces on whose segments the addresses are announced.
    pub interfaces: BTreeSet<String>,
    /// Networks of the virtual addresses to announce; empty for all addresses.
    pub within: BTreeSet<IpNet>,
    /// Labels that a Node must have to announce addresses.
    pub node_selector: BTreeMap<String, String>,
}

impl Announce {
    /// Returns whether a virtual address is to be announced.
    pub fn includes(&self, address: &IpAddr) -> bool {
        self.within.is_empty() || self.within.iter().any(|network| network.contains(address))
    }
}

/// Whether a machine has a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The machine does not have it.
    #[default]
    No,
    /// The machine has it.
    Yes,
    /// The machine has it if one of its addresses is listed under `nodes`.
    IfListed,
}

/// Selects the addresses of a machine at which NodePorts are served, in the terms of kube-proxy's
/// `nodePortAddresses`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// For each interface and family the address listed under `nodes`, else the first one.
    #[default]
    Primary,
    /// All addresses except VIPs.
    All,
    /// The addresses in these networks.
    Within(BTreeSet<IpNet>),
}

/// A service with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name, unique in a configuration.
    pub name: String,
    /// Creation time in seconds since 1970, or position in the file. If a table is full, the oldest services
    /// get the room.
    pub created: i64,
    /// Mode, table size, policies and backends.
    pub spec: Arc<ServiceSpec>,
    /// How its backends are checked; `None` if they are not.
    pub health: Option<Check>,
}

/// Outer source addresses. Without one, the route's preferred source is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OuterSources {
    /// For IPv4 outer headers.
    pub ipv4: Option<Ipv4Addr>,
    /// For IPv6 outer headers.
    pub ipv6: Option<Ipv6Addr>,
    /// For IPv4 outer headers: a prefix from which each flow gets an address of its own. Nodes trust the prefix
    /// of their own configuration.
    pub ipv4_prefix: Option<Ipv4Net>,
    /// The same for IPv6 outer headers.
    pub ipv6_prefix: Option<Ipv6Net>,
}

impl OuterSources {
    /// Returns the configured source of outer headers to a node.
    pub fn towards(&self, node: IpAddr) -> Option<IpAddr> {
        match node {
            IpAddr::V4(_) => self.ipv4.map(IpAddr::from),
            IpAddr::V6(_) => self.ipv6.map(IpAddr::from),
        }
    }

    /// Returns whether flows to a node get their outer sources from a prefix.
    pub fn is_spread(&self, node: IpAddr) -> bool {
        let mut prefixes = self.prefixes();
        prefixes.any(|prefix| prefix.addr().is_ipv4() == node.is_ipv4())
    }

    /// Iterates over the configured prefixes.
    pub fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        let v4 = self.ipv4_prefix.map(IpNet::from);
        v4.into_iter().chain(self.ipv6_prefix.map(IpNet::from))
    }
}

/// How the XDP program may be attached to an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver only.
    Native,
    /// In the driver; in the network stack if the driver cannot.
    #[default]
    NativeOrGeneric,
    /// In the network stack only.
    Generic,
}

impl AttachMode {
    /// Returns the mode's name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::NativeOrGeneric => "native-or-generic",
            Self::Generic => "generic",
        }
    }
}

/// Hashes a service's name into its affinity seed. It is the same for all addresses of a service and on all edges.
pub(crate) fn affinity_seed(seed: u64, name: &str) -> u64 {
    fnv_1a(seed, name)
}

/// Hashes a service's name into the number under which its backends' counters are kept; never 0.
///
/// If two services get the same number by chance, backends that both have count their traffic together.
pub(crate) fn owner(service: &str) -> u32 {
    let hash = fnv_1a(0, service);
    let folded = (hash >> 32) as u32 ^ (hash & 0xffff_ffff) as u32;
    folded.max(1)
}

/// Returns the unspecified address of a family, which stands for all its addresses.
pub(crate) const fn unspecified(is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    }
}

/// Returns why an address cannot be a VIP, a backend, a node or an edge; `None` if it can.
pub(crate) fn unusable(address: IpAddr) -> Option<&'static str> {
    if address.is_unspecified() {
        return Some("the unspecified address names no machine");
    }
    if address.is_loopback() {
        return Some("a loopback address never leaves the machine");
    }
    if address.is_multicast() {
        return Some("a multicast address is not balanced");
    }
    match address {
        IpAddr::V4(v4) if v4.is_broadcast() => Some("the broadcast address names no machine"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("0.0.0.0/8 names no machine"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("a link-local address is not routed"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("a link-local address is not routed"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Some("an IPv4-mapped IPv6 address never stands in a packet")
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}
