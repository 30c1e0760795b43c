//! ARP (RFC 826) for IPv4 over Ethernet, and neighbour discovery (RFC 4861).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{icmp::Icmp, ipv6::Ipv6};

/// ```text
/// | Ethernet, IPv4, their lengths (6) | operation (2) |
/// | sender MAC (6) | sender (4) | target MAC (6) | target (4) |
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
pub struct Arp {
    /// Kinds and lengths of addresses, and the operation: [`Arp::REQUEST`] or [`Arp::REPLY`].
    pub operation: [u8; 8],
    /// MAC of who sends it.
    pub sender_mac: [u8; 6],
    /// Address of who sends it; zeros ask whether the target is free (RFC 5227 section 1.1).
    pub sender: [u8; 4],
    /// What is asked for in a request.
    pub target_mac: [u8; 6],
    /// The address asked for.
    pub target: [u8; 4],
}

impl Arp {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
    /// Asks for the MAC of an IPv4 address.
    pub const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    /// Tells it.
    pub const REPLY: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 2];
}

/// A neighbour solicitation or advertisement, without options.
///
/// ```text
/// | IPv6 (40) | type | code | checksum (2) | flags (4) | target (16) |
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
pub struct Discovery {
    /// IPv6 header; nothing may come between.
    pub ip: Ipv6,
    /// ICMPv6 header; of an advertisement, its last four bytes are the flags.
    pub icmp: Icmp,
    /// The address that it is about.
    pub target: [u8; 16],
}

impl Discovery {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
    /// Length of the message behind the IPv6 header.
    pub const PAYLOAD: usize = Self::LENGTH - Ipv6::LENGTH;
    /// Hop limit of all neighbour discovery: it has come over no router.
    pub const HOP_LIMIT: u8 = 255;
}

/// A neighbour advertisement with the target's MAC.
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
pub struct Advertisement {
    /// Headers and target.
    pub discovery: Discovery,
    /// [`Advertisement::TARGET_MAC`].
    pub option: [u8; 2],
    /// The target's MAC.
    pub mac: [u8; 6],
}

impl Advertisement {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
    /// Length of the message behind the IPv6 header.
    pub const PAYLOAD: usize = Self::LENGTH - Ipv6::LENGTH;
    /// Kind and length of the option that is the target's MAC.
    pub const TARGET_MAC: [u8; 2] = [2, 1];
    /// Flag: it answers a solicitation.
    pub const SOLICITED: u8 = 0x40;
    /// Flag: it takes the place of what the receiver knows.
    pub const OVERRIDE: u8 = 0x20;
}

/// The group of all nodes on a link (RFC 4291 section 2.7.1).
pub const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// Its MAC (RFC 2464 section 7).
pub const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

const _: () = assert!(Arp::LENGTH == 28 && Discovery::LENGTH == 64 && Advertisement::LENGTH == 72);
