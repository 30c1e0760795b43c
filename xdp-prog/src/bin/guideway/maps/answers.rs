//! The allowances of answers that sources have used up.

use aya_ebpf::{
    btf_maps::{LruHashMap, PerCpuArray},
    macros::btf_map,
};
use xdp_prog::{
    abi::{AddressKey, size},
    world::Answers,
};

use super::{XdpMaps, read_once};

#[btf_map]
static ANSWERS: LruHashMap<AddressKey, u64, { size::ANSWERS }> = LruHashMap::new();
#[btf_map]
static ANSWERS_OF_CPU: PerCpuArray<u64, 1> = PerCpuArray::new();

impl Answers for XdpMaps<'_> {
    #[inline(always)]
    fn full_at(&self, source: &AddressKey) -> u64 {
        match ANSWERS.get_ptr(source) {
            // SAFETY: the element is valid for the run. If it is recycled under the reader, it yields another source's
            // time, which costs or grants one answer.
            Some(time) => read_once(unsafe { &*time }),
            None => 0,
        }
    }

    #[inline(always)]
    fn set_full_at(&self, source: &AddressKey, time: u64) {
        // If the insertion fails, the source gets one answer too many.
        let _ = ANSWERS.insert(source, time, 0);
    }

    #[inline(always)]
    fn all_full_at(&self) -> u64 {
        match ANSWERS_OF_CPU.get_ptr(0) {
            // SAFETY: a per-CPU element; XDP runs do not nest on a CPU.
            Some(word) => unsafe { *word },
            None => 0,
        }
    }

    #[inline(always)]
    fn set_all_full_at(&self, time: u64) {
        if let Some(word) = ANSWERS_OF_CPU.get_ptr_mut(0) {
            // SAFETY: as above.
            unsafe { *word = time };
        }
    }
}
