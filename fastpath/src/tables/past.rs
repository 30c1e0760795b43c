//! The past owners of slots: who owned a slot within the last day, in whatever condition they are.
//!
//! A change of a service's backends leaves connections at the former owners of the slots that move. Each such slot has a
//! list of them, the newest first. Equal lists are stored once, in runs of an arena, and never change: a slot gets
//! another list. A backend keeps its id while a list names it.

mod list;

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    ops::Range,
    sync::Arc,
};

use xdp_prog::abi::{
    BACKEND_POD, MAX_PAST_OWNERS, PAST_OWNER_SECONDS, Past, PastOwner, PastPair, Slot, map,
};

pub use self::list::{former_slots, live_past_owners, past_owners};
use super::{
    Arena, BackendKey, ForwardMode, Protocol, Run, ServiceKey, ServiceSpec, TableError, Tables,
    Usage,
    encode::backend_key,
    lut::{Lut, NOBODY},
    mapped::Mapped,
};
use crate::{clock::monotonic_ns, load::Loaded};

/// A list of past owners, the newest first.
type List = Arc<[PastOwner]>;

/// The lists, and which slots have them.
pub(super) struct Pasts {
    words: Mapped<PastPair>,
    history: Mapped<PastOwner>,
    arena: Arena,
    stored: HashMap<List, Stored>,
    by_offset: HashMap<u32, List>,
    /// How often a slot got another list without another owner.
    changes: u64,
}

/// The place of a list.
struct Stored {
    run: Run,
    /// Number of slots that have the list.
    slots: u32,
}

impl Pasts {
    /// Opens the maps; no slot has a list until it is adopted.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be opened or mapped.
    pub(super) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        let history = Mapped::<PastOwner>::open(loaded, map::HISTORY)?;
        Ok(Self {
            words: Mapped::open(loaded, map::PASTS)?,
            arena: Arena::new(history.length().min(1 << Past::OFFSET_BITS)),
            history,
            stored: HashMap::new(),
            by_offset: HashMap::new(),
            changes: 0,
        })
    }

    /// Returns how many entries the lists have, and how many they can have.
    pub(super) fn fill(&self) -> Usage {
        let fill = self.arena.fill();
        // Entry 0 is never used.
        Usage {
            used: (fill.slots - fill.free).saturating_sub(1) as usize,
            capacity: fill.slots.saturating_sub(1) as usize,
        }
    }

    /// Frees the run of a list, at which no packet looks any more.
    pub(super) fn release(&mut self, run: Run) {
        self.arena.release(run);
    }

    pub(super) fn word(&self, index: u32) -> Past {
        let (pair, offset) = place(index);
        Past(self.words.load_u32(pair, offset).unwrap_or_default())
    }

    pub(super) fn owner(&self, index: u32) -> PastOwner {
        self.history.read(index).unwrap_or_default()
    }

    /// Stores the word of a slot. With `keeps_pins`, flows that are pinned stay so.
    fn store_word(&mut self, index: u32, word: Past, keeps_pins: bool) {
        let (pair, offset) = place(index);
        self.words.update_u32(pair, offset, |old| {
            if keeps_pins && Past(old).is_pinned() {
                word.pinned().0
            } else {
                word.0
            }
        });
    }

    /// Notes that flows of a slot may have pins.
    fn mark_pinned(&mut self, index: u32) {
        let (pair, offset) = place(index);
        self.words
            .update_u32(pair, offset, |old| Past(old).pinned().0);
    }

    /// Returns the list of a slot that has a past.
    pub(super) fn list(&self, index: u32) -> Option<&List> {
        self.by_offset.get(&self.word(index).offset())
    }

    /// Finds a list that is stored, and counts one more slot for it.
    fn find(&mut self, list: &[PastOwner]) -> Option<Past> {
        let stored = self.stored.get_mut(list)?;
        stored.slots += 1;
        Some(word_of(stored.run, list))
    }

    /// Stores a new list in its run.
    fn insert(&mut self, list: List, run: Run) -> Past {
        for (index, owner) in (run.base..).zip(list.iter()) {
            self.history.write(index, *owner);
        }
        self.keep(list, run)
    }

    fn keep(&mut self, list: List, run: Run) -> Past {
        let word = word_of(run, &list);
        self.by_offset.insert(run.base, Arc::clone(&list));
        self.stored.insert(list, Stored { run, slots: 1 });
        word
    }

    /// Counts one slot less for a list; returns its run if it has none left.
    fn drop_slot(&mut self, list: &List) -> Option<Run> {
        let stored = self.stored.get_mut(list)?;
        stored.slots -= 1;
        if stored.slots > 0 {
            return None;
        }
        let run = stored.run;
        self.stored.remove(list);
        self.by_offset.remove(&run.base);
        Some(run)
    }

    /// Tells whether any list has an owner that ceased to own before a second.
    fn has_any_before(&self, second: u32) -> bool {
        let oldest = |list: &List| list.iter().map(|owner| owner.second()).min();
        let mut lists = self.stored.keys();
        lists.any(|list| oldest(list).is_some_and(|oldest| oldest < second))
    }
}

