//! The rows of the report, as a table and as JSON, and the bounds of their figures.

use std::fmt;

use serde_json::{Value, json};

use super::{Family, PACE, Protocol, Report, STREAM, Samples, Subject, Trial};
use crate::{
    bars::Limit,
    datapath::{
        report::{Bar, interval, lower, write_bars},
        two_cores::{Traffic, is_overloaded, median_of, ratio_of},
    },
    host::Facts,
    stats::{Estimate, Spread, bootstrap, median},
};

/// A bound of a figure.
struct Bound {
    name: &'static str,
    subject: Subject,
    limit: Limit,
    figure: fn(&Row) -> Option<Estimate>,
}

const BOUNDS: [Bound; 7] = [
    Bound {
        name: "carried, of l2fwd to a bridge",
        subject: Subject::Carried,
        limit: Limit::Least(0.85),
        figure: |row| row.of_reference,
    },
    Bound {
        name: "1 of 1000 carried, of plain",
        subject: Subject::Thousandth,
        limit: Limit::Least(0.97),
        figure: |row| row.of_reference,
    },
    Bound {
        name: "plain, of an edge without the thread",
        subject: Subject::Plain,
        limit: Limit::Least(0.98),
        figure: |row| row.of_reference,
    },
    Bound {
        name: "% of a core, the idle thread",
        subject: Subject::Plain,
        limit: Limit::Most(0.2),
        figure: |row| Some(scaled(row.thread, 100.0)),
    },
    Bound {
        name: "packets cut, million/s",
        subject: Subject::Cut,
        limit: Limit::Least(0.1),
        figure: |row| Some(scaled(row.rate, 1e-6)),
    },
    Bound {
        name: "% lost of 100 000 cut a second",
        subject: Subject::CutPaced,
        limit: Limit::Most(0.0),
        figure: |row| Some(scaled(row.lost, 100.0)),
    },
    Bound {
        name: "% lost beside more than it can cut",
        subject: Subject::HalfCut,
        limit: Limit::Most(0.0),
        figure: |row| Some(scaled(row.lost, 100.0)),
    },
];

/// The share of its pace that the generator must keep.
const LEAST_PACE: f64 = 0.95;

fn scaled(of: Estimate, factor: f64) -> Estimate {
    Estimate {
        value: of.value * factor,
        low: of.low * factor,
        high: of.high * factor,
    }
}

/// The figures of a subject.
#[derive(Clone, Debug)]
pub struct Row {
    /// What happens to the frames.
    pub subject: Subject,
    /// Address family.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Number of rounds behind the figures.
    pub rounds: usize,
    /// Frames per second that arrive.
    pub rate: Estimate,
    /// Spread of the rate over the rounds.
    pub spread: Spread,
    /// Frames per second that the generator sends, the median over the rounds.
    pub offered: f64,
    /// Share of the frames that never arrives.
    pub lost: Estimate,
    /// Share of a core that the thread takes.
    pub thread: Estimate,
    /// Rate divided by that of the subject that this one is held against, in the same round.
    pub of_reference: Option<Estimate>,
    /// Whether the trials were what the subject's bound is about.
    pub is_judged: bool,
}

/// Tells whether trials were what a subject's bound is about.
fn is_judged(subject: Subject, samples: &Samples) -> bool {
    let trials = |subject: Subject| samples[&subject].iter();
    let is_overloaded = |subject| {
        let offered: Vec<f64> = trials(subject).map(Trial::offered).collect();
        let rates: Vec<f64> = trials(subject).map(Trial::rate).collect();
        is_overloaded(&offered, &rates)
    };
    match subject {
        Subject::L2Fwd | Subject::Alone | Subject::Plain => true,
        Subject::L2FwdBridge | Subject::Carried | Subject::Cut => {
            is_overloaded(subject) && subject.reference().is_none_or(is_overloaded)
        }
        Subject::Thousandth => {
            let sent: u64 = trials(subject).map(|trial| u64::from(trial.sent)).sum();
            let punted: u64 = trials(subject).map(|trial| trial.punted).sum();
            (sent / 2..=sent * 2).contains(&(1000 * punted))
        }
        Subject::CutPaced => {
            trials(subject).all(|trial| trial.offered() >= LEAST_PACE * f64::from(PACE))
        }
        // There was more than the thread could take.
        Subject::HalfCut => trials(subject).all(|trial| trial.dropped > 0),
    }
}

