//! Room for lists where the table is full.

use super::*;
use crate::tables::{DroppedOwners, gate};

/// Keys of services that share the table.
fn key_of(number: u16) -> ServiceKey {
    ServiceKey {
        port: 80 + number,
        ..key()
    }
}

/// Eight of twenty pods, others in each round.
fn pods_of(round: u8) -> BTreeSet<u8> {
    (0..8)
        .map(|number| (number * 7 + round * 3) % 20 + 1)
        .collect()
}

fn put_at(tables: &mut Tables, key: &ServiceKey, pods: &BTreeSet<u8>, log2: u8) {
    let pods: Vec<u8> = pods.iter().copied().collect();
    tables.put_service(*key, &spec(&pods, log2)).unwrap();
}

/// The past owners of each slot as they would be with room for all, the newest first.
type Model = Vec<Vec<u8>>;

fn follow(model: &mut Model, before: &[(u8, Vec<u8>)], now: &[(u8, Vec<u8>)]) {
    for ((past, (old, _)), (new, _)) in model.iter_mut().zip(before).zip(now) {
        if old != new {
            past.retain(|owner| owner != new && owner != old);
            past.insert(0, *old);
        }
    }
}

/// Asserts that words, lists and the arena agree.
fn assert_whole(tables: &Tables) {
    let mut slots_by_offset: std::collections::BTreeMap<u32, u32> = Default::default();
    for (_, service) in tables.services() {
        for index in service.runs().each().flat_map(Run::slots) {
            let slot = tables.lut.get(index).unwrap();
            if slot.has_past() {
                let word = tables.pasts.word(index);
                let list = tables.pasts.at(word.offset()).expect("the slot's list");
                assert_eq!(list.len(), word.count() as usize);
                *slots_by_offset.entry(word.offset()).or_default() += 1;
            }
        }
    }
    let mut used = 0;
    for (offset, list) in tables.pasts.lists() {
        assert_eq!(
            tables.pasts.slots(list),
            slots_by_offset.remove(&offset).unwrap_or_default()
        );
        used += 1 << log2_of(list);
        for (entry, owner) in (offset..).zip(list.iter()) {
            assert_eq!(tables.pasts.owner(entry), *owner);
            assert!(tables.is_installed(owner.backend()));
        }
    }
    assert!(slots_by_offset.is_empty());
    let retired: u32 = tables.retired.lists.iter().map(|run| run.length()).sum();
    assert_eq!(tables.fill().past_owners.used, (used + retired) as usize);
}

#[test]
fn full_table_keeps_the_newest_owners_of_each_slot() {
    let loaded = load();
    let mut tables = open(&loaded);
    // 63 entries are too few for 32 slots with lists of their own.
    let key = key_of(0);
    put_at(&mut tables, &key, &pods_of(0), 5);
    let mut model = vec![Vec::new(); 32];
    for round in 1..12 {
        let before = slots_of(&tables, &key);
        wait(1);
        put_at(&mut tables, &key, &pods_of(round), 5);
        assert_whole(&tables);
        let now = slots_of(&tables, &key);
        follow(&mut model, &before, &now);
        for (slot, ((_, past), all)) in now.iter().zip(&model).enumerate() {
            assert!(all.starts_with(past), "{past:?} {all:?}");
            let is_changed = before[slot].0 != now[slot].0;
            assert!(!is_changed || !past.is_empty(), "round {round} slot {slot}");
        }
    }
    let DroppedOwners {
        list_full,
        table_full,
    } = tables.service(&key).unwrap().dropped_owners();
    assert_eq!(list_full, 0);
    let slots = slots_of(&tables, &key);
    let missing = slots
        .iter()
        .zip(&model)
        .map(|((_, past), all)| all.len() - past.len());
    assert!(table_full >= missing.sum::<usize>() as u64 && table_full > 0);
    assert_eq!(tables.view().dropped_owners().table_full, table_full);

    tables.remove_service(&key).unwrap();
    tables.reclaim();
    assert_eq!(tables.fill().past_owners.used, 0);
    assert_eq!(tables.fill().backends.used, 0);
}

#[test]
fn oldest_owners_of_any_service_make_room_for_those_of_others() {
    let loaded = load();
    let mut tables = open(&loaded);
    let (idle, busy) = (key_of(0), key_of(1));
    for round in 0..3 {
        wait(1);
        put_at(&mut tables, &idle, &pods_of(round), 4);
    }
    let before = slots_of(&tables, &idle);
    assert!(before.iter().any(|(_, past)| past.len() > 1));
    for round in 0..8 {
        wait(1);
        put_at(&mut tables, &busy, &pods_of(round), 4);
        assert_whole(&tables);
    }
    let kept = |key| -> usize {
        let slots = slots_of(&tables, key);
        slots.iter().map(|(_, past)| past.len()).sum()
    };
    let before: usize = before.iter().map(|(_, past)| past.len()).sum();
    assert!(kept(&idle) < before && kept(&busy) > kept(&idle));
    let dropped = tables.service(&idle).unwrap().dropped_owners().table_full;
    assert_eq!(usize::try_from(dropped), Ok(before - kept(&idle)));
}

