//! ICMP errors about a flow of a pod of this machine.
//!
//! A router sends such an error to the VIP and quotes a packet of the VIP. The pod recognises its own packet only if
//! destination and quote name the pod instead: the reverse of the translation that egress makes of the pod's replies.
//! Where the pod knows the client by another port, the quote gets that port.
//!
//! A hidden client ([`crate::decide::node::deliver`]) appears to the pod as the address that it talks to. That
//! address becomes the quote's destination, and the source of the error too: the error comes from this machine or the
//! pod, and the stack takes no packet from an address of its own.

use super::{decap, view_mut};
use crate::{
    csum::{self, Sum},
    family::Family,
    frame::FrameMut,
    reason::DropReason,
    verdict::{DeliverError, SeenAs},
    wire::{
        icmp::Icmp,
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
        transport::{Ports, Tcp, Udp},
    },
};

/// Translates an ICMP error for its pod and takes off the outer header, if there is one.
///
/// # Errors
///
/// Returns the reason why the error cannot be delivered; the frame must then be dropped.
#[inline(always)]
pub fn deliver_error<F: FrameMut>(
    frame: &mut F,
    deliver: &DeliverError<'_>,
) -> Result<(), DropReason> {
    // The differences that the quoted transport checksum and the ICMP checksum see.
    let (transport, message) = match deliver.place.inner {
        Family::V4 => translate_v4(frame, deliver)?,
        Family::V6 => translate_v6(frame, deliver)?,
    };
    let message = translate_transport(frame, deliver, transport, message)?;
    let header = view_mut::<Icmp, _>(frame, deliver.l4)?;
    let check = u16::from_be_bytes(header.checksum);
    header.checksum = csum::update(check, message).to_be_bytes();
    if deliver.place.is_encapsulated() {
        decap(frame, &deliver.place)
    } else {
        Ok(())
    }
}

#[inline(always)]
fn translate_v4<F: FrameMut>(
    frame: &mut F,
    deliver: &DeliverError<'_>,
) -> Result<(Sum, Sum), DropReason> {
    let pod = deliver.backend.pod.last_octets();

    let header = view_mut::<Ipv4, _>(frame, deliver.place.inner_l3)?;
    let (source, gone) = stay(deliver.shown.seen_as, header.source, header.destination);
    header.source = source;
    header.destination = pod;
    let check = u16::from_be_bytes(header.checksum);
    let difference = Sum::ZERO.replace_array(&gone, &pod);
    header.checksum = csum::update(check, difference).to_be_bytes();

    let quoted = view_mut::<Ipv4, _>(frame, deliver.quoted_l3)?;
    let (destination, gone) = stay(deliver.shown.seen_as, quoted.destination, quoted.source);
    let difference = Sum::ZERO.replace_array(&gone, &pod);
    quoted.source = pod;
    quoted.destination = destination;
    let check = u16::from_be_bytes(quoted.checksum);
    let new_check = csum::update(check, difference);
    quoted.checksum = new_check.to_be_bytes();
    Ok((difference, difference.replace_u16(check, new_check)))
}

#[inline(always)]
fn translate_v6<F: FrameMut>(
    frame: &mut F,
    deliver: &DeliverError<'_>,
) -> Result<(Sum, Sum), DropReason> {
    let new = deliver.backend.pod.octets();
    let header = view_mut::<Ipv6, _>(frame, deliver.place.inner_l3)?;
    let pseudo_header = match deliver.shown.seen_as {
        SeenAs::Client => Sum::ZERO.replace_array(&header.destination, &new),
        SeenAs::Destination => {
            let difference = Sum::ZERO.replace_array(&header.source, &new);
            header.source = header.destination;
            difference
        }
    };
    header.destination = new;

    let quoted = view_mut::<Ipv6, _>(frame, deliver.quoted_l3)?;
    let difference = match deliver.shown.seen_as {
        SeenAs::Client => Sum::ZERO.replace_array(&quoted.source, &new),
        SeenAs::Destination => {
            let difference = Sum::ZERO.replace_array(&quoted.destination, &new);
            quoted.destination = quoted.source;
            difference
        }
    };
    quoted.source = new;
    Ok((difference, difference.add_sum(pseudo_header)))
}

/// Returns the address at the client's end after the translation, and the address that the pod's replaces.
///
/// Only the replaced address changes the checksum: one that moves to the other end stays in the sum.
#[inline(always)]
fn stay(seen_as: SeenAs, client: [u8; 4], talks_to: [u8; 4]) -> ([u8; 4], [u8; 4]) {
    match seen_as {
        SeenAs::Client => (client, talks_to),
        SeenAs::Destination => (talks_to, client),
    }
}

/// Translates the quoted ports and checksum and returns the difference that the ICMP checksum sees.
#[inline(always)]
fn translate_transport<F: FrameMut>(
    frame: &mut F,
    deliver: &DeliverError<'_>,
    difference: Sum,
    message: Sum,
) -> Result<Sum, DropReason> {
    if deliver.protocol == protocol::SCTP {
        return Ok(message);
    }
    let ports = view_mut::<Ports, _>(frame, deliver.quoted_l4)?;
    let new = Ports {
        source: deliver.backend.port,
        destination: deliver.shown.port.to_be_bytes(),
    };
    let moved = ports.replaced_by(new);
    *ports = new;
    let difference = difference.add_sum(moved);
    let message = message.add_sum(moved);
    if !deliver.has_checksum {
        return Ok(message);
    }
    let (old, new) = if deliver.protocol == protocol::TCP {
        let header = view_mut::<Tcp, _>(frame, deliver.quoted_l4)?;
        let old = u16::from_be_bytes(header.checksum);
        let new = csum::update(old, difference);
        header.checksum = new.to_be_bytes();
        (old, new)
    } else {
        let header = view_mut::<Udp, _>(frame, deliver.quoted_l4)?;
        let old = u16::from_be_bytes(header.checksum);
        let new = csum::update_udp(old, difference);
        header.checksum = new.to_be_bytes();
        (old, new)
    };
    Ok(message.replace_u16(old, new))
}
