//! Medians, quartiles and bootstrap intervals over the rounds of a measurement.
//!
//! On a shared machine a single round can be wrong by a factor of two. So nothing here is a mean, and nothing
//! assumes a distribution.

use serde::Serialize;

/// Number of resamples for an interval. It makes the error of the interval's ends a small part of its width.
const RESAMPLES: usize = 2_000;

/// How far the rounds of one quantity are spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Lowest round.
    pub min: f64,
    /// Upper minus lower quartile.
    pub iqr: f64,
    /// Highest round.
    pub max: f64,
}

impl Spread {
    /// Summarizes the rounds; all zero if there are none.
    pub fn of(rounds: &[f64]) -> Self {
        let sorted = sorted(rounds);
        Self {
            min: quantile(&sorted, 0.0),
            iqr: quantile(&sorted, 0.75) - quantile(&sorted, 0.25),
            max: quantile(&sorted, 1.0),
        }
    }
}

/// An estimate with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The estimate from all rounds.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Returns the median; zero if there are no rounds.
pub fn median(rounds: &[f64]) -> f64 {
    quantile(&sorted(rounds), 0.5)
}

/// Returns the value that a share (0 to 1) of the rounds does not exceed; zero if there are no rounds.
pub fn percentile(rounds: &[f64], share: f64) -> f64 {
    quantile(&sorted(rounds), share)
}

/// Estimates a quantity from all rounds, and its interval from resampled rounds.
///
/// `quantity` gets the indices of the rounds to use. All measurements of a round stay together in every
/// resample. So noise that all systems of a round share cancels out in ratios and differences.
pub fn bootstrap(rounds: usize, quantity: impl Fn(&[usize]) -> f64) -> Estimate {
    bootstrap_two([rounds, 0], |[sample, _]| quantity(sample))
}

/// Estimates a quantity from the rounds of two runs, as [`bootstrap`] does from those of one. The runs are resampled
/// independently of each other.
pub fn bootstrap_two(rounds: [usize; 2], quantity: impl Fn([&[usize]; 2]) -> f64) -> Estimate {
    let all = rounds.map(|rounds| (0..rounds).collect::<Vec<usize>>());
    let value = quantity([&all[0], &all[1]]);
    let mut random = SplitMix64::new(1);
    let resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let samples = rounds.map(|rounds| {
                let sample = (0..rounds).map(|_| random.below(rounds));
                sample.collect::<Vec<usize>>()
            });
            quantity([&samples[0], &samples[1]])
        })
        .collect();
    let resampled = sorted(&resampled);
    Estimate {
        value,
        low: quantile(&resampled, 0.025),
        high: quantile(&resampled, 0.975),
    }
}

/// Rounds to millionths: such numbers are read from JSON as they were written.
pub(crate) fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the quantile `q` (0 to 1), interpolated between the two nearest ranks.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let rank = q * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "q is between 0 and 1, so the rank is an index"
    )]
    let below = rank as usize;
    let above = last.min(below + 1);
    sorted[below] + (sorted[above] - sorted[below]) * (rank - below as f64)
}

/// A small random generator with a fixed seed, so that the same rounds give the same interval.
#[derive(Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts the sequence of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number between 0 and 1, both excluded.
    pub(crate) fn open_unit(&mut self) -> f64 {
        ((self.next() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// Returns a random number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let high = (u128::from(self.next()) * bound as u128) >> 64;
        usize::try_from(high).expect("the product's high half is below the bound")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_lies_between_the_middle_rounds() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn spread_names_extremes_and_quartile_distance() {
        let spread = Spread::of(&[5.0, 1.0, 2.0, 4.0, 3.0]);
        assert_eq!((spread.min, spread.iqr, spread.max), (1.0, 2.0, 5.0));
    }

    #[test]
    fn one_outlier_moves_neither_median_nor_interval_far() {
        let mut rounds = [10.0; 20];
        rounds[7] = 1_000.0;
        let estimate = bootstrap(rounds.len(), |sample| {
            median(&sample.iter().map(|&i| rounds[i]).collect::<Vec<_>>())
        });
        assert_eq!(
            (estimate.value, estimate.low, estimate.high),
            (10.0, 10.0, 10.0)
        );
    }

    #[test]
    fn noise_that_both_sides_of_a_round_share_cancels() {
        let noise = [1.0, 3.0, 0.5, 2.0, 0.7, 1.9, 1.1];
        let estimate = bootstrap(noise.len(), |sample| {
            median(
                &sample
                    .iter()
                    .map(|&i| (75.0 * noise[i]) / (100.0 * noise[i]))
                    .collect::<Vec<_>>(),
            )
        });
        assert!((estimate.low - 0.75).abs() < 1e-12 && (estimate.high - 0.75).abs() < 1e-12);
    }

    #[test]
    fn interval_is_reproducible_and_covers_the_estimate() {
        let rounds: Vec<f64> = (0..31_u32).map(|n| f64::from(n * 37 % 31)).collect();
        let run = || {
            bootstrap(rounds.len(), |sample| {
                median(&sample.iter().map(|&i| rounds[i]).collect::<Vec<_>>())
            })
        };
        let estimate = run();
        assert_eq!(estimate, run());
        assert!(estimate.low < estimate.value && estimate.value < estimate.high);
        assert!(estimate.low > 5.0 && estimate.high < 25.0);
    }
}
