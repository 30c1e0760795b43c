//! The types in which user space describes services, backends and settings.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    str::FromStr,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use xdp_prog::{
    abi::{AddressKey, MODE_IPIP, MODE_L2DSR, SERVICE_NAT},
    maglev::{self, SLOTS_PER_BACKEND},
    wire::protocol,
};

/// Transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
    /// SCTP; its ports are never translated.
    Sctp,
}

impl Protocol {
    /// Returns the IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
            Self::Sctp => protocol::SCTP,
        }
    }

    /// Returns the protocol with this IP protocol number.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            protocol::TCP => Some(Self::Tcp),
            protocol::UDP => Some(Self::Udp),
            protocol::SCTP => Some(Self::Sctp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// Address, port and protocol that clients talk to: `10.99.0.1:80/tcp`, `[fd00::1]:53/udp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceKey {
    /// Virtual address, or an address of this machine for a NodePort. The unspecified address stands for the
    /// NodePorts of all machines, for decapsulated packets.
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}",
            SocketAddr::new(self.address, self.port),
            self.protocol
        )
    }
}

/// An error: the text is no service key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no service: write ADDRESS:PORT/PROTOCOL with tcp, udp or sctp, an IPv6 address in brackets"
)]
pub struct ServiceKeyError(String);

impl FromStr for ServiceKey {
    type Err = ServiceKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ServiceKeyError(text.to_owned());
        let (socket, protocol) = text.rsplit_once('/').ok_or_else(error)?;
        let socket: SocketAddr = socket.parse().map_err(|_| error())?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => return Err(error()),
        };
        Ok(Self {
            address: socket.ip(),
            port: socket.port(),
            protocol,
        })
    }
}

/// How packets reach the backends of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ForwardMode {
    /// Packets get an outer IPv4 or IPv6 header.
    #[default]
    Ipip,
    /// Only the MAC addresses are rewritten: the backend must be on the same segment.
    L2dsr,
    /// Source and destination are translated in both directions: the backend needs no special set-up.
    Nat,
}

impl ForwardMode {
    pub(super) const fn to_abi(self) -> u32 {
        match self {
            Self::Ipip | Self::Nat => MODE_IPIP,
            Self::L2dsr => MODE_L2DSR,
        }
    }

    pub(super) const fn from_abi(mode: u32, flags: u32) -> Self {
        match mode {
            _ if flags & SERVICE_NAT != 0 => Self::Nat,
            MODE_L2DSR => Self::L2dsr,
            _ => Self::Ipip,
        }
    }
}

impl fmt::Display for ForwardMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipip => "ipip",
            Self::L2dsr => "l2dsr",
            Self::Nat => "nat",
        })
    }
}

/// Which backends this machine uses (`externalTrafficPolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// All backends.
    #[default]
    Cluster,
    /// The pods of this machine; without one, packets are dropped while other machines have some.
    Local,
}

impl fmt::Display for TrafficPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "cluster",
            Self::Local => "local",
        })
    }
}

/// A backend of one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendSpec {
    /// Address of its node: the outer destination, and the target of the next hop. In NAT mode, the backend's own
    /// address.
    pub address: IpAddr,
    /// The pod behind a Guideway node, or the backend of NAT mode, with the port that it listens on. Without it, the
    /// node has the VIP on `lo`.
    pub pod: Option<SocketAddr>,
    /// Share of the slots, in proportion to the other weights. With weight 0, a pod takes no new connections. If its
    /// node is this machine, packets are still delivered to it, because other machines may send them.
    pub weight: u32,
}

impl BackendSpec {
    /// Describes a node that has the VIP on `lo`.
    pub const fn node(address: IpAddr, weight: u32) -> Self {
        Self {
            address,
            pod: None,
            weight,
        }
    }

    /// Describes a pod behind a Guideway node.
    pub const fn pod(node: IpAddr, pod: SocketAddr, weight: u32) -> Self {
        Self {
            address: node,
            pod: Some(pod),
            weight,
        }
    }

    /// Describes a backend of NAT mode.
    pub const fn nat(backend: SocketAddr, weight: u32) -> Self {
        Self {
            address: backend.ip(),
            pod: Some(backend),
            weight,
        }
    }

    /// Tells whether it takes new connections.
    pub const fn is_sharing(&self) -> bool {
        self.weight != 0
    }

