//! What user space says of services, in its own types.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    str::FromStr,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use xdp_prog::{
    abi::{AddressKey, MODE_IPIP, MODE_L2DSR, SERVICE_NAT},
    maglev::{self, SLOTS_PER_BACKEND},
    wire::protocol,
};

/// Transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Virtual address, or one of this machine for a NodePort; the unspecified address for the NodePorts
    /// of all machines, which a decapsulated packet is for.
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

/// A text that is no service key.
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
    /// An outer IPv4 or IPv6 header in front.
    #[default]
    Ipip,
    /// Only the MAC addresses are rewritten: the backend is on the same segment.
    L2dsr,
    /// Source and destination are translated, both ways: the backend need not take part.
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
    /// All of them.
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
    /// Address of its node: the outer destination, and what the next hop is found for. In NAT mode the
    /// backend's own.
    pub address: IpAddr,
    /// The pod behind a Guideway node, or the backend of NAT mode, with the port it listens on. Without
    /// one the node has the VIP on `lo`.
    pub pod: Option<SocketAddr>,
    /// Share of the slots, in proportion to the other weights. A pod without any is delivered to where its
    /// node is this machine, for others may send to it, and takes no new connections.
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

    /// Returns what packets are sent to by a service in that mode.
    pub fn key(&self, mode: ForwardMode) -> BackendKey {
        BackendKey {
            address: self.address,
            pod: self.pod,
            nat: mode == ForwardMode::Nat,
        }
    }
}

/// What packets are sent to: `10.244.1.5:8080 on 10.0.0.1`, `10.0.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendKey {
    /// Address of its node; in NAT mode its own.
    pub address: IpAddr,
    /// The pod, or the backend of NAT mode.
    pub pod: Option<SocketAddr>,
    /// Whether it takes part by NAT.
    pub nat: bool,
}

/// What makes backends of several services one entry, with one pair of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnedBackend {
    /// What packets are sent to.
    pub key: BackendKey,
    /// Whose services send them ([`ServiceSpec::owner`]).
    pub owner: u32,
}

impl OwnedBackend {
    /// Returns the first one of a node address, before all others of that address.
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

/// What a service should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceSpec {
    /// A number of what people call one service: at all its addresses, equal backends are one entry and count
    /// together. Those of another owner have entries and counters of their own.
    pub owner: u32,
    pub mode: ForwardMode,
    /// Logarithm of the table size; by the number of backends if not given.
    pub log2_slots: Option<u8>,
    /// The backends, those that this machine does not use included; without any that takes new connections,
    /// packets are rejected.
    pub backends: Vec<BackendSpec>,
    /// Which of them this machine uses.
    pub traffic_policy: TrafficPolicy,
    /// The clients that may use the service; all, if empty.
    pub source_ranges: BTreeSet<IpNet>,
    /// Hashes clients by their address alone, with this seed (`sessionAffinity: ClientIP`); the same seed
    /// at all addresses of a service sends a client to the same backend. Zero counts as one.
    pub affinity: Option<u64>,
    /// Whether this is a NodePort: the kernel's own flows use the address too.
    pub node_port: bool,
}

impl ServiceSpec {
    /// Lists the backends that take new connections.
    pub fn sharing(&self) -> impl Iterator<Item = &BackendSpec> + Clone {
        self.backends.iter().filter(|backend| backend.is_sharing())
    }

    /// Returns the logarithm of the table size for this many backends, or nothing where they are too many.
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
    /// Seed of the flow hash and of the lookup tables; equal on all edges.
    pub hash_seed: u64,
    /// Outer IPv4 source; what the route prefers, if not given.
    pub source_v4: Option<Ipv4Addr>,
    /// Outer IPv6 source, likewise.
    pub source_v6: Option<Ipv6Addr>,
    /// Prefix of which each flow has an address for its outer IPv4 source, in place of the one above.
    pub prefix_v4: Option<Ipv4Net>,
    /// Prefix for outer IPv6 sources, likewise.
    pub prefix_v6: Option<Ipv6Net>,
    /// Whether this machine has pods, and takes the node role for what edges send.
    pub node: bool,
    /// Whether this machine checks backends by way of services ([`super::ProbeSpec`]).
    pub probes: bool,
    /// MTU of the uplinks, to which the MSS of connections is clamped, less the outer header; none to leave
    /// it alone.
    pub mtu: Option<u32>,
    /// What NAT mode sends from; none to go without the mode.
    pub nat: Option<NatSettings>,
}

/// What the outer headers towards one node come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterSource {
    /// The address; a prefix's first one.
    pub address: IpAddr,
    /// The bits of the address's last two bytes that a flow's hash fills.
    pub spread: u16,
}

impl Settings {
    /// Returns the outer source towards a node, where the route prefers this address; nothing where there is none.
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

/// What NAT mode sends from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatSettings {
    /// IPv4 address, where it is not that of the next hop.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address, where it is not that of the next hop.
    pub v6: Option<Ipv6Addr>,
    /// First port of the range, which must be no one else's on these addresses: neither the kernel's
    /// (`net.ipv4.ip_local_port_range`, masquerade) nor a NodePort's.
    pub first_port: u16,
    /// Number of ports, and so of flows to one backend's port. One that was closed or never answered keeps its
    /// port for four minutes, so a backend takes as many new ones per second as this divided by 240.
    pub ports: u16,
}

impl NatSettings {
    /// Returns the range of ports; empty where there are none.
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
    /// The ports behind those that Linux gives out by itself (32768 to 60999).
    fn default() -> Self {
        Self {
            v4: None,
            v6: None,
            first_port: 61_001,
            ports: 4_535,
        }
    }
}

/// The addresses that are more to the datapath than the destination of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Virtual addresses that are nobody's but the services'.
    pub vips: BTreeSet<IpAddr>,
    /// Addresses of services that somebody else may have too.
    pub shared: BTreeSet<IpAddr>,
    /// Addresses of this machine at which IP-in-IP is decapsulated.
    pub local: BTreeSet<IpAddr>,
    /// Addresses of this machine at which NodePorts are served.
    pub node_ports: BTreeSet<IpAddr>,
    /// Source addresses of NAT mode.
    pub nat: BTreeSet<IpAddr>,
    /// Virtual addresses, beside `vips`, at which the stack gets what edges send and is for no pod here.
    pub inner: BTreeSet<IpAddr>,
}

impl Addresses {
    /// Returns the addresses of both.
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

/// Spells an address as the tables do.
pub(super) const fn address_key(address: IpAddr) -> AddressKey {
    match address {
        IpAddr::V4(v4) => AddressKey::v4(v4.octets()),
        IpAddr::V6(v6) => AddressKey::v6(v6.octets()),
    }
}

/// Reads an address as the tables spell it.
pub(super) const fn address_of(key: AddressKey) -> IpAddr {
    std::net::Ipv6Addr::from_octets(key.octets()).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_keys_read_back_as_written() {
        for text in [
            "10.99.0.1:80/tcp",
            "[fd00:99::1]:53/udp",
            "0.0.0.0:65535/udp",
            "10.99.0.1:9899/sctp",
        ] {
            assert_eq!(text.parse::<ServiceKey>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "10.99.0.1:80",
            "10.99.0.1/tcp",
            "10.99.0.1:80/icmp",
            "fd00::1:80/tcp",
            "x:1/tcp",
        ] {
            let error = text.parse::<ServiceKey>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn addresses_survive_the_tables_spelling() {
        for text in ["10.0.0.1", "fd00::1", "::1"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(address_of(address_key(address)), address);
        }
    }
}
