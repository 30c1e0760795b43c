//! What the thread that mends asks the tables.

use aya::maps::{HashMap, MapData};
use xdp_prog::abi::{AddressKey, Datagram, Tuple, map};

use super::{sockets::hash, thread::MendError, worker::Known};
use crate::{clock::monotonic_ns, load::Loaded, tables::Unresolved};

/// What the tables know.
pub(super) struct KnownByTables {
    /// The datagrams whose first fragments have published their ports.
    datagrams: HashMap<MapData, Tuple, Datagram>,
    backends: Unresolved,
}

impl KnownByTables {
    /// Opens the tables.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses one of them.
    pub(super) fn open(loaded: &Loaded) -> Result<Self, MendError> {
        Ok(Self {
            datagrams: hash::<_, _, MendError>(loaded, map::FRAGMENTS)?,
            backends: Unresolved::open(loaded)?,
        })
    }
}

impl Known for KnownByTables {
    fn has(&self, datagram: &Tuple) -> bool {
        let first = self.datagrams.get(datagram, 0);
        first.is_ok_and(|first| first.is_awaited(monotonic_ns()))
    }

    fn unresolved(&self, backend: u32) -> Option<AddressKey> {
        self.backends.node(backend)
    }
}
