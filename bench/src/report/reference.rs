//! Latency at shares of a rate that was found before the first trial, such as 10, 50 and 90 % of a system's partial-drop rate.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::{
    sections::{cells, percentile},
    table,
};
use crate::result::{Run, Series};

/// Percentiles of the round trip in the table.
const PERCENTILES: [f64; 3] = [50.0, 90.0, 99.0];
const HEAD: [&str; 7] = [
    "series",
    "share",
    "rate found /s",
    "frames beside /s",
    "p50",
    "p90",
    "p99",
];

/// Returns the table; nothing if no series has a share.
pub(super) fn section(run: &Run) -> Markup {
    let rows = cells(rows(run));
    html! {
        @if !rows.is_empty() {
            h2 { "Latency at shares of a rate" }
            p {
                "Round trip of requests beside live frames. The rate that they have a share of was found once, before the first trial, "
                "and is the same for all shares of it. In brackets the 95 % interval."
            }
            (table(&HEAD, &rows))
        }
    }
}

/// Returns the same table as text.
pub(super) fn as_text(run: &Run) -> String {
    let mut text = String::new();
    let mut add = |[series, share, of, beside, p50, p90, p99]: [&str; 7]| {
        let _ = writeln!(
            text,
            "{series:<28}{share:<40}{of:>14}{beside:>18}  {p50:<32}{p90:<32}{p99}"
        );
    };
    for (row, place) in rows(run).zip(0..) {
        if place == 0 {
            add(HEAD);
        }
        add(row.each_ref().map(String::as_str));
    }
    if text.is_empty() {
        return text;
    }
    format!("\n{text}")
}

/// Returns a row for each series with a share.
fn rows(run: &Run) -> impl Iterator<Item = [String; 7]> {
    run.series.iter().filter_map(|series| row(run, series))
}

fn row(run: &Run, series: &Series) -> Option<[String; 7]> {
    let [p50, p90, p99] = PERCENTILES.map(|one| {
        if series.is_overloaded() {
            return "overloaded".to_owned();
        }
        percentile(run, &series.figures.round_trip, one)
    });
    Some([
        series.name.clone(),
        series.load.background.share_in_words()?,
        series.reference_rate?.to_string(),
        series.background_rate()?.to_string(),
        p50,
        p90,
        p99,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report,
        result::{Files, tests::sample},
        scenario::{Background, SearchKind, ShareOfSearch},
    };

    /// Makes a result in which requests are timed beside 10 % and 90 % of a partial-drop rate; at 90 %, half have no answer.
    fn at_shares() -> Files {
        let mut files = sample(1, 1.5);
        for (series, share) in files.run.series.iter_mut().zip([0.1, 0.9]) {
            let search = SearchKind::Pdr;
            series.load.background = Background::OfSearch(ShareOfSearch { share, search });
            series.reference_rate = Some(3_921_233.0);
        }
        for trial in &mut files.run.series[1].trials {
            trial.tally.received /= 2;
        }
        files
    }

    fn line(text: &str, share: &str) -> String {
        let line = text.lines().find(|line| line.contains(share));
        let words: Vec<&str> = line.unwrap().split_whitespace().collect();
        words.join(" ")
    }

    #[test]
    fn latencies_are_told_by_share_with_the_rate_that_all_have_a_share_of() {
        let files = at_shares();
        let text = as_text(&files.run);
        let low = line(&text, "10 % of its pdr");
        let p50 = percentile(&files.run, &files.run.series[0].figures.round_trip, 50.0);
        let expected = format!("direct-1 10 % of its pdr 3921233 392123 {p50} ");
        assert!(low.starts_with(&expected), "{low}");
        let high = line(&text, "90 % of its pdr");
        let expected =
            "ours-ipip-1 90 % of its pdr 3921233 3529110 overloaded overloaded overloaded";
        assert_eq!(high, expected);
        let page = report::render(std::slice::from_ref(&files));
        assert!(page.contains("<h2>Latency at shares of a rate</h2>"));
        assert!(report::text(&files).contains(&text));
    }

    #[test]
    fn a_result_without_shares_has_no_table_of_them() {
        let files = sample(1, 1.5);
        assert_eq!(as_text(&files.run), "");
        let page = report::render(std::slice::from_ref(&files));
        assert!(!page.contains("shares of a rate"));
    }
}
