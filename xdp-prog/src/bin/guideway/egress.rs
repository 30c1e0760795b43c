//! The TC egress program: translates what pods reply.

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    macros::classifier,
    programs::TcContext,
};
use xdp_prog::egress::process;

use crate::{maps::EgressTables, skb::SkbFrame};

/// Whatever became of the packet, the programs and filters behind this one go on with it
/// (`TC_ACT_UNSPEC`, which tcx calls `TCX_NEXT`), unless it is half translated.
#[classifier]
fn guideway_egress(ctx: TcContext) -> i32 {
    match process(&mut SkbFrame::new(&ctx), &EgressTables) {
        Ok(()) => TC_ACT_UNSPEC,
        Err(_) => TC_ACT_SHOT,
    }
}
