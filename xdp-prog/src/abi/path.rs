//! Reports of routers about the paths to nodes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Tag, plain_data};

plain_data! {
    PathReport: 8,
}

/// Value of `PATHS`: the last ICMP error about the path to a node, in one word that is stored at once; all zero for
/// none.
///
/// ```text
/// 63      48 47           32 31   16 15  0
/// | MTU told | length quoted | tag   | 1 |
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct PathReport(u64);

impl PathReport {
    /// Packs the MTU that the error states, and the length and tag of the outer packet that was too large.
    #[inline(always)]
    pub const fn new(mtu: u16, length: u16, tag: Tag) -> Self {
        Self((mtu as u64) << 48 | (length as u64) << 32 | (tag.0 as u64) << 16 | 1)
    }

    /// Tells whether there is a report.
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }

    /// Returns the MTU that the error states, in bytes.
    pub const fn mtu(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Returns the length in bytes of the packet that was too large.
    #[expect(clippy::cast_possible_truncation, reason = "takes the field")]
    pub const fn length(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Returns the tag of that packet.
    #[expect(clippy::cast_possible_truncation, reason = "takes the field")]
    pub const fn tag(self) -> Tag {
        Tag((self.0 >> 16) as u16)
    }
}
