//! The rate that live frames beside requests have a share of.

use anyhow::{Context, Result};

use crate::{
    load::{
        Asked, Generator,
        search::{self, Goal, USUAL_TRIALS},
    },
    scenario::{ReferenceRate, Scenario, SearchKind},
    stats::median,
};

/// Trials by which the rate that a system takes is measured. Their median is not affected by a single one beside other work.
const RATE_TRIALS: usize = 3;

impl ReferenceRate {
    /// Returns the trials that it usually takes to find it.
    pub fn usual_trials(&self) -> f64 {
        match self.search {
            SearchKind::None => RATE_TRIALS as f64,
            _ => USUAL_TRIALS,
        }
    }

    /// Finds the rate, in whole frames a second, by trials of its frames.
    pub(super) fn find(&self, frames: &mut dyn Generator, scenario: &Scenario) -> Result<f64> {
        let asked = Asked {
            rate: None,
            seconds: scenario.seconds,
            seed: scenario.seed,
        };
        let found = match Goal::of(self.search) {
            None => rate_taken(frames, asked),
            Some(goal) => rate_borne(frames, asked, goal),
        };
        Ok(found.with_context(|| format!("finding {self}"))?.round())
    }
}

/// Measures the frames a second that a system takes: the median of some trials with as many as can be sent.
fn rate_taken(frames: &mut dyn Generator, asked: Asked) -> Result<f64> {
    let trials = (0..RATE_TRIALS).map(|_| -> Result<f64> {
        let trial = frames.run(asked)?;
        Ok(trial.tally.received as f64 / trial.seconds)
    });
    Ok(median(&trials.collect::<Result<Vec<f64>>>()?))
}

/// Searches for the rate that a system bears, up to what the generator can send.
fn rate_borne(frames: &mut dyn Generator, asked: Asked, goal: Goal) -> Result<f64> {
    let most = frames.run(asked)?;
    let asked = Asked {
        rate: Some(most.tally.sent as f64 / most.seconds),
        ..asked
    };
    Ok(search::find(frames, goal, asked)?.0)
}
