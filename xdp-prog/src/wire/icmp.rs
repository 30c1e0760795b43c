//! ICMP (RFC 792) and ICMPv6 (RFC 4443).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What all ICMP messages of both versions begin with.
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
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Checksum; over the pseudo-header too in ICMPv6.
    pub checksum: [u8; 2],
    /// Identifier and sequence number, MTU, or unused.
    pub rest: [u8; 4],
}

impl Icmp {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
}
