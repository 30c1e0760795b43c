//! Addresses and prefixes as keys.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use super::plain_data;
use crate::words::{join_u32, split_u64, words};

plain_data! {
    AddressKey: 16,
    EdgePrefix: 20,
    SourcePrefix: 20,
    EdgeMac: 8,
}

/// An IPv6 address, or an IPv4 one as `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2).
///
/// The bytes are in network order. This key and the keys of services are kept in whole words, because programs build
/// them on the BPF stack. LLVM merges stores of single fields across word boundaries, which the verifier refuses
/// there.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AddressKey(pub(super) [u64; 2]);

impl AddressKey {
    /// Maps an IPv4 address into the IPv6 space.
    #[inline(always)]
    pub const fn v4(a: [u8; 4]) -> Self {
        const MAPPED: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);
        Self([0, join_u32(MAPPED, u32::from_ne_bytes(a))])
    }

    /// Builds the key of an IPv6 address.
    #[inline(always)]
    pub const fn v6(address: [u8; 16]) -> Self {
        Self(words(address))
    }

    /// Tells whether this is an IPv4 address, or an IPv6 address that looks like a mapped one.
    #[inline(always)]
    pub const fn is_mapped(self) -> bool {
        let [high, low] = self.0;
        high == 0 && low.to_be() >> 32 == 0xffff
    }

    /// Returns the key's two words.
    #[inline(always)]
    pub const fn words(self) -> [u64; 2] {
        self.0
    }

    /// Returns the 16 bytes in network order.
    #[inline(always)]
    pub const fn octets(self) -> [u8; 16] {
        transmute!(self.0)
    }

    /// Returns the last four bytes: the IPv4 address of a mapped key.
    #[inline(always)]
    pub const fn last_octets(self) -> [u8; 4] {
        let [_, last] = split_u64(self.0[1]);
        last.to_ne_bytes()
    }
}

/// Key data of the `TRUSTED_EDGES` trie, behind the trie's own prefix length.
///
/// The family is part of every prefix. Otherwise an IPv6 prefix as short as `::/0` would cover the mapped IPv4
/// addresses. The family's word also keeps the address at an offset of eight in the trie's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EdgePrefix {
    family: [u8; 4],
    address: [u8; 16],
}

impl EdgePrefix {
    /// Bits in front of an IPv6 prefix: the family.
    pub const FRONT_BITS_V6: u32 = 32;
    /// Bits in front of an IPv4 prefix: the family and the mapping.
    pub const FRONT_BITS_V4: u32 = Self::FRONT_BITS_V6 + 96;
    /// Prefix length of a single address of either family.
    pub const HOST_BITS: u32 = Self::FRONT_BITS_V6 + 128;

    /// Builds the key data.
    #[inline(always)]
    pub const fn new(address: AddressKey) -> Self {
        Self {
            family: Self::family(address),
            address: address.octets(),
        }
    }

    /// Returns the first word: the IP version of the address, then zeros.
    #[inline(always)]
    pub const fn family(address: AddressKey) -> [u8; 4] {
        [if address.is_mapped() { 4 } else { 6 }, 0, 0, 0]
    }

    /// Returns the address of the prefix.
    pub const fn address(self) -> AddressKey {
        AddressKey::v6(self.address)
    }
}

/// Key data of the `SOURCE_RANGES` trie, behind the trie's own prefix length: the service id, then the prefix. A
/// service has clients of one family, so the prefixes of one id never mix families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SourcePrefix {
    service: [u8; 4],
    address: [u8; 16],
}

impl SourcePrefix {
    /// Bits in front of an IPv6 prefix: the service id.
    pub const FRONT_BITS_V6: u32 = 32;
    /// Bits in front of an IPv4 prefix: the service id and the mapping.
    pub const FRONT_BITS_V4: u32 = Self::FRONT_BITS_V6 + 96;
    /// Prefix length of a single address of either family.
    pub const HOST_BITS: u32 = Self::FRONT_BITS_V6 + 128;

    /// Builds the key data.
    #[inline(always)]
    pub const fn new(service: u32, address: AddressKey) -> Self {
        Self {
            service: service.to_ne_bytes(),
            address: address.octets(),
        }
    }

    /// Returns the service id.
    pub const fn service(self) -> u32 {
        u32::from_ne_bytes(self.service)
    }

    /// Returns the address of the prefix.
    pub const fn address(self) -> AddressKey {
        AddressKey::v6(self.address)
    }
}

/// A MAC, followed by two zero bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct EdgeMac(pub(super) u64);

impl EdgeMac {
    /// Builds the key.
    #[inline(always)]
    pub const fn new([a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self(u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]))
    }

    /// Returns the MAC.
    #[inline(always)]
    pub const fn mac(self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.0.to_ne_bytes();
        [a, b, c, d, e, f]
    }

    /// Tells whether it is a broadcast or multicast address.
    #[inline(always)]
    pub const fn is_group(self) -> bool {
        self.0.to_ne_bytes()[0] & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_addresses_are_mapped() {
        assert!(AddressKey::v4([0; 4]).is_mapped());
        assert!(AddressKey::v4([255; 4]).is_mapped());
        let mut address = AddressKey::v4([192, 0, 2, 1]).octets();
        for byte in 0..12 {
            address[byte] ^= 1;
            assert!(!AddressKey::v6(address).is_mapped(), "byte {byte}");
            address[byte] ^= 1;
        }
    }
}
