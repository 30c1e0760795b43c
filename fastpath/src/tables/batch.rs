//! Many entries of a map in one system call.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::maps::{MapData, MapError};

use super::{TableError, error::read_failed};
use crate::load::Loaded;

/// The entries of a map, read many at a time.
pub(super) struct Entries<K, V> {
    name: &'static str,
    map: MapData,
    /// More than one where each CPU has a value of its own.
    values_per_key: usize,
    _entries: PhantomData<(K, V)>,
}

impl<K, V> Entries<K, V> {
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }
}

/// What was read at once.
pub(super) struct Batch {
    /// Entries.
    pub(super) count: usize,
    /// Where the next ones begin; nothing at the end.
    pub(super) next: Option<u32>,
}

impl<K: aya::Pod, V: aya::Pod> Entries<K, V> {
    /// Opens a map with so many values for each key.
    pub(super) fn of(
        loaded: &Loaded,
        name: &'static str,
        values_per_key: usize,
    ) -> Result<Self, TableError> {
        let map = loaded.map(name)?;
        let info = map.info().map_err(read_failed(name))?;
        let (size, expected) = (size_of::<K>(), info.key_size() as usize);
        if size != expected {
            return Err(read_failed(name)(MapError::InvalidKeySize {
                size,
                expected,
            }));
        }
        let (size, expected) = (size_of::<V>(), info.value_size() as usize);
        // The kernel spaces values of CPUs by their size rounded up to eight.
        if size != expected || (values_per_key > 1 && !size.is_multiple_of(8)) {
            return Err(read_failed(name)(MapError::InvalidValueSize {
                size,
                expected,
            }));
        }
        Ok(Self {
            name,
            map,
            values_per_key,
            _entries: PhantomData,
        })
    }

    /// Reads entries from `cursor` on, or from the beginning: as many as there are keys to write to and values for each.
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
        const LOOKUP_BATCH: libc::c_int = 24;
        let mut next = 0_u32;
        let mut attributes = BatchAttributes {
            in_batch: cursor.as_ref().map_or(0, |cursor| {
                std::ptr::from_ref(cursor).expose_provenance() as u64
            }),
            out_batch: (&raw mut next).expose_provenance() as u64,
            keys: keys.as_mut_ptr().expose_provenance() as u64,
            values: values.as_mut_ptr().expose_provenance() as u64,
            count: keys.len().min(values.len() / self.values_per_key) as u32,
            map_fd: self.map.fd().as_fd().as_raw_fd() as u32,
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: the kernel reads the attributes and the cursor, and writes a cursor of four bytes
        // and up to `count` keys with their values, of the sizes that `of` has compared.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                LOOKUP_BATCH,
                &raw mut attributes,
                size_of::<BatchAttributes>(),
            )
        };
        let count = attributes.count as usize;
        if result == 0 {
            return Ok(Batch {
                count,
                next: Some(next),
            });
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ENOENT) {
            return Ok(Batch { count, next: None });
        }
        Err(read_failed(self.name)(MapError::IoError(error)))
    }
}

/// The kernel's `union bpf_attr` of batch operations (linux/bpf.h).
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
