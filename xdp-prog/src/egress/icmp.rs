//! ICMP errors about packets to a pod, from the pod, this machine or a router behind it.
//!
//! The client does not know the pod. So the quoted packet is translated back into the one that the client sent:
//!
//! ```text
//! | IP: source | ICMP | quoted IP: client, pod | quoted ports, 8 bytes at least ...
//! ```
//!
//! If the pod knows the client by another port, the quote gets the client's own port. If the client is hidden from
//! the pod ([`super::hairpin`]), the quote gets the client's address, and the error comes in instead of leaving. The
//! source of that error becomes the address that the client talks to, whoever sent it: the stack takes no packet from
//! an address of its own.

use core::{hint::black_box, mem::offset_of};

use super::{
    ChecksumField, Covered, Memory, Outcome, Skb, flows, hairpin,
    headers::Headers,
    rewrite::{set_source, store_words},
};
use crate::{
    abi::{AddressKey, PodFlow, Tuple},
    csum::{self, Sum},
    family::Family,
    reason::DropReason,
    wire::{
        icmp::Icmp,
        ipv4::Ipv4,
        ipv6::{Extension, Ipv6},
        protocol,
        transport::{Ports, Tcp, Udp},
    },
};

/// A quoted packet to a pod.
#[derive(Clone, Copy, Debug)]
struct Quote {
    /// Offset of the quoted IP header.
    l3: usize,
    /// Offset of the quoted ports.
    l4: usize,
    protocol: u8,
    /// Quoted IPv4 header checksum.
    checksum: u16,
    client: AddressKey,
    pod: AddressKey,
}

/// Translates an ICMP error that quotes a flow to a pod.
#[inline(always)]
pub(super) fn translate<S: Skb, T: Memory>(
    skb: &mut S,
    tables: &T,
    packet: &Headers,
) -> Result<Outcome, DropReason> {
    let Some(quote) = read(skb, packet) else {
        return Ok(Outcome::Untouched);
    };
    // Only the sender of the quoted packet gets an error about it.
    if !is_same(quote.client, packet.destination) {
        return Ok(Outcome::Untouched);
    }
    let Some(&ports) = skb.view::<Ports>(quote.l4) else {
        return Ok(Outcome::Untouched);
    };
    let key = Tuple::new(
        quote.client,
        quote.pod,
        ports.source,
        ports.destination,
        quote.protocol,
    );
    let Some(flow) = flows::find(tables, &key) else {
        return Ok(Outcome::Untouched);
    };
    let (client, address) = (flow.client(&key), flow.service_address(&key));
    let field = rewrite(skb, packet, &quote, &ports, &flow, &key)?;
    if flow.is_hairpin() || is_same(packet.source, quote.pod) {
        let moved = Sum::ZERO.replace_words(packet.source.words(), address.words());
        set_source(skb, packet, address, moved)?;
        if packet.family == Family::V6 {
            skb.replace_checksum(field, moved, Covered::PseudoHeader)?;
        }
    }
    if !flow.is_hairpin() {
        return Ok(Outcome::Translated);
    }
    let checksum = match packet.family {
        Family::V4 => None,
        Family::V6 => Some(field),
    };
    hairpin::turn(skb, packet, client, checksum)
}

/// Finds the packet that an error quotes, and makes its ports linear.
#[inline(always)]
fn read<S: Skb>(skb: &mut S, packet: &Headers) -> Option<Quote> {
    let l3 = packet.l4 + Icmp::LENGTH;
    let quote = match packet.family {
        Family::V4 => {
            skb.pull(l3 + Ipv4::LENGTH);
            let kind = skb.view::<Icmp>(packet.l4)?.kind;
            if packet.protocol != protocol::ICMP || !is_error_v4(kind) {
                return None;
            }
            quoted_v4(skb, l3)?
        }
        Family::V6 => {
            skb.pull(l3 + Ipv6::LENGTH);
            let kind = skb.view::<Icmp>(packet.l4)?.kind;
            if packet.protocol != protocol::ICMPV6 || !is_error_v6(kind) {
                return None;
            }
            quoted_v6(skb, l3, packet.end)?
        }
    };
    // RFC 792 promises only eight bytes of the quote behind the IP header.
    let ports = offset_after(quote.l4, 8);
    if ports > packet.end {
        return None;
    }
    skb.pull(ports);
    Some(quote)
}

/// Adds to an offset in a way that makes the verifier forget how the sum was made.
///
/// Linux 6.12 remembers it for a plain sum. When a comparison then leaves one possible value, the bounds of the
/// offset are lost ("const tnum out of sync"). A mask makes the verifier forget, if LLVM does not see through it.
#[inline(always)]
fn offset_after(offset: usize, length: usize) -> usize {
    (black_box(offset) + length) & 0xffff
}

/// Tells whether a type is unreachable, source quench, time exceeded or parameter problem (RFC 792).
#[inline(always)]
const fn is_error_v4(kind: u8) -> bool {
    matches!(kind, 3 | 4 | 11 | 12)
}

