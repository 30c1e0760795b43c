//! Compares two series: better, worse, same, or not to be told.
//!
//! The quantity is the ratio of a percentile of the one to that of the other, round by round where both are of
//! one run: noise that both trials of a round share cancels out. The 95 % interval of the median ratio is from
//! resampled rounds.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::{
    result::{Files, Series, Stream, Trial},
    stats::{self, Estimate, median},
};

/// Percentiles that are compared, as far as the trials have them.
const PERCENTILES: [f64; 3] = [50.0, 90.0, 99.0];
/// Quantities that are compared.
const STREAMS: [Stream; 2] = [Stream::RoundTrip, Stream::Forward];
/// Least difference that matters, unless the caller names another.
pub const LEAST_DIFFERENCE: f64 = 0.02;

/// What a comparison comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// Lower, by more than the least difference that matters.
    Better,
    /// Higher, by more than the least difference that matters.
    Worse,
    /// The whole interval lies within the least difference that matters.
    Same,
    /// The interval allows more than one of the others.
    Inconclusive,
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::Inconclusive => "inconclusive",
        })
    }
}

impl Judgement {
    /// Judges the ratio of a quantity of which less is better. `least` is the least relative difference that matters.
    pub fn of(ratio: Estimate, least: f64) -> Self {
        let (low, high) = (1.0 / (1.0 + least), 1.0 + least);
        if ratio.low >= low && ratio.high <= high {
            Self::Same
        } else if ratio.low > 1.0 && ratio.value > high {
            Self::Worse
        } else if ratio.high < 1.0 && ratio.value < low {
            Self::Better
        } else {
            Self::Inconclusive
        }
    }
}

/// One percentile of two series.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The quantity.
    pub stream: Stream,
    /// The percentile.
    pub percentile: f64,
    /// Median over the rounds of the first series, in nanoseconds.
    pub first: f64,
    /// Median over the rounds of the second series, in nanoseconds.
    pub second: f64,
    /// The second to the first.
    pub ratio: f64,
    /// Lower end of the ratio's 95 % interval.
    pub low: f64,
    /// Upper end of the ratio's 95 % interval.
    pub high: f64,
    /// What it comes to.
    pub judgement: Judgement,
}

/// Two series side by side.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Name of the first series.
    pub first: String,
    /// Name of the second.
    pub second: String,
    /// Whether trials of one round are set against each other.
    pub paired: bool,
    /// Least relative difference that matters.
    pub least: f64,
    /// The percentiles of the round trip, the median first, and then those of the way there.
    pub rows: Vec<Row>,
    /// Share of requests without an answer: first, second.
    pub unanswered: [f64; 2],
}

/// A series of a result, as `DIRECTORY` or `DIRECTORY:SERIES`.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The result.
    pub files: &'a Files,
    /// The series.
    pub series: &'a Series,
}

impl<'a> Side<'a> {
    /// Finds a series by its name or its system's.
    ///
    /// # Errors
    ///
    /// When there is no such series, or a name is needed because there are several.
    pub fn find(files: &'a Files, name: Option<&str>) -> Result<Self> {
        let all = || files.run.series.iter();
        let names: Vec<&str> = all().map(|series| series.name.as_str()).collect();
        let names = names.join(", ");
        let wanted =
            |series: &&Series| name.is_none_or(|name| series.name == name || series.system == name);
        let mut found = all().filter(wanted);
        let series = found
            .next()
            .with_context(|| format!("no series {:?}: there are {names}", name.unwrap_or("")))?;
        ensure!(
            found.next().is_none(),
            "several series are meant: name one of {names}"
        );
        Ok(Self { files, series })
    }
}

/// Compares two series.
///
/// # Errors
///
/// When the results differ in what must agree for it; each such fact is named. When one of the two was
/// interrupted before its sixth round.
pub fn compare(first: Side<'_>, second: Side<'_>, least: f64) -> Result<Comparison> {
    let differences = differences(first, second);
    if !differences.is_empty() {
        bail!(
            "the results cannot be compared, because they differ in\n{}",
            differences.join("\n")
        );
    }
    for side in [first, second] {
        let name = &side.series.name;
        ensure!(
            side.series.is_timed(),
            "{name} has a rate and no latencies: `guideway-bench report` sets rates of one run side by side"
        );
        ensure!(
            !side.series.is_overloaded(),
            "{name} is overloaded: it has no latency to compare"
        );
        ensure!(
            side.series.trials.len() >= crate::scenario::LEAST_ROUNDS as usize,
            "{} has {} rounds: too few for an interval",
            side.series.name,
            side.series.trials.len()
        );
    }
    let paired = first.files.json == second.files.json;
    Ok(of_series(first.series, second.series, paired, least))
}

