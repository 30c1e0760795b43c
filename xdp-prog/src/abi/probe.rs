//! What makes a check of a backend or node take the way of a client's packet.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{AddressKey, plain_data};

/// Bits of a packet's mark that tell a check from everything else.
pub const PROBE_MARK_MASK: u32 = 0xfff0_0000;
/// What these bits are: the other ones are an index in `PROBES`.
pub const PROBE_MARK: u32 = 0x6a70_0000;

/// The way of one check.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Probe {
    /// What the socket is connected to; packets to anything else are of an earlier check.
    pub peer: AddressKey,
    /// The service's address, which takes the place of the peer's.
    pub destination: AddressKey,
    /// Outer destination.
    pub node: AddressKey,
    /// Outer source; all zero for the packet's own, where the families are the same.
    pub source: AddressKey,
    /// Names the pod in the outer header.
    pub tag: u16,
    /// [`PROBE_ENCAP`].
    pub flags: u16,
    /// Always zero.
    pub reserved: u32,
}

/// [`Probe::flags`]: an outer header of the node's family is put in front.
pub const PROBE_ENCAP: u16 = 1;

plain_data! {
    Probe: 72,
}