/// Tells whether a type is unreachable, too big, time exceeded or parameter problem (RFC 4443 section 2.1).
#[inline(always)]
const fn is_error_v6(kind: u8) -> bool {
    matches!(kind, 1..=4)
}

#[inline(always)]
fn quoted_v4<S: Skb>(skb: &S, l3: usize) -> Option<Quote> {
    let header: &Ipv4 = skb.view(l3)?;
    let header_length = header.header_length();
    let has_ports = u16::from_be_bytes(header.fragment) & 0x1fff == 0;
    if header.version() != 4 || header_length < Ipv4::LENGTH || !has_ports {
        return None;
    }
    Some(Quote {
        l3,
        l4: l3 + header_length,
        protocol: header.protocol,
        checksum: u16::from_be_bytes(header.checksum),
        client: AddressKey::v4(header.source()),
        pod: AddressKey::v4(header.destination()),
    })
}

#[inline(always)]
fn quoted_v6<S: Skb>(skb: &mut S, l3: usize, end: usize) -> Option<Quote> {
    let header: &Ipv6 = skb.view(l3)?;
    if header.version() != 6 {
        return None;
    }
    let mut quote = Quote {
        l3,
        l4: l3 + Ipv6::LENGTH,
        protocol: header.next_header,
        checksum: 0,
        client: AddressKey::v6(header.source),
        pod: AddressKey::v6(header.destination),
    };
    if quote.protocol == protocol::FRAGMENT {
        let ports = offset_after(quote.l4, Extension::LENGTH);
        if ports > end {
            return None;
        }
        skb.pull(ports);
        let header: &Extension = skb.view(quote.l4)?;
        if u16::from_be_bytes(header.fragment) & 0xfff8 != 0 {
            return None;
        }
        quote.protocol = header.next_header;
        quote.l4 = ports;
    }
    Some(quote)
}

/// Translates the quote into the packet that the client sent; returns the place of the error's own checksum.
#[inline(always)]
fn rewrite<S: Skb>(
    skb: &mut S,
    packet: &Headers,
    quote: &Quote,
    ports: &Ports,
    flow: &PodFlow,
    key: &Tuple,
) -> Result<ChecksumField, DropReason> {
    let (client, address) = (flow.client(key), flow.service_address(key));
    let moved = Sum::ZERO
        .replace_words(quote.client.words(), client.words())
        .replace_words(quote.pod.words(), address.words());
    let new = Ports {
        source: flow.client_port(),
        destination: flow.port(),
    };
    let both = moved.add_sum(ports.replaced_by(new));
    let transport = transport_checksum(skb, quote, packet.end, both);
    // The difference that the error's own checksum sees.
    let mut message = both;

    match packet.family {
        Family::V4 => {
            let check = csum::update(quote.checksum, moved);
            message = message.replace_u16(quote.checksum, check);
            let [a, b] = check.to_be_bytes();
            let [.., c, d, e, f] = client.octets();
            let [.., g, h, i, j] = address.octets();
            let words = [
                u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
                u64::from_ne_bytes([i, j, 0, 0, 0, 0, 0, 0]),
            ];
            skb.store(quote.l3 + offset_of!(Ipv4, checksum), words, 10)?;
        }
        Family::V6 => {
            let at = quote.l3 + offset_of!(Ipv6, source);
            skb.store(at, client.words(), 16)?;
            let at = quote.l3 + offset_of!(Ipv6, destination);
            skb.store(at, address.words(), 16)?;
        }
    }
    let ([a, b], [c, d]) = (new.source, new.destination);
    let words = [u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), 0];
    skb.store(quote.l4, words, size_of::<Ports>())?;
    if let Some(change) = transport {
        message = message.replace_u16(change.old, change.new);
        skb.store(change.offset, store_words(change.new.to_be_bytes()), 2)?;
    }
    let field = ChecksumField {
        offset: packet.l4 + offset_of!(Icmp, checksum),
        zero_is_none: false,
    };
    skb.replace_checksum(field, message, Covered::Segment)?;
    Ok(field)
}

/// The change of a quoted checksum.
struct Change {
    offset: usize,
    old: u16,
    new: u16,
}

/// Returns the change of the quoted transport checksum to the client's; `None` if the checksum is not quoted.
#[inline(always)]
fn transport_checksum<S: Skb>(
    skb: &S,
    quote: &Quote,
    end: usize,
    difference: Sum,
) -> Option<Change> {
    let offset = quote.l4
        + match quote.protocol {
            protocol::TCP => offset_of!(Tcp, checksum),
            protocol::UDP => offset_of!(Udp, checksum),
            _ => return None,
        };
    if offset_after(offset, 2) > end {
        return None;
    }
    let old = u16::from_be_bytes(*skb.view::<[u8; 2]>(offset)?);
    let new = if quote.protocol == protocol::UDP {
        csum::update_udp(old, difference)
    } else {
        csum::update(old, difference)
    };
    Some(Change { offset, old, new })
}

/// Compares addresses as words: the BPF target has no `memcmp`.
#[inline(always)]
const fn is_same(one: AddressKey, other: AddressKey) -> bool {
    let [a, b] = one.words();
    let [c, d] = other.words();
    (a ^ c) | (b ^ d) == 0
}
