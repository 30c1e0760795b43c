//! Translation of a packet: its two addresses, its two ports and the checksums that cover them, and the same in the
//! quote of an ICMP error.
//!
//! SCTP ports are never translated, and its checksum does not cover addresses.

use super::view_mut;
use crate::{
    abi::AddressKey,
    csum::{self, Sum},
    family::Family,
    frame::FrameMut,
    reason::DropReason,
    wire::{
        icmp::Icmp,
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
        transport::{Ports, Tcp, Udp},
    },
};

/// The addresses of a packet, the source first.
pub(super) type Ends = (AddressKey, AddressKey);

/// The quote of an ICMP error.
#[derive(Clone, Copy)]
pub(super) struct Quote {
    /// Offset of the quoted IP header.
    pub(super) l3: usize,
    /// Offset of the quoted transport header.
    pub(super) l4: usize,
    /// The quoted transport protocol.
    pub(super) protocol: u32,
    /// The quoted packet's new ports.
    pub(super) ports: Ports,
    /// Whether the quote includes the transport checksum.
    pub(super) has_checksum: bool,
}

const TCP: u32 = protocol::TCP as u32;
const UDP: u32 = protocol::UDP as u32;
const SCTP: u32 = protocol::SCTP as u32;

/// Replaces the addresses of an IP header by what `renew` makes of them. Returns two differences: of checksums that
/// cover the addresses, and of checksums that cover the whole header.
#[inline(always)]
pub(super) fn set_addresses<F: FrameMut>(
    frame: &mut F,
    family: Family,
    l3: usize,
    renew: impl FnOnce(Ends) -> Ends,
) -> Result<(Sum, Sum), DropReason> {
    Ok(match family {
        Family::V4 => {
            let header = view_mut::<Ipv4, _>(frame, l3)?;
            let old = (header.source, header.destination);
            let (source, destination) = renew((AddressKey::v4(old.0), AddressKey::v4(old.1)));
            header.source = source.last_octets();
            header.destination = destination.last_octets();
            let difference = Sum::ZERO
                .replace_array(&old.0, &header.source)
                .replace_array(&old.1, &header.destination);
            let check = u16::from_be_bytes(header.checksum);
            let new_check = csum::update(check, difference);
            header.checksum = new_check.to_be_bytes();
            (difference, difference.replace_u16(check, new_check))
        }
        Family::V6 => {
            let header = view_mut::<Ipv6, _>(frame, l3)?;
            let old = (header.source, header.destination);
            let (source, destination) = renew((AddressKey::v6(old.0), AddressKey::v6(old.1)));
            header.source = source.octets();
            header.destination = destination.octets();
            let difference = Sum::ZERO
                .replace_array(&old.0, &header.source)
                .replace_array(&old.1, &header.destination);
            (difference, difference)
        }
    })
}

/// Sets both ports of a packet whose addresses have changed by a difference. Another protocol than TCP and UDP stays as
/// it is.
#[inline(always)]
pub(super) fn set_transport<F: FrameMut>(
    frame: &mut F,
    protocol: u32,
    l4: usize,
    ports: Ports,
    addresses: Sum,
) -> Result<(), DropReason> {
    match protocol {
        TCP => {
            let header = view_mut::<Tcp, _>(frame, l4)?;
            let difference = addresses.add_sum(set_ports(&mut header.ports, ports));
            let check = u16::from_be_bytes(header.checksum);
            header.checksum = csum::update(check, difference).to_be_bytes();
        }
        UDP => {
            let header = view_mut::<Udp, _>(frame, l4)?;
            let difference = addresses.add_sum(set_ports(&mut header.ports, ports));
            let check = u16::from_be_bytes(header.checksum);
            header.checksum = csum::update_udp(check, difference).to_be_bytes();
        }
        _ => {}
    }
    Ok(())
}

/// Sets both ports; returns the difference that a checksum sees.
#[inline(always)]
fn set_ports(ports: &mut Ports, new: Ports) -> Sum {
    let moved = ports.replaced_by(new);
    *ports = new;
    moved
}

/// Translates an ICMP error at `l3`, whose own header is at `l4`, and its quote. `renew` and `renew_quoted` make the
/// new addresses of both.
#[inline(always)]
pub(super) fn set_error<F: FrameMut>(
    frame: &mut F,
    family: Family,
    (l3, l4): (usize, usize),
    quote: Quote,
    renew: impl FnOnce(Ends) -> Ends,
    renew_quoted: impl FnOnce(Ends) -> Ends,
) -> Result<(), DropReason> {
    let (pseudo_header, _) = set_addresses(frame, family, l3, renew)?;
    let (addresses, header) = set_addresses(frame, family, quote.l3, renew_quoted)?;
    let message = set_quoted_transport(frame, quote, addresses)?.add_sum(header);
    let message = match family {
        Family::V4 => message,
        Family::V6 => message.add_sum(pseudo_header),
    };
    let icmp = view_mut::<Icmp, _>(frame, l4)?;
    let check = u16::from_be_bytes(icmp.checksum);
    icmp.checksum = csum::update(check, message).to_be_bytes();
    Ok(())
}

/// Sets the quoted ports, and the checksum if it is quoted; returns the difference that the ICMP checksum sees.
#[inline(always)]
fn set_quoted_transport<F: FrameMut>(
    frame: &mut F,
    quote: Quote,
    addresses: Sum,
) -> Result<Sum, DropReason> {
    if quote.protocol == SCTP {
        return Ok(Sum::ZERO);
    }
    let message = set_ports(view_mut(frame, quote.l4)?, quote.ports);
    if !quote.has_checksum {
        return Ok(message);
    }
    let difference = message.add_sum(addresses);
    let (old, new) = if quote.protocol == TCP {
        let header = view_mut::<Tcp, _>(frame, quote.l4)?;
        let old = u16::from_be_bytes(header.checksum);
        let new = csum::update(old, difference);
        header.checksum = new.to_be_bytes();
        (old, new)
    } else {
        let header = view_mut::<Udp, _>(frame, quote.l4)?;
        let old = u16::from_be_bytes(header.checksum);
        let new = csum::update_udp(old, difference);
        header.checksum = new.to_be_bytes();
        (old, new)
    };
    Ok(message.replace_u16(old, new))
}
