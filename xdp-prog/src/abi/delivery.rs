//! Notes of deliveries: how an edge's packet was delivered, for the packets of its flow in the next second.
//!
//! A note does not hold what it is for. It holds a keyed fingerprint of that, computed by Multilinear-HM over words of
//! 32 bits with random keys of 64 bits (Lemire and Kaser, "Strongly universal string hashing is fast", The Computer
//! Journal 57(11), 2014, section 3). IPv6 addresses are first folded to 64 bits by the same function (Carter and
//! Wegman).
//!
//! An attacker can choose packets but does not know the keys. Whatever packets he chooses, two different ones have the
//! same fingerprint with a probability of at most 3 * 2^-33. If his packet meets the fingerprint of a note in its line,
//! it is delivered to the pod of that flow: its service is not looked up, and its outer source need not be trusted. The
//! pod gets one packet with the attacker's inner source and ports, as any client of that service could have sent it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{RENEWAL_NS, Tuple, check::CHECK_MULTIPLIER, plain_data, size};
use crate::words::{join_u32, split_u64};

plain_data! {
    DeliveryNote: 16,
    DeliveryNotes: 64,
    DeliveryKeys: 120,
}

/// The machine's secret by which notes of deliveries are found.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DeliveryKeys {
    /// For everything but IPv6 addresses.
    narrow: [u64; 7],
    /// For IPv6 addresses: one for each of eight words.
    wide: [u64; 8],
}

impl DeliveryKeys {
    /// Makes keys of numbers that nobody can guess, which `random` returns for different arguments.
    pub fn new(random: impl Fn(usize) -> u64) -> Self {
        let narrow = core::array::from_fn(&random);
        let wide = core::array::from_fn(|index| random(narrow.len() + index));
        Self { narrow, wide }
    }

    /// Tells whether they were made by [`Self::new`].
    pub fn are_drawn(&self) -> bool {
        *self != Self::default()
    }

    /// Returns source and destination of an IPv4 header, both in wire order, as [`Self::flow`] and [`Self::key`] take
    /// them.
    #[inline(always)]
    pub const fn addresses_v4(source: [u8; 4], destination: [u8; 4]) -> u64 {
        join_u32(u32::from_ne_bytes(source), u32::from_ne_bytes(destination))
    }

    /// Folds source and destination of an IPv6 header, given as words as they lie in memory.
    #[inline(always)]
    pub const fn addresses_v6(&self, source: [u64; 2], destination: [u64; 2]) -> u64 {
        let [a, b, c, d, e, f, g, h] = self.wide;
        product(source[0], [a, b])
            .wrapping_add(product(source[1], [c, d]))
            .wrapping_add(product(destination[0], [e, f]))
            .wrapping_add(product(destination[1], [g, h]))
    }

    /// Hashes a client's flow: the addresses of its packets, and both ports in wire order, the source's first.
    #[inline(always)]
    pub const fn flow(&self, addresses: u64, ports: u32) -> NoteLineHash {
        let [a, b, c, ..] = self.narrow;
        NoteLineHash(product(addresses, [a, b]).wrapping_add(c.wrapping_mul(ports as u64)))
    }

    /// Hashes a client's flow.
    #[inline(always)]
    pub const fn flow_of(&self, forward: &Tuple) -> NoteLineHash {
        let (source, destination) = (forward.source(), forward.destination());
        let addresses = if source.is_mapped() {
            Self::addresses_v4(source.last_octets(), destination.last_octets())
        } else {
            self.addresses_v6(source.words(), destination.words())
        };
        self.flow(addresses, forward.ports())
    }

    /// Returns what finds the note of a flow's packets that come in an outer header with these addresses; `kind`, below
    /// 2^32, is what else they have in common, and `time` when on the monotonic clock, ns.
    #[inline(always)]
    pub const fn key(
        &self,
        flow: NoteLineHash,
        outer_addresses: u64,
        kind: u64,
        generation: u32,
        time: u64,
    ) -> DeliveryKey {
        let [_, _, _, a, b, c, d] = self.narrow;
        // Nobody chooses generation and time: here it is enough that no two are the same.
        let period = (time >> DeliveryNote::PERIOD_SHIFT) << 32 | generation as u64;
        let fingerprint = flow
            .0
            .wrapping_add(product(outer_addresses, [a, b]))
            .wrapping_add(c.wrapping_mul(kind))
            .wrapping_add((d | 1).wrapping_mul(period));
        DeliveryKey {
            fingerprint,
            line: flow.line(),
        }
    }
}

/// Multiplies the halves of a word, to each of which a key is added.
#[inline(always)]
const fn product(word: u64, keys: [u64; 2]) -> u64 {
    let [a, b] = split_u64(word);
    let a = keys[0].wrapping_add(a as u64);
    a.wrapping_mul(keys[1].wrapping_add(b as u64))
}

/// Keyed hash of a client's flow, of which the topmost bits are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoteLineHash(u64);

