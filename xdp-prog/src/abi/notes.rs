//! Notes of look-ups: packets that come soon afterwards need not repeat them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::check::CHECK_MULTIPLIER;
use super::{AddressKey, PodFlow, RENEWAL_NS, Tuple, age, plain_data, size};

plain_data! {
    FlowNote: 64,
    Shortcut: 56,
    Untrusted: 24,
}

/// The last source whose IP-in-IP was refused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Untrusted {
    /// The outer source.
    pub source: AddressKey,
    /// Time of the refusal, on the monotonic clock in ns; 0 if there was none.
    pub at: u64,
}

/// The result of look-ups in several tables, valid until the tables change.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Shortcut {
    key: Tuple,
    /// [`Config::notes_generation`](super::Config::notes_generation) plus one, so that an entry that was never written is never valid.
    generation: u64,
    value: u64,
}

impl Shortcut {
    /// Makes the note of a look-up that began in `generation`.
    #[inline(always)]
    pub const fn new(key: Tuple, generation: u32, value: u64) -> Self {
        Self {
            key,
            generation: generation as u64 + 1,
            value,
        }
    }

    /// Returns the noted result if this is the look-up's note, of this generation.
    #[inline(always)]
    pub const fn value(&self, key: &Tuple, generation: u32) -> Option<u64> {
        if self.generation == generation as u64 + 1 && self.key.is(key) {
            Some(self.value)
        } else {
            None
        }
    }

    /// Returns the place of a look-up's note in one CPU's array.
    #[inline(always)]
    pub const fn place(key: &Tuple) -> u32 {
        const { assert!(size::SHORTCUTS.is_power_of_two()) };
        key.place(size::SHORTCUTS)
    }
}

/// A flow of `FLOWS` or `FLOWS_DATAGRAM` that goes on, as it was within the last second, on one cache line.
///
/// All CPUs write without a lock. The check reveals a note that two CPUs have written at once.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FlowNote {
    /// The flow's key; its last three bytes hold the length of the outer header and the port that the client talks
    /// to.
    key: Tuple,
    address: AddressKey,
    /// When the flow was seen, in steps of 2^20 ns; the low 20 bits are a check of the rest.
    seen_and_check: u64,
}

impl FlowNote {
    const CHECK_BITS: u32 = 20;
    const CHECK: u64 = (1 << Self::CHECK_BITS) - 1;

    /// Makes the note of a flow whose client has its own port at the pod.
    #[inline(always)]
    pub const fn new(key: &Tuple, flow: &PodFlow) -> Self {
        let [a, b] = flow.port();
        let mut note = Self {
            key: key.with_spare([flow.outer(), a, b]),
            address: flow.third_address,
            seen_and_check: flow.seen & !Self::CHECK,
        };
        note.seen_and_check |= note.check();
        note
    }

    /// Returns the flow if this is its note and less than a second old.
    #[inline(always)]
    pub const fn flow(&self, key: &Tuple, now: u64) -> Option<PodFlow> {
        // The check uses the words of `key`, which has led to this place, and not the same words of the note.
        let spare = self.key.spare();
        let checked = Self {
            key: key.with_spare(spare),
            ..*self
        };
        if !self.is_of(key) || checked.is_over(now) {
            return None;
        }
        let [outer, a, b] = spare;
        Some(PodFlow::new(
            key,
            self.address,
            [a, b],
            outer,
            0,
            self.seen(),
        ))
    }

    /// Tells whether this is the note of the flow with this key.
    #[inline(always)]
    pub const fn is_of(&self, key: &Tuple) -> bool {
        self.key.with_spare([0; 3]).is(key)
    }

    /// Tells whether the note is invalid or too old, so that another flow may take its place.
    #[inline(always)]
    pub const fn is_over(&self, now: u64) -> bool {
        self.seen_and_check & Self::CHECK != self.check() || age(self.seen(), now) >= RENEWAL_NS
    }

    #[inline(always)]
    const fn seen(&self) -> u64 {
        self.seen_and_check & !Self::CHECK
    }

    #[inline(always)]
    const fn check(&self) -> u64 {
        let [a, b] = self.address.words();
        let words = self.key.folded() ^ a ^ b.rotate_left(23) ^ self.seen();
        words.wrapping_mul(CHECK_MULTIPLIER) >> (64 - Self::CHECK_BITS)
    }

