//! The figures of a histogram, each only as far as its samples carry it.

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Percentiles that are reported, if enough samples lie above them, in thousandths of a percent.
const PERCENTILES: [u32; 8] = [
    50_000, 75_000, 90_000, 95_000, 99_000, 99_900, 99_990, 99_999,
];
/// All of it, in the same unit.
const WHOLE: u32 = 100_000;
/// Samples that must lie above a percentile: with fewer, it is a figure about single packets.
const LEAST_ABOVE: u64 = 10;
/// Two-sided 95 % quantile of the normal distribution.
const Z_95: f64 = 1.96;
/// Longest latency that a histogram holds: an hour, in nanoseconds. A longer one is recorded as this.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Significant decimal digits of a recorded value.
const DIGITS: u8 = 3;

/// Returns an empty histogram of nanoseconds.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("these bounds are valid")
}

/// Adds histograms up.
///
/// # Panics
///
/// When one was not made by [`new_histogram`].
pub fn merge<'a>(histograms: impl Iterator<Item = &'a Histogram<u64>>) -> Histogram<u64> {
    let mut all = new_histogram();
    for one in histograms {
        all.add(one).expect("all have the same bounds");
    }
    all
}

/// The figures of one quantity, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Requests without an answer. They count as longer than any value, for percentiles too.
    pub unanswered: u64,
    /// Lowest value.
    pub min: u64,
    /// Highest value.
    pub max: u64,
    /// Mean of the values.
    pub mean: f64,
    /// Standard deviation of the values.
    pub stdev: f64,
    /// Percentiles with at least 10 samples above them.
    pub percentiles: Vec<Percentile>,
}

/// A percentile with its interval, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Percentile {
    /// The percentile, 0 to 100.
    pub percentile: f64,
    /// The value; absent if it is that of a request without an answer.
    pub value: Option<u64>,
    /// Lower end of the 95 % interval from order statistics, which takes the samples for independent.
    pub low: Option<u64>,
    /// Upper end of the interval.
    pub high: Option<u64>,
}

impl Distribution {
    /// Computes the figures of a histogram.
    pub fn of(histogram: &Histogram<u64>, unanswered: u64) -> Self {
        let ranks = Ranks::of(histogram);
        let percentile = |thousandths| percentile_of(&ranks, unanswered, thousandths);
        Self {
            count: histogram.len(),
            unanswered,
            min: if histogram.is_empty() {
                0
            } else {
                histogram.min()
            },
            max: histogram.max(),
            mean: tenths(histogram.mean()),
            stdev: tenths(histogram.stdev()),
            percentiles: PERCENTILES.into_iter().filter_map(percentile).collect(),
        }
    }

    /// Returns a reported percentile.
    pub fn percentile(&self, percentile: f64) -> Option<&Percentile> {
        self.percentiles
            .iter()
            .find(|one| (one.percentile - percentile).abs() < 1e-9)
    }

    /// Returns the value of a percentile, if it is reported and is not that of a request without an answer.
    pub fn value(&self, percentile: f64) -> Option<u64> {
        self.percentile(percentile)?.value
    }
}

/// Rounds to tenths of a nanosecond: such numbers are read from JSON as they were written.
fn tenths(ns: f64) -> f64 {
    (ns * 10.0).round() / 10.0
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "ranks lie between 0 and the number of samples"
)]
fn percentile_of(ranks: &Ranks, unanswered: u64, thousandths: u32) -> Option<Percentile> {
    let samples = ranks.samples() + unanswered;
    // In integers: a rank that rounding moves is that of another sample.
    let rank = (u128::from(samples) * u128::from(thousandths)).div_ceil(WHOLE.into()) as u64;
    if samples.saturating_sub(rank) < LEAST_ABOVE {
        return None;
    }
    let share = f64::from(thousandths) / f64::from(WHOLE);
    let middle = samples as f64 * share;
    // The number of samples below the percentile is binomial.
    let spread = Z_95 * (middle * (1.0 - share)).sqrt();
    let low = (middle - spread).floor().max(1.0) as u64;
    let high = (middle + spread).ceil() as u64 + 1;
    Some(Percentile {
        percentile: f64::from(thousandths) / 1_000.0,
        value: ranks.value(rank),
        low: ranks.value(low),
        high: ranks.value(high),
    })
}

/// The filled buckets of a histogram, each with the samples up to its end.
struct Ranks(Vec<(u64, u64)>);

impl Ranks {
    fn of(histogram: &Histogram<u64>) -> Self {
        let mut samples = 0;
        let buckets = histogram.iter_recorded().map(|bucket| {
            samples += bucket.count_since_last_iteration();
            (
                samples,
                histogram.highest_equivalent(bucket.value_iterated_to()),
            )
        });
        Self(buckets.collect())
    }

    fn samples(&self) -> u64 {
        self.0.last().map_or(0, |&(samples, _)| samples)
    }

    /// Returns the value of the sample with this rank, from 1; `None` beyond the last.
    fn value(&self, rank: u64) -> Option<u64> {
        let place = self.0.partition_point(|&(samples, _)| samples < rank);
        self.0.get(place).map(|&(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = new_histogram();
        for value in values {
            histogram.record(value).unwrap();
        }
        histogram
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        // Up to 2047 every value has a bucket of its own.
        let figures = Distribution::of(&histogram(1..=2_000), 0);
        assert_eq!((figures.count, figures.min, figures.max), (2_000, 1, 2_000));
        assert_eq!(figures.value(50.0), Some(1_000));
        assert_eq!(figures.value(90.0), Some(1_800));
        assert_eq!(figures.value(99.0), Some(1_980));
        let p50 = figures.percentile(50.0).unwrap();
        // 1000 +- 1.96 sqrt(500)
        assert_eq!((p50.low, p50.high), (Some(956), Some(1_045)));
    }

    #[test]
    fn no_percentile_has_fewer_than_ten_samples_above_it() {
        let highest = |samples: u64| {
            let figures = Distribution::of(&histogram(1..=samples), 0);
            figures.percentiles.last().map(|last| last.percentile)
        };
        assert_eq!(highest(19), None);
        assert_eq!(highest(20), Some(50.0));
        assert_eq!(highest(999), Some(95.0));
        assert_eq!(highest(1_000), Some(99.0));
        assert_eq!(highest(9_999), Some(99.0));
        assert_eq!(highest(10_000), Some(99.9));
    }

    #[test]
    fn a_request_without_an_answer_is_longer_than_any_latency() {
        let figures = Distribution::of(&histogram(1..=980), 20);
        assert_eq!(figures.value(50.0), Some(500));
        assert_eq!(figures.value(95.0), Some(950));
        let p99 = figures.percentile(99.0).unwrap();
        assert_eq!((p99.value, p99.high), (None, None));
    }

    #[test]
    fn nothing_gives_no_figures() {
        let figures = Distribution::of(&new_histogram(), 0);
        assert_eq!((figures.count, figures.min, figures.max), (0, 0, 0));
        assert!(figures.percentiles.is_empty());
    }

    #[test]
    fn merged_rounds_give_the_percentile_of_all_their_values_and_no_average() {
        let quick = histogram(std::iter::repeat_n(10, 900));
        let slow = histogram(std::iter::repeat_n(1_000, 100));
        let all = Distribution::of(&merge([&quick, &slow].into_iter()), 0);
        assert_eq!((all.value(90.0), all.value(95.0)), (Some(10), Some(1_000)));
    }
}
