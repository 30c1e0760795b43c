//! The writer's side of the service index; [`xdp_prog::abi::IndexKey`] describes the index.

use std::{collections::BTreeSet, mem::offset_of};

use xdp_prog::abi::{Bucket, IndexEntry, IndexKey, Place, WAYS, free_place, map};

use super::{
    ServiceKey, TableError, Usage, encode::index_key, mapped::Mapped, syscall_map::SyscallMap,
};
use crate::load::Loaded;

/// The index, its overflow, and the places that must not be reused yet.
pub(super) struct ServiceIndex {
    buckets: Mapped<Bucket>,
    overflow: SyscallMap<u64, IndexEntry>,
    /// Keys in the overflow.
    overflowing: BTreeSet<IndexKey>,
    seed: u64,
    /// Places where packets in flight may still find a removed key.
    retired: BTreeSet<Place>,
}

impl ServiceIndex {
    /// Opens the maps of the index.
    ///
    /// # Errors
    ///
    /// Fails if one of them cannot be opened, read or mapped.
    pub(super) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        Ok(Self {
            buckets: Mapped::open(loaded, map::SERVICE_INDEX)?,
            overflow: SyscallMap::open(loaded, map::SERVICE_OVERFLOW)?,
            overflowing: BTreeSet::new(),
            seed: 0,
            retired: BTreeSet::new(),
        })
    }

    /// Returns a service's key in this index.
    pub(super) fn key(&self, key: &ServiceKey) -> IndexKey {
        index_key(key, self.seed)
    }

    pub(super) fn mask(&self) -> u32 {
        self.buckets.length() - 1
    }

    /// Returns how many keys are in the overflow, and how many can be.
    pub(super) fn overflow(&self) -> Usage {
        Usage {
            used: self.overflowing.len(),
            capacity: self.overflow.capacity(),
        }
    }

    /// Adopts the seed with which the existing keys were hashed.
    ///
    /// # Errors
    ///
    /// Fails if the overflow cannot be read.
    pub(super) fn adopt(&mut self, seed: u64) -> Result<(), TableError> {
        self.seed = seed;
        let keys = self.overflow.keys()?;
        self.overflowing = keys.into_iter().map(IndexKey).collect();
        Ok(())
    }

    /// Removes the keys that do not lead to a known id, and mends what the index says of the others.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a write.
    pub(super) fn retain(
        &mut self,
        known: impl Fn(IndexKey, u32) -> Option<IndexEntry>,
    ) -> Result<(), TableError> {
        for index in 0..self.buckets.length() {
            let Some(bucket) = self.buckets.read(index) else {
                continue;
            };
            for way in (0..WAYS as usize).filter(|way| bucket.keys[*way] != 0) {
                let (key, found) = (IndexKey(bucket.keys[way]), bucket.entries[way]);
                match known(key, found.id()) {
                    Some(entry) if entry == found => {}
                    Some(entry) => self.store((index, way), key, entry),
                    None => self.clear((index, way)),
                }
            }
        }
        for key in self.overflowing.clone() {
            let entry = self.get(key);
            if entry.and_then(|entry| known(key, entry.id())).is_none() {
                self.remove(key)?;
            }
        }
        Ok(())
    }

    /// Returns the entry to which a key leads.
    pub(super) fn get(&self, key: IndexKey) -> Option<IndexEntry> {
        match self.find(key) {
            Some((index, way)) => Some(self.buckets.get(index)?.entries[way]),
            None => self.overflow.get(&key.0),
        }
    }

    /// Returns the place of a key, else a free place for it.
    pub(super) fn place_for(&self, key: IndexKey) -> Option<Place> {
        self.find(key).or_else(|| {
            let [first, second] = self.buckets_of(key);
            let bucket = |index| Some((index, self.buckets.get(index)?));
            let is_usable = |place: &Place| !self.retired.contains(place);
            free_place([bucket(first)?, bucket(second)?], is_usable)
        })
    }

    /// Writes a key and its entry in a place from [`ServiceIndex::place_for`]. The key is stored last, because it
    /// makes the entry visible.
    pub(super) fn store(&mut self, place: Place, key: IndexKey, entry: IndexEntry) {
        self.store_word(place, offset_of!(Bucket, entries), entry.0);
        self.store_word(place, offset_of!(Bucket, keys), key.0);
    }

    /// Replaces the entry of a key that has a place; in the overflow, an entry has nothing but the id.
    pub(super) fn update(&mut self, key: IndexKey, entry: IndexEntry) {
        if let Some(place) = self.find(key) {
            self.store_word(place, offset_of!(Bucket, entries), entry.0);
        }
    }

    /// Writes a key without a place, and its id, into the overflow. Programs must look there already.
    ///
    /// # Errors
    ///
    /// Fails if the overflow is full, or if the kernel refuses the write.
    pub(super) fn store_aside(&mut self, key: IndexKey, id: u32) -> Result<(), TableError> {
        self.overflow.insert_new(key.0, IndexEntry::of_id(id))?;
        self.overflowing.insert(key);
        Ok(())
    }

    pub(super) fn is_aside(&self, key: IndexKey) -> bool {
        self.overflowing.contains(&key)
    }

    /// Removes a key. Its place can be reused after [`ServiceIndex::reclaim`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the write.
    pub(super) fn remove(&mut self, key: IndexKey) -> Result<(), TableError> {
        if let Some(place) = self.find(key) {
            self.clear(place);
        } else if self.overflowing.contains(&key) {
            self.overflow.remove(&key.0)?;
            self.overflowing.remove(&key);
        }
        Ok(())
    }

    /// Frees the places of removed keys. No packet in flight may look at them any more.
    pub(super) fn reclaim(&mut self) {
        self.retired.clear();
    }

    fn buckets_of(&self, key: IndexKey) -> [u32; 2] {
        key.buckets(self.seed, self.mask())
    }

    fn find(&self, key: IndexKey) -> Option<Place> {
        self.buckets_of(key).into_iter().find_map(|index| {
            let keys = self.buckets.get(index)?.keys;
            let way = keys.iter().position(|known| *known == key.0)?;
            Some((index, way))
        })
    }

    fn clear(&mut self, place: Place) {
        self.store_word(place, offset_of!(Bucket, keys), 0);
        self.retired.insert(place);
    }

    fn store_word(&mut self, (index, way): Place, part: usize, word: u64) {
        let offset = part + way * size_of::<u64>();
        self.buckets.store_u64(index, offset, word);
    }
}
