//! The report of one or several results: one HTML file that needs nothing else.
//!
//! The page holds no script, and its policy forbids every request. The measured data is in the page, from where
//! `verify` takes it, computes all figures again and makes the page again.

#[cfg(test)]
mod browser;
mod chart;
mod curves;
mod embed;
mod events;
mod export;
mod frame_loss;
mod machine;
mod measurements;
mod rates;
mod reference;
mod sections;
mod shares;
mod throughput;
mod verdict;

use base64::{Engine, prelude::BASE64_STANDARD};
use maud::{DOCTYPE, Markup, PreEscaped, html};

pub use embed::{ReportError, verify};
pub use export::{csv, drawings, json, markdown, open_metrics};
pub use verdict::{Verdict, wrong_packets};

use crate::result::{Files, Stream};

/// The style of charts. It follows the reader's light or dark.
const CHARTS: &str = include_str!("report/chart.css");
/// The page's style, with rules for print and for narrow screens.
const STYLE: &str = concat!(
    include_str!("report/chart.css"),
    include_str!("report/page.css")
);

/// Makes the page.
pub fn render(results: &[Files]) -> String {
    let title = results.first().map_or("", |files| &files.run.scenario.name);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content={ "guideway-bench " (env!("CARGO_PKG_VERSION")) };
                title { "Guideway bench: " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    @for files in results { (sections::result(files)) }
                    @let throughput = throughput::figures(results);
                    @if !throughput.is_empty() {
                        section {
                            h2 { "Throughput" }
                            @for figure in &throughput { (figure.show()) }
                        }
                    }
                    @if results.len() > 1 { (machine::differences(results)) }
                }
                @for (files, number) in results.iter().zip(0..) { (embed::blocks(files, number)) }
            }
        }
    };
    page.into_string() + "\n"
}

/// Only the page's own style is allowed.
fn policy() -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, STYLE.as_bytes());
    let digest = BASE64_STANDARD.encode(digest);
    format!("default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'")
}

/// Returns the report as text: the verdict and the tables.
pub fn text(files: &Files) -> String {
    let Verdict { sentence, reasons } = Verdict::of(files);
    let mut text = format!("{sentence}\n");
    for reason in reasons {
        text += &format!("  {reason}\n");
    }
    if files.run.kept_up().next().is_some() {
        let streams = [Stream::RoundTrip, Stream::Forward, Stream::RoundTripStamped].into_iter();
        for stream in streams.filter(|stream| sections::is_measured(&files.run, *stream)) {
            text += &format!("\n{}", sections::table_as_text(files, stream));
        }
    }
    text += &measurements::as_text(&files.run);
    if files.run.series.is_empty() {
        return text;
    }
    text += &events::as_text(&files.run);
    text += &reference::as_text(&files.run);
    text += &rates::as_text(&files.run);
    text + &frame_loss::as_text(&files.run) + "\n" + &shares::packets_as_text(&files.run)
}

/// Returns a duration for readers: nanoseconds, microseconds, or milliseconds from ten on.
fn duration(ns: f64) -> String {
    if (1.0..1e3).contains(&ns.abs()) {
        format!("{ns:.0} ns")
    } else if ns < 10e6 {
        format!("{:.1} µs", ns / 1e3)
    } else {
        format!("{:.1} ms", ns / 1e6)
    }
}

fn table(head: &[&str], rows: &[Vec<Markup>]) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr { @for name in head { th scope="col" { (name) } } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (place, cell) in row.iter().enumerate() {
                                @if place == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
