//! The rates of a run in the form that `guideway-bench run` gives results: for reports and comparisons.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::{Report, STREAM, Trial};
use crate::{
    bars::Outcome,
    datapath::{
        Figures, Options,
        result::{files, load, series_of},
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
            for (forwarder, trials) in samples {
                let name = forwarder.name();
                series.push(series_of(
                    name,
                    format!(
                        "the forwarder {name} of `guideway-bench datapath --engine afxdp`, at one end of a veth pair"
                    ),
                    load(*family, *protocol, STREAM),
                    trials.iter().map(counts),
                ));
            }
        }
        files(options, series, Vec::new(), command, started)
    }
}

/// Returns the duration of a trial in seconds, and its counts.
fn counts(trial: &Trial) -> (f64, Tally) {
    let sent = trial.sent.into();
    let tally = Tally {
        offered: sent,
        sent,
        received: trial.returned,
        lost: sent - trial.returned,
        ..Tally::default()
    };
    (trial.seconds, tally)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compare::{Judgement, LEAST_DIFFERENCE, Side, compare},
        datapath::{
            Family, Protocol,
            whole_edge::{Forwarder, Row, Samples},
        },
        host::Facts,
        report as page,
    };

    #[test]
    fn rates_become_a_result_that_is_read_reported_and_compared() {
        let trial = |returned| Trial {
            sent: 100_000,
            returned,
            seconds: 0.05,
        };
        let samples = Samples::from([
            (Forwarder::L2Fwd, vec![trial(50_000); 6]),
            (Forwarder::Ipip, vec![trial(40_000); 6]),
            (Forwarder::L2Dsr, vec![trial(50_000); 6]),
        ]);
        let mut report = Report::new(Facts::collect(), [1, 0], 6);
        report.add((Family::V6, Protocol::Udp), samples, Row::new);
        let options = Options {
            families: vec![Family::V6],
            protocols: vec![Protocol::Udp],
            rounds: 6,
            seconds: 0.05,
            core: None,
        };
        let started = Duration::from_secs(9);
        let files = report.files(&options, "again".to_owned(), started).unwrap();
        let files = Files::of_texts(files.json, files.logs).unwrap();
        let side = |name| Side::find(&files, Some(name)).unwrap();
        let judged = |name| {
            let [bare, ours] = ["l2fwd", name].map(side);
            compare(bare, ours, LEAST_DIFFERENCE).unwrap().judgement()
        };
        assert_eq!(judged("ipip"), Judgement::Worse);
        assert_eq!(judged("l2_dsr-ipv6-udp-10000-random"), Judgement::Same);
        let html = page::render(std::slice::from_ref(&files));
        page::verify(&html).unwrap();
        assert!(
            html.contains("0.800 [0.800 0.800]"),
            "{}",
            page::text(&files)
        );
    }
}
