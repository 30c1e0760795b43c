//! The headers of a copied frame.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use xdp_prog::{
    abi::{AddressKey, Tag},
    capture::{Layer, layers},
    frame::{Frame, HostFrame},
    wire::{ethernet::Ethernet, protocol},
};

use crate::tables::Protocol;

/// The headers of a frame, as far as its copy reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Destination MAC; all zero if the copy has no Ethernet header.
    pub destination_mac: [u8; 6],
    pub source_mac: [u8; 6],
    /// The nested IP packets, the outermost first.
    pub packets: Vec<Packet>,
}

/// The header of one IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address and port; the port is 0 if there is none.
    pub source: SocketAddr,
    /// Destination address and port; the port is 0 if there is none.
    pub destination: SocketAddr,
    /// Protocol of the payload, if it has ports.
    pub protocol: Option<Protocol>,
    /// Whether it carries another IP packet.
    pub is_outer: bool,
    /// The pod's tag, if this is an outer header.
    pub tag: u16,
}

impl Headers {
    /// Reads the front of a frame.
    #[must_use]
    pub fn read(frame: &[u8]) -> Self {
        let frame = HostFrame::new(frame);
        let Some(link) = frame.view::<Ethernet>(0) else {
            return Self::default();
        };
        let [a, b, c, d, e, f, ..] = link.macs;
        Self {
            destination_mac: [a, b, c, d, e, f],
            source_mac: link.source(),
            packets: layers(&frame).map(|layer| Packet::new(&layer)).collect(),
        }
    }
}

impl Packet {
    fn new(layer: &Layer) -> Self {
        let socket = |address, port| SocketAddr::new(ip(address), port);
        Self {
            source: socket(layer.source, layer.source_port),
            destination: socket(layer.destination, layer.destination_port),
            protocol: match layer.protocol {
                protocol::TCP => Some(Protocol::Tcp),
                protocol::UDP => Some(Protocol::Udp),
                protocol::SCTP => Some(Protocol::Sctp),
                _ => None,
            },
            is_outer: matches!(layer.protocol, protocol::IPV4 | protocol::IPV6),
            tag: layer.tag.0,
        }
    }

    /// Tells whether this outer header names the pod with this address.
    #[must_use]
    pub fn names_pod(&self, pod: IpAddr) -> bool {
        let pod = match pod {
            IpAddr::V4(pod) => AddressKey::v4(pod.octets()),
            IpAddr::V6(pod) => AddressKey::v6(pod.octets()),
        };
        self.is_outer && Tag(self.tag).pod_bits() == Tag::pod(pod).pod_bits()
    }
}

fn ip(address: AddressKey) -> IpAddr {
    Ipv6Addr::from(address.octets()).to_canonical()
}
