//! Why a table could not be opened, read or changed.

use std::io;

use aya::maps::MapError;
use xdp_prog::maglev;

use super::{BackendKey, ServiceKey};
use crate::load::LoadError;

/// Why a table could not be opened, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A map is missing from the object or cannot be opened.
    #[error(transparent)]
    Open(#[from] LoadError),
    /// A map cannot be shared with the kernel as memory.
    #[error("cannot map the table {map} into memory")]
    Mapping {
        /// The map.
        map: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel does not show what is in a table.
    #[error("cannot read the table {map}")]
    Read {
        /// The map.
        map: &'static str,
        /// What the kernel said.
        source: MapError,
    },
    /// The kernel refused a change.
    #[error("cannot write to the table {map}")]
    Write {
        /// The map.
        map: &'static str,
        /// What the kernel said.
        source: MapError,
    },
    /// No run of the arena is long enough.
    #[error(
        "the LUT arena is full: service {service} needs {wanted} slots in a row, the longest free run \
         has {largest} of {free} free slots; raise tables.lut_arena_mib and restart, or ask for a smaller table"
    )]
    ArenaFull {
        /// The service that was refused.
        service: ServiceKey,
        /// Slots asked for.
        wanted: u32,
        /// The longest run to be had.
        largest: u32,
        /// All free slots.
        free: u32,
    },
    /// A table has no free entry.
    #[error(
        "the table {map} is full with {entries} entries; raise its size under tables and restart"
    )]
    TableFull {
        /// The map.
        map: &'static str,
        /// Its size.
        entries: usize,
    },
    /// The lookup table of a service cannot be built.
    #[error("service {service}: {source}")]
    Lut {
        /// The service.
        service: ServiceKey,
        /// Why.
        source: maglev::MaglevError,
    },
    /// A backend would get no slot of the table size that was asked for.
    #[error(
        "service {service}: the weight of backend {backend} is too small beside the others' for one \
         of {slots} slots; raise it, or ask for a larger table"
    )]
    WeightTooSmall {
        /// The service.
        service: ServiceKey,
        /// The backend.
        backend: BackendKey,
        /// The table size.
        slots: u32,
    },
    /// A pod of the other family than the service's address.
    #[error(
        "service {service}: backend {backend} is of the other family, and packets keep theirs; give its \
         address of the service's family"
    )]
    OtherFamily {
        /// The service.
        service: ServiceKey,
        /// The backend.
        backend: BackendKey,
    },
    /// An SCTP backend on another port than the service's.
    #[error(
        "service {service}: backend {backend} listens on another port, and SCTP's ports cannot be \
         translated; use one port for both"
    )]
    SctpPort {
        /// The service.
        service: ServiceKey,
        /// The backend.
        backend: BackendKey,
    },
    /// More backends than the largest table has slots for.
    #[error(
        "service {service}: {backends} backends are more than a table of {slots} slots can hold"
    )]
    TooManyBackends {
        /// The service.
        service: ServiceKey,
        /// Backends asked for.
        backends: usize,
        /// The largest table.
        slots: u32,
    },
}

impl TableError {
    /// Tells whether a table has no room, which something else may make.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::ArenaFull { .. } | Self::TableFull { .. })
    }
}

pub(super) fn read_failed(map: &'static str) -> impl FnOnce(MapError) -> TableError {
    move |source| TableError::Read { map, source }
}

pub(super) fn write_failed(map: &'static str) -> impl FnOnce(MapError) -> TableError {
    move |source| TableError::Write { map, source }
}
