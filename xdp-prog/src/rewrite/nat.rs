//! Translation of NAT mode: both addresses and both ports.

use super::{decrement_hop_limit, view_mut, write_ethernet};
use crate::{
    csum::{self, Sum},
    decide::{Family, nat::Translate},
    frame::FrameMut,
    reason::DropReason,
    wire::{
        ethernet::{Ethernet, VlanTag},
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
        transport::{Ports, Tcp, Udp},
    },
};

/// Makes the frame of a translated packet.
///
/// SCTP's checksum covers no addresses, and its ports are never translated.
///
/// # Errors
///
/// Returns [`DropReason::NoHeadroom`] where the VLAN tag does not fit in front of the frame; it is then half
/// edited and must be dropped.
#[inline(always)]
pub fn translate<F: FrameMut>(frame: &mut F, translate: &Translate<'_>) -> Result<(), DropReason> {
    const TCP: u32 = protocol::TCP as u32;
    const UDP: u32 = protocol::UDP as u32;
    decrement_hop_limit(frame, translate.l3, translate.family)?;
    let difference = set_addresses(frame, translate)?;
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

/// Sets both addresses of the packet and returns what that changes in checksums.
#[inline(always)]
fn set_addresses<F: FrameMut>(frame: &mut F, translate: &Translate<'_>) -> Result<Sum, DropReason> {
    Ok(match translate.family {
        Family::V4 => {
            let header = view_mut::<Ipv4, _>(frame, translate.l3)?;
            let [.., a, b, c, d] = translate.by.source.octets();
            let [.., e, f, g, h] = translate.by.destination.octets();
            let new = [a, b, c, d, e, f, g, h];
            let difference = Sum::ZERO.replace_array(&header.addresses, &new);
            header.addresses = new;
            let check = u16::from_be_bytes(header.checksum);
            header.checksum = csum::update(check, difference).to_be_bytes();
            difference
        }
        Family::V6 => {
            let header = view_mut::<Ipv6, _>(frame, translate.l3)?;
            let source = translate.by.source.octets();
            let destination = translate.by.destination.octets();
            let difference = Sum::ZERO
                .replace_array(&header.source, &source)
                .replace_array(&header.destination, &destination);
            header.source = source;
            header.destination = destination;
            difference
        }
    })
}

#[inline(always)]
fn set_ports(ports: &mut Ports, new: u32, difference: Sum) -> Sum {
    let [a, b, c, d] = new.to_ne_bytes();
    let [e, f] = ports.source;
    let [g, h] = ports.destination;
    ports.source = [a, b];
    ports.destination = [c, d];
    difference.replace_u32(
        u32::from_be_bytes([e, f, g, h]),
        u32::from_be_bytes([a, b, c, d]),
    )
}

/// Puts a fresh Ethernet header, and a tag where the link wants one, right in front of the packet.
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
