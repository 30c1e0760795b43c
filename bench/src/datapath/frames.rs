//! The frames of the datapath bench, and the outer headers that are expected on them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use xdp_prog::{
    bench::{OuterTemplate, TEMPLATE_LENGTH, Template, client},
    csum::Sum,
    rewrite::TTL,
    wire::{
        ethernet::{self, Ethernet},
        ipv4::{DONT_FRAGMENT, Ipv4},
        ipv6::Ipv6,
        protocol,
        transport::{Ports, Tcp, Udp},
    },
};
use zerocopy::IntoBytes;

use crate::scenario::AddressFamily;

/// The IPv4 address of the services.
pub(super) const VIP_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The IPv6 address of the services.
pub(super) const VIP_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);
/// The port of the services on the plain path.
pub(super) const PORT: u16 = 80;
/// The client of flow 0. The generator changes the low bits.
pub(super) const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 0);
pub(super) const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 0);

/// The edge's IPv4 address in outer headers.
pub(super) const EDGE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
/// The edge's IPv6 address in outer headers.
pub(super) const EDGE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 1, 0);

/// Destination and source MAC of frames that were sent back.
pub(super) const MACS_BACK: [u8; 12] = [2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 2];
pub(super) const MACS_OUT: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

/// Length of the shortest Ethernet frame without its check sequence, which makes it the usual 64 bytes.
const SHORTEST: usize = 60;
/// Length of the longest frame: the larger IP header with the larger transport header.
const LONGEST: usize = Ethernet::LENGTH + Ipv6::LENGTH + Tcp::LENGTH;

/// Address family of client, VIP and backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4 in IPv4.
    V4,
    /// IPv6 in IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the length of this family's header, in bytes.
    pub(crate) const fn header_length(self) -> usize {
        match self {
            Self::V4 => Ipv4::LENGTH,
            Self::V6 => Ipv6::LENGTH,
        }
    }
}

impl From<Family> for AddressFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::Ipv4,
            Family::V6 => Self::Ipv6,
        }
    }
}

/// Transport protocol.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// UDP.
    Udp,
    /// TCP: segments of established connections, ACK set and no data.
    Tcp,
}

impl Protocol {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Udp, Self::Tcp];

    /// Returns the IP protocol number.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Udp => protocol::UDP,
            Self::Tcp => protocol::TCP,
        }
    }
}

impl From<Protocol> for fastpath::tables::Protocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Udp => Self::Udp,
            Protocol::Tcp => Self::Tcp,
        }
    }
}

/// Returns the frame of flow 0 to a port of the VIP. It is as short as Ethernet and the headers allow.
///
/// The transport checksum is zero, because no program looks at it.
pub(super) fn frame(family: Family, protocol: Protocol, port: u16) -> Vec<u8> {
    let frame = frame_of_length(family, protocol, port, SHORTEST);
    debug_assert!(frame.len() <= LONGEST);
    frame
}

/// Returns the same frame with an IPv4 packet of so many bytes, which may be fragmented.
pub(super) fn fragmentable_frame(protocol: Protocol, port: u16, packet: usize) -> Vec<u8> {
    let mut frame = frame_of_length(Family::V4, protocol, port, Ethernet::LENGTH + packet);
    let header = Ipv4 {
        fragment: [0; 2],
        ..ipv4(protocol.number(), packet, CLIENT_V4, VIP_V4)
    };
    frame[Ethernet::LENGTH..][..Ipv4::LENGTH].copy_from_slice(&with_checksum(header));
    frame
}

/// Returns the frame of flow 0 to a port of the VIP, padded to a length.
fn frame_of_length(family: Family, protocol: Protocol, port: u16, length: usize) -> Vec<u8> {
    let (_, client_port) = client(0);
    let mut transport = transport(protocol, client_port, port);
    let headers = Ethernet::LENGTH + family.header_length() + transport.len();
    transport.resize(transport.len() + length.saturating_sub(headers), 0);
    if protocol == Protocol::Udp {
        // The padding counts as payload, so that all lengths agree.
        let length = length_field(transport.len());
        transport[4..6].copy_from_slice(&length);
    }
    let mut frame = ethernet_header(MACS_OUT, family);
    frame.extend(match family {
        Family::V4 => ipv4_header(
            protocol.number(),
            Ipv4::LENGTH + transport.len(),
            CLIENT_V4,
            VIP_V4,
        ),
        Family::V6 => ipv6_header(protocol.number(), transport.len(), CLIENT_V6, VIP_V6),
    });
    frame.append(&mut transport);
    frame
}

