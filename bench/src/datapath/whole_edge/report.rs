//! The rows of the report, as a table and as JSON, and the bounds of their figures.

use std::fmt;

use serde_json::{Value, json};

use super::{Family, Forwarder, Protocol, Report, STREAM, Samples, Trial};
use crate::{
    bars::Limit,
    datapath::{
        report::{Bar, interval, lower, write_bars},
        two_cores::{Traffic, is_overloaded, ratio_of},
    },
    host::Facts,
    stats::{Estimate, Spread, median},
};

/// The bounds of the rates, as shares of that of the bare loop.
const BOUNDS: [(&str, Forwarder, Limit); 2] = [
    ("IPIP, of l2fwd", Forwarder::Ipip, Limit::Least(0.85)),
    ("L2 DSR, of l2fwd", Forwarder::L2Dsr, Limit::Least(0.85)),
];

/// The figures of a forwarder.
#[derive(Clone, Debug)]
pub struct Row {
    /// What sends frames back.
    pub forwarder: Forwarder,
    /// Address family.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Number of rounds behind the figures.
    pub rounds: usize,
    /// Frames per second that come back, the median over the rounds.
    pub pps: f64,
    /// Spread of `pps` over the rounds.
    pub spread: Spread,
    /// Frames per second that the generator sends, the median over the rounds.
    pub offered: f64,
    /// Rate divided by that of the bare loop in the same round; `None` for that loop.
    pub of_bare: Option<Estimate>,
    /// Whether the generator sends more than this forwarder and the bare loop take.
    pub is_forwarders: bool,
}

impl Row {
    pub(super) fn new(
        (family, protocol): Traffic,
        forwarder: Forwarder,
        samples: &Samples,
    ) -> Self {
        let of = |forwarder, figure: fn(&Trial) -> f64| -> Vec<f64> {
            samples[&forwarder].iter().map(figure).collect()
        };
        let rates = of(forwarder, Trial::rate);
        let bare = of(Forwarder::L2Fwd, Trial::rate);
        let is_own =
            |forwarder| is_overloaded(&of(forwarder, Trial::offered), &of(forwarder, Trial::rate));
        Self {
            forwarder,
            family,
            protocol,
            rounds: rates.len(),
            pps: median(&rates),
            spread: Spread::of(&rates),
            offered: median(&of(forwarder, Trial::offered)),
            of_bare: (forwarder != Forwarder::L2Fwd).then(|| ratio_of(&rates, &bare)),
            is_forwarders: is_own(forwarder) && is_own(Forwarder::L2Fwd),
        }
    }

    /// Returns the row as a flat object. Spreads and intervals are under `spread`, as in those of the XDP programs.
    pub fn to_json(&self, host: &Facts) -> Value {
        let mut row = json!({
            "system": self.forwarder.name(),
            "family": self.family,
            "protocol": self.protocol,
            "flows": STREAM.flows,
            "order": STREAM.order,
            "rounds": self.rounds,
            "pps": self.pps,
            "offered_pps": self.offered,
            "spread": { "pps": self.spread },
            "host": host,
        });
        if let Some(Estimate { value, low, high }) = self.of_bare {
            row["pps_vs_l2fwd"] = json!(value);
            row["spread"]["pps_vs_l2fwd"] = json!([low, high]);
        }
        row
    }
}

