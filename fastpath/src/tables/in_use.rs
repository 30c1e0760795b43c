//! Counts what is in use of pinned tables, before they get another size.

use aya::{
    Pod,
    maps::{MapData, lpm_trie::Key},
};
use xdp_prog::abi::{
    AddressKey, Backend, EdgePrefix, NextHop, Pod as PodEntry, PodKey, Service, SourcePrefix, map,
};

use super::{FormerTablesError, TableError, mapped::Mapped, syscall_map::SyscallMap};
use crate::pins::Pins;

/// Counts the entries in use of a pinned table that has more than `entries`; of `LUT`, the slots. Returns 0 for a table
/// that is not larger, or not pinned, and for tables of flows.
///
/// # Errors
///
/// Fails if a pin or map cannot be read.
pub fn in_use_beyond(
    pins: &Pins,
    table: &'static str,
    entries: u32,
) -> Result<usize, FormerTablesError> {
    if !pins.map(table).exists() {
        return Ok(0);
    }
    let map = pins.open_map(table)?;
    let info = map.info().map_err(TableError::read(table))?;
    if info.max_entries() <= entries {
        return Ok(0);
    }
    let is_service = |entry: &Service| entry.word.base() != 0;
    let used = match table {
        map::SERVICE => entries_of(&map, table, is_service)?.len(),
        map::LUT => {
            let services = pins.open_map(map::SERVICE)?;
            let services = entries_of(&services, map::SERVICE, is_service)?;
            services.iter().map(slots).sum()
        }
        map::BACKENDS => entries_of(&map, table, |entry: &Backend| entry.flags != 0)?.len(),
        map::NEXTHOPS => {
            let is_known = |entry: &NextHop| *entry != NextHop::default();
            entries_of(&map, table, is_known)?.len()
        }
        map::VIPS => keys_of::<AddressKey, u32>(map, table)?,
        map::TRUSTED_EDGES => keys_of::<Key<EdgePrefix>, u32>(map, table)?,
        map::PODS => keys_of::<PodKey, PodEntry>(map, table)?,
        map::SOURCE_RANGES => keys_of::<Key<SourcePrefix>, u32>(map, table)?,
        _ => 0,
    };
    Ok(used)
}

/// Lists the entries of an array that are in use.
fn entries_of<T: Pod>(
    map: &MapData,
    name: &'static str,
    is_used: impl Fn(&T) -> bool,
) -> Result<Vec<T>, TableError> {
    let memory = Mapped::<T>::over(map, name)?;
    let all = (1..memory.length()).filter_map(|id| memory.read(id));
    Ok(all.filter(is_used).collect())
}

fn keys_of<K: Pod, V: Pod>(map: MapData, name: &'static str) -> Result<usize, TableError> {
    Ok(SyscallMap::<K, V>::of(map, name)?.keys()?.len())
}

/// Counts the slots of a service's tables.
fn slots(service: &Service) -> usize {
    let [all, local] = [service.word, service.local];
    let local = Some(local).filter(|local| local.base() != 0 && local.base() != all.base());
    let tables = [Some(all), local].into_iter().flatten();
    tables.map(|word| 1_usize << word.log2_length()).sum()
}
