//! Answers ARP requests and neighbour solicitations for announced addresses, which no interface has.
//!
//! The answer gives the MAC of the ingress interface. The machine stops answering when its agent has not said for
//! [`crate::abi::ANNOUNCE_NS`] that it serves; another machine answers by then. An announcement of such an address by
//! another machine is noted ([`note_claim`](crate::world::Announcements::note_claim)) for the agent to judge. That
//! announcement and every other frame pass to the stack.

use crate::{
    abi::{AddressKey, CONFIG_ANNOUNCE, EdgeMac, TaggedLink, is_announcing},
    csum,
    decide::address::is_vip,
    flow::V6,
    frame::{Frame, FrameSum},
    parse::{self, Link},
    reason::{DropReason, PassReason},
    verdict::{Advertise, Ending},
    wire::{
        ethernet::{self, Ethernet, VlanTag},
        icmp,
        ipv6::Ipv6,
        neighbour::{Advertisement, Arp, Discovery},
        protocol,
    },
    world::{Tables, World},
};

/// Tells whether this machine announces any address.
#[inline(always)]
pub(crate) fn announces<T: Tables>(tables: &T) -> bool {
    tables
        .config()
        .is_some_and(|config| config.flags & CONFIG_ANNOUNCE != 0)
}

/// Decides whether a frame is answered, and how.
///
/// # Errors
///
/// Returns what becomes of a frame that is not answered.
#[inline(always)]
pub fn decide<F: FrameSum, T: World>(
    frame: &F,
    tables: &T,
    ingress: u32,
) -> Result<Advertise, Ending> {
    let link = match parse::any_link(frame) {
        Ok(link) => link,
        Err(reason) => return Err(Ending::Pass(reason)),
    };
    match answer(frame, tables, ingress, &link) {
        Ok(advertise) => Ok(advertise),
        Err(PassReason::Icmp) if is_to_vip(frame, tables, &link) => {
            Err(Ending::Drop(DropReason::VipIcmp))
        }
        Err(reason) => Err(Ending::Pass(reason)),
    }
}

/// Tells whether an IPv6 packet is for a VIP.
#[inline(always)]
fn is_to_vip<F: Frame, T: Tables>(frame: &F, tables: &T, link: &Link) -> bool {
    match frame.view::<Ipv6>(link.l3) {
        Some(header) => is_vip(tables, V6(header.destination)),
        None => false,
    }
}

#[inline(always)]
fn answer<F: FrameSum, T: World>(
    frame: &F,
    tables: &T,
    ingress: u32,
    link: &Link,
) -> Result<Advertise, PassReason> {
    let Some(header) = frame.view::<Ethernet>(0) else {
        return Err(PassReason::RuntFrame);
    };
    // The reason under which a frame passes that needs no answer.
    let stacks = match link.ether_type {
        _ if header.is_group() => PassReason::GroupAddress,
        ethernet::IPV6 => PassReason::Icmp,
        _ => PassReason::NotIp,
    };
    let Some(vlan) = vlan(frame, link) else {
        return Err(stacks);
    };
    let Some(mac) = tables.announcing_mac(TaggedLink::new(ingress, vlan)) else {
        return Err(stacks);
    };
    let source = EdgeMac::new(header.source());
    // A switch may flood frames for other machines to this one.
    let is_for_us = header.is_group() || EdgeMac::new(header.destination()) == mac;
    // A frame from this machine may return by a loop or by another of its links.
    if !is_for_us || source == mac || source.is_group() {
        return Err(stacks);
    }
    match link.ether_type {
        ethernet::ARP => arp(frame, tables, link.l3, mac, stacks),
        ethernet::IPV6 => discovery(frame, tables, link.l3, mac, source, stacks),
        _ => Err(stacks),
    }
}

/// Returns the frame's VLAN id, 0 without a tag; `None` for tags of links where nothing is announced.
#[inline(always)]
fn vlan<F: Frame>(frame: &F, link: &Link) -> Option<u16> {
    const TAGGED: usize = Ethernet::LENGTH + VlanTag::LENGTH;
    match link.l3 {
        Ethernet::LENGTH => Some(0),
        TAGGED if frame.view::<Ethernet>(0)?.ether_type == ethernet::VLAN.to_be_bytes() => {
            let tag: &VlanTag = frame.view(Ethernet::LENGTH)?;
            Some(u16::from_be_bytes(tag.control) & 0x0fff)
        }
        _ => None,
    }
}

