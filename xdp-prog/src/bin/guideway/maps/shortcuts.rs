//! Notes of look-ups that many packets repeat.

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use xdp_prog::{
    abi::{AddressKey, Shortcut, Tuple, Untrusted, size},
    world::{Clock, Shortcuts},
};

use super::XdpMaps;

#[btf_map]
static UNTRUSTED: PerCpuArray<Untrusted, 1> = PerCpuArray::new();
/// Scratch: the memory of [`Shortcuts`].
#[btf_map]
static SHORTCUTS: PerCpuArray<Shortcut, { size::SHORTCUTS }> = PerCpuArray::new();

impl Shortcuts for XdpMaps<'_> {
    #[inline(always)]
    fn shortcut(&self, key: &Tuple, generation: u32) -> Option<u64> {
        SHORTCUTS.get(Shortcut::place(key))?.value(key, generation)
    }

    #[inline(always)]
    fn note_shortcut(&self, key: &Tuple, generation: u32, value: u64) {
        if let Some(place) = SHORTCUTS.get_ptr_mut(Shortcut::place(key)) {
            // SAFETY: a per-CPU element; XDP runs do not nest on a CPU.
            unsafe { *place = Shortcut::new(*key, generation, value) };
        }
    }

    #[inline(always)]
    fn note_untrusted(&self, source: &AddressKey) {
        if let Some(place) = UNTRUSTED.get_ptr_mut(0) {
            let noted = Untrusted {
                source: *source,
                at: self.now(),
            };
            // SAFETY: a per-CPU element; XDP runs do not nest on a CPU.
            unsafe { *place = noted };
        }
    }
}
