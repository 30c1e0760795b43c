//! Compares figures that belong to no load: those that `datapath --out` and `control --out` write. Of all of them, less
//! is better.

use std::fmt;

use anyhow::{Result, bail, ensure};
use serde::Serialize;

use super::{Judgement, key_differences, refuse};
use crate::{
    result::{Files, Measurement},
    scenario::LEAST_ROUNDS,
    stats::{self, Estimate, median, percentile, rounded},
};

/// The figures of a result, or those of one subject.
#[derive(Clone, Copy, Debug)]
pub struct Costs<'a> {
    files: &'a Files,
    subject: Option<&'a str>,
}

/// One figure of two results.
#[derive(Clone, Debug, Serialize)]
pub struct CostRow {
    /// What was measured: one subject, or two with `, and ` between.
    pub subject: String,
    /// The quantity.
    pub quantity: String,
    /// The unit of both values.
    pub unit: String,
    /// Samples of the first and of the second.
    pub samples: [usize; 2],
    /// The value in the first result.
    pub first: f64,
    /// The value in the second result.
    pub second: f64,
    /// The second to the first.
    pub ratio: f64,
    /// Lower end of the ratio's 95 % interval.
    pub low: f64,
    /// Upper end of the ratio's 95 % interval.
    pub high: f64,
    /// What it comes to; `None` if there are too few samples for an interval.
    pub judgement: Option<Judgement>,
}

/// The figures of two results side by side.
#[derive(Clone, Debug, Serialize)]
pub struct CostComparison {
    /// Whether samples of one round are set against each other.
    pub paired: bool,
    /// Least relative difference that matters.
    pub least: f64,
    /// The figures that both have.
    pub rows: Vec<CostRow>,
    /// Figures that one result has alone.
    pub unmatched: Vec<String>,
}

impl<'a> Costs<'a> {
    /// Finds the figures of a subject, or all; `None` if there is none.
    pub fn find(files: &'a Files, subject: Option<&'a str>) -> Option<Self> {
        let found = Self { files, subject };
        found.all().next().map(|_| found)
    }

    fn all(self) -> impl Iterator<Item = &'a Measurement> {
        let of_subject =
            move |one: &&Measurement| self.subject.is_none_or(|own| own == one.subject);
        self.files.run.measurements.iter().filter(of_subject)
    }
}

/// Compares the figures of two results; those of a subject with those of another one.
///
/// # Errors
///
/// When the results differ in what must agree for it; each such fact is named. When they have no figure in common.
pub fn compare_costs(first: Costs<'_>, second: Costs<'_>, least: f64) -> Result<CostComparison> {
    refuse(&key_differences(first.files, second.files))?;
    let by_subject = first.subject.is_none();
    ensure!(
        by_subject == second.subject.is_none(),
        "name a subject of both results, or of neither"
    );
    let is_same = |one: &Measurement, other: &Measurement| {
        let same_subject = !by_subject || one.subject == other.subject;
        same_subject && one.quantity == other.quantity && one.unit == other.unit
    };
    // Two subjects of one run share its rounds.
    let paired = first.files.json == second.files.json;
    let (mut rows, mut unmatched) = (Vec::new(), Vec::new());
    let name = |one: &Measurement, place: &str| {
        format!("{}: {}, in the {place} alone", one.subject, one.quantity)
    };
    for one in first.all() {
        match second.all().find(|other| is_same(one, other)) {
            Some(other) => rows.push(row(one, other, paired, least)),
            None => unmatched.push(name(one, "first")),
        }
    }
    let is_unmatched = |other: &&Measurement| !first.all().any(|one| is_same(one, other));
    let of_second = second.all().filter(is_unmatched);
    unmatched.extend(of_second.map(|other| name(other, "second")));
    if rows.is_empty() {
        bail!(
            "the results have no figure in common:\n  {}",
            unmatched.join("\n  ")
        );
    }
    Ok(CostComparison {
        paired,
        least,
        rows,
        unmatched,
    })
}

