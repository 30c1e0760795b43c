//! The TC egress program: translates what pods reply.

use aya_ebpf::{
    bindings::{BPF_F_INGRESS, TC_ACT_SHOT, TC_ACT_UNSPEC},
    helpers::bpf_redirect,
    macros::classifier,
    programs::TcContext,
};
use xdp_prog::egress::{Next, process};

use crate::{maps::EgressTables, skb::SkbFrame};

/// Whatever became of the packet, the programs and filters behind this one go on with it
/// (`TC_ACT_UNSPEC`, which tcx calls `TCX_NEXT`), unless it is half translated.
// Not a function of its own: every packet would pay for the call.
#[classifier]
#[inline(always)]
fn guideway_egress(ctx: TcContext) -> i32 {
    match process(&mut SkbFrame::new(&ctx), &EgressTables) {
        Ok(Next::Out) => TC_ACT_UNSPEC,
        Ok(Next::Back) => come_in(&ctx),
        Err(_) => TC_ACT_SHOT,
    }
}

/// Lets the packet come in by the device that it was to leave by.
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
