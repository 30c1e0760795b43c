//! Lowers the MSS that a pod asks for by the outer header that the client's packets get.
//!
//! The client obeys the option in the pod's SYN+ACK. Packets of the other direction go straight to the client, and
//! the option of the client's SYN limits them.

use super::{Memory, Skb, headers::Headers};
use crate::{
    abi::PodFlow,
    csum::Sum,
    family::Family,
    wire::{ipv4::Ipv4, ipv6::Ipv6, transport::Tcp},
    world::OFFSETS,
};

/// Most TCP options that are read. The kernels in use put the MSS first.
const MAX_OPTIONS: usize = 8;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAXIMUM_SEGMENT_SIZE: u8 = 2;
const LENGTH: u8 = 4;

/// The segment size that every host accepts (RFC 9293 section 3.7.1).
const LEAST: usize = 536;

/// A lower value for the MSS option.
///
/// This is no `Option`: LLVM would spill the fields of an empty one, and the verifier takes that for a read of memory
/// that was never written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clamp {
    /// Offset of the value in the frame; 0 for no change.
    pub(super) offset: usize,
    /// The new value, in wire order.
    pub(super) value: [u8; 2],
    /// The difference that the checksum sees.
    pub(super) difference: Sum,
}

impl Clamp {
    /// No change.
    pub(super) const NONE: Self = Self {
        offset: 0,
        value: [0; 2],
        difference: Sum::ZERO,
    };
}

/// Returns a lower value if the MSS option of a SYN+ACK promises more than fits.
#[inline(always)]
pub(super) fn clamp<S: Skb, T: Memory>(
    skb: &mut S,
    tables: &T,
    packet: &Headers,
    flow: &PodFlow,
) -> Clamp {
    let mtu = match tables.config() {
        Some(config) => config.mtu,
        None => 0,
    };
    if flow.outer() == 0 || mtu == 0 {
        return Clamp::NONE;
    }
    let headers = usize::from(flow.outer())
        + Tcp::LENGTH
        + match packet.family {
            Family::V4 => Ipv4::LENGTH,
            Family::V6 => Ipv6::LENGTH,
        };
    let largest = (mtu as usize).saturating_sub(headers).max(LEAST);
    let Some((offset, old)) = find(skb, packet) else {
        return Clamp::NONE;
    };
    let old_value = u16::from_be_bytes(old);
    if usize::from(old_value) <= largest {
        return Clamp::NONE;
    }
    #[expect(clippy::cast_possible_truncation, reason = "less than the old value")]
    let new_value = largest as u16;
    let difference = if (offset - packet.l4).is_multiple_of(2) {
        Sum::ZERO.replace_u16(old_value, new_value)
    } else {
        // The value is not aligned to the words of the checksum.
        Sum::ZERO.replace_u16(old_value.swap_bytes(), new_value.swap_bytes())
    };
    Clamp {
        offset,
        value: new_value.to_be_bytes(),
        difference,
    }
}

/// Returns the offset of the option's value, and the value.
#[inline(always)]
fn find<S: Skb>(skb: &mut S, packet: &Headers) -> Option<(usize, [u8; 2])> {
    let header: &Tcp = skb.view(packet.l4)?;
    let end = packet.l4 + usize::from(header.data_offset >> 4) * 4;
    if end > packet.end {
        return None;
    }
    skb.pull(end);
    let mut offset = packet.l4 + Tcp::LENGTH;
    for _ in 0..MAX_OPTIONS {
        offset = skb.opaque::<{ OFFSETS + 1 }>(offset);
        if offset + usize::from(LENGTH) > end {
            return None;
        }
        let &[kind, length, a, b] = skb.view::<[u8; 4]>(offset)?;
        offset += match kind {
            END => return None,
            NO_OPERATION => 1,
            MAXIMUM_SEGMENT_SIZE if length == LENGTH => return Some((offset + 2, [a, b])),
            _ if length < 2 => return None,
            _ => usize::from(length),
        };
    }
    None
}
