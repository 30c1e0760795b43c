//! Packets of edges for this machine's stack: those of services without pods here, and probes.

use crate::{
    abi::{ADDRESS_INNER, ADDRESS_LOCAL, ADDRESS_VIP, AddressKey},
    decide::address::{addresses, outer_source},
    family::Family,
    frame::Frame,
    reason::DropReason,
    verdict::Decap,
    wire::{
        icmp::{self, Icmp},
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
    },
    world::Tables,
};

/// Judges whether the stack may get the packet inside an outer header.
///
/// # Errors
///
/// Returns the reason why it must not.
#[inline(always)]
pub(crate) fn admit<F: Frame, T: Tables>(
    frame: &F,
    tables: &T,
    ingress: u32,
    decap: &Decap,
) -> Result<(), DropReason> {
    let (_, destination) =
        addresses(frame, decap.inner, decap.inner_l3).ok_or(DropReason::MalformedInner)?;
    // A forged edge address opens no more than the addresses that everybody can reach.
    let flags = tables.address_flags(&destination);
    let is_probe = flags & ADDRESS_LOCAL != 0 && is_echo_request(frame, decap);
    if flags & (ADDRESS_VIP | ADDRESS_INNER) == 0 && !is_probe {
        return Err(DropReason::InnerNotOurs);
    }
    let edge = outer_source(frame, decap.l3).ok_or(DropReason::MalformedInner)?;
    if is_sent_back(tables, &destination, &edge, ingress) {
        return Err(DropReason::SentBack);
    }
    Ok(())
}

/// Tells whether the stack would send the packet of an edge on by the device that leads to the edge. The edge would
/// then get the packet next, and send it here again.
///
/// The FIB names VLAN devices, bonds and bridges; XDP names the device below, and often all have the same MAC. So the
/// FIB is asked for the edge too. A packet that goes on by another VLAN device of the same device is not sent back.
#[inline(always)]
fn is_sent_back<T: Tables>(
    tables: &T,
    destination: &AddressKey,
    edge: &AddressKey,
    ingress: u32,
) -> bool {
    match tables.fib_device(destination) {
        Some(device) => device == ingress || tables.fib_device(edge) == Some(device),
        None => false,
    }
}

/// Tells whether the inner packet is a whole echo request without options. Edges send these, by the way of clients'
/// packets, to find out whether a node takes outer headers off.
#[inline(always)]
fn is_echo_request<F: Frame>(frame: &F, decap: &Decap) -> bool {
    const PLAIN: u8 = 0x45;
    let l3 = decap.inner_l3;
    let (l4, request) = match decap.inner {
        Family::V4 => match frame.view::<Ipv4>(l3) {
            Some(header)
                if header.version_ihl == PLAIN
                    && header.protocol == protocol::ICMP
                    && matches!(header.fragment, [0 | 0x40, 0]) =>
            {
                (l3 + Ipv4::LENGTH, icmp::v4::ECHO_REQUEST)
            }
            _ => return false,
        },
        Family::V6 => match frame.view::<Ipv6>(l3) {
            Some(header) if header.next_header == protocol::ICMPV6 => {
                (l3 + Ipv6::LENGTH, icmp::v6::ECHO_REQUEST)
            }
            _ => return false,
        },
    };
    match frame.view::<Icmp>(l4) {
        Some(header) => header.kind == request,
        None => false,
    }
}
