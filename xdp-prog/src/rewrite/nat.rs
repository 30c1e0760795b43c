//! NAT mode: both addresses and both ports of a packet, and those in the quote of an ICMP error.

use super::{decrement_hop_limit, view_mut, write_ethernet};
use crate::{
    abi::AddressKey,
    csum::{self, Sum},
    family::Family,
    frame::FrameMut,
    reason::DropReason,
    verdict::{Translate, TranslateError},
    wire::{
        ethernet::{Ethernet, VlanTag},
        icmp::Icmp,
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
        transport::{Ports, Tcp, Udp},
    },
    words::{join_u16, split_u32},
};

/// Turns the frame of a packet into the frame that goes to the other end of its flow.
///
/// SCTP ports are never translated, and its checksum does not cover addresses.
///
/// # Errors
///
/// [`DropReason::NoHeadroom`] if the VLAN tag does not fit in front of the frame. The frame is then half edited and
/// must be dropped.
#[inline(always)]
pub fn translate<F: FrameMut>(frame: &mut F, translate: &Translate<'_>) -> Result<(), DropReason> {
    const TCP: u32 = protocol::TCP as u32;
    const UDP: u32 = protocol::UDP as u32;
    decrement_hop_limit(frame, translate.l3, translate.family)?;
    let (difference, _) = set_addresses(
        frame,
        translate.family,
        translate.l3,
        translate.by.source,
        translate.by.destination,
    )?;
    match translate.by.protocol {
        TCP => {
            let header = view_mut::<Tcp, _>(frame, translate.l4)?;
            let difference = set_ports(&mut header.ports, translate.by.ports, difference);
            let check = u16::from_be_bytes(header.checksum);
            header.checksum = csum::update(check, difference).to_be_bytes();
        }
        UDP => {
            let header = view_mut::<Udp, _>(frame, translate.l4)?;
            let difference = set_ports(&mut header.ports, translate.by.ports, difference);
            let check = u16::from_be_bytes(header.checksum);
            header.checksum = csum::update_udp(check, difference).to_be_bytes();
        }
        _ => {}
    }
    begin_frame(frame, translate)
}

/// Turns the frame of an ICMP error into the frame that goes to the sender of the quoted packet.
///
/// # Errors
///
/// As [`translate`].
#[inline(always)]
pub fn translate_error<F: FrameMut>(
    frame: &mut F,
    error: &TranslateError<'_>,
) -> Result<(), DropReason> {
    let Translate {
        family, l3, l4, by, ..
    } = error.error;
    decrement_hop_limit(frame, l3, family)?;
    let (pseudo_header, _) = set_addresses(frame, family, l3, by.source, by.destination)?;
    // The quoted packet went the other way, so it gets the addresses in the other order.
    let (addresses, header) =
        set_addresses(frame, family, error.quoted_l3, by.destination, by.source)?;
    let message = set_quoted_transport(frame, error, addresses)?.add_sum(header);
    let message = match family {
        Family::V4 => message,
        Family::V6 => message.add_sum(pseudo_header),
    };
    let icmp = view_mut::<Icmp, _>(frame, l4)?;
    let check = u16::from_be_bytes(icmp.checksum);
    icmp.checksum = csum::update(check, message).to_be_bytes();
    begin_frame(frame, &error.error)
}

/// Sets the quoted ports, and the checksum if it is quoted; returns the difference that the ICMP checksum sees.
#[inline(always)]
fn set_quoted_transport<F: FrameMut>(
    frame: &mut F,
    error: &TranslateError<'_>,
    addresses: Sum,
) -> Result<Sum, DropReason> {
    const TCP: u32 = protocol::TCP as u32;
    const SCTP: u32 = protocol::SCTP as u32;
    let by = error.error.by;
    if by.protocol == SCTP {
        return Ok(Sum::ZERO);
    }
    let ports = view_mut::<Ports, _>(frame, error.quoted_l4)?;
    let [source, destination] = split_u32(by.ports);
    let message = set_ports(ports, join_u16(destination, source), Sum::ZERO);
    if error.has_checksum == 0 {
        return Ok(message);
    }
    let difference = message.add_sum(addresses);
    let (old, new) = if by.protocol == TCP {
        let header = view_mut::<Tcp, _>(frame, error.quoted_l4)?;
        let old = u16::from_be_bytes(header.checksum);
        let new = csum::update(old, difference);
        header.checksum = new.to_be_bytes();
        (old, new)
    } else {
        let header = view_mut::<Udp, _>(frame, error.quoted_l4)?;
        let old = u16::from_be_bytes(header.checksum);
        let new = csum::update_udp(old, difference);
        header.checksum = new.to_be_bytes();
        (old, new)
    };
    Ok(message.replace_u16(old, new))
}

/// Sets both addresses of an IP header and returns two differences: of checksums that cover the addresses, and of
/// checksums that cover the whole header.
#[inline(always)]
fn set_addresses<F: FrameMut>(
    frame: &mut F,
    family: Family,
    l3: usize,
    source: AddressKey,
    destination: AddressKey,
) -> Result<(Sum, Sum), DropReason> {
    Ok(match family {
        Family::V4 => {
            let header = view_mut::<Ipv4, _>(frame, l3)?;
            let (source, destination) = (source.last_octets(), destination.last_octets());
            let difference = Sum::ZERO
                .replace_array(&header.source, &source)
                .replace_array(&header.destination, &destination);
            header.source = source;
            header.destination = destination;
            let check = u16::from_be_bytes(header.checksum);
            let new_check = csum::update(check, difference);
            header.checksum = new_check.to_be_bytes();
            (difference, difference.replace_u16(check, new_check))
        }
        Family::V6 => {
            let header = view_mut::<Ipv6, _>(frame, l3)?;
            let source = source.octets();
            let destination = destination.octets();
            let difference = Sum::ZERO
                .replace_array(&header.source, &source)
                .replace_array(&header.destination, &destination);
            header.source = source;
            header.destination = destination;
            (difference, difference)
        }
    })
}

#[inline(always)]
fn set_ports(ports: &mut Ports, new: u32, difference: Sum) -> Sum {
    let [source, destination] = split_u32(new);
    let new = Ports {
        source,
        destination,
    };
    let moved = ports.replaced_by(new);
    *ports = new;
    difference.add_sum(moved)
}

/// Writes a fresh Ethernet header, and a VLAN tag if the link needs one, right in front of the packet.
#[inline(always)]
fn begin_frame<F: FrameMut>(frame: &mut F, translate: &Translate<'_>) -> Result<(), DropReason> {
    let vlan = translate.by.link.vlan();
    let length = if vlan == [0; 2] {
        Ethernet::LENGTH
    } else {
        Ethernet::LENGTH + VlanTag::LENGTH
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "both are at most 22"
    )]
    let delta = translate.l3 as i32 - length as i32;
    if delta != 0 && !frame.move_start(delta) {
        return Err(DropReason::NoHeadroom);
    }
    let payload = translate.family.ether_type();
    write_ethernet(frame, translate.by.link.macs(), vlan, payload)
}
