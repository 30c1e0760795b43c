extern crate std;

use core::net::{Ipv4Addr, Ipv6Addr};
use std::{collections::BTreeMap, string::ToString};

use proptest::prelude::*;

use super::*;

const A: u32 = 0;
const B: u32 = 1;

#[test]
fn equal_backends_take_turns_on_their_next_free_slots() {
    // A goes 3 0 5 2 ..., B goes 3 6 1 4 7 ...
    let turns = &mut [turn(A, 3, 5, 4), turn(B, 3, 3, 4)];
    let mut table = [u32::MAX; 8];
    pace(&[member(1, 1), member(2, 1)], turns);
    fill(&mut table, turns, &mut [0]);
    assert_eq!(table, [A, B, A, A, B, A, B, B]);
}

#[test]
fn a_backend_of_a_third_of_the_weight_comes_every_third_round() {
    // A goes up from 0 in the rounds 1, 4, 7, 10; B goes down from 3 in each
    // of 12 and has taken 3, 2, 1 when A comes for the second time.
    let turns = &mut [turn(A, 0, 1, 4), turn(B, 3, 15, 12)];
    let mut table = [u32::MAX; 16];
    pace(&[member(1, 1), member(2, 3)], turns);
    fill(&mut table, turns, &mut [0]);
    assert_eq!(table, [A, B, B, B, A, A, A, B, B, B, B, B, B, B, B, B]);
}

#[test]
fn remainders_decide_who_is_rounded_up() {
    // Ideal shares of 8 slots: 1/9, 3/9 and 5/9 of them are 0.9, 2.7 and 4.4.
    let members = [member(1, 1), member(2, 3), member(3, 5)];
    assert_eq!(
        slots_of(&members, &table(1, &members, 3).unwrap()),
        [1, 3, 4]
    );
}

#[test]
fn one_backend_owns_a_table_of_one_slot() {
    assert_eq!(table(7, &[member(1, 9)], 0).unwrap(), [0]);
}

#[test]
fn known_weights_give_known_shares() {
    let weighted = |weights: &[u32], log2_len| {
        let members = members_with(weights);
        slots_of(&members, &table(3, &members, log2_len).unwrap())
    };
    assert_eq!(weighted(&[1, 2, 3, 4], 16), [6554, 13107, 19661, 26214]);
    assert_eq!(weighted(&[2, 1], 16), [43691, 21845]);
    assert_eq!(weighted(&[2, 13, 111, 10], 10), [15, 98, 836, 75]);
}

#[test]
fn a_set_without_backends_is_refused() {
    assert_eq!(table(0, &[], 8), Err(MaglevError::NoMembers));
}

#[test]
fn more_backends_than_slots_are_refused() {
    let error = table(0, &members_with(&[1; 9]), 3).unwrap_err();
    assert_eq!(
        error,
        MaglevError::MoreMembersThanSlots {
            members: 9,
            slots: 8
        }
    );
    assert_eq!(
        error.to_string(),
        "9 backends are more than the table's 8 slots"
    );
}

#[test]
fn as_many_backends_as_slots_get_one_each() {
    let members = members_with(&[1; 256]);
    assert_eq!(
        slots_of(&members, &table(0, &members, 8).unwrap()),
        [1; 256]
    );
}

#[test]
fn weight_zero_is_refused() {
    assert_eq!(
        table(0, &members_with(&[1, 0]), 3),
        Err(MaglevError::ZeroWeight { member: 1 })
    );
}

#[test]
fn a_share_of_less_than_a_slot_is_refused() {
    let members = members_with(&[1000, 1]);
    assert_eq!(
        table(0, &members, 8),
        Err(MaglevError::NoSlot { member: 1 })
    );
    assert_eq!(
        slots_of(&members, &table(0, &members, 11).unwrap()),
        [2046, 2]
    );
}

#[test]
fn the_largest_weights_are_counted_exactly() {
    let members = members_with(&[u32::MAX, u32::MAX, u32::MAX, u32::MAX]);
    assert_eq!(
        slots_of(&members, &table(0, &members, 20).unwrap()),
        [1 << 18; 4]
    );
}

#[test]
fn a_duplicate_backend_is_refused() {
    let members = [member(1, 1), member(2, 1), member(1, 5)];
    let error = MaglevError::DuplicateIdentity {
        first: 0,
        second: 2,
    };
    assert_eq!(table(0, &members, 8), Err(error));
}

