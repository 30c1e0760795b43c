//! The frame of a flow: what a client would send to begin it.

#![expect(
    clippy::cast_possible_truncation,
    reason = "the packet is less than a hundred bytes long"
)]

use std::net::{IpAddr, SocketAddr};

use xdp_prog::{
    csum::{Sum, pseudo_header_v4, pseudo_header_v6, udp_checksum},
    wire::{
        ethernet::{self, Ethernet},
        ipv4::{DONT_FRAGMENT, Ipv4},
        ipv6::Ipv6,
        transport::{Ports, Sctp, Tcp, Udp},
    },
};
use zerocopy::{FromZeros, IntoBytes};

use super::super::{Protocol, ServiceKey};

/// MACs of the locally administered range: destination, then source.
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
const TTL: u8 = 64;
const SYN: u8 = 0x02;
/// Payload of a datagram: small enough for every path.
const PAYLOAD: [u8; 16] = [0; 16];

/// Builds the first frame of a flow, or nothing where service and client are of different families.
pub(super) fn first_frame(service: &ServiceKey, from: SocketAddr) -> Option<Vec<u8>> {
    let mut transport = transport(service, from);
    let length = transport.len();
    let (ether_type, header, sum) = match (from.ip(), service.address) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (source, destination) = (source.octets(), destination.octets());
            let header = ipv4(source, destination, service.protocol, length);
            let number = service.protocol.number();
            let sum = pseudo_header_v4(&source, &destination, number, length as u16);
            (ethernet::IPV4, header.as_bytes().to_vec(), sum)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = Ipv6 {
                class_label: [0x60, 0, 0, 0],
                payload_length: (length as u16).to_be_bytes(),
                next_header: service.protocol.number(),
                hop_limit: TTL,
                source: source.octets(),
                destination: destination.octets(),
            };
            let sum = pseudo_header_v6(
                &header.source,
                &header.destination,
                header.next_header,
                length as u32,
            );
            (ethernet::IPV6, header.as_bytes().to_vec(), sum)
        }
        _ => return None,
    };
    seal(service.protocol, &mut transport, sum);
    let link = Ethernet {
        macs: MACS,
        ether_type,
    };
    Some([link.as_bytes(), &header, &transport].concat())
}

fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: Protocol, length: usize) -> Ipv4 {
    let [a, b, c, d] = source;
    let [e, f, g, h] = destination;
    let mut header = Ipv4 {
        version_ihl: 0x45,
        tos: 0,
        total_length: ((Ipv4::LENGTH + length) as u16).to_be_bytes(),
        identification: [0; 2],
        fragment: DONT_FRAGMENT,
        ttl: TTL,
        protocol: protocol.number(),
        checksum: [0; 2],
        addresses: [a, b, c, d, e, f, g, h],
    };
    header.checksum = Sum::ZERO
        .add_bytes(header.as_bytes())
        .checksum()
        .to_be_bytes();
    header
}

/// Builds the transport header with its payload, but for the checksum.
fn transport(service: &ServiceKey, from: SocketAddr) -> Vec<u8> {
    let ports = Ports {
        source: from.port().to_be_bytes(),
        destination: service.port.to_be_bytes(),
    };
    match service.protocol {
        Protocol::Tcp => Tcp {
            ports,
            data_offset: 5 << 4,
            flags: SYN,
            window: u16::MAX.to_be_bytes(),
            ..Tcp::new_zeroed()
        }
        .as_bytes()
        .to_vec(),
        Protocol::Udp => {
            let header = Udp {
                ports,
                length: ((Udp::LENGTH + PAYLOAD.len()) as u16).to_be_bytes(),
                checksum: [0; 2],
            };
            [header.as_bytes(), &PAYLOAD].concat()
        }
        Protocol::Sctp => {
            let header = Sctp {
                ports,
                ..Sctp::new_zeroed()
            };
            [header.as_bytes(), &PAYLOAD].concat()
        }
    }
}

/// Writes the checksum over pseudo-header, header and payload; SCTP's CRC is checked by the ends only.
fn seal(protocol: Protocol, transport: &mut [u8], pseudo_header: Sum) {
    let check = pseudo_header.add_bytes(transport).checksum();
    let (offset, check) = match protocol {
        Protocol::Tcp => (size_of::<Tcp>() - 4, check),
        Protocol::Udp => (size_of::<Udp>() - 2, udp_checksum(check)),
        Protocol::Sctp => return,
    };
    if let Some(field) = transport.get_mut(offset..offset + 2) {
        field.copy_from_slice(&check.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_another_library() {
        for (service, from) in [
            ("10.99.0.1:80/tcp", "192.0.2.1:4711"),
            ("10.99.0.1:53/udp", "192.0.2.1:4711"),
            ("[fd00::1]:80/tcp", "[2001:db8::1]:4711"),
            ("[fd00::1]:53/udp", "[2001:db8::1]:4711"),
        ] {
            let frame = first_frame(&service.parse().unwrap(), from.parse().unwrap()).unwrap();
            let packet = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
            let net = packet.net.unwrap();
            if let etherparse::NetHeaders::Ipv4(header, _) = &net {
                assert_eq!(header.calc_header_checksum(), header.header_checksum);
            }
            let payload = packet.payload.slice();
            let found = match packet.transport.unwrap() {
                etherparse::TransportHeader::Tcp(tcp) => (
                    tcp.checksum,
                    match &net {
                        etherparse::NetHeaders::Ipv4(ip, _) => tcp.calc_checksum_ipv4(ip, payload),
                        etherparse::NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(ip, payload),
                        etherparse::NetHeaders::Arp(_) => unreachable!("no ARP"),
                    },
                ),
                etherparse::TransportHeader::Udp(udp) => (
                    udp.checksum,
                    match &net {
                        etherparse::NetHeaders::Ipv4(ip, _) => udp.calc_checksum_ipv4(ip, payload),
                        etherparse::NetHeaders::Ipv6(ip, _) => udp.calc_checksum_ipv6(ip, payload),
                        etherparse::NetHeaders::Arp(_) => unreachable!("no ARP"),
                    },
                ),
                other => panic!("{other:?}"),
            };
            assert_eq!(found.0, found.1.unwrap(), "{service}");
        }
    }
}
