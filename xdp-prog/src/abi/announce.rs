//! What a machine announces to its neighbours, and who else does.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{EdgeMac, plain_data};

/// Where announced addresses are announced: a device, and a tag on its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct AnnounceLink(u64);

impl AnnounceLink {
    /// Builds the key from the index of the device that frames come in on and their VLAN id; 0 without a tag.
    #[inline(always)]
    pub const fn new(ifindex: u32, vlan: u16) -> Self {
        Self((vlan as u64) << 32 | ifindex as u64)
    }

    /// Returns the index of the device and the VLAN id.
    #[expect(clippy::cast_possible_truncation, reason = "takes the halves")]
    pub const fn parts(self) -> (u32, u16) {
        (self.0 as u32, (self.0 >> 32) as u16)
    }
}

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
    AnnounceLink: 8,
    Claim: 16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_and_vlan_are_kept_apart() {
        let link = AnnounceLink::new(u32::MAX, 0);
        assert_eq!(link.parts(), (u32::MAX, 0));
        assert_eq!(AnnounceLink::new(7, 4094).parts(), (7, 4094));
        assert_ne!(link, AnnounceLink::new(u32::MAX, 1));
    }
}
