//! Checks of backends and nodes, and their answers.

use aya_ebpf::{
    btf_maps::{Array, LruHashMap},
    macros::btf_map,
};
use xdp_prog::{
    abi::{AddressKey, Probe, Tuple, size},
    world::Probes,
};

use super::XdpMaps;

#[btf_map]
static PROBES: Array<Probe, { size::PROBES }> = Array::new();
#[btf_map]
static PROBE_PEERS: LruHashMap<Tuple, AddressKey, { size::PROBES }> = LruHashMap::new();

#[inline(always)]
pub(crate) fn get(index: u32) -> Option<&'static Probe> {
    PROBES.get(index)
}

#[inline(always)]
pub(crate) fn remember(answer: &Tuple, peer: &AddressKey) {
    // If the insertion fails, the check fails by its timeout.
    let _ = PROBE_PEERS.insert(answer, peer, 0);
}

impl Probes for XdpMaps<'_> {
    #[inline(always)]
    fn probe_peer(&self, answer: &Tuple) -> Option<AddressKey> {
        // SAFETY: any bytes are an address. An element recycled under the reader yields another check's peer, and no
        // socket expects this answer from there.
        unsafe { PROBE_PEERS.get(*answer) }.copied()
    }
}
