//! Checks of backends and nodes, which take the way of a client's packets.
//!
//! A check uses an ordinary socket of this machine. The socket is connected to the node, so that the kernel's route
//! and neighbour are right, and its packets are marked. Here such a packet becomes what the edge would make of a
//! client's packet. The answer comes from the service's address; [`crate::decide::edge::probe`] translates it back.
//!
//! ```text
//! edge:40000 -> node:80      edge -> node | edge:40000 -> VIP:80
//! edge:40000 <- node:80             edge:40000 <- VIP:80
//! ```

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths come from 16-bit fields"
)]

use core::mem::offset_of;

use super::{
    ChecksumField, Covered, Memory, Outcome, Skb,
    headers::{self, Headers, Part},
};
use crate::{
    abi::{AddressKey, PROBE_ENCAP, PROBE_MARK, PROBE_MARK_MASK, Probe, Tuple},
    csum::{self, Sum},
    family::Family,
    reason::DropReason,
    rewrite::TTL,
    wire::{
        ethernet::{self, Ethernet},
        ipv4::{DONT_FRAGMENT, Ipv4},
        ipv6::Ipv6,
        protocol,
        transport::{Ports, Tcp},
    },
};

/// Returns the index of a check in its packet mark; `None` for other marks.
#[inline(always)]
pub(super) const fn index(mark: u32) -> Option<u32> {
    if mark & PROBE_MARK_MASK == PROBE_MARK {
        Some(mark & !PROBE_MARK_MASK)
    } else {
        None
    }
}

/// Sends a check's packet the way of a client's.
#[inline(always)]
pub(super) fn divert<S: Skb, T: Memory>(
    skb: &mut S,
    tables: &T,
    index: u32,
) -> Result<Outcome, DropReason> {
    let Some(probe) = tables.probe(index) else {
        return Ok(Outcome::Untouched);
    };
    let Some(packet) = headers::read(skb) else {
        return Ok(Outcome::Untouched);
    };
    if packet.destination != probe.peer || packet.part != Part::Whole {
        return Ok(Outcome::Untouched);
    }
    let source = if is_zero(probe.source) {
        packet.source
    } else {
        probe.source
    };
    let encap = probe.flags & PROBE_ENCAP != 0;
    if encap && source.is_mapped() != probe.node.is_mapped() {
        return Err(DropReason::NoOuterSource);
    }
    // The packet may pass another device, where it must not be changed again.
    skb.unmark();
    if probe.destination != probe.peer {
        redirect(skb, tables, &packet, probe)?;
    }
    if encap {
        encapsulate(skb, &packet, probe, source)?;
    }
    Ok(Outcome::Diverted)
}

#[inline(always)]
const fn is_zero(address: AddressKey) -> bool {
    let [high, low] = address.words();
    high | low == 0
}

/// Addresses the packet to the service, and notes the tuple of its answer.
#[inline(always)]
fn redirect<S: Skb, T: Memory>(
    skb: &mut S,
    tables: &T,
    packet: &Headers,
    probe: &Probe,
) -> Result<(), DropReason> {
    if packet.protocol != protocol::TCP || packet.l4 + Tcp::LENGTH > packet.end {
        return Ok(());
    }
    skb.pull(packet.l4 + Tcp::LENGTH);
    let Some(&ports) = skb.view::<Ports>(packet.l4) else {
        return Ok(());
    };
    let answer = Tuple::new(
        probe.destination,
        packet.source,
        ports.destination,
        ports.source,
        packet.protocol,
    );
    tables.remember_probe(&answer, &probe.peer);
    let addresses = Sum::ZERO.replace_words(probe.peer.words(), probe.destination.words());
    match packet.family {
        Family::V4 => {
            let [a, b] = csum::update(packet.checksum, addresses).to_be_bytes();
            let [.., c, d, e, f] = packet.source.octets();
            let [.., g, h, i, j] = probe.destination.octets();
            // Checksum, source and destination are adjacent.
            let first = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
            let [second, _] = word([i, j, 0, 0, 0, 0, 0, 0]);
            skb.store(packet.l3 + offset_of!(Ipv4, checksum), [first, second], 10)?;
        }
        Family::V6 => {
            let destination = packet.l3 + offset_of!(Ipv6, destination);
            skb.store(destination, probe.destination.words(), 16)?;
        }
    }
    let field = ChecksumField {
        offset: packet.l4 + offset_of!(Tcp, checksum),
        zero_is_none: false,
    };
    skb.replace_checksum(field, addresses, Covered::PseudoHeader)
}

/// Adds the outer header as the XDP program does.
#[inline(always)]
fn encapsulate<S: Skb>(
    skb: &mut S,
    packet: &Headers,
    probe: &Probe,
    source: AddressKey,
) -> Result<(), DropReason> {
    let inner = (packet.end - packet.l3) as u16;
    let [high, low] = probe.tag.to_be_bytes();
    let announced = packet.family.encap_protocol();
    let l3 = packet.l3;
    if probe.node.is_mapped() {
        skb.grow(Family::V4, Ipv4::LENGTH)?;
        let [.., a, b, c, d] = source.octets();
        let [.., e, f, g, h] = probe.node.octets();
        let length = inner + Ipv4::LENGTH as u16;
        let sum = Sum::ZERO
            .add_u16(0x4500)
            .add_u16(length)
            .add_u16(probe.tag)
            .add_u16(u16::from_be_bytes(DONT_FRAGMENT))
            .add_u16(u16::from_be_bytes([TTL, announced]))
            .add_u32(u32::from_be_bytes([a, b, c, d]))
            .add_u32(u32::from_be_bytes([e, f, g, h]));
        let [i, j] = length.to_be_bytes();
        let [k, l] = DONT_FRAGMENT;
        let [m, n] = sum.checksum().to_be_bytes();
        let first = u64::from_ne_bytes([0x45, 0, i, j, high, low, k, l]);
        let second = u64::from_ne_bytes([TTL, announced, m, n, a, b, c, d]);
        skb.store(l3, [first, second], 16)?;
        skb.store(l3 + 16, word([e, f, g, h, 0, 0, 0, 0]), 4)?;
    } else {
        skb.grow(Family::V6, Ipv6::LENGTH)?;
        let [i, j] = inner.to_be_bytes();
        let first = u64::from_ne_bytes([0x60, 0, high, low, i, j, announced, TTL]);
        skb.store(l3, [first, 0], 8)?;
        skb.store(l3 + offset_of!(Ipv6, source), source.words(), 16)?;
        skb.store(l3 + offset_of!(Ipv6, destination), probe.node.words(), 16)?;
    }
    if matches!(packet.family, Family::V4) != probe.node.is_mapped() {
        let ether_type = if probe.node.is_mapped() {
            ethernet::IPV4
        } else {
            ethernet::IPV6
        };
        let [a, b] = ether_type.to_be_bytes();
        // The EtherType is behind the VLAN tags, if there are any.
        let place = l3 - (Ethernet::LENGTH - offset_of!(Ethernet, ether_type));
        skb.store(place, word([a, b, 0, 0, 0, 0, 0, 0]), 2)?;
    }
    Ok(())
}

#[inline(always)]
const fn word(bytes: [u8; 8]) -> [u64; 2] {
    [u64::from_ne_bytes(bytes), 0]
}
