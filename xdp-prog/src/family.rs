//! The two IP families.

use crate::wire::{ethernet, protocol};

/// IP family; a word, because it lies on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the family as one bit, for [`Relay`].
    #[inline(always)]
    pub(crate) const fn bit(self) -> u64 {
        matches!(self, Self::V6) as u64
    }

    /// Returns the family that the lowest bit of a number stands for.
    #[inline(always)]
    pub(crate) const fn of_bit(number: u64) -> Self {
        if number & 1 == 0 { Self::V4 } else { Self::V6 }
    }

    /// Returns the EtherType of this family.
    #[inline(always)]
    pub const fn ether_type(self) -> [u8; 2] {
        match self {
            Self::V4 => ethernet::IPV4.to_be_bytes(),
            Self::V6 => ethernet::IPV6.to_be_bytes(),
        }
    }

    /// Returns the protocol number of an outer header that carries this family.
    #[inline(always)]
    pub const fn encap_protocol(self) -> u8 {
        match self {
            Self::V4 => protocol::IPV4,
            Self::V6 => protocol::IPV6,
        }
    }
}
