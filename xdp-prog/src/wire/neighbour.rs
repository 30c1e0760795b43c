//! ARP (RFC 826) for IPv4 over Ethernet, and the two messages of IPv6 neighbour discovery (RFC 4861) that give MACs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{icmp::Icmp, ipv6::Ipv6};

/// ARP message for IPv4 over Ethernet.
///
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
    /// Hardware and protocol type, their address lengths, and the operation: [`Arp::REQUEST`] or [`Arp::REPLY`].
    pub operation: [u8; 8],
    /// MAC of the sender.
    pub sender_mac: [u8; 6],
    /// Address of the sender; zeros ask whether the target is free (RFC 5227 section 1.1).
    pub sender: [u8; 4],
    /// MAC of the target; a request does not know it.
    pub target_mac: [u8; 6],
    /// Address of the target: in a request, the address asked for.
    pub target: [u8; 4],
}

impl Arp {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
    /// [`Arp::operation`] of a request: asks for the MAC of an IPv4 address.
    pub const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    /// [`Arp::operation`] of a reply: gives that MAC.
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
    /// IPv6 header, without extension headers.
    pub ip: Ipv6,
    /// ICMPv6 header; in an advertisement, its last four bytes are the flags.
    pub icmp: Icmp,
    /// The address whose MAC is asked for or given.
    pub target: [u8; 16],
}

impl Discovery {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
    /// Length in bytes of the message behind the IPv6 header.
    pub const PAYLOAD: usize = Self::LENGTH - Ipv6::LENGTH;
    /// Hop limit of all neighbour discovery; it proves that no router has forwarded the message (RFC 4861 section
    /// 3.1).
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
    /// Headers and target address.
    pub discovery: Discovery,
    /// Type and length of the option: [`Advertisement::TARGET_MAC`].
    pub option: [u8; 2],
    /// The target's MAC.
    pub mac: [u8; 6],
}

impl Advertisement {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
    /// Length in bytes of the message behind the IPv6 header.
    pub const PAYLOAD: usize = Self::LENGTH - Ipv6::LENGTH;
    /// Type and length (in units of eight bytes) of the option that holds the target's MAC.
    pub const TARGET_MAC: [u8; 2] = [2, 1];
    /// Flag: the message answers a solicitation.
    pub const SOLICITED: u8 = 0x40;
    /// Flag: the receiver replaces the MAC that it has cached.
    pub const OVERRIDE: u8 = 0x20;
}

/// The multicast address of all nodes on a link (RFC 4291 section 2.7.1).
pub const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// The MAC of [`ALL_NODES`] (RFC 2464 section 7).
pub const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

const _: () = assert!(Arp::LENGTH == 28 && Discovery::LENGTH == 64 && Advertisement::LENGTH == 72);
