//! The curves of a page: latency by percentile, and over time.

use maud::{Markup, html};

use super::chart::{Axis, Curve, chart};
use crate::result::{Files, Interval, Series, Stream, merge};

pub(super) fn percentile_curves(files: &Files) -> Markup {
    let curves: Vec<Curve> = files
        .run
        .kept_up()
        .map(|series| curve(files, series))
        .collect();
    let points = || curves.iter().flat_map(|curve| curve.runs.iter().flatten());
    let nines = points().map(|point| point.0).fold(1.0, f64::max);
    let ticks = [
        "0 %",
        "90 %",
        "99 %",
        "99.9 %",
        "99.99 %",
        "99.999 %",
        "99.9999 %",
    ];
    let ticks = (0..).map(f64::from).zip(ticks.map(str::to_owned));
    let x = Axis {
        low: 0.0,
        high: nines,
        ticks: ticks.take_while(|(place, _)| *place <= nines).collect(),
        label: "percentile (each step to the right: a tenth of the requests is left)".to_owned(),
    };
    let y = Axis::of_durations(points().map(|point| point.1));
    html! {
        figure {
            (chart("Latency by percentile, for each series", &x, &y, &curves))
            figcaption { "Latency by percentile. The highest percentiles are those of single requests." }
        }
    }
}

fn curve(files: &Files, series: &Series) -> Curve {
    let intervals = &files.series[&series.name][&Stream::RoundTrip];
    let all = merge(intervals.iter().map(|interval| &interval.histogram));
    // A request without an answer is longer than any: the curve ends before.
    let answered = all.len() as f64 / (all.len() + series.figures.round_trip.unanswered) as f64;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for step in all.iter_quantiles(10) {
        let left = 1.0 - step.quantile() * answered;
        let value = (step.value_iterated_to().max(1) as f64).log10();
        if left <= 0.0 {
            break;
        }
        let place = -left.log10();
        // Steps, not slopes: nothing was measured in between.
        if let Some(&(_, before)) = points.last() {
            points.push((place, before));
        }
        points.push((place, value));
    }
    Curve {
        label: format!("{} ({})", series.name, series.load),
        runs: vec![points],
    }
}

pub(super) fn over_time(files: &Files) -> Markup {
    let curves: Vec<Curve> = files
        .run
        .kept_up()
        .flat_map(|series| {
            [("p50", 0.5), ("max", 1.0)].map(|(name, share)| Curve {
                label: format!("{}, {name} of each interval", series.name),
                runs: by_round(files, series, share),
            })
        })
        .collect();
    let points = || curves.iter().flat_map(|curve| curve.runs.iter().flatten());
    let end = points().map(|point| point.0).fold(1.0, f64::max);
    let x = Axis {
        low: 0.0,
        high: end,
        ticks: (0..=4)
            .map(|part| end * f64::from(part) / 4.0)
            .map(|at| (at, format!("{at:.0} s")))
            .collect(),
        label: "time since the start of the run".to_owned(),
    };
    let y = Axis::of_durations(points().map(|point| point.1));
    html! {
        figure {
            (chart("Latency over time, for each series", &x, &y, &curves))
            figcaption { "Latency over time: each stroke is a trial." }
        }
    }
}

fn by_round(files: &Files, series: &Series, share: f64) -> Vec<Vec<(f64, f64)>> {
    let intervals = &files.series[&series.name][&Stream::RoundTrip];
    let is_overloaded = |round| {
        let mut trials = series.trials.iter();
        trials.any(|trial| trial.round == round && trial.is_overloaded())
    };
    let rounds = intervals.chunk_by(|one, next| one.round == next.round);
    let run = |intervals: &[Interval]| {
        let filled = intervals
            .iter()
            .filter(|interval| !interval.histogram.is_empty());
        let points = filled.flat_map(|interval| {
            let value = interval.histogram.value_at_quantile(share);
            let height = (value.max(1) as f64).log10();
            let start = interval.start.as_secs_f64();
            [
                (start, height),
                (start + interval.length.as_secs_f64(), height),
            ]
        });
        points.collect()
    };
    let kept_up = rounds.filter(|intervals| !is_overloaded(intervals[0].round));
    kept_up.map(run).collect()
}
