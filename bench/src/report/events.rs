//! Events: what happened to systems while trials ran, how long no answer came, and what was lost.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::{duration, sections::cells, table};
use crate::{
    result::{Run, Series, Trial},
    stats::median,
};

const HEAD: [&str; 6] = [
    "series",
    "at",
    "took",
    "longest gap, median",
    "longest gap of all",
    "lost of all",
];

pub(super) fn section(run: &Run) -> Markup {
    let rows = cells(rows(run));
    html! {
        @if let Some(event) = run.scenario.event.filter(|_| !rows.is_empty()) {
            h2 { "Events" }
            p {
                "In each trial, the event " (event.what) " happens once. The longest gap is the longest time in which no answer came. "
                "The series without an event tell how long it is then."
            }
            (table(&HEAD, &rows))
        }
    }
}

pub(super) fn as_text(run: &Run) -> String {
    let mut text = String::new();
    for [series, at, took, median, longest, lost] in rows(run) {
        if text.is_empty() {
            let [name, .., all] = HEAD;
            let _ = writeln!(
                text,
                "\n{name:<28}{:>10}{:>12}{:>14}{:>14}{all:>14}",
                "event at", "took", "median gap", "longest gap"
            );
        }
        let _ = writeln!(
            text,
            "{series:<28}{at:>10}{took:>12}{median:>14}{longest:>14}{lost:>14}"
        );
    }
    text
}

/// Returns a row for each timed series of a scenario with an event; none if there was no event.
fn rows(run: &Run) -> impl Iterator<Item = [String; 6]> {
    let happens = run.scenario.event.is_some();
    let series = run.series.iter().filter(move |_| happens);
    series.filter_map(row)
}

fn row(series: &Series) -> Option<[String; 6]> {
    let gap = |trial: &Trial| trial.longest_gap_ns.map(|ns| ns as f64);
    let gaps: Vec<f64> = series.trials.iter().filter_map(gap).collect();
    let longest = gaps.iter().copied().reduce(f64::max)?;
    let of_events = |of: fn(&crate::result::Happened) -> f64| {
        let values = series.trials.iter();
        let values = values.filter_map(|trial| trial.event.as_ref().map(of));
        let values: Vec<f64> = values.collect();
        (!values.is_empty()).then(|| duration(1e9 * median(&values)))
    };
    let none = || "-".to_owned();
    let lost: u64 = series.trials.iter().map(|trial| trial.tally.lost).sum();
    Some([
        series.name.clone(),
        of_events(|event| event.at).unwrap_or_else(none),
        of_events(|event| event.seconds).unwrap_or_else(none),
        duration(median(&gaps)),
        duration(longest),
        lost.to_string(),
    ])
}

#[cfg(test)]
mod tests {
    use crate::{
        report,
        result::{Files, Happened, tests::sample},
        scenario::{Event, EventKind},
    };

    /// Makes a result in which Guideway's agent is restarted in each trial, 1 s after its begin.
    fn restarted() -> Files {
        let mut files = sample(1, 1.5);
        files.run.scenario.event = Some(Event {
            what: EventKind::AgentRestart,
            at: 1.0,
        });
        for (place, series) in files.run.series.iter_mut().enumerate() {
            for (trial, gap) in series.trials.iter_mut().zip(1..) {
                trial.longest_gap_ns = Some(gap * 20_000_000);
                trial.event = (place == 1).then_some(Happened {
                    at: 1.0,
                    seconds: 0.05,
                });
            }
        }
        let started = files.started().unwrap().as_secs_f64();
        Files::make(files.run, started, files.series).unwrap()
    }

    #[test]
    fn an_event_is_told_with_the_longest_gap_and_what_was_lost() {
        let files = restarted();
        let text = report::text(&files);
        let line = text.lines().find(|line| line.contains("1000.0 ms"));
        let words: Vec<&str> = line.unwrap().split_whitespace().collect();
        let expected = "ours-ipip-1 1000.0 ms 50.0 ms 70.0 ms 120.0 ms 24";
        assert_eq!(words.join(" "), expected);
        let page = report::render(std::slice::from_ref(&files));
        assert!(page.contains("<h2>Events</h2>") && page.contains("120.0 ms"));
        report::verify(&page).unwrap();
    }

    #[test]
    fn drawings_over_time_have_a_line_with_a_label_for_each_event() {
        let over_time = |files: Files| {
            let all = report::drawings(&[files]).into_iter();
            let own: Vec<_> = all.filter(|(name, _)| name.starts_with("time-")).collect();
            assert_eq!(own.len(), 2);
            own.into_iter().map(|(_, drawing)| drawing)
        };
        for drawing in over_time(restarted()) {
            // Trials are 5 s apart from the fifth second on, and the last one ends with the axis: 32 s at 620 dots.
            let lines = drawing.matches("<line class=\"mark\"").count();
            assert_eq!(lines, 6, "{drawing}");
            let first = "<line class=\"mark\" x1=\"180.2\" y1=\"12.0\" x2=\"180.2\" y2=\"276.0\"><title>agent-restart";
            assert!(drawing.contains(first), "{drawing}");
            let label = "<text class=\"marked\" x=\"183.2\" y=\"20.0\">agent-restart</text>";
            assert!(drawing.contains(label), "{drawing}");
            // Light, dark and print.
            assert_eq!(drawing.matches("--mark: #").count(), 3, "{drawing}");
        }
        for drawing in over_time(sample(1, 1.5)) {
            assert!(!drawing.contains("class=\"mark\""), "{drawing}");
        }
    }
}