impl NoteLineHash {
    /// Returns the line of `DELIVERY_NOTES` in which the notes of the flow lie.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "there are fewer lines")]
    pub const fn line(self) -> u32 {
        const { assert!(size::DELIVERY_NOTES.is_power_of_two()) };
        (self.0 >> (64 - size::DELIVERY_NOTES.trailing_zeros())) as u32
    }
}

/// What finds a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryKey {
    /// Keyed hash of all that the packets have in common.
    pub fingerprint: u64,
    /// Index in `DELIVERY_NOTES`.
    pub line: u32,
}

impl DeliveryKey {
    /// Finds nothing: there is no such line.
    pub const NONE: Self = Self {
        fingerprint: 0,
        line: u32::MAX,
    };
}

/// The pod that packets of one flow are delivered to, for a second.
///
/// ```text
/// check    the fingerprint XOR the other word times an odd constant
/// rest     63     40 39     20 19                   0
///          | backend | service | time, in 2^23 ns    |
/// ```
///
/// All CPUs write without a lock. Words of two notes make none: of no fingerprint, the same check fits two of the other
/// words, and another flow's fits by chance alone (2^-64).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DeliveryNote {
    check: u64,
    rest: u64,
}

impl DeliveryNote {
    const SERVICE_BITS: u32 = 20;
    const BACKEND_BITS: u32 = 24;
    const TIME_BITS: u32 = 64 - Self::SERVICE_BITS - Self::BACKEND_BITS;
    const TIME_SHIFT: u32 = 23;
    /// Within a period of so many bits, ns, no two times are the same.
    const PERIOD_SHIFT: u32 = Self::TIME_SHIFT + Self::TIME_BITS;
    /// Ends no sooner than the flow's entry may be renewed, or the table would be asked in vain.
    const LIFETIME: u64 = (RENEWAL_NS >> Self::TIME_SHIFT) + 1;

    /// Makes the note of a flow that was seen at a time on the monotonic clock, ns; none where ids are too large for
    /// one.
    #[inline(always)]
    pub const fn new(key: DeliveryKey, service: u32, backend: u32, seen: u64) -> Option<Self> {
        if service >> Self::SERVICE_BITS != 0 || backend >> Self::BACKEND_BITS != 0 {
            return None;
        }
        let ids = (backend as u64) << Self::SERVICE_BITS | service as u64;
        let rest = ids << Self::TIME_BITS | Self::time(seen);
        Some(Self {
            check: key.fingerprint ^ rest.wrapping_mul(CHECK_MULTIPLIER),
            rest,
        })
    }

    /// Tells whether this is the note that a key finds.
    #[inline(always)]
    pub const fn is_of(&self, key: DeliveryKey) -> bool {
        self.check ^ self.rest.wrapping_mul(CHECK_MULTIPLIER) == key.fingerprint
    }

    /// Tells whether it counts no more, so that another flow may take the place.
    #[inline(always)]
    pub const fn is_over(&self, now: u64) -> bool {
        // The clock of another CPU may be a step ahead.
        let age = Self::time(now).wrapping_sub(self.rest).wrapping_add(1);
        age & ((1 << Self::TIME_BITS) - 1) > Self::LIFETIME
    }

    #[inline(always)]
    const fn time(time: u64) -> u64 {
        time >> Self::TIME_SHIFT & ((1 << Self::TIME_BITS) - 1)
    }

    /// Returns the service's id.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "20 bits")]
    pub const fn service(&self) -> u32 {
        (self.rest >> Self::TIME_BITS) as u32 & ((1 << Self::SERVICE_BITS) - 1)
    }

    /// Returns the backend's id.
    #[inline(always)]
    pub const fn backend(&self) -> u32 {
        (self.rest >> (Self::TIME_BITS + Self::SERVICE_BITS)) as u32
    }
}

