//! Finds the headers of an outgoing packet.
//!
//! One type serves both families, because everything behind the IP header is handled alike. Most of these packets
//! come from the kernel itself, so a packet that does not parse is left alone.

use super::Skb;
use crate::{
    abi::AddressKey,
    family::Family,
    parse,
    wire::{ethernet, ipv4::Ipv4, ipv6::Ipv6},
    world::{OFFSETS, Relay},
};

/// The headers of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// IPv4 or IPv6.
    pub family: Family,
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the transport header: behind the IP header, its options and extension headers.
    pub l4: usize,
    /// Offset of the first byte behind the packet.
    pub end: usize,
    /// Protocol of the transport header; in a later fragment, of the first fragment's.
    pub protocol: u8,
    /// IPv4 header checksum, in host order; 0 for IPv6.
    pub checksum: u16,
    /// The packet's part of its datagram.
    pub part: Part,
    /// Identification of the datagram in wire order (that of IPv4 in the last two bytes); 0 unless it is a fragment.
    pub identification: u32,
    /// Source address.
    pub source: AddressKey,
    /// Destination address.
    pub destination: AddressKey,
}

impl Headers {
    /// Passes everything but the addresses through [`Relay`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    pub(super) fn relayed<T: Relay>(self, tables: &T) -> Option<Self> {
        let part = match self.part {
            Part::Whole => 0,
            Part::First => 1,
            Part::Later => 2,
        };
        let [offsets, end, rest, _] = tables.relay([
            (self.l3 as u64) << 32 | self.l4 as u64,
            (self.end as u64) << 32 | u64::from(self.identification),
            u64::from(self.checksum) << 32
                | part << 16
                | self.family.bit() << 8
                | u64::from(self.protocol),
            0,
        ])?;
        Some(Self {
            family: Family::of_bit(rest >> 8),
            l3: (offsets >> 32) as usize & OFFSETS,
            l4: offsets as usize & OFFSETS,
            end: (end >> 32) as usize,
            protocol: rest as u8,
            checksum: (rest >> 32) as u16,
            part: match rest >> 16 & 3 {
                0 => Part::Whole,
                1 => Part::First,
                _ => Part::Later,
            },
            identification: end as u32,
            ..self
        })
    }
}

/// A packet's part of its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of the datagram.
    Whole,
    /// The first fragment, with the transport header.
    First,
    /// A later fragment, without the transport header.
    Later,
}

/// Finds the headers of a frame; `None` if it holds no IP packet that can be followed.
#[inline(always)]
pub fn read<S: Skb>(skb: &mut S) -> Option<Headers> {
    let link = match parse::link(skb) {
        Ok(link) => link,
        Err(_) => return None,
    };
    match link.ether_type {
        ethernet::IPV4 => ipv4(skb, link.l3),
        ethernet::IPV6 => ipv6(skb, link.l3),
        _ => None,
    }
}

#[inline(always)]
fn ipv4<S: Skb>(skb: &mut S, l3: usize) -> Option<Headers> {
    skb.pull(l3 + Ipv4::LENGTH);
    let header: &Ipv4 = skb.view(l3)?;
    let header_length = header.header_length();
    if header.version() != 4 || header_length < Ipv4::LENGTH {
        return None;
    }
    let end = end(skb, l3, header.total_length())?;
    let l4 = l3 + header_length;
    let fragment = u16::from_be_bytes(header.fragment);
    let [a, b] = header.identification;
    let part = part(fragment & 0x1fff != 0, fragment & 0x2000 != 0);
    (l4 <= end).then_some(Headers {
        family: Family::V4,
        l3,
        l4,
        end,
        protocol: header.protocol,
        checksum: u16::from_be_bytes(header.checksum),
        part,
        identification: if matches!(part, Part::Whole) {
            0
        } else {
            u32::from_ne_bytes([0, 0, a, b])
        },
        source: AddressKey::v4(header.source()),
        destination: AddressKey::v4(header.destination()),
    })
}

/// Bytes of extension headers that are pulled into the linear part.
const EXTENSIONS: usize = 64;

#[inline(always)]
fn ipv6<S: Skb>(skb: &mut S, l3: usize) -> Option<Headers> {
    skb.pull(l3 + Ipv6::LENGTH);
    let header: &Ipv6 = skb.view(l3)?;
    let source = AddressKey::v6(header.source);
    // The tables of flows hold IPv4 addresses in this form.
    if header.version() != 6 || source.is_mapped() {
        return None;
    }
    let destination = AddressKey::v6(header.destination);
    let next_header = header.next_header;
    let end = end(skb, l3, header.total_length())?;
    let mut found = Headers {
        family: Family::V6,
        l3,
        l4: l3 + Ipv6::LENGTH,
        end,
        protocol: next_header,
        checksum: 0,
        part: Part::Whole,
        identification: 0,
        source,
        destination,
    };
    if parse::is_extension(next_header) {
        let visible = found.l4 + EXTENSIONS;
        skb.pull(if visible < end { visible } else { end });
        let chain = match parse::follow_extensions(skb, next_header, found.l4) {
            Ok(chain) => chain,
            Err(_) => return None,
        };
        found.l4 = chain.l4;
        found.protocol = chain.protocol;
        if chain.is_fragment {
            found.part = part(chain.piece.offset != 0, chain.more_fragments);
            found.identification = chain.piece.identification;
        }
    }
    (found.l4 <= end).then_some(found)
}

#[inline(always)]
const fn part(has_offset: bool, more_fragments: bool) -> Part {
    match (has_offset, more_fragments) {
        (true, _) => Part::Later,
        (false, true) => Part::First,
        (false, false) => Part::Whole,
    }
}

/// Returns the offset of the end of a packet whose header states this length.
///
/// Merged segments that are too long for the header state zero (BIG TCP: the device's `gso_max_size` is above 64
/// KiB).
#[inline(always)]
fn end<S: Skb>(skb: &S, l3: usize, stated: usize) -> Option<usize> {
    let room = skb.length().checked_sub(l3)?;
    let is_big = room > 0xffff && (stated == 0 || stated == Ipv6::LENGTH);
    let length = if is_big { room } else { stated };
    (length <= room).then_some(l3 + length)
}
