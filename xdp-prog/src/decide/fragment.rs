//! Fragments to addresses of ours, bare and within IP-in-IP.
//!
//! The first fragment of a datagram shows its ports, publishes them in
//! `FRAGMENTS`, and goes the way of its flow; the later ones follow it by what
//! is published. None is hashed as if it had ports. Nothing is kept: what comes
//! before its datagram's first fragment is dropped, and the datagram with it.
//!
//! At node addresses most fragments are the kernel's own. There only a first
//! fragment for a service or a port of NAT mode publishes anything, and what
//! finds nothing goes to the stack; but where NodePorts are, not what hides its
//! ports.

use super::{
    Clock, Decap, Family, Ip, Stage, Tables, Verdict, World,
    balance::{self, Choice},
    deliver::Deliver,
    has_node_ports, is_vip, receive,
};
use crate::{
    abi::{CONFIG_NODE, Datagram, MODE_L2DSR, SERVICE_NAT, Tuple},
    flow::FlowKey,
    frame::Frame,
    parse::{self, Packet, TcpFlags},
    reason::{DropReason, PassReason},
    wire::{ethernet, protocol},
};

/// The memory of datagrams in pieces.
pub trait Fragments: Clock {
    /// Returns what a datagram's first fragment has published.
    fn datagram(&self, key: &Tuple) -> Option<Datagram>;
    /// Publishes what a first fragment shows, in place of an older datagram's.
    fn publish(&self, key: &Tuple, datagram: &Datagram);
}

/// Decides what is to be done with a bare fragment.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Verdict::Pass(reason),
    };
    match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => bare(frame, tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => bare(frame, tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        _ => Verdict::Pass(PassReason::NotIp),
    }
}

/// Decides what is to be done with a whole packet that has a fragment inside.
#[inline(always)]
pub fn decide_within<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let decap = match receive::open_frame(frame, tables) {
        Ok(decap) => decap,
        Err(verdict) => return verdict,
    };
    let Some(decap) = decap.relayed(tables) else {
        return Verdict::Drop(DropReason::StageMissing);
    };
    match decap.inner {
        Family::V4 => match parse::ipv4(frame, decap.inner_l3) {
            Ok(packet) => within(frame, tables, &packet, decap),
            Err(_) => Verdict::Decap(decap),
        },
        Family::V6 => match parse::ipv6(frame, decap.inner_l3) {
            Ok(packet) => within(frame, tables, &packet, decap),
            Err(_) => Verdict::Decap(decap),
        },
    }
}

/// Sends a fragment that came bare where its flow goes.
#[inline(always)]
fn bare<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    let head = match Head::read(frame, tables, packet) {
        Ok(part) => part,
        Err(reason) if is_vip(tables, packet.destination) => return Verdict::Drop(reason),
        Err(DropReason::FragmentOpaque)
            if may_have_ports(packet.protocol) && has_node_ports(tables, packet.destination) =>
        {
            return Verdict::Drop(DropReason::FragmentOpaque);
        }
        Err(_) => return Verdict::Pass(PassReason::FragmentNotOurs),
    };
    let flow = head.flow(packet);
    let found = match balance::find(tables, &flow) {
        Ok(found) => found,
        Err(Verdict::Continue(Stage::NatReply)) => {
            return head.follow_nat(tables, packet, Verdict::Continue(Stage::NatReply));
        }
        // Checks of this machine make no fragments.
        Err(Verdict::Continue(_)) => return Verdict::Pass(PassReason::FragmentNotOurs),
        Err(verdict) => return verdict,
    };
    if let Err(verdict) = balance::admit(tables, &found, &flow, head.flags) {
        return verdict;
    }
    if found.entry.flags & SERVICE_NAT != 0 {
        return head.follow_nat(tables, packet, Verdict::Nat(found.id));
    }
    head.publish(tables, packet);
    if found.entry.mode == MODE_L2DSR && balance::is_from_edge(frame, tables) {
        return Verdict::Continue(Stage::Local);
    }
    match balance::choose(tables, &found, &flow) {
        Ok(choice) => match balance::forward(tables, packet, &choice) {
            Ok(verdict) => verdict,
            Err(reason) => Verdict::Drop(reason),
        },
        Err(verdict) => verdict,
    }
}

/// Tells whether a protocol has ports, or is a header behind which a transport header may follow in the next piece
/// (RFC 7112). Behind that of AH the stack follows nobody who has no key.
#[inline(always)]
const fn may_have_ports(protocol: u8) -> bool {
    match protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => true,
        protocol::AUTHENTICATION => false,
        _ => parse::is_extension(protocol),
    }
}

