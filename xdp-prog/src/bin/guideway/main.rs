//! The XDP program: edge and node role in one, and a program for each stage.
//!
//! This is a thin shell over the library half. It lends the context's bytes and the maps to [`process`] and
//! [`resume`] and turns the outcome into an XDP action.
#![no_std]
#![no_main]
// For instructions that only inline assembly can name: see `maps::exchange` and `context::opaque`.
#![feature(asm_experimental_arch)]

mod capture;
mod context;
mod egress;
mod failures;
mod maps;
mod mend;
mod skb;
mod sum;
mod whole_edge;

use aya_ebpf::{bindings::xdp_action, helpers::bpf_redirect, macros::xdp, programs::XdpContext};
use context::XdpFrame;
use maps::XdpMaps;
use xdp_prog::{
    process::{Action, process, resume},
    reason::DropReason,
    stage::Stage,
    world::Counters as _,
};

#[xdp(frags)]
fn guideway(ctx: XdpContext) -> u32 {
    capture::begin(&ctx);
    edge(&ctx, true)
}

#[inline(always)]
fn edge(ctx: &XdpContext, is_followed: bool) -> u32 {
    let tables = XdpMaps::new(ctx);
    let ingress = tables.ingress();
    let action = process(&mut XdpFrame::of(ctx, is_followed), &tables, ingress);
    to_xdp_action(&tables, action)
}

// Without `inline(always)`, LLVM makes a separate function of this one, and every packet would pay for the call.
#[xdp(frags)]
#[inline(always)]
fn guideway_receive(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Receive)
}

#[xdp(frags)]
fn guideway_local(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Local)
}

#[xdp(frags)]
fn guideway_icmp(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Icmp)
}

#[xdp(frags)]
fn guideway_fragment(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Fragment)
}

#[xdp(frags)]
fn guideway_nat(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Nat)
}

#[xdp(frags)]
fn guideway_probe(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Probe)
}

#[xdp(frags)]
fn guideway_nat_begin(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::NatBegin)
}

#[xdp(frags)]
fn guideway_nat_reply(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::NatReply)
}

#[xdp(frags)]
fn guideway_fragment_within(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::FragmentWithin)
}

#[xdp(frags)]
fn guideway_answer(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Answer)
}

#[xdp(frags)]
fn guideway_icmp_local(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::IcmpLocal)
}

#[xdp(frags)]
fn guideway_nat_fragment(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::NatFragment)
}

#[xdp(frags)]
fn guideway_nat_icmp(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::NatIcmp)
}

#[xdp(frags)]
fn guideway_neighbour(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Neighbour)
}

#[xdp(frags)]
fn guideway_path(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Path)
}

#[xdp(frags)]
fn guideway_pod_flow(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::PodFlow)
}

#[xdp(frags)]
fn guideway_nat_proof(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::NatProof)
}

#[xdp(frags)]
fn guideway_nat_share(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::NatShare)
}

#[xdp(frags)]
fn guideway_decap(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Decap)
}

#[xdp(frags)]
fn guideway_past(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Past)
}

#[xdp(frags)]
fn guideway_returned(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Returned)
}

#[xdp(frags)]
fn guideway_returned_datagram(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::ReturnedDatagram)
}

#[xdp(frags)]
fn guideway_ask(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Ask)
}

#[xdp(frags)]
fn guideway_send(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Send)
}

#[xdp(frags)]
fn guideway_return(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::Return)
}

#[xdp(frags)]
fn guideway_ask_here(ctx: XdpContext) -> u32 {
    stage(&ctx, Stage::AskHere)
}

#[xdp(frags)]
fn guideway_punt(ctx: XdpContext) -> u32 {
    mend::punt(&ctx)
}

/// In place of [`guideway_punt`] where the kernel has no AF_XDP.
#[xdp(frags)]
fn guideway_unpunted(ctx: XdpContext) -> u32 {
    mend::end_without_agent(&ctx)
}

#[inline(always)]
fn stage(ctx: &XdpContext, stage: Stage) -> u32 {
    let tables = if stage.takes_mended() {
        XdpMaps::of_mended(ctx)
    } else {
        XdpMaps::new(ctx)
    };
    let ingress = tables.ingress();
    let mut frame = XdpFrame::of(ctx, matches!(stage, Stage::Receive | Stage::Local));
    let action = resume(stage, &mut frame, &tables, ingress);
    to_xdp_action(&tables, action)
}

#[inline(always)]
fn to_xdp_action(tables: &XdpMaps<'_>, action: Action) -> u32 {
    match action {
        Action::Pass => xdp_action::XDP_PASS,
        Action::Drop => xdp_action::XDP_DROP,
        Action::Transmit => xdp_action::XDP_TX,
        Action::Redirect(ifindex) => redirect(ifindex),
        Action::Continue(stage) => {
            tables.tail_call(stage);
            tables.count_reason(DropReason::StageMissing.index());
            xdp_action::XDP_DROP
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the helper returns an XDP action"
)]
pub(crate) fn redirect(ifindex: u32) -> u32 {
    // SAFETY: the helper takes plain integers. An unknown ifindex fails later and is counted in `failures`.
    unsafe { bpf_redirect(ifindex, 0) as u32 }
}

/// Loops forever, so that the verifier refuses a program that could panic.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

// The kernel opens the helpers in use only to GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
