//! Packets: what became of them, which backends answered, and where machines threw some away.

use std::{collections::BTreeMap, fmt::Write as _};

use maud::{Markup, html};

use super::{chart, curves::Figure, sections::cell, table};
use crate::{
    probe::Tally,
    result::{Run, Series},
};

/// What is counted of a trial's packets: the heading, the count, and whether any at all is bad.
type Column = (&'static str, fn(&Tally) -> u64, bool);

pub(super) const COLUMNS: [Column; 9] = [
    ("offered", |tally| tally.offered, false),
    ("sent", |tally| tally.sent, false),
    ("answered", |tally| tally.received, false),
    ("lost", |tally| tally.lost, true),
    ("duplicates", |tally| tally.duplicates, false),
    ("reordered", |tally| tally.reordered, false),
    ("corrupt", |tally| tally.corrupt, true),
    ("wrong backend", |tally| tally.misdelivered, true),
    ("foreign", |tally| tally.foreign, false),
];

/// Adds up a column over the trials of a series.
pub(super) fn sum(series: &Series, count: fn(&Tally) -> u64) -> u64 {
    series.trials.iter().map(|trial| count(&trial.tally)).sum()
}

pub(super) fn packets(run: &Run) -> Markup {
    let rows = run.series.iter().map(|series| {
        let numbers = COLUMNS.map(|(_, count, is_bad)| {
            let all = sum(series, count);
            let is_bad = is_bad && all > 0;
            html! { @if is_bad { span.bad { (all) } } @else { (all) } }
        });
        let name = [cell(&series.name)];
        name.into_iter().chain(numbers).collect::<Vec<Markup>>()
    });
    let names = COLUMNS.map(|(name, ..)| name);
    let head: Vec<&str> = ["series"].into_iter().chain(names).collect();
    html! {
        (table(&head, &rows.collect::<Vec<_>>()))
        p.faint { "Foreign frames are no probes of the trial, and are in no other figure." }
    }
}

pub(super) fn packets_as_text(run: &Run) -> String {
    let mut text = format!("{:<24}", "packets");
    for (name, ..) in COLUMNS {
        let _ = write!(text, "{name:>14}");
    }
    text.push('\n');
    for series in &run.series {
        let _ = write!(text, "{:<24}", series.name);
        for (_, count, _) in COLUMNS {
            let _ = write!(text, "{:>14}", sum(series, count));
        }
        text.push('\n');
    }
    text
}

/// Draws the share of answers that each backend gave; nothing where it is not known who answers.
pub(super) fn figure(run: &Run) -> Option<Figure> {
    let rows = run.timed().map(|series| {
        let mut all = vec![0; series.backends.len()];
        for trial in &series.trials {
            for (sum, share) in all.iter_mut().zip(&trial.shares) {
                *sum += share;
            }
        }
        let whole = all.iter().sum::<u64>().max(1) as f64;
        let shares = all.iter().map(|count| *count as f64 / whole);
        let named = series.backends.iter().zip(shares);
        chart::Bar {
            label: series.name.clone(),
            parts: named.map(|(name, share)| (name.clone(), share)).collect(),
        }
    });
    let rows: Vec<chart::Bar> = rows.collect();
    let caption = "Answers of each backend, as a share of the series' answers.";
    (!rows.is_empty()).then(|| Figure {
        name: "shares".to_owned(),
        drawing: chart::bars(caption, &rows),
        caption: caption.to_owned(),
    })
}

pub(super) fn drops(run: &Run) -> Markup {
    let rows: Vec<Vec<Markup>> = run.series.iter().flat_map(drops_of).collect();
    html! {
        p {
            "What machines threw away during the trials: at interfaces, in IP and UDP, in the connection table, in Guideway. "
            "Packets that are not the trial's are among them: what the trial lost is in the table above."
        }
        @if rows.is_empty() {
            p { "Nothing was thrown away." }
        } @else {
            (table(&["series", "place", "packets"], &rows))
        }
    }
}

fn drops_of(series: &Series) -> Vec<Vec<Markup>> {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for (place, count) in series.trials.iter().flat_map(|trial| &trial.drops) {
        *all.entry(place).or_default() += count;
    }
    let rows = all.into_iter();
    rows.map(|(place, count)| vec![cell(&series.name), cell(place), cell(count)])
        .collect()
}
