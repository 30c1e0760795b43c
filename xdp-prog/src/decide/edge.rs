//! Where every frame begins, in either role: [`decide`] finds the stage for it. Below is the edge role: the plain path
//! ([`balance`]), and the stages beside it for past owners, checks and announced addresses.

mod affinity;
pub mod ask_here;
pub mod balance;
mod keep;
pub mod neighbour;
pub mod past;
pub mod probe;
pub mod returned;
pub mod send;
mod straight;
mod walk;

use super::{
    address::pass_unless_at_vip,
    message::{self, Messages},
};
use crate::{
    abi::{ADDRESS_NAT, ADDRESS_NODE_PORT, ADDRESS_SHARED, ADDRESS_VIP},
    flow::{V4, V6},
    frame::Frame,
    parse::{self, Packet},
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::Verdict,
    wire::{ethernet, ipv4::Ipv4, ipv6::Ipv6, protocol},
    world::World,
};

/// Decides what becomes of a frame.
///
/// This code and the code that it calls use `match` and not closures. The compiler makes a function of a closure that
/// is too large to be inlined, and the kernel refuses the type information of its result.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(PassReason::GroupAddress) if neighbour::announces(tables) => {
            return Verdict::Continue(Stage::Neighbour);
        }
        Err(reason) => return Verdict::Pass(reason),
    };
    match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => route(frame, tables, &packet),
            Err(reason) => match frame.view::<Ipv4>(link.l3) {
                Some(header) if header.version() == 4 => {
                    let destination = V4(header.destination());
                    pass_unless_at_vip(tables, destination, reason, DropReason::VipHeaders)
                }
                _ => Verdict::Pass(reason),
            },
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => route(frame, tables, &packet),
            Err(reason) => match frame.view::<Ipv6>(link.l3) {
                Some(header) if header.version() == 6 => {
                    let destination = V6(header.destination);
                    pass_unless_at_vip(tables, destination, reason, DropReason::VipHeaders)
                }
                _ => Verdict::Pass(reason),
            },
        },
        ethernet::ARP if neighbour::announces(tables) => Verdict::Continue(Stage::Neighbour),
        _ => Verdict::Pass(PassReason::NotIp),
    }
}

#[inline(always)]
fn route<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    /// Flags of addresses where more than the ports of services is ours: fragments and ICMP too.
    const OURS: u32 = ADDRESS_VIP | ADDRESS_SHARED | ADDRESS_NODE_PORT | ADDRESS_NAT;
    let is_ours = || tables.address_flags(&packet.destination.key()) & OURS != 0;
    if packet.is_fragment {
        return if is_ours() {
            Verdict::Continue(Stage::Fragment)
        } else {
            Verdict::Pass(PassReason::FragmentNotOurs)
        };
    }
    match packet.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => match parse::flow(frame, packet) {
            Ok(flow) => balance::balance(frame, tables, packet, &flow),
            Err(reason) => {
                pass_unless_at_vip(tables, packet.destination, reason, DropReason::VipTransport)
            }
        },
        protocol::ICMP | protocol::ICMPV6 => {
            if is_ours() {
                Verdict::Continue(Stage::Icmp)
            } else if message::is_too_big(frame, packet) {
                Verdict::Continue(Stage::Path)
            } else {
                Verdict::Pass(PassReason::Icmp)
            }
        }
        protocol::IPV4 | protocol::IPV6 => Verdict::Continue(Stage::Receive),
        _ => pass_unless_at_vip(
            tables,
            packet.destination,
            PassReason::Protocol,
            DropReason::VipProtocol,
        ),
    }
}
