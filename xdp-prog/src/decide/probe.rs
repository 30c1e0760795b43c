//! The answers to this machine's own checks: their source becomes what the check's socket is
//! connected to ([`crate::egress`] sent the question by another address).

use super::{Action, Counters, Ip, Tables};
use crate::{
    abi::{AddressKey, Tuple},
    flow::FlowKey,
    frame::FrameMut,
    parse::{self, Packet},
    reason::PassReason,
    rewrite,
    wire::ethernet,
};

/// The memory of checks under way.
pub trait Probes {
    /// Returns what the socket of a check is connected to, by the answer as it comes in.
    fn probe_peer(&self, answer: &Tuple) -> Option<AddressKey>;
}

/// Hands a packet that is no service's to the stack, as what the socket expects if it is an answer.
#[inline(always)]
pub fn process<F: FrameMut, T: Tables + Counters + Probes>(frame: &mut F, tables: &T) -> Action {
    let reason = match parse::link(frame) {
        Ok(link) => match link.ether_type {
            ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
                Ok(packet) => restore(frame, tables, &packet),
                Err(reason) => reason,
            },
            ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
                Ok(packet) => restore(frame, tables, &packet),
                Err(reason) => reason,
            },
            _ => PassReason::NotIp,
        },
        Err(reason) => reason,
    };
    tables.count_reason(reason.index());
    Action::Pass
}

#[inline(always)]
fn restore<F: FrameMut, A: Ip, T: Probes>(
    frame: &mut F,
    tables: &T,
    packet: &Packet<A>,
) -> PassReason {
    let flow: FlowKey<A> = match parse::flow(frame, packet) {
        Ok(flow) => flow,
        Err(reason) => return reason,
    };
    let Some(peer) = tables.probe_peer(&flow.tuple()) else {
        return PassReason::NoService;
    };
    match rewrite::restore_source(frame, packet.l3, packet.l4, A::FAMILY, peer) {
        Some(()) => PassReason::ProbeAnswer,
        None => PassReason::NoService,
    }
}
