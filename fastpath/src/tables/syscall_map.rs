//! Maps that user space reads and writes entry by entry, with system calls.

use std::{borrow::Borrow, collections::BTreeMap, io};

use aya::{
    Pod,
    maps::{self, Map, MapData, MapError},
};

use super::{TableError, gate};
use crate::load::Loaded;

/// Flag of an insertion: fails if the key exists.
pub(super) const NOEXIST: u64 = 1;
/// Flag of an insertion: fails if the key does not exist.
pub(super) const EXIST: u64 = 2;

/// A map of any type that has one value for each key: hash, LRU hash, trie or array.
pub(super) struct SyscallMap<K, V> {
    name: &'static str,
    capacity: usize,
    /// The system calls are the same for all of these types. Aya compares only the sizes, not the type.
    map: maps::HashMap<MapData, K, V>,
}

impl<K: Pod, V: Pod> SyscallMap<K, V> {
    pub(super) fn open(loaded: &Loaded, name: &'static str) -> Result<Self, TableError> {
        Self::of(loaded.map(name)?, name)
    }

    /// Uses an open map.
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

    /// Returns the value of a key; `None` if there is none, or the kernel does not return it.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.map.get(key, 0).ok()
    }

    /// Returns the value of a key that must exist.
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

    /// Inserts an entry under the condition of the flag.
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

    /// Inserts an entry; the error tells whether the map is full.
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

    /// Inserts an entry if its key does not exist and the map has room; tells whether it was inserted.
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

    /// Removes an entry; succeeds if it is gone already.
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

/// A map whose entries only this process adds and removes, with a copy of its contents in user space's types. Reading
/// the map back would take two system calls for each entry.
pub(super) struct Mirrored<T, K, V> {
    map: SyscallMap<K, V>,
    held: BTreeMap<T, V>,
    key_of: fn(T) -> K,
}

impl<T: Copy + Ord, K: Pod, V: Pod + PartialEq> Mirrored<T, K, V> {
    /// Opens a map and reads its contents; entries for whose key `read` returns `None` are left out.
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

    /// Returns the contents of the map.
    pub(super) const fn held(&self) -> &BTreeMap<T, V> {
        &self.held
    }

    /// Returns the map itself, for values that programs change.
    pub(super) const fn map(&mut self) -> &mut SyscallMap<K, V> {
        &mut self.map
    }

    /// Returns the map's value of a key.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.map.get(key)
    }

    /// Replaces the contents of the map. After a failure, it has some of the wanted entries.
    pub(super) fn replace(&mut self, wanted: &BTreeMap<T, V>) -> Result<(), TableError> {
        if self.insert_missing(wanted).is_err() {
            // The entries that go may be those that fill the map.
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
    /// Replaces the contents of a map that is a set.
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
