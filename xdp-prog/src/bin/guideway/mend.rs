//! The way to the agent's thread that mends packets, and back; the library's `punt` describes it.

use aya_ebpf::{
    bindings::xdp_action,
    btf_maps::{HashMap, XskMap},
    helpers::bpf_xdp_get_buff_len,
    macros::{btf_map, xdp},
    programs::XdpContext,
};
use xdp_prog::{
    abi::size,
    frame::{Frame as _, FrameMut as _},
    process::end_without_agent,
    punt::{LONGEST_PUNT, PUNT_ETHER_TYPE, Punt, PuntHeader, queue_key},
    reason::DropReason,
    world::{Counters as _, Tables as _},
};

use crate::{
    capture,
    context::XdpFrame,
    maps::{Cpu, NO_PREALLOC, XdpMaps, device},
    to_xdp_action,
};

#[btf_map]
static XSKS: XskMap<{ size::PUNT_QUEUES }> = XskMap::new();
#[btf_map]
static PUNT_QUEUES: HashMap<u64, u32, { size::PUNT_QUEUES }, NO_PREALLOC> = HashMap::new();

/// Redirects a frame to the socket of its queue, or ends it as if there were no such sockets.
#[inline(always)]
pub(crate) fn punt(ctx: &XdpContext) -> u32 {
    let tables = XdpMaps::of_mended(ctx);
    let punt = Punt::handed_over(&tables);
    if tables.is_mended() && !punt.may_follow(Cpu::current().mended_after()) {
        return to_xdp_action(&tables, end_without_agent(&tables));
    }
    let Some(index) = socket(ctx) else {
        return to_xdp_action(&tables, end_without_agent(&tables));
    };
    let mut frame = XdpFrame::new(ctx);
    // SAFETY: the context pointer is the one the kernel passed in.
    let length = unsafe { bpf_xdp_get_buff_len(ctx.ctx) };
    // Before Linux 6.6 no frame of several buffers can be redirected to a socket.
    let in_one_buffer = (ctx.data_end() - ctx.data()) as u64;
    if length > (LONGEST_PUNT - PuntHeader::LENGTH) as u64 || length != in_one_buffer {
        return to_xdp_action(&tables, end_without_agent(&tables));
    }
    // Without a socket, the frame stays as it is.
    if XSKS.redirect(index, xdp_action::XDP_DROP.into()) != Ok(xdp_action::XDP_REDIRECT) {
        return to_xdp_action(&tables, end_without_agent(&tables));
    }
    #[expect(clippy::cast_possible_wrap, reason = "16 bytes")]
    #[expect(clippy::cast_possible_truncation, reason = "16 bytes")]
    if !frame.move_start(-(PuntHeader::LENGTH as i32)) {
        return to_xdp_action(&tables, end_without_agent(&tables));
    }
    let Some(header) = frame.view_mut::<PuntHeader>(0) else {
        tables.count_reason(DropReason::NoHeadroom.index());
        return xdp_action::XDP_DROP;
    };
    *header = punt.header(tables.ingress());
    tables.count_reason(punt.reason().index());
    xdp_action::XDP_REDIRECT
}

/// Returns the index of the socket of the frame's queue.
#[inline(always)]
fn socket(ctx: &XdpContext) -> Option<u32> {
    // SAFETY: the context is valid for the whole run.
    let queue = unsafe { (*ctx.ctx).rx_queue_index };
    // SAFETY: the value is one aligned word. An element recycled under the reader yields the socket of another queue at
    // worst, to which the kernel redirects nothing.
    unsafe { PUNT_QUEUES.get(queue_key(device(ctx), queue)) }.copied()
}

/// Takes off what is in front of a mended frame, and goes on with it.
#[xdp(frags)]
fn guideway_mended(ctx: XdpContext) -> u32 {
    let mut frame = XdpFrame::new(&ctx);
    let Some(header) = frame.view::<PuntHeader>(0) else {
        return xdp_action::XDP_DROP;
    };
    // What the stack sends into the pair by itself.
    if header.ether_type != PUNT_ETHER_TYPE.to_be_bytes() {
        return xdp_action::XDP_DROP;
    }
    Cpu::current().note_mended(device(&ctx), header);
    #[expect(clippy::cast_possible_wrap, reason = "16 bytes")]
    #[expect(clippy::cast_possible_truncation, reason = "16 bytes")]
    if !frame.move_start(PuntHeader::LENGTH as i32) {
        return xdp_action::XDP_DROP;
    }
    capture::begin(&ctx);
    capture::go_on(&ctx);
    xdp_action::XDP_DROP
}
