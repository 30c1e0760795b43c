//! Each CPU's own memory: counters, the clock, and the facts that a run leaves for its next stage.
//!
//! The arrays have a region for each CPU, which begins on a cache line of its own. The kernel's per-CPU arrays would
//! read a second cache line, of pointers to the regions, and before Linux 6.10 need a call for each look-up.
//!
//! Neither program interrupts the other on a CPU, or itself: both run with softirqs off.

use core::mem::offset_of;

use aya_ebpf::{
    btf_maps::Array,
    helpers::{bpf_get_smp_processor_id, bpf_jiffies64, bpf_ktime_get_coarse_ns},
    macros::btf_map,
};
use xdp_prog::{
    abi::{Config, REASONS_OF_CPU, Traffic, size},
    punt::PuntHeader,
    reason::REASON_COUNT,
    world::{Clock, Counters, HandOver, HandOvers, Relay, Translation},
};

use super::{Kind, MMAPABLE, Maps, XdpMaps, read_once};
use crate::context::add_and_subtract;

/// The memory of a run, on three cache lines. Only NAT mode needs the second one, only stages that take mended frames
/// the third.
#[repr(C)]
struct Scratch {
    /// A tick of the timer, and the coarse clock as it was read in that tick.
    clock: [u64; 2],
    /// See [`Relay`](xdp_prog::world::Relay).
    relay: [u64; 4],
    /// See [`HandOvers`](xdp_prog::world::HandOvers).
    hand_over: HandOver,
    /// See [`NatFlows::keep`](xdp_prog::world::NatFlows::keep).
    translation: Translation,
    /// The device at which mended frames come back, the one by which the last of them came in at first, the number of
    /// the reason why that was punted, and zero.
    mended: [u32; 4],
    reserved: [u64; 6],
}

const _: () = assert!(size_of::<Scratch>() == 192 && offset_of!(Scratch, translation) == 64);

// The sizes are those of one CPU; the loader multiplies them.
#[btf_map]
static CPU_SCRATCH: Array<Scratch, 1, MMAPABLE> = Array::new();
#[btf_map]
static REASONS: Array<u64, REASON_COUNT, MMAPABLE> = Array::new();
#[btf_map]
static SERVICE_TRAFFIC: Array<Traffic, { size::SERVICES }, MMAPABLE> = Array::new();
#[btf_map]
static BACKEND_TRAFFIC: Array<Traffic, { size::BACKENDS }, MMAPABLE> = Array::new();

/// The CPU that a program runs on, by its number. It stays the same until the run ends.
///
/// For a number without a region, nothing is counted or kept. No CPU has such a number, because the loader makes a
/// region for each possible one.
#[derive(Clone, Copy)]
pub(crate) struct Cpu(u32);

impl Cpu {
    /// Asks for the number; once per run, because before Linux 6.10 this is a call.
    #[inline(always)]
    pub(crate) fn current() -> Self {
        // SAFETY: the helper takes nothing.
        Self(unsafe { bpf_get_smp_processor_id() })
    }

    /// Returns the coarse clock, which moves with the timer tick and costs a tenth of the fine one.
    ///
    /// Reading the clock takes three nested kernel functions. Reading the tick is one load, because the verifier
    /// replaces the call by it (Linux 5.6). So the clock is read once per tick.
    #[inline(always)]
    pub(crate) fn now(self) -> u64 {
        // SAFETY: the helper takes nothing.
        let tick = unsafe { bpf_jiffies64() };
        let Some(scratch) = self.scratch() else {
            return coarse_clock();
        };
        // SAFETY: the CPU's own element.
        let [read_in, clock] = unsafe { &mut (*scratch).clock };
        if *read_in != tick {
            *read_in = tick;
            *clock = coarse_clock();
        }
        *clock
    }

    #[inline(always)]
    pub(super) fn relay(self, words: [u64; 4]) -> Option<[u64; 4]> {
        let scratch = self.scratch()?;
        // SAFETY: the CPU's own element.
        let place = unsafe { &raw mut (*scratch).relay };
        // SAFETY: as above.
        unsafe { place.write_volatile(words) };
        // SAFETY: as above.
        Some(unsafe { place.read_volatile() })
    }

    #[inline(always)]
    pub(super) fn relayed(self) -> Option<[u64; 4]> {
        let scratch = self.scratch()?;
        // SAFETY: the CPU's own element; a stage that follows by tail call is part of the same run.
        let place = unsafe { &raw const (*scratch).relay };
        // SAFETY: as above.
        Some(unsafe { place.read_volatile() })
    }

    #[inline(always)]
    pub(super) fn hand_over(self, known: HandOver) {
        if let Some(scratch) = self.scratch() {
            // SAFETY: the CPU's own element.
            unsafe { (*scratch).hand_over = known };
        }
    }

