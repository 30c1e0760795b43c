//! The backends that clients keep.

use aya_ebpf::{btf_maps::LruHashMap, macros::btf_map};
use xdp_prog::{
    abi::{Client, ClientBackend, size},
    world::Clients,
};

use super::{XdpMaps, read_once};

#[btf_map]
static CLIENTS: LruHashMap<Client, ClientBackend, { size::CLIENTS }> = LruHashMap::new();

impl Clients for XdpMaps<'_> {
    #[inline(always)]
    fn client(&self, client: &Client) -> ClientBackend {
        let Some(place) = CLIENTS.get_ptr(client) else {
            return ClientBackend::default();
        };
        // SAFETY: the element is valid for the run. The check in the word reveals one recycled under the reader; a time
        // of another client keeps a backend for too long or not long enough, once.
        let entry = unsafe { &*place };
        ClientBackend {
            word: read_once(&entry.word),
            seen: read_once(&entry.seen),
        }
    }

    #[inline(always)]
    fn set_client(&self, client: &Client, entry: ClientBackend) {
        // If the insertion fails, the client keeps what the lookup table says.
        let _ = CLIENTS.insert(client, entry, 0);
    }
}
