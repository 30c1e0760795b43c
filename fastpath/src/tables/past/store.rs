//! The lists: where they are stored, and which of them each slot has.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::Arc,
};

use xdp_prog::abi::{Past, PastOwner, PastPair, map};

use crate::{
    load::Loaded,
    tables::{Arena, DroppedOwners, Run, TableError, Usage, mapped::Mapped},
};

/// A list of past owners, the newest first.
pub(super) type List = Arc<[PastOwner]>;

/// The lists, and which slots have them.
pub(in super::super) struct Pasts {
    words: Mapped<PastPair>,
    history: Mapped<PastOwner>,
    pub(super) arena: Arena,
    stored: HashMap<List, Stored>,
    by_offset: BTreeMap<u32, List>,
    /// Number of the last change of a service's owners or past owners.
    pub(in super::super) last_change: u64,
    /// The slots that are written of runs that no service has yet.
    pub(super) unfinished: Vec<Range<u32>>,
    /// The second in which there was nothing left to make room of.
    pub(super) short_in: Option<u32>,
    /// What was dropped since the tables were opened.
    pub(in super::super) dropped: DroppedOwners,
    /// What was dropped of the service that is being put.
    pub(super) dropped_now: DroppedOwners,
}

/// The place of a list.
struct Stored {
    run: Run,
    /// Number of slots that have the list.
    slots: u32,
}

/// What becomes of a list that gets shorter.
#[derive(Debug)]
pub(super) struct Shortened {
    /// The word that its slots get.
    pub(super) word: Past,
    /// Runs at which no packet looks any more, after a grace period.
    pub(super) freed: Vec<Run>,
    /// The backends that one list less names.
    pub(super) unlisted: Vec<u32>,
}