    #[inline(always)]
    pub(super) fn handed_over(self) -> HandOver {
        match self.scratch() {
            // SAFETY: the CPU's own element.
            Some(scratch) => unsafe { (*scratch).hand_over },
            None => HandOver::default(),
        }
    }

    #[inline(always)]
    pub(super) fn keep(self, translation: Translation) -> Option<&'static Translation> {
        let scratch = self.scratch()?;
        // SAFETY: the CPU's own element, of which only this run uses this part.
        let place = unsafe { &mut (*scratch).translation };
        *place = translation;
        Some(place)
    }

    /// Notes where a mended frame came from at first, which comes back by another device.
    #[inline(always)]
    pub(crate) fn note_mended(self, back: u32, header: &PuntHeader) {
        if let Some(scratch) = self.scratch() {
            // SAFETY: the CPU's own element.
            unsafe { (*scratch).mended = [back, header.device(), header.reason_number(), 0] };
        }
    }

    /// Returns the number of the reason why the mended frame of this run was punted.
    #[inline(always)]
    pub(crate) fn mended_after(self) -> u32 {
        match self.scratch() {
            // SAFETY: the CPU's own element.
            Some(scratch) => unsafe { (*scratch).mended[2] },
            None => 0,
        }
    }

    /// Returns the device that a frame came in by at first.
    ///
    /// Every frame of the device of mended frames begins with a note, so one of this device is this run's.
    #[inline(always)]
    pub(crate) fn first_ingress(self, ingress: u32) -> u32 {
        let Some(scratch) = self.scratch() else {
            return ingress;
        };
        // SAFETY: the CPU's own element.
        let [back, first, ..] = unsafe { (*scratch).mended };
        if back == ingress { first } else { ingress }
    }

    #[inline(always)]
    pub(super) fn count_reason(self, index: u32) {
        if let Some(counter) = REASONS.get_ptr_mut(self.place(REASONS_OF_CPU, index)) {
            // SAFETY: the CPU's own element.
            unsafe { *counter += 1 };
        }
    }

    /// Returns this CPU's counter of a reason.
    #[inline(always)]
    pub(crate) fn counted(self, index: u32) -> u64 {
        let counter = REASONS.get(self.place(REASONS_OF_CPU, index));
        counter.map_or(0, read_once)
    }

    #[inline(always)]
    pub(super) fn count_forward(self, config: &Config, service: u32, backend: u32, bytes: u64) {
        let service = self.place(config.services_of_cpu, service);
        let backend = self.place(config.backends_of_cpu, backend);
        count(SERVICE_TRAFFIC.get_ptr_mut(service), bytes);
        count(BACKEND_TRAFFIC.get_ptr_mut(backend), bytes);
    }

    #[inline(always)]
    fn scratch(self) -> Option<*mut Scratch> {
        CPU_SCRATCH.get_ptr_mut(self.0)
    }

    /// Returns the place of an index in an array whose regions have this many entries.
    #[inline(always)]
    const fn place(self, entries: u32, index: u32) -> u32 {
        self.0.wrapping_mul(entries).wrapping_add(index)
    }
}

impl<K> Clock for Maps<K> {
    #[inline(always)]
    fn now(&self) -> u64 {
        self.cpu.now()
    }
}

impl<K> Relay for Maps<K> {
    #[inline(always)]
    fn relay(&self, words: [u64; 4]) -> Option<[u64; 4]> {
        self.cpu.relay(words)
    }

    #[inline(always)]
    fn relayed(&self) -> Option<[u64; 4]> {
        self.cpu.relayed()
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "both are 64 bits wide")]
    fn opaque(&self, number: u64) -> u64 {
        // SAFETY: the helper takes nothing. The verifier replaces the call by one load.
        let unknown = unsafe { bpf_jiffies64() };
        add_and_subtract(number as usize, unknown as usize) as u64
    }
}

impl HandOvers for XdpMaps<'_> {
    #[inline(always)]
    fn hand_over(&self, known: HandOver) {
        self.cpu.hand_over(known);
    }

    #[inline(always)]
    fn handed_over(&self) -> HandOver {
        self.cpu.handed_over()
    }
}

impl<K: Kind> Counters for Maps<K> {
    #[inline(always)]
    fn count_reason(&self, index: u32) {
        self.cpu.count_reason(index);
    }

    #[inline(always)]
    fn count_forward(&self, service: u32, backend: u32, bytes: u64) {
        if let Some(config) = self.of.config() {
            self.cpu.count_forward(config, service, backend, bytes);
        }
    }
}

/// Reads the coarse clock.
#[inline(always)]
pub(super) fn coarse_clock() -> u64 {
    // SAFETY: the helper takes nothing.
    unsafe { bpf_ktime_get_coarse_ns() }
}

#[inline(always)]
fn count(counter: Option<*mut Traffic>, bytes: u64) {
    if let Some(counter) = counter {
        // SAFETY: the CPU's own element.
        let counter = unsafe { &mut *counter };
        counter.packets += 1;
        counter.bytes += bytes;
    }
}
