//! How long checks take: a histogram for the metrics.

use std::time::Duration;

/// Upper bounds of the buckets in seconds; what takes longer is in none.
pub const BOUNDS: [f64; 12] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
];

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durations {
    buckets: [u64; BOUNDS.len()],
    longer: u64,
    sum: Duration,
}

impl Durations {
    /// Adds one.
    pub fn add(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        match BOUNDS.iter().position(|bound| seconds <= *bound) {
            Some(bucket) => self.buckets[bucket] += 1,
            None => self.longer += 1,
        }
        self.sum += duration;
    }

    /// Returns the sum of all in seconds.
    pub fn sum(&self) -> f64 {
        self.sum.as_secs_f64()
    }

    /// Returns how many there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum::<u64>() + self.longer
    }

    /// Returns each bound with how many are within it and above the bound before; the last is without bound.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounded = BOUNDS.into_iter().zip(self.buckets);
        bounded.chain([(f64::INFINITY, self.longer)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_first_bucket_that_holds_it() {
        let mut durations = Durations::default();
        for milliseconds in [0, 1, 2, 2_500, 2_501, 60_000] {
            durations.add(Duration::from_millis(milliseconds));
        }
        let buckets = durations.buckets();
        assert_eq!(buckets[..3], [(0.000_5, 1), (0.001, 1), (0.002_5, 1)]);
        assert_eq!(buckets[11..], [(2.5, 1), (f64::INFINITY, 2)]);
        assert_eq!(durations.count(), 6);
        assert!((durations.sum() - 65.004).abs() < 1e-9);
    }
}
