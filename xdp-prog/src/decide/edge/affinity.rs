//! Which backend a client of a service with affinity keeps.
//!
//! The hash of the client's address alone chooses its slot, so a client stays for as long as the slot's owner does. `CLIENTS`
//! names the owner that the client's last new connection went to. Where the slot has another owner by now, the client stays
//! with that one: while it takes new connections, until the service's time is over. So a new backend gets new clients alone.

use super::walk::{Walk, WithId};
use crate::{
    abi::{AddressKey, Client, ClientBackend, Service},
    world::World,
};

/// The client of a flow, and how long it keeps its backend.
pub(super) struct Affinity {
    client: Client,
    /// Seconds; 0 if the service has no affinity. A word, because it may lie on the BPF stack.
    seconds: u64,
}

impl Affinity {
    /// Finds the client of a packet that backends with these flags may get. A node chooses among its own pods apart from what it
    /// chooses as an edge.
    #[inline(always)]
    pub(super) fn of(service: &Service, address: AddressKey, reach: u64) -> Self {
        Self {
            client: Client {
                address,
                affinity: service.affinity ^ reach,
            },
            seconds: service.affinity_seconds.into(),
        }
    }

    /// Tells whether the service has no affinity. The verifier does not know afterwards.
    #[inline(always)]
    fn is_none<T: World>(&self, tables: &T) -> bool {
        tables.opaque(self.seconds) == 0
    }

    /// Returns the id of the past owner of the slot that the client keeps; 0 for none. Where nodes return what they do
    /// not know, they must be able to return what belongs to older connections of the client, which only owners in the slot's
    /// list may do.
    #[inline(always)]
    pub(super) fn kept<T: World>(&self, tables: &T, walk: &Walk) -> u32 {
        if self.is_none(tables) || !walk.has_past() {
            return 0;
        }
        let entry = tables.client(&self.client);
        let id = entry.backend();
        let Some(backend) = tables.backend(id) else {
            return 0;
        };
        let is_kept = entry.is_of(&self.client, backend)
            && entry.is_within(self.seconds, tables.now())
            && backend.takes_new != 0
            && walk.may_get(backend);
        if is_kept && walk.lists(tables, &WithId(id)) {
            id
        } else {
            0
        }
    }

    /// Notes that the client is at this backend, if that one takes new connections.
    #[inline(always)]
    pub(super) fn renew<T: World>(&self, tables: &T, id: u32) {
        if let Some(backend) = tables.backend(id)
            && backend.takes_new != 0
        {
            self.note(tables, id);
        }
    }

    /// Notes that a new connection of the client goes to this backend.
    #[inline(always)]
    pub(super) fn note<T: World>(&self, tables: &T, id: u32) {
        if self.is_none(tables) {
            return;
        }
        let Some(backend) = tables.backend(id) else {
            return;
        };
        let entry = ClientBackend::new(&self.client, id, backend, tables.now());
        if !tables.client(&self.client).says(entry) {
            tables.set_client(&self.client, entry);
        }
    }
}