    /// Returns the backend's key for a service in that mode.
    pub fn key(&self, mode: ForwardMode) -> BackendKey {
        BackendKey {
            address: self.address,
            pod: self.pod,
            nat: mode == ForwardMode::Nat,
        }
    }
}

/// A destination of packets: `10.244.1.5:8080 on 10.0.0.1`, `10.0.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BackendKey {
    /// Address of its node; in NAT mode, its own address.
    pub address: IpAddr,
    /// The pod, or the backend of NAT mode.
    pub pod: Option<SocketAddr>,
    /// Whether it is reached by NAT.
    pub nat: bool,
}

/// The key of a backend entry. Services of one owner share the entry and its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnedBackend {
    /// The destination of packets.
    pub key: BackendKey,
    /// Owner of the services that use it ([`ServiceSpec::owner`]).
    pub owner: u32,
}

impl OwnedBackend {
    /// Returns the key that sorts before all others of a node address.
    pub(super) const fn first_of(address: IpAddr) -> Self {
        let key = BackendKey {
            address,
            pod: None,
            nat: false,
        };
        Self { key, owner: 0 }
    }
}

impl fmt::Display for BackendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pod {
            Some(pod) if self.nat => write!(f, "{pod}"),
            Some(pod) => write!(f, "{pod} on {}", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

/// The specification of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceSpec {
    /// A number for what people call one service. Equal backends at all of its addresses share one entry and one pair
    /// of counters. Backends of another owner have their own.
    pub owner: u32,
    pub mode: ForwardMode,
    /// Base-2 logarithm of the table size; `None` chooses it by the number of backends.
    pub log2_slots: Option<u8>,
    /// The backends, including those that this machine does not use. If none of them takes new connections, packets
    /// are rejected.
    pub backends: Vec<BackendSpec>,
    /// Which of the backends this machine uses.
    pub traffic_policy: TrafficPolicy,
    /// The clients that may use the service; all if empty.
    pub source_ranges: BTreeSet<IpNet>,
    /// Seed for hashing clients by their address alone (`sessionAffinity: ClientIP`). With the same seed at all
    /// addresses of a service, a client reaches the same backend by each. Zero counts as one.
    pub affinity: Option<u64>,
    /// How long a client with affinity keeps a backend that still takes new connections when its slot gets another one, in
    /// seconds after its last new connection; `None` for the time that Kubernetes takes by itself.
    pub affinity_seconds: Option<u32>,
    /// Whether this is a NodePort; the kernel's own flows use its address too.
    pub node_port: bool,
    /// Whether topology hints select the backends, so that machines elsewhere have others.
    pub hinted: bool,
}

impl ServiceSpec {
    /// Lists the backends that take new connections.
    pub fn sharing(&self) -> impl Iterator<Item = &BackendSpec> + Clone {
        self.backends.iter().filter(|backend| backend.is_sharing())
    }

    /// Returns the base-2 logarithm of the table size for this many backends; `None` if they are too many.
    pub fn log2_slots_for(&self, backends: usize) -> Option<u8> {
        let backends = u32::try_from(backends).ok()?;
        let by_count = match backends {
            0 => Some(0),
            _ => maglev::class_for(backends, SLOTS_PER_BACKEND),
        };
        self.log2_slots.or(by_count)
    }
}

/// Machine-wide settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Seed of the flow hash and of the lookup tables; it must be equal on all edges.
    pub hash_seed: u64,
    /// Outer IPv4 source; `None` uses the source that the route prefers.
    pub source_v4: Option<Ipv4Addr>,
    /// Outer IPv6 source; `None` uses the source that the route prefers.
    pub source_v6: Option<Ipv6Addr>,
    /// Prefix from which each flow takes its outer IPv4 source, instead of `source_v4`.
    pub prefix_v4: Option<Ipv4Net>,
    /// Prefix from which each flow takes its outer IPv6 source, instead of `source_v6`.
    pub prefix_v6: Option<Ipv6Net>,
    /// Whether this machine has pods and takes the node role for packets of edges.
    pub node: bool,
    /// Whether this machine checks backends through services ([`super::ProbeSpec`]).
    pub probes: bool,
    /// Whether packets that XDP cannot finish are mended.
    pub mend: bool,
    /// MTU of the uplinks in bytes. The MSS of connections is clamped to it, less the outer header; `None` clamps
    /// nothing.
    pub mtu: Option<u32>,
    /// Sources of NAT mode; `None` switches the mode off.
    pub nat: Option<NatSettings>,
}