fn differences(first: Side<'_>, second: Side<'_>) -> Vec<String> {
    let keys = [first, second].map(|side| &side.files.run.comparability);
    let mut named: Vec<String> = keys[0]
        .differences(keys[1])
        .into_iter()
        .map(|(name, one, other)| format!("  {name}: {one}, and {other}"))
        .collect();
    let [one, other] = [first, second].map(|side| side.series.load.to_string());
    if one != other {
        named.push(format!("  load of the series: {one}, and {other}"));
    }
    named
}

/// Compares two series of like loads; `paired` if their rounds are the same.
pub fn of_series(first: &Series, second: &Series, paired: bool, least: f64) -> Comparison {
    let all = STREAMS.into_iter();
    let all = all.flat_map(|stream| PERCENTILES.map(|percentile| (stream, percentile)));
    let rows = all.filter_map(|(stream, percentile)| {
        let values = [first, second].map(|series| values(&series.trials, stream, percentile));
        let [Some(one), Some(other)] = values else {
            return None;
        };
        let ratio = if paired && one.len() == other.len() {
            stats::bootstrap(one.len(), |sample| {
                let logs = sample.iter().map(|&round| (other[round] / one[round]).ln());
                median(&logs.collect::<Vec<_>>()).exp()
            })
        } else {
            stats::bootstrap_two([one.len(), other.len()], |[of_one, of_other]| {
                let of = |values: &[f64], sample: &[usize]| {
                    median(
                        &sample
                            .iter()
                            .map(|&round| values[round])
                            .collect::<Vec<_>>(),
                    )
                };
                of(&other, of_other) / of(&one, of_one)
            })
        };
        Some(Row {
            stream,
            percentile,
            first: median(&one),
            second: median(&other),
            ratio: ratio.value,
            low: ratio.low,
            high: ratio.high,
            judgement: Judgement::of(ratio, least),
        })
    });
    Comparison {
        first: first.name.clone(),
        second: second.name.clone(),
        paired,
        least,
        rows: rows.collect(),
        unanswered: [first, second].map(unanswered),
    }
}

/// Returns a percentile of each trial; `None` unless all have it.
fn values(trials: &[Trial], stream: Stream, percentile: f64) -> Option<Vec<f64>> {
    let value = |trial: &Trial| Some(trial.figures.of(stream).value(percentile)? as f64);
    trials.iter().map(value).collect()
}

/// Returns what `own` adds to the median of the direct wire, as a share of what `other` adds to it. All three are of one
/// run. `None` unless all have the same rounds, at least six.
pub fn added(direct: &Series, own: &Series, other: &Series, stream: Stream) -> Option<Estimate> {
    let values = [direct, own, other].map(|series| values(&series.trials, stream, 50.0));
    let [Some(direct), Some(own), Some(other)] = values else {
        return None;
    };
    let rounds = direct.len();
    let complete = rounds >= crate::scenario::LEAST_ROUNDS as usize;
    (complete && own.len() == rounds && other.len() == rounds).then(|| {
        stats::bootstrap(rounds, |sample| {
            let of = |values: &[f64]| {
                let values = sample.iter().map(|&round| values[round]);
                median(&values.collect::<Vec<_>>())
            };
            (of(&own) - of(&direct)) / (of(&other) - of(&direct))
        })
    })
}

fn unanswered(series: &Series) -> f64 {
    let all = series.figures.round_trip.count + series.figures.round_trip.unanswered;
    series.figures.round_trip.unanswered as f64 / all.max(1) as f64
}

