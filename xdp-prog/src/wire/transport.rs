//! TCP (RFC 9293), UDP (RFC 768) and SCTP (RFC 9260).

use crate::{csum::Sum, words::join_u16};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The two ports with which TCP, UDP and SCTP headers begin.
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
pub struct Ports {
    /// Source port.
    pub source: [u8; 2],
    /// Destination port.
    pub destination: [u8; 2],
}

impl Ports {
    /// Returns both ports as one word in memory order.
    #[inline(always)]
    pub const fn word(self) -> u32 {
        join_u16(self.source, self.destination)
    }

    /// Returns the difference that a checksum sees when these ports become `new`.
    #[inline(always)]
    pub fn replaced_by(&self, new: Self) -> Sum {
        Sum::ZERO.replace_u32(u32::from_be(self.word()), u32::from_be(new.word()))
    }
}

/// The fixed part of a TCP header.
///
/// ```text
/// | ports (4) | sequence (4) | acknowledgement (4) | data offset, flags (2) | window (2) | checksum (2) | urgent (2) |
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
pub struct Tcp {
    /// Source and destination port.
    pub ports: Ports,
    /// Sequence number.
    pub sequence: [u8; 4],
    /// Acknowledgement number.
    pub acknowledgement: [u8; 4],
    /// Data offset in words (high nibble).
    pub data_offset: u8,
    /// CWR, ECE, URG, ACK, PSH, RST, SYN and FIN, from the highest bit to the lowest.
    pub flags: u8,
    /// Receive window.
    pub window: [u8; 2],
    /// Checksum over pseudo-header, header and payload.
    pub checksum: [u8; 2],
    /// Urgent pointer.
    pub urgent: [u8; 2],
}

impl Tcp {
    /// Length of the fixed part in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// Returns the header's length in bytes, options included, as the header states it: 0 to 60.
    #[inline(always)]
    pub const fn header_length(&self) -> usize {
        (self.data_offset >> 4) as usize * 4
    }
}

/// UDP header.
///
/// ```text
/// | ports (4) | length (2) | checksum (2) |
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
pub struct Udp {
    /// Source and destination port.
    pub ports: Ports,
    /// Length of header and payload in bytes.
    pub length: [u8; 2],
    /// Checksum over pseudo-header, header and payload; zero for none (IPv4 only).
    pub checksum: [u8; 2],
}

impl Udp {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
}

/// The common header of SCTP. Its CRC32c does not cover the IP addresses.
///
/// ```text
/// | ports (4) | verification tag (4) | CRC32c (4) |
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
pub struct Sctp {
    /// Source and destination port.
    pub ports: Ports,
    /// Verification tag.
    pub tag: [u8; 4],
    /// CRC32c over header and chunks.
    pub checksum: [u8; 4],
}

impl Sctp {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
}
