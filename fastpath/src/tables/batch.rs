//! Reads many entries of a map with one system call.

use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::maps::{HashMap, IterableMap as _, Map, MapData, MapError};

use super::TableError;
use crate::sys::{self, bpf};

/// A map whose entries are read many at a time.
pub(super) struct Entries<K, V> {
    name: &'static str,
    /// The map, of any type: only the sizes were compared.
    map: HashMap<MapData, K, V>,
}

/// The result of one read.
pub(super) struct Batch {
    pub(super) count: usize,
    /// Cursor of the next entries; `None` at the end.
    pub(super) next: Option<u32>,
}

impl<K: aya::Pod, V: aya::Pod> Entries<K, V> {
    /// Uses an open map that has one value for each key.
    pub(super) fn over(map: MapData, name: &'static str) -> Result<Self, TableError> {
        let map = HashMap::try_from(Map::HashMap(map));
        Ok(Self {
            name,
            map: map.map_err(TableError::read(name))?,
        })
    }

    pub(super) fn capacity(&self) -> Result<usize, TableError> {
        let info = self.map.map().info();
        Ok(info.map_err(TableError::read(self.name))?.max_entries() as usize)
    }

    /// Reads entries from `cursor` on, or from the beginning, until `keys` and `values` are full.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a batch has a few thousand entries, and a descriptor in use is not negative"
    )]
    pub(super) fn read(
        &self,
        cursor: Option<u32>,
        keys: &mut [K],
        values: &mut [V],
    ) -> Result<Batch, TableError> {
        let mut next = 0_u32;
        let mut attributes = BatchAttributes {
            in_batch: cursor.as_ref().map_or(0, |cursor| sys::address(cursor)),
            out_batch: sys::address(&raw mut next),
            keys: sys::address(keys.as_mut_ptr()),
            values: sys::address(values.as_mut_ptr()),
            count: keys.len().min(values.len()) as u32,
            map_fd: self.map.map().fd().as_fd().as_raw_fd() as u32,
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: the kernel reads the cursor, writes a cursor of four bytes, and writes up to `count` keys with
        // their values, whose sizes `over` has compared.
        let outcome = unsafe { bpf(sys::LOOK_UP_BATCH, &mut attributes) };
        let count = attributes.count as usize;
        match outcome {
            Ok(_) => Ok(Batch {
                count,
                next: Some(next),
            }),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                Ok(Batch { count, next: None })
            }
            Err(error) => Err(TableError::read(self.name)(MapError::IoError(error))),
        }
    }
}

/// The attributes of `BPF_MAP_LOOKUP_BATCH`.
#[repr(C)]
struct BatchAttributes {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}
