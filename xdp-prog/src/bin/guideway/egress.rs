//! The TC egress program: translates the replies of pods.

use aya_ebpf::{
    bindings::{BPF_F_INGRESS, TC_ACT_SHOT, TC_ACT_UNSPEC},
    helpers::bpf_redirect,
    macros::classifier,
    programs::TcContext,
};
use xdp_prog::egress::{Next, process};

use crate::{maps::TcMaps, skb::SkbFrame};

/// Leaves the packet to the programs and filters behind this one (`TC_ACT_UNSPEC`, which tcx calls `TCX_NEXT`). A packet for a
/// client on this machine comes in again; one that is half translated is dropped.
// Inlined into the program: every packet would pay for a call.
#[classifier]
#[inline(always)]
fn guideway_egress(ctx: TcContext) -> i32 {
    match process(&mut SkbFrame::new(&ctx), &TcMaps::new()) {
        Ok(Next::Out) => TC_ACT_UNSPEC,
        Ok(Next::Back) => come_in(&ctx),
        Err(_) => TC_ACT_SHOT,
    }
}

/// Makes the packet come in by the device by which it was to leave.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the helper returns a TC action"
)]
fn come_in(ctx: &TcContext) -> i32 {
    // SAFETY: the context is the one that the kernel passed in.
    let ifindex = unsafe { (*ctx.skb.skb).ifindex };
    // SAFETY: the helper takes plain integers.
    unsafe { bpf_redirect(ifindex, u64::from(BPF_F_INGRESS)) as i32 }
}
