//! ICMP (RFC 792) and ICMPv6 (RFC 4443).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Message types and codes of ICMP (RFC 792, RFC 1191).
pub mod v4 {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable; an error.
    pub const UNREACHABLE: u8 = 3;
    /// Code of [`UNREACHABLE`]: no socket listens on this port.
    pub const PORT_UNREACHABLE: u8 = 3;
    /// Code of [`UNREACHABLE`]: the packet is too large and must not be fragmented; the last two bytes are the MTU.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded; an error.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem; an error.
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// Message types and codes of ICMPv6 (RFC 4443).
pub mod v6 {
    /// Destination unreachable; an error.
    pub const UNREACHABLE: u8 = 1;
    /// Code of [`UNREACHABLE`]: no socket listens on this port.
    pub const PORT_UNREACHABLE: u8 = 4;
    /// Packet too big; the last four bytes are the MTU.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded; an error.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem; an error.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Neighbour solicitation: asks for the MAC of an address (RFC 4861 section 4.3).
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement: gives the MAC of an address (RFC 4861 section 4.4).
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
}

/// The fixed header of every ICMP and ICMPv6 message.
///
/// ```text
/// | type | code | checksum (2) | depends on the type (4) |
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
pub struct Icmp {
    /// Message type.
    pub kind: u8,
    /// Message code; its meaning depends on the type.
    pub code: u8,
    /// Checksum over the message; in ICMPv6 over the pseudo-header too.
    pub checksum: [u8; 2],
    /// Depends on the type: identifier and sequence number, MTU, or unused.
    pub rest: [u8; 4],
}

impl Icmp {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
}