    /// Returns the two places of a flow's note. With one place each, 7 % of 10 000 flows would find theirs taken.
    #[inline(always)]
    pub const fn places(key: &Tuple) -> [u32; 2] {
        const { assert!(size::FLOW_NOTES.is_power_of_two()) };
        let place = key.place(size::FLOW_NOTES);
        [place, place ^ 1]
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn shortcut_counts_for_its_key_in_its_generation() {
        let key = |port| {
            let address = AddressKey::v4([198, 51, 100, 7]);
            Tuple::new(address, address, [0, 0], [0, port], 6)
        };
        let shortcut = Shortcut::new(key(80), 7, 9);
        assert_eq!(shortcut.value(&key(80), 7), Some(9));
        assert_eq!(shortcut.value(&key(81), 7), None);
        assert_eq!(shortcut.value(&key(80), 8), None);
        assert_eq!(Shortcut::default().value(&Tuple::default(), 0), None);
        assert_ne!(Shortcut::place(&key(80)), Shortcut::place(&key(81)));
    }

    #[test]
    fn flow_note_counts_for_its_key_for_a_second() {
        let key = |port| {
            let (client, pod) = (AddressKey::v4([198, 51, 100, 7]), AddressKey::v6([7; 16]));
            Tuple::new(client, pod, [156, port], [0, 80], 17)
        };
        let (key, other) = (key(64), key(65));
        let seen = 77 << 32;
        let vip = AddressKey::v4([192, 0, 2, 1]);
        let flow = PodFlow::new(&key, vip, [1, 187], 20, 0, seen);
        let note = FlowNote::new(&key, &flow);
        let (last, over) = (seen + RENEWAL_NS - 1, seen + RENEWAL_NS);

        assert_eq!(note.flow(&key, seen), Some(flow));
        assert_eq!(note.flow(&key, last), Some(flow));
        assert_eq!(note.flow(&key, over), None);
        assert_eq!(note.flow(&other, seen), None);
        assert!(note.is_of(&key) && !note.is_of(&other));
        assert!(!note.is_over(last) && note.is_over(over));
        assert!(FlowNote::default().is_over(over));
        assert_ne!(FlowNote::places(&key)[0], FlowNote::places(&other)[0]);
    }

    #[test]
    fn nearly_all_of_ten_thousand_flows_find_a_place_however_alike_they_are() {
        // How many ports each client has, and how far apart their addresses are.
        for (ports, step) in [
            (1, 1),
            (1, 256),
            (8, 1),
            (64, 1),
            (100, 256),
            (1024, 1),
            (1024, 65_536),
            (10_000, 1),
        ] {
            let pod = AddressKey::v4([172, 16, 0, 1]);
            let mut taken = BTreeSet::new();
            let without = (0..10_000_u32).filter(|flow| {
                let client = AddressKey::v4((0xc633_6400 + flow / ports * step).to_be_bytes());
                let port = u16::try_from(32_768 + flow % ports).unwrap().to_be_bytes();
                let key = Tuple::new(client, pod, port, [31, 144], 6);
                let places = FlowNote::places(&key);
                !places.into_iter().any(|place| taken.insert(place))
            });
            let without = without.count();
            assert!(
                without < 200,
                "{ports} ports, {step} apart: {without} without"
            );
        }
    }

    #[test]
    fn flow_note_that_two_have_written_together_is_over() {
        let address = |byte| AddressKey::v6([byte; 16]);
        let note = |byte| {
            let key = Tuple::new(address(byte), address(7), [156, byte], [0, 80], 6);
            let seen = u64::from(byte) << 32;
            let flow = PodFlow::new(&key, address(byte + 1), [0, byte], 40, 0, seen);
            FlowNote::new(&key, &flow)
        };
        let (ours, theirs) = (note(20), note(30));
        for torn in [
            FlowNote {
                key: theirs.key,
                ..ours
            },
            FlowNote {
                address: theirs.address,
                ..ours
            },
            FlowNote {
                seen_and_check: theirs.seen_and_check,
                ..ours
            },
        ] {
            assert!(!ours.is_over(20 << 32) && torn.is_over(20 << 32));
        }
    }
}
