//! Checks of backends and nodes, which take the way of a client's packets.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{AddressKey, plain_data};

/// Bits of a packet's mark that distinguish a check from all other packets.
pub const PROBE_MARK_MASK: u32 = 0xfff0_0000;
/// Value of these bits in a check; the other bits are an index in `PROBES`.
pub const PROBE_MARK: u32 = 0x6a70_0000;

/// The way of one check.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Probe {
    /// The address to which the socket is connected; packets to another address belong to an earlier check.
    pub peer: AddressKey,
    /// The service's address, which replaces the peer's.
    pub destination: AddressKey,
    /// Outer destination: the node.
    pub node: AddressKey,
    /// Outer source; all zero for the packet's own source if the families are the same.
    pub source: AddressKey,
    /// The pod's tag in the outer header.
    pub tag: u16,
    /// [`PROBE_ENCAP`].
    pub flags: u16,
    /// Always zero.
    pub reserved: u32,
}

/// [`Probe::flags`]: the packet gets an outer header of the node's family.
pub const PROBE_ENCAP: u16 = 1;

plain_data! {
    Probe: 72,
}
