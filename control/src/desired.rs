//! The desired state: what a configuration asks the dataplane to be.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::hash::fnv_1a;
use crate::health::Check;

pub use fastpath::tables::{
    BackendSpec, ForwardMode, NatSettings, Protocol, ServiceKey, ServiceSpec, TrafficPolicy,
};

/// Everything that a reload may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Whether this machine balances services (edge role).
    pub edge: bool,
    /// Whether this machine decapsulates for its own backends (node role).
    pub node: Role,
    /// Addresses of the machines that run Guideway and have pods.
    pub nodes: BTreeSet<IpAddr>,
    /// Seed of the flow hash and the lookup tables; equal on all edges.
    pub hash_seed: u64,
    /// Outer source addresses.
    pub sources: Sources,
    /// What NAT mode sends from, where a service goes by it.
    pub nat: NatSettings,
    /// Interfaces by name, with the attach mode wanted.
    pub interfaces: BTreeMap<String, AttachMode>,
    /// Virtual addresses.
    pub vips: OrdSet<IpAddr>,
    /// Addresses that somebody else may have too, virtual or a machine's: of them only what is served is ours.
    pub shared: OrdSet<IpAddr>,
    /// Addresses of this machine at which NodePorts are served.
    pub node_port_addresses: NodePortAddresses,
    /// Whether the MSS of connections to pods is bounded by what fits behind the outer header.
    pub clamp_mss: bool,
    /// Prefixes from which IP-in-IP is accepted.
    pub trusted_edges: BTreeSet<IpNet>,
    /// Which addresses neighbours are told to send here, and by which interfaces.
    pub announce: Option<Announce>,
    /// Whether nodes are checked by echo.
    pub node_health: bool,
    /// Services by address, port and protocol; NodePorts at the unspecified address of their family.
    pub services: Services,
    /// Backends of services that serve and terminate, without weight: they get no new connections.
    pub draining: OrdMap<ServiceKey, Arc<[BackendSpec]>>,
}

impl Desired {
    /// Lists the services that this machine sends to their backends by NAT.
    pub fn by_nat(&self) -> impl Iterator<Item = &Service> {
        let services = self.services.values().filter(|_| self.edge);
        let services = services.map(Arc::as_ref);
        services.filter(|service| service.spec.mode == ForwardMode::Nat)
    }
}

/// Services by key. A clone shares all of them, and two versions are compared without a look at what they share.
pub type Services = OrdMap<ServiceKey, Arc<Service>>;

/// What is announced to neighbours, where no router sends the virtual addresses here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announce {
    /// Interfaces whose neighbours are told.
    pub interfaces: BTreeSet<String>,
    /// Networks of the virtual addresses that are announced; all of them if there are none.
    pub within: BTreeSet<IpNet>,
    /// Labels of the Nodes that may announce, where there are Nodes.
    pub node_selector: BTreeMap<String, String>,
}

impl Announce {
    /// Tells whether a virtual address is announced.
    pub fn includes(&self, address: &IpAddr) -> bool {
        self.within.is_empty() || self.within.iter().any(|network| network.contains(address))
    }
}

/// Whether a machine has a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It has not.
    #[default]
    No,
    /// It has.
    Yes,
    /// It has if one of its addresses is listed under `nodes`.
    IfListed,
}

/// The addresses of a machine at which NodePorts are served, as kube-proxy's `nodePortAddresses` says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// For each interface and family the address listed under `nodes`, else the first.
    #[default]
    Primary,
    /// All addresses that are no VIPs.
    All,
    /// Those in the networks.
    Within(BTreeSet<IpNet>),
}

/// One service and the name that people call it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The name, unique in a configuration.
    pub name: String,
    /// When it was created, in seconds since 1970, or its place in the file: where a table is full, the oldest have it.
    pub created: i64,
    /// Mode, table size, policies and backends.
    pub spec: Arc<ServiceSpec>,
    /// How its backends are checked; none for not at all.
    pub health: Option<Check>,
}

/// Outer source addresses; the route's preferred source where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// For IPv4 outer headers.
    pub ipv4: Option<Ipv4Addr>,
    /// For IPv6 outer headers.
    pub ipv6: Option<Ipv6Addr>,
    /// For IPv4 outer headers, an address for each flow; nodes trust the prefix of their own configuration.
    pub ipv4_prefix: Option<Ipv4Net>,
    /// For IPv6 outer headers, likewise.
    pub ipv6_prefix: Option<Ipv6Net>,
}

impl Sources {
    /// Returns the address that is configured for outer headers to a node.
    pub fn towards(&self, node: IpAddr) -> Option<IpAddr> {
        match node {
            IpAddr::V4(_) => self.ipv4.map(IpAddr::from),
            IpAddr::V6(_) => self.ipv6.map(IpAddr::from),
        }
    }

    /// Tells whether each flow to a node has an address of a prefix.
    pub fn is_spread(&self, node: IpAddr) -> bool {
        let mut prefixes = self.prefixes();
        prefixes.any(|prefix| prefix.addr().is_ipv4() == node.is_ipv4())
    }

    /// Lists the prefixes.
    pub fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        let v4 = self.ipv4_prefix.map(IpNet::from);
        v4.into_iter().chain(self.ipv6_prefix.map(IpNet::from))
    }
}

/// How the program may be attached to an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver or not at all.
    Native,
    /// In the driver, else in the kernel's generic path.
    #[default]
    NativeOrGeneric,
    /// In the kernel's generic path.
    Generic,
}

impl AttachMode {
    /// Returns the word that the configuration uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::NativeOrGeneric => "native-or-generic",
            Self::Generic => "generic",
        }
    }
}

/// Hashes a service's name: all its addresses share the result, and all edges compute the same.
pub(crate) fn affinity_seed(seed: u64, name: &str) -> u64 {
    fnv_1a(seed, name)
}

/// Numbers services by what names them, so that each has counters of its own; never 0.
///
/// Two that are given one number by chance count as one at the backends that both have.
pub(crate) fn owner(service: &str) -> u32 {
    let hash = fnv_1a(0, service);
    let folded = (hash >> 32) as u32 ^ (hash & 0xffff_ffff) as u32;
    folded.max(1)
}

/// Returns the address that stands for every address of a family.
pub(crate) const fn unspecified(is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    }
}

/// Says what keeps an address from being a VIP, a backend, a node or an edge.
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
