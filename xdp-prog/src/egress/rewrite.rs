//! Changes of a packet's addresses, whichever its family, and of its checksum.

use super::{
    ChecksumField, Covered, Skb,
    headers::{Headers, Part},
};
use crate::{
    abi::AddressKey,
    csum::{self, Sum},
    family::Family,
    frame::Wire,
    reason::DropReason,
    wire::{ipv4::Ipv4, ipv6::Ipv6, protocol, transport::Udp},
};

/// Gives a packet another source address, which `difference` records.
///
/// What a transport checksum says of the address is the caller's matter.
#[inline(always)]
pub(super) fn set_source<S: Skb>(
    skb: &mut S,
    packet: &Headers,
    address: AddressKey,
    difference: Sum,
) -> Result<(), DropReason> {
    match packet.family {
        Family::V4 => {
            let header: &mut Ipv4 = view_mut(skb, packet.l3)?;
            header.source = address.last_octets();
            // No device finishes this checksum.
            header.checksum = csum::update(packet.checksum, difference).to_be_bytes();
        }
        Family::V6 => {
            let header: &mut Ipv6 = view_mut(skb, packet.l3)?;
            header.source = address.octets();
        }
    }
    Ok(())
}

/// Makes a transport checksum right again after changes of the pseudo-header and of the segment.
///
/// In place where it is finished; else by one call of the kernel's helper, which costs as much as all the rest of the
/// translation. Only the kernel knows whether the device is to finish the checksum; if so, a change of the segment
/// leaves it alone. What became of it tells how the change of the pseudo-header counts.
#[inline(always)]
pub(super) fn correct<S: Skb>(
    skb: &mut S,
    packet: &Headers,
    field: ChecksumField,
    pseudo_header: Sum,
    segment: Sum,
) -> Result<(), DropReason> {
    let before = u16::from_be_bytes(*view_mut(skb, field.offset)?);
    if field.zero_is_none && before == 0 {
        return Ok(());
    }
    if is_finished(skb, packet, before) {
        let check = csum::update(before, pseudo_header.add_sum(segment));
        return set_checksum(skb, field, check);
    }
    if segment.is_neutral() {
        return skb.replace_checksum(field, pseudo_header, Covered::PseudoHeader);
    }
    skb.replace_checksum(field, segment, Covered::Segment)?;
    let after = u16::from_be_bytes(*view_mut(skb, field.offset)?);
    let check = if after == before {
        pseudo_header.add_u16(before).fold()
    } else {
        csum::update(after, pseudo_header)
    };
    set_checksum(skb, field, check)
}

#[inline(always)]
fn set_checksum<S: Skb>(skb: &mut S, field: ChecksumField, check: u16) -> Result<(), DropReason> {
    let check = if field.zero_is_none {
        csum::udp_checksum(check)
    } else {
        check
    };
    *view_mut(skb, field.offset)? = check.to_be_bytes();
    Ok(())
}

/// Tells of most checksums that are finished that they are; what cannot be told is not.
///
/// Who leaves the checksum of a segment to the device puts the sum of the pseudo-header into the field: sockets of this
/// machine, whatever merges segments or translates them, and guests (virtio 1.2 section 5.1.6.2), whose segments would
/// be sent with a wrong checksum otherwise. So a field with anything else is finished, but for these, of which nothing
/// is said here:
///
/// - Segments that are merged: some devices make the pseudo-header's sum anew as they cut them apart (it has no length
///   there), so a guest's field may hold anything.
/// - Extension headers and options, which may have another address stand in the pseudo-header (RFC 8200 section 8.1).
/// - Fragments, whose pseudo-header has another length.
/// - Zero, which some sockets leave in a checksum that they do not care for.
///
/// What a device has told of a whole packet that came in (`CHECKSUM_COMPLETE`) is forgotten where one is forwarded
/// (`skb_forward_csum`), so nothing else follows from the change.
#[inline(always)]
fn is_finished<S: Skb>(skb: &S, packet: &Headers, check: u16) -> bool {
    let header = match packet.family {
        Family::V4 => Ipv4::LENGTH,
        Family::V6 => Ipv6::LENGTH,
    };
    if packet.l4 - packet.l3 != header || packet.part != Part::Whole || skb.is_merged() {
        return false;
    }
    let length = match packet.protocol {
        // What follows the datagram in its packet is no part of it.
        protocol::UDP => match skb.view::<Udp>(packet.l4) {
            Some(datagram) => usize::from(u16::from_be_bytes(datagram.length)),
            None => return false,
        },
        _ => packet.end - packet.l4,
    };
    check != 0 && check != pseudo_header(packet, length).fold()
}

/// Sums a pseudo-header; an IPv4 address in IPv6's notation begins with a word of ones, which changes no sum.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a packet's length")]
fn pseudo_header(packet: &Headers, length: usize) -> Sum {
    Sum::ZERO
        .add_words(packet.source.words())
        .add_words(packet.destination.words())
        .add_u32(length as u32)
        .add_u16(packet.protocol.into())
}

/// Returns a header that has been seen, for writing.
#[inline(always)]
pub(super) fn view_mut<T: Wire, S: Skb>(skb: &mut S, offset: usize) -> Result<&mut T, DropReason> {
    match skb.view_mut(offset) {
        Some(header) => Ok(header),
        None => Err(DropReason::NotWritable),
    }
}

/// Puts two bytes into the first of the words that are stored.
#[inline(always)]
pub(super) const fn two([a, b]: [u8; 2]) -> [u64; 2] {
    [u64::from_ne_bytes([a, b, 0, 0, 0, 0, 0, 0]), 0]
}
