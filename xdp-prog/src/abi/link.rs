//! Links: a device and a VLAN tag.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{HOP_CARRIED, plain_data};

/// A device, and the VLAN tag on its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct TaggedLink(u64);

impl TaggedLink {
    /// Names the device by its index; the VLAN id is 0 without a tag.
    #[inline(always)]
    pub const fn new(ifindex: u32, vlan: u16) -> Self {
        Self((vlan as u64) << 32 | ifindex as u64)
    }

    /// Returns the index of the device and the VLAN id.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the halves")]
    pub const fn parts(self) -> (u32, u16) {
        (self.0 as u32, (self.0 >> 32) as u16)
    }

    /// Returns the index of a device whose frames leave by this link, as [`NextHop::ifindex`](super::NextHop::ifindex) has
    /// it: with [`HOP_CARRIED`] if the agent sends them by the device itself.
    #[inline(always)]
    pub const fn device_word(self, ifindex: u32) -> u32 {
        let (below, _) = self.parts();
        if below & !HOP_CARRIED == ifindex {
            below
        } else {
            ifindex
        }
    }
}

plain_data! {
    TaggedLink: 8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_and_vlan_are_kept_apart() {
        let link = TaggedLink::new(u32::MAX, 0);
        assert_eq!(link.parts(), (u32::MAX, 0));
        assert_eq!(TaggedLink::new(7, 4094).parts(), (7, 4094));
        assert_ne!(link, TaggedLink::new(u32::MAX, 1));
    }

    #[test]
    fn only_frames_that_leave_by_the_device_itself_make_it_a_carried_one() {
        let carried = TaggedLink::new(7 | HOP_CARRIED, 0);
        assert_eq!(carried.device_word(7), 7 | HOP_CARRIED);
        // A VLAN device above it.
        assert_eq!(carried.device_word(9), 9);
        assert_eq!(TaggedLink::new(7, 0).device_word(7), 7);
    }
}
