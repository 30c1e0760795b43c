//! Copies of frames for captures; the library's `capture` describes a frame's way.
//!
//! The copy before the program waits in a per-CPU element for the copy after it. No other run of the programs happens
//! on the CPU in between.

use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    btf_maps::{Array, PerCpuArray, ProgramArray, RingBuf},
    helpers::{bpf_get_prandom_u32, bpf_ktime_get_ns, bpf_xdp_get_buff_len, bpf_xdp_load_bytes},
    macros::{btf_map, xdp},
    programs::XdpContext,
};
use xdp_prog::capture::{COPIES, Copies, Event, RING, Reasons, SNAP_MAX, Settings, Slot};

use crate::{
    context::XdpFrame,
    edge,
    maps::{Cpu, device},
};

#[btf_map]
static CAPTURE: ProgramArray<{ Slot::COUNT }> = ProgramArray::new();
#[btf_map]
static CAPTURE_SETTINGS: Array<Settings, 1> = Array::new();
#[btf_map]
static CAPTURE_COPIES: PerCpuArray<Copies, 1> = PerCpuArray::new();
#[btf_map]
static EVENTS: RingBuf<Event, RING> = RingBuf::new();
#[btf_map]
static EVENTS_LOST: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Continues in [`guideway_capture`] while a capture runs.
#[inline(always)]
pub(crate) fn begin(ctx: &XdpContext) {
    tail_call(ctx, Slot::Around);
}

#[xdp(frags)]
fn guideway_capture(ctx: XdpContext) -> u32 {
    let _ = before(&ctx);
    let action = around(ctx.ctx);
    let _ = after(&ctx, action);
    action
}

/// Runs the program and its stages, and returns what they return.
///
/// A tail call replaces the function that makes it: when the last program of the chain ends, the kernel returns to
/// the caller of this function.
#[inline(never)]
fn around(ctx: *mut xdp_md) -> u32 {
    tail_call(&XdpContext::new(ctx), Slot::Edge);
    // Without `black_box`, the compiler would assume that the function always returns this value.
    core::hint::black_box(xdp_action::XDP_ABORTED)
}

#[xdp(frags)]
fn guideway_capture_edge(ctx: XdpContext) -> u32 {
    edge(&ctx, false)
}

/// Continues in the copy of the edge's program.
#[inline(always)]
pub(crate) fn go_on(ctx: &XdpContext) {
    tail_call(ctx, Slot::Edge);
}

#[inline(always)]
fn tail_call(ctx: &XdpContext, slot: Slot) {
    // SAFETY: nothing in this frame of the stack needs dropping.
    unsafe { CAPTURE.tail_call(ctx, slot.index()) }
}

/// Copies a frame that is wanted and prepares [`after`].
#[inline(always)]
fn before(ctx: &XdpContext) -> Option<()> {
    let settings = CAPTURE_SETTINGS.get(0)?;
    let copies = copies()?;
    copies.armed = 0;
    let cpu = Cpu::current();
    if cpu.now() > settings.until_ns || !is_chosen(cpu.first_ingress(device(ctx)), settings) {
        return None;
    }
    let place = &mut copies.place;
    if !settings
        .filter
        .matches(&XdpFrame::new(ctx), |word| pass(place, word))
    {
        return None;
    }
    let (length, copied) = copy(ctx, &raw mut copies.bytes, 0, settings.snap)?;
    copies.event.ifindex = cpu.first_ingress(device(ctx));
    copies.event.before_length = length;
    copies.event.before_copied = copied;
    for (index, counter) in (0..).zip(&mut copies.counters) {
        *counter = cpu.counted(index);
    }
    copies.armed = 1;
    // SAFETY: the helper takes nothing.
    copies.event.before_ns = unsafe { bpf_ktime_get_ns() };
    Some(())
}

#[inline(always)]
fn is_chosen(ingress: u32, settings: &Settings) -> bool {
    // SAFETY: the helper takes nothing.
    if settings.sample > 1 && unsafe { bpf_get_prandom_u32() } % settings.sample != 0 {
        return false;
    }
    settings.holds_device(ingress)
}

