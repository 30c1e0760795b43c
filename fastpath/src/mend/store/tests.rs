//! What is held, for how long, and what is given up.

use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;
use xdp_prog::{
    abi::{AddressKey, Tuple},
    punt::LaterFragment,
    wire::protocol,
};

use super::{
    super::{Limits, Outcome, counts::Tally},
    NOTES, Store,
};

const VIP: [u8; 4] = [203, 0, 113, 1];
const MS: u64 = 1_000_000;

const LIMITS: Limits = Limits {
    bytes: 40 * (NOTES + LENGTH),
    bytes_of_source: 8 * (NOTES + LENGTH),
    wait: Duration::from_millis(500),
    packets_of_next_hop: 0,
    next_hop_wait: Duration::ZERO,
};
/// Bytes of each frame in the tests of the store.
const LENGTH: usize = 100;

fn source(number: u8) -> AddressKey {
    AddressKey::v4([192, 0, 2, number])
}

fn datagram(source: AddressKey, number: u8) -> Tuple {
    let identification = [0, 0, 0, number];
    Tuple::fragments(source, AddressKey::v4(VIP), identification, protocol::UDP)
}

/// The later fragment of a datagram of a source that begins at an offset.
fn piece(from: u8, number: u8, offset: u32, length: u32) -> LaterFragment {
    LaterFragment {
        datagram: datagram(source(from), number),
        source: source(from),
        offset,
        length,
    }
}

/// A store with the counts of what it gave up.
struct Kept {
    store: Store,
    tally: Tally,
    /// What there was no room for, and may be the kernel's.
    passed_on: Vec<Vec<u8>>,
}

impl Kept {
    fn new(limits: Limits) -> Self {
        Self {
            store: Store::new(limits),
            tally: Tally::default(),
            passed_on: Vec::new(),
        }
    }

    fn hold(&mut self, now: u64, piece: &LaterFragment) {
        let mark = u8::try_from(piece.offset / 8 % 256).unwrap();
        self.hold_as(now, piece, false, vec![mark; LENGTH]);
    }

    fn hold_as(
        &mut self,
        now: u64,
        piece: &LaterFragment,
        may_be_for_kernel: bool,
        frame: Vec<u8>,
    ) {
        let tally = &mut self.tally;
        let passed_on = self.store.hold(now, piece, may_be_for_kernel, frame, tally);
        self.passed_on.extend(passed_on);
    }

    fn of(&self, outcome: Outcome) -> u64 {
        self.tally[outcome as usize]
    }

    fn total(&self) -> u64 {
        self.tally.iter().sum()
    }
}

#[test]
fn what_is_released_is_in_the_order_of_the_datagram() {
    let mut kept = Kept::new(LIMITS);
    for offset in [3200, 1600, 4800] {
        kept.hold(0, &piece(1, 1, offset, 1600));
    }
    kept.hold(0, &piece(1, 2, 8, 8));
    let marks: Vec<u8> = kept
        .store
        .release(&datagram(source(1), 1))
        .iter()
        .map(|frame| frame[0])
        .collect();
    assert_eq!(marks, [200, 144, 88]);
    assert_eq!(kept.store.packets(), 1);
    assert_eq!(kept.store.release(&datagram(source(1), 1)).len(), 0);
    assert_eq!(kept.store.release(&datagram(source(1), 2)).len(), 1);
    assert!(kept.store.is_empty());
    assert_eq!((kept.store.bytes(), kept.total()), (0, 0));
}

#[test]
fn same_fragment_is_held_once() {
    let mut kept = Kept::new(LIMITS);
    kept.hold(0, &piece(1, 1, 1600, 1600));
    kept.hold(0, &piece(1, 1, 1600, 1600));
    assert_eq!(kept.of(Outcome::Duplicate), 1);
    assert_eq!(kept.store.release(&datagram(source(1), 1)).len(), 1);
}

