//! Whose an address is, and what that means for a packet.

use crate::{
    abi::{ADDRESS_INNER, ADDRESS_NODE_PORT, ADDRESS_VIP, AddressKey},
    family::Family,
    frame::Frame,
    ip::Ip,
    reason::{DropReason, PassReason},
    verdict::Verdict,
    wire::{ipv4::Ipv4, ipv6::Ipv6},
    world::Tables,
};

/// Tells whether an address is nobody's but a service's: whatever comes for it is ours.
///
/// One that is the machine's own or shared as well is not: what no service has there passes.
#[inline(always)]
pub(crate) fn is_vip<A: Ip, T: Tables>(tables: &T, address: A) -> bool {
    tables.address_flags(&address.key()) == ADDRESS_VIP
}

/// Tells whether nobody can be a client at an address: it is nobody's but a service's, whoever balances that.
///
/// A machine that has a VIP for its own stack is none there either: answers to other ports would come to the service.
#[inline(always)]
pub(crate) fn is_no_client<T: Tables>(tables: &T, address: &AddressKey) -> bool {
    matches!(tables.address_flags(address), ADDRESS_VIP | ADDRESS_INNER)
}

/// Leaves what no service can have to the stack, but at a VIP: there it would be forwarded to an edge, this one for
/// one, and circle until its TTL ends; and where NodePorts are if it hides its ports.
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

/// Tells whether NodePorts are at an address: what may be for one, and hides it, is not for the stack, which would find
/// the port closed and refuse a client's connection by a number that is right (RFC 1858 section 3).
#[inline(always)]
pub(crate) fn has_node_ports<A: Ip, T: Tables>(tables: &T, address: A) -> bool {
    tables.address_flags(&address.key()) & ADDRESS_NODE_PORT != 0
}

/// Reads source and destination address off the packet.
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

/// Reads the source address off the header at `l3`, of either family.
#[inline(always)]
pub(crate) fn outer_source<F: Frame>(frame: &F, l3: usize) -> Option<AddressKey> {
    let header: &Ipv4 = frame.view(l3)?;
    let family = if header.version() == 4 {
        Family::V4
    } else {
        Family::V6
    };
    let (source, _) = addresses(frame, family, l3)?;
    Some(source)
}
