//! Announced addresses, the links of the announcement, and other machines' announcements of them.

use aya_ebpf::{
    btf_maps::{Array, HashMap},
    macros::btf_map,
};
use xdp_prog::{
    abi::{AddressKey, Claim, EdgeMac, TaggedLink, size},
    world::Announcements,
};

use super::{MMAPABLE, NO_PREALLOC, XdpMaps, read_once};

#[btf_map]
static ANNOUNCED: HashMap<AddressKey, u32, { size::VIPS }, NO_PREALLOC> = HashMap::new();
#[btf_map]
static ANNOUNCE_STAMP: Array<u64, 1, MMAPABLE> = Array::new();
#[btf_map]
static ANNOUNCE_LINKS: HashMap<TaggedLink, EdgeMac, { size::ANNOUNCE_LINKS }, NO_PREALLOC> =
    HashMap::new();
#[btf_map]
static CLAIMS: HashMap<AddressKey, Claim, { size::VIPS }, NO_PREALLOC> = HashMap::new();

impl Announcements for XdpMaps<'_> {
    #[inline(always)]
    fn is_announced(&self, address: &AddressKey) -> bool {
        ANNOUNCED.get_ptr(address).is_some()
    }

    #[inline(always)]
    fn announce_stamp(&self) -> u64 {
        ANNOUNCE_STAMP.get(0).map_or(0, read_once)
    }

    #[inline(always)]
    fn announcing_mac(&self, link: TaggedLink) -> Option<EdgeMac> {
        let mac = ANNOUNCE_LINKS.get_ptr(link)?;
        // SAFETY: the element is valid for the run. If it is recycled under the reader, it is the MAC of another link
        // of this machine.
        Some(read_once(unsafe { &*mac }))
    }

    #[inline(always)]
    fn note_claim(&self, address: &AddressKey, mac: EdgeMac) {
        // If there is no room, a later announcement is noted.
        let _ = CLAIMS.insert(address, Claim::new(mac, self.cpu.now()), 0);
    }
}
