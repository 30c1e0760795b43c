//! The flow key and its hash.
//!
//! The hash decides the slot, so it must be the same on every edge: every host reads the wire bytes as little-endian
//! words.

use crate::words::{join_u16, join_u32};

/// An IPv4 address in wire order.
///
/// It is aligned, as [`V6`] is: the verifier demands natural alignment of every access to the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(4))]
pub struct V4(pub [u8; 4]);

/// An IPv6 address in wire order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(8))]
pub struct V6(pub [u8; 16]);

/// An address of either family that the flow hash can take.
pub trait Address: Copy + PartialEq {
    /// The unspecified address.
    const UNSPECIFIED: Self;
    /// Mixes source and destination address into the seed and returns the result.
    fn mix(source: Self, destination: Self, seed: u64) -> u64;
}

impl Address for V4 {
    const UNSPECIFIED: Self = Self([0; 4]);

    #[inline(always)]
    fn mix(source: Self, destination: Self, seed: u64) -> u64 {
        let ends = [source.0, destination.0].map(u32::from_ne_bytes);
        absorb(seed, join_u32(ends[0], ends[1]).to_le())
    }
}

impl Address for V6 {
    const UNSPECIFIED: Self = Self([0; 16]);

    #[inline(always)]
    fn mix(source: Self, destination: Self, seed: u64) -> u64 {
        let [a, b] = words(&source.0);
        let [c, d] = words(&destination.0);
        absorb(absorb(absorb(absorb(seed, a), b), c), d)
    }
}

/// The five-tuple. All packets that share it go to one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey<A> {
    /// Source address.
    pub source: A,
    /// Destination address.
    pub destination: A,
    /// Source port, in wire order.
    pub source_port: [u8; 2],
    /// Destination port, in wire order.
    pub destination_port: [u8; 2],
    /// IP protocol number.
    pub protocol: u8,
}

impl<A: Address> FlowKey<A> {
    /// Returns the flow's hash; its top bits choose the slot.
    #[inline(always)]
    pub fn hash(&self, seed: u64) -> u32 {
        let ports = join_u16(self.source_port, self.destination_port);
        let rest = u64::from(ports.to_le()) | u64::from(self.protocol) << 32;
        let mixed = absorb(A::mix(self.source, self.destination, seed), rest);
        ((mixed ^ (mixed >> 29)).wrapping_mul(FINISH) >> 32) as u32
    }

    /// Returns a hash like [`Self::hash`] of the client's address alone, for services with affinity.
    #[inline(always)]
    pub fn client_hash(&self, seed: u64) -> u32 {
        let mixed = A::mix(self.source, A::UNSPECIFIED, seed);
        ((mixed ^ (mixed >> 29)).wrapping_mul(FINISH) >> 32) as u32
    }

    /// Returns the key of packets in the other direction.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
        }
    }
}

/// Splits an IPv6 address into the two words that the hash consumes.
#[inline(always)]
pub(crate) fn words(address: &[u8; 16]) -> [u64; 2] {
    crate::words::words(*address).map(u64::to_le)
}

// Multipliers of the SplitMix64 finalizer, variant 13 (Stafford 2011). A multiplication carries upwards only; the
// shift that follows brings the high bits down again.
const ABSORB: u64 = 0xbf58_476d_1ce4_e5b9;
const FINISH: u64 = 0x94d0_49bb_1331_11eb;

