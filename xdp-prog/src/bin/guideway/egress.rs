//! The TC egress program: translates what pods reply.

use aya_ebpf::{bindings::TC_ACT_UNSPEC, macros::classifier, programs::TcContext};

/// Whatever became of the packet, the programs and filters behind this one go on with it
/// (`TC_ACT_UNSPEC`, which tcx calls `TCX_NEXT`).
#[classifier]
fn guideway_egress(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}
