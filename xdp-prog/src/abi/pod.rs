//! Pods of a node, found by the tag that an edge writes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::check::fold_check;
use super::{AddressKey, plain_data};

plain_data! {
    PodKey: 8,
    Pod: 8,
}

/// The 16-bit tag by which an edge names the pod in the outer header: the IPv4 identification, or the low 16 bits of
/// the IPv6 flow label.
///
/// ```text
/// 15         14  11 10                              0
/// | returned | tries | low 11 bits of the pod's address |
/// ```
///
/// *Tries* is how often the node may still return the packet if it does not know the packet's connection; with 0 it
/// delivers the packet whatever it is. *Returned* marks a packet that comes back from a node to the edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag(pub u16);

impl Tag {
    const POD_BITS: u32 = 11;
    const TRIES_BITS: u32 = 4;
    const RETURNED: u16 = 1 << (Self::POD_BITS + Self::TRIES_BITS);
    /// Largest number of tries that a tag can tell.
    pub const MAX_TRIES: u32 = (1 << Self::TRIES_BITS) - 1;

    /// Builds the tag of the pod with this address.
    #[inline(always)]
    pub const fn pod(address: AddressKey) -> Self {
        let [_, low] = address.words();
        Self((low.to_be() & ((1 << Self::POD_BITS) - 1)) as u16)
    }

    /// Returns the bits of the pod's address.
    #[inline(always)]
    pub const fn pod_bits(self) -> u16 {
        self.0 & ((1 << Self::POD_BITS) - 1)
    }

    /// Returns the bits that tell a number of tries, at most [`Self::MAX_TRIES`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "four bits")]
    pub const fn tries_bits(tries: u32) -> u16 {
        ((tries & Self::MAX_TRIES) << Self::POD_BITS) as u16
    }

    /// Returns how often nodes, all of them together, may still return the packet.
    #[inline(always)]
    pub const fn tries(self) -> u32 {
        (self.0 >> Self::POD_BITS) as u32 & Self::MAX_TRIES
    }

    /// Tells whether the node may return the packet.
    #[inline(always)]
    pub const fn may_be_returned(self) -> bool {
        self.tries() != 0 && !self.is_returned()
    }

    /// Tells whether the packet comes back from a node.
    #[inline(always)]
    pub const fn is_returned(self) -> bool {
        self.0 & Self::RETURNED != 0
    }

    /// Returns the tag with which a node returns the packet.
    #[inline(always)]
    #[must_use]
    pub const fn returned(self) -> Self {
        Self(self.0 | Self::RETURNED)
    }

    /// Returns what notes of deliveries tell apart: the pod's bits, whether the packet has tries left, and whether it comes back.
    /// One without tries is delivered whatever it is, so it tells nothing of one with tries.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a bit of the tag")]
    pub const fn noted_bits(self) -> u16 {
        const TRIES: u32 = Tag::MAX_TRIES << Tag::POD_BITS;
        // The carry of a number that is not 0, without a branch.
        let carry = ((self.0 as u32 & TRIES) + TRIES) & Self::RETURNED as u32;
        self.0 & (Self::RETURNED | ((1 << Self::POD_BITS) - 1)) | (carry >> Self::TRIES_BITS) as u16
    }
}

/// Key of `PODS`: a service id and the pod's bits of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct PodKey(u64);

impl PodKey {
    /// Builds the key.
    #[inline(always)]
    pub const fn new(service: u32, tag: Tag) -> Self {
        Self((service as u64) << 32 | tag.pod_bits() as u64)
    }

    /// Returns the service id and the pod's bits of the tag.
    #[expect(clippy::cast_possible_truncation, reason = "takes the halves")]
    pub const fn parts(self) -> (u32, Tag) {
        ((self.0 >> 32) as u32, Tag(self.0 as u16))
    }
}

/// Value of `PODS`: a backend id and a check of the key, in one word that is read with one load.
///
/// The check tells a reader whether the kernel has recycled the element for another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Pod(pub u64);

impl Pod {
    /// Packs a backend id and the check of its key.
    #[inline(always)]
    pub const fn new(key: PodKey, backend: u32) -> Self {
        Self((fold_check(key.0) as u64) << 32 | backend as u64)
    }

    /// Returns the backend id if the value belongs to this key.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the low half")]
    pub const fn backend(self, key: PodKey) -> Option<u32> {
        if self.0 >> 32 == fold_check(key.0) as u64 {
            Some(self.0 as u32)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_tell_pods_tries_and_returns_apart_and_no_numbers_of_tries() {
        let pod = Tag(0x5aa);
        let with = |tries| Tag(pod.0 | Tag::tries_bits(tries));
        assert_eq!(pod.noted_bits(), 0x5aa);
        for tries in 1..=Tag::MAX_TRIES {
            assert_eq!(with(tries).noted_bits(), 0xdaa, "{tries}");
            assert_eq!(with(tries).returned().noted_bits(), 0x8daa, "{tries}");
        }
        assert_eq!(pod.returned().noted_bits(), 0x85aa);
    }
}