/// The source of the outer headers towards one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterSource {
    /// The address; with a prefix, its first address.
    pub address: IpAddr,
    /// Bits of the address's last two bytes that a flow's hash fills.
    pub spread: u16,
}

impl Settings {
    /// Returns the outer source towards a node, if the route prefers `preferred`; `None` if there is none.
    pub fn outer_source(&self, node: IpAddr, preferred: Option<IpAddr>) -> Option<OuterSource> {
        let (prefix, given) = match node {
            IpAddr::V4(_) => (
                self.prefix_v4.map(IpNet::from),
                self.source_v4.map(IpAddr::from),
            ),
            IpAddr::V6(_) => (
                self.prefix_v6.map(IpNet::from),
                self.source_v6.map(IpAddr::from),
            ),
        };
        if let Some(prefix) = prefix {
            let host_bits = u32::from(prefix.max_prefix_len() - prefix.prefix_len());
            return Some(OuterSource {
                address: prefix.network(),
                spread: u16::MAX
                    .checked_shr(16u32.saturating_sub(host_bits))
                    .unwrap_or(0),
            });
        }
        let of_family = preferred.filter(|preferred| preferred.is_ipv4() == node.is_ipv4());
        given
            .or(of_family)
            .map(|address| OuterSource { address, spread: 0 })
    }
}

/// The source addresses and ports of NAT mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatSettings {
    /// IPv4 address; `None` uses the next hop's source.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address; `None` uses the next hop's source.
    pub v6: Option<Ipv6Addr>,
    /// First port of the range. Nothing else may use the range on these addresses: neither the kernel
    /// (`net.ipv4.ip_local_port_range`, masquerade) nor a NodePort.
    pub first_port: u16,
    /// Number of ports, and so of flows to one port of a backend at a time. A TCP connection keeps its port for 80 s
    /// after both ends have closed it, so a backend takes this number divided by 80 of short connections a second.
    pub ports: u16,
}

impl NatSettings {
    /// Returns the range of ports; it is empty if there are none.
    pub const fn ports(&self) -> RangeInclusive<u16> {
        match self.ports {
            0 => RangeInclusive::new(1, 0),
            ports => {
                RangeInclusive::new(self.first_port, self.first_port.saturating_add(ports - 1))
            }
        }
    }
}

impl Default for NatSettings {
    /// Uses the ports above those that Linux chooses by itself (32768 to 60999).
    fn default() -> Self {
        Self {
            v4: None,
            v6: None,
            first_port: 61_001,
            ports: 4_535,
        }
    }
}

/// The addresses that mean more to the datapath than the destination of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Virtual addresses that belong to services alone.
    pub vips: BTreeSet<IpAddr>,
    /// Addresses of services that another machine may have too.
    pub shared: BTreeSet<IpAddr>,
    /// Addresses of this machine at which IP-in-IP is decapsulated.
    pub local: BTreeSet<IpAddr>,
    /// Addresses of this machine that have NodePorts.
    pub node_ports: BTreeSet<IpAddr>,
    /// Source addresses of NAT mode.
    pub nat: BTreeSet<IpAddr>,
    /// Virtual addresses, apart from `vips`, where the stack gets the packets of edges that no pod here takes.
    pub inner: BTreeSet<IpAddr>,
}

impl Addresses {
    /// Returns the union of both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self {
            vips: &self.vips | &other.vips,
            shared: &self.shared | &other.shared,
            local: &self.local | &other.local,
            node_ports: &self.node_ports | &other.node_ports,
            nat: &self.nat | &other.nat,
            inner: &self.inner | &other.inner,
        }
    }
}

/// Converts an address to the form in the tables.
pub(super) const fn address_key(address: IpAddr) -> AddressKey {
    match address {
        IpAddr::V4(v4) => AddressKey::v4(v4.octets()),
        IpAddr::V6(v6) => AddressKey::v6(v6.octets()),
    }
}

/// Converts an address in the tables back.
pub(super) const fn address_of(key: AddressKey) -> IpAddr {
    std::net::Ipv6Addr::from_octets(key.octets()).to_canonical()
}

#[cfg(test)]
mod tests;
