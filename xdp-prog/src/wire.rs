//! Headers as they lie on the wire: byte-array fields, accessors in host order.
//!
//! One file per protocol. The types have alignment 1 and no padding, so they can be viewed at any offset of a frame.
//! Reading a field never fails. [`crate::parse`] checks the values.

pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod neighbour;
pub mod transport;

/// IP protocol numbers (IANA "Assigned Internet Protocol Numbers").
pub mod protocol {
    /// IPv6 hop-by-hop options (RFC 8200 section 4.3).
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// IPv4 in IP (RFC 2003).
    pub const IPV4: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 in IP (RFC 2473).
    pub const IPV6: u8 = 41;
    /// IPv6 routing header (RFC 8200 section 4.4).
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header (RFC 8200 section 4.5).
    pub const FRAGMENT: u8 = 44;
    /// Authentication header (RFC 4302).
    pub const AUTHENTICATION: u8 = 51;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP (RFC 9260).
    pub const SCTP: u8 = 132;
    /// IPv6 destination options (RFC 8200 section 4.6).
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// Mobility header (RFC 6275 section 6.1).
    pub const MOBILITY: u8 = 135;
}
