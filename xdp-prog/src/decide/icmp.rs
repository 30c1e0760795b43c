//! ICMP to addresses of ours.
//!
//! An echo request to a VIP is answered. An error that quotes a flow of ours
//! (the packet that a backend sent to its client) goes to the backend that owns
//! the flow, found by the quoted tuple turned round: encapsulated like any packet of
//! the flow, or, where the pod is here, with the quote translated so that the pod
//! recognises its own packet. The rest is the stack's.

use super::{
    Action, Decap, Family, Ip, Stage, Tables, Verdict, World,
    answer::Answer,
    balance, carry_out,
    deliver::{self, Shown},
    is_vip, neighbour, receive,
};
use crate::{
    abi::{BACKEND_LOCAL, BACKEND_POD, Backend, MODE_L2DSR, SERVICE_NAT},
    flow::{V4, V6},
    frame::{Frame, FrameMut, FrameSum},
    parse::{
        self, Packet, TcpFlags,
        quote::{self, Quote},
    },
    reason::{DropReason, PassReason},
    rewrite,
    wire::{
        ethernet,
        icmp::{self, Icmp},
        protocol,
        transport::Tcp,
    },
};

/// An ICMP error on its way to a pod of this machine.
#[derive(Clone, Copy, Debug)]
pub struct DeliverError<'t> {
    /// Service id.
    pub service: u32,
    /// Backend id.
    pub id: u32,
    /// The pod.
    pub backend: &'t Backend,
    /// Where its IP header lies, behind an outer header or without one.
    pub place: Decap,
    /// Offset of the ICMP header.
    pub l4: usize,
    /// Length of the packet.
    pub length: usize,
    /// Offset of the quoted IP header.
    pub quoted_l3: usize,
    /// Offset of the quoted transport header.
    pub quoted_l4: usize,
    /// The quoted transport protocol.
    pub protocol: u8,
    /// Whether the quote reaches as far as its transport checksum.
    pub has_checksum: bool,
    /// Whom the pod has sent the quoted packet to.
    pub shown: Shown,
}

/// Decides what is to be done with a bare ICMP message.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Verdict::Pass(reason),
    };
    match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => sort(frame, tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => sort(frame, tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        _ => Verdict::Pass(PassReason::NotIp),
    }
}

/// Takes an ICMP message from a trusted edge, or a bare error about a flow to a pod of this machine, through
/// this stage.
#[inline(always)]
pub fn process_local<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
) -> Action {
    let deliver = match decide_local(frame, tables) {
        Ok(deliver) => deliver,
        Err(verdict) => return carry_out(frame, tables, ingress, verdict),
    };
    match rewrite::deliver_error(frame, &deliver) {
        Ok(()) => {
            tables.count_forward(deliver.service, deliver.id, deliver.length as u64);
            tables.count_reason(PassReason::Delivered.index());
            Action::Pass
        }
        Err(reason) => {
            tables.count_reason(reason.index());
            Action::Drop
        }
    }
}

#[inline(always)]
fn decide_local<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
) -> Result<DeliverError<'t>, Verdict<'t>> {
    let place = receive::locate(frame, tables)?;
    let Some(place) = place.relayed(tables) else {
        return Err(Verdict::Drop(DropReason::StageMissing));
    };
    match place.inner {
        Family::V4 => match parse::ipv4(frame, place.inner_l3) {
            Ok(packet) => sort_local(frame, tables, &packet, place),
            Err(_) => Err(to_stack(place)),
        },
        Family::V6 => match parse::ipv6(frame, place.inner_l3) {
            Ok(packet) => sort_local(frame, tables, &packet, place),
            Err(_) => Err(to_stack(place)),
        },
    }
}

#[inline(always)]
const fn to_stack<'t>(place: Decap) -> Verdict<'t> {
    if place.is_encapsulated() {
        Verdict::Decap(place)
    } else {
        Verdict::Pass(PassReason::Icmp)
    }
}

/// What a message is to us.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// An echo request.
    EchoRequest,
    /// A neighbour solicitation.
    Solicitation,
    /// An error, which quotes a packet.
    Error,
    /// The message ends before it says what it is.
    CutShort,
    /// Something else.
    Other,
}

/// What differs between ICMP and ICMPv6.
pub trait Messages: Ip {
    /// Returns what a message of this type is to us.
    fn kind(message: u8) -> Kind;
    /// Tells whether a message says that a packet was too big for the way on.
    fn is_too_big(header: &Icmp) -> bool;
    /// Reads what an error quotes.
    fn quote<F: Frame>(frame: &F, l3: usize, end: usize) -> Option<Quote<Self>>;
}

impl Messages for V4 {
    #[inline(always)]
    fn kind(message: u8) -> Kind {
        match message {
            icmp::v4::ECHO_REQUEST => Kind::EchoRequest,
            icmp::v4::UNREACHABLE | icmp::v4::TIME_EXCEEDED | icmp::v4::PARAMETER_PROBLEM => {
                Kind::Error
            }
            _ => Kind::Other,
        }
    }

    #[inline(always)]
    fn is_too_big(header: &Icmp) -> bool {
        header.kind == icmp::v4::UNREACHABLE && header.code == icmp::v4::FRAGMENTATION_NEEDED
    }

