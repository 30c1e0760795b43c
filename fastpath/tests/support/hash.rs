//! The flow hash once more, written from its definition and not from its code.
//!
//! Little-endian words are absorbed in this order: source and destination
//! address (one word for IPv4, four for IPv6), then ports, protocol and zeros
//! as on the wire. Absorbing is `s = (s ^ word) * A; s ^= s >> 32`, the finish
//! `((s ^ s >> 29) * F) >> 32`, A and F being the multipliers of SplitMix64's
//! finalizer in Stafford's variant 13. The slot is the top bits.

use std::net::IpAddr;

/// Returns the slot of a flow in a table of 2^`log2_length` slots.
pub(crate) fn slot(
    seed: u64,
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    protocol: u8,
    log2_length: u32,
) -> usize {
    let hash = u64::from(flow(seed, from, to, protocol));
    usize::try_from(hash >> (32 - log2_length)).unwrap()
}

/// Returns the hash of a flow.
pub(crate) fn flow(seed: u64, from: (IpAddr, u16), to: (IpAddr, u16), protocol: u8) -> u32 {
    let mut input = octets(from.0);
    input.extend(octets(to.0));
    input.extend(from.1.to_be_bytes());
    input.extend(to.1.to_be_bytes());
    input.extend([protocol, 0, 0, 0]);

    let mut state = seed;
    for word in input.chunks(8) {
        let word = word
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        state = (state ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state ^= state >> 32;
    }
    u32::try_from((state ^ state >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32).unwrap()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
