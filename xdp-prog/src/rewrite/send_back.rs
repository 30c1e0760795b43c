//! Packets that a node returns to the edge.

use super::{TTL, patch_checksum, reply::turn_back, view_mut};
use crate::{
    abi::Tag,
    frame::FrameMut,
    parse,
    reason::DropReason,
    wire::{ethernet, ipv4::Ipv4, ipv6::Ipv6},
};

/// Turns the outer header of a packet round and marks the packet as returned. What is inside stays as it is.
///
/// # Errors
///
/// [`DropReason::NoHeadroom`] if there is no outer header.
#[inline(always)]
pub fn send_back<F: FrameMut>(frame: &mut F) -> Result<(), DropReason> {
    let Ok(link) = parse::link(frame) else {
        return Err(DropReason::NoHeadroom);
    };
    match link.ether_type {
        ethernet::IPV4 => {
            let header = view_mut::<Ipv4, _>(frame, link.l3)?;
            // Words that swap places leave the sum as it is.
            (header.source, header.destination) = (header.destination, header.source);
            let tag = u16::from_be_bytes(header.identification);
            let returned = Tag(tag).returned().0;
            header.identification = returned.to_be_bytes();
            patch_checksum(header, tag, returned);
            let old = u16::from_be_bytes([header.ttl, header.protocol]);
            header.ttl = TTL;
            let new = u16::from_be_bytes([header.ttl, header.protocol]);
            patch_checksum(header, old, new);
        }
        _ => {
            let header = view_mut::<Ipv6, _>(frame, link.l3)?;
            (header.source, header.destination) = (header.destination, header.source);
            let [.., high, low] = header.class_label;
            let tag = Tag(u16::from_be_bytes([high, low])).returned();
            let [a, b, ..] = header.class_label;
            let [high, low] = tag.0.to_be_bytes();
            header.class_label = [a, b, high, low];
            header.hop_limit = TTL;
        }
    }
    turn_back(frame)
}
