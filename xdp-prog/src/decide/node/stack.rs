//! What an edge sends to this machine's stack: services without pods, and probes.

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

/// Judges whether the stack gets what an outer header carries.
///
/// # Errors
///
/// Returns why not.
#[inline(always)]
pub(crate) fn admit<F: Frame, T: Tables>(
    frame: &F,
    tables: &T,
    ingress: u32,
    decap: &Decap,
) -> Result<(), DropReason> {
    let (_, destination) =
        addresses(frame, decap.inner, decap.inner_l3).ok_or(DropReason::MalformedInner)?;
    // Whoever forges an edge's address gets no further than to what is everyone's.
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

/// Tells whether the stack would send on what an edge has sent by the device that leads to the edge: the edge would be
/// the next to get it, and send it here again.
///
/// The FIB names VLAN devices, bonds and bridges, XDP the device below, and the MAC is often the same for all of them. So
/// the FIB is asked for the edge too: what goes on by another VLAN device of the same device is not sent back.
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

/// Tells whether a packet inside is a whole echo request without options: edges ask nodes so, by the way of
/// clients' packets, whether they take outer headers off.
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
