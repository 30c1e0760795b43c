//! Allocation of runs: of slots in the LUT, and of past owners in `HISTORY`.
//!
//! A binary buddy allocator (Knuth, TAOCP 2.5): runs are powers of two and begin at multiples of their length, so
//! freed neighbours merge again. It only keeps account; what is in a run is in the mapped array.

use std::{collections::BTreeSet, ops::Range};

/// Number of run lengths, from 2^0 slots to the largest arena.
const ORDERS: u8 = 29;

/// A run of slots, or of past owners: `base .. base + 2^log2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    pub base: u32,
    /// Base-2 logarithm of the number of slots.
    pub log2: u8,
}

impl Run {
    /// Returns the number of slots.
    pub const fn length(self) -> u32 {
        1 << self.log2
    }

    /// Returns the indexes of its slots.
    pub const fn slots(self) -> Range<u32> {
        self.base..self.base + self.length()
    }

    const fn buddy(self) -> u32 {
        self.base ^ self.length()
    }
}

/// The free runs of an arena.
#[derive(Clone, Debug)]
pub struct Arena {
    slots: u32,
    free: [BTreeSet<u32>; ORDERS as usize],
}

/// How full an arena is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaFill {
    pub slots: u32,
    /// Slots that belong to no run.
    pub free: u32,
    /// Length of the longest run that can be allocated.
    pub largest_free: u32,
}

impl Arena {
    /// Makes an arena. Slot 0, the mark of "no table", is never allocated.
    pub fn new(slots: u32) -> Self {
        let mut arena = Self {
            slots,
            free: Default::default(),
        };
        let mut base = 0;
        while base < slots {
            let fitting = (0..ORDERS)
                .rev()
                .map(|log2| Run { base, log2 })
                .find(|run| base.is_multiple_of(run.length()) && run.length() <= slots - base);
            let Some(run) = fitting else { break };
            arena.release(run);
            base += run.length();
        }
        arena.reserve(Run { base: 0, log2: 0 });
        arena
    }

    /// Allocates a run of 2^`log2` slots; `None` if none is free.
    pub fn allocate(&mut self, log2: u8) -> Option<Run> {
        let order = (log2..ORDERS).find(|&order| !self.free[usize::from(order)].is_empty())?;
        let base = self.free[usize::from(order)].pop_first()?;
        self.split(Run { base, log2: order }, Run { base, log2 });
        Some(Run { base, log2 })
    }

    /// Allocates the first free run of 2^`log2` slots that is no part of a longer one, if it begins before `end`.
    pub fn fill_gap(&mut self, log2: u8, end: u32) -> Option<Run> {
        let free = self.free.get_mut(usize::from(log2))?;
        let base = *free.first().filter(|base| **base < end)?;
        free.remove(&base);
        Some(Run { base, log2 })
    }

    /// Allocates a given run; returns whether all of it was free.
    pub fn reserve(&mut self, wanted: Run) -> bool {
        let aligned = wanted.base.is_multiple_of(wanted.length());
        let mut around = (wanted.log2..ORDERS).map(|log2| Run {
            base: wanted.base >> log2 << log2,
            log2,
        });
        let Some(free) = around.find(|run| self.free[usize::from(run.log2)].contains(&run.base))
        else {
            return false;
        };
        if !aligned {
            return false;
        }
        self.free[usize::from(free.log2)].remove(&free.base);
        self.split(free, wanted);
        true
    }

    /// Frees a run.
    pub fn release(&mut self, mut run: Run) {
        while run.log2 < ORDERS - 1 && self.free[usize::from(run.log2)].remove(&run.buddy()) {
            run = Run {
                base: run.base.min(run.buddy()),
                log2: run.log2 + 1,
            };
        }
        self.free[usize::from(run.log2)].insert(run.base);
    }

