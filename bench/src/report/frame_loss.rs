//! The frame loss rate of RFC 2544: the loss at the highest rate and at each tenth of it less.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::{sections::cells, table};
use crate::{
    load::{Passed, search::LOSS_STEPS},
    result::{Run, Series},
    stats::median,
};

/// Says what a series loses at its rate, and from where on nothing.
pub(super) fn sentence(series: &Series) -> String {
    let (name, rate) = (&series.name, series.load.rate.unwrap_or_default());
    let losses = losses(series);
    let first = losses.first().copied().flatten().unwrap_or(0.0);
    let none = losses.iter().position(|loss| *loss == Some(0.0));
    let rest = match none {
        Some(0) => String::new(),
        Some(place) => format!(", and none at {} % of them", percent(place)),
        None => ", and some at each rate that was tried".to_owned(),
    };
    format!(
        "{name} loses {} of {rate} frames a second{rest}.",
        shown(first)
    )
}

/// Returns the table; nothing if no series has the procedure.
pub(super) fn section(run: &Run) -> Markup {
    let rows = cells(rows(run));
    let head: Vec<String> = (0..LOSS_STEPS as usize)
        .map(|place| format!("{} %", percent(place)))
        .collect();
    let head: Vec<&str> = ["series", "highest rate"]
        .into_iter()
        .chain(head.iter().map(String::as_str))
        .collect();
    html! {
        @if !rows.is_empty() {
            h2 { "Frame loss" }
            p {
                "By RFC 2544, section 26.3: trials at the highest rate, at 90 % of it and so on, until two in a row lose nothing. "
                "Medians over the rounds; a frame that was not sent counts as lost."
            }
            (table(&head, &rows))
        }
    }
}

/// Returns the same table as text.
pub(super) fn as_text(run: &Run) -> String {
    let mut text = String::new();
    for row in rows(run) {
        if text.is_empty() {
            let _ = write!(text, "\n{:<28}{:>14}", "frame loss", "at most /s");
            for place in 0..LOSS_STEPS as usize {
                let _ = write!(text, "{:>10}", format!("{} %", percent(place)));
            }
            text.push('\n');
        }
        let [series, rate, losses @ ..] = &row[..] else {
            continue;
        };
        let losses: String = losses.iter().map(|loss| format!("{loss:>10}")).collect();
        let _ = writeln!(text, "{series:<28}{rate:>14}{losses}");
    }
    text
}

/// Returns a row for each series with the procedure.
fn rows(run: &Run) -> impl Iterator<Item = Vec<String>> {
    let has_losses = |series: &&Series| series.trials.iter().any(|trial| !trial.losses.is_empty());
    run.series.iter().filter(has_losses).map(|series| {
        let rate = series.load.rate.unwrap_or_default().to_string();
        let losses = losses(series).into_iter();
        let losses = losses.map(|loss| loss.map_or_else(|| "-".to_owned(), shown));
        [series.name.clone(), rate]
            .into_iter()
            .chain(losses)
            .collect()
    })
}

/// Returns the median loss at each step, the highest rate first; `None` for one that no round has tried.
fn losses(series: &Series) -> Vec<Option<f64>> {
    let of_step = |place: usize| {
        let tried = series.trials.iter();
        let tried = tried.filter_map(|trial| trial.losses.get(place));
        let losses: Vec<f64> = tried.map(loss).collect();
        (!losses.is_empty()).then(|| median(&losses))
    };
    (0..LOSS_STEPS as usize).map(of_step).collect()
}

fn loss(passed: &Passed) -> f64 {
    let offered = passed.tally.offered.max(1);
    1.0 - passed.tally.received as f64 / offered as f64
}

fn shown(loss: f64) -> String {
    format!("{:.3} %", 100.0 * loss)
}

/// Returns the share of the highest rate at a step, in percent.
fn percent(place: usize) -> usize {
    100 - 100 * place / LOSS_STEPS as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        probe::Tally,
        report,
        result::{Files, tests::rates},
        scenario::SearchKind,
    };

    /// Makes a result in which systems lose what is above 3 million frames a second.
    fn of_losses() -> Files {
        let mut run = rates().run;
        let step = |offered: u64| {
            let received = offered.min(3_000_000);
            let lost = offered - received;
            let tally = Tally {
                offered,
                sent: offered,
                received,
                lost,
                ..Tally::default()
            };
            Passed {
                seconds: 1.0,
                tally,
            }
        };
        for series in &mut run.series {
            series.load.rate = Some(4e6);
            series.load.search = SearchKind::Rfc2544Loss;
            for trial in &mut series.trials {
                trial.losses = [4_000_000, 3_600_000, 3_200_000, 2_800_000, 2_400_000]
                    .map(step)
                    .into();
                trial.tally = trial.losses[0].tally;
            }
        }
        let streams = run
            .series
            .iter()
            .map(|one| (one.name.clone(), <_>::default()));
        let streams = streams.collect();
        Files::make(run, 0.0, streams).unwrap()
    }

    #[test]
    fn losses_are_told_by_rate_and_checked() {
        let files = of_losses();
        let text = report::text(&files);
        let line = text
            .lines()
            .find(|line| line.starts_with("ours-ipip-1  ") && line.contains("16.667"));
        let words: Vec<&str> = line.unwrap().split_whitespace().collect();
        let expected = "ours-ipip-1 4000000 25.000 % 16.667 % 6.250 % 0.000 % 0.000 % - - - - -";
        assert_eq!(words.join(" "), expected);
        let told =
            "ours-ipip-1 loses 25.000 % of 4000000 frames a second, and none at 70 % of them.";
        assert!(text.starts_with(told), "{text}");
        let page = report::render(std::slice::from_ref(&files));
        assert!(page.contains("<h2>Frame loss</h2>") && page.contains("16.667 %"));
        report::verify(&page).unwrap();
        assert!(files.run.series[1].trials[0].doubts.is_empty());
        let edited = files
            .json
            .replacen("\"received\": 2400000", "\"received\": 2400001", 1);
        assert_ne!(edited, files.json);
        let refused = Files::of_texts(edited, files.logs).unwrap_err().to_string();
        assert!(refused.contains("do not add up"), "{refused}");
    }

    #[test]
    fn trials_shorter_than_the_rfc_asks_for_are_said_not_to_conform() {
        let files = of_losses();
        let text = report::text(&files);
        let told =
            "RFC 2544 wants trials of 60 s for throughput and frame loss, and these have 1 s";
        assert!(text.contains(told), "{text}");
        let mut long = files;
        long.run.scenario.seconds = 60.0;
        assert!(!report::text(&long).contains("RFC 2544 wants"));
    }
}
