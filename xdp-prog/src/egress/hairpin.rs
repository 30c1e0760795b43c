//! Replies to hidden clients on this machine, which are turned round at the uplink. [`crate::decide::node::flow_lookup`]
//! says why such clients are hidden from the pod.

use core::mem::offset_of;

use super::{ChecksumField, Covered, Outcome, Skb, headers::Headers};
use crate::{
    abi::{AddressKey, PodFlow, Tuple},
    csum::{self, Sum},
    family::Family,
    reason::DropReason,
    wire::{ethernet::Ethernet, ipv4::Ipv4, ipv6::Ipv6},
};

/// Finishes a reply whose source has been translated. If its client is hidden, the client becomes the destination,
/// and the packet comes in instead of leaving.
///
/// This is the last step, so that the verifier walks through the steps before it only once.
///
/// # Errors
///
/// [`DropReason::NotWritable`] if the packet cannot be changed.
#[inline(always)]
pub(super) fn finish<S: Skb>(
    skb: &mut S,
    packet: &Headers,
    flow: &PodFlow,
    key: &Tuple,
    checksum: Option<ChecksumField>,
) -> Result<Outcome, DropReason> {
    if flow.is_hairpin() {
        turn(skb, packet, flow.client(key), checksum)
    } else {
        Ok(Outcome::Translated)
    }
}

/// Addresses a packet to a client of this machine and turns it round.
///
/// # Errors
///
/// [`DropReason::NotWritable`] if the packet cannot be changed.
#[inline(always)]
pub(super) fn turn<S: Skb>(
    skb: &mut S,
    packet: &Headers,
    client: AddressKey,
    checksum: Option<ChecksumField>,
) -> Result<Outcome, DropReason> {
    let difference = Sum::ZERO.replace_words(packet.destination.words(), client.words());
    set_destination(skb, packet, client, difference)?;
    if let Some(field) = checksum {
        skb.replace_checksum(field, difference, Covered::PseudoHeader)?;
    }
    address_to_sender(skb)?;
    Ok(Outcome::Turned)
}

#[inline(always)]
fn set_destination<S: Skb>(
    skb: &mut S,
    packet: &Headers,
    address: AddressKey,
    difference: Sum,
) -> Result<(), DropReason> {
    match packet.family {
        Family::V4 => {
            let Some(header) = skb.view::<Ipv4>(packet.l3) else {
                return Err(DropReason::NotWritable);
            };
            let check = csum::update(u16::from_be_bytes(header.checksum), difference);
            let [a, b] = check.to_be_bytes();
            let [c, d, e, f] = header.source();
            let [.., g, h, i, j] = address.octets();
            let words = [
                u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
                u64::from_ne_bytes([i, j, 0, 0, 0, 0, 0, 0]),
            ];
            skb.store(packet.l3 + offset_of!(Ipv4, checksum), words, 10)
        }
        Family::V6 => {
            let offset = packet.l3 + offset_of!(Ipv6, destination);
            skb.store(offset, address.words(), 16)
        }
    }
}

/// Sets the destination MAC to that of the device that was about to send the frame.
#[inline(always)]
fn address_to_sender<S: Skb>(skb: &mut S) -> Result<(), DropReason> {
    let Some(header) = skb.view::<Ethernet>(0) else {
        return Err(DropReason::NotWritable);
    };
    let [a, b, c, d, e, f] = header.source();
    skb.store(0, [u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]), 0], 6)
}
