//! Services, and the configuration files that ask for them.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
    io,
    net::{IpAddr, SocketAddr},
};

use lab::{Guideway, Machine, vip_v4, vip_v6};

const PORT: u16 = 7000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    #[allow(dead_code, reason = "only kernels of the matrix have it")]
    Sctp,
}

impl Protocol {
    /// Opens a socket for a stream; not for UDP.
    pub(super) fn stream(self, like: SocketAddr) -> io::Result<socket2::Socket> {
        let number = match self {
            Self::Sctp => socket2::Protocol::from(nix::libc::IPPROTO_SCTP),
            Self::Tcp | Self::Udp => socket2::Protocol::TCP,
        };
        let domain = socket2::Domain::for_address(like);
        socket2::Socket::new(domain, socket2::Type::STREAM, Some(number))
    }
}

/// As configurations and the command line write it.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    L2dsr,
    /// Backends by their IPv4 addresses.
    IpipV4,
    /// Backends by their IPv6 addresses.
    IpipV6,
}

/// As configurations write it.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L2dsr => "l2dsr",
            Self::IpipV4 | Self::IpipV6 => "ipip",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) mode: Mode,
}

impl Service {
    /// Makes TCP and UDP services on the VIPs of both families for each mode.
    pub(crate) fn all(modes: &[Mode]) -> Vec<Self> {
        let mut services = Vec::new();
        for (&mode, number) in modes.iter().zip(1..) {
            for vip in [IpAddr::from(vip_v4(number)), vip_v6(number).into()] {
                for protocol in [Protocol::Tcp, Protocol::Udp] {
                    services.push(Self {
                        address: SocketAddr::new(vip, PORT),
                        protocol,
                        mode,
                    });
                }
            }
        }
        services
    }

    /// The address by which an edge reaches a node.
    pub(crate) fn backend(&self, node: &Machine) -> IpAddr {
        match self.mode {
            Mode::L2dsr => node.address_like(self.address.ip()),
            Mode::IpipV4 => node.v4(),
            Mode::IpipV6 => node.v6(),
        }
    }
}

/// As the command line and the answers of the agent write it.
impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.protocol)
    }
}

/// The configuration of an edge that balances `services` over `nodes`.
pub(crate) fn edge_config<'a>(
    services: &[Service],
    nodes: impl IntoIterator<Item = &'a Machine> + Clone,
) -> String {
    let mut text = common_config("edge");
    let vips: BTreeSet<IpAddr> = services
        .iter()
        .map(|service| service.address.ip())
        .collect();
    writeln!(text, "vips: {}", list(vips)).unwrap();
    text.push_str("services:\n");
    for (number, service) in services.iter().enumerate() {
        let backends = nodes.clone().into_iter().map(|node| service.backend(node));
        let backends: Vec<String> = backends
            .map(|address| format!("{{ address: \"{address}\" }}"))
            .collect();
        writeln!(
            text,
            "  - name: s{number}\n    address: \"{}\"\n    port: {}\n    protocol: {}\n    \
             mode: {}\n    backends: [{}]",
            service.address.ip(),
            service.address.port(),
            service.protocol,
            service.mode,
            backends.join(", ")
        )
        .unwrap();
    }
    text
}

/// The configuration of a node that trusts `edges`.
pub(crate) fn node_config<'a>(edges: impl IntoIterator<Item = &'a Machine>) -> String {
    let edges = edges.into_iter().flat_map(|edge| [edge.v4(), edge.v6()]);
    common_config("node") + &format!("trusted_edges: {}\n", list(edges))
}

fn common_config(role: &str) -> String {
    const TABLES: &str =
        "tables: { lut_arena_mib: 1, services: 64, backends: 256, next_hops: 256, vips: 256 }";
    machine_config(TABLES) + &format!("roles: [{role}]\n")
}

/// What is the same in the files of all machines, with a line about the tables.
pub(super) fn machine_config(tables: &str) -> String {
    let (socket, interface) = (Guideway::socket(), Machine::INTERFACE);
    format!(
        "interfaces: [{{ name: {interface}, mode: native }}]
{tables}
api: {{ socket: {} }}
metrics: {{ listen: \"127.0.0.1:9750\" }}
",
        socket.display()
    )
}

pub(super) fn list(addresses: impl IntoIterator<Item = IpAddr>) -> String {
    let quoted = addresses
        .into_iter()
        .map(|address| format!("\"{address}\""));
    format!("[{}]", quoted.collect::<Vec<_>>().join(", "))
}
