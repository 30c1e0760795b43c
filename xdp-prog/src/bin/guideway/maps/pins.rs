//! Flows that are pinned to past owners, and the allowance of those whose owner is looked for.

use aya_ebpf::{
    btf_maps::{LruHashMap, PerCpuArray},
    macros::btf_map,
};
use xdp_prog::{
    abi::{PastPair, Pin, Tuple, size},
    world::{PinTable, Pins},
};

use super::{PASTS, XdpMaps, exchange, read_once};

#[btf_map]
static PINS: LruHashMap<Tuple, Pin, { size::PINS }> = LruHashMap::new();
#[btf_map]
static PINS_YOUNG: LruHashMap<Tuple, Pin, { size::PINS }> = LruHashMap::new();
#[btf_map]
static RETURNS_OF_CPU: PerCpuArray<u64, 1> = PerCpuArray::new();

#[inline(always)]
fn map(table: PinTable) -> &'static LruHashMap<Tuple, Pin, { size::PINS }> {
    match table {
        PinTable::Kept => &PINS,
        PinTable::Young => &PINS_YOUNG,
    }
}

impl Pins for XdpMaps<'_> {
    #[inline(always)]
    fn pin(&self, table: PinTable, flow: &Tuple) -> Option<Pin> {
        let place = map(table).get_ptr(flow)?;
        // SAFETY: the element is valid for the run. The check in the word reveals an element recycled under the
        // reader.
        Some(Pin(read_once(unsafe { &(*place).0 })))
    }

    #[inline(always)]
    fn set_pin(&self, table: PinTable, flow: &Tuple, pin: Pin) {
        // If the insertion fails, the flow's next packet is tried again.
        let _ = map(table).insert(flow, pin, 0);
    }

    #[inline(always)]
    fn remove_pin(&self, table: PinTable, flow: &Tuple) {
        // The pin may be gone already.
        let _ = map(table).remove(flow);
    }

    #[inline(always)]
    fn mark_pinned(&self, slot: u32) {
        let Some(place) = PASTS.get_ptr_mut(slot >> 1) else {
            return;
        };
        // SAFETY: the element is valid for the run, and its word is aligned.
        let word = unsafe { &raw mut (*place).0 };
        // SAFETY: as above.
        let known = PastPair(read_once(unsafe { &*word }));
        let marked = known.pinned(slot);
        if marked != known {
            // SAFETY: as above. If another list came first, the flow's next packet is tried again.
            unsafe { exchange(word, known.0, marked.0) };
        }
    }

    #[inline(always)]
    fn returns_full_at(&self) -> u64 {
        match RETURNS_OF_CPU.get_ptr(0) {
            // SAFETY: a per-CPU element; XDP runs do not nest on a CPU.
            Some(word) => unsafe { *word },
            None => 0,
        }
    }

    #[inline(always)]
    fn set_returns_full_at(&self, time: u64) {
        if let Some(word) = RETURNS_OF_CPU.get_ptr_mut(0) {
            // SAFETY: as above.
            unsafe { *word = time };
        }
    }
}
