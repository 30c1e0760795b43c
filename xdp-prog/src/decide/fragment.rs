//! Fragments to addresses of ours, bare and within IP-in-IP.
//!
//! The first fragment of a datagram shows its ports, publishes them in `FRAGMENTS`, and goes the way of its flow.
//! Later fragments follow by the published ports. A fragment that arrives before the first one is
//! [punted](crate::punt), and dropped where nobody takes it, so that its datagram is lost. A fragment whose ports are
//! unknown is never hashed.
//!
//! Each fragment of an echo request to a VIP is answered by one of the reply, which the requester joins. The reply has
//! the same data, so nothing need be joined here, and nobody gets more bytes than came. Later fragments are answered
//! only behind a first one that is a request, and their TTL is not set anew: two machines that answer each other's
//! fragments would do so for ever.
//!
//! At node addresses most fragments are for the kernel. There a first fragment publishes its ports only if it is for
//! a service or a port of NAT mode. Fragments without published ports pass to the stack, except one that hides its
//! ports where NodePorts are. Where packets are mended, each first fragment publishes its ports, so that the later ones
//! of the kernel's own datagrams are told from those that come too early.

use super::{
    address::{has_node_ports, is_vip, may_be_ours},
    edge::balance,
    head::{Head, key_of_datagram},
    message::{Messages, begins_echo_request},
    node::decap,
    owner::{find_service, find_with_pods, owner, tagged_owner},
};
use crate::{
    abi::{CONFIG_NODE, Datagram, SERVICE_NAT},
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet},
    punt::{is_mending, punt_fragment},
    reason::{DropReason, PassReason, PuntReason},
    stage::Stage,
    verdict::{Decap, Delivery, Verdict},
    wire::protocol,
    world::{Answer, HandOver, World},
};

/// Decides what becomes of a bare fragment.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    with_packet!(frame, packet => bare(frame, tables, &packet), reason => Verdict::Pass(reason))
}

/// Decides what becomes of an encapsulated fragment, whose outer packet is whole.
#[inline(always)]
pub fn decide_within<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let decap = match decap::open_frame(frame, tables) {
        Ok(decap) => decap,
        Err(verdict) => return verdict,
    };
    let Some(decap) = decap.relayed(frame, tables) else {
        return Verdict::Drop(DropReason::StageMissing);
    };
    with_packet!(frame, decap.inner, at decap.inner_l3,
        packet => within(frame, tables, &packet, decap),
        _ => Verdict::Decap(decap))
}

/// Sends a bare fragment the way of its flow.
#[inline(always)]
fn bare<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    let head = match Head::read(frame, tables, packet) {
        Ok(part) => part,
        Err(reason) if is_vip(tables, packet.destination) => {
            return match reason {
                DropReason::FragmentedIcmp => echo(frame, tables, packet),
                reason => punt_or_drop(tables, reason),
            };
        }
        Err(DropReason::FragmentOpaque)
            if may_have_ports(packet.protocol) && has_node_ports(tables, packet.destination) =>
        {
            return Verdict::Drop(DropReason::FragmentOpaque);
        }
        Err(DropReason::FragmentOutOfOrder)
            if is_mending(tables)
                && has_ports(packet.protocol)
                && may_be_ours(tables, packet.destination) =>
        {
            return punt_fragment(tables, PuntReason::NodeFragment);
        }
        Err(_) => return Verdict::Pass(PassReason::FragmentNotOurs),
    };
    if is_mending(tables) {
        head.publish(tables, packet);
    }
    let flow = head.flow(packet);
    let found = match find_service(tables, &flow) {
        Ok(found) => found,
        Err(Verdict::Continue(Stage::NatReply)) => {
            return follow_nat(tables, &head, packet, 0, Stage::NatReply);
        }
        // This machine's checks are never fragmented.
        Err(Verdict::Continue(_)) => return Verdict::Pass(PassReason::FragmentNotOurs),
        Err(verdict) => return verdict,
    };
    if let Err(verdict) = balance::admit(tables, &found, &flow, head.flags) {
        return verdict;
    }
    if found.entry.flags & SERVICE_NAT != 0 {
        return follow_nat(tables, &head, packet, found.id, Stage::Nat);
    }
    head.publish(tables, packet);
    let is_sent_by_edge = found.is_sent_by_edge(frame, tables);
    match owner(tables, &found, &flow, is_sent_by_edge) {
        Ok(owner) => match balance::forward(tables, packet, &flow, found.entry.mode, &owner) {
            Ok(verdict) => verdict,
            Err(reason) => Verdict::Drop(reason),
        },
        Err(verdict) => verdict,
    }
}

