//! The way to the agent's thread that mends packets, and back; the library's `punt` describes it.

use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    btf_maps::{HashMap, XskMap},
    helpers::bpf_xdp_get_buff_len,
    macros::{btf_map, xdp},
    programs::XdpContext,
};
use xdp_prog::{
    abi::size,
    frame::{Frame as _, FrameMut as _},
    parse, process,
    punt::{LONGEST_PUNT, PUNT_ETHER_TYPE, Punt, PuntHeader, queue_key},
    reason::DropReason,
    wire::ethernet::Ethernet,
    world::{Counters as _, Tables as _},
};

use crate::{
    capture,
    context::XdpFrame,
    maps::{Cpu, NO_PREALLOC, XdpMaps, device},
    redirect, to_xdp_action,
};

#[btf_map]
pub(crate) static XSKS: XskMap<{ size::PUNT_QUEUES }> = XskMap::new();
#[btf_map]
static PUNT_QUEUES: HashMap<u64, u32, { size::PUNT_QUEUES }, NO_PREALLOC> = HashMap::new();

/// Redirects a frame to the socket of its queue, or ends it as if there were no such sockets.
#[inline(always)]
pub(crate) fn punt(ctx: &XdpContext) -> u32 {
    let tables = XdpMaps::of_mended(ctx);
    let punt = Punt::handed_over(&tables);
    if tables.is_mended() && !punt.may_follow(Cpu::current().mended_after()) {
        return end_without_agent(ctx);
    }
    let Some(index) = socket(ctx) else {
        return end_without_agent(ctx);
    };
    let mut frame = XdpFrame::new(ctx);
    // SAFETY: the context pointer is the one the kernel passed in.
    let length = unsafe { bpf_xdp_get_buff_len(ctx.ctx) };
    // Before Linux 6.6 no frame of several buffers can be redirected to a socket.
    let in_one_buffer = (ctx.data_end() - ctx.data()) as u64;
    if length > (LONGEST_PUNT - PuntHeader::LENGTH) as u64 || length != in_one_buffer {
        return end_without_agent(ctx);
    }
    // Without a socket, the frame stays as it is.
    if XSKS.redirect(index, xdp_action::XDP_DROP.into()) != Ok(xdp_action::XDP_REDIRECT) {
        return end_without_agent(ctx);
    }
    #[expect(clippy::cast_possible_wrap, reason = "16 bytes")]
    #[expect(clippy::cast_possible_truncation, reason = "16 bytes")]
    if !frame.move_start(-(PuntHeader::LENGTH as i32)) {
        return end_without_agent(ctx);
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
pub(crate) fn socket(ctx: &XdpContext) -> Option<u32> {
    // SAFETY: the context is valid for the whole run.
    let queue = unsafe { (*ctx.ctx).rx_queue_index };
    // SAFETY: the value is one aligned word. An element recycled under the reader yields the socket of another queue at
    // worst, to which the kernel redirects nothing.
    unsafe { PUNT_QUEUES.get(queue_key(device(ctx), queue)) }.copied()
}

/// Ends a frame as if nobody took it.
#[inline(always)]
pub(crate) fn end_without_agent(ctx: &XdpContext) -> u32 {
    let tables = XdpMaps::new(ctx);
    to_xdp_action(&tables, process::end_without_agent(&tables))
}

/// Takes off what is in front of a mended frame, goes on with it, and does what is asked for as if the frame were at
/// the device that it came in by.
#[xdp(frags)]
fn guideway_mended(ctx: XdpContext) -> u32 {
    let Some(header) = take_off(&ctx) else {
        return xdp_action::XDP_DROP;
    };
    match go_on(ctx.ctx) {
        xdp_action::XDP_TX => redirect(header.device()),
        xdp_action::XDP_PASS => hand_to_stack(&ctx, header.mac()),
        action => action,
    }
}

/// Takes the header off a mended frame, and notes it.
#[inline(always)]
fn take_off(ctx: &XdpContext) -> Option<PuntHeader> {
    let mut frame = XdpFrame::new(ctx);
    let header = *frame.view::<PuntHeader>(0)?;
    // The stack sends into the pair, too.
    if header.ether_type != PUNT_ETHER_TYPE.to_be_bytes() {
        return None;
    }
    Cpu::current().note_mended(device(ctx), &header);
    #[expect(clippy::cast_possible_wrap, reason = "16 bytes")]
    #[expect(clippy::cast_possible_truncation, reason = "16 bytes")]
    frame
        .move_start(PuntHeader::LENGTH as i32)
        .then_some(header)
}

/// Runs the program and its stages, and returns what they return: see `around` in [`capture`].
#[inline(never)]
fn go_on(ctx: *mut xdp_md) -> u32 {
    let ctx = XdpContext::new(ctx);
    capture::begin(&ctx);
    capture::go_on(&ctx);
    core::hint::black_box(xdp_action::XDP_DROP)
}

/// Has the stack take a frame: for the MAC of the pair's end, for it takes no other, and without VLAN tags, because it
/// knows no VLAN devices above the pair.
#[inline(always)]
fn hand_to_stack(ctx: &XdpContext, mac: [u8; 6]) -> u32 {
    let mut frame = XdpFrame::new(ctx);
    match for_stack(&mut frame, mac) {
        Some(()) => xdp_action::XDP_PASS,
        None => xdp_action::XDP_DROP,
    }
}

#[inline(always)]
fn for_stack(frame: &mut XdpFrame<'_>, mac: [u8; 6]) -> Option<()> {
    let link = parse::any_link(frame).ok()?;
    let [g, h, i, j, k, l] = frame.view::<Ethernet>(0)?.source();
    let [a, b, c, d, e, f] = mac;
    let tags = link.l3 - Ethernet::LENGTH;
    #[expect(clippy::cast_possible_wrap, reason = "two tags at most")]
    #[expect(clippy::cast_possible_truncation, reason = "two tags at most")]
    if tags != 0 && !frame.move_start(tags as i32) {
        return None;
    }
    *frame.view_mut(0)? = Ethernet {
        macs: [a, b, c, d, e, f, g, h, i, j, k, l],
        ether_type: link.ether_type.to_be_bytes(),
    };
    Some(())
}
