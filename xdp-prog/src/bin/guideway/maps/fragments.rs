//! Datagrams that arrive in fragments.

use aya_ebpf::{btf_maps::LruHashMap, macros::btf_map};
use xdp_prog::{
    abi::{Datagram, Tuple, size},
    world::Fragments,
};

use super::Maps;

#[btf_map]
static FRAGMENTS: LruHashMap<Tuple, Datagram, { size::FRAGMENTS }> = LruHashMap::new();

impl<K> Fragments for Maps<K> {
    #[inline(always)]
    fn datagram(&self, key: &Tuple) -> Option<Datagram> {
        // SAFETY: any bytes are a datagram. An element recycled under the reader yields another datagram's ports, so
        // the receiver discards this fragment.
        unsafe { FRAGMENTS.get(*key) }.copied()
    }

    #[inline(always)]
    fn publish(&self, key: &Tuple, datagram: &Datagram) {
        // If there is no room, the later fragments are dropped as out of order, and counted.
        let _ = FRAGMENTS.insert(key, datagram, 0);
    }
}
