//! Turns questions for announced addresses into their answers: ARP replies and neighbour advertisements.

use super::{decap::shift_link, view_mut};
use crate::{
    abi::{AddressKey, EdgeMac},
    csum,
    frame::FrameMut,
    reason::DropReason,
    wire::{
        ethernet::{self, Ethernet},
        icmp::{self, Icmp},
        neighbour::{ALL_NODES, ALL_NODES_MAC, Advertisement, Arp, Discovery},
        protocol,
    },
};

/// Turns an ARP request into its reply.
///
/// # Errors
///
/// [`DropReason::NoHeadroom`] if the frame is too short for an ARP message; it must then be dropped.
#[inline(always)]
pub fn arp<F: FrameMut>(frame: &mut F, l3: usize, mac: EdgeMac) -> Result<(), DropReason> {
    let message = view_mut::<Arp, _>(frame, l3)?;
    message.operation = Arp::REPLY;
    let [a, b, c, d, e, f] = message.sender_mac;
    message.target_mac = [a, b, c, d, e, f];
    let (asker, asked) = (message.sender, message.target);
    message.sender = asked;
    message.target = asker;
    message.sender_mac = mac.mac();
    let ethernet = view_mut::<Ethernet, _>(frame, 0)?;
    let asker = ethernet.source();
    ethernet.macs = macs(asker, mac);
    Ok(())
}

/// Turns a neighbour solicitation into the advertisement that answers it (RFC 4861 section 7.2.4).
///
/// # Errors
///
/// [`DropReason::NoHeadroom`] if the frame does not hold the answer; it must then be dropped.
#[inline(always)]
pub fn advertisement<F: FrameMut>(
    frame: &mut F,
    l3: usize,
    mac: EdgeMac,
) -> Result<(), DropReason> {
    const GROWTH: usize = Advertisement::LENGTH - Discovery::LENGTH;
    let message = view_mut::<Discovery, _>(frame, l3)?;
    let asker = AddressKey::v6(message.ip.source);
    let target = AddressKey::v6(message.target);
    // A solicitation that checks whether an address is free carries no option; the answer's option needs new room.
    if !frame.holds(l3 + Advertisement::LENGTH) {
        shift_link(frame, l3, -(GROWTH as i32), ethernet::IPV6.to_be_bytes())?;
    }
    if !frame.truncate(l3 + Advertisement::LENGTH) {
        return Err(DropReason::NoHeadroom);
    }
    // Such a solicitation has no source address either, so its answer goes to all nodes.
    let [high, low] = asker.words();
    let is_nobody = high | low == 0;

    let ethernet = view_mut::<Ethernet, _>(frame, 0)?;
    let destination = if is_nobody {
        ALL_NODES_MAC
    } else {
        ethernet.source()
    };
    ethernet.macs = macs(destination, mac);
    let message = view_mut::<Advertisement, _>(frame, l3)?;
    let ip = &mut message.discovery.ip;
    ip.class_label = [0x60, 0, 0, 0];
    ip.payload_length = (Advertisement::PAYLOAD as u16).to_be_bytes();
    ip.next_header = protocol::ICMPV6;
    ip.hop_limit = Discovery::HOP_LIMIT;
    ip.source = target.octets();
    ip.destination = if is_nobody { ALL_NODES } else { asker.octets() };
    let flags = if is_nobody {
        Advertisement::OVERRIDE
    } else {
        Advertisement::SOLICITED | Advertisement::OVERRIDE
    };
    message.discovery.icmp = Icmp {
        kind: icmp::v6::NEIGHBOUR_ADVERTISEMENT,
        code: 0,
        checksum: [0; 2],
        rest: [flags, 0, 0, 0],
    };
    message.discovery.target = target.octets();
    message.option = Advertisement::TARGET_MAC;
    message.mac = mac.mac();
    fill_checksum(message);
    Ok(())
}

/// Computes the checksum of an advertisement; its checksum field must be zero.
#[inline(always)]
pub fn fill_checksum(message: &mut Advertisement) {
    let Discovery { ip, icmp, target } = &message.discovery;
    let [kind, code] = [icmp.kind, icmp.code];
    let sum = csum::pseudo_header_v6(
        &ip.source,
        &ip.destination,
        protocol::ICMPV6,
        Advertisement::PAYLOAD as u32,
    )
    .add_u16(u16::from_be_bytes([kind, code]))
    .add_array(&icmp.rest)
    .add_array(target)
    .add_array(&message.option)
    .add_array(&message.mac);
    message.discovery.icmp.checksum = sum.checksum().to_be_bytes();
}

#[inline(always)]
const fn macs([a, b, c, d, e, f]: [u8; 6], source: EdgeMac) -> [u8; 12] {
    let [g, h, i, j, k, l] = source.mac();
    [a, b, c, d, e, f, g, h, i, j, k, l]
}
