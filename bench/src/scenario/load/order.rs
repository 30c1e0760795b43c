//! The order of a load's sizes and flows.

use xdp_prog::bench::NEW_FLOW;

use super::{FlowOrder, FrameSize, Load, harmonic};
use crate::stats::SplitMix64;

impl Load {
    /// Returns the sizes of the frames in their order, which repeats: those of a mix are spread evenly.
    pub fn sizes(&self) -> Vec<u32> {
        let whole: i64 = self.frame_bytes.iter().map(|size| weight_of(*size)).sum();
        let mut credit = vec![0; self.frame_bytes.len()];
        (0..whole)
            .filter_map(|_| {
                // Smooth weighted round robin: whose share has waited longest is next.
                for (credit, size) in credit.iter_mut().zip(&self.frame_bytes) {
                    *credit += weight_of(*size);
                }
                let (next, _) = (credit.iter().enumerate().rev()).max_by_key(|(_, of)| **of)?;
                credit[next] -= whole;
                Some(self.frame_bytes[next].bytes)
            })
            .collect()
    }

    /// Returns the flows of so many requests. [`NEW_FLOW`] stands for one that is new.
    pub fn flows_of(&self, requests: usize, seed: u64) -> Vec<u32> {
        let mut random = SplitMix64::new(!seed);
        let weights = match self.flow_order {
            FlowOrder::Zipf => zipf(self.flows),
            FlowOrder::InTurn | FlowOrder::Uniform => Vec::new(),
        };
        let mut next = 0;
        let mut of_flows = || match self.flow_order {
            FlowOrder::InTurn => {
                let flow = next;
                next = if flow + 1 < self.flows { flow + 1 } else { 0 };
                flow
            }
            FlowOrder::Uniform => below(&mut random, self.flows),
            FlowOrder::Zipf => {
                let drawn = random.open_unit();
                let flow = weights.partition_point(|sum| *sum < drawn);
                u32::try_from(flow).map_or(0, |flow| flow.min(self.flows - 1))
            }
        };
        let new_before = |requests: usize| (requests as f64 * self.new_flow_share).floor();
        let request = |number: usize| {
            if new_before(number + 1) > new_before(number) {
                NEW_FLOW
            } else {
                of_flows()
            }
        };
        (0..requests).map(request).collect()
    }
}

fn weight_of(size: FrameSize) -> i64 {
    i64::from(size.weight)
}

fn below(random: &mut SplitMix64, bound: u32) -> u32 {
    u32::try_from(random.below(bound as usize)).unwrap_or(0)
}

/// Returns, for each flow, the share of requests up to it.
fn zipf(flows: u32) -> Vec<f64> {
    let whole = harmonic(flows);
    let mut sum = 0.0;
    let up_to = |rank: u32| {
        sum += 1.0 / f64::from(rank) / whole;
        sum
    };
    (1..=flows).map(up_to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;

    fn mix(of: &[(u32, u32)]) -> Load {
        let frame_bytes = of
            .iter()
            .map(|&(bytes, weight)| FrameSize { bytes, weight });
        Load {
            frame_bytes: frame_bytes.collect(),
            ..load()
        }
    }

    #[test]
    fn a_mix_has_each_size_as_often_as_its_weight_and_no_two_large_ones_in_a_row() {
        let sizes = mix(&[(64, 7), (594, 4), (1518, 1)]).sizes();
        let count = |bytes| sizes.iter().filter(|size| **size == bytes).count();
        assert_eq!([64, 594, 1518].map(count), [7, 4, 1]);
        let large = |pair: &[u32]| pair[0] > 64 && pair[1] > 64;
        assert!(
            sizes.windows(2).filter(|pair| large(pair)).count() <= 1,
            "{sizes:?}"
        );
        assert_eq!(load().sizes(), [64]);
    }

    #[test]
    fn flows_have_the_shares_that_their_order_says() {
        let shares = |flow_order| {
            let load = Load {
                flow_order,
                ..load()
            };
            let mut counts = [0_u32; 4];
            for flow in load.flows_of(100_000, 1) {
                counts[flow as usize] += 1;
            }
            counts.map(|count| f64::from(count) / 1e5)
        };
        assert_eq!(shares(FlowOrder::InTurn), [0.25; 4]);
        // 1/n over 25/12.
        for (order, expected) in [
            (FlowOrder::Uniform, [0.25; 4]),
            (FlowOrder::Zipf, [0.48, 0.24, 0.16, 0.12]),
        ] {
            let found = shares(order);
            let close = |(found, expected): (&f64, &f64)| (found - expected).abs() < 0.01;
            assert!(found.iter().zip(&expected).all(close), "{found:?}");
        }
        assert!((Load::rarest_share(4, FlowOrder::Zipf) - 0.12).abs() < 1e-9);
    }

    #[test]
    fn new_flows_are_spread_evenly_and_the_seed_alone_decides() {
        let load = Load {
            new_flow_share: 0.25,
            flow_order: FlowOrder::Zipf,
            ..load()
        };
        let flows = load.flows_of(1_000, 3);
        assert!(
            flows
                .chunks(4)
                .all(|four| { four.iter().filter(|flow| **flow == NEW_FLOW).count() == 1 })
        );
        assert_eq!(flows, load.flows_of(1_000, 3));
        assert_ne!(flows, load.flows_of(1_000, 4));
    }
}
