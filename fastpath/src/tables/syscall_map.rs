//! Maps that user space reads and writes entry by entry, with system calls.

use std::{borrow::Borrow, collections::BTreeMap, io};

use aya::{
    Pod,
    maps::{self, Map, MapData, MapError},
};

use super::{TableError, gate};
use crate::load::Loaded;

/// Flag of an insertion: only where the key is not there.
pub(super) const NOEXIST: u64 = 1;
/// Flag of an insertion: only where the key is there.
pub(super) const EXIST: u64 = 2;

/// A map of whatever type with one value for each key: hash, LRU hash, trie or array.
pub(super) struct SyscallMap<K, V> {
    name: &'static str,
    capacity: usize,
    /// The kernel's calls are the same for all of these types, and aya compares sizes, not types.
    map: maps::HashMap<MapData, K, V>,
}

impl<K: Pod, V: Pod> SyscallMap<K, V> {
    pub(super) fn open(loaded: &Loaded, name: &'static str) -> Result<Self, TableError> {
        Self::of(loaded.map(name)?, name)
    }

    /// Takes over a map that is open.
    pub(super) fn of(data: MapData, name: &'static str) -> Result<Self, TableError> {
        let failed = TableError::read(name);
        Ok(Self {
            name,
            capacity: data.info().map_err(&failed)?.max_entries() as usize,
            map: maps::HashMap::try_from(Map::HashMap(data)).map_err(failed)?,
        })
    }

    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the value of a key; nothing where there is none or the kernel does not show it.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.map.get(key, 0).ok()
    }

    /// Returns the value of a key that is there.
    pub(super) fn read(&self, key: &K) -> Result<V, TableError> {
        self.map.get(key, 0).map_err(TableError::read(self.name))
    }

    pub(super) fn keys(&self) -> Result<Vec<K>, TableError> {
        let keys = gate::refusal().into_iter().chain(self.map.keys());
        let keys: Result<_, MapError> = keys.collect();
        keys.map_err(TableError::read(self.name))
    }

    pub(super) fn entries(&self) -> Result<Vec<(K, V)>, TableError> {
        let entries = gate::refusal().into_iter().chain(self.map.iter());
        let entries: Result<_, MapError> = entries.collect();
        entries.map_err(TableError::read(self.name))
    }

    pub(super) fn insert(
        &mut self,
        key: impl Borrow<K>,
        value: impl Borrow<V>,
    ) -> Result<(), TableError> {
        self.insert_if(key, value, 0)
    }

    /// Inserts an entry on the condition that the flag says.
    pub(super) fn insert_if(
        &mut self,
        key: impl Borrow<K>,
        value: impl Borrow<V>,
        flag: u64,
    ) -> Result<(), TableError> {
        let inserted = gate::pass(|| self.map.insert(key, value, flag));
        inserted
            .unwrap_or(Ok(()))
            .map_err(TableError::write(self.name))
    }

    /// Inserts an entry, and says of a full map that it is.
    pub(super) fn insert_new(
        &mut self,
        key: impl Borrow<K>,
        value: impl Borrow<V>,
    ) -> Result<(), TableError> {
        self.insert(key, value).map_err(|error| match error {
            TableError::Write { map, source }
                if matches!(os_error(&source), Some(libc::E2BIG | libc::ENOSPC)) =>
            {
                TableError::full(map, self.capacity)
            }
            error => error,
        })
    }

    /// Inserts an entry where there is none and the map has room; tells whether it did.
    pub(super) fn insert_absent(&mut self, key: &K, value: &V) -> Result<bool, TableError> {
        match self.insert_if(key, value, NOEXIST) {
            Err(TableError::Write { source, .. })
                if matches!(os_error(&source), Some(libc::EEXIST | libc::E2BIG)) =>
            {
                Ok(false)
            }
            outcome => outcome.map(|()| true),
        }
    }

    /// Removes an entry; one that is gone already is as good.
    pub(super) fn remove(&mut self, key: &K) -> Result<(), TableError> {
        match gate::pass(|| self.map.remove(key)) {
            Some(Err(error)) if os_error(&error) != Some(libc::ENOENT) => {
                Err(TableError::write(self.name)(error))
            }
            _ => Ok(()),
        }
    }
}

fn os_error(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(error) => io::Error::raw_os_error(&error.io_error),
        _ => None,
    }
}

/// A map that nobody else adds to or removes from, and what it holds in user space's words: reading it back takes two
/// system calls for each entry.
pub(super) struct Mirrored<T, K, V> {
    map: SyscallMap<K, V>,
    held: BTreeMap<T, V>,
    key_of: fn(T) -> K,
}

impl<T: Copy + Ord, K: Pod, V: Pod + PartialEq> Mirrored<T, K, V> {
    /// Opens a map and reads what is in it; `read` finds nothing in a key that could not be.
    pub(super) fn open(
        loaded: &Loaded,
        name: &'static str,
        key_of: fn(T) -> K,
        read: fn(K) -> Option<T>,
    ) -> Result<Self, TableError> {
        let map = SyscallMap::open(loaded, name)?;
        let entries = map.entries()?.into_iter();
        Ok(Self {
            held: entries
                .filter_map(|(key, value)| Some((read(key)?, value)))
                .collect(),
            map,
            key_of,
        })
    }

    /// Returns what the map holds.
    pub(super) const fn held(&self) -> &BTreeMap<T, V> {
        &self.held
    }

    /// Returns the map itself, for its values as programs see or change them.
    pub(super) const fn map(&mut self) -> &mut SyscallMap<K, V> {
        &mut self.map
    }

    /// Returns the value that the map has for a key.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.map.get(key)
    }

    /// Makes the map hold exactly these. After a failure it holds some of them.
    pub(super) fn replace(&mut self, wanted: &BTreeMap<T, V>) -> Result<(), TableError> {
        if self.insert_missing(wanted).is_err() {
            // What goes may be what fills the map.
            self.remove_others(wanted)?;
            self.insert_missing(wanted)?;
        }
        self.remove_others(wanted)
    }

    fn insert_missing(&mut self, wanted: &BTreeMap<T, V>) -> Result<(), TableError> {
        for (one, value) in wanted {
            if self.held.get(one) != Some(value) {
                self.map.insert((self.key_of)(*one), value)?;
                self.held.insert(*one, *value);
            }
        }
        Ok(())
    }

    fn remove_others(&mut self, wanted: &BTreeMap<T, V>) -> Result<(), TableError> {
        let held = self.held.keys().copied();
        let others: Vec<T> = held.filter(|one| !wanted.contains_key(one)).collect();
        for one in others {
            self.map.remove(&(self.key_of)(one))?;
            self.held.remove(&one);
        }
        Ok(())
    }
}

impl<T: Copy + Ord, K: Pod> Mirrored<T, K, u32> {
    /// Makes a map that is a set hold exactly these.
    pub(super) fn replace_set<'t>(
        &mut self,
        wanted: impl IntoIterator<Item = &'t T>,
    ) -> Result<(), TableError>
    where
        T: 't,
    {
        self.replace(&wanted.into_iter().map(|one| (*one, 1)).collect())
    }
}
