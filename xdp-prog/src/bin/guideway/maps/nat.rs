//! The flows of NAT mode.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    btf_maps::{Array, HashMap, PerCpuArray},
    helpers::bpf_check_mtu,
    macros::btf_map,
};
use xdp_prog::{
    abi::{NatBegun, NatCount, NatForward, NatMark, NatReverse, Tuple, size},
    world::{Inserted, NatFlows, NatState, Origin, Taken, Translation},
};
use zerocopy::transmute;

use super::{
    XdpMaps, cpu::coarse_clock, exchange, fib, inserted, read_backwards, read_once, write_once,
};

#[btf_map]
static NAT_FORWARD: HashMap<Tuple, NatForward, { size::NAT }> = HashMap::new();
#[btf_map]
static NAT_REVERSE: HashMap<Tuple, NatReverse, { size::NAT }> = HashMap::new();
#[btf_map]
static NAT_CLAIMS: HashMap<Tuple, u64, { size::NAT_CLAIMS }> = HashMap::new();
#[btf_map]
static NAT_COUNTS: Array<NatCount, { size::SERVICES }> = Array::new();
#[btf_map]
static NAT_BEGUN: Array<NatBegun, { size::NAT_BEGUN }> = Array::new();
/// Scratch: the memory of [`Taken`].
#[btf_map]
static NAT_TAKEN: PerCpuArray<[u64; 6], 1> = PerCpuArray::new();
/// Scratch: an entry before its insertion.
#[btf_map]
static NAT_SCRATCH: PerCpuArray<NatReverse, 1> = PerCpuArray::new();

