//! ICMP messages, and the flows that ICMP errors quote.

use crate::{
    flow::{V4, V6},
    frame::Frame,
    ip::Ip,
    parse::{
        Packet,
        quote::{self, Quote},
    },
    wire::{
        icmp::{self, Icmp},
        protocol,
        transport::Tcp,
    },
};

/// The kinds of messages that decisions tell apart.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// An echo request.
    EchoRequest,
    /// A neighbour solicitation.
    Solicitation,
    /// An error; it quotes a packet.
    Error,
    /// A message that is too short to be judged.
    CutShort,
    /// Any other message.
    Other,
}

/// The differences between ICMP and ICMPv6.
pub(crate) trait Messages: Ip {
    /// Returns the kind of a message type.
    fn kind(message: u8) -> Kind;
    /// Tells whether a message says that a packet was too large for its path.
    fn is_too_big(header: &Icmp) -> bool;
    /// Reads the packet that an error quotes at `l3`; `end` is where the error ends in the frame.
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

/// Reads the kind of an ICMP message.
///
/// Messages with options or extension headers count as [`Kind::Other`], because nobody sends errors with them. So the
/// header's place is fixed, which makes the program cheaper to verify.
#[inline(always)]
pub(crate) fn kind<F: Frame, A: Messages>(frame: &F, packet: &Packet<A>) -> Kind {
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

/// Tells whether a whole packet is an echo request, whatever lies between its IP and its ICMP header.
#[inline(always)]
pub(crate) fn is_echo_request<F: Frame, A: Messages>(frame: &F, packet: &Packet<A>) -> bool {
    let end = packet.l4 - packet.l3 + Icmp::LENGTH;
    if packet.protocol != A::ICMP || packet.is_fragment || end > packet.length {
        return false;
    }
    match frame.view::<Icmp>(packet.l4) {
        Some(header) => matches!(A::kind(header.kind), Kind::EchoRequest),
        None => false,
    }
}

/// Tells whether a first fragment, without options or other extension headers, is that of an echo request.
#[inline(always)]
pub(crate) fn begins_echo_request<F: Frame, A: Messages>(frame: &F, packet: &Packet<A>) -> bool {
    let l4 = packet.l3 + A::HEADER_LENGTH + A::FRAGMENT_HEADER_LENGTH;
    let end = A::HEADER_LENGTH + A::FRAGMENT_HEADER_LENGTH + Icmp::LENGTH;
    if packet.l4 != l4 || end > packet.length {
        return false;
    }
    match frame.view::<Icmp>(l4) {
        Some(header) => matches!(A::kind(header.kind), Kind::EchoRequest),
        None => false,
    }
}

/// Tells whether a packet is an ICMP error without options that says that another packet was too large.
#[inline(always)]
pub(crate) fn is_too_big<F: Frame, A: Messages>(frame: &F, packet: &Packet<A>) -> bool {
    // The offset is computed as in `kind`: the verifiers up to Linux 6.1 do not learn that two offsets are equal.
    let l4 = packet.l3 + A::HEADER_LENGTH;
    if packet.protocol != A::ICMP || packet.is_fragment || packet.l4 != l4 {
        return false;
    }
    match frame.view::<Icmp>(l4) {
        Some(header) => A::is_too_big(header),
        None => false,
    }
}

/// Reads the flow that an error quotes; returns `None` unless the error's destination has sent the quoted packet.
#[inline(always)]
pub(crate) fn quoted<F: Frame, A: Messages>(frame: &F, packet: &Packet<A>) -> Option<Quote<A>> {
    let l3 = packet.l3 + A::HEADER_LENGTH + Icmp::LENGTH;
    let quote = A::quote(frame, l3, packet.l3 + packet.length)?;
    // Compares words: the BPF target has no `memcmp`.
    let [a, b] = quote.flow.destination.key().words();
    let [c, d] = packet.destination.key().words();
    if (a ^ c) | (b ^ d) == 0 {
        Some(quote)
    } else {
        None
    }
}

/// Tells whether a quote includes a transport checksum that covers the addresses.
#[inline(always)]
pub(crate) const fn has_checksum<A: Ip>(packet: &Packet<A>, quote: &Quote<A>) -> bool {
    match quote.flow.protocol {
        protocol::TCP => quote.l4 + Tcp::LENGTH <= packet.l3 + packet.length,
        // UDP's checksum lies within the eight bytes that every quote has.
        protocol => protocol == protocol::UDP,
    }
}

pub(crate) const fn has_service(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}