/// Returns the index of the entry that holds a slot's word, and the word's offset in the entry in bytes.
const fn place(index: u32) -> (u32, usize) {
    (index / 2, (index % 2) as usize * size_of::<Past>())
}

fn word_of(run: Run, list: &[PastOwner]) -> Past {
    // Lists have at most `MAX_PAST_OWNERS` entries.
    Past::new(run.base, u32::try_from(list.len()).unwrap_or_default())
}

/// Returns the run for a list.
fn log2_of(list: &[PastOwner]) -> u8 {
    // At most four.
    u8::try_from(list.len().next_power_of_two().ilog2()).unwrap_or_default()
}

/// Returns the second of the monotonic clock.
pub(super) fn second_now() -> u32 {
    // 68 years after the machine was booted, this begins anew.
    u32::try_from((monotonic_ns() / 1_000_000_000) & 0x7fff_ffff).unwrap_or_default()
}

/// Tells whether the slots of a service have lists of past owners: nodes return what is TCP and comes in an outer
/// header.
pub(super) fn keeps_past(key: &ServiceKey, spec: &ServiceSpec) -> bool {
    key.protocol == Protocol::Tcp && spec.mode == ForwardMode::Ipip
}

impl Tables {
    /// Removes past owners that ceased to own their slots a day ago.
    pub fn expire_past_owners(&mut self) {
        self.expire_past_owners_at(second_now());
    }

    fn expire_past_owners_at(&mut self, second: u32) {
        let before = second.saturating_sub(PAST_OWNER_SECONDS);
        if !self.pasts.has_any_before(before) {
            return;
        }
        for index in self.slots_with_past() {
            let Some(list) = self.pasts.list(index) else {
                continue;
            };
            let kept = live_past_owners(list, second);
            if kept.len() < list.len() {
                self.change_past(index, &kept);
            }
        }
        self.reclaim_if_worth_it();
    }

    /// Removes all past owners, to make room for backends that serve. Returns whether there were any.
    pub(super) fn forget_pasts(&mut self) -> bool {
        let slots = self.slots_with_past();
        for index in &slots {
            self.change_past(*index, &[]);
        }
        !slots.is_empty()
    }

    /// Lists this machine's pods that packets of a service are delivered to.
    pub fn own_pods(&self, service: &ServiceKey) -> Vec<BackendKey> {
        let pods = self.service(service).map(|service| &service.pods);
        let ids = pods.into_iter().flat_map(|pods| pods.values());
        let entries = ids.filter_map(|id| self.backends.read(*id));
        entries.map(|entry| backend_key(&entry)).collect()
    }

    /// Counts how often slots got other lists of past owners without other owners.
    pub fn changes_of_pasts(&self) -> u64 {
        self.pasts.changes
    }

    /// Lists the nodes of past owners.
    pub fn nodes_of_past_owners(&self) -> BTreeSet<IpAddr> {
        if self.pasts.stored.is_empty() {
            return BTreeSet::new();
        }
        let backends = self.contents.backend_by_key.iter();
        let listed = backends.filter(|(_, backend)| backend.lists != 0);
        listed.map(|(owned, _)| owned.key.address).collect()
    }

    fn slots_with_past(&self) -> Vec<u32> {
        let runs = self.contents.installed.values().map(|service| service.run);
        let slots = runs.flat_map(|run| run.base..run.base + run.length());
        let has_past = |index: &u32| self.lut.get(*index).is_some_and(Slot::has_past);
        slots.filter(has_past).collect()
    }

    /// Gives a slot in use another list.
    pub(super) fn change_past(&mut self, index: u32, list: &[PastOwner]) {
        self.pasts.changes += 1;
        let owner = self.lut.get(index).unwrap_or_default().owner();
        let has_past = self.replace_past(index, list, false);
        self.lut.set(index, Slot::new(owner, has_past));
    }

    /// Gives a table without members the length of the service's present one, whose slots have pasts: a shorter one has
    /// no room for the past owners of all slots.
    pub(super) fn keep_length(&self, key: &ServiceKey, spec: &ServiceSpec, table: &mut Lut) {
        let is_empty = table.owners.iter().all(|owner| *owner == NOBODY);
        if let Some(old) = self.service(key)
            && is_empty
            && keeps_past(key, spec)
            && old.run.log2 > table.log2
        {
            table.log2 = old.run.log2;
            table.owners = vec![NOBODY; 1 << table.log2];
        }
    }