#[test]
fn mapped_and_plain_ipv4_addresses_are_one_backend() {
    let v4 = Ipv4Addr::new(192, 0, 2, 1);
    assert_eq!(
        Identity::new(v4.into(), 80),
        Identity::new(v4.to_ipv6_mapped().into(), 80)
    );
    assert_ne!(Identity::new(v4.into(), 80), Identity::new(v4.into(), 81));
}

#[test]
fn a_length_that_is_no_power_of_two_up_to_2_to_20_is_refused() {
    for slots in [0, 7, 65537, 1 << 21] {
        let result = populate(
            0,
            &[member(1, 1)],
            &mut vec![0; slots],
            Scratch {
                turns: &mut [Turn::default()],
                taken: &mut vec![0; slots.div_ceil(64)],
            },
        );
        assert_eq!(result, Err(MaglevError::BadLength { slots }));
    }
    assert_eq!(
        table(0, &[member(1, 1)], 21),
        Err(MaglevError::BadLength { slots: 1 << 21 })
    );
}

#[test]
fn too_little_scratch_memory_is_refused() {
    let members = members_with(&[1, 1]);
    let try_with = |turns: usize, words: usize| {
        let scratch = Scratch {
            turns: &mut vec![Turn::default(); turns],
            taken: &mut vec![0; words],
        };
        populate(0, &members, &mut [0; 256], scratch)
    };
    assert_eq!(try_with(1, 4), Err(MaglevError::ScratchTooSmall));
    assert_eq!(try_with(2, 3), Err(MaglevError::ScratchTooSmall));
    assert_eq!(try_with(2, 4), Ok(()));
}

#[test]
fn a_refused_set_leaves_the_table_alone() {
    let mut slots = [77; 8];
    let scratch = Scratch {
        turns: &mut [Turn::default(); 2],
        taken: &mut [0],
    };
    let members = members_with(&[1000, 1]);
    assert!(populate(0, &members, &mut slots, scratch).is_err());
    assert_eq!(slots, [77; 8]);
}

#[test]
fn another_seed_gives_another_table() {
    let members = members_with(&[1; 100]);
    assert_ne!(
        table(1, &members, 11).unwrap(),
        table(2, &members, 11).unwrap()
    );
}

#[test]
fn removing_1_of_100_backends_moves_few_other_slots_of_65536() {
    let moved = moved_by_removal(&members_with(&[1; 100]), 16);
    assert!(mean(&moved) <= 0.60, "mean {}", mean(&moved));
    assert!(p99(&moved) <= 0.75, "p99 {}", p99(&moved));
}

#[test]
fn removing_1_of_100_backends_moves_few_other_slots_of_16384() {
    let moved = moved_by_removal(&members_with(&[1; 100]), 14);
    assert!(mean(&moved) <= 1.45, "mean {}", mean(&moved));
}

#[test]
fn removing_1_of_100_weighted_backends_moves_few_other_slots_of_65536() {
    let weights: Vec<u32> = (0..100).map(|n| n * 37 % 100 + 1).collect();
    let moved = moved_by_removal(&members_with(&weights), 16);
    assert!(mean(&moved) <= 0.60, "mean {}", mean(&moved));
    assert!(p99(&moved) <= 0.90, "p99 {}", p99(&moved));
}