impl Row {
    pub(super) fn new((family, protocol): Traffic, subject: Subject, samples: &Samples) -> Self {
        let of = |subject, figure: fn(&Trial) -> f64| -> Vec<f64> {
            samples[&subject].iter().map(figure).collect()
        };
        let trials = &samples[&subject];
        let rates = of(subject, Trial::rate);
        let reference = subject.reference();
        let of_reference = reference.map(|reference| ratio_of(&rates, &of(reference, Trial::rate)));
        Self {
            subject,
            family,
            protocol,
            rounds: rates.len(),
            rate: median_of(&rates),
            spread: Spread::of(&rates),
            offered: median(&of(subject, Trial::offered)),
            // A single round with a loss shows.
            lost: bootstrap(trials.len(), |rounds| {
                let sum = |figure: fn(&Trial) -> u64| -> u64 {
                    rounds.iter().map(|&round| figure(&trials[round])).sum()
                };
                sum(|trial| trial.counted - trial.arrived) as f64
                    / sum(|trial| trial.counted) as f64
            }),
            thread: median_of(&of(subject, |trial| trial.thread)),
            of_reference,
            is_judged: is_judged(subject, samples),
        }
    }

    /// Returns the row as a flat object. Spreads and intervals are under `spread`, as in those of the XDP programs.
    pub fn to_json(&self, host: &Facts) -> Value {
        let ends = |of: Estimate| json!([of.low, of.high]);
        let mut row = json!({
            "system": self.subject.name(),
            "family": self.family,
            "protocol": self.protocol,
            "flows": STREAM.flows,
            "order": STREAM.order,
            "rounds": self.rounds,
            "pps": self.rate.value,
            "offered_pps": self.offered,
            "lost": self.lost.value,
            "thread": self.thread.value,
            "spread": { "pps": self.spread, "lost": ends(self.lost), "thread": ends(self.thread) },
            "host": host,
        });
        if let Some((reference, share)) = self.subject.reference().zip(self.of_reference) {
            row["reference"] = json!(reference.name());
            row["pps_vs_reference"] = json!(share.value);
            row["spread"]["pps_vs_reference"] = ends(share);
        }
        row
    }
}

impl Report {
    /// Compares the figures with their bounds.
    pub fn bars(&self) -> Vec<Bar> {
        let judge = |bound: Bound| {
            let rows = self.rows.iter().filter(|row| row.subject == bound.subject);
            let figures = rows.filter_map(|row| {
                let traffic = format!("{} {}", lower(row.family), lower(row.protocol));
                Some(((bound.figure)(row)?, traffic, row.is_judged))
            });
            let figures: Vec<_> = figures.collect();
            // Without IPv4, nothing is cut.
            (!figures.is_empty()).then(|| Bar::of(bound.name, bound.limit, figures))
        };
        BOUNDS.into_iter().filter_map(judge).collect()
    }
}

