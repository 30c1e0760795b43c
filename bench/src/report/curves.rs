//! The figures of a page that show latencies: by percentile, against the load, and over time.

use maud::{Markup, html};

use super::{
    chart::{Axis, Curve, Mark, chart},
    shares,
};
use crate::{
    result::{Files, Interval, Run, Series, Stream, Trial, merge},
    scenario::{Background, Load},
};

/// Most rates of loads that have a mark each on the axis.
const MOST_TICKS: usize = 6;

/// A figure of the page, which is a file of its own too.
pub(super) struct Figure {
    /// Name of the file, without its ending.
    pub(super) name: String,
    pub(super) drawing: Markup,
    pub(super) caption: String,
}

impl Figure {
    pub(super) fn show(&self) -> Markup {
        html! {
            figure {
                div.scroll { (self.drawing) }
                figcaption { (self.caption) }
            }
        }
    }
}

/// Returns all figures of a result.
pub(super) fn figures(files: &Files) -> Vec<Figure> {
    let mut all = Vec::new();
    if files.run.kept_up().next().is_some() {
        all.push(by_percentile(files));
        all.extend(against_load(files));
        all.extend(over_time(files));
    }
    all.extend(shares::figure(&files.run));
    all
}

pub(super) fn by_percentile(files: &Files) -> Figure {
    let series = files.run.kept_up().enumerate();
    let curves: Vec<Curve> = series
        .map(|(place, series)| steps(files, series, place))
        .collect();
    let nines = points(&curves).map(|point| point.0).fold(1.0, f64::max);
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
    figure(
        "percentiles",
        "Latency by percentile, round trip. The highest percentiles are those of single requests.",
        &x,
        &curves,
        &[],
    )
}

fn figure(name: &str, caption: &str, x: &Axis, curves: &[Curve], marks: &[Mark]) -> Figure {
    let y = Axis::of_durations(points(curves).map(|point| point.1));
    Figure {
        name: name.to_owned(),
        drawing: chart(caption, x, &y, curves, marks),
        caption: caption.to_owned(),
    }
}

fn points(curves: &[Curve]) -> impl Iterator<Item = &(f64, f64)> {
    curves.iter().flat_map(|curve| curve.runs.iter().flatten())
}

/// Returns where a duration in nanoseconds is on an axis of durations.
fn height(ns: u64) -> f64 {
    (ns.max(1) as f64).log10()
}

fn steps(files: &Files, series: &Series, place: usize) -> Curve {
    let intervals = &files.series[&series.name][&Stream::RoundTrip];
    let all = merge(intervals.iter().map(|interval| &interval.histogram));
    // A request without an answer is longer than any: the curve ends before.
    let answered = all.len() as f64 / (all.len() + series.figures.round_trip.unanswered) as f64;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for step in all.iter_quantiles(10) {
        let left = 1.0 - step.quantile() * answered;
        let value = height(step.value_iterated_to());
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
        label: label(series),
        style: place,
        runs: vec![points],
    }
}

fn label(series: &Series) -> String {
    format!("{} ({})", series.name, series.load)
}

/// Draws percentiles against the rate of the load, if there are several rates.
pub(super) fn against_load(files: &Files) -> Vec<Figure> {
    let mut rates: Vec<f64> = files.run.kept_up().filter_map(Series::mean_rate).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let [low, .., high] = rates[..] else {
        return Vec::new();
    };
    let decades: Vec<f64> = (0..9).map(|decade| 10_f64.powi(decade)).collect();
    let marked = if rates.len() > MOST_TICKS {
        &decades
    } else {
        &rates
    };
    let marked = marked.iter().filter(|rate| (low..=high).contains(*rate));
    let has_frames = files
        .run
        .kept_up()
        .any(|series| series.background_rate().is_some());
    let x = Axis {
        low: low.log10(),
        high: high.log10(),
        ticks: marked
            .map(|rate| (rate.log10(), format!("{rate}/s")))
            .collect(),
        label: if has_frames {
            "requests and live frames a second".to_owned()
        } else {
            "requests a second".to_owned()
        },
    };
    let of_percentile = |percentile: f64| {
        let curves = curves_against_load(&files.run, percentile);
        let name = format!("load-p{percentile}");
        let caption = format!("p{percentile} of the round trip against the load.");
        figure(&name, &caption, &x, &curves, &[])
    };
    [50.0, 99.0].map(of_percentile).into()
}