#[inline(always)]
fn arp<F: Frame, T: World>(
    frame: &F,
    tables: &T,
    l3: usize,
    mac: EdgeMac,
    stacks: PassReason,
) -> Result<Advertise, PassReason> {
    let Some(message) = frame.view::<Arp>(l3) else {
        return Err(stacks);
    };
    let operation = u64::from_ne_bytes(message.operation);
    let is_request = operation == const { u64::from_ne_bytes(Arp::REQUEST) };
    let is_reply = operation == const { u64::from_ne_bytes(Arp::REPLY) };
    let target = AddressKey::v4(message.target);
    if !(is_request || is_reply) || !tables.is_announced(&target) {
        return Err(stacks);
    }
    // Only announcements have the same sender and target (RFC 5227 section 3).
    if message.sender == message.target {
        let claimed = EdgeMac::new(message.sender_mac);
        return Err(claim(tables, &target, claimed, mac, stacks));
    }
    if is_request && serves(tables) {
        Ok(Advertise::Arp { l3, mac })
    } else {
        Err(stacks)
    }
}

#[inline(always)]
fn discovery<F: FrameSum, T: World>(
    frame: &F,
    tables: &T,
    l3: usize,
    mac: EdgeMac,
    source: EdgeMac,
    stacks: PassReason,
) -> Result<Advertise, PassReason> {
    let Some(message) = frame.view::<Discovery>(l3) else {
        return Err(stacks);
    };
    let is_solicitation = message.icmp.kind == icmp::v6::NEIGHBOUR_SOLICITATION;
    let is_advertisement = message.icmp.kind == icmp::v6::NEIGHBOUR_ADVERTISEMENT;
    // A receiver must make these checks (RFC 4861 sections 7.1.1 and 7.1.2).
    if !(is_solicitation || is_advertisement)
        || message.ip.version() != 6
        || message.ip.next_header != protocol::ICMPV6
        || message.ip.hop_limit != Discovery::HOP_LIMIT
        || message.icmp.code != 0
    {
        return Err(stacks);
    }
    let target = AddressKey::v6(message.target);
    if !tables.is_announced(&target) {
        return Err(stacks);
    }
    if !is_intact(frame, l3, &message.ip) {
        return Err(stacks);
    }
    if is_solicitation {
        return if serves(tables) {
            Ok(Advertise::Neighbour { l3, mac })
        } else {
            Err(stacks)
        };
    }
    let [flags, ..] = message.icmp.rest;
    if flags & Advertisement::SOLICITED != 0 {
        // This answers a solicitation that this machine itself sent.
        return Err(stacks);
    }
    Err(claim(tables, &target, source, mac, stacks))
}

/// Tells whether the agent has said recently that this machine serves.
#[inline(always)]
fn serves<T: World>(tables: &T) -> bool {
    is_announcing(tables.announce_stamp(), tables.now())
}

/// Notes another machine's announcement; this machine's own is ignored.
#[inline(always)]
fn claim<T: World>(
    tables: &T,
    target: &AddressKey,
    claimed: EdgeMac,
    mac: EdgeMac,
    stacks: PassReason,
) -> PassReason {
    if claimed == mac {
        return stacks;
    }
    tables.note_claim(target, claimed);
    PassReason::AnnouncedElsewhere
}

/// Tells whether the message is complete and its checksum valid.
#[inline(always)]
fn is_intact<F: FrameSum>(frame: &F, l3: usize, ip: &Ipv6) -> bool {
    let length = ip.total_length() - Ipv6::LENGTH;
    if length < Discovery::PAYLOAD || !frame.holds(l3 + ip.total_length()) {
        return false;
    }
    let pseudo_header = csum::pseudo_header_v6(
        &ip.source,
        &ip.destination,
        protocol::ICMPV6,
        u32::from(u16::from_be_bytes(ip.payload_length)),
    );
    match frame.sum(l3 + Ipv6::LENGTH, length) {
        Some(sum) => sum.add_sum(pseudo_header).fold() == u16::MAX,
        None => false,
    }
}
