//! Delivery of bare packets to pods of this machine: from a client, or from an edge by L2 DSR.

use crate::{
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet, TcpFlags},
    reason::DropReason,
    verdict::{Delivery, Owner, Verdict},
    world::World,
};

/// Decides what becomes of a bare packet for a pod of this machine.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    with_packet!(frame, packet => decide_delivery(frame, tables, &packet), reason => Verdict::Pass(reason))
}

#[inline(always)]
fn decide_delivery<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    let known = tables.handed_over();
    let Some(owner) = Owner::handed_over(tables, &known) else {
        return Verdict::Drop(DropReason::UnknownPod);
    };
    let flags = if packet.is_later_fragment() {
        TcpFlags::default()
    } else {
        parse::tcp_flags(frame, packet)
    };
    Verdict::Deliver(Delivery::new(packet, known.ports, flags, &owner, None))
}
