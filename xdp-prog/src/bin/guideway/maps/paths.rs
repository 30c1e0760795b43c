//! What routers say of the paths to nodes.

use aya_ebpf::{btf_maps::HashMap, macros::btf_map};
use xdp_prog::abi::{AddressKey, PathReport, size};

use super::NO_PREALLOC;

#[btf_map]
static PATHS: HashMap<AddressKey, PathReport, { size::NEXT_HOPS }, NO_PREALLOC> = HashMap::new();

/// Notes what is said of the path to a node; false where the agent has put none with this address.
#[inline(always)]
pub(super) fn note(node: &AddressKey, report: PathReport) -> bool {
    let Some(place) = PATHS.get_ptr_mut(node) else {
        return false;
    };
    // SAFETY: the place is an aligned word in the map's element; who else stores there stores a whole word too.
    unsafe { core::ptr::write_volatile(place, report) };
    true
}
