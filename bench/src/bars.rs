//! Bounds of figures, and whether a figure keeps its bound.

use std::fmt;

use crate::stats::Estimate;

/// A bound of a figure. It must hold for the whole interval of the figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The figure must not be lower.
    Least(f64),
    /// The figure must not be higher.
    Most(f64),
}

impl Limit {
    /// Compares a figure with the bound.
    pub fn judge(self, figure: &Estimate) -> Outcome {
        let (holds, fails) = match self {
            Self::Least(bound) => (figure.low >= bound, figure.high < bound),
            Self::Most(bound) => (figure.high <= bound, figure.low > bound),
        };
        match (holds, fails) {
            (true, _) => Outcome::Holds,
            (_, true) => Outcome::Fails,
            _ => Outcome::Inconclusive,
        }
    }

    /// Returns how far a figure exceeds the bound; negative if it is within.
    pub fn excess(self, figure: &Estimate) -> f64 {
        match self {
            Self::Least(bound) => bound - figure.value,
            Self::Most(bound) => figure.value - bound,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Least(bound) => f.pad(&format!(">= {bound:.2}")),
            Self::Most(bound) => f.pad(&format!("<= {bound:.2}")),
        }
    }
}

/// Whether a figure keeps its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It does, with 95 % confidence.
    Holds,
    /// Unknown: the interval contains the bound.
    Inconclusive,
    /// It does not, with 95 % confidence.
    Fails,
}

impl Outcome {
    /// Returns the worst outcome. No outcome at all is inconclusive.
    pub fn worst(outcomes: impl IntoIterator<Item = Self>) -> Self {
        outcomes.into_iter().max().unwrap_or(Self::Inconclusive)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::Inconclusive => "inconclusive",
            Self::Fails => "FAILS",
        })
    }
}
