//! The parts of a page, for each result: verdict, curves, tables, machine, method.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::{
    curves::{self, Figure},
    duration, events, frame_loss, machine, measurements, rates, reference, shares, table,
    verdict::{self, Verdict},
};
use crate::{
    compare::{Comparison, Row},
    result::{Distribution, Files, Run, Stream, digest},
};

/// Percentiles of the table.
const COLUMNS: [f64; 6] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// Reasons that are shown at once.
const SHOWN_AT_ONCE: usize = 12;

pub(super) fn result(files: &Files) -> Markup {
    let run = &files.run;
    let Verdict { sentence, reasons } = Verdict::of(files);
    let (first, rest) = reasons.split_at(reasons.len().min(SHOWN_AT_ONCE));
    html! {
        section {
            p.faint { "Scenario " (run.scenario.name) " · wire " (run.scenario.wire) " · " (run.started) " to " (run.ended) }
            h1 { (sentence) }
            ul { @for reason in first { li { (reason) } } }
            @if !rest.is_empty() {
                details {
                    summary { (rest.len()) " more findings" }
                    ul { @for reason in rest { li { (reason) } } }
                }
            }
            (measurements::section(run))
            (rates::section(run))
            (frame_loss::section(run))
            (events::section(run))
            (reference::section(run))
            @if run.kept_up().next().is_some() { (latency(files)) }
            @if !run.series.is_empty() {
                h2 { "Packets" }
                (shares::packets(run))
                @if let Some(figure) = shares::figure(run) { (figure.show()) }
                h2 { "Drops by place" }
                (shares::drops(run))
                h2 { "What queues received" }
                (shares::queues(run))
                h2 { "How quiet the machine was" }
                (machine::quietness(run))
                h2 { "Systems and method" }
                (method(run))
                h2 { "What this does not show" }
                (limits(run))
            }
            h2 { "The machine" }
            (machine::facts(run))
            h2 { "Once more" }
            @if run.scenario_text.is_empty() {
                p { "The command that repeats the run:" }
            } @else {
                p { "The scenario, and the command that repeats the run:" }
                pre { (run.scenario_text) }
            }
            pre { (run.command) }
            p.faint {
                "Comparable with results of the key " code { (run.comparability.key) } ". SHA-256 of the embedded result.json: "
                code { (digest(files.json.as_bytes())) } ". " code { "guideway-bench verify" }
                " computes every figure of this page again from the embedded data."
            }
        }
    }
}

fn latency(files: &Files) -> Markup {
    let run = &files.run;
    let against_load: Vec<Figure> = curves::against_load(files);
    html! {
        h2 { "Latency" }
        p { "Round trip, from when a request was due to its answer, over all rounds." }
        (latencies(run, Stream::RoundTrip))
        @if is_measured(run, Stream::Forward) {
            p { "The way there alone, from when a request was due to its arrival at a backend, which reads the same clock." }
            (latencies(run, Stream::Forward))
        }
        @if is_measured(run, Stream::RoundTripStamped) {
            p {
                "Round trip by stamps at the client: from when a request left the kernel or the card (as the load says) to when its "
                "answer came there, by one clock. No thread's wake-up is in it, and nothing is corrected. Answers of which a stamp is "
                "missing are left out."
            }
            (latencies(run, Stream::RoundTripStamped))
        }
        p.faint {
            "In brackets the 95 % interval from order statistics, which takes samples for independent. "
            "- stands for fewer than 10 samples above the percentile."
        }
        (curves::by_percentile(files).show())
        @if !against_load.is_empty() {
            h2 { "Latency against the load" }
            @for figure in &against_load { (figure.show()) }
        }
        (comparisons(run))
        h2 { "Rounds" }
        (rounds(run))
        @for figure in curves::over_time(files) { (figure.show()) }
        h2 { "The sender" }
        (machine::sender(run))
    }
}

pub(super) fn cell(text: impl std::fmt::Display) -> Markup {
    html! { (text.to_string()) }
}

/// Returns rows of texts as those of a table.
pub(super) fn cells(rows: impl Iterator<Item: IntoIterator<Item = String>>) -> Vec<Vec<Markup>> {
    rows.map(|row| row.into_iter().map(cell).collect())
        .collect()
}

/// Returns a percentile with its interval, marked if noise limits it.
pub(super) fn percentile(run: &Run, figures: &Distribution, percentile: f64) -> String {
    let Some(one) = figures.percentile(percentile) else {
        return "-".to_owned();
    };
    let bound = |value: Option<u64>| value.map_or("none".to_owned(), |ns| duration(ns as f64));
    let noisy = verdict::noise_limited_from(run).is_some_and(|from| percentile >= from);
    let mark = if noisy { "*" } else { "" };
    format!(
        "{}{mark} [{} {}]",
        bound(one.value),
        bound(one.low),
        bound(one.high)
    )
}

/// Tells whether a quantity is measured of the requests of any load.
pub(super) fn is_measured(run: &Run, stream: Stream) -> bool {
    let mut timed = run.timed();
    timed.any(|series| run.scenario.streams(&series.load).contains(&stream))
}

fn latencies(run: &Run, stream: Stream) -> Markup {
    let names: Vec<String> = COLUMNS.iter().map(|one| format!("p{one}")).collect();
    let mut head = vec!["series", "samples", "mean"];
    head.extend(names.iter().map(String::as_str));
    let missing = match stream {
        Stream::Forward => "did not arrive",
        _ => "no answer",
    };
    head.extend(["max", missing]);
    let rows = run.kept_up().map(|series| {
        let figures = series.figures.of(stream);
        let mut row = vec![
            cell(&series.name),
            cell(figures.count),
            cell(duration(figures.mean)),
        ];
        row.extend(
            COLUMNS
                .iter()
                .map(|&one| cell(percentile(run, figures, one))),
        );
        row.extend([cell(duration(figures.max as f64)), cell(figures.unanswered)]);
        row
    });
    table(&head, &rows.collect::<Vec<_>>())
}