    /// Reports how full the arena is.
    pub fn fill(&self) -> ArenaFill {
        let count = |(order, runs): (usize, &BTreeSet<u32>)| (runs.len() as u64) << order;
        let free: u64 = self.free.iter().enumerate().map(count).sum();
        let largest = self.free.iter().rposition(|runs| !runs.is_empty());
        ArenaFill {
            slots: self.slots,
            // The sum is at most the number of slots.
            free: u32::try_from(free).unwrap_or(self.slots),
            largest_free: largest.map_or(0, |order| 1 << order),
        }
    }

    /// Frees the parts of `outer`, which is on no list, around `kept`.
    fn split(&mut self, mut outer: Run, kept: Run) {
        while outer.log2 > kept.log2 {
            let half = Run {
                base: outer.base,
                log2: outer.log2 - 1,
            };
            let (with, without) = if kept.base & half.length() == 0 {
                (half.base, half.buddy())
            } else {
                (half.buddy(), half.base)
            };
            self.free[usize::from(half.log2)].insert(without);
            outer = Run {
                base: with,
                log2: half.log2,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_zero_is_never_given_out() {
        let mut arena = Arena::new(16);
        assert_eq!(
            arena.fill(),
            ArenaFill {
                slots: 16,
                free: 15,
                largest_free: 8
            }
        );
        assert_eq!(arena.allocate(4), None);
        let runs: Vec<Run> = std::iter::from_fn(|| arena.allocate(0)).collect();
        assert_eq!(runs.len(), 15);
        assert!(runs.iter().all(|run| run.base != 0));
    }

    #[test]
    fn freed_neighbours_merge_again() {
        let mut arena = Arena::new(1 << 12);
        let before = arena.fill();
        let mut runs: Vec<Run> = (0..8).map(|log2| arena.allocate(log2).unwrap()).collect();
        runs.rotate_left(3);
        for run in runs {
            arena.release(run);
        }
        assert_eq!(arena.fill(), before);
        assert!(arena.allocate(11).is_some());
    }

    #[test]
    fn runs_never_overlap() {
        // A fixed walk of allocations and releases, checked against a bitmap.
        let mut arena = Arena::new(3000);
        let mut taken = vec![false; 3000];
        taken[0] = true;
        let mut held = Vec::new();
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let dice = usize::try_from(state >> 33).unwrap();
            if dice.is_multiple_of(2) || held.is_empty() {
                if let Some(run) = arena.allocate(u8::try_from(dice / 2 % 9).unwrap()) {
                    for slot in run.slots() {
                        assert!(
                            !std::mem::replace(&mut taken[slot as usize], true),
                            "{run:?}"
                        );
                    }
                    held.push(run);
                }
            } else {
                let run = held.swap_remove(dice / 2 % held.len());
                taken[run.base as usize..(run.base + run.length()) as usize].fill(false);
                arena.release(run);
            }
            let free = taken.iter().filter(|&&taken| !taken).count();
            assert_eq!(arena.fill().free as usize, free);
        }
    }

    #[test]
    fn gap_is_filled_without_a_longer_run_being_split() {
        let mut arena = Arena::new(64);
        let runs: Vec<Run> = std::iter::from_fn(|| arena.allocate(2)).collect();
        for place in [3, 5, 6] {
            arena.release(runs[place]);
        }
        assert_eq!(arena.fill_gap(2, runs[3].base), None, "it is not before");
        assert_eq!(arena.fill_gap(2, 64), Some(runs[3]));
        // The others have merged.
        assert_eq!(arena.fill_gap(2, 64), None);
    }

    #[test]
    fn reserving_takes_exactly_that_run_once() {
        let mut arena = Arena::new(64);
        let run = Run { base: 40, log2: 3 };
        assert!(arena.reserve(run));
        assert!(!arena.reserve(run));
        assert!(
            !arena.reserve(Run { base: 32, log2: 4 }),
            "overlaps the reserved one"
        );
        assert!(!arena.reserve(Run { base: 2, log2: 2 }), "is not aligned");
        assert!(
            !arena.reserve(Run { base: 64, log2: 0 }),
            "lies beyond the arena"
        );
        assert_eq!(arena.fill().free, 64 - 1 - 8);
        arena.release(run);
        assert_eq!(arena.fill().free, 63);
    }
}
