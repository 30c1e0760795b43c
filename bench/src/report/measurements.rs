//! Figures that belong to no load, with their bars.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::{sections::cell, table};
use crate::{
    bars::Outcome,
    result::{Measurement, Run},
};

/// Says how many figures there are, and how many keep their bars; `None` if there is no figure.
pub(super) fn sentence(run: &Run) -> Option<String> {
    let all = &run.measurements;
    if all.is_empty() {
        return None;
    }
    let outcomes: Vec<Outcome> = all.iter().filter_map(Measurement::outcome).collect();
    let count = |outcome| outcomes.iter().filter(|own| **own == outcome).count();
    let mut text = format!("{} figures were measured.", all.len());
    if !outcomes.is_empty() {
        let _ = write!(
            text,
            " Of {} with a bar, {} keep it, {} do not, and {} cannot be told.",
            outcomes.len(),
            count(Outcome::Holds),
            count(Outcome::Fails),
            count(Outcome::Inconclusive)
        );
    }
    Some(text)
}

/// Returns the table of figures; nothing if there is none.
pub(super) fn section(run: &Run) -> Markup {
    let rows: Vec<Vec<Markup>> = run
        .measurements
        .iter()
        .map(|one| row(one).map(cell).into())
        .collect();
    html! {
        @if !rows.is_empty() {
            h2 { "Figures and bars" }
            p.faint { "In brackets the 95 % bootstrap interval over rounds or changes. A bar holds if the whole interval keeps it." }
            (table(&HEAD, &rows))
        }
    }
}

const HEAD: [&str; 6] = [
    "measured on",
    "figure",
    "value",
    "samples",
    "bar",
    "outcome",
];

pub(super) fn as_text(run: &Run) -> String {
    let mut text = String::new();
    for one in &run.measurements {
        let [subject, quantity, value, samples, bar, outcome] = row(one);
        let _ = writeln!(
            text,
            "{subject}: {quantity}: {value}, {samples} samples{}{bar} {outcome}",
            if bar.is_empty() { "" } else { ", bar " }
        );
    }
    text
}

/// Returns the same table in Markdown; nothing if there is no figure.
pub(super) fn as_markdown(run: &Run) -> String {
    if run.measurements.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n| {} |\n|{}\n",
        HEAD.join(" | "),
        "---|".repeat(HEAD.len())
    );
    for one in &run.measurements {
        let _ = writeln!(text, "| {} |", row(one).join(" | "));
    }
    text
}

fn row(one: &Measurement) -> [String; 6] {
    let bar = one.bound.map(|bound| format!("<= {bound:.2}"));
    let outcome = one.outcome().map(|outcome| outcome.to_string());
    [
        one.subject.clone(),
        one.quantity.clone(),
        one.to_string(),
        one.samples.len().to_string(),
        bar.unwrap_or_default(),
        outcome.unwrap_or_default(),
    ]
}