impl Comparison {
    /// Returns the judgement: that of the median.
    pub fn judgement(&self) -> Judgement {
        let row = self.rows.first();
        row.map_or(Judgement::Inconclusive, |row| row.judgement)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            first,
            second,
            least,
            ..
        } = self;
        let how = if self.paired {
            "round by round"
        } else {
            "of different runs"
        };
        writeln!(f, "{second} against {first}, {how}: {}\n", self.judgement())?;
        writeln!(
            f,
            "{:<16}{:>20}{:>20}{:>8}  {:<16}  judgement",
            "", first, second, "ratio", "95 % interval"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<16}{:>17.1} us{:>17.1} us{:>8.3}  [{:.3} {:.3}]     {}",
                format!("{}, p{}", row.stream.words(), row.percentile),
                row.first / 1e3,
                row.second / 1e3,
                row.ratio,
                row.low,
                row.high,
                row.judgement
            )?;
        }
        let [one, other] = self.unanswered.map(|share| share * 100.0);
        writeln!(f, "{:<16}{one:>18.3} %{other:>18.3} %", "unanswered")?;
        writeln!(
            f,
            "\nA ratio within {:.1} % counts as the same. The median of the round trip decides.",
            least * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::{sample, series};

    fn judge(value: f64, low: f64, high: f64) -> Judgement {
        Judgement::of(Estimate { value, low, high }, 0.02)
    }

    #[test]
    fn judgements_follow_the_interval_and_the_least_difference() {
        assert_eq!(judge(1.0, 0.99, 1.01), Judgement::Same);
        assert_eq!(judge(1.05, 1.04, 1.06), Judgement::Worse);
        assert_eq!(judge(0.95, 0.94, 0.96), Judgement::Better);
        // Told apart from 1, but by less than what matters.
        assert_eq!(judge(1.015, 1.005, 1.03), Judgement::Inconclusive);
        assert_eq!(judge(1.2, 0.9, 1.5), Judgement::Inconclusive);
    }

    fn of_samples(seed: u64, slower: f64) -> Judgement {
        let (series, _) = series(seed, slower);
        of_series(&series[0], &series[1], true, LEAST_DIFFERENCE).judgement()
    }

    #[test]
    fn twenty_comparisons_of_equals_find_no_difference_and_ten_of_unequals_do() {
        let told = |judgement| matches!(judgement, Judgement::Same | Judgement::Inconclusive);
        let equal = (0..20).filter(|&seed| told(of_samples(seed, 1.0))).count();
        assert!(equal >= 19, "{equal} of 20");
        let worse = (0..10)
            .filter(|&seed| of_samples(seed, 1.05) == Judgement::Worse)
            .count();
        assert!(worse >= 9, "{worse} of 10");
        let better = (0..10)
            .filter(|&seed| of_samples(seed, 0.9) == Judgement::Better)
            .count();
        assert!(better >= 9, "{better} of 10");
    }

    #[test]
    fn results_of_different_runs_are_compared_without_pairs() {
        let (one, other) = (sample(1, 1.0), sample(2, 1.3));
        let (one, other) = (
            Side::find(&one, Some("direct")),
            Side::find(&other, Some("ours-ipip")),
        );
        let comparison = compare(one.unwrap(), other.unwrap(), LEAST_DIFFERENCE).unwrap();
        assert!(!comparison.paired);
        assert_eq!(comparison.judgement(), Judgement::Worse);
        assert!(
            (comparison.rows[0].ratio - 1.3).abs() < 0.05,
            "{comparison}"
        );
    }

    #[test]
    fn results_that_differ_in_what_matters_are_refused_by_name() {
        let (one, mut other) = (sample(1, 1.0), sample(2, 1.0));
        let facts = &mut other.run.comparability.facts;
        facts.insert("kernel.release".to_owned(), "5.0".to_owned());
        let side = |files| Side::find(files, Some("direct")).unwrap();
        assert!(compare(side(&one), side(&one), 0.02).unwrap().paired);
        let error = compare(side(&one), side(&other), 0.02)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("kernel.release: 6.1 </script>, and 5.0"),
            "{error}"
        );
    }

    #[test]
    fn a_series_is_found_by_its_name_or_its_system() {
        let files = sample(1, 1.0);
        assert!(Side::find(&files, Some("direct-1")).is_ok());
        let error = Side::find(&files, None).unwrap_err().to_string();
        assert!(error.contains("direct-1, ours-ipip-1"), "{error}");
        assert!(Side::find(&files, Some("moon")).is_err());
    }
}