    #[inline(always)]
    fn quote<F: Frame>(frame: &F, l3: usize, end: usize) -> Option<Quote<Self>> {
        quote::ipv4(frame, l3, end)
    }
}

impl Messages for V6 {
    #[inline(always)]
    fn kind(message: u8) -> Kind {
        match message {
            icmp::v6::ECHO_REQUEST => Kind::EchoRequest,
            icmp::v6::NEIGHBOUR_SOLICITATION => Kind::Solicitation,
            icmp::v6::UNREACHABLE
            | icmp::v6::PACKET_TOO_BIG
            | icmp::v6::TIME_EXCEEDED
            | icmp::v6::PARAMETER_PROBLEM => Kind::Error,
            _ => Kind::Other,
        }
    }

    #[inline(always)]
    fn is_too_big(header: &Icmp) -> bool {
        header.kind == icmp::v6::PACKET_TOO_BIG
    }

    #[inline(always)]
    fn quote<F: Frame>(frame: &F, l3: usize, end: usize) -> Option<Quote<Self>> {
        quote::ipv6(frame, l3, end)
    }
}

/// Reads what kind of message a packet is.
///
/// Nobody sends errors with options or extension headers: they count as other
/// messages, and the header's place is fixed, which costs the verifier less.
#[inline(always)]
fn kind<F: Frame, A: Messages>(frame: &F, packet: &Packet<A>) -> Kind {
    let l4 = packet.l3 + A::HEADER_LENGTH;
    if packet.protocol != A::ICMP || packet.is_fragment || packet.l4 != l4 {
        return Kind::Other;
    }
    if Icmp::LENGTH + A::HEADER_LENGTH > packet.length {
        return Kind::CutShort;
    }
    match frame.view::<Icmp>(l4) {
        Some(header) => A::kind(header.kind),
        None => Kind::CutShort,
    }
}

/// Tells whether a packet, without options, is an error that says that another was too big.
#[inline(always)]
pub(super) fn is_too_big<F: Frame, A: Messages>(frame: &F, packet: &Packet<A>) -> bool {
    let is_plain = packet.protocol == A::ICMP
        && !packet.is_fragment
        && packet.l4 == packet.l3 + A::HEADER_LENGTH;
    match frame.view::<Icmp>(packet.l4) {
        Some(header) if is_plain => A::is_too_big(header),
        _ => false,
    }
}

/// Reads the flow that an error quotes, if it is one of the packet's destination.
#[inline(always)]
pub(super) fn quoted<F: Frame, A: Messages>(frame: &F, packet: &Packet<A>) -> Option<Quote<A>> {
    let l3 = packet.l3 + A::HEADER_LENGTH + Icmp::LENGTH;
    let quote = A::quote(frame, l3, packet.l3 + packet.length)?;
    // By words: the BPF target has no `memcmp`.
    let [a, b] = quote.flow.destination.key().words();
    let [c, d] = packet.destination.key().words();
    if (a ^ c) | (b ^ d) == 0 {
        Some(quote)
    } else {
        None
    }
}

/// Tells whether a quote reaches as far as a transport checksum that covers addresses.
#[inline(always)]
pub(super) const fn has_checksum<A: Ip>(packet: &Packet<A>, quote: &Quote<A>) -> bool {
    match quote.flow.protocol {
        protocol::TCP => quote.l4 + Tcp::LENGTH <= packet.l3 + packet.length,
        // UDP's lies within the eight bytes.
        protocol => protocol == protocol::UDP,
    }
}

const fn has_service(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
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
        Ok(choice) if choice.backend.flags & HERE == HERE => Verdict::Continue(Stage::IcmpLocal),
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

#[inline(always)]
fn sort_local<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    place: Decap,
) -> Result<DeliverError<'t>, Verdict<'t>> {
    if packet.length > place.inner_room || !place.is_plain {
        return Err(to_stack(place));
    }
    match kind(frame, packet) {
        Kind::Error => {}
        Kind::EchoRequest | Kind::Solicitation | Kind::CutShort | Kind::Other => {
            return Err(to_stack(place));
        }
    }
    let Some(quote) = quoted(frame, packet) else {
        return Err(to_stack(place));
    };
    if !has_service(quote.flow.protocol) {
        return Err(to_stack(place));
    }
    let Some(found) = receive::find(tables, &quote.flow) else {
        return Err(to_stack(place));
    };
    let choice = if place.is_encapsulated() {
        receive::pod(tables, &found, &quote.flow, TcpFlags::default(), place.tag)
    } else if found.entry.mode == MODE_L2DSR && balance::is_from_edge(frame, tables) {
        balance::choose_local(tables, &found, &quote.flow)
    } else {
        balance::choose(tables, &found, &quote.flow).ok()
    };
    match choice {
        Some(choice) if choice.backend.flags & HERE == HERE => Ok(DeliverError {
            service: choice.service,
            id: choice.id,
            backend: choice.backend,
            place,
            l4: packet.l4,
            length: packet.length,
            quoted_l3: quote.l3,
            quoted_l4: quote.l4,
            protocol: quote.flow.protocol,
            has_checksum: has_checksum(packet, &quote),
            shown: deliver::shown(tables, &quote.flow, choice.backend),
        }),
        _ => Err(Verdict::Drop(DropReason::UnknownPod)),
    }
}

/// Flags of a backend that is a pod of this machine.
const HERE: u32 = BACKEND_LOCAL | BACKEND_POD;
