//! Changes of a packet's addresses, whichever its family.

use core::mem::offset_of;

use super::{Skb, headers::Headers};
use crate::{
    abi::AddressKey,
    csum::{self, Sum},
    decide::Family,
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
            // Checksum and source lie side by side. No device finishes this checksum.
            let [a, b] = csum::update(packet.checksum, difference).to_be_bytes();
            let [.., c, d, e, f] = address.octets();
            let bytes = u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
            skb.store(packet.l3 + offset_of!(Ipv4, checksum), [bytes, 0], 6)
        }
        Family::V6 => skb.store(packet.l3 + offset_of!(Ipv6, source), address.words(), 16),
    }
}

/// Puts two bytes into the first of the words that are stored.
#[inline(always)]
pub(super) const fn two([a, b]: [u8; 2]) -> [u64; 2] {
    [u64::from_ne_bytes([a, b, 0, 0, 0, 0, 0, 0]), 0]
}
