//! Figures that are neither a rate nor a latency of a load: what a packet, a change or a whole cluster costs.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    bars::{Limit, Outcome},
    stats::{Estimate, bootstrap, percentile, rounded},
};

/// A figure with the samples that it is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// What was measured, for one a program or a cluster.
    pub subject: String,
    /// The quantity.
    pub quantity: String,
    /// The unit of all numbers.
    pub unit: String,
    /// One number for each round or change; a single one for what was measured once.
    pub samples: Vec<f64>,
    /// The share of the samples (0 to 1) that the value does not fall below: 0.5 for the median.
    pub quantile: f64,
    /// The value.
    pub value: f64,
    /// Lower end of its 95 % interval; the value itself if there is a single sample.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// The bar: the largest value that is allowed; absent if there is none.
    pub bound: Option<f64>,
}

impl Measurement {
    /// Computes a figure from its samples.
    pub fn of(
        subject: impl Into<String>,
        quantity: impl Into<String>,
        unit: impl Into<String>,
        samples: &[f64],
        quantile: f64,
        bound: Option<f64>,
    ) -> Self {
        let mut made = Self {
            subject: subject.into(),
            quantity: quantity.into(),
            unit: unit.into(),
            samples: samples.iter().map(|sample| rounded(*sample)).collect(),
            quantile,
            value: 0.0,
            low: 0.0,
            high: 0.0,
            bound,
        };
        made.compute();
        made
    }

    /// Computes value and interval anew.
    pub(super) fn compute(&mut self) {
        let Estimate { value, low, high } = bootstrap(self.samples.len(), |sample| {
            let chosen = sample.iter().map(|&place| self.samples[place]);
            percentile(&chosen.collect::<Vec<_>>(), self.quantile)
        });
        [self.value, self.low, self.high] = [value, low, high].map(rounded);
    }

    /// Returns value and interval.
    pub fn estimate(&self) -> Estimate {
        Estimate {
            value: self.value,
            low: self.low,
            high: self.high,
        }
    }

    /// Compares the figure with its bar; `None` if it has none.
    pub fn outcome(&self) -> Option<Outcome> {
        let bound = self.bound?;
        Some(Limit::Most(bound).judge(&self.estimate()))
    }
}

/// Formats value, unit, and the interval if there is one.
impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            value,
            low,
            high,
            unit,
            ..
        } = self;
        write!(f, "{value:.2} {unit}")?;
        if low < high {
            write!(f, " [{low:.2} {high:.2}]")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_judged_by_its_interval_against_its_bar() {
        let judge = |samples: &[f64], bound| {
            Measurement::of("a cluster", "a change", "ms", samples, 0.5, bound).outcome()
        };
        assert_eq!(judge(&[9.0, 9.5, 10.0], Some(10.0)), Some(Outcome::Holds));
        assert_eq!(
            judge(&[9.0, 9.5, 10.1], Some(10.0)),
            Some(Outcome::Inconclusive)
        );
        assert_eq!(judge(&[10.1, 10.5, 11.0], Some(10.0)), Some(Outcome::Fails));
        assert_eq!(judge(&[1.0], None), None);
    }

    #[test]
    fn the_value_is_the_quantile_of_the_samples() {
        let samples: Vec<f64> = (0..=100).map(f64::from).collect();
        let late = Measurement::of("a cluster", "a change", "ms", &samples, 0.99, None);
        assert_eq!(late.value, 99.0);
        assert!(late.low < late.value && late.high >= late.value);
    }
}
