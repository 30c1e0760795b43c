//! The allowances of answers that sources have used up.

use aya_ebpf::{
    btf_maps::{LruHashMap, PerCpuArray},
    macros::btf_map,
};
use xdp_prog::abi::{AddressKey, size};

use super::read_once;

#[btf_map]
static ANSWERS: LruHashMap<AddressKey, u64, { size::ANSWERS }> = LruHashMap::new();
#[btf_map]
static ANSWERS_OF_CPU: PerCpuArray<u64, 1> = PerCpuArray::new();

#[inline(always)]
pub(crate) fn full_at(source: &AddressKey) -> u64 {
    match ANSWERS.get_ptr(source) {
        // SAFETY: the element is valid for the run. If it is recycled under the reader, it yields another source's
        // time, which costs or grants one answer.
        Some(time) => read_once(unsafe { &*time }),
        None => 0,
    }
}

#[inline(always)]
pub(crate) fn set_full_at(source: &AddressKey, time: u64) {
    // If the insertion fails, the source gets one answer too many.
    let _ = ANSWERS.insert(source, time, 0);
}

#[inline(always)]
pub(crate) fn all_full_at() -> u64 {
    read(&ANSWERS_OF_CPU)
}

#[inline(always)]
pub(crate) fn set_all_full_at(time: u64) {
    write(&ANSWERS_OF_CPU, time);
}

#[inline(always)]
fn read(map: &PerCpuArray<u64, 1>) -> u64 {
    match map.get_ptr(0) {
        // SAFETY: a per-CPU element; XDP runs do not nest on a CPU.
        Some(word) => unsafe { *word },
        None => 0,
    }
}

#[inline(always)]
fn write(map: &PerCpuArray<u64, 1>, value: u64) {
    if let Some(word) = map.get_ptr_mut(0) {
        // SAFETY: a per-CPU element; XDP runs do not nest on a CPU.
        unsafe { *word = value };
    }
}
