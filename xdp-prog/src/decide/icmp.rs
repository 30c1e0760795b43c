//! ICMP to addresses of ours.
//!
//! An echo request to a VIP is answered. An error may quote a flow of ours, a packet that a backend sent to its
//! client. Such an error goes to the backend that owns the flow, which the quoted tuple, turned round, identifies. It
//! is encapsulated like any packet of the flow. If the pod is on this machine, its quote is translated, so that the
//! pod recognises its own packet. Every other message passes to the stack.

pub mod local;
pub mod path;

use super::{
    address::is_vip,
    edge::{balance, neighbour},
    message::{Kind, Messages, has_service, is_echo_request, is_too_big, kind, quoted},
    owner::{find_service, owner},
};
use crate::{
    abi::SERVICE_NAT,
    family::Family,
    frame::Frame,
    ip::with_packet,
    parse::{Packet, TcpFlags},
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::Verdict,
    world::{Answer, HandOver, World},
};

/// Decides what becomes of a bare ICMP message.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    with_packet!(frame, packet => decide_message(frame, tables, &packet), reason => Verdict::Pass(reason))
}

#[inline(always)]
fn decide_message<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    let is_vip = is_vip(tables, packet.destination);
    if is_vip && packet.l4 != packet.l3 + A::HEADER_LENGTH {
        // An answer repeats IPv4 options.
        return if matches!(A::FAMILY, Family::V4) && is_echo_request(frame, packet) {
            Verdict::Answer(Answer::ECHO)
        } else {
            Verdict::Drop(DropReason::IcmpOptions)
        };
    }
    match kind(frame, packet) {
        Kind::EchoRequest if is_vip => return Verdict::Answer(Answer::ECHO),
        Kind::Solicitation if neighbour::announces(tables) => {
            return Verdict::Continue(Stage::Neighbour);
        }
        Kind::EchoRequest | Kind::Solicitation | Kind::Other if is_vip => {
            return Verdict::Drop(DropReason::VipIcmp);
        }
        Kind::EchoRequest | Kind::Solicitation | Kind::Other => {
            return Verdict::Pass(PassReason::Icmp);
        }
        Kind::CutShort => return malformed(is_vip),
        Kind::Error => {}
    }
    let Some(quote) = quoted(frame, packet) else {
        return malformed(is_vip);
    };
    if !has_service(quote.flow.protocol) {
        // No outer packet has a VIP as its source.
        return if !is_vip && is_too_big(frame, packet) {
            Verdict::Continue(Stage::Path)
        } else {
            malformed(is_vip)
        };
    }
    let flow = &quote.flow;
    let found = match find_service(tables, flow) {
        Ok(found) => found,
        Err(Verdict::Drop(reason)) => return Verdict::Drop(reason),
        Err(Verdict::Continue(Stage::NatReply)) => return go_on(tables, 0, 0, Stage::NatIcmp),
        Err(_) => return malformed(is_vip),
    };
    let is_sent_by_edge = found.is_sent_by_edge(frame, tables);
    if !is_sent_by_edge {
        if let Err(verdict) = balance::admit(tables, &found, flow, TcpFlags::default()) {
            return verdict;
        }
        if found.entry.flags & SERVICE_NAT != 0 {
            return go_on(tables, found.id, 0, Stage::NatIcmp);
        }
    }
    match owner(tables, &found, flow, is_sent_by_edge) {
        Ok(owner) if owner.backend.is_own_pod() => {
            go_on(tables, found.id, owner.id, Stage::IcmpLocal)
        }
        Ok(owner) => match balance::forward(tables, packet, flow, found.entry.mode, &owner) {
            Ok(verdict) => verdict,
            Err(reason) => Verdict::Drop(reason),
        },
        // A node whose service has no pods here leaves the error to the stack.
        Err(Verdict::Pass(_)) => Verdict::Pass(PassReason::Icmp),
        Err(Verdict::Continue(stage)) => Verdict::Continue(stage),
        Err(_) if is_sent_by_edge => Verdict::Drop(DropReason::UnknownPod),
        Err(_) => Verdict::Drop(DropReason::NoBackend),
    }
}

/// Continues in another stage for errors about this flow.
#[inline(always)]
fn go_on<'t, T: World>(tables: &T, service: u32, backend: u32, stage: Stage) -> Verdict<'t> {
    tables.hand_over(HandOver {
        service,
        backend,
        ..HandOver::default()
    });
    Verdict::Continue(stage)
}

#[inline(always)]
const fn malformed<'t>(is_vip: bool) -> Verdict<'t> {
    if is_vip {
        Verdict::Drop(DropReason::MalformedIcmp)
    } else {
        Verdict::Pass(PassReason::Icmp)
    }
}