fn row(one: &Measurement, other: &Measurement, paired: bool, least: f64) -> CostRow {
    let samples = [one.samples.len(), other.samples.len()];
    let ratio = ratio(one, other, paired);
    let subject = if one.subject == other.subject {
        one.subject.clone()
    } else {
        format!("{}, and {}", one.subject, other.subject)
    };
    let is_enough = samples.iter().all(|&of| of >= LEAST_ROUNDS as usize);
    let judgement = if one.value > 0.0 {
        Judgement::of(ratio, least)
    } else {
        // Noise hides what it costs.
        Judgement::Inconclusive
    };
    CostRow {
        subject,
        quantity: one.quantity.clone(),
        unit: one.unit.clone(),
        samples,
        first: one.value,
        second: other.value,
        ratio: rounded(ratio.value),
        low: rounded(ratio.low),
        high: rounded(ratio.high),
        judgement: is_enough.then_some(judgement),
    }
}

fn ratio(one: &Measurement, other: &Measurement, paired: bool) -> Estimate {
    let samples = [&one.samples, &other.samples];
    let is_positive = samples
        .iter()
        .all(|all| all.iter().all(|sample| *sample > 0.0));
    let is_median = [one, other].iter().all(|of| of.quantile == 0.5);
    if paired && is_positive && is_median && samples[0].len() == samples[1].len() {
        return stats::bootstrap(samples[0].len(), |sample| {
            let log = |&round: &usize| (samples[1][round] / samples[0][round]).ln();
            median(&sample.iter().map(log).collect::<Vec<_>>()).exp()
        });
    }
    let lengths = samples.map(Vec::len);
    stats::bootstrap_two(lengths, |[of_one, of_other]| {
        let of = |measured: &Measurement, sample: &[usize]| {
            let chosen = sample.iter().map(|&place| measured.samples[place]);
            percentile(&chosen.collect::<Vec<_>>(), measured.quantile)
        };
        of(other, of_other) / of(one, of_one)
    })
}

impl CostComparison {
    /// Returns the judgement: worse if any figure is; the same only if none may be anything else.
    pub fn judgement(&self) -> Judgement {
        let any = |wanted| self.rows.iter().any(|row| row.judgement == Some(wanted));
        let order = [
            Judgement::Worse,
            Judgement::Inconclusive,
            Judgement::Better,
            Judgement::Same,
        ];
        let found = order.into_iter().find(|wanted| any(*wanted));
        found.unwrap_or(Judgement::Inconclusive)
    }
}

