//! The service index: from address, port and protocol to a service.
//!
//! It is a hash table of our own. Only user space writes it, and programs read it without a helper call:
//!
//! ```text
//! key --hash--> two buckets, a cache line each:   | key key key key | entry entry entry entry |
//! ```
//!
//! A key is in one of its two buckets and stays in its place until it is removed. Another key gets the place only
//! after a grace period, so the entry that a reader finds beside a key belongs to that key. If both of its buckets are
//! full, a key goes to `SERVICE_OVERFLOW`, a hash map of the kernel. Programs look there only while it has entries
//! ([`CONFIG_OVERFLOW`](super::CONFIG_OVERFLOW)).
//!
//! The hash is keyed with a secret of the machine, so nobody can choose services that fill one bucket.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{
    MODE_IPIP, SERVICE_DROP_WHEN_EMPTY, SERVICE_PODS, Service, ServiceKeyV4, ServiceKeyV6,
    ServiceWord, plain_data,
};

plain_data! {
    Bucket: 64,
    IndexEntry: 8,
}

/// Number of keys in a bucket.
pub const WAYS: u32 = 4;

/// The highest bit of an IPv6 service's key; in an IPv4 service's key it is zero.
const V6: u64 = 1 << 63;

/// A key of the index: the key of an IPv4 service itself, or a keyed fingerprint of 63 bits for an IPv6 service. It
/// is never 0, which marks a free place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexKey(pub u64);

impl IndexKey {
    /// Returns the key of an IPv4 service.
    #[inline(always)]
    pub const fn v4(key: ServiceKeyV4) -> Self {
        Self(key.0)
    }

    /// Returns the key of an IPv6 service.
    #[inline(always)]
    pub const fn v6(key: &ServiceKeyV6, seed: u64) -> Self {
        let [high, low, rest] = key.0;
        Self(scatter(scatter(scatter(high ^ seed) ^ low) ^ rest) | V6)
    }

    /// Returns the indices of the key's two buckets in a table of `mask` + 1 buckets, a power of two.
    #[expect(clippy::cast_possible_truncation, reason = "takes either half")]
    #[inline(always)]
    pub const fn buckets(self, seed: u64, mask: u32) -> [u32; 2] {
        let mixed = scatter(self.0 ^ seed);
        [(mixed >> 32) as u32 & mask, mixed as u32 & mask]
    }
}

/// Mixes a word so that a change of any input bit changes each output bit in half of all cases (SplitMix64's
/// finalizer in Stafford's variant 13).
///
/// One multiplication is not enough: it leaves the top bit as it is. Somebody could then choose two keys whose bits
/// cancel each other out, whatever the seed.
#[inline(always)]
const fn scatter(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// One cache line of the index.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Bucket {
    /// [`IndexKey`]s; 0 marks a free place.
    pub keys: [u64; WAYS as usize],
    /// What the index says of the keys' services.
    pub entries: [IndexEntry; WAYS as usize],
}

/// A service's id and, if the service is plain, the place of its lookup table.
///
/// ```text
/// 63      62     33 32      28 27                     0
/// | plain | id (30) | log2 (5) | first slot in LUT (28) |
/// ```
///
/// A plain service has no rule that a packet on its way to another machine must be asked about. Programs find the
/// owner of such a packet without reading [`Service`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct IndexEntry(pub u64);

impl IndexEntry {
    const PLAIN: u64 = 1 << 63;
    const PLACE_BITS: u32 = ServiceWord::BASE_BITS + ServiceWord::LOG2_BITS;
    const PLACE: u64 = (1 << Self::PLACE_BITS) - 1;

    /// Makes the entry of a service about which it says the id alone, below 2^30.
    pub const fn of_id(id: u32) -> Self {
        debug_assert!(id < 1 << 30);
        Self((id as u64) << Self::PLACE_BITS)
    }

    /// Makes the entry of a service with an id below 2^30.
    pub const fn new(id: u32, service: &Service) -> Self {
        let is_plain = service.mode == MODE_IPIP
            && service.affinity == 0
            && service.flags & !(SERVICE_PODS | SERVICE_DROP_WHEN_EMPTY) == 0
            && service.word.base() != 0;
        let Self(id) = Self::of_id(id);
        Self(if is_plain {
            Self::PLAIN | id | service.word.0 & Self::PLACE
        } else {
            id
        })
    }

    /// Returns the service's id.
    #[inline(always)]
    pub const fn id(self) -> u32 {
        (self.0 >> Self::PLACE_BITS) as u32 & ((1 << 30) - 1)
    }

    /// Returns the place of a plain service's table, without the key's check.
    #[inline(always)]
    pub const fn plain(self) -> Option<ServiceWord> {
        if self.0 & Self::PLAIN != 0 {
            Some(ServiceWord(self.0 & Self::PLACE))
        } else {
            None
        }
    }
}

/// The index of a bucket, and a key's position in the bucket.
pub type Place = (u32, usize);

/// Finds a free place that is usable, in the emptier of a key's two buckets.
pub fn free_place(
    buckets: [(u32, &Bucket); 2],
    is_usable: impl Fn(&Place) -> bool,
) -> Option<Place> {
    let free = buckets.map(|(index, bucket)| {
        let ways = (0..WAYS as usize).filter(|way| bucket.keys[*way] == 0);
        ways.map(move |way| (index, way)).filter(&is_usable)
    });
    // If both are equally full, the first, because readers look there first.
    let emptier = free
        .into_iter()
        .rev()
        .max_by_key(|places| places.clone().count());
    emptier.and_then(|mut places| places.next())
}