/// Sends the event of a frame that was copied.
#[inline(always)]
fn after(ctx: &XdpContext, action: u32) -> Option<()> {
    let settings = CAPTURE_SETTINGS.get(0)?;
    let copies = copies()?;
    if copies.armed == 0 {
        return None;
    }
    copies.armed = 0;
    // SAFETY: the helper takes nothing.
    copies.event.after_ns = unsafe { bpf_ktime_get_ns() };
    copies.event.reasons = Reasons::default();
    let cpu = Cpu::current();
    for (index, counter) in (0..).zip(&copies.counters) {
        if cpu.counted(index) != *counter {
            insert(&mut copies.event.reasons, index);
        }
    }
    if !settings.outcomes.holds(read(&copies.event.reasons)) {
        return None;
    }
    copies.event.action = action;
    let before_copied = copies.event.before_copied;
    let (after_length, after_copied) =
        if action == xdp_action::XDP_DROP || action == xdp_action::XDP_ABORTED {
            (0, 0)
        } else {
            copy(ctx, &raw mut copies.bytes, before_copied, settings.snap)?
        };
    copies.event.after_length = after_length;
    copies.event.after_copied = after_copied;
    let size = size_of::<Event>() + before_copied as usize + after_copied as usize;
    if size > size_of::<Event>() + COPIES {
        return None;
    }
    // SAFETY: the event and the bytes behind it lie in one map element, which is at least that long.
    let event = unsafe { core::slice::from_raw_parts((&raw const *copies).cast::<u8>(), size) };
    if EVENTS.output_untyped::<[u8]>(event, 0).is_err()
        && let Some(lost) = EVENTS_LOST.get_ptr_mut(0)
    {
        // SAFETY: a per-CPU element, and XDP runs do not nest on a CPU.
        unsafe { *lost += 1 };
    }
    Some(())
}

/// Adds a reason in memory. In a register, the verifier would follow every possible set.
#[inline(always)]
fn insert(reasons: &mut Reasons, index: u32) {
    let mut grown = read(reasons);
    grown.insert(index);
    // SAFETY: a reference is valid and aligned.
    unsafe { core::ptr::write_volatile(reasons, grown) };
}

/// Passes a number through memory, so that the verifier forgets its origin.
#[inline(always)]
fn pass(place: &mut u64, word: u64) -> u64 {
    // SAFETY: a reference is valid and aligned.
    unsafe { core::ptr::write_volatile(place, word) };
    // SAFETY: as above.
    unsafe { core::ptr::read_volatile(place) }
}

#[inline(always)]
fn read(reasons: &Reasons) -> Reasons {
    // SAFETY: a reference is valid and aligned.
    unsafe { core::ptr::read_volatile(reasons) }
}

#[inline(always)]
fn copies() -> Option<&'static mut Copies> {
    let copies = CAPTURE_COPIES.get_ptr_mut(0)?;
    // SAFETY: a per-CPU element that one program at a time uses.
    Some(unsafe { &mut *copies })
}

/// Copies the front of a frame to an offset of the scratch; returns the lengths of the frame and of the copy.
#[inline(always)]
fn copy(ctx: &XdpContext, bytes: *mut [u8; COPIES], offset: u32, snap: u32) -> Option<(u32, u32)> {
    // SAFETY: the context pointer is the one the kernel passed in.
    let length = unsafe { bpf_xdp_get_buff_len(ctx.ctx) };
    #[expect(clippy::cast_possible_truncation, reason = "no frame has 4 GiB")]
    let length = length as u32;
    let wanted = if length < snap { length } else { snap };
    if wanted == 0 || offset > SNAP_MAX {
        return None;
    }
    // Linux 6.1 learns nothing from a comparison with zero, but it learns bounds from a mask.
    let copied = ((wanted - 1) & (SNAP_MAX - 1)) + 1;
    // SAFETY: the offset is at most half of the array.
    let place = unsafe { bytes.cast::<u8>().add(offset as usize) };
    // SAFETY: the helper writes within the array and checks what it reads.
    let result = unsafe { bpf_xdp_load_bytes(ctx.ctx, 0, place.cast(), copied) };
    (result == 0).then_some((length, copied))
}