#[test]
fn overlap_ends_its_datagram_and_no_other() {
    for (offset, length) in [
        (1600, 1608),
        (1600, 8),
        (1592, 16),
        (2400, 8),
        (3192, 800),
        (8, 4000),
    ] {
        let mut kept = Kept::new(LIMITS);
        kept.hold(0, &piece(1, 1, 1600, 1600));
        kept.hold(0, &piece(1, 2, 1600, 1600));
        kept.hold(0, &piece(1, 1, offset, length));
        assert_eq!(kept.of(Outcome::Overlap), 2, "{offset} {length}");
        // Nor do later ones of it count any more.
        kept.hold(0, &piece(1, 1, 4800, 8));
        assert_eq!(kept.of(Outcome::Overlap), 3);
        assert_eq!(kept.store.release(&datagram(source(1), 1)).len(), 0);
        assert_eq!(kept.store.release(&datagram(source(1), 2)).len(), 1);
    }
    let mut kept = Kept::new(LIMITS);
    for (offset, length) in [(1600, 1600), (3200, 8), (1592, 8)] {
        kept.hold(0, &piece(1, 1, offset, length));
    }
    assert_eq!((kept.total(), kept.store.packets()), (0, 3));
}

#[test]
fn spoiled_datagram_is_forgotten_in_time() {
    let mut kept = Kept::new(LIMITS);
    kept.hold(0, &piece(1, 1, 8, 16));
    kept.hold(0, &piece(1, 1, 16, 16));
    assert!(!kept.store.is_empty());
    assert!(kept.store.expire(500 * MS, &mut kept.tally).is_empty());
    assert!(kept.store.is_empty());
    assert_eq!((kept.store.bytes(), kept.total()), (0, 2));
}

#[test]
fn datagram_beyond_the_longest_is_refused() {
    let mut kept = Kept::new(LIMITS);
    kept.hold(0, &piece(1, 1, 65_528, 8));
    assert_eq!(kept.of(Outcome::Unreadable), 1);
    kept.hold(0, &piece(1, 1, 65_528, 7));
    assert_eq!(kept.of(Outcome::Unreadable), 1);
    assert_eq!(kept.store.packets(), 1);
}

#[test]
fn source_gets_its_share_and_no_more() {
    let mut kept = Kept::new(LIMITS);
    for number in 0..20 {
        kept.hold(0, &piece(1, number, 8, 8));
    }
    assert_eq!(kept.store.packets(), 8);
    assert_eq!(kept.of(Outcome::SourceShare), 12);
    kept.hold(0, &piece(2, 0, 8, 8));
    assert_eq!(kept.store.packets(), 9);
    // What goes makes room again.
    assert_eq!(kept.store.release(&datagram(source(1), 0)).len(), 1);
    kept.hold(0, &piece(1, 30, 8, 8));
    assert_eq!(kept.store.packets(), 9);
}

#[test]
fn source_of_ipv6_is_a_network() {
    let mut kept = Kept::new(LIMITS);
    for number in 0..20 {
        let mut address = [0x20; 16];
        address[15] = number;
        let source = AddressKey::v6(address);
        let piece = LaterFragment {
            datagram: datagram(source, 1),
            source,
            offset: 8,
            length: 8,
        };
        kept.hold(0, &piece);
    }
    assert_eq!(kept.store.packets(), 8);
    assert_eq!(kept.of(Outcome::SourceShare), 12);
}

#[test]
fn full_memory_gives_up_what_has_waited_longest() {
    let mut kept = Kept::new(LIMITS);
    for from in 0..50 {
        kept.hold(u64::from(from), &piece(from, 1, 8, 8));
        assert!(kept.store.bytes() <= LIMITS.bytes);
    }
    assert_eq!(kept.store.packets(), 40);
    assert_eq!(kept.of(Outcome::OutOfMemory), 10);
    assert_eq!(kept.store.release(&datagram(source(9), 1)).len(), 0);
    assert_eq!(kept.store.release(&datagram(source(10), 1)).len(), 1);
}

#[test]
fn the_largest_datagram_is_held_whole_in_any_order() {
    let mut kept = Kept::new(Limits::default());
    for offset in (1..45).rev().map(|number| number * 1480) {
        let piece = piece(1, 1, offset, 1480.min(65_535 - offset));
        kept.hold_as(0, &piece, false, vec![0; 1530]);
    }
    assert_eq!(kept.store.release(&datagram(source(1), 1)).len(), 44);
    assert_eq!(kept.total(), 0);
}

