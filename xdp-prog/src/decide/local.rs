//! Delivery to a pod of this machine of what came bare: from a client, or from an edge by L2 DSR.

use super::{Ip, Tables, Verdict, World, balance, deliver::Deliver};
use crate::{
    abi::{BACKEND_LOCAL, BACKEND_POD, MODE_L2DSR, SERVICE_PODS},
    frame::Frame,
    parse::{self, Packet},
    reason::{DropReason, PassReason},
    wire::ethernet,
};

/// Decides what is to be done with a frame of this stage.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Verdict::Pass(reason),
    };
    match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => deliver(frame, tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => deliver(frame, tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        _ => Verdict::Pass(PassReason::NotIp),
    }
}

#[inline(always)]
fn deliver<'t, F: Frame, A: Ip, T: Tables>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    let flow = match parse::flow(frame, packet) {
        Ok(flow) => flow,
        Err(reason) => return Verdict::Pass(reason),
    };
    let found = match balance::find(tables, &flow) {
        Ok(found) => found,
        Err(verdict) => return verdict,
    };
    let by_l2dsr = found.entry.mode == MODE_L2DSR && balance::is_from_edge(frame, tables);
    let choice = if by_l2dsr {
        if found.entry.flags & SERVICE_PODS == 0 {
            return Verdict::Pass(PassReason::LocalBackend);
        }
        balance::choose_local(tables, &found, &flow)
    } else {
        balance::choose(tables, &found, &flow).ok()
    };
    match choice {
        Some(choice) if choice.backend.flags & HERE == HERE => {
            let flags = parse::tcp_flags(frame, packet);
            Verdict::Deliver(Deliver::new(packet, &flow, flags, &choice, None))
        }
        // The table has changed since the plain path chose this machine.
        _ => Verdict::Drop(DropReason::UnknownPod),
    }
}

/// Flags of a backend that is a pod of this machine.
const HERE: u32 = BACKEND_LOCAL | BACKEND_POD;
