//! Map keys, values and names: the contract between kernel and user space.
//!
//! Every type derives zerocopy's `IntoBytes`, which does not compile where
//! there is padding; sizes are asserted beside the types. Addresses, ports and
//! MACs are byte arrays in network order, all other integers native.
//!
//! What one change may do to a live table, and in which order:
//!
//! * `BACKENDS` and `NEXTHOPS` entries are written before anything names them
//!   and then left alone; only [`Backend::next_hop`] and [`Backend::flags`] are
//!   replaced, each by one store.
//! * `LUT` slots are replaced one by one with compare-exchange, a service's
//!   whole run by one store of its [`ServiceWord`].
//! * Ids and runs that nothing names any more are reused only after an RCU
//!   grace period, so a packet in flight never finds a stranger behind them.
//! * Hash elements are recycled by the kernel at once, without a grace period.
//!   Hence the key check in the [`ServiceWord`]: see [`crate::decide`].
//!
//! Changing a layout means raising [`VERSION`], which names the pin directory.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the layouts below; part of the path under which maps are pinned.
pub const VERSION: u32 = 1;

/// Name of the XDP program in the object.
pub const XDP_PROGRAM: &str = "guideway";

/// Names of the maps in the object, and of their pins.
pub mod map {
    /// Array of one [`super::Config`].
    pub const CONFIG: &str = "CONFIG";
    /// Hash from [`super::AddressKey`] to `u32` flags ([`super::ADDRESS_VIP`], [`super::ADDRESS_LOCAL`]).
    pub const VIPS: &str = "VIPS";
    /// Hash from [`super::ServiceKeyV4`] to a service id.
    pub const SERVICES_V4: &str = "SERVICES_V4";
    /// Hash from [`super::ServiceKeyV6`] to a service id.
    pub const SERVICES_V6: &str = "SERVICES_V6";
    /// Mmapable array from service id to [`super::Service`].
    pub const SERVICE: &str = "SERVICE";
    /// Mmapable array of [`super::Slot`]: the arena of all lookup tables.
    pub const LUT: &str = "LUT";
    /// Mmapable array from backend id to [`super::Backend`].
    pub const BACKENDS: &str = "BACKENDS";
    /// Mmapable array from next-hop id to [`super::NextHop`].
    pub const NEXTHOPS: &str = "NEXTHOPS";
    /// LPM trie over [`super::EdgePrefix`] to 1.
    pub const TRUSTED_EDGES: &str = "TRUSTED_EDGES";
    /// Per-CPU array of `u64` packets by [`crate::reason`] index.
    pub const REASONS: &str = "REASONS";
    /// Per-CPU array of [`super::Traffic`] by service id.
    pub const SERVICE_TRAFFIC: &str = "SERVICE_TRAFFIC";
    /// Per-CPU array of [`super::Traffic`] by backend id.
    pub const BACKEND_TRAFFIC: &str = "BACKEND_TRAFFIC";
}

/// Sizes that the object declares; the loader's options override them.
pub mod size {
    /// Services, over both families.
    pub const SERVICES: usize = 16_384;
    /// Backends; id 0 is never used.
    pub const BACKENDS: usize = 65_536;
    /// Next hops; id 0 is never used.
    pub const NEXT_HOPS: usize = 16_384;
    /// Slots of the LUT arena: 128 MiB of 8 bytes each; slot 0 is never used.
    pub const LUT_SLOTS: usize = 16 << 20;
    /// Addresses in `VIPS`.
    pub const VIPS: usize = 65_536;
    /// Prefixes in `TRUSTED_EDGES`.
    pub const TRUSTED_EDGES: usize = 4_096;
}

/// Implements aya's `Pod` for types that are proved free of padding.
macro_rules! plain_data {
    ($($name:ident: $size:literal,)*) => {$(
        const _: () = assert!(size_of::<$name>() == $size);

        // SAFETY: the type is `repr(C)` and derives `FromBytes` and
        // `IntoBytes`, so every bit pattern is valid and none is padding.
        #[cfg(not(target_arch = "bpf"))]
        unsafe impl aya::Pod for $name {}
    )*};
}

pub(crate) use plain_data;

plain_data! {
    Config: 40,
    AddressKey: 16,
    ServiceKeyV4: 8,
    ServiceKeyV6: 24,
    EdgePrefix: 20,
    Service: 16,
    ServiceWord: 8,
    Slot: 8,
    Backend: 32,
    NextHop: 64,
    Traffic: 16,
}

