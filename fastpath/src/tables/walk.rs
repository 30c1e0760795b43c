//! Walks through tables that the datapath writes, some thousand entries at a time.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::maps::{MapData, MapError};
use xdp_prog::abi::Tuple;

use super::{TableError, Usage, capacity, error::read_failed};
use crate::load::Loaded;

/// Entries that are read at once.
const BATCH: usize = 4096;

/// A walk through a hash from tuples, again and again.
pub(super) struct Walk<V> {
    name: &'static str,
    map: MapData,
    capacity: usize,
    /// Where it goes on; nothing at its beginning.
    cursor: Option<u32>,
    /// Entries that count, of those that it has passed since its beginning.
    passed: usize,
    /// Entries that counted when it last came to its end.
    counted: usize,
    _values: PhantomData<V>,
}

impl<V: aya::Pod + Default> Walk<V> {
    pub(super) fn through(loaded: &Loaded, name: &'static str) -> Result<Self, TableError> {
        let map = loaded.map(name)?;
        Ok(Self {
            name,
            capacity: capacity(&map, name)?,
            map,
            cursor: None,
            passed: 0,
            counted: 0,
            _values: PhantomData,
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
            let batch = self.read(&mut keys, &mut values)?;
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

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a batch has a few thousand entries, and a descriptor in use is not negative"
    )]
    fn read(&self, keys: &mut [Tuple], values: &mut [V]) -> Result<Batch, TableError> {
        const LOOKUP_BATCH: libc::c_int = 24;
        let mut next = 0_u32;
        let mut attributes = BatchAttributes {
            in_batch: self.cursor.as_ref().map_or(0, |cursor| {
                std::ptr::from_ref(cursor).expose_provenance() as u64
            }),
            out_batch: (&raw mut next).expose_provenance() as u64,
            keys: keys.as_mut_ptr().expose_provenance() as u64,
            values: values.as_mut_ptr().expose_provenance() as u64,
            count: keys.len().min(values.len()) as u32,
            map_fd: self.map.fd().as_fd().as_raw_fd() as u32,
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: the kernel reads the attributes and the cursor, and writes a cursor of four bytes
        // and up to `count` keys and values of the map's sizes, which are those of the slices' types.
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

impl<V> Walk<V> {
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

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

/// What was read at once.
struct Batch {
    count: usize,
    /// Where the next one begins; nothing at the end.
    next: Option<u32>,
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
