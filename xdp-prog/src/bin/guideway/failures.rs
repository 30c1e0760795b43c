//! Counts frames that the kernel could not send although a program said so, of the whole machine.
//!
//! The tracepoints give pointers to devices and programs, which nothing here follows: the compiler writes no
//! relocations for offsets of kernel structures. So what other XDP programs lose is counted too.

use aya_ebpf::{
    bindings::xdp_action,
    btf_maps::PerCpuArray,
    macros::{btf_map, raw_tracepoint},
    programs::RawTracePointContext,
};
use xdp_prog::failure::Failure;

#[btf_map]
static FAILURES: PerCpuArray<u64, { Failure::ALL.len() }> = PerCpuArray::new();

/// `(dev, xdp, tgt, err, map_type, map_id, index)`: the target does not exist, or refuses before a frame is queued.
#[raw_tracepoint(tracepoint = "xdp_redirect_err")]
fn guideway_redirect_err(ctx: RawTracePointContext) {
    /// `BPF_MAP_TYPE_UNSPEC`: the program named a device, as ours do, and no place in a map.
    const NO_MAP: u32 = 0;
    if ctx.arg::<u32>(4) == NO_MAP {
        count(Failure::of_redirect(ctx.arg(3)));
    }
}

/// `(dev, xdp, act)`: the driver could not do what the program said.
#[raw_tracepoint(tracepoint = "xdp_exception")]
fn guideway_exception(ctx: RawTracePointContext) {
    // Some drivers say so of redirects too, which `xdp_redirect_err` has told already.
    if ctx.arg::<u32>(2) == xdp_action::XDP_TX {
        count(Failure::Transmit);
    }
}

#[inline(always)]
fn count(failure: Failure) {
    if let Some(counter) = FAILURES.get_ptr_mut(failure.index()) {
        // SAFETY: a per-CPU element; where these tracepoints are, softirqs are off.
        unsafe { *counter += 1 };
    }
}
