//! Services and the slots of their lookup tables.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::check::{CHECK_MULTIPLIER, fold_check};
use super::{AddressKey, plain_data};
use crate::words::{join_u16, join_u32};

plain_data! {
    ServiceKeyV4: 8,
    ServiceKeyV6: 24,
    Service: 64,
    ServiceWord: 8,
    Slot: 4,
    SlotPair: 8,
}

/// Key of an IPv4 service: address (4 bytes), port (2), protocol (1) in wire order, and a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ServiceKeyV4(pub(super) u64);

impl ServiceKeyV4 {
    /// Builds the key from wire bytes and the IP protocol number.
    #[inline(always)]
    pub const fn new(address: [u8; 4], port: [u8; 2], protocol: u8) -> Self {
        let rest = join_u16(port, [protocol, 0]);
        Self(join_u32(u32::from_ne_bytes(address), rest))
    }

    /// Returns the check that the service's word must carry.
    #[inline(always)]
    pub const fn check(self) -> u32 {
        fold_check(self.0)
    }
}

/// Key of an IPv6 service: address (16 bytes), port (2), protocol (1) in wire order, and zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ServiceKeyV6(pub(super) [u64; 3]);

impl ServiceKeyV6 {
    /// Builds the key from wire bytes and the IP protocol number.
    #[inline(always)]
    pub const fn new(address: [u8; 16], port: [u8; 2], protocol: u8) -> Self {
        let [high, low] = AddressKey::v6(address).words();
        Self([high, low, join_u32(join_u16(port, [protocol, 0]), 0)])
    }

    /// Returns the check that the service's word must carry.
    #[inline(always)]
    pub const fn check(self) -> u32 {
        let [high, low, rest] = self.0;
        let mixed = (high.wrapping_mul(CHECK_MULTIPLIER) ^ low).wrapping_mul(CHECK_MULTIPLIER);
        fold_check((mixed ^ (mixed >> 32)) ^ rest)
    }
}

/// Value of `SERVICE`: one service; all zero if the id is free.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Service {
    /// Place of the lookup table in `LUT`; replaced by one store.
    pub word: ServiceWord,
    /// Place of a second table, of this machine's pods alone; base 0 if there is none.
    pub local: ServiceWord,
    /// [`MODE_IPIP`] or [`MODE_L2DSR`]; meaningless if [`SERVICE_NAT`] is set.
    pub mode: u32,
    /// [`SERVICE_PODS`] and the other flags.
    pub flags: u32,
    /// Seed for hashing the client's address alone (`sessionAffinity: ClientIP`), the same for all addresses of a
    /// ServicePort; 0 hashes the five-tuple.
    pub affinity: u64,
    /// Address of the service, of either family.
    pub address: AddressKey,
    /// Port of the service, in wire order.
    pub port: [u8; 2],
    /// IP protocol number of the service.
    pub protocol: u8,
    /// Always zero.
    pub unused: u8,
    /// How long a client keeps its backend after its last new connection, in seconds; of services with
    /// [`Self::affinity`].
    pub affinity_seconds: u32,
    /// Always zero: one cache line per entry.
    pub reserved: [u8; 8],
}

/// [`Service::flags`]: the backends are pods behind Guideway nodes. Without it, a decapsulated packet goes to the
/// stack unchanged.
pub const SERVICE_PODS: u32 = 1;
/// [`Service::flags`]: only clients in `SOURCE_RANGES` are served.
pub const SERVICE_SOURCE_RANGES: u32 = 2;
/// [`Service::flags`]: without a backend here, packets are dropped and not rejected, because other machines have
/// backends.
pub const SERVICE_DROP_WHEN_EMPTY: u32 = 4;
/// [`Service::flags`]: a NodePort; the kernel's own flows use its address too.
pub const SERVICE_NODE_PORT: u32 = 8;
/// [`Service::flags`]: all its backends are reached by NAT.
pub const SERVICE_NAT: u32 = 16;

/// [`Service::mode`]: packets get an outer IPv4 or IPv6 header.
pub const MODE_IPIP: u32 = 0;
/// [`Service::mode`]: only the MAC addresses are rewritten.
pub const MODE_L2DSR: u32 = 1;

/// Place of a service's lookup table, and the key check, in one word.
///
/// ```text
/// 63                    33 32      28 27                     0
/// | check of the key (31) | log2 (5) | first slot in LUT (28) |
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct ServiceWord(pub u64);

