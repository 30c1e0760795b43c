//! Counts frames of the whole machine that the kernel could not send although a program handed them over.
//!
//! The tracepoints give pointers to devices and programs. Nothing here follows them, because the compiler writes no
//! relocations for offsets of kernel structures. So the failures of other XDP programs are counted too.

use aya_ebpf::{
    bindings::xdp_action,
    btf_maps::PerCpuArray,
    macros::{btf_map, raw_tracepoint},
    programs::RawTracePointContext,
};
use xdp_prog::failure::Failure;

#[btf_map]
static FAILURES: PerCpuArray<u64, { Failure::ALL.len() }> = PerCpuArray::new();

/// `(dev, xdp, tgt, err, map_type, map_id, index)`: the target does not exist, or refused the frame before it was
/// queued.
#[raw_tracepoint(tracepoint = "xdp_redirect_err")]
fn guideway_redirect_err(ctx: RawTracePointContext) {
    /// `BPF_MAP_TYPE_UNSPEC`: the program named a device, as ours do, and not an entry of a map.
    const NO_MAP: u32 = 0;
    if ctx.arg::<u32>(4) == NO_MAP {
        count(Failure::of_redirect(ctx.arg(3)));
    }
}

/// `(dev, xdp, act)`: the driver could not carry out the program's action.
#[raw_tracepoint(tracepoint = "xdp_exception")]
fn guideway_exception(ctx: RawTracePointContext) {
    // Some drivers report redirects here too, which `xdp_redirect_err` has reported already.
    if ctx.arg::<u32>(2) == xdp_action::XDP_TX {
        count(Failure::Transmit);
    }
}

#[inline(always)]
fn count(failure: Failure) {
    if let Some(counter) = FAILURES.get_ptr_mut(failure.index()) {
        // SAFETY: a per-CPU element; softirqs are off where these tracepoints fire.
        unsafe { *counter += 1 };
    }
}