    /// Gives a slot of `run` the list that it has once `owner` owns it; `former` is the run that the service had.
    /// Returns whether it has any past owners.
    pub(super) fn store_past(
        &mut self,
        index: u32,
        (run, former): (Run, Option<Run>),
        owner: u32,
        second: u32,
        is_new: bool,
    ) -> bool {
        let Some(former) = former else {
            return self.replace_past(index, &[], is_new);
        };
        let places = former_slots(index - run.base, run.log2, former.log2);
        let former = former.base + places.start..former.base + places.end;
        let list = self.past_for(former.clone(), owner, second);
        let has_past = self.replace_past(index, &list, is_new);
        // A slot that has a list keeps its mark by itself.
        if is_new && has_past && former.into_iter().any(|former| self.is_pinned(former)) {
            self.pasts.mark_pinned(index);
        }
        has_past
    }

    /// Tells whether flows of a slot may have pins.
    fn is_pinned(&self, index: u32) -> bool {
        self.lut.get(index).is_some_and(Slot::has_past) && self.pasts.word(index).is_pinned()
    }

    /// Returns the list of a slot from those of the slots that its flows had.
    fn past_for(&self, former: Range<u32>, owner: u32, second: u32) -> Vec<PastOwner> {
        let former = former.map(|index| {
            let slot = self.lut.get(index).unwrap_or_default();
            let past = self.pasts.list(index).filter(|_| slot.has_past());
            (slot.owner(), past.map_or(&[][..], |list| &list[..]))
        });
        let is_pod = |id: u32| {
            let backend = self.backends.get(id).filter(|_| id != 0);
            backend.is_some_and(|backend| backend.flags & BACKEND_POD != 0)
        };
        past_owners(former, owner, second, MAX_PAST_OWNERS as usize, is_pod)
    }

    /// Gives a slot another list; returns whether it has any entries. A list for which there is no room is left out.
    fn replace_past(&mut self, index: u32, list: &[PastOwner], is_new: bool) -> bool {
        let has_old = !is_new && self.lut.get(index).is_some_and(Slot::has_past);
        let old = self.pasts.list(index).filter(|_| has_old).cloned();
        if old.as_deref() == Some(list) {
            return true;
        }
        let word = self.stored_list(list).unwrap_or_default();
        // Packets read the word of a slot that has a past alone. The memory of the others is not touched.
        if has_old || word != Past::default() {
            self.pasts.store_word(index, word, has_old);
        }
        if let Some(old) = old {
            self.drop_list(&old);
        }
        word != Past::default()
    }

    /// Stores a list, or finds it; `None` if it is empty, or there is no room.
    fn stored_list(&mut self, list: &[PastOwner]) -> Option<Past> {
        if list.is_empty() {
            return None;
        }
        if let Some(word) = self.pasts.find(list) {
            return Some(word);
        }
        let log2 = log2_of(list);
        let run = self.or_reclaim(|tables| tables.pasts.arena.allocate(log2))?;
        self.list_backends(list.iter().map(|owner| owner.backend()));
        Some(self.pasts.insert(list.into(), run))
    }

    fn drop_list(&mut self, list: &List) {
        if let Some(run) = self.pasts.drop_slot(list) {
            self.retired.lists.push(run);
            self.unlist_backends(list.iter().map(|owner| owner.backend()));
        }
    }

    /// Takes the list of a slot away. The slot then has no past.
    pub(super) fn clear_past(&mut self, index: u32) -> bool {
        let has_past = self.lut.get(index).is_some_and(Slot::has_past);
        has_past && self.replace_past(index, &[], false)
    }

    /// Takes the lists of a run away that goes out of use. Packets in flight that still look at it find no list.
    pub(super) fn clear_pasts(&mut self, run: Run) {
        for index in run.base..run.base + run.length() {
            self.clear_past(index);
        }
    }

    /// Adopts the lists of a run's slots; those that contradict others are taken away.
    pub(super) fn adopt_pasts(&mut self, run: Run) {
        for index in run.base..run.base + run.length() {
            let slot = self.lut.get(index).unwrap_or_default();
            if slot.has_past() && !self.adopt_past(index) {
                self.lut.set(index, Slot::new(slot.owner(), false));
            }
        }
    }

    fn adopt_past(&mut self, index: u32) -> bool {
        let word = self.pasts.word(index);
        let (offset, count) = (word.offset(), word.count());
        if let Some(list) = self.pasts.by_offset.get(&offset).cloned() {
            return list.len() == count as usize && self.pasts.find(&list).is_some();
        }
        let entries = offset..offset + count;
        let list: List = entries
            .filter_map(|entry| self.pasts.history.read(entry))
            .collect();
        let run = Run {
            base: offset,
            log2: log2_of(&list),
        };
        let is_whole = count != 0 && list.len() == count as usize;
        if !is_whole || self.pasts.stored.contains_key(&list) || !self.pasts.arena.reserve(run) {
            return false;
        }
        let mut taken = Vec::new();
        for id in list.iter().map(|owner| owner.backend()) {
            if !self.adopt_backend(id, |backend| &mut backend.lists) {
                self.unlist_backends(taken);
                self.pasts.arena.release(run);
                return false;
            }
            taken.push(id);
        }
        self.pasts.keep(list, run);
        true
    }
}

#[cfg(test)]
mod tests;