/// Answers a fragment of an echo request to a VIP.
#[inline(always)]
fn echo<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    let key = key_of_datagram(packet);
    if packet.is_later_fragment() {
        return match tables.datagram(&key) {
            Some(first) if first.is_awaited(tables.now()) => Verdict::Answer(Answer::ECHO_LATER),
            _ => Verdict::Drop(DropReason::FragmentOutOfOrder),
        };
    }
    if !begins_echo_request(frame, packet) {
        return Verdict::Drop(DropReason::FragmentedIcmp);
    }
    if is_vip(tables, packet.source) {
        return Verdict::Drop(DropReason::SourceIsVip);
    }
    tables.publish(&key, &Datagram::new([0; 2], [0; 2], tables.now()));
    Verdict::Answer(Answer::ECHO)
}

/// Sends a first fragment to the stage of whole packets, and a later one to the stage of later fragments.
#[inline(always)]
fn follow_nat<'t, A: Ip, T: World>(
    tables: &T,
    head: &Head,
    packet: &Packet<A>,
    service: u32,
    whole: Stage,
) -> Verdict<'t> {
    tables.hand_over(HandOver {
        service,
        ports: head.ports,
        ..HandOver::default()
    });
    if packet.is_later_fragment() {
        return Verdict::Continue(Stage::NatFragment);
    }
    head.publish(tables, packet);
    Verdict::Continue(whole)
}

/// Punts a fragment that came before its first one. Drops others whose ports are unknown.
#[inline(always)]
fn punt_or_drop<'t, T: World>(tables: &T, reason: DropReason) -> Verdict<'t> {
    match reason {
        DropReason::FragmentOutOfOrder => punt_fragment(tables, PuntReason::Fragment),
        reason => Verdict::Drop(reason),
    }
}

/// Tells whether a protocol has ports.
#[inline(always)]
const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// Tells whether a protocol has ports, or is an extension header with a transport header behind it, perhaps in the
/// next fragment (RFC 7112). Behind an AH the stack finds a connection only for senders that have its key.
#[inline(always)]
const fn may_have_ports(protocol: u8) -> bool {
    match protocol {
        protocol::AUTHENTICATION => false,
        _ => has_ports(protocol) || parse::is_extension(protocol),
    }
}

/// Delivers a fragment that an edge sent in an outer header.
#[inline(always)]
fn within<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    decap: Decap,
) -> Verdict<'t> {
    if packet.length > decap.inner_room || !packet.is_fragment {
        return Verdict::Decap(decap);
    }
    let head = match Head::read(frame, tables, packet) {
        Ok(part) => part,
        Err(reason) => return lost(tables, reason, decap),
    };
    // An edge of ours sends only fragments of services.
    head.publish(tables, packet);
    let flow = head.flow(packet);
    let Some(found) = find_with_pods(tables, &flow) else {
        return Verdict::Decap(decap);
    };
    let is_returned_if_unknown = decap.is_returned_if_unknown(head.flags);
    match tagged_owner(tables, &found, &flow, decap.tag, is_returned_if_unknown) {
        Some(owner) => {
            let (ports, flags) = (head.ports, head.flags);
            Verdict::Deliver(Delivery::new(packet, ports, flags, &owner, Some(decap)))
        }
        None if is_returned_if_unknown => Verdict::Continue(Stage::Return),
        None if head.flags.begins_connection() => Verdict::Drop(DropReason::UnknownPodSyn),
        None => Verdict::Drop(DropReason::UnknownPod),
    }
}

/// Drops a fragment whose ports are unknown if this machine is a node: its stack does not have the address and would
/// send the fragment back to the edge. Elsewhere the stack gets it without the outer header.
#[inline(always)]
fn lost<'t, T: World>(tables: &T, reason: DropReason, decap: Decap) -> Verdict<'t> {
    match tables.config() {
        Some(config) if config.flags & CONFIG_NODE != 0 => punt_or_drop(tables, reason),
        _ => Verdict::Decap(decap),
    }
}