/// Returns the frame of a flow to a port of the VIP, as the generator makes it of the one of flow 0.
///
/// The IPv4 header's checksum stays that of flow 0: no program checks it.
pub(super) fn frame_of(family: Family, protocol: Protocol, port: u16, flow: u32) -> Vec<u8> {
    let (bits, client_port) = client(flow);
    let mut frame = frame(family, protocol, port);
    let source = match family {
        Family::V4 => 26,
        Family::V6 => 34,
    };
    let [_, low_bits @ ..] = bits.to_be_bytes();
    frame[source + 1..source + 4].copy_from_slice(&low_bits);
    let ports = Ethernet::LENGTH + family.header_length();
    frame[ports..ports + 2].copy_from_slice(&client_port.to_be_bytes());
    frame
}

/// Returns the template from which the generator makes each frame.
pub(super) fn template(frame: &[u8]) -> Template {
    let mut bytes = [0; TEMPLATE_LENGTH];
    bytes.copy_from_slice(&frame[..TEMPLATE_LENGTH]);
    Template {
        bytes,
        reserved: [0; 4],
    }
}

/// Returns the outer headers of a frame to the first backend, for the `static` programs.
pub(super) fn outer(family: Family, frame: &[u8]) -> OuterTemplate {
    let inner = frame.len() - Ethernet::LENGTH;
    let mut headers = ethernet_header(MACS_BACK, family);
    headers.extend(match family {
        Family::V4 => ipv4_header(protocol::IPV4, Ipv4::LENGTH + inner, EDGE_V4, node_v4(0)),
        Family::V6 => ipv6_header(protocol::IPV6, inner, EDGE_V6, node_v6(0)),
    });
    let mut bytes = [0; 54];
    bytes[..headers.len()].copy_from_slice(&headers);
    OuterTemplate {
        bytes,
        reserved: [0; 2],
    }
}

/// Returns the address of a backend's node.
pub(super) fn node(family: Family, index: u8) -> IpAddr {
    match family {
        Family::V4 => node_v4(index).into(),
        Family::V6 => node_v6(index).into(),
    }
}

const fn node_v4(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, index + 1)
}

const fn node_v6(index: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, index as u16 + 1)
}

pub(crate) fn ethernet_header(macs: [u8; 12], family: Family) -> Vec<u8> {
    let header = Ethernet {
        macs,
        ether_type: match family {
            Family::V4 => ethernet::IPV4.to_be_bytes(),
            Family::V6 => ethernet::IPV6.to_be_bytes(),
        },
    };
    header.as_bytes().to_vec()
}

pub(crate) fn ipv4_header(
    protocol: u8,
    length: usize,
    source: Ipv4Addr,
    destination: Ipv4Addr,
) -> Vec<u8> {
    with_checksum(ipv4(protocol, length, source, destination))
}

/// Returns a header with DF and without a checksum.
fn ipv4(protocol: u8, length: usize, source: Ipv4Addr, destination: Ipv4Addr) -> Ipv4 {
    Ipv4 {
        version_ihl: 0x45,
        total_length: length_field(length),
        fragment: DONT_FRAGMENT,
        ttl: TTL,
        protocol,
        source: source.octets(),
        destination: destination.octets(),
        ..Ipv4::default()
    }
}

fn with_checksum(mut header: Ipv4) -> Vec<u8> {
    let sum = Sum::ZERO.add_bytes(header.as_bytes());
    header.checksum = sum.checksum().to_be_bytes();
    header.as_bytes().to_vec()
}

pub(crate) fn ipv6_header(
    protocol: u8,
    payload: usize,
    source: Ipv6Addr,
    destination: Ipv6Addr,
) -> Vec<u8> {
    let header = Ipv6 {
        class_label: [0x60, 0, 0, 0],
        payload_length: length_field(payload),
        next_header: protocol,
        hop_limit: TTL,
        source: source.octets(),
        destination: destination.octets(),
    };
    header.as_bytes().to_vec()
}

