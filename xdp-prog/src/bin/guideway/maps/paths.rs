//! Reports of routers about the paths to nodes.

use aya_ebpf::{btf_maps::HashMap, macros::btf_map};
use xdp_prog::abi::{AddressKey, PathReport, size};

use super::NO_PREALLOC;

#[btf_map]
static PATHS: HashMap<AddressKey, PathReport, { size::NEXT_HOPS }, NO_PREALLOC> = HashMap::new();

/// Notes a report about the path to a node; returns false if the agent has not listed the node.
#[inline(always)]
pub(super) fn note(node: &AddressKey, report: PathReport) -> bool {
    let Some(place) = PATHS.get_ptr_mut(node) else {
        return false;
    };
    // SAFETY: the place is an aligned word of the map's element. Other writers store whole words too.
    unsafe { core::ptr::write_volatile(place, report) };
    true
}