/// Machine-wide settings.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Config {
    /// Seed of the flow hash; equal on all edges, or flows move when routers re-spread them.
    pub hash_seed: u64,
    /// Outer IPv4 source where the next hop has none, in the first four bytes; all zero for none.
    pub source_v4: [u8; 16],
    /// Outer IPv6 source where the next hop has none; all zero for none.
    pub source_v6: [u8; 16],
}

/// `VIPS` flag: a virtual address, its fragments are ours.
pub const ADDRESS_VIP: u32 = 1;
/// `VIPS` flag: an address of this machine at which IP-in-IP is decapsulated.
pub const ADDRESS_LOCAL: u32 = 2;

/// An IPv6 address, or an IPv4 one as `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2).
///
/// The bytes lie in network order. This key and those of the services are kept
/// in whole words because they are built on the BPF stack: of single fields LLVM
/// merges stores across word boundaries, which the verifier refuses there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AddressKey([u64; 2]);

impl AddressKey {
    /// Maps an IPv4 address into the IPv6 space.
    #[inline(always)]
    pub const fn v4(a: [u8; 4]) -> Self {
        Self::v6([
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3],
        ])
    }

    /// Takes an IPv6 address as it is.
    #[inline(always)]
    pub const fn v6(address: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address;
        Self([
            u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
        ])
    }

    /// Tells whether this is an IPv4 address, or an IPv6 one in its guise.
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
    pub const fn octets(self) -> [u8; 16] {
        let [a, b, c, d, e, f, g, h] = self.0[0].to_ne_bytes();
        let [i, j, k, l, m, n, o, p] = self.0[1].to_ne_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }
}

/// Key data of the `TRUSTED_EDGES` trie, behind the trie's own prefix length.
///
/// The family is part of every prefix: the addresses are [`AddressKey`]s, and
/// an IPv6 prefix as short as `::/0` must not cover the mapped IPv4 ones. As a
/// whole word it also keeps the address at an offset of eight in the trie's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EdgePrefix {
    family: [u8; 4],
    address: [u8; 16],
}

impl EdgePrefix {
    /// Bits in front of an IPv6 prefix.
    pub const FRONT_BITS_V6: u32 = 32;
    /// Bits in front of an IPv4 prefix: the address is mapped.
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

/// Address (4 bytes), port (2), protocol (1) of an IPv4 service, in wire order, and a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ServiceKeyV4(u64);

impl ServiceKeyV4 {
    /// Builds the key from wire bytes and the IP protocol number.
    #[inline(always)]
    pub const fn new(address: [u8; 4], port: [u8; 2], protocol: u8) -> Self {
        let [a, b, c, d] = address;
        let [e, f] = port;
        Self(u64::from_ne_bytes([a, b, c, d, e, f, protocol, 0]))
    }

    /// Returns address, port (host order) and protocol.
    pub const fn parts(self) -> ([u8; 4], u16, u8) {
        let [a, b, c, d, e, f, protocol, _] = self.0.to_ne_bytes();
        ([a, b, c, d], u16::from_be_bytes([e, f]), protocol)
    }

    /// Returns the check that the service's word must carry.
    #[inline(always)]
    pub const fn check(self) -> u32 {
        fold_check(self.0)
    }
}

/// Address (16 bytes), port (2), protocol (1) of an IPv6 service, in wire order, and zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ServiceKeyV6([u64; 3]);

impl ServiceKeyV6 {
    /// Builds the key from wire bytes and the IP protocol number.
    #[inline(always)]
    pub const fn new(address: [u8; 16], port: [u8; 2], protocol: u8) -> Self {
        let [high, low] = AddressKey::v6(address).words();
        Self([
            high,
            low,
            u64::from_ne_bytes([port[0], port[1], protocol, 0, 0, 0, 0, 0]),
        ])
    }

    /// Returns address, port (host order) and protocol.
    pub const fn parts(self) -> ([u8; 16], u16, u8) {
        let [high, low, rest] = self.0;
        let [a, b, protocol, ..] = rest.to_ne_bytes();
        (
            AddressKey([high, low]).octets(),
            u16::from_be_bytes([a, b]),
            protocol,
        )
    }

    /// Returns the check that the service's word must carry.
    #[inline(always)]
    pub const fn check(self) -> u32 {
        let [high, low, rest] = self.0;
        let mixed = (high.wrapping_mul(CHECK_MULTIPLIER) ^ low).wrapping_mul(CHECK_MULTIPLIER);
        fold_check((mixed ^ (mixed >> 32)) ^ rest)
    }
}

/// 2^64 divided by the golden ratio, made odd: multiplicative hashing (Knuth, TAOCP 6.4).
const CHECK_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline(always)]
const fn fold_check(word: u64) -> u32 {
    (word.wrapping_mul(CHECK_MULTIPLIER) >> (64 - ServiceWord::CHECK_BITS)) as u32
}