/// Notes of one cache line.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DeliveryNotes(pub [DeliveryNote; 4]);

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{collections::BTreeMap, collections::BTreeSet, vec::Vec};

    use super::*;
    use crate::abi::{AddressKey, check::mix};

    const NOW: u64 = 77 << 32;

    fn keys() -> DeliveryKeys {
        DeliveryKeys::new(|index| mix(mix(index as u64 + 1)))
    }

    fn key_at(generation: u32, time: u64) -> DeliveryKey {
        let flow = keys().flow(1, 2);
        keys().key(flow, 3, 4, generation, time)
    }

    #[test]
    fn note_counts_for_its_key_for_a_second_and_a_tick() {
        let key = key_at(7, NOW);
        let note = DeliveryNote::new(key, 9, 11, NOW).unwrap();
        assert!(note.is_of(key));
        assert_eq!((note.service(), note.backend()), (9, 11));
        assert!(!note.is_over(NOW) && !note.is_over(NOW + RENEWAL_NS - 1));
        assert!(note.is_over(NOW + RENEWAL_NS + (2 << DeliveryNote::TIME_SHIFT)));
        assert!(!note.is_over(NOW - 1));
        assert!(DeliveryNote::default().is_over(NOW));
        // As it stands, it would count again later.
        let again = NOW + (1 << DeliveryNote::PERIOD_SHIFT);
        assert!(!note.is_over(again) && !note.is_of(key_at(7, again)));
        assert!(!note.is_of(key_at(8, NOW)));
    }

    #[test]
    fn ids_that_a_note_has_no_room_for_are_not_noted() {
        let key = key_at(7, NOW);
        let largest = DeliveryNote::new(key, (1 << 20) - 1, (1 << 24) - 1, NOW).unwrap();
        assert_eq!(largest.service(), (1 << 20) - 1);
        assert_eq!(largest.backend(), (1 << 24) - 1);
        assert_eq!(DeliveryNote::new(key, 1 << 20, 1, NOW), None);
        assert_eq!(DeliveryNote::new(key, 1, 1 << 24, NOW), None);
    }

    #[test]
    fn note_that_two_have_written_together_is_of_neither() {
        let (key, other) = (key_at(7, NOW), key_at(8, NOW));
        let ours = DeliveryNote::new(key, 9, 11, NOW).unwrap();
        for theirs in [
            DeliveryNote::new(key, 9, 12, NOW).unwrap(),
            DeliveryNote::new(other, 9, 12, NOW).unwrap(),
            DeliveryNote::new(other, 9, 11, NOW + RENEWAL_NS).unwrap(),
        ] {
            for (check, rest) in [(ours.check, theirs.rest), (theirs.check, ours.rest)] {
                let torn = DeliveryNote { check, rest };
                assert!(!torn.is_of(key) && !torn.is_of(other));
            }
        }
    }

    #[test]
    fn fingerprint_depends_on_every_part() {
        let keys = keys();
        let (source, destination) = ([1, 2], [3, 4]);
        let v6 = |source, destination| keys.addresses_v6(source, destination);
        let mut folded = BTreeSet::from([v6(source, destination)]);
        for bit in 0..128 {
            let mut flipped = source;
            flipped[bit / 64] ^= 1 << (bit % 64);
            assert!(folded.insert(v6(flipped, destination)));
            let mut flipped = destination;
            flipped[bit / 64] ^= 1 << (bit % 64);
            assert!(folded.insert(v6(source, flipped)));
        }
        let of = |addresses, ports, outer, kind, generation| {
            let flow = keys.flow(addresses, ports);
            keys.key(flow, outer, kind, generation, NOW).fingerprint
        };
        let mut seen = BTreeSet::from([of(0, 0, 0, 0, 0)]);
        for bit in 0..64 {
            assert!(seen.insert(of(1 << bit, 0, 0, 0, 0)));
            assert!(seen.insert(of(0, 0, 1 << bit, 0, 0)));
        }
        for bit in 0..32 {
            assert!(seen.insert(of(0, 1 << bit, 0, 0, 0)));
            assert!(seen.insert(of(0, 0, 0, 1 << bit, 0)));
            assert!(seen.insert(of(0, 0, 0, 0, 1 << bit)));
        }
    }

    #[test]
    fn flow_is_hashed_from_its_tuple_as_from_its_headers() {
        let keys = keys();
        let (client, vip) = ([198, 51, 100, 7], [192, 0, 2, 1]);
        let tuple = |client, vip| Tuple::new(client, vip, [1, 2], [3, 4], 6);
        let ports = u32::from_ne_bytes([1, 2, 3, 4]);
        let v4 = tuple(AddressKey::v4(client), AddressKey::v4(vip));
        let addresses = DeliveryKeys::addresses_v4(client, vip);
        assert_eq!(keys.flow_of(&v4), keys.flow(addresses, ports));
        let (client, vip) = (AddressKey::v6([7; 16]), AddressKey::v6([8; 16]));
        let addresses = keys.addresses_v6(client.words(), vip.words());
        let flow = keys.flow(addresses, ports);
        assert_eq!(keys.flow_of(&tuple(client, vip)), flow);
    }

    #[test]
    fn nearly_all_of_twenty_thousand_flows_find_a_place() {
        let keys = keys();
        let mut lines: BTreeMap<u32, usize> = BTreeMap::new();
        for flow in 0..20_000_u32 {
            let client = (0xc633_6400 + flow / 64).to_be_bytes();
            let ports = [128, (flow % 64) as u8, 0, 80];
            let addresses = DeliveryKeys::addresses_v4(client, [192, 0, 2, 1]);
            let hash = keys.flow(addresses, u32::from_ne_bytes(ports));
            *lines.entry(hash.line()).or_default() += 1;
        }
        let over: Vec<usize> = lines
            .values()
            .map(|count| count.saturating_sub(4))
            .collect();
        assert!(over.iter().sum::<usize>() < 40, "{over:?}");
    }
}
