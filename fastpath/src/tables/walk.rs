//! Walks through tables that the datapath writes, some thousand entries at a time.

use aya::maps::MapData;
use xdp_prog::abi::Tuple;

use super::{TableError, Usage, batch::Entries};
use crate::load::Loaded;

/// Number of entries that are read at once.
const BATCH: usize = 4096;

/// A repeated walk through a hash map from tuples.
pub(super) struct Walk<V> {
    entries: Entries<Tuple, V>,
    capacity: usize,
    /// Cursor of the next entries; `None` at the beginning.
    cursor: Option<u32>,
    /// Entries that counted since the beginning of this walk.
    passed: usize,
    /// Entries that counted in the last complete walk.
    counted: usize,
}

impl<V: aya::Pod + Default> Walk<V> {
    pub(super) fn through(loaded: &Loaded, name: &'static str) -> Result<Self, TableError> {
        Self::over(loaded.map(name)?, name)
    }

    pub(super) fn over(map: MapData, name: &'static str) -> Result<Self, TableError> {
        let entries = Entries::over(map, name)?;
        Ok(Self {
            capacity: entries.capacity()?,
            entries,
            cursor: None,
            passed: 0,
            counted: 0,
        })
    }

    /// Walks over about `budget` entries, or to the end, and asks `counts` about each. Returns the number of entries.
    pub(super) fn go(
        &mut self,
        budget: usize,
        mut counts: impl FnMut(&Tuple, &V) -> Result<bool, TableError>,
    ) -> Result<usize, TableError> {
        let mut keys = vec![Tuple::default(); BATCH];
        let mut values = vec![V::default(); BATCH];
        let mut passed = 0;
        while passed < budget {
            let batch = self.entries.read(self.cursor, &mut keys, &mut values)?;
            for (key, value) in keys.iter().zip(&values).take(batch.count) {
                self.passed += usize::from(counts(key, value)?);
            }
            passed += batch.count;
            self.cursor = batch.next;
            if self.is_whole() {
                self.counted = std::mem::take(&mut self.passed);
                break;
            }
        }
        Ok(passed)
    }

    /// Returns the time since when those entries are that a smaller table takes: the newest, and a quarter of it stays
    /// free. 0 if the table is not smaller, or takes all.
    pub(super) fn newest_since(
        &mut self,
        capacity: usize,
        time: impl Fn(&V) -> u64,
    ) -> Result<u64, TableError> {
        if self.capacity <= capacity {
            return Ok(0);
        }
        let mut times = Vec::new();
        self.go(usize::MAX, |_, value| {
            times.push(time(value));
            Ok(true)
        })?;
        let Some(surplus) = times.len().checked_sub(capacity - capacity / 4) else {
            return Ok(0);
        };
        times.sort_unstable();
        Ok(times.get(surplus).copied().unwrap_or(u64::MAX))
    }
}

impl<V> Walk<V> {
    /// Tells whether the walk has reached its end and will start again.
    pub(super) const fn is_whole(&self) -> bool {
        self.cursor.is_none()
    }

    /// Returns how many entries counted in the last complete walk.
    pub(super) const fn counted(&self) -> usize {
        self.counted
    }

    /// Returns that number as the use of the table.
    pub(super) const fn usage(&self) -> Usage {
        Usage {
            used: self.counted,
            capacity: self.capacity,
        }
    }
}
