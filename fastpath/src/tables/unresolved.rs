//! Which backends have no next hop, for a thread beside the one that owns the tables.

use xdp_prog::abi::{AddressKey, BACKEND_LOCAL, BACKEND_V4, BACKEND_V6, Backend, map};

use super::{TableError, mapped::Mapped};
use crate::load::Loaded;

/// Tells which backends have no next hop. It reads the table that the programs read.
#[derive(Debug)]
pub(crate) struct Unresolved(Mapped<Backend>);

impl Unresolved {
    /// Opens the table.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be opened or mapped.
    pub(crate) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        Mapped::open(loaded, map::BACKENDS).map(Self)
    }

    /// Returns the address of a backend's node if no next hop to it is known; `None` for a backend of this machine too,
    /// and for an id that no backend has had yet. A backend that has gone stays as it was.
    pub(crate) fn node(&self, id: u32) -> Option<AddressKey> {
        let backend = self.0.read(id)?;
        if backend.next_hop != 0 || backend.flags & BACKEND_LOCAL != 0 {
            return None;
        }
        match backend.flags & (BACKEND_V4 | BACKEND_V6) {
            BACKEND_V4 => Some(AddressKey::v4(backend.address_v4())),
            BACKEND_V6 => Some(AddressKey::v6(backend.address)),
            _ => None,
        }
    }
}
