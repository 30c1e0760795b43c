//! The rates of a run in the form that `guideway-bench run` gives results: for reports and comparisons.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use xdp_prog::wire::ethernet::Ethernet;

use super::{FULL, Report, STREAM, Trial};
use crate::{
    bars::Outcome,
    datapath::{
        Figures, Options,
        result::{files, load, series_of, with_frames},
    },
    probe::Tally,
    result::{Files, Series},
};

impl Figures for Report {
    fn rows(&self) -> Vec<Value> {
        let rows = self.rows.iter();
        rows.map(|row| row.to_json(&self.host)).collect()
    }

    fn outcome(&self) -> Outcome {
        Outcome::worst(self.bars().iter().map(|bar| bar.outcome))
    }

    fn files(&self, options: &Options, command: String, started: Duration) -> Result<Files> {
        let mut series: Vec<Series> = Vec::new();
        for (family, protocol, samples) in &self.samples {
            for (subject, trials) in samples {
                let name = subject.name();
                let shortest = load(*family, *protocol, STREAM);
                series.push(series_of(
                    name,
                    format!(
                        "{name} of `guideway-bench datapath --engine mend`; what arrives after the last frame was sent counts as lost"
                    ),
                    if subject.is_cut() {
                        with_frames(shortest, Ethernet::LENGTH + usize::from(FULL))
                    } else {
                        shortest
                    },
                    trials.iter().map(counts),
                ));
            }
        }
        files(options, series, Vec::new(), command, started)
    }
}

/// Returns the duration of a trial in seconds, and its counts. What arrives after it counts as lost.
fn counts(trial: &Trial) -> (f64, Tally) {
    let tally = Tally {
        offered: trial.counted,
        sent: trial.counted,
        received: trial.in_time,
        lost: trial.counted - trial.in_time,
        ..Tally::default()
    };
    (trial.seconds, tally)
}