impl Pasts {
    /// Opens the maps; no slot has a list until it is adopted.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be opened or mapped.
    pub(in super::super) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        let history = Mapped::<PastOwner>::open(loaded, map::HISTORY)?;
        Ok(Self {
            words: Mapped::open(loaded, map::PASTS)?,
            arena: Arena::new(history.length().min(1 << Past::OFFSET_BITS)),
            history,
            stored: HashMap::new(),
            by_offset: BTreeMap::new(),
            last_change: 0,
            unfinished: Vec::new(),
            short_in: None,
            dropped: DroppedOwners::default(),
            dropped_now: DroppedOwners::default(),
        })
    }

    /// Returns how many entries the lists have, and how many they can have.
    pub(in super::super) fn fill(&self) -> Usage {
        let fill = self.arena.fill();
        // Entry 0 is never used.
        Usage {
            used: (fill.slots - fill.free).saturating_sub(1) as usize,
            capacity: fill.slots.saturating_sub(1) as usize,
        }
    }

    /// Frees a run of entries, at which no packet looks any more.
    pub(in super::super) fn release(&mut self, run: Run) {
        self.arena.release(run);
    }

    pub(in super::super) fn word(&self, index: u32) -> Past {
        let (pair, offset) = place(index);
        Past(self.words.load_u32(pair, offset).unwrap_or_default())
    }

    pub(in super::super) fn owner(&self, index: u32) -> PastOwner {
        self.history.read(index).unwrap_or_default()
    }

    /// Returns how many entries there are, those included that are never used.
    pub(super) fn length(&self) -> u32 {
        self.history.length()
    }

    /// Returns how many slots have a list.
    #[cfg(test)]
    pub(super) fn slots(&self, list: &List) -> u32 {
        self.stored.get(list).map_or(0, |stored| stored.slots)
    }

    #[cfg(test)]
    pub(super) fn set_owner(&mut self, index: u32, owner: PastOwner) {
        self.history.write(index, owner);
    }

    /// Stores the word of a slot. With `keeps_pins`, flows that are pinned stay so.
    pub(super) fn store_word(&mut self, index: u32, word: Past, keeps_pins: bool) {
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
    pub(super) fn mark_pinned(&mut self, index: u32) {
        let (pair, offset) = place(index);
        self.words
            .update_u32(pair, offset, |old| Past(old).pinned().0);
    }

    /// Tells whether no slot has a list.
    pub(super) fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Returns the list of a slot that has a past.
    pub(super) fn list(&self, index: u32) -> Option<&List> {
        self.at(self.word(index).offset())
    }

    /// Returns the list at a place.
    pub(in super::super) fn at(&self, offset: u32) -> Option<&List> {
        self.by_offset.get(&offset)
    }

    /// Lists all lists with their places, in the order of these.
    pub(super) fn lists(&self) -> impl DoubleEndedIterator<Item = (u32, &List)> {
        self.by_offset.iter().map(|(offset, list)| (*offset, list))
    }

    /// Finds a list that is stored, and counts one more slot for it.
    pub(super) fn find(&mut self, list: &[PastOwner]) -> Option<Past> {
        let stored = self.stored.get_mut(list)?;
        stored.slots += 1;
        Some(word_of(stored.run, list))
    }

    /// Stores a new list in its run, for one slot.
    pub(super) fn insert(&mut self, list: List, run: Run) -> Past {
        self.write(&list, run);
        self.keep(list, run, 1)
    }

    fn write(&mut self, list: &List, run: Run) {
        for (index, owner) in (run.base..).zip(list.iter()) {
            self.history.write(index, *owner);
        }
    }

    /// Notes a list that its run holds.
    pub(super) fn keep(&mut self, list: List, run: Run, slots: u32) -> Past {
        let word = word_of(run, &list);
        self.by_offset.insert(run.base, Arc::clone(&list));
        self.stored.insert(list, Stored { run, slots });
        word
    }

    /// Counts one slot less for a list; returns its run if it has none left.
    pub(super) fn drop_slot(&mut self, list: &List) -> Option<Run> {
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

    /// Shortens the list at a place to so many of its newest owners, in its place: no room is needed for that.
    pub(super) fn shorten(&mut self, offset: u32, length: usize) -> Option<Shortened> {
        let list = self.by_offset.remove(&offset)?;
        let Stored { run, slots } = self.stored.remove(&list)?;
        let length = length.min(list.len());
        let ids = |owners: &[PastOwner]| owners.iter().map(|owner| owner.backend()).collect();
        let all_freed = |word| Shortened {
            word,
            freed: vec![run],
            unlisted: ids(&list),
        };
        let (kept, dropped) = list.split_at(length);
        if kept.is_empty() {
            return Some(all_freed(Past::default()));
        }
        if let Some(equal) = self.stored.get_mut(kept) {
            equal.slots += slots;
            let word = word_of(equal.run, kept);
            return Some(all_freed(word));
        }
        let log2 = log2_of(kept);
        let freed = (log2..run.log2).map(|log2| Run {
            base: run.base + (1 << log2),
            log2,
        });
        let base = run.base;
        Some(Shortened {
            freed: freed.collect(),
            unlisted: ids(dropped),
            word: self.keep(kept.into(), Run { base, log2 }, slots),
        })
    }

    /// Copies lists into gaps before them, so that longer runs get free behind. Returns the words that their slots get, by
    /// the places where the lists were, and the runs there.
    pub(super) fn close_gaps(&mut self) -> (HashMap<u32, Past>, Vec<Run>) {
        let lists: Vec<(u32, List)> = self
            .lists()
            .rev()
            .map(|(offset, list)| (offset, Arc::clone(list)))
            .collect();
        let (mut words, mut freed) = (HashMap::new(), Vec::new());
        for (offset, list) in lists {
            let log2 = log2_of(&list);
            let Some(gap) = self.arena.fill_gap(log2, offset) else {
                continue;
            };
            self.by_offset.remove(&offset);
            let slots = self.stored.remove(&list).map_or(0, |stored| stored.slots);
            self.write(&list, gap);
            words.insert(offset, self.keep(list, gap, slots));
            freed.push(Run { base: offset, log2 });
        }
        (words, freed)
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

/// Returns the length of the run for a list, as a power of two.
pub(super) fn log2_of(list: &[PastOwner]) -> u8 {
    // At most four.
    u8::try_from(list.len().next_power_of_two().ilog2()).unwrap_or_default()
}
