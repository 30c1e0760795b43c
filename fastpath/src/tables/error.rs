//! Reasons why a table could not be opened, read or changed.

use std::io;

use aya::maps::MapError;
use xdp_prog::maglev;

use super::{BackendKey, ServiceKey};
use crate::load::LoadError;

/// Reasons why a table could not be opened, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A map is missing from the object, or cannot be opened.
    #[error(transparent)]
    Open(#[from] LoadError),
    #[error("cannot map the table {map} into memory")]
    Mapping {
        map: &'static str,
        source: io::Error,
    },
    #[error("cannot read the table {map}")]
    Read { map: &'static str, source: MapError },
    #[error("cannot write to the table {map}")]
    Write { map: &'static str, source: MapError },
    #[error(
        "the LUT arena is full: service {service} needs {wanted} slots in a row, the longest free run \
         has {largest} of {free} free slots; raise tables.lut_arena_mib and restart, or ask for a smaller table"
    )]
    ArenaFull {
        service: ServiceKey,
        wanted: u32,
        largest: u32,
        /// Number of all free slots.
        free: u32,
    },
    #[error(
        "the table {map} is full with {entries} entries; raise its size under tables and restart"
    )]
    TableFull { map: &'static str, entries: usize },
    #[error("service {service}: {source}")]
    Lut {
        service: ServiceKey,
        source: maglev::MaglevError,
    },
    #[error(
        "service {service}: the weight of backend {backend} is too small beside the others' for one \
         of {slots} slots; raise it, or ask for a larger table"
    )]
    WeightTooSmall {
        service: ServiceKey,
        backend: BackendKey,
        slots: u32,
    },
    #[error(
        "service {service}: backend {backend} is of the other family, and packets keep theirs; give its \
         address of the service's family"
    )]
    OtherFamily {
        service: ServiceKey,
        backend: BackendKey,
    },
    #[error(
        "service {service}: backend {backend} listens on another port, and SCTP's ports cannot be \
         translated; use one port for both"
    )]
    SctpPort {
        service: ServiceKey,
        backend: BackendKey,
    },
    #[error(
        "service {service}: {backends} backends are more than a table of {slots} slots can hold"
    )]
    TooManyBackends {
        service: ServiceKey,
        backends: usize,
        slots: u32,
    },
}

impl TableError {
    /// Makes the error of a map that cannot be read.
    pub(super) const fn read(map: &'static str) -> impl Fn(MapError) -> Self {
        move |source| Self::Read { map, source }
    }

    /// Makes the error of a map that cannot be written.
    pub(super) const fn write(map: &'static str) -> impl Fn(MapError) -> Self {
        move |source| Self::Write { map, source }
    }

    /// Makes the error of a map without a free entry.
    pub(super) const fn full(map: &'static str, entries: usize) -> Self {
        Self::TableFull { map, entries }
    }

    /// Tells whether a table is full, so that the change may succeed once something else is removed.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::ArenaFull { .. } | Self::TableFull { .. })
    }
}
