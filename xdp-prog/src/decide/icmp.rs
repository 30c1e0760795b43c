//! ICMP to addresses of ours.
//!
//! An echo request to a VIP is answered. An error that quotes a flow of ours
//! (the packet that a backend sent to its client) goes to the backend that owns
//! the flow, found by the quoted tuple turned round: encapsulated like any packet of
//! the flow, or, where the pod is here, with the quote translated so that the pod
//! recognises its own packet. The rest is the stack's.

pub mod local;
pub mod path;

use super::{
    address::is_vip,
    edge::{balance, neighbour},
    message::{Kind, Messages, has_service, is_too_big, kind, quoted},
    node::is_here,
};
use crate::{
    abi::{MODE_L2DSR, SERVICE_NAT},
    frame::Frame,
    ip::with_packet,
    parse::{Packet, TcpFlags},
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::Verdict,
    world::{Answer, Tables, World},
};

/// Decides what is to be done with a bare ICMP message.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    with_packet!(frame, packet => sort(frame, tables, &packet), reason => Verdict::Pass(reason))
}

#[inline(always)]
fn sort<'t, F: Frame, A: Messages, T: Tables>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    let is_vip = is_vip(tables, packet.destination);
    if is_vip && packet.l4 != packet.l3 + A::HEADER_LENGTH {
        return Verdict::Drop(DropReason::IcmpOptions);
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
        // Of a VIP, no outer packet leaves.
        return if !is_vip && is_too_big(frame, packet) {
            Verdict::Continue(Stage::Path)
        } else {
            malformed(is_vip)
        };
    }
    let flow = &quote.flow;
    let found = match balance::find(tables, flow) {
        Ok(found) => found,
        Err(Verdict::Drop(reason)) => return Verdict::Drop(reason),
        Err(Verdict::Continue(Stage::NatReply)) => return Verdict::Continue(Stage::NatIcmp),
        Err(_) => return malformed(is_vip),
    };
    if found.entry.mode == MODE_L2DSR && balance::is_from_edge(frame, tables) {
        return Verdict::Continue(Stage::IcmpLocal);
    }
    if let Err(verdict) = balance::admit(tables, &found, flow, TcpFlags::default()) {
        return verdict;
    }
    if found.entry.flags & SERVICE_NAT != 0 {
        return Verdict::Continue(Stage::NatIcmp);
    }
    match balance::choose(tables, &found, flow) {
        Ok(choice) if is_here(choice.backend) => Verdict::Continue(Stage::IcmpLocal),
        Ok(choice) => match balance::forward(tables, packet, &choice) {
            Ok(verdict) => verdict,
            Err(reason) => Verdict::Drop(reason),
        },
        Err(_) => Verdict::Drop(DropReason::NoBackend),
    }
}

#[inline(always)]
const fn malformed<'t>(is_vip: bool) -> Verdict<'t> {
    if is_vip {
        Verdict::Drop(DropReason::MalformedIcmp)
    } else {
        Verdict::Pass(PassReason::Icmp)
    }
}