pub(crate) fn transport(protocol: Protocol, source: u16, destination: u16) -> Vec<u8> {
    let ports = Ports {
        source: source.to_be_bytes(),
        destination: destination.to_be_bytes(),
    };
    match protocol {
        Protocol::Udp => Udp {
            ports,
            ..Udp::default()
        }
        .as_bytes()
        .to_vec(),
        Protocol::Tcp => Tcp {
            ports,
            data_offset: 5 << 4,
            flags: 0x10,
            window: [0xff, 0xff],
            ..Tcp::default()
        }
        .as_bytes()
        .to_vec(),
    }
}

pub(crate) fn length_field(length: usize) -> [u8; 2] {
    u16::try_from(length)
        .expect("the bench's packets are shorter than 64 KiB")
        .to_be_bytes()
}

/// Returns the kernel's `xdp_md`: the position of the frame, and the device that it seems to have arrived on.
pub(crate) fn context_of(length: usize, ingress: u32) -> Result<Vec<u8>> {
    let (data, end, meta, queue, egress) = (0, u32::try_from(length)?, 0, 0, 0);
    Ok([data, end, meta, ingress, queue, egress]
        .iter()
        .flat_map(|field: &u32| field.to_ne_bytes())
        .collect())
}

#[cfg(test)]
mod tests {
    use xdp_prog::{
        frame::{Frame as _, HostFrame},
        parse,
    };

    use super::*;

    #[test]
    fn frames_are_the_shortest_of_their_kind() {
        let length = |family, protocol| frame(family, protocol, PORT).len();
        assert_eq!(length(Family::V4, Protocol::Udp), 60);
        assert_eq!(length(Family::V4, Protocol::Tcp), 60);
        assert_eq!(length(Family::V6, Protocol::Udp), 62);
        assert_eq!(length(Family::V6, Protocol::Tcp), 74);
    }

    #[test]
    fn fragmentable_frame_is_as_long_as_it_says() {
        for protocol in Protocol::ALL {
            let frame = fragmentable_frame(protocol, PORT, 1500);
            assert_eq!(frame.len(), 1514);
            assert!(Sum::ZERO.add_bytes(&frame[14..34]).is_valid());
            let bytes = HostFrame::new(&frame);
            let packet = parse::ipv4(&bytes, Ethernet::LENGTH).unwrap();
            assert_eq!(packet.length, 1500);
            let header: &Ipv4 = bytes.view(Ethernet::LENGTH).unwrap();
            assert_eq!(header.fragment, [0; 2]);
        }
    }

    #[test]
    fn frames_parse_as_flows_to_the_services() {
        for protocol in Protocol::ALL {
            let bytes = HostFrame::new(&frame(Family::V4, protocol, PORT));
            let packet = parse::ipv4(&bytes, Ethernet::LENGTH).unwrap();
            let flow = parse::flow(&bytes, &packet).unwrap();
            assert_eq!(Ipv4Addr::from(flow.destination.0), VIP_V4);
            assert_eq!(u16::from_be_bytes(flow.destination_port), PORT);
            assert_eq!(flow.protocol, protocol.number());

            let bytes = HostFrame::new(&frame(Family::V6, protocol, PORT));
            let packet = parse::ipv6(&bytes, Ethernet::LENGTH).unwrap();
            let flow = parse::flow(&bytes, &packet).unwrap();
            assert_eq!(Ipv6Addr::from(flow.destination.0), VIP_V6);
            assert_eq!(flow.protocol, protocol.number());
        }
    }

    #[test]
    fn ipv4_checksums_are_right() {
        for protocol in Protocol::ALL {
            let frame = frame(Family::V4, protocol, PORT);
            assert!(Sum::ZERO.add_bytes(&frame[14..34]).is_valid());
            let outer = outer(Family::V4, &frame);
            assert!(Sum::ZERO.add_bytes(&outer.bytes[14..34]).is_valid());
        }
    }

    #[test]
    fn generator_rewrites_all_that_a_program_may_change() {
        // Behind the template lies nothing but the end of a TCP header.
        for family in Family::ALL {
            let headers = Ethernet::LENGTH + family.header_length() + size_of::<Ports>();
            assert!(headers <= TEMPLATE_LENGTH);
        }
    }
}
