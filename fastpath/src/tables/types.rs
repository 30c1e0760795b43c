//! What user space says of services, in its own types.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use xdp_prog::{
    abi::{AddressKey, MODE_IPIP, MODE_L2DSR},
    wire::protocol,
};

/// Transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Returns the IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
        }
    }

    /// Returns the protocol with this IP protocol number.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            protocol::TCP => Some(Self::Tcp),
            protocol::UDP => Some(Self::Udp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// Address, port and protocol that clients talk to: `10.99.0.1:80/tcp`, `[fd00::1]:53/udp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Virtual address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Transport protocol.
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
    "{0:?} is no service: write ADDRESS:PORT/tcp or ADDRESS:PORT/udp, an IPv6 address in brackets"
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ForwardMode {
    /// An outer IPv4 or IPv6 header in front.
    Ipip,
    /// Only the MAC addresses are rewritten: the backend is on the same segment.
    L2dsr,
}

impl ForwardMode {
    pub(super) const fn to_abi(self) -> u32 {
        match self {
            Self::Ipip => MODE_IPIP,
            Self::L2dsr => MODE_L2DSR,
        }
    }

    pub(super) const fn from_abi(mode: u32) -> Self {
        match mode {
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
        })
    }
}

/// A backend of one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendSpec {
    /// Address of the node that has the VIP on `lo`.
    pub address: IpAddr,
    /// Share of the slots, in proportion to the other weights.
    pub weight: u32,
}

/// What a service should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    /// How packets reach the backends.
    pub mode: ForwardMode,
    /// Logarithm of the table size; by the number of backends if not given.
    pub log2_slots: Option<u8>,
    /// The backends; without any, packets are dropped as `no_backend`.
    pub backends: Vec<BackendSpec>,
}

/// Machine-wide settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Seed of the flow hash and of the lookup tables; equal on all edges.
    pub hash_seed: u64,
    /// Outer source of IPv4 tunnels where the route prefers none.
    pub source_v4: Option<std::net::Ipv4Addr>,
    /// Outer source of IPv6 tunnels where the route prefers none.
    pub source_v6: Option<std::net::Ipv6Addr>,
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
        ] {
            assert_eq!(text.parse::<ServiceKey>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "10.99.0.1:80",
            "10.99.0.1/tcp",
            "10.99.0.1:80/sctp",
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
