//! Adopts the lists that an earlier agent left in the maps.

use std::collections::HashMap;

use xdp_prog::abi::{Past, Slot};

use super::store::{List, log2_of};
use crate::tables::{Run, Tables};

impl Tables {
    /// Adopts the lists of all slots; those that contradict others are taken away.
    pub(in super::super) fn adopt_pasts(&mut self) {
        let services = self.contents.installed.values();
        let slots: Vec<u32> = services
            .flat_map(|service| service.runs().each())
            .flat_map(Run::slots)
            .filter(|index| self.lut.get(*index).is_some_and(Slot::has_past))
            .collect();
        // The earlier agent may have ended while it shortened a list for one slot after the other.
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for index in &slots {
            let word = self.pasts.word(*index);
            let count = counts.entry(word.offset()).or_insert(word.count());
            *count = word.count().min(*count);
        }
        for index in slots {
            let word = self.pasts.word(index);
            let (offset, count) = (word.offset(), counts[&word.offset()]);
            let owner = self.lut.get(index).unwrap_or_default().owner();
            match self.adopt_past(offset, count) {
                Some(adopted) => self.pasts.store_word(index, adopted, true),
                None => self.lut.set(index, Slot::new(owner, false)),
            }
        }
    }

    /// Adopts a list for one slot; returns the slot's word, or `None` if the list contradicts others.
    fn adopt_past(&mut self, offset: u32, count: u32) -> Option<Past> {
        if let Some(list) = self.pasts.at(offset).cloned() {
            return self.pasts.find(&list);
        }
        let entries = offset..offset + count;
        let list: List = entries
            .filter(|entry| *entry < self.pasts.length())
            .map(|entry| self.pasts.owner(entry))
            .collect();
        if count == 0 || list.len() != count as usize {
            return None;
        }
        // The earlier agent may have ended while it copied the list to another place.
        if let Some(word) = self.pasts.find(&list) {
            return Some(word);
        }
        let run = Run {
            base: offset,
            log2: log2_of(&list),
        };
        if !self.pasts.arena.reserve(run) {
            return None;
        }
        let mut taken = Vec::new();
        for id in list.iter().map(|owner| owner.backend()) {
            if !self.adopt_backend(id, |backend| &mut backend.lists) {
                self.unlist_backends(taken);
                self.pasts.release(run);
                return None;
            }
            taken.push(id);
        }
        Some(self.pasts.keep(list, run, 1))
    }
}
