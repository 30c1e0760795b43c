//! Arrays of the object as memory. A case replaces and reads most of them, and a system call for each entry would take
//! longer than all else.

use std::{
    collections::HashMap,
    os::fd::{AsFd as _, AsRawFd as _},
    slice,
};

use anyhow::{Context as _, Result, ensure};
use aya::{Ebpf, maps::Map};
use memmap2::{MmapOptions, MmapRaw};
use xdp_prog::abi::map;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The arrays that can be mapped, and that tests use.
const MAPPED: [&str; 14] = [
    map::CONFIG,
    map::SERVICE_INDEX,
    map::SERVICE,
    map::LUT,
    map::PASTS,
    map::HISTORY,
    map::BACKENDS,
    map::NEXTHOPS,
    map::ANNOUNCE_STAMP,
    map::EGRESS_PORTS,
    map::FLOW_NOTES,
    map::REASONS,
    map::SERVICE_TRAFFIC,
    map::BACKEND_TRAFFIC,
];

/// The mapped arrays of an object. No program may run while they are written or read.
#[derive(Debug)]
pub(crate) struct Arrays(HashMap<&'static str, Entries>);

/// The entries of an array.
#[derive(Debug)]
struct Entries {
    memory: MmapRaw,
    bytes: usize,
    bytes_of_one: usize,
}

impl Arrays {
    /// Maps the arrays of a loaded object.
    pub(crate) fn of(ebpf: &Ebpf) -> Result<Self> {
        let entries = MAPPED.map(|name| {
            let entries = Entries::of(ebpf, name);
            Ok((name, entries.with_context(|| format!("mapping {name}"))?))
        });
        Ok(Self(entries.into_iter().collect::<Result<_>>()?))
    }

    /// Replaces the first entries of an array.
    pub(crate) fn write<V: IntoBytes + Immutable>(&self, name: &str, values: &[V]) {
        self.write_from(name, 0, values);
    }

    /// Replaces the entries of an array from this one on.
    pub(crate) fn write_from<V: IntoBytes + Immutable>(
        &self,
        name: &str,
        first: u32,
        values: &[V],
    ) {
        let Entries {
            memory,
            bytes,
            bytes_of_one,
        } = &self.0[name];
        let (values, offset) = (values.as_bytes(), first as usize * bytes_of_one);
        assert!(size_of::<V>() == *bytes_of_one && offset + values.len() <= *bytes);
        let first = memory.as_mut_ptr().wrapping_add(offset);
        // SAFETY: the entries are within the mapping, and overlap nothing of ours.
        unsafe { first.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }

    /// Reads an array.
    pub(crate) fn read<V: FromBytes>(&self, name: &str) -> Vec<V> {
        let Entries {
            memory,
            bytes,
            bytes_of_one,
        } = &self.0[name];
        assert_eq!(size_of::<V>(), *bytes_of_one);
        // SAFETY: the mapping has so many bytes, and no program changes them meanwhile.
        let bytes = unsafe { slice::from_raw_parts(memory.as_ptr(), *bytes) };
        let entries = bytes.chunks_exact(*bytes_of_one);
        entries
            .map(|entry| V::read_from_bytes(entry).expect("it has the size of an entry"))
            .collect()
    }
}

impl Entries {
    fn of(ebpf: &Ebpf, name: &str) -> Result<Self> {
        let Some(Map::Array(array)) = ebpf.map(name) else {
            anyhow::bail!("the object has no such array");
        };
        let info = array.info()?;
        let bytes_of_one = info.value_size() as usize;
        // The kernel places entries at multiples of eight.
        ensure!(bytes_of_one.is_multiple_of(8), "entries are not packed");
        let bytes = info.max_entries() as usize * bytes_of_one;
        let memory = MmapOptions::new()
            .len(bytes)
            .map_raw(array.fd().as_fd().as_raw_fd())?;
        Ok(Self {
            memory,
            bytes,
            bytes_of_one,
        })
    }
}
