//! Lists that get shorter: owners whose day is over, and room for others where the table is full.
//!
//! A list is shortened where it lies, from its oldest end, which takes no room. What gets free lies in gaps between other
//! lists, too short for a new one. Lists behind the gaps are copied into them, so that longer runs get free.

use std::collections::{BTreeMap, HashMap};

use xdp_prog::abi::{PAST_OWNER_SECONDS, Past, Slot};

use super::{
    second_now,
    store::{List, log2_of},
};
use crate::tables::{DroppedOwners, Run, ServiceKey, Tables, retired::RETIRED_AT_MOST};

/// Where the table is full, this part of it is freed, so that the lists that follow find room too.
const FREED_PART: u32 = 8;

impl Tables {
    /// Removes past owners that ceased to own their slots a day ago.
    pub fn expire_past_owners(&mut self) {
        self.expire_past_owners_at(second_now());
    }

    pub(in super::super) fn expire_past_owners_at(&mut self, second: u32) {
        let oldest = second.saturating_sub(PAST_OWNER_SECONDS);
        let expired = self.pasts.lists().filter_map(|(offset, list)| {
            let length = list.partition_point(|owner| owner.second() >= oldest);
            (length < list.len()).then_some((offset, length))
        });
        let lengths = expired.collect();
        self.shorten_lists(&lengths, false);
        self.reclaim_if_worth_it();
    }

    /// Removes a part of all past owners, the oldest, to make room for backends that serve. Returns whether there were any.
    pub(in super::super) fn forget_oldest_past_owners(&mut self, part: u32) -> bool {
        let used = u32::try_from(self.pasts.fill().used).unwrap_or(u32::MAX);
        let lengths = self.lengths_without_oldest(used.div_ceil(part), u32::MAX);
        self.shorten_lists(&lengths, true);
        !lengths.is_empty()
    }

    /// Makes room for lists: what is out of use goes, and then the oldest past owners. Those of this second stay.
    pub(super) fn make_room_for_lists(&mut self) {
        let second = second_now();
        if self.pasts.short_in == Some(second) {
            // Each grace period takes longer than the change of a thousand slots.
            if self.retired.lists.len() >= RETIRED_AT_MOST {
                self.free_retired();
            }
            return;
        }
        self.free_retired();
        let fill = self.pasts.arena.fill();
        let wanted = fill.slots.div_ceil(FREED_PART).saturating_sub(fill.free);
        if wanted > 0 {
            let lengths = self.lengths_without_oldest(wanted, second);
            self.shorten_lists(&lengths, true);
            self.free_retired();
        }
        let (words, freed) = self.pasts.close_gaps();
        self.repoint(&words, false);
        self.retired.lists.extend(freed);
        self.free_retired();
        if self.pasts.arena.fill().free < fill.slots.div_ceil(FREED_PART) {
            self.pasts.short_in = Some(second);
        }
    }

    /// Returns the places of the lists that have to get shorter so that this many entries get free, and their new lengths.
    /// Only owners that ceased to own before a second go.
    fn lengths_without_oldest(&self, wanted: u32, before: u32) -> BTreeMap<u32, usize> {
        let mut freed_by_second: BTreeMap<u32, u64> = BTreeMap::new();
        for (_, list) in self.pasts.lists() {
            for (length, freed) in shorter_lengths(list) {
                *freed_by_second.entry(list[length].second()).or_default() += u64::from(freed);
            }
        }
        // All owners of before this second go, and of it as many as are needed.
        let mut last = before;
        let mut left = u64::from(wanted);
        for (second, freed) in freed_by_second.range(..before) {
            if *freed >= left {
                last = *second;
                break;
            }
            left -= freed;
        }
        let mut lengths = BTreeMap::new();
        for (offset, list) in self.pasts.lists() {
            let (mut length, older) = length_without(list, |second| second < last);
            if left > 0 && last < before {
                let (shorter, freed) = length_without(list, |second| second <= last);
                left = left.saturating_sub(freed - older);
                length = shorter;
            }
            if length < list.len() {
                lengths.insert(offset, length);
            }
        }
        lengths
    }

    /// Shortens lists to so many of their newest owners, by the places of the lists.
    fn shorten_lists(&mut self, lengths: &BTreeMap<u32, usize>, counts: bool) {
        let (mut words, mut unlisted) = (HashMap::new(), Vec::new());
        for (offset, length) in lengths {
            if let Some(shortened) = self.pasts.shorten(*offset, *length) {
                words.insert(*offset, shortened.word);
                self.retired.lists.extend(shortened.freed);
                unlisted.extend(shortened.unlisted);
            }
        }
        self.repoint(&words, counts);
        self.unlist_backends(unlisted);
    }

    /// Gives the slots of lists other words, by the places where the lists were.
    fn repoint(&mut self, words: &HashMap<u32, Past>, counts: bool) {
        if words.is_empty() {
            return;
        }
        let unfinished = self.pasts.unfinished.clone();
        let dropped = unfinished
            .into_iter()
            .flatten()
            .map(|index| self.repoint_slot(index, words))
            .sum();
        if counts {
            self.count_dropped(table_full(dropped));
        }
        let services = self.contents.installed.iter();
        let services: Vec<(ServiceKey, _)> = services
            .map(|(key, service)| (*key, service.runs()))
            .collect();
        for (key, runs) in services {
            let slots = runs.each().flat_map(Run::slots);
            let dropped = slots.map(|index| self.repoint_slot(index, words)).sum();
            if dropped > 0 {
                self.note_changed_past(&key);
            }
            if counts {
                self.count_dropped_of(&key, table_full(dropped));
            }
        }
    }

    /// Gives a slot another word, if its list has another one; returns how many past owners fewer it has.
    fn repoint_slot(&mut self, index: u32, words: &HashMap<u32, Past>) -> u64 {
        let Some(slot) = self.lut.get(index).filter(|slot| Slot::has_past(*slot)) else {
            return 0;
        };
        let old = self.pasts.word(index);
        let Some(word) = words.get(&old.offset()) else {
            return 0;
        };
        self.pasts.store_word(index, *word, true);
        if word.count() == 0 {
            self.lut.set(index, Slot::new(slot.owner(), false));
        }
        old.count().saturating_sub(word.count()).into()
    }
}

const fn table_full(table_full: u64) -> DroppedOwners {
    DroppedOwners {
        table_full,
        list_full: 0,
    }
}

/// Lists the lengths to which a list can be shortened so that entries get free, the longest first, and how many entries
/// get free with each step.
fn shorter_lengths(list: &List) -> impl Iterator<Item = (usize, u32)> + use<> {
    let log2 = log2_of(list);
    let halves = (0..log2).rev().map(|log2| (1 << log2, 1 << log2));
    halves.chain([(0, 1)])
}

/// Returns the length of a list without owners of such seconds, as far as that frees entries, and how many entries get free.
fn length_without(list: &List, is_dropped: impl Fn(u32) -> bool) -> (usize, u64) {
    let lengths = shorter_lengths(list);
    let dropped = lengths.filter(|(length, _)| is_dropped(list[*length].second()));
    dropped.fold((list.len(), 0), |(_, all), (length, freed)| {
        (length, all + u64::from(freed))
    })
}