impl NatFlows for XdpMaps<'_> {
    #[inline(always)]
    fn see_nat_forward(
        &self,
        key: &Tuple,
        renew: impl FnOnce(&NatForward) -> Option<NatMark>,
    ) -> Option<NatForward> {
        let place = NAT_FORWARD.get_ptr_mut(key)?;
        // SAFETY: the element is valid for the run.
        let words: [u64; 3] = unsafe { read_backwards(place.cast()) };
        let entry: NatForward = transmute!(words);
        if let Some(mark) = renew(&entry) {
            // SAFETY: as above.
            unsafe { exchange_mark(place, entry.mark, mark) };
        }
        Some(entry)
    }

    #[inline(always)]
    fn replace_nat_mark(&self, key: &Tuple, expected: NatMark, mark: NatMark) -> bool {
        let Some(place) = NAT_FORWARD.get_ptr_mut(key) else {
            return false;
        };
        // SAFETY: the element is valid for the run.
        unsafe { exchange_mark(place, expected, mark) }
    }

    #[inline(always)]
    fn see_nat_reverse(&self, key: &Tuple) -> Option<NatReverse> {
        let place = NAT_REVERSE.get_ptr(key)?;
        // SAFETY: as for forward entries.
        let words: [u64; 10] = unsafe { read_backwards(place.cast()) };
        Some(transmute!(words))
    }

    #[inline(always)]
    fn nat_state(&self, key: &Tuple) -> Option<NatState> {
        let place = NAT_REVERSE.get_ptr(key)?;
        // SAFETY: the element is valid for the run, and any bytes are an entry; another CPU may write it.
        let entry = unsafe { &*place };
        let state = NatState {
            began_with: read_once(&entry.began_with),
            expects: read_once(&entry.expects),
            mark: read_once(&entry.mark),
        };
        // SAFETY: as above. The check is read last, so it reveals an element that was recycled while it was read.
        let check = unsafe { place.cast::<u32>().read_volatile() };
        (check == key.check()).then_some(state)
    }

    #[inline(always)]
    fn note_nat_reverse(&self, key: &Tuple, state: NatState) {
        if let Some(place) = NAT_REVERSE.get_ptr_mut(key) {
            // SAFETY: the element is valid for the run. Another CPU with a packet of the same flow may write it too;
            // one of their notes is lost at worst.
            let entry = unsafe { &mut *place };
            write_once(&mut entry.began_with, state.began_with);
            write_once(&mut entry.expects, state.expects);
            // The mark comes after the numbers, because its flag of an answer makes them valid.
            write_once(&mut entry.mark, state.mark);
        }
    }

    #[inline(always)]
    fn insert_nat_forward(&self, key: &Tuple, entry: &NatForward) -> Inserted {
        inserted(NAT_FORWARD.insert(key, entry, u64::from(BPF_NOEXIST)))
    }

    #[inline(always)]
    fn insert_nat_reverse(
        &self,
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
    fn remove_nat_forward(&self, key: &Tuple) {
        // The entry is there, because only the holder of the claim removes it.
        let _ = NAT_FORWARD.remove(key);
    }

    #[inline(always)]
    fn remove_nat_reverse(&self, key: &Tuple) {
        // As in `remove_nat_forward`.
        let _ = NAT_REVERSE.remove(key);
    }

    #[inline(always)]
    fn move_nat_client(&self, forward: &Tuple, reverse: &Tuple, client: &Origin) {
        if let Some(place) = NAT_REVERSE.get_ptr_mut(reverse) {
            // SAFETY: the element is valid for the run. A reply that reads it half written is lost, as it would have
            // been by the old link.
            let entry = unsafe { &mut *place };
            // Under pressure, the port may have gone to another flow. If that happens between this check and the
            // stores, replies to the other client are lost until it begins anew.
            if entry.forward_key(reverse.protocol()).is(forward) {
                entry.link = client.link;
                entry.ifindex = client.ifindex;
            }
        }
        if let Some(place) = NAT_FORWARD.get_ptr_mut(forward) {
            // SAFETY: as above.
            let entry = unsafe { &mut *place };
            entry.set_fingerprint(client.fingerprint());
        }
    }

    #[inline(always)]
    fn claim_nat(&self, forward: &Tuple) -> bool {
        // Not the clock of `now`, which is read once per tick: user space removes a claim that looks a second old.
        NAT_CLAIMS
            .insert(forward, coarse_clock(), u64::from(BPF_NOEXIST))
            .is_ok()
    }

    #[inline(always)]
    fn release_nat(&self, forward: &Tuple) {
        // The claim is there, because this CPU has added it.
        let _ = NAT_CLAIMS.remove(forward);
    }

    #[inline(always)]
    fn nat_count(&self, service: u32) -> NatCount {
        match NAT_COUNTS.get(service) {
            // Another CPU may be counting; a number that is slightly off will do.
            Some(count) => *count,
            None => NatCount::default(),
        }
    }

    #[inline(always)]
    fn count_nat(&self, service: u32, flows: i64, half_open: i64) {
        if let Some(count) = NAT_COUNTS.get_ptr_mut(service) {
            // SAFETY: the element is valid for the run. If two CPUs count at once, one of them is lost; user space
            // corrects the number.
            let count = unsafe { &mut *count };
            count.flows += flows;
            count.half_open += half_open;
        }
        if flows != 0
            && let Some(room) = NAT_COUNTS.get_ptr_mut(0)
        {
            // SAFETY: as above.
            let room = unsafe { &mut *room };
            room.flows -= flows;
        }
    }

    #[inline(always)]
    fn nat_begun(&self, index: u32) -> NatBegun {
        match NAT_BEGUN.get_ptr(index) {
            // SAFETY: the element is valid for the run; another CPU may write it, as one word.
            Some(place) => unsafe { place.read_volatile() },
            None => NatBegun::default(),
        }
    }

    #[inline(always)]
    fn note_nat_begun(&self, index: u32, flow: NatBegun) {
        if let Some(place) = NAT_BEGUN.get_ptr_mut(index) {
            // SAFETY: as above.
            unsafe { place.write_volatile(flow) };
        }
    }

    #[inline(always)]
    fn taken(&self) -> Option<&Taken> {
        const { assert!(size_of::<Taken>() == size_of::<[u64; 6]>()) };
        let place = NAT_TAKEN.get_ptr_mut(0)?;
        // SAFETY: a per-CPU element that only this run uses. It has the size of this type, for which any bytes are
        // valid.
        Some(unsafe { &*place.cast::<Taken>() })
    }

    #[inline(always)]
    fn device_mtu(&self, ifindex: u32) -> Option<u16> {
        /// A length that every device takes, because the call is made for its MTU only.
        const SHORT: u32 = 1;
        let mut mtu = SHORT;
        // SAFETY: the context is the one the kernel passed in, and the length a local.
        let outcome = unsafe { bpf_check_mtu(self.of.ctx.ctx.cast(), ifindex, &raw mut mtu, 0, 0) };
        if outcome < 0 {
            return None;
        }
        Some(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    #[inline(always)]
    fn device_word(&self, ifindex: u32) -> u32 {
        fib::device_word(ifindex)
    }

    #[inline(always)]
    fn keep(&self, translation: Translation) -> Option<&Translation> {
        self.cpu.keep(translation)
    }
}

/// Replaces the mark of an entry if it is the expected one. If the element has been recycled for another flow, the
/// mark differs.
///
/// # Safety
///
/// The entry must be valid for the run.
#[inline(always)]
unsafe fn exchange_mark(place: *mut NatForward, expected: NatMark, mark: NatMark) -> bool {
    // SAFETY: the caller guarantees that the entry is valid.
    let place = unsafe { &raw mut (*place).mark };
    let expected: u64 = transmute!(expected);
    // SAFETY: a mark is one aligned word.
    let found = unsafe { exchange(place.cast(), expected, transmute!(mark)) };
    found == expected
}
