//! An ICMP error about a flow of a pod of this machine: its destination and its quote are translated as
//! the pod's replies are, the other way round.
//!
//! Where the pod knows the client by another port, the quote gets that. A client that the pod does not see ([`crate::decide::node::deliver`]) has the address that it talks to in its
//! place, as the quote's destination. So has the error itself, whoever sent it: it is
//! this machine or the pod, and the stack takes no packet from an address of its own.

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

/// Makes the error one about the pod's own packet and takes the outer header off, if there is one.
///
/// # Errors
///
/// Returns why it cannot be delivered; the frame must be dropped.
#[inline(always)]
pub fn deliver_error<F: FrameMut>(
    frame: &mut F,
    deliver: &DeliverError<'_>,
) -> Result<(), DropReason> {
    // What the quote's addresses change in the transport checksum, and what of both the ICMP checksum covers.
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

/// Returns the address that is at the client's end afterwards, and the one that the pod's address replaces.
///
/// The checksum changes by the replaced one alone: an address that moves to the other end stays in the sum.
#[inline(always)]
fn stay(seen_as: SeenAs, client: [u8; 4], talks_to: [u8; 4]) -> ([u8; 4], [u8; 4]) {
    match seen_as {
        SeenAs::Client => (client, talks_to),
        SeenAs::Destination => (talks_to, client),
    }
}

/// Translates the quoted ports and checksum and returns the difference to the ICMP message.
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
