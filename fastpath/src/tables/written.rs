//! Maps that this side writes to, through one gate: tests let it shut after a number of writes, as if the process had
//! ended there, and have reads refused.

use std::borrow::Borrow;

use aya::{
    Pod,
    maps::{self, Map, MapData, MapError, lpm_trie::Key},
};

/// A map whose writes pass the gate.
pub(super) struct Written<M>(M);

impl<M: TryFrom<Map, Error = MapError>> TryFrom<Map> for Written<M> {
    type Error = MapError;

    fn try_from(map: Map) -> Result<Self, MapError> {
        M::try_from(map).map(Self)
    }
}

impl<K: Pod, V: Pod> Written<maps::HashMap<MapData, K, V>> {
    pub(super) fn get(&self, key: &K, flags: u64) -> Result<V, MapError> {
        self.0.get(key, flags)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Result<(K, V), MapError>> {
        gate::refusal().into_iter().chain(self.0.iter())
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Result<K, MapError>> {
        gate::refusal().into_iter().chain(self.0.keys())
    }

    pub(super) fn insert(
        &mut self,
        key: impl Borrow<K>,
        value: impl Borrow<V>,
        flags: u64,
    ) -> Result<(), MapError> {
        gate::pass(|| self.0.insert(key, value, flags)).unwrap_or(Ok(()))
    }

    pub(super) fn remove(&mut self, key: &K) -> Result<(), MapError> {
        gate::pass(|| self.0.remove(key)).unwrap_or(Ok(()))
    }
}

impl<K: Pod, V: Pod> Written<maps::lpm_trie::LpmTrie<MapData, K, V>> {
    pub(super) fn get(&self, key: &Key<K>, flags: u64) -> Result<V, MapError> {
        self.0.get(key, flags)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Result<Key<K>, MapError>> {
        gate::refusal().into_iter().chain(self.0.keys())
    }

    pub(super) fn insert(
        &mut self,
        key: &Key<K>,
        value: impl Borrow<V>,
        flags: u64,
    ) -> Result<(), MapError> {
        gate::pass(|| self.0.insert(key, value, flags)).unwrap_or(Ok(()))
    }

    pub(super) fn remove(&mut self, key: &Key<K>) -> Result<(), MapError> {
        gate::pass(|| self.0.remove(key)).unwrap_or(Ok(()))
    }
}

impl<V: Pod> Written<maps::Array<MapData, V>> {
    pub(super) fn len(&self) -> u32 {
        self.0.len()
    }

    pub(super) fn get(&self, index: u32) -> Result<V, MapError> {
        self.0.get(&index, 0)
    }

    pub(super) fn set(&mut self, index: u32, value: impl Borrow<V>) -> Result<(), MapError> {
        gate::pass(|| self.0.set(index, value, 0)).unwrap_or(Ok(()))
    }
}

#[cfg(not(test))]
pub(super) mod gate {
    /// Makes a write.
    pub(in super::super) fn pass<T>(write: impl FnOnce() -> T) -> Option<T> {
        Some(write())
    }

    /// Returns why a list cannot be read: no reason.
    pub(super) fn refusal<T>() -> Option<T> {
        None
    }
}

#[cfg(test)]
pub(super) mod gate {
    use std::{cell::Cell, io};

    use aya::{maps::MapError, sys::SyscallError};

    thread_local! {
        static WRITES: Cell<u64> = const { Cell::new(0) };
        static LIMIT: Cell<u64> = const { Cell::new(u64::MAX) };
        static READS_FAIL: Cell<bool> = const { Cell::new(false) };
    }

    /// Makes a write, unless the process has ended before it.
    pub(in super::super) fn pass<T>(write: impl FnOnce() -> T) -> Option<T> {
        let number = WRITES.get() + 1;
        WRITES.set(number);
        (number <= LIMIT.get()).then(write)
    }

    /// Ends this thread's process, as far as maps see it, after so many writes from now on; returns how many it has
    /// tried in `task`, and what that returned.
    pub(in super::super) fn end_after<T>(writes: u64, task: impl FnOnce() -> T) -> (u64, T) {
        WRITES.set(0);
        LIMIT.set(writes);
        let outcome = task();
        LIMIT.set(u64::MAX);
        (WRITES.get(), outcome)
    }

    /// Has lists refused while `task` runs.
    pub(in super::super) fn refuse_reads<T>(task: impl FnOnce() -> T) -> T {
        READS_FAIL.set(true);
        let outcome = task();
        READS_FAIL.set(false);
        outcome
    }

    pub(super) fn refusal<T>() -> Option<Result<T, MapError>> {
        READS_FAIL.get().then(|| {
            Err(MapError::SyscallError(SyscallError {
                call: "bpf_map_get_next_key",
                io_error: io::Error::from_raw_os_error(libc::EFAULT),
            }))
        })
    }
}
