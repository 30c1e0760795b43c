//! Outer headers that come off.
//!
//! The frame keeps the tags, because the stack chooses the VLAN device by them:
//!
//! ```text
//! | Ethernet | tags | outer IP   | inner IP ...
//!           | Ethernet | tags    | inner IP ...
//! ```

use super::{patch_checksum, view_mut};
use crate::{
    family::Family,
    frame::FrameMut,
    reason::DropReason,
    verdict::Decap,
    wire::{
        ethernet::{Ethernet, VlanTag},
        ipv4::Ipv4,
        ipv6::Ipv6,
    },
};

/// Takes the outer header off and keeps the Ethernet header and the tags.
///
/// # Errors
///
/// Returns the reason why the inner packet cannot be delivered; the frame must then be dropped.
#[inline(always)]
pub fn decap<F: FrameMut>(frame: &mut F, decap: &Decap) -> Result<(), DropReason> {
    check_inner(frame, decap)?;
    merge_classes(frame, decap)?;
    take_off(frame, decap)
}

/// Moves what is in front of the outer header over it.
#[inline(always)]
pub(super) fn take_off<F: FrameMut>(frame: &mut F, decap: &Decap) -> Result<(), DropReason> {
    let delta = (decap.inner_l3 - decap.l3) as i32;
    shift_link(frame, decap.l3, delta, decap.inner.ether_type())
}

/// Moves the frame's start by `delta` bytes and moves the Ethernet header and tags, `l3` bytes, with it.
#[inline(always)]
pub(super) fn shift_link<F: FrameMut>(
    frame: &mut F,
    l3: usize,
    delta: i32,
    ether_type: [u8; 2],
) -> Result<(), DropReason> {
    let tags = l3 - Ethernet::LENGTH;
    // From checks behind `l3`, the compiler concludes that these bytes exist, but the verifier does not. For an
    // opaque place, neither concludes it.
    let place = Ethernet::LENGTH - 2;
    let macs = view_mut::<Ethernet, _>(frame, 0)?.macs;
    // A word and no bytes, each of which would have a place of its own on the stack.
    let first = match tags {
        0 => 0,
        VlanTag::LENGTH => {
            let place = frame.opaque::<16>(place);
            u64::from(u32::from_ne_bytes(*view_mut(frame, place)?))
        }
        _ => {
            let place = frame.opaque::<16>(place);
            u64::from_ne_bytes(*view_mut(frame, place)?)
        }
    };
    if !frame.move_start(delta) {
        return Err(DropReason::NoHeadroom);
    }
    view_mut::<Ethernet, _>(frame, 0)?.macs = macs;
    match tags {
        0 => view_mut::<Ethernet, _>(frame, 0)?.ether_type = ether_type,
        VlanTag::LENGTH => {
            *view_mut(frame, Ethernet::LENGTH - 2)? = (first as u32).to_ne_bytes();
            *view_mut::<[u8; 2], _>(frame, Ethernet::LENGTH + 2)? = ether_type;
        }
        _ => {
            *view_mut(frame, Ethernet::LENGTH - 2)? = first.to_ne_bytes();
            *view_mut::<[u8; 2], _>(frame, Ethernet::LENGTH + 6)? = ether_type;
        }
    }
    Ok(())
}

/// Checks an inner header that nobody has parsed.
#[inline(always)]
fn check_inner<F: FrameMut>(frame: &F, decap: &Decap) -> Result<(), DropReason> {
    let malformed = DropReason::MalformedInner;
    let is_whole = match decap.inner {
        Family::V4 => {
            let header: &Ipv4 = frame.view(decap.inner_l3).ok_or(malformed)?;
            header.version() == 4
                && header.header_length() >= Ipv4::LENGTH
                && header.total_length() >= header.header_length()
                && header.total_length() <= decap.inner_room
        }
        Family::V6 => {
            let header: &Ipv6 = frame.view(decap.inner_l3).ok_or(malformed)?;
            header.version() == 6 && header.total_length() <= decap.inner_room
        }
    };
    if is_whole { Ok(()) } else { Err(malformed) }
}

/// Merges the outer ECN field into the inner header (RFC 6040 section 4.2).
#[inline(always)]
pub(super) fn merge_classes<F: FrameMut>(frame: &mut F, decap: &Decap) -> Result<(), DropReason> {
    match decap.inner {
        Family::V4 => {
            let header = view_mut::<Ipv4, _>(frame, decap.inner_l3)?;
            let tos = merge_ecn(decap.outer_class, header.tos)?;
            if tos != header.tos {
                let old = u16::from_be_bytes([header.version_ihl, header.tos]);
                header.tos = tos;
                let new = u16::from_be_bytes([header.version_ihl, tos]);
                patch_checksum(header, old, new);
            }
        }
        Family::V6 => {
            let header = view_mut::<Ipv6, _>(frame, decap.inner_l3)?;
            let class = merge_ecn(decap.outer_class, header.traffic_class())?;
            header.class_label[0] = 0x60 | class >> 4;
            header.class_label[1] = header.class_label[1] & 0x0f | class << 4;
        }
    }
    Ok(())
}

/// Returns the inner traffic class after decapsulation (RFC 6040 figure 4).
#[inline(always)]
fn merge_ecn(outer: u8, inner: u8) -> Result<u8, DropReason> {
    const NOT_ECT: u8 = 0;
    const ECT_1: u8 = 1;
    const ECT_0: u8 = 2;
    const CE: u8 = 3;
    let merged = match (inner & 3, outer & 3) {
        (NOT_ECT, CE) => return Err(DropReason::EcnDropped),
        (NOT_ECT, _) => NOT_ECT,
        (_, CE) => CE,
        (ECT_0, ECT_1) => ECT_1,
        (kept, _) => kept,
    };
    Ok(inner & !3 | merged)
}