impl fmt::Display for CostComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.paired {
            "round by round"
        } else {
            "of different runs"
        };
        writeln!(
            f,
            "The second against the first, {how}: {}\n",
            self.judgement()
        )?;
        for row in &self.rows {
            let CostRow {
                subject,
                quantity,
                unit,
                first,
                second,
                ratio,
                low,
                high,
                ..
            } = row;
            writeln!(f, "{subject}: {quantity}")?;
            let values = format!("{first:.2} and {second:.2} {unit}");
            write!(f, "  {values:<36}{ratio:>8.3}  ")?;
            match row.judgement {
                Some(judgement) => writeln!(f, "[{low:.3} {high:.3}]     {judgement}")?,
                None => {
                    let [one, other] = row.samples;
                    writeln!(f, "not judged: {one} and {other} samples are too few")?;
                }
            }
        }
        for one in &self.unmatched {
            writeln!(f, "{one}")?;
        }
        writeln!(
            f,
            "\nLess is better. A ratio within {:.1} % counts as the same. One figure that is worse makes all worse.",
            self.least * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{result::tests::sample, stats::SplitMix64};

    /// Makes a result with two programs' costs in so many rounds, and what was measured once.
    fn costs(seed: u64, rounds: usize, slower: f64) -> Files {
        let mut random = SplitMix64::new(seed);
        let mut files = sample(1, 1.0);
        let own = [("plain", 60.0), ("nat", 120.0 * slower)];
        let noise: Vec<f64> = (0..rounds).map(|_| 1.0 + random.open_unit()).collect();
        let of = |(subject, cost): (&str, f64)| {
            let samples: Vec<f64> = noise.iter().map(|noise| cost * noise).collect();
            Measurement::of(subject, "net cost", "ns", &samples, 0.5, None)
        };
        files.run.measurements = own.map(of).to_vec();
        let memory = Measurement::of("plain", "memory", "MiB", &[70.0 * slower], 0.5, None);
        files.run.measurements.push(memory);
        files.json = serde_json::to_string(&files.run).unwrap();
        files
    }

    fn compare(one: &Files, other: &Files) -> CostComparison {
        let [one, other] = [one, other].map(|files| Costs::find(files, None).unwrap());
        compare_costs(one, other, 0.02).unwrap()
    }

    #[test]
    fn figures_are_matched_and_judged_and_one_that_is_worse_decides() {
        let slower = compare(&costs(1, 40, 1.0), &costs(2, 40, 1.5));
        let judgements: Vec<_> = slower.rows.iter().map(|row| row.judgement).collect();
        assert_eq!(judgements[1..], [Some(Judgement::Worse), None], "{slower}");
        assert_eq!(slower.judgement(), Judgement::Worse);
        let text = slower.to_string();
        assert!(text.starts_with("The second against the first, of different runs: worse\n"));
        assert!(
            text.contains("plain: memory\n  70.00 and 105.00 MiB"),
            "{text}"
        );
        assert!(
            text.contains("1.500  not judged: 1 and 1 samples are too few"),
            "{text}"
        );
        let faster = compare(&costs(1, 40, 1.5), &costs(2, 40, 1.0));
        assert_eq!(faster.rows[1].judgement, Some(Judgement::Better));
        assert_ne!(faster.judgement(), Judgement::Worse);
    }

    #[test]
    fn of_twenty_comparisons_of_equals_one_at_most_finds_a_difference() {
        let told = |judgement| matches!(judgement, Judgement::Same | Judgement::Inconclusive);
        let equal = |seed: &u64| {
            let pair = compare(&costs(*seed, 40, 1.0), &costs(!*seed, 40, 1.0));
            pair.rows[0].judgement.is_some_and(told)
        };
        assert!((0..20).filter(equal).count() >= 19);
    }

    #[test]
    fn subjects_of_one_run_are_compared_round_by_round() {
        let files = costs(1, 40, 1.0);
        let of = |subject| Costs::find(&files, Some(subject)).unwrap();
        let pair = compare_costs(of("plain"), of("nat"), 0.02).unwrap();
        let row = &pair.rows[0];
        // The noise that both share is gone.
        assert!(pair.paired && row.high - row.low < 1e-3, "{pair}");
        assert_eq!((row.ratio, row.subject.as_str()), (2.0, "plain, and nat"));
        assert_eq!(pair.unmatched, ["plain: memory, in the first alone"]);
        let whole = Costs::find(&files, None).unwrap();
        let error = compare_costs(of("nat"), whole, 0.02).unwrap_err();
        assert!(error.to_string().contains("of both results"), "{error}");
        assert!(Costs::find(&files, Some("moon")).is_none());
    }

    #[test]
    fn a_cost_that_noise_hides_is_inconclusive_and_too_few_rounds_decide_nothing() {
        let mut hidden = costs(1, 8, 1.0);
        let of = [-1.0, 1.0, -2.0, 2.0, -3.0, 1.0, -1.0, -1.0];
        hidden.run.measurements[0] = Measurement::of("plain", "net cost", "ns", &of, 0.5, None);
        let pair = compare(&hidden, &costs(2, 8, 1.0));
        assert_eq!(pair.rows[0].judgement, Some(Judgement::Inconclusive));
        let few = compare(&costs(1, 5, 1.0), &costs(2, 5, 3.0));
        assert!(few.rows.iter().all(|row| row.judgement.is_none()), "{few}");
        assert_eq!(few.judgement(), Judgement::Inconclusive);
    }

    #[test]
    fn results_of_other_machines_are_refused_by_name_and_so_are_those_without_a_common_figure() {
        let (one, mut other) = (costs(1, 8, 1.0), costs(2, 8, 1.0));
        let facts = &mut other.run.comparability.facts;
        facts.insert("cpu.model".to_owned(), "another".to_owned());
        let refused = |one: &Files, other: &Files| {
            let [one, other] = [one, other].map(|files| Costs::find(files, None).unwrap());
            compare_costs(one, other, 0.02).unwrap_err().to_string()
        };
        let error = refused(&one, &other);
        assert!(error.contains("cpu.model: made up, and another"), "{error}");
        let mut other = costs(2, 8, 1.0);
        for measurement in &mut other.run.measurements {
            measurement.unit = "us".to_owned();
        }
        let error = refused(&one, &other);
        assert!(
            error.contains("plain: net cost, in the second alone"),
            "{error}"
        );
    }
}
