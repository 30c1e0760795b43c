//! The index of services ([`xdp_prog::abi::IndexKey`] says how it works), as its only writer sees it.

use std::{collections::BTreeSet, mem::offset_of};

use xdp_prog::abi::{Bucket, IndexKey, Place, WAYS, free_place, map};

use super::{
    ServiceKey, TableError, Usage, encode::index_key, mapped::Mapped, syscall_map::SyscallMap,
};
use crate::load::Loaded;

/// The index, its overflow, and what may not be used again yet.
pub(super) struct ServiceIndex {
    buckets: Mapped<Bucket>,
    overflow: SyscallMap<u64, u64>,
    /// Keys in the overflow.
    overflowing: BTreeSet<IndexKey>,
    seed: u64,
    /// Places that packets in flight may still find a removed key in.
    retired: BTreeSet<Place>,
}

impl ServiceIndex {
    /// Opens the maps of the index.
    ///
    /// # Errors
    ///
    /// When one cannot be opened, read or mapped.
    pub(super) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        Ok(Self {
            buckets: Mapped::open(loaded, map::SERVICE_INDEX)?,
            overflow: SyscallMap::open(loaded, map::SERVICE_OVERFLOW)?,
            overflowing: BTreeSet::new(),
            seed: 0,
            retired: BTreeSet::new(),
        })
    }

    /// Returns what leads to a service here.
    pub(super) fn key(&self, key: &ServiceKey) -> IndexKey {
        index_key(key, self.seed)
    }

    pub(super) fn mask(&self) -> u32 {
        self.buckets.length() - 1
    }

    /// Reports how many keys found their buckets full, and how many may.
    pub(super) fn overflow(&self) -> Usage {
        Usage {
            used: self.overflowing.len(),
            capacity: self.overflow.capacity(),
        }
    }

    /// Takes over the seed that the keys which are there were hashed with.
    ///
    /// # Errors
    ///
    /// When the overflow cannot be read.
    pub(super) fn adopt(&mut self, seed: u64) -> Result<(), TableError> {
        self.seed = seed;
        let keys = self.overflow.keys()?;
        self.overflowing = keys.into_iter().map(IndexKey).collect();
        Ok(())
    }

    /// Removes the keys that do not lead to these ids.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write.
    pub(super) fn retain(
        &mut self,
        is_known: impl Fn(IndexKey, u32) -> bool,
    ) -> Result<(), TableError> {
        for index in 0..self.buckets.length() {
            let Some(bucket) = self.buckets.get(index) else {
                continue;
            };
            let strays = (0..WAYS as usize).filter(|way| {
                let (key, id) = (bucket.keys[*way], bucket.ids[*way]);
                key != 0 && !u32::try_from(id).is_ok_and(|id| is_known(IndexKey(key), id))
            });
            for way in strays.collect::<Vec<_>>() {
                self.clear((index, way));
            }
        }
        for key in self.overflowing.clone() {
            let id = self.get(key);
            if !id.is_some_and(|id| is_known(key, id)) {
                self.remove(key)?;
            }
        }
        Ok(())
    }

    /// Returns the id that a key leads to.
    pub(super) fn get(&self, key: IndexKey) -> Option<u32> {
        let id = match self.find(key) {
            Some((index, way)) => self.buckets.get(index)?.ids[way],
            None => self.overflow.get(&key.0)?,
        };
        u32::try_from(id).ok()
    }

    /// Finds the place of a key, or a free one.
    pub(super) fn place_for(&self, key: IndexKey) -> Option<Place> {
        self.find(key).or_else(|| {
            let [first, second] = self.buckets_of(key);
            let bucket = |index| Some((index, self.buckets.get(index)?));
            let is_usable = |place: &Place| !self.retired.contains(place);
            free_place([bucket(first)?, bucket(second)?], is_usable)
        })
    }

    /// Leads a key to an id from a place that [`ServiceIndex::place_for`] has found; the key is the last to be stored.
    pub(super) fn store(&mut self, place: Place, key: IndexKey, id: u32) {
        self.store_word(place, offset_of!(Bucket, ids), id.into());
        self.store_word(place, offset_of!(Bucket, keys), key.0);
    }

    /// Leads a key that finds no place to an id. Programs must have been told to ask the overflow.
    ///
    /// # Errors
    ///
    /// When the overflow is full or the kernel refuses the write.
    pub(super) fn store_aside(&mut self, key: IndexKey, id: u32) -> Result<(), TableError> {
        self.overflow.insert_new(key.0, u64::from(id))?;
        self.overflowing.insert(key);
        Ok(())
    }

    pub(super) fn is_aside(&self, key: IndexKey) -> bool {
        self.overflowing.contains(&key)
    }

    /// Removes a key; its place is used again after [`ServiceIndex::reclaim`].
    ///
    /// # Errors
    ///
    /// When the kernel refuses the write.
    pub(super) fn remove(&mut self, key: IndexKey) -> Result<(), TableError> {
        if let Some(place) = self.find(key) {
            self.clear(place);
        } else if self.overflowing.contains(&key) {
            self.overflow.remove(&key.0)?;
            self.overflowing.remove(&key);
        }
        Ok(())
    }

    /// Frees the places of removed keys: no packet looks at them any more.
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
