//! ICMP errors about outer packets: a router says that the path to a node has a smaller MTU than the next hop.
//!
//! They pass to the stack, which ignores them because none of its sockets has sent the packet. A report about a node
//! that this machine sends to is noted. The agent judges it, because only the agent knows the tags of the node's
//! pods.

use crate::{
    abi::{AddressKey, PathReport, Tag},
    decide::message::{Messages, is_too_big},
    flow::{V4, V6},
    frame::Frame,
    ip::with_packet,
    parse::Packet,
    reason::PassReason,
    verdict::Verdict,
    wire::{icmp::Icmp, ipv4::Ipv4, ipv6::Ipv6, protocol},
    world::Paths,
};

/// Notes what an error reports, and passes the frame.
#[inline(always)]
pub fn decide<'t, F: Frame, T: Paths>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let report = with_packet!(frame, packet => read(frame, &packet), _reason => None);
    Verdict::Pass(match report {
        Some((node, report)) if tables.note_path(&node, report) => PassReason::PathMtu,
        _ => PassReason::Icmp,
    })
}

/// Reads the node that an error is about, and the reported MTU.
#[inline(always)]
fn read<F: Frame, A: Tunnelled>(frame: &F, packet: &Packet<A>) -> Option<(AddressKey, PathReport)> {
    // The offset is computed as in `is_too_big`, which has compared it with the packet's.
    let l4 = packet.l3 + A::HEADER_LENGTH;
    if !is_too_big(frame, packet)
        || packet.length < A::HEADER_LENGTH + Icmp::LENGTH + A::HEADER_LENGTH
    {
        return None;
    }
    let mtu = A::next_hop_mtu(frame.view(l4)?);
    let quote = A::outer(frame, l4 + Icmp::LENGTH)?;
    let [a, b] = quote.source.key().words();
    let [c, d] = packet.destination.key().words();
    // Compares words: the BPF target has no `memcmp`.
    let is_from_here = (a ^ c) | (b ^ d) == 0;
    if !is_from_here || mtu >= quote.length {
        return None;
    }
    let report = PathReport::new(mtu, quote.length, quote.tag);
    Some((quote.node.key(), report))
}

/// The fields of a quoted outer header.
struct OuterQuote<A> {
    source: A,
    node: A,
    length: u16,
    tag: Tag,
}

/// The differences between the families.
trait Tunnelled: Messages {
    /// Returns the MTU in bytes that an error states.
    fn next_hop_mtu(header: &Icmp) -> u16;
    /// Reads a quoted outer header; returns `None` unless it looks like one of an edge.
    fn outer<F: Frame>(frame: &F, l3: usize) -> Option<OuterQuote<Self>>;
}

const fn is_encapsulation(protocol: u8) -> bool {
    matches!(protocol, protocol::IPV4 | protocol::IPV6)
}

impl Tunnelled for V4 {
    #[inline(always)]
    fn next_hop_mtu(header: &Icmp) -> u16 {
        let [_, _, high, low] = header.rest;
        u16::from_be_bytes([high, low])
    }

    #[inline(always)]
    fn outer<F: Frame>(frame: &F, l3: usize) -> Option<OuterQuote<Self>> {
        let header: &Ipv4 = frame.view(l3)?;
        let is_plain = header.version() == 4 && header.header_length() == Ipv4::LENGTH;
        if !is_plain || header.is_fragment() || !is_encapsulation(header.protocol) {
            return None;
        }
        Some(OuterQuote {
            source: Self(header.source()),
            node: Self(header.destination()),
            length: u16::from_be_bytes(header.total_length),
            tag: Tag(u16::from_be_bytes(header.identification)),
        })
    }
}

impl Tunnelled for V6 {
    #[inline(always)]
    fn next_hop_mtu(header: &Icmp) -> u16 {
        let [a, b, high, low] = header.rest;
        if a | b == 0 {
            u16::from_be_bytes([high, low])
        } else {
            u16::MAX
        }
    }

    #[inline(always)]
    fn outer<F: Frame>(frame: &F, l3: usize) -> Option<OuterQuote<Self>> {
        #[expect(clippy::cast_possible_truncation, reason = "a header's length")]
        const HEADER: u16 = Ipv6::LENGTH as u16;
        let header: &Ipv6 = frame.view(l3)?;
        if header.version() != 6 || !is_encapsulation(header.next_header) {
            return None;
        }
        let payload = u16::from_be_bytes(header.payload_length);
        Some(OuterQuote {
            source: Self(header.source),
            node: Self(header.destination),
            length: payload.saturating_add(HEADER),
            tag: Tag(header.label_tag()),
        })
    }
}
