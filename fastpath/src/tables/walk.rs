//! Walks through tables that the datapath writes, some thousand entries at a time.

use aya::maps::MapData;
use xdp_prog::abi::Tuple;

use super::{TableError, Usage, batch::Entries};
use crate::load::Loaded;

/// Entries that are read at once.
const BATCH: usize = 4096;

/// A walk through a hash from tuples, again and again.
pub(super) struct Walk<V> {
    entries: Entries<Tuple, V>,
    capacity: usize,
    /// Where it goes on; nothing at its beginning.
    cursor: Option<u32>,
    /// Entries that count, of those that it has passed since its beginning.
    passed: usize,
    /// Entries that counted when it last came to its end.
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

    /// Passes about `budget` entries, or those up to the end, and asks which of them count. Returns how many it has
    /// passed.
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
}

impl<V> Walk<V> {
    /// Tells whether it has come to its end, and begins anew.
    pub(super) const fn is_whole(&self) -> bool {
        self.cursor.is_none()
    }

    /// Returns how many entries counted when it last came to its end.
    pub(super) const fn counted(&self) -> usize {
        self.counted
    }

    /// Reports these as what is used of the table.
    pub(super) const fn usage(&self) -> Usage {
        Usage {
            used: self.counted,
            capacity: self.capacity,
        }
    }
}
