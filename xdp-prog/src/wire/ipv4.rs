//! IPv4 (RFC 791).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The fixed part of an IPv4 header.
///
/// ```text
/// | version, IHL | TOS | total length (2) | identification (2) | flags, fragment offset (2) |
/// | TTL | protocol | header checksum (2) | source (4) | destination (4) |
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
pub struct Ipv4 {
    /// Version (high nibble, 4) and header length in words (low nibble).
    pub version_ihl: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Length of header and payload in bytes.
    pub total_length: [u8; 2],
    /// Identification.
    pub identification: [u8; 2],
    /// Flags (3 bits) and fragment offset in units of eight bytes (13 bits).
    pub fragment: [u8; 2],
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Header checksum.
    pub checksum: [u8; 2],
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
}

/// Don't-fragment flag of [`Ipv4::fragment`].
pub const DONT_FRAGMENT: [u8; 2] = [0x40, 0x00];

impl Ipv4 {
    /// Length of the fixed part in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// Returns the version nibble.
    #[inline(always)]
    pub const fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// Returns the header's length in bytes, options included: 0 to 60.
    #[inline(always)]
    pub const fn header_length(&self) -> usize {
        (self.version_ihl & 0x0f) as usize * 4
    }

    /// Returns the length of header and payload in bytes, as the header states it.
    #[inline(always)]
    pub const fn total_length(&self) -> usize {
        u16::from_be_bytes(self.total_length) as usize
    }

    /// Tells whether this is a fragment of a datagram, the first one included.
    #[inline(always)]
    pub const fn is_fragment(&self) -> bool {
        // The more-fragments flag or a non-zero offset. The reserved and don't-fragment bits do not count.
        u16::from_be_bytes(self.fragment) & 0x3fff != 0
    }

    /// Tells whether the don't-fragment flag is set.
    #[inline(always)]
    pub const fn must_not_be_fragmented(&self) -> bool {
        self.fragment[0] & DONT_FRAGMENT[0] != 0
    }

    /// Returns the fragment's offset within the datagram, in units of eight bytes.
    #[inline(always)]
    pub const fn fragment_offset(&self) -> u16 {
        u16::from_be_bytes(self.fragment) & 0x1fff
    }

    /// Returns the source address.
    #[inline(always)]
    pub const fn source(&self) -> [u8; 4] {
        self.source
    }

    /// Returns the destination address.
    #[inline(always)]
    pub const fn destination(&self) -> [u8; 4] {
        self.destination
    }
}
