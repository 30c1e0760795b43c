//! Ethernet II and VLAN tags (IEEE 802.3, 802.1Q).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherType of a customer VLAN tag (802.1Q).
pub const VLAN: u16 = 0x8100;
/// EtherType of a service VLAN tag (802.1ad).
pub const SERVICE_VLAN: u16 = 0x88a8;

/// Ethernet header.
///
/// ```text
/// | destination MAC (6) | source MAC (6) | EtherType (2) |
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
pub struct Ethernet {
    /// Destination MAC, then source MAC.
    pub macs: [u8; 12],
    /// EtherType of the payload, or of the first VLAN tag.
    pub ether_type: [u8; 2],
}

impl Ethernet {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// Tells whether the destination is a broadcast or multicast address.
    #[inline(always)]
    pub const fn is_group(&self) -> bool {
        self.macs[0] & 1 != 0
    }

    /// Returns the destination MAC.
    #[inline(always)]
    pub const fn destination(&self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.macs;
        [a, b, c, d, e, f]
    }

    /// Returns the source MAC.
    #[inline(always)]
    pub const fn source(&self) -> [u8; 6] {
        let [.., a, b, c, d, e, f] = self.macs;
        [a, b, c, d, e, f]
    }
}

/// VLAN tag (802.1Q and 802.1ad).
///
/// ```text
/// | priority (3 bits), drop eligible (1), VLAN id (12) | EtherType (2) |
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
pub struct VlanTag {
    /// Tag control information.
    pub control: [u8; 2],
    /// EtherType of the payload, or of the next tag.
    pub ether_type: [u8; 2],
}

impl VlanTag {
    /// Length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
}

/// Tells whether a VLAN tag follows this EtherType.
#[inline(always)]
pub const fn announces_vlan(ether_type: u16) -> bool {
    matches!(ether_type, VLAN | SERVICE_VLAN)
}
