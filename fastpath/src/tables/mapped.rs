//! Array maps in memory that user space shares with the kernel.

use std::{
    io,
    marker::PhantomData,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use aya::{Pod, maps::MapData};
use memmap2::{MmapOptions, MmapRaw};

use super::{TableError, gate};
use crate::load::Loaded;

/// An mmapable array map with entries of type `T`.
///
/// Entries that a program may be reading change only by single stores. [`Mapped::write`] is for entries to which
/// nothing leads.
#[derive(Debug)]
pub(super) struct Mapped<T> {
    memory: Arc<MmapRaw>,
    length: u32,
    entry: PhantomData<T>,
}

impl<T: Pod> Mapped<T> {
    /// Opens an array and maps it into memory.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be opened or mapped.
    pub(super) fn open(loaded: &Loaded, name: &'static str) -> Result<Self, TableError> {
        Self::over(&loaded.map(name)?, name)
    }

    /// Maps an open array into memory.
    pub(super) fn over(map: &MapData, name: &'static str) -> Result<Self, TableError> {
        Self::new(map).map_err(|source| TableError::Mapping { map: name, source })
    }

    fn new(map: &MapData) -> io::Result<Self> {
        const {
            // The kernel places entries at multiples of their size, rounded up to eight.
            assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8);
        }
        let info = map.info().map_err(io::Error::other)?;
        if info.value_size() as usize != size_of::<T>() {
            return Err(io::Error::other(
                "entry size differs from the layout of this version",
            ));
        }
        let length = info.max_entries();
        let memory = MmapOptions::new()
            .len(length as usize * size_of::<T>())
            .map_raw(map.fd().as_fd().as_raw_fd())?;
        Ok(Self {
            memory: Arc::new(memory),
            length,
            entry: PhantomData,
        })
    }

    /// Returns the same memory for a reader, which would count for the process twice if it were mapped again.
    pub(super) fn shared(&self) -> Self {
        Self {
            memory: Arc::clone(&self.memory),
            length: self.length,
            entry: PhantomData,
        }
    }

    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// Copies an entry, each eight bytes of it with one load.
    pub(super) fn read(&self, index: u32) -> Option<T> {
        let entry = self.pointer(index)?.cast::<u64>();
        let mut copy = MaybeUninit::<T>::uninit();
        let words = copy.as_mut_ptr().cast::<u64>();
        for place in 0..size_of::<T>() / 8 {
            // SAFETY: the word is within the mapping and aligned to eight, as the entries are.
            let word = unsafe { AtomicU64::from_ptr(entry.wrapping_add(place)) };
            let word = word.load(Ordering::Relaxed);
            // SAFETY: the place is within the copy, which may be aligned to less.
            unsafe { words.wrapping_add(place).write_unaligned(word) };
        }
        // SAFETY: all its words are written, as asserted in `new`; `Pod` accepts any bytes.
        Some(unsafe { copy.assume_init() })
    }

    /// Borrows an entry of an array that no program writes to.
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        let entry = self.pointer(index)?;
        // SAFETY: as in `read`. `Tables` is the only writer and borrows itself exclusively for changes, so the entry
        // does not change while it is lent.
        Some(unsafe { &*entry })
    }

    /// Overwrites an entry that no program reads.
    pub(super) fn write(&mut self, index: u32, value: T) {
        if let Some(entry) = self.pointer(index) {
            // SAFETY: the entry is within the mapping and aligned as asserted in `new`.
            gate::pass(|| unsafe { entry.write_volatile(value) });
        }
    }

    /// Reads the eight bytes at `offset` of an entry with one load.
    pub(super) fn load_u64(&self, index: u32, offset: usize) -> Option<u64> {
        Some(self.atomic_u64(index, offset)?.load(Ordering::Acquire))
    }

    /// Writes the eight bytes at `offset` of an entry with one store.
    pub(super) fn store_u64(&mut self, index: u32, offset: usize, value: u64) {
        if let Some(word) = self.atomic_u64(index, offset) {
            gate::pass(|| word.store(value, Ordering::Release));
        }
    }

    /// Reads the four bytes at `offset` of an entry with one load.
    pub(super) fn load_u32(&self, index: u32, offset: usize) -> Option<u32> {
        Some(self.atomic_u32(index, offset)?.load(Ordering::Acquire))
    }

    /// Writes the four bytes at `offset` of an entry with one store.
    pub(super) fn store_u32(&mut self, index: u32, offset: usize, value: u32) {
        if let Some(word) = self.atomic_u32(index, offset) {
            gate::pass(|| word.store(value, Ordering::Release));
        }
    }

    /// Replaces the four bytes at `offset` of an entry by what `new` makes of them, even if a program changes them
    /// meanwhile.
    pub(super) fn update_u32(&mut self, index: u32, offset: usize, new: impl Fn(u32) -> u32) {
        if let Some(word) = self.atomic_u32(index, offset) {
            let new = |old| Some(new(old));
            gate::pass(|| word.fetch_update(Ordering::AcqRel, Ordering::Acquire, new));
        }
    }

    /// Adds to the eight bytes at `offset` of an entry that others may add to meanwhile.
    pub(super) fn add_u64(&self, index: u32, offset: usize, number: u64) {
        if let Some(word) = self.atomic_u64(index, offset) {
            word.fetch_add(number, Ordering::Relaxed);
        }
    }

    /// Replaces the eight bytes at `offset` of an entry unless they have changed since they were read.
    pub(super) fn exchange_u64(&self, index: u32, offset: usize, known: u64, new: u64) {
        if let Some(word) = self.atomic_u64(index, offset) {
            // Who reads it next finds what came first.
            let _ = word.compare_exchange(known, new, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    fn atomic_u64(&self, index: u32, offset: usize) -> Option<&AtomicU64> {
        let word = self.field(index, offset, 8)?;
        // SAFETY: the word is within the mapping and aligned to eight. Both sides access it atomically while programs
        // may read it.
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    fn atomic_u32(&self, index: u32, offset: usize) -> Option<&AtomicU32> {
        let word = self.field(index, offset, 4)?;
        // SAFETY: as for `atomic_u64`, but aligned to four.
        Some(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    fn field(&self, index: u32, offset: usize, size: usize) -> Option<*mut u8> {
        if !offset.is_multiple_of(size) || offset + size > size_of::<T>() {
            return None;
        }
        Some(self.pointer(index)?.cast::<u8>().wrapping_add(offset))
    }

    fn pointer(&self, index: u32) -> Option<*mut T> {
        (index < self.length).then(|| {
            self.memory
                .as_mut_ptr()
                .cast::<T>()
                .wrapping_add(index as usize)
        })
    }
}
