//! The two versions of IP.

use crate::wire::{ethernet, protocol};

/// IP version; a word, because it lies on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns it as a number of one bit, for [`Relay`].
    #[inline(always)]
    pub(crate) const fn bit(self) -> u64 {
        matches!(self, Self::V6) as u64
    }

    /// Returns it from the lowest bit of a number.
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

    /// Returns the protocol number that announces this family inside an outer header.
    #[inline(always)]
    pub const fn encap_protocol(self) -> u8 {
        match self {
            Self::V4 => protocol::IPV4,
            Self::V6 => protocol::IPV6,
        }
    }
}
