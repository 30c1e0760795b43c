//! Compares two series: better, worse, same, or not to be told.
//!
//! The quantity is the ratio of a percentile of the one to that of the other, round by round where both are of
//! one run: noise that both trials of a round share cancels out. The 95 % interval of the median ratio is from
//! resampled rounds. Of rates, the time per frame is compared: of both, less is better.

mod costs;

use std::fmt;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::{
    result::{Files, Series, Stream, Trial},
    stats::{self, Estimate, median},
};

pub use costs::{CostComparison, CostRow, Costs, compare_costs};

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

/// What is compared: of each, less is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "quantity", rename_all = "kebab-case")]
pub enum Quantity {
    /// A percentile of a latency.
    Latency {
        /// The latency.
        stream: Stream,
        /// The percentile.
        percentile: f64,
    },
    /// The time from one frame that passes to the next, on average.
    TimePerFrame,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latency { stream, percentile } => write!(f, "{}, p{percentile}", stream.words()),
            Self::TimePerFrame => f.write_str("time per frame"),
        }
    }
}

impl Quantity {
    /// Returns what is compared of a series.
    fn all(series: &Series) -> Vec<Self> {
        if !series.is_timed() {
            let own = series.measures_rate().then_some(Self::TimePerFrame);
            return own.into_iter().collect();
        }
        let of_stream = |stream| PERCENTILES.map(|percentile| Self::Latency { stream, percentile });
        STREAMS.into_iter().flat_map(of_stream).collect()
    }

    /// Returns the value of each trial; `None` unless all have it.
    fn values(self, series: &Series) -> Option<Vec<f64>> {
        match self {
            Self::Latency { stream, percentile } => values(&series.trials, stream, percentile),
            Self::TimePerFrame => {
                let rates = series.rates().into_iter();
                rates.map(|rate| (rate > 0.0).then(|| 1e9 / rate)).collect()
            }
        }
    }
}

/// One quantity of two series.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The quantity.
    #[serde(flatten)]
    pub quantity: Quantity,
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
    /// The percentiles of the round trip, the median first, and then those of the way there; or the time per frame.
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
        let subjects = files.run.measurements.iter();
        let subjects: Vec<&str> = subjects.map(|one| one.subject.as_str()).collect();
        let series = found.next().with_context(|| {
            let subjects = match subjects[..] {
                [] => String::new(),
                _ => format!(", and the subjects {}", subjects.join("; ")),
            };
            format!(
                "no series {:?}: there are {names}{subjects}",
                name.unwrap_or("")
            )
        })?;
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
    refuse(&differences(first, second))?;
    for side in [first, second] {
        let name = &side.series.name;
        ensure!(
            side.series.is_timed() || side.series.measures_rate(),
            "{name} has the rate of its load: there is nothing to compare"
        );
        ensure!(
            !side.series.is_timed() || !side.series.is_overloaded(),
            "{name} is overloaded: it has no latency to compare"
        );
        ensure!(
            !side.series.is_timed() || side.series.has_latencies(),
            "{name} contradicts Little's law: it has no latency to compare"
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

/// Refuses results that differ in what must agree.
fn refuse(differences: &[String]) -> Result<()> {
    ensure!(
        differences.is_empty(),
        "the results cannot be compared, because they differ in\n{}",
        differences.join("\n")
    );
    Ok(())
}

/// Names the facts in which results differ and must not.
fn key_differences(first: &Files, second: &Files) -> Vec<String> {
    let keys = [first, second].map(|files| &files.run.comparability);
    let differing = keys[0].differences(keys[1]).into_iter();
    differing
        .map(|(name, one, other)| format!("  {name}: {one}, and {other}"))
        .collect()
}

fn differences(first: Side<'_>, second: Side<'_>) -> Vec<String> {
    let mut named = key_differences(first.files, second.files);
    let [one, other] = [first, second].map(|side| side.series.load.to_string());
    if one != other {
        named.push(format!("  load of the series: {one}, and {other}"));
    }
    named
}

/// Compares two series of like loads; `paired` if their rounds are the same.
pub fn of_series(first: &Series, second: &Series, paired: bool, least: f64) -> Comparison {
    let rows = Quantity::all(first).into_iter().filter_map(|quantity| {
        let values = [first, second].map(|series| quantity.values(series));
        let [Some(one), Some(other)] = values else {
            return None;
        };
        let ratio = if paired && one.len() == other.len() {
            self::paired(&one, &other)
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
            quantity,
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

/// Measures two sides in rounds that go back and forth; returns the values of each. `measure` gets the side: 0 or 1.
///
/// # Errors
///
/// Those of `measure`.
pub(crate) fn in_turns(
    rounds: usize,
    mut measure: impl FnMut(usize) -> Result<f64>,
) -> Result<[Vec<f64>; 2]> {
    let mut values = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        let mut order = [0, 1];
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            values[side].push(measure(side)?);
        }
    }
    Ok(values)
}

/// Returns the ratio of the second value to the first, of rounds that have both.
pub(crate) fn paired(first: &[f64], second: &[f64]) -> Estimate {
    stats::bootstrap(first.len(), |sample| {
        let logs = sample
            .iter()
            .map(|&round| (second[round] / first[round]).ln());
        median(&logs.collect::<Vec<_>>()).exp()
    })
}

/// Returns a percentile of each trial; `None` unless all have it.
fn values(trials: &[Trial], stream: Stream, percentile: f64) -> Option<Vec<f64>> {
    let value = |trial: &Trial| Some(trial.figures.of(stream).value(percentile)? as f64);
    trials.iter().map(value).collect()
}

/// Returns what `own` adds to a percentile of the direct wire, as a share of what `other` adds to it: of the medians over
/// the rounds. All three are of one run. `None` unless all have the same rounds, at least six, and the percentile in each.
pub fn added(
    [direct, own, other]: [&Series; 3],
    stream: Stream,
    percentile: f64,
) -> Option<Estimate> {
    let values = [direct, own, other].map(|series| values(&series.trials, stream, percentile));
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
    if !series.is_timed() {
        let [_, sent, received] = series.totals();
        return 1.0 - received as f64 / sent.max(1) as f64;
    }
    let all = series.figures.round_trip.count + series.figures.round_trip.unanswered;
    series.figures.round_trip.unanswered as f64 / all.max(1) as f64
}

impl Comparison {
    /// Returns the judgement: that of the first row.
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
                "{:<16}{:>20}{:>20}{:>8.3}  [{:.3} {:.3}]     {}",
                row.quantity.to_string(),
                shown(row.first),
                shown(row.second),
                row.ratio,
                row.low,
                row.high,
                row.judgement
            )?;
        }
        let [one, other] = self.unanswered.map(|share| share * 100.0);
        writeln!(f, "{:<16}{one:>18.3} %{other:>18.3} %", "missing")?;
        writeln!(
            f,
            "\nA ratio within {:.1} % counts as the same. The first line decides.",
            least * 100.0
        )
    }
}

/// Returns a time for readers, in nanoseconds or microseconds.
fn shown(ns: f64) -> String {
    if ns < 10e3 {
        format!("{ns:.1} ns")
    } else {
        format!("{:.1} us", ns / 1e3)
    }
}

#[cfg(test)]
mod tests;
