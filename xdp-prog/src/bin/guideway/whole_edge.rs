//! The way to the threads of a whole edge; the library's `whole_edge` describes it.

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
use xdp_prog::{
    abi::{ADDRESS_SHARED, ADDRESS_VIP, AddressKey, Tag},
    frame::{Frame as _, FrameMut as _},
    parse,
    whole_edge::ROOM,
    wire::{
        ethernet,
        icmp::{Icmp, v4, v6},
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
    },
};

use crate::{
    context::XdpFrame,
    maps,
    mend::{XSKS, socket},
};

/// Redirects a frame to the socket of its queue that is for a service's address, that a node may have returned, or that says
/// what a path takes.
#[xdp]
fn guideway_to_thread(ctx: XdpContext) -> u32 {
    let mut frame = XdpFrame::of(&ctx, true);
    let Some(without_thread) = judge(&frame) else {
        return xdp_action::XDP_PASS;
    };
    let Some(index) = socket(&ctx) else {
        return without_thread;
    };
    // Without a socket, the frame stays as it is.
    if XSKS.redirect(index, without_thread.into()) != Ok(xdp_action::XDP_REDIRECT) {
        return without_thread;
    }
    #[expect(clippy::cast_possible_wrap, reason = "64 bytes")]
    #[expect(clippy::cast_possible_truncation, reason = "64 bytes")]
    if frame.move_start(-(ROOM as i32)) {
        xdp_action::XDP_REDIRECT
    } else {
        xdp_action::XDP_DROP
    }
}

/// Returns the action on a frame for which there is no thread; `None` if no thread needs to see it.
#[inline(always)]
fn judge(frame: &XdpFrame<'_>) -> Option<u32> {
    let link = parse::link(frame).ok()?;
    match link.ether_type {
        ethernet::IPV4 => {
            let header: &Ipv4 = frame.view(link.l3)?;
            let tag = Tag(u16::from_be_bytes(header.identification));
            // Nobody sends such a message with options.
            let is_about_path = header.protocol == protocol::ICMP
                && frame
                    .view(link.l3 + Ipv4::LENGTH)
                    .is_some_and(|message: &Icmp| {
                        message.kind == v4::UNREACHABLE && message.code == v4::FRAGMENTATION_NEEDED
                    });
            let destination = AddressKey::v4(header.destination());
            judge_packet(&destination, header.protocol, tag, is_about_path)
        }
        ethernet::IPV6 => {
            let header: &Ipv6 = frame.view(link.l3)?;
            let is_about_path = header.next_header == protocol::ICMPV6
                && frame
                    .view(link.l3 + Ipv6::LENGTH)
                    .is_some_and(|message: &Icmp| message.kind == v6::PACKET_TOO_BIG);
            let destination = AddressKey::v6(header.destination);
            let tag = Tag(header.label_tag());
            judge_packet(&destination, header.next_header, tag, is_about_path)
        }
        _ => None,
    }
}

#[inline(always)]
fn judge_packet(
    destination: &AddressKey,
    protocol: u8,
    tag: Tag,
    is_about_path: bool,
) -> Option<u32> {
    match maps::address_flags(destination) {
        // The stack would forward it to an edge, perhaps this one.
        ADDRESS_VIP => Some(xdp_action::XDP_DROP),
        flags if flags & (ADDRESS_VIP | ADDRESS_SHARED) != 0 => Some(xdp_action::XDP_PASS),
        _ if matches!(protocol, protocol::IPV4 | protocol::IPV6) && tag.is_returned() => {
            Some(xdp_action::XDP_PASS)
        }
        _ if is_about_path => Some(xdp_action::XDP_PASS),
        _ => None,
    }
}
