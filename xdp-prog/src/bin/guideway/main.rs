//! The XDP program: edge and node role in one.
//!
//! A thin shell over the library half: it lends the context's bytes and the
//! maps to [`process`] and turns the outcome into an XDP action.
#![no_std]
#![no_main]

mod context;
mod maps;

use aya_ebpf::{bindings::xdp_action, helpers::bpf_redirect, macros::xdp, programs::XdpContext};
use context::XdpFrame;
use maps::KernelTables;
use xdp_prog::decide::{Action, process};

#[xdp(frags)]
fn guideway(ctx: XdpContext) -> u32 {
    let tables = KernelTables::new(&ctx);
    let ingress = tables.ingress();
    match process(&mut XdpFrame::new(&ctx), &tables, ingress) {
        Action::Pass => xdp_action::XDP_PASS,
        Action::Drop => xdp_action::XDP_DROP,
        Action::Transmit => xdp_action::XDP_TX,
        Action::Redirect(ifindex) => redirect(ifindex),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the helper returns an XDP action"
)]
fn redirect(ifindex: u32) -> u32 {
    // SAFETY: the helper takes plain integers; an unknown ifindex is an error
    // that the kernel counts (tracepoint xdp_redirect_err).
    unsafe { bpf_redirect(ifindex, 0) as u32 }
}

/// An endless loop, so that the verifier refuses a program that could panic.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

// The helpers in use are open to GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
