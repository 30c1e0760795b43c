//! Changes of a packet's addresses, whichever its family, and of its checksum.

use super::{ChecksumField, Covered, Skb, headers::Headers};
use crate::{
    abi::AddressKey,
    csum::{self, Sum},
    family::Family,
    frame::Wire,
    reason::DropReason,
    wire::{ipv4::Ipv4, ipv6::Ipv6},
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
            let [.., a, b, c, d] = address.octets();
            let [e, f, g, h] = header.destination();
            header.addresses = [a, b, c, d, e, f, g, h];
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
/// By one call of the kernel's helper, which costs as much as all the rest of the translation. Only the kernel knows
/// whether the device is to finish the checksum; if so, a change of the segment leaves it alone. What became
/// of it tells how the change of the pseudo-header counts.
#[inline(always)]
pub(super) fn correct<S: Skb>(
    skb: &mut S,
    field: ChecksumField,
    pseudo_header: Sum,
    segment: Sum,
) -> Result<(), DropReason> {
    if segment.is_neutral() {
        return skb.replace_checksum(field, pseudo_header, Covered::PseudoHeader);
    }
    let before = u16::from_be_bytes(*view_mut(skb, field.offset)?);
    if field.zero_is_none && before == 0 {
        return Ok(());
    }
    skb.replace_checksum(field, segment, Covered::Segment)?;
    let place: &mut [u8; 2] = view_mut(skb, field.offset)?;
    let after = u16::from_be_bytes(*place);
    let check = if after == before {
        pseudo_header.add_u16(before).fold()
    } else {
        csum::update(after, pseudo_header)
    };
    let check = if field.zero_is_none {
        csum::udp_checksum(check)
    } else {
        check
    };
    *place = check.to_be_bytes();
    Ok(())
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