/// Delivers a fragment that an edge sent.
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
    // An edge of ours sends fragments of services only.
    head.publish(tables, packet);
    let flow = head.flow(packet);
    let Some(found) = receive::find(tables, &flow) else {
        return Verdict::Decap(decap);
    };
    match receive::pod(tables, &found, &flow, head.flags, decap.tag) {
        Some(choice) => Verdict::Deliver(head.deliver(packet, &choice, Some(decap))),
        None => Verdict::Drop(DropReason::UnknownPod),
    }
}

/// A node's stack does not have the address, and would send the fragment back to the edge.
#[inline(always)]
fn lost<'t, T: Tables>(tables: &T, reason: DropReason, decap: Decap) -> Verdict<'t> {
    match tables.config() {
        Some(config) if config.flags & CONFIG_NODE != 0 => Verdict::Drop(reason),
        _ => Verdict::Decap(decap),
    }
}

/// What a packet begins with behind its IP headers, or the datagram of which it is a fragment.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Source and destination port; a word, because this may lie on the BPF stack.
    ports: u32,
    /// TCP flags; none of a later fragment.
    flags: TcpFlags,
}

impl Head {
    #[inline(always)]
    const fn new([a, b]: [u8; 2], [c, d]: [u8; 2], flags: TcpFlags) -> Self {
        Self {
            ports: u32::from_ne_bytes([a, b, c, d]),
            flags,
        }
    }

    /// Reads the head off the packet, or finds what the first fragment has published.
    ///
    /// # Errors
    ///
    /// Returns why the ports cannot be told.
    #[inline(always)]
    pub fn read<F: Frame, A: Ip, T: Fragments>(
        frame: &F,
        tables: &T,
        packet: &Packet<A>,
    ) -> Result<Self, DropReason> {
        if packet.protocol == A::ICMP {
            return Err(DropReason::FragmentedIcmp);
        }
        if !is_later(packet) {
            return Self::first(frame, packet);
        }
        if usize::from(packet.piece.offset) * 8 < parse::transport_length(packet.protocol) {
            return Err(DropReason::FragmentOpaque);
        }
        match tables.datagram(&key(packet)) {
            Some(first) if first.is_awaited(tables.now()) => Ok(Self::new(
                first.source_port(),
                first.destination_port(),
                TcpFlags::default(),
            )),
            _ => Err(DropReason::FragmentOutOfOrder),
        }
    }

    #[inline(always)]
    fn first<F: Frame, A: Ip>(frame: &F, packet: &Packet<A>) -> Result<Self, DropReason> {
        let has_ports = matches!(
            packet.protocol,
            protocol::TCP | protocol::UDP | protocol::SCTP
        );
        match parse::flow(frame, packet) {
            Ok(flow) if has_ports => Ok(Self::new(
                flow.source_port,
                flow.destination_port,
                parse::tcp_flags(frame, packet),
            )),
            _ => Err(DropReason::FragmentOpaque),
        }
    }

    /// Returns the flow that the packet belongs to.
    #[inline(always)]
    pub fn flow<A: Ip>(&self, packet: &Packet<A>) -> FlowKey<A> {
        let [a, b, c, d] = self.ports.to_ne_bytes();
        FlowKey {
            source: packet.source,
            destination: packet.destination,
            source_port: [a, b],
            destination_port: [c, d],
            protocol: packet.protocol,
        }
    }

    /// Publishes what a first fragment shows.
    #[inline(always)]
    fn publish<A: Ip, T: Fragments>(&self, tables: &T, packet: &Packet<A>) {
        if !is_later(packet) {
            let [a, b, c, d] = self.ports.to_ne_bytes();
            let datagram = Datagram::new([a, b], [c, d], tables.now());
            tables.publish(&key(packet), &datagram);
        }
    }

    /// Sends a first fragment the way of a whole packet, and a later one after it.
    #[inline(always)]
    fn follow_nat<'t, A: Ip, T: Fragments>(
        &self,
        tables: &T,
        packet: &Packet<A>,
        first: Verdict<'t>,
    ) -> Verdict<'t> {
        if is_later(packet) {
            return Verdict::Continue(Stage::NatFragment);
        }
        self.publish(tables, packet);
        first
    }

    /// Delivers the packet to the chosen pod.
    #[inline(always)]
    pub fn deliver<'t, A: Ip>(
        &self,
        packet: &Packet<A>,
        choice: &Choice<'t>,
        decap: Option<Decap>,
    ) -> Deliver<'t> {
        let mut deliver = Deliver::new(
            packet,
            &self.flow(packet),
            self.flags,
            &choice.chosen(),
            decap,
        );
        deliver.is_later = is_later(packet);
        deliver
    }
}

#[inline(always)]
const fn is_later<A>(packet: &Packet<A>) -> bool {
    packet.is_fragment && packet.piece.offset != 0
}

#[inline(always)]
fn key<A: Ip>(packet: &Packet<A>) -> Tuple {
    Tuple::fragments(
        packet.source.key(),
        packet.destination.key(),
        packet.piece.identification.to_ne_bytes(),
        packet.protocol,
    )
}