impl Report {
    /// Compares the figures with their bounds.
    pub fn bars(&self) -> Vec<Bar> {
        let judge = |(name, forwarder, limit)| {
            let rows = self.rows.iter().filter(|row| row.forwarder == forwarder);
            let figures = rows.filter_map(|row| {
                let traffic = format!("{} {}", lower(row.family), lower(row.protocol));
                Some((row.of_bare?, traffic, row.is_forwarders))
            });
            Bar::of(name, limit, figures.collect())
        };
        BOUNDS.map(judge).into()
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
            "veth, AF_XDP copied, one queue, shortest frames of 10 000 flows in random order;"
        )?;
        writeln!(
            f,
            "one core for forwarder and sink, generator on CPU {sender}; median of {} rounds",
            self.rounds
        )?;
        writeln!(f, "[ ] holds the true value with 95 % confidence\n")?;
        writeln!(
            f,
            "{:<3} {:<4} {:<8}{:>6} {:>6} {:>10}  of l2fwd",
            "ip", "l4", "system", "Mpps", "iqr %", "Mpps sent"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<3} {:<4} {:<8}{:>6.3} {:>6.1} {:>10.3}  {}{}",
                lower(row.family),
                lower(row.protocol),
                row.forwarder.name(),
                row.pps / 1e6,
                row.spread.iqr / row.pps * 100.0,
                row.offered / 1e6,
                row.of_bare
                    .map_or_else(|| "-".to_owned(), |share| interval(&share)),
                if row.is_forwarders {
                    ""
                } else {
                    ", hardly more was sent: not judged"
                },
            )?;
        }
        write_bars(f, &self.bars())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bars::Outcome, datapath::Figures as _};

    /// Rounds in which the forwarders take these shares of the bare loop's rate, disturbed by noise that a round's share.
    /// The generator sends so many times what the bare loop takes.
    fn report(ipip: f64, l2_dsr: f64, offered: f64) -> Report {
        let host = Facts {
            kernel: "6.18.0".to_owned(),
            cpu: "Some CPU".to_owned(),
            date: "2026-11-28".to_owned(),
        };
        let mut report = Report::new(host, [1, 0], 7);
        for family in Family::ALL {
            let mut samples = Samples::new();
            for noise in [1.0, 1.4, 0.9, 1.1, 2.0, 1.0, 1.2] {
                for (forwarder, share) in [
                    (Forwarder::L2Fwd, 1.0),
                    (Forwarder::Ipip, ipip),
                    (Forwarder::L2Dsr, l2_dsr),
                ] {
                    let seconds = 0.1 * noise;
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a small positive number"
                    )]
                    let frames = |share: f64| (1e5 * share) as u32;
                    samples.entry(forwarder).or_default().push(Trial {
                        sent: frames(offered),
                        returned: frames(share).into(),
                        seconds,
                    });
                }
            }
            report.add((family, Protocol::Udp), samples, Row::new);
        }
        report
    }

    #[test]
    fn shares_are_of_the_same_round() {
        let report = report(0.9, 0.95, 2.0);
        let shares: Vec<_> = report.rows.iter().map(|row| row.of_bare).collect();
        for of_family in shares.chunks(3) {
            let [None, Some(ipip), Some(l2_dsr)] = of_family else {
                panic!("the bare loop has no share of itself: {report}");
            };
            for (share, expected) in [(ipip, 0.9), (l2_dsr, 0.95)] {
                assert!((share.low - expected).abs() < 1e-9, "{share:?}");
                assert!((share.high - expected).abs() < 1e-9, "{share:?}");
            }
        }
        assert_eq!(shares.len(), 6);
        // The middle round has a noise of 1.1.
        assert!((report.rows[1].pps - 9e5 / 1.1).abs() < 1.0, "{report}");
    }

    #[test]
    fn each_bar_goes_by_its_own_forwarder() {
        let outcomes = |ipip, l2_dsr| {
            let bars = report(ipip, l2_dsr, 2.0).bars();
            bars.iter().map(|bar| bar.outcome).collect::<Vec<_>>()
        };
        use Outcome::{Fails, Holds};
        assert_eq!(outcomes(0.86, 0.86), [Holds, Holds]);
        assert_eq!(outcomes(0.84, 0.86), [Fails, Holds]);
        assert_eq!(outcomes(0.86, 0.84), [Holds, Fails]);
        assert_eq!(report(0.84, 0.86, 2.0).outcome(), Fails);
    }

    #[test]
    fn rate_of_the_generator_is_not_judged() {
        for share in [0.5, 0.99] {
            let report = report(share, share, 1.04);
            assert_eq!(report.outcome(), Outcome::Inconclusive, "{report}");
            assert!(report.to_string().contains("not judged"));
        }
    }

    #[test]
    fn table_fits_a_hundred_columns() {
        let text = report(0.9, 0.9, 1.0).to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
