//! Reports of routers about the paths to nodes.

use aya_ebpf::{btf_maps::HashMap, macros::btf_map};
use xdp_prog::{
    abi::{AddressKey, PathReport, size},
    world::Paths,
};

use super::{NO_PREALLOC, XdpMaps};

#[btf_map]
static PATHS: HashMap<AddressKey, PathReport, { size::NEXT_HOPS }, NO_PREALLOC> = HashMap::new();

impl Paths for XdpMaps<'_> {
    #[inline(always)]
    fn note_path(&self, node: &AddressKey, report: PathReport) -> bool {
        let Some(place) = PATHS.get_ptr_mut(node) else {
            return false;
        };
        // SAFETY: the place is an aligned word of the map's element. Other writers store whole words too.
        unsafe { core::ptr::write_volatile(place, report) };
        true
    }
}
