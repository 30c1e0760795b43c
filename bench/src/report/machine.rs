//! The parts of a page about the machine: the sender, how quiet it was, its facts, and in which results differ.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::{
    duration,
    sections::{cell, percentile},
    table, verdict,
};
use crate::{
    environment::is_momentary,
    result::{Files, Run, Stream},
};

pub(super) fn sender(run: &Run) -> Markup {
    let rows = run.kept_up().flat_map(|series| {
        [
            ("how late requests were sent", Stream::Lateness),
            (
                "round trip from when they were sent (uncorrected)",
                Stream::RoundTripUncorrected,
            ),
        ]
        .map(|(what, stream)| {
            let figures = series.figures.of(stream);
            let mut row = vec![cell(format!("{}: {what}", series.name))];
            row.extend([50.0, 99.0, 99.9].map(|one| cell(percentile(run, figures, one))));
            row.push(cell(duration(figures.max as f64)));
            row
        })
    });
    table(
        &["", "p50", "p99", "p99.9", "max"],
        &rows.collect::<Vec<_>>(),
    )
}

pub(super) fn quietness(run: &Run) -> Markup {
    let rows = run.quietness.iter().map(|look| {
        vec![
            cell(format!("{:.1} s", look.at)),
            cell(look.gaps_over_10_us),
            cell(look.gaps_over_100_us),
            cell(look.gaps_over_1_ms),
            cell(duration(look.longest_ns as f64)),
            cell(format!("{:.2} %", look.lost * 100.0)),
            cell(share(look.stolen)),
            cell(share(look.waited)),
        ]
    });
    let head = [
        "at",
        "gaps over 10 µs",
        "over 100 µs",
        "over 1 ms",
        "longest",
        "time lost",
        "stolen since",
        "waited since",
    ];
    html! {
        details {
            summary { "Gaps in a loop that reads the clock, between the rounds: " (format!("{:.2} %", verdict::lost(run) * 100.0)) " of the time" }
            (table(&head, &rows.collect::<Vec<_>>()))
            p.faint {
                "Stolen: what a hypervisor took of the CPUs' time since the look before. Waited: in how much of the time since then "
                "something waited for a CPU, the bench itself included (PSI)."
            }
        }
    }
}

fn share(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.2} %", share * 100.0))
}

/// Shows the facts, and those that had another value after the run.
pub(super) fn facts(run: &Run) -> Markup {
    let changed = |name: &String| run.environment_changes.get(name);
    let mark = |name: &String| if is_momentary(name) { "faint" } else { "bad" };
    let came = run.environment_changes.iter();
    let came = came.filter(|(name, _)| !run.environment.contains_key(*name));
    html! {
        div.scroll {
            table.facts {
                @for (name, value) in &run.environment {
                    tr {
                        th scope="row" { (name) }
                        td { (value) @if let Some(after) = changed(name) { br; span class=(mark(name)) { "after the run: " (after) } } }
                    }
                }
                @for (name, after) in came {
                    tr { th scope="row" { (name) } td { span class=(mark(name)) { "after the run: " (after) } } }
                }
            }
        }
        p.faint { (run.tool.name) " " (run.tool.version) "." }
    }
}

/// Names each fact in which the results of a page differ.
pub(super) fn differences(results: &[Files]) -> Markup {
    let all = results
        .iter()
        .flat_map(|files| files.run.environment.keys());
    let names: BTreeSet<&String> = all.filter(|name| !is_momentary(name)).collect();
    let value = |facts: &BTreeMap<String, String>, name: &String| {
        facts
            .get(name)
            .cloned()
            .unwrap_or_else(|| "absent".to_owned())
    };
    let rows = names.into_iter().filter_map(|name| {
        let values: Vec<String> = results
            .iter()
            .map(|files| value(&files.run.environment, name))
            .collect();
        let differ = values.iter().any(|one| *one != values[0]);
        let first = differ.then(|| cell(name));
        first.map(|first| {
            [first]
                .into_iter()
                .chain(values.iter().map(cell))
                .collect::<Vec<_>>()
        })
    });
    let rows: Vec<Vec<Markup>> = rows.collect();
    let keys: Vec<&str> = results
        .iter()
        .map(|files| files.run.comparability.key.as_str())
        .collect();
    let numbers: Vec<String> = (1..=results.len())
        .map(|number| format!("result {number}"))
        .collect();
    let head: Vec<&str> = ["fact"]
        .into_iter()
        .chain(numbers.iter().map(String::as_str))
        .collect();
    html! {
        section {
            h2 { "Differences between the results" }
            @if keys.iter().all(|key| *key == keys[0]) {
                p { "All have the same comparability key: they can be compared." }
            } @else {
                p { "Their comparability keys differ (" (keys.join(", ")) "): " code { "guideway-bench compare" } " refuses them." }
            }
            @if !rows.is_empty() { div.facts { (table(&head, &rows)) } }
        }
    }
}
