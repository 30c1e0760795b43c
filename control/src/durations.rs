//! A histogram of durations, for the metrics.

use std::time::Duration;

/// A histogram of durations.
#[derive(Clone, Debug, PartialEq)]
pub struct Durations {
    /// Upper bounds of the buckets in seconds, in order.
    bounds: &'static [f64],
    buckets: Vec<u64>,
    longer: u64,
    sum: Duration,
}

impl Durations {
    /// Creates an empty histogram. `bounds` are the upper bounds of its buckets, in seconds and ascending.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            buckets: vec![0; bounds.len()],
            longer: 0,
            sum: Duration::ZERO,
        }
    }

    /// Adds a duration.
    pub fn add(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        match self.bounds.iter().position(|bound| seconds <= *bound) {
            Some(bucket) => self.buckets[bucket] += 1,
            None => self.longer += 1,
        }
        self.sum += duration;
    }

    /// Returns the sum in seconds.
    pub fn sum(&self) -> f64 {
        self.sum.as_secs_f64()
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum::<u64>() + self.longer
    }

    /// Returns each upper bound with the number of durations in its bucket. The last bucket has no bound.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied();
        let bounded = bounds.zip(self.buckets.iter().copied());
        bounded.chain([(f64::INFINITY, self.longer)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_first_bucket_that_holds_it() {
        let mut durations = Durations::new(&[0.000_5, 0.001, 2.5]);
        for milliseconds in [0, 1, 2, 2_500, 2_501, 60_000] {
            durations.add(Duration::from_millis(milliseconds));
        }
        assert_eq!(
            durations.buckets(),
            [(0.000_5, 1), (0.001, 1), (2.5, 2), (f64::INFINITY, 2)]
        );
        assert_eq!(durations.count(), 6);
        assert!((durations.sum() - 65.004).abs() < 1e-9);
    }
}
