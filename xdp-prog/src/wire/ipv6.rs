//! IPv6 and its extension headers (RFC 8200).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::words::split_u32;

/// Fixed IPv6 header.
///
/// ```text
/// | version (4 bits), traffic class (8), flow label (20) | payload length (2) | next header | hop limit |
/// | source (16) | destination (16) |
/// ```
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Ipv6 {
    /// Version, traffic class and flow label.
    pub class_label: [u8; 4],
    /// Length in bytes of everything behind this header, extension headers included.
    pub payload_length: [u8; 2],
    /// Protocol number of the next header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
}

impl Ipv6 {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// Returns the version nibble.
    #[inline(always)]
    pub const fn version(&self) -> u8 {
        self.class_label[0] >> 4
    }

    /// Returns DSCP and ECN.
    #[inline(always)]
    pub const fn traffic_class(&self) -> u8 {
        self.class_label[0] << 4 | self.class_label[1] >> 4
    }

    /// Returns the low 16 bits of the flow label.
    #[inline(always)]
    pub const fn label_tag(&self) -> u16 {
        let [_, low] = split_u32(u32::from_ne_bytes(self.class_label));
        u16::from_be_bytes(low)
    }

    /// Returns the length of header and payload in bytes, as the header states it.
    #[inline(always)]
    pub const fn total_length(&self) -> usize {
        Self::LENGTH + u16::from_be_bytes(self.payload_length) as usize
    }
}

/// The first eight bytes of an extension header.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Extension {
    /// Protocol number of the next header.
    pub next_header: u8,
    /// Length beyond the first eight bytes, in units of eight bytes. An authentication header counts all but its
    /// first eight bytes in units of four.
    pub length: u8,
    /// Fragment header: offset, reserved bits, more-fragments. Routing header: type, segments left.
    pub fragment: [u8; 2],
    /// The rest of the first eight bytes; in a fragment header, the identification.
    pub rest: [u8; 4],
}

impl Extension {
    /// Length of the shortest extension header in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// Returns the length in bytes of hop-by-hop, routing, destination and mobility headers.
    #[inline(always)]
    pub const fn option_length(&self) -> usize {
        (self.length as usize + 1) * 8
    }

    /// Returns the length in bytes of an authentication header (RFC 4302 section 2.2).
    #[inline(always)]
    pub const fn authentication_length(&self) -> usize {
        (self.length as usize + 2) * 4
    }

    /// Tells whether the header splits the packet; an atomic fragment does not (RFC 6946).
    #[inline(always)]
    pub const fn is_fragment(&self) -> bool {
        u16::from_be_bytes(self.fragment) & 0xfff9 != 0
    }

    /// Tells whether a fragment header says that more fragments of its datagram follow.
    #[inline(always)]
    pub const fn more_fragments(&self) -> bool {
        u16::from_be_bytes(self.fragment) & 1 != 0
    }

    /// Returns the offset of a fragment header, in units of eight bytes.
    #[inline(always)]
    pub const fn fragment_offset(&self) -> u16 {
        u16::from_be_bytes(self.fragment) >> 3
    }

    /// Returns how many nodes of a routing header are still to be visited.
    #[inline(always)]
    pub const fn segments_left(&self) -> u8 {
        self.fragment[1]
    }
}