/// What one curve shows: a system under loads of one kind.
pub(super) struct Group<'a> {
    pub(super) system: &'a str,
    pub(super) load: Load,
    /// From left to right.
    pub(super) points: Vec<(f64, f64)>,
}

/// Groups series by system and by kind of load, in the order in which these come first. A series may have no point.
pub(super) fn groups<'a>(
    all: impl Iterator<Item = (&'a Series, Load, Option<(f64, f64)>)>,
) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (series, load, point) in all {
        let system = series.system.as_str();
        let known = groups
            .iter_mut()
            .find(|group| group.system == system && group.load == load);
        match known {
            Some(group) => group.points.extend(point),
            None => groups.push(Group {
                system,
                load,
                points: Vec::from_iter(point),
            }),
        }
    }
    for group in &mut groups {
        (group.points).sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    groups
}

/// Returns a curve for each system; for each kind of load too, where loads differ in more than the rate.
fn curves_against_load(run: &Run, percentile: f64) -> Vec<Curve> {
    let all = run.kept_up().map(|series| {
        let kind = Load {
            rate: None,
            background: Background::None,
            ..series.load.clone()
        };
        let value = series.figures.round_trip.value(percentile);
        let point = value.and_then(|value| Some((series.mean_rate()?.log10(), height(value))));
        (series, kind, point)
    });
    let groups = groups(all);
    let has_kinds = groups.iter().any(|group| group.load != groups[0].load);
    let curve = |(style, group): (usize, &Group<'_>)| Curve {
        label: if has_kinds {
            format!("{} ({})", group.system, group.load)
        } else {
            group.system.to_owned()
        },
        style,
        runs: vec![group.points.clone()],
    };
    groups.iter().enumerate().map(curve).collect()
}

/// Draws the median and the longest of each interval against the time, and marks the events.
pub(super) fn over_time(files: &Files) -> Vec<Figure> {
    let marks = events(&files.run);
    let of_events = if marks.is_empty() {
        ""
    } else {
        " A line across is an event."
    };
    let of_share = |(name, share, what): (&str, f64, &str)| {
        let series = files.run.kept_up().enumerate();
        let curves: Vec<Curve> = series
            .map(|(place, series)| Curve {
                label: label(series),
                style: place,
                runs: by_round(files, series, share),
            })
            .collect();
        let caption =
            format!("{what} of each second over time: each stroke is a trial.{of_events}");
        figure(name, &caption, &time_axis(&curves, &marks), &curves, &marks)
    };
    let shares = [
        ("time-p50", 0.5, "Median round trip"),
        ("time-max", 1.0, "Longest round trip"),
    ];
    shares.map(of_share).into()
}

/// Returns a mark for each event that happened in a trial, in the order of time.
fn events(run: &Run) -> Vec<Mark> {
    let Some(event) = run.scenario.event else {
        return Vec::new();
    };
    let trials = run.timed().flat_map(|series| &series.trials);
    let mark = |trial: &Trial| {
        Some(Mark {
            at: trial.at + trial.event?.at,
            label: event.what.to_string(),
        })
    };
    let mut marks: Vec<Mark> = trials.filter_map(mark).collect();
    marks.sort_by(|one, other| one.at.total_cmp(&other.at));
    marks
}

fn time_axis(curves: &[Curve], marks: &[Mark]) -> Axis {
    let times = points(curves).map(|point| point.0);
    let times = times.chain(marks.iter().map(|mark| mark.at));
    let end = times.fold(1.0, f64::max);
    let ticks = (0..=4).map(|part| end * f64::from(part) / 4.0);
    Axis {
        low: 0.0,
        high: end,
        ticks: ticks.map(|at| (at, format!("{at:.0} s"))).collect(),
        label: "time since the start of the run".to_owned(),
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
            let height = height(interval.histogram.value_at_quantile(share));
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
