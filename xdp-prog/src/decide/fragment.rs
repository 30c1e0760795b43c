//! Fragments to addresses of ours.

use super::{Ip, Verdict, World};
use crate::{
    abi::ADDRESS_VIP,
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
            Ok(packet) => fragment(tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => fragment(tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        _ => Verdict::Pass(PassReason::NotIp),
    }
}

#[inline(always)]
fn fragment<'t, A: Ip, T: World>(tables: &'t T, packet: &Packet<A>) -> Verdict<'t> {
    if tables.address_flags(&packet.destination.key()) & ADDRESS_VIP != 0 {
        Verdict::Drop(DropReason::FragmentOutOfOrder)
    } else {
        Verdict::Pass(PassReason::FragmentNotOurs)
    }
}
