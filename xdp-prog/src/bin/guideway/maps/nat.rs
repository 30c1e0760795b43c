//! The flows of NAT mode.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    btf_maps::{HashMap, PerCpuArray},
    helpers::bpf_check_mtu,
    macros::btf_map,
    programs::XdpContext,
};
use xdp_prog::{
    abi::{NatForward, NatMark, NatReverse, Tuple, size},
    decide::nat::{Inserted, Origin, Translation},
};
use zerocopy::transmute;

use super::coarse_clock;

#[btf_map]
static NAT_FORWARD: HashMap<Tuple, NatForward, { size::NAT }> = HashMap::new();
#[btf_map]
static NAT_REVERSE: HashMap<Tuple, NatReverse, { size::NAT }> = HashMap::new();
#[btf_map]
static NAT_CLAIMS: HashMap<Tuple, u64, { size::NAT_CLAIMS }> = HashMap::new();
/// Scratch: the service of the packet under way, from the program that looked it up to those that follow.
#[btf_map]
static NAT_SERVICE: PerCpuArray<u32, 1> = PerCpuArray::new();
/// Scratch: what the packet under way gets.
#[btf_map]
static NAT_TRANSLATION: PerCpuArray<Translation, 1> = PerCpuArray::new();
/// Scratch: an entry that is about to be inserted.
#[btf_map]
static NAT_SCRATCH: PerCpuArray<NatReverse, 1> = PerCpuArray::new();

#[inline(always)]
pub(crate) fn see_forward(
    key: &Tuple,
    renew: impl FnOnce(&NatForward) -> Option<NatMark>,
) -> Option<NatForward> {
    let place = NAT_FORWARD.get_ptr_mut(key)?;
    // SAFETY: the element is valid for the run.
    let words: [u64; 3] = unsafe { read_backwards(place.cast()) };
    let entry: NatForward = transmute!(words);
    if let Some(mark) = renew(&entry) {
        // SAFETY: as above. Another CPU that has a packet of the same flow may write
        // it too: a flag is lost at worst.
        let place = unsafe { &mut (*place).mark };
        write_once(place, mark);
    }
    Some(entry)
}

#[inline(always)]
pub(crate) fn see_reverse(
    key: &Tuple,
    renew: impl FnOnce(&NatReverse) -> Option<NatMark>,
) -> Option<NatReverse> {
    let place = NAT_REVERSE.get_ptr_mut(key)?;
    // SAFETY: as for forward entries.
    let words: [u64; 9] = unsafe { read_backwards(place.cast()) };
    let entry: NatReverse = transmute!(words);
    if let Some(mark) = renew(&entry) {
        // SAFETY: as for forward entries.
        let place = unsafe { &mut (*place).mark };
        write_once(place, mark);
    }
    Some(entry)
}

/// Reads a value word by word from its end, its check last.
///
/// # Safety
///
/// The words must be valid for reading.
#[inline(always)]
unsafe fn read_backwards<const N: usize>(place: *const u64) -> [u64; N] {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate().rev() {
        // SAFETY: one of the words that the caller vouches for.
        let at = unsafe { place.add(index) };
        // SAFETY: as above.
        *word = unsafe { at.read_volatile() };
    }
    words
}

#[inline(always)]
fn write_once<T: Copy>(place: &mut T, value: T) {
    // SAFETY: a reference is valid and aligned.
    unsafe { core::ptr::write_volatile(place, value) }
}

#[inline(always)]
pub(crate) fn insert_forward(key: &Tuple, entry: &NatForward) -> Inserted {
    inserted(NAT_FORWARD.insert(key, entry, u64::from(BPF_NOEXIST)))
}

#[inline(always)]
pub(crate) fn insert_reverse(
    key: &Tuple,
    forward: &Tuple,
    client: &Origin,
    mark: NatMark,
) -> Inserted {
    let Some(entry) = NAT_SCRATCH.get_ptr_mut(0) else {
        return Inserted::Full;
    };
    // SAFETY: a per-CPU element that only this run uses.
    let entry = unsafe { &mut *entry };
    *entry = NatReverse::new(key, forward, client.ifindex, client.link, mark);
    let entry: &NatReverse = entry;
    inserted(NAT_REVERSE.insert(key, entry, u64::from(BPF_NOEXIST)))
}

#[inline(always)]
fn inserted(outcome: Result<(), i32>) -> Inserted {
    const EEXIST: i32 = 17;
    match outcome {
        Ok(()) => Inserted::Done,
        Err(error) if error == -EEXIST => Inserted::Exists,
        Err(_) => Inserted::Full,
    }
}

#[inline(always)]
pub(crate) fn remove_forward(key: &Tuple) {
    // Only the holder of the claim removes it: it is there.
    let _ = NAT_FORWARD.remove(key);
}

#[inline(always)]
pub(crate) fn remove_reverse(key: &Tuple) {
    // As for forward entries.
    let _ = NAT_REVERSE.remove(key);
}

#[inline(always)]
pub(crate) fn move_client(forward: &Tuple, reverse: &Tuple, client: &Origin) {
    if let Some(place) = NAT_REVERSE.get_ptr_mut(reverse) {
        // SAFETY: the element is valid for the run. A reply that reads it half written
        // goes astray, as it would have by the old link.
        let entry = unsafe { &mut *place };
        entry.link = client.link;
        entry.ifindex = client.ifindex;
    }
    if let Some(place) = NAT_FORWARD.get_ptr_mut(forward) {
        // SAFETY: as above, for packets of the client.
        let entry = unsafe { &mut *place };
        entry.set_fingerprint(client.fingerprint());
    }
}

#[inline(always)]
pub(crate) fn claim(key: &Tuple) -> bool {
    // Not the tick's copy of the clock: user space removes a claim that looks a second old.
    NAT_CLAIMS
        .insert(key, coarse_clock(), u64::from(BPF_NOEXIST))
        .is_ok()
}

#[inline(always)]
pub(crate) fn release(key: &Tuple) {
    // It is there: we have put it there.
    let _ = NAT_CLAIMS.remove(key);
}

#[inline(always)]
pub(crate) fn device_mtu(ctx: &XdpContext, ifindex: u32) -> Option<u16> {
    /// A length that every device takes: only the MTU is of interest.
    const SHORT: u32 = 1;
    let mut mtu = SHORT;
    // SAFETY: the context is the one the kernel passed in, and the length a local.
    let outcome = unsafe { bpf_check_mtu(ctx.ctx.cast(), ifindex, &raw mut mtu, 0, 0) };
    if outcome < 0 {
        return None;
    }
    Some(u16::try_from(mtu).unwrap_or(u16::MAX))
}

#[inline(always)]
pub(crate) fn keep(translation: Translation) -> Option<&'static Translation> {
    let place = NAT_TRANSLATION.get_ptr_mut(0)?;
    // SAFETY: a per-CPU element that only this run uses.
    let place = unsafe { &mut *place };
    *place = translation;
    Some(place)
}

#[inline(always)]
pub(crate) fn note_service(service: u32) {
    if let Some(place) = NAT_SERVICE.get_ptr_mut(0) {
        // SAFETY: a per-CPU element; XDP runs do not nest on a CPU.
        unsafe { *place = service };
    }
}

#[inline(always)]
pub(crate) fn service() -> u32 {
    match NAT_SERVICE.get_ptr(0) {
        // SAFETY: a per-CPU element; XDP runs do not nest on a CPU.
        Some(place) => unsafe { *place },
        None => 0,
    }
}
