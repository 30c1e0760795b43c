//! Frames with headers and right checksums.

use std::net::{IpAddr, SocketAddr};

use xdp_prog::{
    csum::{self, Sum},
    wire::{
        ethernet::{self, Ethernet, VlanTag},
        ipv4::Ipv4,
    },
};

use crate::{
    datapath::{
        Family, Protocol,
        frames::{ethernet_header, ipv4_header, ipv6_header, length_field, transport},
    },
    scenario::{Load, Segment},
};

/// Offset of the checksum in a header of UDP, and in one of TCP.
const CHECK_OF_UDP: usize = 6;
const CHECK_OF_TCP: usize = 16;
/// Offset of the checksum in an IPv4 header.
const CHECK_OF_IPV4: usize = 10;

/// What frames of a load have in common: their MAC addresses, and what they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// Destination and source.
    pub(crate) macs: [u8; 12],
    pub(crate) protocol: Protocol,
    pub(crate) segment: Segment,
    /// The id of their VLAN tag.
    pub(crate) vlan: Option<u16>,
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

/// The flag of a TCP segment that begins a connection (RFC 9293 section 3.1), and the offset of the flags.
const SYN: u8 = 0x02;
const FLAGS_OF_TCP: usize = 13;

impl Framing {
    /// Returns the framing of data in frames without a tag.
    pub(crate) fn plain(macs: [u8; 12], protocol: Protocol) -> Self {
        Self {
            macs,
            protocol,
            segment: Segment::Data,
            vlan: None,
        }
    }

    /// Returns the framing of a load.
    pub(crate) fn of(macs: [u8; 12], load: &Load) -> Self {
        Self {
            segment: load.segment,
            vlan: load.vlan,
            ..Self::plain(macs, load.protocol)
        }
    }

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
        } else if self.segment == Segment::Syn {
            segment[FLAGS_OF_TCP] = SYN;
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
        if let Some(id) = self.vlan {
            let tag = [ethernet::VLAN.to_be_bytes(), id.to_be_bytes()].concat();
            frame.splice(self.macs.len()..self.macs.len(), tag);
        }
        frame.extend(header);
        frame.extend(segment);
        frame
    }

    /// Returns where a frame's fields are.
    pub(crate) fn offsets(self, is_v4: bool) -> Offsets {
        let family = if is_v4 { Family::V4 } else { Family::V6 };
        let source = if is_v4 { 12 } else { 8 + 12 };
        let packet = Ethernet::LENGTH + self.tag_length();
        let segment = packet + family.header_length();
        Offsets {
            address: packet + source,
            port: segment,
            check: segment + self.check_at(),
            ip_check: is_v4.then_some(packet + CHECK_OF_IPV4),
            payload: segment + transport(self.protocol, 0, 0).len(),
        }
    }

    /// Returns the length of the VLAN tag.
    pub(crate) fn tag_length(self) -> usize {
        self.vlan.map_or(0, |_| VlanTag::LENGTH)
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
                let framing = Framing::plain(macs, protocol);
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

    #[test]
    fn a_tag_moves_all_fields_and_a_syn_is_flagged_and_both_keep_checksums_right() {
        let ends: [SocketAddr; 2] =
            ["198.18.0.7:4660", "198.51.100.1:80"].map(|end| end.parse().unwrap());
        let plain = Framing::plain([2; 12], Protocol::Tcp);
        let tagged = Framing {
            segment: Segment::Syn,
            vlan: Some(0x123),
            ..plain
        };
        let frame = tagged.frame(ends[0], ends[1], &[0xab; 6]);
        assert_eq!(frame[12..18], [0x81, 0x00, 0x01, 0x23, 0x08, 0x00]);
        let untagged = [&frame[..12], &frame[16..]].concat();
        assert!(is_intact(&untagged, true, Protocol::Tcp), "{frame:x?}");
        let [at, without] = [tagged, plain].map(|framing| framing.offsets(true));
        assert_eq!(frame[at.port + FLAGS_OF_TCP], SYN);
        assert_eq!(frame[at.payload..], [0xab; 6]);
        assert_eq!(
            (at.check, at.address),
            (without.check + 4, without.address + 4)
        );
        assert_eq!(at.ip_check, without.ip_check.map(|at| at + 4));
    }
}