#[test]
fn what_may_be_the_kernels_is_passed_on_where_there_is_no_room_and_at_the_end() {
    let mut kept = Kept::new(LIMITS);
    // The source's share is for eight.
    for number in 0..9 {
        kept.hold_as(0, &piece(1, number, 8, 8), true, vec![number; LENGTH]);
    }
    assert_eq!(kept.passed_on, [vec![8; LENGTH]]);
    // The memory is for forty.
    for number in 0..40 {
        let from = 2 + number / 8;
        kept.hold(1, &piece(from, number, 8, 8));
    }
    assert_eq!(kept.passed_on.len(), 9);
    kept.hold_as(2, &piece(9, 1, 8, 8), true, vec![7; LENGTH]);
    assert_eq!(kept.of(Outcome::OutOfMemory), 1);
    let rest = kept.store.clear(&mut kept.tally);
    assert_eq!(rest, [vec![7; LENGTH]]);
    assert_eq!(kept.of(Outcome::Ended), 39);
    assert!(kept.store.is_empty());
    assert_eq!((kept.store.bytes(), kept.store.packets()), (0, 0));
}

#[test]
fn packet_that_fits_no_memory_pushes_nothing_out() {
    let mut kept = Kept::new(Limits {
        bytes: NOTES + LENGTH,
        ..LIMITS
    });
    kept.hold(0, &piece(1, 1, 8, 8));
    kept.hold_as(0, &piece(2, 1, 8, 8), false, vec![0; LENGTH + 1]);
    assert_eq!(kept.of(Outcome::OutOfMemory), 1);
    assert_eq!(kept.store.packets(), 1);
}

#[test]
fn what_waits_too_long_is_given_up_or_passed_on() {
    let mut kept = Kept::new(LIMITS);
    kept.hold(0, &piece(1, 1, 8, 8));
    kept.hold_as(MS, &piece(1, 2, 16, 8), true, vec![2; LENGTH]);
    kept.hold_as(2 * MS, &piece(1, 2, 8, 8), true, vec![1; LENGTH]);
    kept.hold(3 * MS, &piece(1, 3, 8, 8));
    assert!(kept.store.expire(500 * MS - 1, &mut kept.tally).is_empty());
    assert!(kept.store.expire(500 * MS, &mut kept.tally).is_empty());
    assert_eq!(kept.of(Outcome::TimedOut), 1);
    let passed_on = kept.store.expire(501 * MS, &mut kept.tally);
    assert_eq!(passed_on, [vec![1; LENGTH], vec![2; LENGTH]]);
    assert_eq!((kept.total(), kept.store.packets()), (1, 1));
    kept.store.clear(&mut kept.tally);
    assert_eq!(kept.of(Outcome::Ended), 1);
    assert!(kept.store.is_empty());
}

#[test]
fn all_datagrams_are_asked_for_in_turn() {
    let mut kept = Kept::new(LIMITS);
    for from in 0..10 {
        kept.hold(0, &piece(from, 1, 8, 8));
    }
    let mut asked = BTreeSet::new();
    for _ in 0..4 {
        let some = kept.store.next_asked(3);
        assert_eq!(some.len(), 3);
        asked.extend(some.iter().map(|key| key.source().last_octets()[3]));
    }
    assert_eq!(asked, (0..10).collect());
    assert_eq!(kept.store.next_asked(100).len(), 10);
}

proptest! {
    /// Whatever comes, the limits hold, and each packet is held or counted once.
    #[test]
    fn limits_hold_and_no_packet_is_lost_track_of(
        steps in prop::collection::vec((0u8..4, 0u8..6, 0u32..6, 1u32..4, 0u64..200), 1..300)
    ) {
        let mut kept = Kept::new(LIMITS);
        let (mut now, mut came, mut left) = (0, 0, 0);
        for (from, number, offset, length, later) in steps {
            now += later * MS / 4;
            match later % 5 {
                0 => left += kept.store.release(&datagram(source(from), number)).len() as u64,
                1 => left += kept.store.expire(now, &mut kept.tally).len() as u64,
                _ => {
                    came += 1;
                    let piece = piece(from, number, 8 * (1 + offset), 8 * length);
                    kept.hold_as(now, &piece, number % 2 == 0, vec![0; LENGTH]);
                    left += kept.passed_on.drain(..).len() as u64;
                }
            }
            prop_assert!(kept.store.bytes() <= LIMITS.bytes);
            prop_assert_eq!(came, left + kept.total() + kept.store.packets() as u64);
        }
        left += kept.store.clear(&mut kept.tally).len() as u64;
        prop_assert_eq!(came, left + kept.total());
        prop_assert_eq!(kept.store.bytes(), 0);
    }
}
