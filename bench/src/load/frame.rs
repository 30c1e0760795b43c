//! Frames with headers and right checksums.

use std::net::{IpAddr, SocketAddr};

use xdp_prog::{
    csum::{self, Sum},
    wire::{ethernet::Ethernet, ipv4::Ipv4},
};

use crate::datapath::{
    Family, Protocol,
    frames::{ethernet_header, ipv4_header, ipv6_header, length_field, transport},
};

/// Offset of the checksum in a header of UDP, and in one of TCP.
const CHECK_OF_UDP: usize = 6;
const CHECK_OF_TCP: usize = 16;
/// Offset of the checksum in an IPv4 header.
const CHECK_OF_IPV4: usize = 10;

/// What frames of a load have in common: their MAC addresses, and their protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// Destination and source.
    pub(crate) macs: [u8; 12],
    pub(crate) protocol: Protocol,
}

/// Offsets in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    /// The last four bytes of the source address.
    pub(crate) address: usize,
    /// The source port.
    pub(crate) port: usize,
    /// The transport checksum.
    pub(crate) check: usize,
    /// The checksum of the IPv4 header.
    pub(crate) ip_check: Option<usize>,
    /// The payload.
    pub(crate) payload: usize,
}

impl Framing {
    /// Makes a frame, without its FCS.
    ///
    /// # Panics
    ///
    /// When the two ends are of different families.
    pub(crate) fn frame(self, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let mut segment = transport(self.protocol, from.port(), to.port());
        segment.extend(payload);
        if self.protocol == Protocol::Udp {
            let length = length_field(segment.len());
            segment[4..6].copy_from_slice(&length);
        }
        let (number, length) = (self.protocol.number(), segment.len());
        let (family, header, pseudo_header) = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => (
                Family::V4,
                ipv4_header(number, Ipv4::LENGTH + length, from, to),
                Sum::ZERO.add_array(&from.octets()).add_array(&to.octets()),
            ),
            (IpAddr::V6(from), IpAddr::V6(to)) => (
                Family::V6,
                ipv6_header(number, length, from, to),
                Sum::ZERO.add_array(&from.octets()).add_array(&to.octets()),
            ),
            _ => unreachable!("both ends are of one family"),
        };
        let pseudo_header = pseudo_header
            .add_u16(number.into())
            .add_u16(u16::from_be_bytes(length_field(length)));
        let check = csum::udp_checksum(pseudo_header.add_bytes(&segment).checksum());
        let at = self.check_at();
        segment[at..at + 2].copy_from_slice(&check.to_be_bytes());
        let mut frame = ethernet_header(self.macs, family);
        frame.extend(header);
        frame.extend(segment);
        frame
    }

    /// Returns where a frame's fields are.
    pub(crate) fn offsets(self, is_v4: bool) -> Offsets {
        let family = if is_v4 { Family::V4 } else { Family::V6 };
        let source = if is_v4 { 12 } else { 8 + 12 };
        let segment = Ethernet::LENGTH + family.header_length();
        Offsets {
            address: Ethernet::LENGTH + source,
            port: segment,
            check: segment + self.check_at(),
            ip_check: is_v4.then_some(Ethernet::LENGTH + CHECK_OF_IPV4),
            payload: segment + transport(self.protocol, 0, 0).len(),
        }
    }

    fn check_at(self) -> usize {
        match self.protocol {
            Protocol::Udp => CHECK_OF_UDP,
            Protocol::Tcp => CHECK_OF_TCP,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums a segment with its pseudo-header, as a receiver does.
    fn is_intact(frame: &[u8], is_v4: bool, protocol: Protocol) -> bool {
        let (ip, l4) = (14, if is_v4 { 34 } else { 54 });
        let addresses = if is_v4 {
            &frame[ip + 12..l4]
        } else {
            &frame[ip + 8..l4]
        };
        let length = u16::try_from(frame.len() - l4).unwrap();
        let sum = Sum::ZERO
            .add_bytes(addresses)
            .add_u16(protocol.number().into())
            .add_u16(length)
            .add_bytes(&frame[l4..]);
        sum.is_valid() && (!is_v4 || Sum::ZERO.add_bytes(&frame[ip..l4]).is_valid())
    }

    #[test]
    fn frames_have_right_checksums_and_their_fields_where_the_offsets_say() {
        for (from, to) in [
            ("198.18.0.7:4660", "198.51.100.1:80"),
            ("[2001:2::7]:4660", "[2001:db8::1]:80"),
        ] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            for protocol in Protocol::ALL {
                let macs = [2; 12];
                let framing = Framing { macs, protocol };
                for length in [6, 7, 1_400] {
                    let payload = vec![0xab; length];
                    let frame = framing.frame(from, to, &payload);
                    assert!(is_intact(&frame, from.is_ipv4(), protocol), "{frame:x?}");
                    let at = framing.offsets(from.is_ipv4());
                    assert_eq!(frame[at.payload..], payload);
                    assert_eq!(frame[at.port..at.port + 2], 4660_u16.to_be_bytes());
                    assert_eq!(frame[at.address + 3], 7);
                    let mut damaged = frame.clone();
                    damaged[at.payload] ^= 1;
                    assert!(!is_intact(&damaged, from.is_ipv4(), protocol));
                }
            }
        }
    }
}