/// Writes a key and its entry into an index that nobody reads yet; returns false if both of the key's buckets are full.
///
/// # Panics
///
/// Panics if the index has no bucket.
#[expect(
    clippy::cast_possible_truncation,
    reason = "maps have fewer than 2^32 entries"
)]
pub fn lay_out(index: &mut [Bucket], seed: u64, key: IndexKey, entry: IndexEntry) -> bool {
    let buckets = key.buckets(seed, index.len() as u32 - 1);
    let buckets = buckets.map(|bucket| (bucket, &index[bucket as usize]));
    let Some((bucket, way)) = free_place(buckets, |_| true) else {
        return false;
    };
    let bucket = &mut index[bucket as usize];
    (bucket.keys[way], bucket.entries[way]) = (key.0, entry);
    true
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{collections::BTreeSet, vec, vec::Vec};

    use super::*;
    use crate::abi::{MODE_L2DSR, SERVICE_NAT, SERVICE_NODE_PORT, SERVICE_SOURCE_RANGES};

    const SEED: u64 = 0x0123_4567_89ab_cdef;

    /// Addresses and ports that follow each other, as they do in a cluster.
    fn keys(count: u32) -> impl Iterator<Item = IndexKey> {
        (0..count).map(|number| {
            let [_, a, b, c] = (number / 4).to_be_bytes();
            let port = [80, 81, 443, 8080][number as usize % 4];
            if number % 3 == 0 {
                let mut address = [0xfd; 16];
                address[13..].copy_from_slice(&[a, b, c]);
                IndexKey::v6(&ServiceKeyV6::new(address, port_bytes(port), 6), SEED)
            } else {
                IndexKey::v4(ServiceKeyV4::new([10, a, b, c], port_bytes(port), 6))
            }
        })
    }

    const fn port_bytes(port: u16) -> [u8; 2] {
        port.to_be_bytes()
    }

    #[test]
    fn keys_are_distinct_and_never_free() {
        let all: BTreeSet<IndexKey> = keys(100_000).collect();
        assert_eq!(all.len(), 100_000);
        assert!(!all.contains(&IndexKey(0)));
    }

    #[test]
    fn no_two_ipv6_keys_have_one_fingerprint_whatever_the_seed() {
        // Top bits that undo each other where each word is multiplied once.
        let [one, other] = [[0, 0, 0, 1], [0x80, 0x80, 0, 0x81]].map(|[a, b, _, c]| {
            let address = [0x20, 1, 0xd, 0xb8, 0, 0, 0, a, 0, 0, 0, b, 0, 0, 0, c];
            ServiceKeyV6::new(address, port_bytes(443), 6)
        });
        for step in 0..1000 {
            let seed = SEED.wrapping_mul(2 * step + 1);
            assert_ne!(IndexKey::v6(&one, seed), IndexKey::v6(&other, seed));
        }
    }

    #[test]
    fn few_keys_overflow_a_table_that_is_half_full() {
        const BUCKETS: u32 = 8192;
        let mut table = vec![Bucket::default(); BUCKETS as usize];
        let mut overflow = Vec::new();
        for key in keys(BUCKETS * 2) {
            if !lay_out(&mut table, SEED, key, IndexEntry::of_id(1)) {
                overflow.push(key);
            }
        }
        assert!(overflow.len() < 4, "{}", overflow.len());
    }

    #[test]
    fn entry_of_a_plain_service_has_the_place_of_its_table() {
        let word = ServiceWord::new((1 << 28) - 1, 31, 0x7fff_ffff);
        let plain = Service {
            word,
            flags: SERVICE_PODS | SERVICE_DROP_WHEN_EMPTY,
            ..Service::default()
        };
        let entry = IndexEntry::new((1 << 30) - 1, &plain);
        assert_eq!(entry.id(), (1 << 30) - 1);
        let place = entry.plain().unwrap();
        assert_eq!((place.base(), place.log2_length()), ((1 << 28) - 1, 31));
    }

    #[test]
    fn entry_of_a_service_with_rules_has_its_id_alone() {
        let word = ServiceWord::new(1, 4, 7);
        let plain = Service {
            word,
            ..Service::default()
        };
        assert!(IndexEntry::new(5, &plain).plain().is_some());
        for service in [
            Service {
                mode: MODE_L2DSR,
                ..plain
            },
            Service {
                affinity: 1,
                ..plain
            },
            Service {
                flags: SERVICE_NAT,
                ..plain
            },
            Service {
                flags: SERVICE_NODE_PORT,
                ..plain
            },
            Service {
                flags: SERVICE_SOURCE_RANGES,
                ..plain
            },
            Service {
                word: ServiceWord::default(),
                ..plain
            },
        ] {
            let entry = IndexEntry::new(5, &service);
            assert_eq!((entry.id(), entry.plain()), (5, None), "{service:?}");
        }
    }

    #[test]
    fn another_seed_chooses_other_buckets() {
        let same =
            keys(10_000).filter(|key| key.buckets(SEED, 1023) == key.buckets(SEED + 1, 1023));
        assert!(same.count() < 10);
    }
}