#[inline(always)]
fn absorb(state: u64, word: u64) -> u64 {
    let mixed = (state ^ word).wrapping_mul(ABSORB);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{vec, vec::Vec};

    use super::*;

    fn v4(source: u32, source_port: u16) -> FlowKey<V4> {
        FlowKey {
            source: V4(source.to_be_bytes()),
            destination: V4([10, 99, 0, 1]),
            source_port: source_port.to_be_bytes(),
            destination_port: [0, 80],
            protocol: 6,
        }
    }

    fn v6(source: u128, source_port: u16) -> FlowKey<V6> {
        FlowKey {
            source: V6(source.to_be_bytes()),
            destination: V6(0xfd00_0099_u128.rotate_left(96).to_be_bytes()),
            source_port: source_port.to_be_bytes(),
            destination_port: [0, 80],
            protocol: 17,
        }
    }

    /// Chi-square of the top eight bits over 256 cells, as standard deviations from its mean.
    fn unevenness(hashes: impl Iterator<Item = u32>) -> f64 {
        let mut cells = vec![0_u32; 256];
        let mut count = 0.0;
        for hash in hashes {
            cells[(hash >> 24) as usize] += 1;
            count += 1.0;
        }
        let ideal = count / 256.0;
        let chi: f64 = cells
            .iter()
            .map(|&n| (f64::from(n) - ideal).powi(2) / ideal)
            .sum();
        (chi - 255.0) / (2.0_f64 * 255.0).sqrt()
    }

    #[test]
    fn flows_that_differ_in_one_field_spread_evenly() {
        let samples: Vec<(&str, Vec<u32>)> = vec![
            (
                "ports",
                (0..65_535)
                    .map(|port| v4(0x0a00_0001, port).hash(1))
                    .collect(),
            ),
            (
                "hosts",
                (0..65_536)
                    .map(|host| v4(0x0a00_0000 + host, 40_000).hash(1))
                    .collect(),
            ),
            (
                "networks",
                (0..65_536)
                    .map(|net| v4(net << 16, 40_000).hash(1))
                    .collect(),
            ),
            (
                "seeds",
                (0..65_536)
                    .map(|seed| v4(0x0a00_0001, 40_000).hash(seed))
                    .collect(),
            ),
            (
                "v6 ports",
                (0..65_535)
                    .map(|port| v6(0xfd << 120, port).hash(1))
                    .collect(),
            ),
            (
                "v6 hosts",
                (0..65_536)
                    .map(|host| v6(0xfd << 120 | host, 40_000).hash(1))
                    .collect(),
            ),
            (
                "v6 nets",
                (0..65_536)
                    .map(|net| v6(net << 64, 40_000).hash(1))
                    .collect(),
            ),
        ];
        for (name, hashes) in samples {
            let deviations = unevenness(hashes.into_iter());
            assert!(
                deviations.abs() < 5.0,
                "{name}: {deviations:.1} standard deviations"
            );
        }
    }

    #[test]
    fn every_input_bit_flips_about_half_of_the_output() {
        let mut worst = 16.0_f64;
        for bit in 0..104 {
            let mut flips = 0;
            for sample in 0..256_u16 {
                let key = v4(u32::from(sample).wrapping_mul(0x9e37_79b9), sample * 251);
                let mut other = key;
                match bit {
                    0..32 => other.source.0[bit / 8] ^= 1 << (bit % 8),
                    32..64 => other.destination.0[bit / 8 - 4] ^= 1 << (bit % 8),
                    64..80 => other.source_port[bit / 8 - 8] ^= 1 << (bit % 8),
                    80..96 => other.destination_port[bit / 8 - 10] ^= 1 << (bit % 8),
                    _ => other.protocol ^= 1 << (bit % 8),
                }
                flips += (key.hash(7) ^ other.hash(7)).count_ones();
            }
            let mean = f64::from(flips) / 256.0;
            if (mean - 16.0).abs() > (worst - 16.0).abs() {
                worst = mean;
            }
        }
        assert!(
            (13.0..=19.0).contains(&worst),
            "worst bit flips {worst} of 32 on average"
        );
    }

    #[test]
    fn reversal_swaps_ends_and_is_its_own_inverse() {
        let key = v4(0x0a00_0001, 40_000);
        assert_eq!(key.reversed().destination, V4([10, 0, 0, 1]));
        assert_eq!(key.reversed().source_port, [0, 80]);
        assert_eq!(key.reversed().reversed(), key);
    }
}
