//! Changes a packet's addresses, in either family, and its checksums.

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

/// Sets a packet's source address; `difference` records the change.
///
/// The caller must update the transport checksum.
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
            // The IPv4 header checksum is always finished.
            header.checksum = csum::update(packet.checksum, difference).to_be_bytes();
        }
        Family::V6 => {
            let header: &mut Ipv6 = view_mut(skb, packet.l3)?;
            header.source = address.octets();
        }
    }
    Ok(())
}

/// Updates a transport checksum after changes of the pseudo-header and of the segment.
///
/// A finished checksum is changed in place. For others the kernel's helper is called once, which costs as much as the
/// rest of the translation. Only the kernel knows whether the device is to finish the checksum. If so, the helper
/// ignores a change of the segment. The field afterwards shows which case it is, and how the change of the
/// pseudo-header counts.
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

/// Tells whether a checksum is finished, for most that are. Returns false if that is not certain.
///
/// A sender that leaves the checksum of a segment to the device writes the sum of the pseudo-header into the field.
/// This holds for sockets of this machine, for code that merges or translates segments, and for guests (virtio 1.2
/// section 5.1.6.2); their segments would be sent with a wrong checksum otherwise. So any other value is a finished
/// checksum. These packets are not judged:
///
/// - Merged segments: some devices compute the pseudo-header's sum anew when they cut them apart, because it has no
///   length there. So the field of a guest may hold anything.
/// - Packets with extension headers or options: their pseudo-header may have another address (RFC 8200 section 8.1).
/// - Fragments: their pseudo-header has another length.
/// - A field of zero: some sockets leave it in checksums that they do not use.
///
/// The kernel forgets what a device has reported about the whole of an incoming packet (`CHECKSUM_COMPLETE`) when it
/// forwards the packet (`skb_forward_csum`). So the change has no other effect.
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
        // Bytes behind the datagram do not belong to it.
        protocol::UDP => match skb.view::<Udp>(packet.l4) {
            Some(datagram) => usize::from(u16::from_be_bytes(datagram.length)),
            None => return false,
        },
        _ => packet.end - packet.l4,
    };
    check != 0 && check != pseudo_header(packet, length).fold()
}

/// Sums a pseudo-header. The mapped form of an IPv4 address begins with a word of ones, which changes no sum.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a packet's length")]
fn pseudo_header(packet: &Headers, length: usize) -> Sum {
    Sum::ZERO
        .add_words(packet.source.words())
        .add_words(packet.destination.words())
        .add_u32(length as u32)
        .add_u16(packet.protocol.into())
}

/// Returns a header for writing that has been seen for reading before.
#[inline(always)]
pub(super) fn view_mut<T: Wire, S: Skb>(skb: &mut S, offset: usize) -> Result<&mut T, DropReason> {
    match skb.view_mut(offset) {
        Some(header) => Ok(header),
        None => Err(DropReason::NotWritable),
    }
}

/// Puts two bytes into the form that [`Skb::store`] takes.
#[inline(always)]
pub(super) const fn store_words([a, b]: [u8; 2]) -> [u64; 2] {
    [u64::from_ne_bytes([a, b, 0, 0, 0, 0, 0, 0]), 0]
}