/// What `SERVICE` holds for one service id; all zero where the id is free.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Service {
    /// Where the lookup table lies; replaced by one store.
    pub word: ServiceWord,
    /// [`MODE_IPIP`] or [`MODE_L2DSR`].
    pub mode: u8,
    /// Always zero.
    pub reserved: [u8; 7],
}

/// [`Service::mode`]: an outer IPv4 or IPv6 header is put in front.
pub const MODE_IPIP: u8 = 0;
/// [`Service::mode`]: only the MAC addresses are rewritten.
pub const MODE_L2DSR: u8 = 1;

/// A service's lookup table and key check in one word.
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
    /// Width of the first-slot field: the arena's largest size is 2^28 slots.
    pub const BASE_BITS: u32 = 28;
    const LOG2_BITS: u32 = 5;
    /// Width of the key check.
    pub const CHECK_BITS: u32 = 64 - Self::BASE_BITS - Self::LOG2_BITS;

    /// Packs the fields; `base` below 2^28, `log2_length` below 32.
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

    /// Returns the table size's logarithm.
    #[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
    #[inline(always)]
    pub const fn log2_length(self) -> u8 {
        (self.0 >> Self::BASE_BITS) as u8 & ((1 << Self::LOG2_BITS) - 1)
    }

    /// Returns the check of the key that this word belongs to.
    #[inline(always)]
    pub const fn check(self) -> u32 {
        (self.0 >> (64 - Self::CHECK_BITS)) as u32
    }
}

/// One LUT entry: `current` in the low half, a word about past owners in the high half.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Slot(pub u64);

impl Slot {
    /// Makes a slot without a past.
    pub const fn quiet(current: u32) -> Self {
        Self(current as u64)
    }

    /// Returns the backend id that owns the slot; 0 for none.
    #[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
    #[inline(always)]
    pub const fn current(self) -> u32 {
        self.0 as u32
    }

    /// Returns the same slot with another owner and its past kept.
    pub const fn with_current(self, current: u32) -> Self {
        Self(self.0 >> 32 << 32 | current as u64)
    }
}

/// A machine that serves; id = index in `BACKENDS`, 0 is never used.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Backend {
    /// Address of the backend's node: the outer destination. IPv4 in the first four bytes.
    pub address: [u8; 16],
    /// Index in `NEXTHOPS`; 0 asks the kernel's FIB for each packet.
    pub next_hop: u32,
    /// [`BACKEND_V4`] or [`BACKEND_V6`], and [`BACKEND_LOCAL`].
    pub flags: u32,
    /// Always zero: no entry lies across two cache lines.
    pub reserved: [u8; 8],
}

/// [`Backend::flags`]: the node address is IPv4.
pub const BACKEND_V4: u32 = 1;
/// [`Backend::flags`]: the node address is IPv6.
pub const BACKEND_V6: u32 = 2;
/// [`Backend::flags`]: the node is this machine.
pub const BACKEND_LOCAL: u32 = 4;

impl Backend {
    /// Returns the first four bytes of the node address.
    #[inline(always)]
    pub const fn address_v4(&self) -> [u8; 4] {
        let [a, b, c, d, ..] = self.address;
        [a, b, c, d]
    }
}

/// How frames leave towards a backend; immutable once a backend names it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NextHop {
    /// Device to transmit on; 0 where the id is free.
    pub ifindex: u32,
    /// Largest IP packet the path takes, outer header included.
    pub mtu: u32,
    /// Outer source address, of the backend's family; all zero to use [`Config`]'s.
    pub source: [u8; 16],
    /// Destination MAC, then source MAC: the first 12 bytes of the frame.
    pub macs: [u8; 12],
    /// 802.1Q tag control information to send with (12 bits of VLAN id); zero for untagged.
    pub vlan: [u8; 2],
    /// [`HOP_GATEWAY`].
    pub flags: u16,
    /// Always zero: one cache line per entry.
    pub reserved: [u8; 24],
}

/// [`NextHop::flags`]: the MAC is a router's, not the backend's.
pub const HOP_GATEWAY: u16 = 1;

/// A counter pair.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Traffic {
    /// Packets forwarded.
    pub packets: u64,
    /// Bytes of their IP packets as they came in.
    pub bytes: u64,
}

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

    #[test]
    fn new_owner_keeps_the_slots_past() {
        let slot = Slot(7 << 32 | 3);
        assert_eq!(slot.with_current(9), Slot(7 << 32 | 9));
        assert_eq!(slot.with_current(9).current(), 9);
    }
}
