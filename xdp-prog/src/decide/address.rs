//! The owner of an address, and what follows for a packet to it.

use crate::{
    abi::{ADDRESS_INNER, ADDRESS_NAT, ADDRESS_NODE_PORT, ADDRESS_VIP, AddressKey},
    family::Family,
    frame::Frame,
    ip::Ip,
    reason::{DropReason, PassReason},
    verdict::Verdict,
    wire::{ipv4::Ipv4, ipv6::Ipv6},
    world::Tables,
};

/// Tells whether an address belongs to services alone, so that every packet for it is ours.
///
/// An address that is shared, or also the machine's own, is none: packets there that no service takes pass to the
/// stack.
#[inline(always)]
pub(crate) fn is_vip<A: Ip, T: Tables>(tables: &T, address: A) -> bool {
    tables.address_flags(&address.key()) == ADDRESS_VIP
}

/// Tells whether no client can have an address: only services have it, whichever machine balances them.
///
/// This includes a VIP that the machine's own stack has. Answers to its other ports would reach the service, not a
/// client.
#[inline(always)]
pub(crate) fn is_no_client<T: Tables>(tables: &T, address: &AddressKey) -> bool {
    matches!(tables.address_flags(address), ADDRESS_VIP | ADDRESS_INNER)
}

/// Passes a packet that no service can have, except at a VIP and, if it hides its ports, where NodePorts are.
///
/// At a VIP, the stack would forward it to an edge, perhaps this one, and it would circle until its TTL ends.
#[inline(always)]
pub(crate) fn pass_unless_at_vip<'t, A: Ip, T: Tables>(
    tables: &T,
    destination: A,
    elsewhere: PassReason,
    at_a_vip: DropReason,
) -> Verdict<'t> {
    if is_vip(tables, destination) {
        return Verdict::Drop(at_a_vip);
    }
    let hides_ports = matches!(
        elsewhere,
        PassReason::TruncatedIp | PassReason::ExtensionDepth | PassReason::TruncatedTransport
    );
    if hides_ports && has_node_ports(tables, destination) {
        return Verdict::Drop(DropReason::NodePortHeaders);
    }
    Verdict::Pass(elsewhere)
}

/// Tells whether NodePorts are at an address.
///
/// A packet that may be for a NodePort and hides its ports must not reach the stack: the stack would find the port
/// closed and reset a client's connection with a valid sequence number (RFC 1858 section 3).
#[inline(always)]
pub(crate) fn has_node_ports<A: Ip, T: Tables>(tables: &T, address: A) -> bool {
    tables.address_flags(&address.key()) & ADDRESS_NODE_PORT != 0
}

/// Tells whether packets to an address of this machine may be for services, or come from backends of NAT mode.
#[inline(always)]
pub(crate) fn may_be_ours<A: Ip, T: Tables>(tables: &T, address: A) -> bool {
    tables.address_flags(&address.key()) & (ADDRESS_NODE_PORT | ADDRESS_NAT) != 0
}

/// Reads source and destination address of the IP header at `l3`.
#[inline(always)]
pub(crate) fn addresses<F: Frame>(
    frame: &F,
    family: Family,
    l3: usize,
) -> Option<(AddressKey, AddressKey)> {
    Some(match family {
        Family::V4 => {
            let header: &Ipv4 = frame.view(l3)?;
            (
                AddressKey::v4(header.source()),
                AddressKey::v4(header.destination()),
            )
        }
        Family::V6 => {
            let header: &Ipv6 = frame.view(l3)?;
            (
                AddressKey::v6(header.source),
                AddressKey::v6(header.destination),
            )
        }
    })
}

/// Reads the source address of the IP header at `l3`; its version nibble tells the family.
#[inline(always)]
pub(crate) fn outer_source<F: Frame>(frame: &F, l3: usize) -> Option<AddressKey> {
    let (source, _) = outer_addresses(frame, l3)?;
    Some(source)
}

/// Reads source and destination address likewise.
#[inline(always)]
pub(crate) fn outer_addresses<F: Frame>(frame: &F, l3: usize) -> Option<(AddressKey, AddressKey)> {
    let header: &Ipv4 = frame.view(l3)?;
    let family = if header.version() == 4 {
        Family::V4
    } else {
        Family::V6
    };
    addresses(frame, family, l3)
}