#[test]
fn changing_one_weight_moves_little_more_than_the_shares_demand() {
    let before = members_with(&[10; 100]);
    let moved: Vec<f64> = (0_u8..20)
        .map(|seed| {
            let mut after = before.clone();
            after[usize::from(seed)].weight = 13;
            moved_slots(
                &owners(seed.into(), &before, 16),
                &owners(seed.into(), &after, 16),
                None,
            )
        })
        .collect();
    // The larger share takes 0.297 % of the slots.
    assert!(mean(&moved) <= 0.80, "mean {}", mean(&moved));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shares_are_within_one_slot_of_the_ideal(members in sets(1..120, 1_u32..100), seed: u64) {
        let slots = table(seed, &members, 14).unwrap();
        let total: u128 = members.iter().map(|m| u128::from(m.weight)).sum();
        for (member, slots) in members.iter().zip(slots_of(&members, &slots)) {
            let ideal = u128::from(member.weight) << 14;
            prop_assert!((slots as u128 * total).abs_diff(ideal) < total);
        }
    }

    #[test]
    fn equal_weights_spread_by_at_most_one_slot(count in 1_u32..300, weight in 1_u32.., seed: u64) {
        let members = members_with(&vec![weight; count as usize]);
        let slots = slots_of(&members, &table(seed, &members, 11).unwrap());
        let (min, max) = (slots.iter().min().unwrap(), slots.iter().max().unwrap());
        prop_assert!(max - min <= 1);
        prop_assert!(*min > 0);
    }

    #[test]
    fn scaling_all_weights_changes_no_slot(
        members in sets(1..60, 1_u32..1000),
        factor in 2_u32..4_000_000,
        seed: u64,
    ) {
        let scaled: Vec<Member> = members
            .iter()
            .map(|m| Member { weight: m.weight * factor, ..*m })
            .collect();
        prop_assert_eq!(table(seed, &members, 11), table(seed, &scaled, 11));
    }

    #[test]
    fn any_order_of_input_gives_the_same_table(
        (one, other) in sets(1..60, 1_u32..100).prop_flat_map(|set| (Just(set.clone()), Just(set).prop_shuffle())),
        seed: u64,
    ) {
        prop_assert_eq!(owners(seed, &one, 14), owners(seed, &other, 14));
    }

    #[test]
    fn every_slot_is_filled_at_every_length(
        members in sets(1..8, 1..=u32::MAX),
        log2_len in 0_u8..=MAX_LOG2_LEN - 4,
        seed: u64,
    ) {
        let mut slots = vec![u32::MAX; 1 << log2_len];
        let scratch = Scratch {
            turns: &mut vec![Turn::default(); members.len()],
            // Left over from another table.
            taken: &mut vec![u64::MAX; slots.len().div_ceil(64)],
        };
        if populate(seed, &members, &mut slots, scratch).is_ok() {
            prop_assert!(slots.iter().all(|&owner| (owner as usize) < members.len()));
        }
    }

    #[test]
    fn adding_a_backend_undoes_removing_it(mut members in sets(2..60, 1_u32..50), seed: u64) {
        let all = owners(seed, &members, 14);
        let last = members.pop().unwrap();
        let without = owners(seed, &members, 14);
        let lost = moved_slots(&all, &without, Some(last.identity));
        members.insert(0, last);
        let again = owners(seed, &members, 14);
        // Adding moves what removing moved, and the newcomer's own slots.
        let own = again.iter().filter(|&&owner| owner == last.identity).count();
        let gained = moved_slots(&without, &again, None) - own as f64 / 163.84;
        prop_assert_eq!(all, again);
        prop_assert!((lost - gained).abs() < 1e-9);
    }
}

fn turn(member: u32, cursor: u32, skip: u32, quota: u32) -> Turn {
    Turn {
        cursor,
        skip,
        quota,
        member,
        ..Turn::default()
    }
}

fn member(host: u16, weight: u32) -> Member {
    let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host);
    Member {
        identity: Identity::new(address.into(), 8080),
        weight,
    }
}

fn members_with(weights: &[u32]) -> Vec<Member> {
    (1..)
        .zip(weights)
        .map(|(host, &weight)| member(host, weight))
        .collect()
}

/// Sets of distinct backends.
fn sets(
    count: core::ops::Range<usize>,
    weight: impl Strategy<Value = u32>,
) -> impl Strategy<Value = Vec<Member>> {
    proptest::collection::btree_map(any::<u16>(), weight, count)
        .prop_map(|set: BTreeMap<u16, u32>| set.iter().map(|(&h, &w)| member(h, w)).collect())
}

fn slots_of(members: &[Member], table: &[u32]) -> Vec<usize> {
    let mut slots = vec![0; members.len()];
    for &owner in table {
        slots[owner as usize] += 1;
    }
    slots
}

fn owners(seed: u64, members: &[Member], log2_len: u8) -> Vec<Identity> {
    table(seed, members, log2_len)
        .unwrap()
        .iter()
        .map(|&owner| members[owner as usize].identity)
        .collect()
}

/// The slots, in percent of all, that changed hands although their owner
/// stayed; one figure for each of 100 seeds, each removing another backend.
fn moved_by_removal(members: &[Member], log2_len: u8) -> Vec<f64> {
    (0_u8..100)
        .map(|seed| {
            let mut rest = members.to_vec();
            let gone = rest.remove(usize::from(seed) % members.len());
            moved_slots(
                &owners(seed.into(), members, log2_len),
                &owners(seed.into(), &rest, log2_len),
                Some(gone.identity),
            )
        })
        .collect()
}

fn moved_slots(before: &[Identity], after: &[Identity], gone: Option<Identity>) -> f64 {
    let moved = before
        .iter()
        .zip(after)
        .filter(|(before, after)| Some(**before) != gone && before != after)
        .count();
    moved as f64 / before.len() as f64 * 100.0
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn p99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() * 99 / 100 - 1]
}