#[test]
fn owners_that_ceased_in_this_second_push_each_other_out_of_no_list() {
    let loaded = load();
    let mut tables = open(&loaded);
    for number in 0..12 {
        let key = key_of(number);
        put_at(&mut tables, &key, &[1, 2].into(), 4);
        put_at(&mut tables, &key, &[3, 4].into(), 4);
        put_at(&mut tables, &key, &[5, 6].into(), 4);
        assert_whole(&tables);
    }
    let first = slots_of(&tables, &key_of(0));
    assert!(first.iter().all(|(_, past)| !past.is_empty()));
}

#[test]
fn lists_stay_whole_whatever_changes() {
    lists_stay_whole(open, spec);
}

#[test]
fn lists_of_own_pods_stay_whole_whatever_changes() {
    // With one more elsewhere, fewer pods have room in the shortest table.
    lists_stay_whole(open_at_node, |pods, log2| match pods[0] % 3 {
        0 => by(ForwardMode::L2dsr, spec(&pods[..2], log2)),
        first => beside_another_node(ForwardMode::L2dsr, &pods[usize::from(first)..], log2),
    });
}

/// A walk over changes of owners, lengths and time.
fn lists_stay_whole(open: impl Fn(&Loaded) -> Tables, spec: impl Fn(&[u8], u8) -> ServiceSpec) {
    let loaded = load();
    let mut tables = open(&loaded);
    let mut state = 7_u64;
    let mut dice = |of: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % of
    };
    for step in 0..600 {
        let key = key_of(u16::try_from(dice(4)).unwrap());
        wait(u32::try_from(dice(3)).unwrap());
        match dice(12) {
            0 => drop(tables.remove_service(&key).unwrap()),
            1 => {
                wait(DAY / 4);
                tables.expire_past_owners();
            }
            2 => {
                drop(tables);
                tables = open(&loaded);
            }
            3 => drop(tables.forget_oldest_past_owners(3)),
            _ => {
                let pods = pods_of(u8::try_from(dice(20)).unwrap());
                let pods: Vec<u8> = pods.into_iter().collect();
                let log2 = 3 + u8::try_from(dice(3)).unwrap();
                tables.put_service(key, &spec(&pods, log2)).unwrap();
            }
        }
        assert_whole(&tables);
        if step % 50 == 49 {
            tables.reclaim();
            assert_whole(&tables);
        }
    }
    for number in 0..4 {
        tables.remove_service(&key_of(number)).unwrap();
    }
    tables.reclaim();
    assert_eq!(tables.fill().past_owners.used, 0);
    assert_eq!(tables.fill().backends.used, 0);
}

#[test]
fn agent_that_ends_while_it_makes_room_leaves_lists_that_the_next_one_adopts() {
    let loaded = load();
    let mut round = 0;
    for part in 0..10 {
        let mut tables = open(&loaded);
        for _ in 0..4 {
            wait(1);
            round += 1;
            put_at(&mut tables, &key_of(0), &pods_of(round), 5);
        }
        let before = slots_of(&tables, &key_of(0));
        wait(1);
        let writes = part * 40;
        let (all, ()) = gate::end_after(writes, || {
            put_at(&mut tables, &key_of(0), &pods_of(round + 1), 5);
        });
        drop(tables);
        let mut tables = open(&loaded);
        assert_whole(&tables);
        let now = slots_of(&tables, &key_of(0));
        let lost = now
            .iter()
            .zip(&before)
            .filter(|((owner, past), (old, had))| past.is_empty() && had.len() > 1 && owner == old);
        assert_eq!(lost.count(), 0, "after {writes} of {all} writes");
        tables.remove_service(&key_of(0)).unwrap();
        tables.reclaim();
    }
}

#[test]
fn backends_that_serve_push_the_older_half_of_past_owners_out_first() {
    let loaded = load();
    let mut tables = open(&loaded);
    let pods = |pods: std::ops::RangeInclusive<u8>| -> Vec<u8> { pods.collect() };
    // 31 backends fit.
    for first in [1, 11, 21] {
        wait(1);
        put(&mut tables, &pods(first..=first + 9), 4);
    }
    wait(1);
    put(&mut tables, &pods(31..=35), 4);
    let slots = slots(&tables);
    assert!(slots.iter().any(|(_, past)| past.first() > Some(&20)));
    assert!(
        slots
            .iter()
            .all(|(_, past)| past.iter().all(|owner| *owner > 10))
    );
}