pub(super) fn table_as_text(files: &Files, stream: Stream) -> String {
    let mut text = format!("{:<24}{:>9}", stream.words(), "samples");
    for column in COLUMNS {
        let _ = write!(text, "{:>14}", format!("p{column}"));
    }
    text.push_str("       missing\n");
    for series in files.run.kept_up() {
        let figures = series.figures.of(stream);
        let _ = write!(text, "{:<24}{:>9}", series.name, figures.count);
        for column in COLUMNS {
            let value = figures.value(column).map(|ns| duration(ns as f64));
            let _ = write!(text, "{:>14}", value.unwrap_or_else(|| "-".to_owned()));
        }
        let _ = writeln!(text, "{:>14}", figures.unanswered);
    }
    text
}

fn comparisons(run: &Run) -> Markup {
    let of_direct = |series| verdict::against_direct(run, series);
    let of_direct = run.series.iter().filter_map(of_direct).flat_map(rows_of);
    let of_proxies = |series| verdict::against_proxies(run, series);
    let of_proxies = run.series.iter().flat_map(of_proxies).flat_map(rows_of);
    let [direct, proxies] = [of_direct.collect::<Vec<_>>(), of_proxies.collect()];
    html! {
        @if !direct.is_empty() {
            h2 { "Against the direct wire" }
            p {
                "Medians over the rounds of each round's own percentile, and the median of the rounds' ratios with its "
                "bootstrap interval. A ratio within 2 % counts as the same."
            }
            (table(&["series", "direct", "own", "added", "ratio", "95 % interval", "judgement"], &direct))
        }
        @if !proxies.is_empty() {
            h2 { "Against kube-proxy" }
            p { "The same with kube-proxy in the place of the direct wire." }
            (table(&["series", "kube-proxy", "own", "added", "ratio", "95 % interval", "judgement"], &proxies))
        }
    }
}

fn rows_of(comparison: Comparison) -> Vec<Vec<Markup>> {
    let Comparison { first, second, .. } = comparison;
    let names = if first.starts_with("kube-proxy") {
        format!("{second} against {first}")
    } else {
        second
    };
    let row = |row: Row| {
        vec![
            cell(format!("{names}: {}", row.quantity)),
            cell(duration(row.first)),
            cell(duration(row.second)),
            cell(duration(row.second - row.first)),
            cell(format!("{:.3}", row.ratio)),
            cell(format!("[{:.3} {:.3}]", row.low, row.high)),
            html! { span class=(row.judgement) { (row.judgement.to_string()) } },
        ]
    };
    comparison.rows.into_iter().map(row).collect()
}

fn rounds(run: &Run) -> Markup {
    let rows = run.kept_up().flat_map(|series| {
        series.trials.iter().map(|trial| {
            let figures = &trial.figures.round_trip;
            let value = |percentile| {
                let value = figures.value(percentile).map(|ns| duration(ns as f64));
                cell(value.unwrap_or_else(|| "-".to_owned()))
            };
            vec![
                cell(format!("{}, round {}", series.name, trial.round)),
                cell(format!("{:.1} s", trial.at)),
                cell(trial.place),
                value(50.0),
                value(90.0),
                value(99.0),
                if trial.is_overloaded() {
                    cell("overloaded")
                } else {
                    cell(duration(figures.max as f64))
                },
                cell(figures.unanswered),
            ]
        })
    });
    let head = [
        "trial",
        "at",
        "place",
        "p50",
        "p90",
        "p99",
        "max",
        "no answer",
    ];
    html! {
        details { summary { "All trials" } (table(&head, &rows.collect::<Vec<_>>())) }
    }
}

fn method(run: &Run) -> Markup {
    html! {
        p { "Services of each load balancer: " (run.scenario.services) ". The flows go to up to 16 of them, from all parts of the list." }
        ul {
            @for series in &run.series {
                li { strong { (series.name) } ": " (series.description) ". Load: " (series.load) "." }
            }
        }
        (rates::method(run))
        @if run.timed().next().is_some() { p {
            "Every request is a probe: a UDP datagram with flow, sequence number, time and a keyed check in 16 bytes, which a backend "
            "sends back with its own mark. The loop is open: a request goes out when it is due, whatever became of earlier ones. "
            "Latency counts from when it was due, so a stalled sender hides nothing; the log says that it is corrected at its source. "
            "Both times are read in user space from CLOCK_MONOTONIC. Flows are open before the first trial, and each has proved to be "
            "answered by its own backend; each load balancer has shown that it uses all of its backends. kube-proxy's choice is learned "
            "before each trial, and may not change during it."
        } }
        p {
            "In each round every series has one trial; every other round goes backwards. The first trial of each series is thrown away. "
            "Percentiles are those of merged histograms (3 significant digits), never averages of percentiles."
        }
    }
}

fn limits(run: &Run) -> Markup {
    html! {
        ul {
            @if run.timed().count() == run.series.len() {
                li { "Packet rates: the load is far below what the systems take." }
            }
            @if run.scenario.ports.is_none() {
                li { "A network card: on veth the sender's core does the work of cable, router, edge and node." }
            } @else {
                li { "The cable and the device alone: the figures include this machine's network cards, their drivers and its kernel." }
            }
            li { "Protocols, families and loads other than those above." }
            li { "The systems alone: the figures include the sockets at both ends, and XDP takes longer with what a socket sends than with what a network card receives." }
        }
    }
}