/// Formats the report as a table.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Facts { kernel, cpu, date } = &self.host;
        let [core, sender] = self.cores;
        writeln!(f, "Linux {kernel}, {cpu}, CPU {core}, {date}")?;
        writeln!(
            f,
            "veth, one queue, 10 000 flows in random order; thread, and what it sends, on one core,"
        )?;
        writeln!(
            f,
            "generator and XDP on CPU {sender}; median of {} rounds",
            self.rounds
        )?;
        writeln!(f, "[ ] holds the true value with 95 % confidence\n")?;
        writeln!(
            f,
            "{:<3} {:<4} {:<13}{:>6} {:>6} {:>10} {:>7} {:>9}  of the reference",
            "ip", "l4", "system", "Mpps", "iqr %", "Mpps sent", "lost %", "thread %"
        )?;
        for row in &self.rows {
            let reference = row.subject.reference().zip(row.of_reference);
            writeln!(
                f,
                "{:<3} {:<4} {:<13}{:>6.3} {:>6.1} {:>10.3} {:>7.2} {:>9.2}  {}",
                lower(row.family),
                lower(row.protocol),
                row.subject.name(),
                row.rate.value / 1e6,
                row.spread.iqr / row.rate.value * 100.0,
                row.offered / 1e6,
                row.lost.value * 100.0,
                row.thread.value * 100.0,
                reference.map_or_else(
                    || "-".to_owned(),
                    |(reference, share)| format!("{} {}", reference.name(), interval(&share))
                ),
            )?;
        }
        write_bars(f, &self.bars())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bars::Outcome, datapath::Figures as _};

    /// A trial in which so many frames of 100 000 arrive.
    fn trial(arrived: u64, seconds: f64) -> Trial {
        Trial {
            sent: 100_000,
            counted: 100_000,
            in_time: arrived,
            arrived,
            punted: 100,
            dropped: 1,
            seconds,
            thread: 0.001,
        }
    }

    /// Rounds that noise disturbs alike.
    fn report(change: impl Fn(Subject, Trial) -> Trial) -> Report {
        let host = Facts {
            kernel: "6.18.0".to_owned(),
            cpu: "Some CPU".to_owned(),
            date: "2026-11-29".to_owned(),
        };
        let mut report = Report::new(host, [1, 0], 7);
        for family in Family::ALL {
            let mut samples = Samples::new();
            for noise in [1.0, 1.4, 0.9, 1.1, 2.0, 1.0, 1.2] {
                for subject in Subject::of(family) {
                    let arrived = match subject {
                        Subject::L2Fwd | Subject::L2FwdBridge | Subject::Carried | Subject::Cut => {
                            60_000
                        }
                        _ => 100_000,
                    };
                    let trial = change(subject, trial(arrived, 0.1 * noise));
                    samples.entry(subject).or_default().push(trial);
                }
            }
            report.add((family, Protocol::Udp), samples, Row::new);
        }
        report
    }

    fn outcomes(report: &Report) -> Vec<Outcome> {
        let bars = report.bars();
        bars.iter().map(|bar| bar.outcome).collect()
    }

    #[test]
    fn each_bar_goes_by_a_figure_of_its_own() {
        use Outcome::{Fails, Holds};
        let all = report(|_, trial| trial);
        assert_eq!(outcomes(&all), [Holds; 7], "{all}");
        let worse = |of: Subject, arrived| {
            report(move |subject, trial| {
                if subject == of {
                    Trial {
                        in_time: arrived,
                        arrived,
                        ..trial
                    }
                } else {
                    trial
                }
            })
        };
        let failing = |place: usize| {
            let mut expected = [Holds; 7];
            expected[place] = Fails;
            expected
        };
        assert_eq!(outcomes(&worse(Subject::Carried, 50_000)), failing(0));
        assert_eq!(outcomes(&worse(Subject::Thousandth, 96_000)), failing(1));
        assert_eq!(outcomes(&worse(Subject::Cut, 900)), failing(4));
        assert_eq!(outcomes(&worse(Subject::CutPaced, 99_999)), failing(5));
        assert_eq!(outcomes(&worse(Subject::HalfCut, 99_999)), failing(6));
        let plain = worse(Subject::Plain, 97_000);
        assert_eq!(outcomes(&plain), failing(2));
        let busy = report(|_, trial| Trial {
            thread: 0.003,
            ..trial
        });
        assert_eq!(outcomes(&busy), failing(3));
        assert_eq!(busy.outcome(), Fails);
    }

    #[test]
    fn rate_of_the_generator_is_not_judged() {
        let report = report(|_, trial| Trial {
            in_time: 100_000,
            arrived: 100_000,
            ..trial
        });
        assert_eq!(outcomes(&report)[0], Outcome::Inconclusive, "{report}");
    }

    #[test]
    fn what_is_late_is_not_lost() {
        let report = report(|_, trial| Trial {
            in_time: 50_000,
            arrived: 100_000,
            ..trial
        });
        assert!(report.rows.iter().all(|row| row.lost.high == 0.0));
    }

    #[test]
    fn table_fits_a_hundred_columns() {
        let text = report(|_, trial| trial).to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
