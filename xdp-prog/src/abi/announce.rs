//! What a machine announces to its neighbours, and who else does.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{EdgeMac, plain_data};

/// An announcement by somebody else of an address that this machine announces.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Claim {
    mac: u64,
    /// When it came, on the monotonic clock in ns.
    pub seen: u64,
}

impl Claim {
    /// Notes who announces the address.
    #[inline(always)]
    pub const fn new(mac: EdgeMac, seen: u64) -> Self {
        Self { mac: mac.0, seen }
    }

    /// Returns the MAC that the address is said to have.
    pub const fn mac(&self) -> [u8; 6] {
        EdgeMac(self.mac).mac()
    }
}

plain_data! {
    Claim: 16,
}