impl ServiceWord {
    /// Width of the first-slot field in bits: the arena has at most 2^28 slots.
    pub const BASE_BITS: u32 = 28;
    pub(super) const LOG2_BITS: u32 = 5;
    /// Width of the key check in bits.
    pub const CHECK_BITS: u32 = 64 - Self::BASE_BITS - Self::LOG2_BITS;

    /// Packs the fields; `base` must be below 2^28, `log2_length` below 32.
    pub const fn new(base: u32, log2_length: u8, check: u32) -> Self {
        debug_assert!(base < 1 << Self::BASE_BITS && log2_length < 1 << Self::LOG2_BITS);
        Self(
            base as u64
                | (log2_length as u64) << Self::BASE_BITS
                | (check as u64) << (64 - Self::CHECK_BITS),
        )
    }

    /// Returns the first slot of the table.
    #[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
    #[inline(always)]
    pub const fn base(self) -> u32 {
        self.0 as u32 & ((1 << Self::BASE_BITS) - 1)
    }

    /// Returns the base-2 logarithm of the table size.
    #[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
    #[inline(always)]
    pub const fn log2_length(self) -> u8 {
        (self.0 >> Self::BASE_BITS) as u8 & ((1 << Self::LOG2_BITS) - 1)
    }

    /// Returns the check of the key to which this word belongs.
    #[inline(always)]
    pub const fn check(self) -> u32 {
        (self.0 >> (64 - Self::CHECK_BITS)) as u32
    }
}

/// One slot of a lookup table: the id of the backend that owns it, 0 for none; and whether the slot has had other
/// owners, whose list is in `PASTS` at the same index.
///
/// ```text
/// 31     30             0
/// | past | backend's id (31) |
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Slot(pub u32);

impl Slot {
    const PAST: u32 = 1 << 31;

    /// Makes a slot of an owner with an id below 2^31.
    #[inline(always)]
    pub const fn new(owner: u32, has_past: bool) -> Self {
        Self(if has_past { owner | Self::PAST } else { owner })
    }

    /// Returns the id of the backend that owns it; 0 for none.
    #[inline(always)]
    pub const fn owner(self) -> u32 {
        self.0 & !Self::PAST
    }

    /// Tells whether the slot has had other owners.
    #[inline(always)]
    pub const fn has_past(self) -> bool {
        self.0 & Self::PAST != 0
    }
}

/// Two neighbouring slots of the arena, the even one first: the kernel gives each array entry at least eight bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct SlotPair(pub [Slot; 2]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_word_keeps_its_fields_apart() {
        let word = ServiceWord::new((1 << 28) - 1, 0, 0);
        assert_eq!(
            (word.base(), word.log2_length(), word.check()),
            ((1 << 28) - 1, 0, 0)
        );
        let word = ServiceWord::new(0, 31, 0);
        assert_eq!((word.base(), word.log2_length(), word.check()), (0, 31, 0));
        let word = ServiceWord::new(0, 0, 0x7fff_ffff);
        assert_eq!(
            (word.base(), word.log2_length(), word.check()),
            (0, 0, 0x7fff_ffff)
        );
    }

    #[test]
    fn check_depends_on_every_part_of_the_key() {
        let key = ServiceKeyV4::new([10, 0, 0, 1], [0, 80], 6);
        for other in [
            ServiceKeyV4::new([10, 0, 0, 2], [0, 80], 6),
            ServiceKeyV4::new([11, 0, 0, 1], [0, 80], 6),
            ServiceKeyV4::new([10, 0, 0, 1], [0, 81], 6),
            ServiceKeyV4::new([10, 0, 0, 1], [1, 80], 6),
            ServiceKeyV4::new([10, 0, 0, 1], [0, 80], 17),
        ] {
            assert_ne!(key.check(), other.check(), "{other:?}");
        }
        let mut address = [0xfd; 16];
        let key = ServiceKeyV6::new(address, [0, 80], 6);
        assert_ne!(key.check(), ServiceKeyV6::new(address, [0, 80], 17).check());
        assert_ne!(key.check(), ServiceKeyV6::new(address, [0, 81], 6).check());
        for byte in 0..16 {
            address[byte] ^= 1;
            assert_ne!(
                key.check(),
                ServiceKeyV6::new(address, [0, 80], 6).check(),
                "byte {byte}"
            );
            address[byte] ^= 1;
        }
    }
}
