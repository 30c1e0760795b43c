//! Rates: what systems take of live frames.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::{
    table,
    verdict::{of_system, proxies},
};
use crate::{
    result::{Run, Series},
    scenario::{LEAST_ROUNDS, SearchKind, System},
    stats::{self, Estimate, median},
};

/// How many times as fast as a system the generator must be. Below, a rate may be the generator's.
const CEILING: f64 = 1.3;

/// Says how many frames a system takes.
pub(super) fn sentence(run: &Run, series: &Series) -> String {
    if let (Some(rate), SearchKind::None) = (series.load.rate, series.load.search) {
        let [offered, _, received] = series.totals();
        let share = 100.0 * received as f64 / offered.max(1) as f64;
        return format!(
            "{} passes {share:.3} % of {rate} frames a second.",
            series.name
        );
    }
    let mut text = format!(
        "{} takes {} million frames a second",
        series.name,
        rate(series)
    );
    let direct = of_system(run, System::Direct, series).filter(|direct| direct.name != series.name);
    let others = direct.into_iter().chain(proxies(run, series));
    for other in others {
        let _ = write!(
            text,
            ", {} times as many as {}",
            ratio(series, other),
            other.name
        );
    }
    if direct.is_some_and(|direct| median(&direct.rates()) < CEILING * median(&series.rates())) {
        text += "; the generator is hardly faster, so this may be its limit";
    }
    text + "."
}

/// Returns the table of rates; nothing if no series has one.
pub(super) fn section(run: &Run) -> Markup {
    let head = [
        "series",
        "offered /s",
        "sent /s",
        "received, million /s",
        "lost",
        "reordered",
    ];
    let rows: Vec<_> = rows(run).collect();
    if rows.is_empty() {
        return html! {};
    }
    let rows: Vec<Vec<Markup>> = rows
        .into_iter()
        .map(|row| row.into_iter().map(|cell| html! { (cell) }).collect())
        .collect();
    html! {
        h2 { "Rates" }
        p { "Medians over the rounds. In brackets, the 95 % bootstrap interval." }
        (table(&head, &rows))
    }
}

/// Says how live frames are made; nothing if there were none.
pub(super) fn method(run: &Run) -> Markup {
    html! {
        @if run.timed().count() < run.series.len() { p {
            "Live frames are numbered, and have right checksums. A BPF program makes them in the kernel and sends them into the "
            "system's device. A sink counts those that leave the system again: in the driver where the system sends by XDP, "
            "right behind it where the stack sends. Generator, system and sink share one core. With the schedule max, seconds are "
            "those that the core had for it. On the direct wire the sink is at the first node."
        } }
    }
}

/// Returns the same table as text.
pub(super) fn as_text(run: &Run) -> String {
    let mut text = String::new();
    for [name, offered, sent, received, lost, reordered] in rows(run) {
        if text.is_empty() {
            text = format!(
                "\n{:<28}{:>14}{:>14}{:>22}{:>10}{:>12}\n",
                "rate", "offered /s", "sent /s", "received, million /s", "lost", "reordered"
            );
        }
        let _ = writeln!(
            text,
            "{name:<28}{offered:>14}{sent:>14}{received:>22}{lost:>10}{reordered:>12}"
        );
    }
    text
}

/// Returns the same table in Markdown; nothing if no series has a rate.
pub(super) fn as_markdown(run: &Run) -> String {
    let mut text = String::new();
    for row in rows(run) {
        if text.is_empty() {
            text = "\n| series | offered/s | sent/s | received, million/s | lost | reordered |\n\
                    |---|---|---|---|---|---|\n"
                .to_owned();
        }
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

fn rows(run: &Run) -> impl Iterator<Item = [String; 6]> {
    let untimed = run.series.iter().filter(|series| !series.is_timed());
    untimed.map(|series| {
        let per_second = |of: fn(&crate::probe::Tally) -> u64| {
            let trials = series.trials.iter();
            let rates = trials.map(|trial| of(&trial.tally) as f64 / trial.seconds);
            format!("{:.0}", median(&rates.collect::<Vec<_>>()))
        };
        let [_, sent, received] = series.totals();
        let lost = 100.0 * (1.0 - received as f64 / sent.max(1) as f64);
        let reordered: u64 = series
            .trials
            .iter()
            .map(|trial| trial.tally.reordered)
            .sum();
        [
            series.name.clone(),
            per_second(|tally| tally.offered),
            per_second(|tally| tally.sent),
            rate(series),
            format!("{lost:.3} %"),
            reordered.to_string(),
        ]
    })
}

/// Returns a series' rate with its interval, in millions.
fn rate(series: &Series) -> String {
    let rates = series.rates();
    let of = |sample: &[usize]| {
        let chosen = sample.iter().map(|&round| rates[round] / 1e6);
        median(&chosen.collect::<Vec<_>>())
    };
    with_interval(rates.len(), of)
}

/// Returns how many times the rate of `other` a series has, round by round.
fn ratio(series: &Series, other: &Series) -> String {
    let (own, other) = (series.rates(), other.rates());
    let of = |sample: &[usize]| {
        let ratios = sample.iter().map(|&round| own[round] / other[round]);
        median(&ratios.collect::<Vec<_>>())
    };
    with_interval(own.len().min(other.len()), of)
}

/// Returns an estimate, with its interval if there are enough rounds for one.
fn with_interval(rounds: usize, of: impl Fn(&[usize]) -> f64) -> String {
    let Estimate { value, low, high } = stats::bootstrap(rounds, of);
    if rounds < LEAST_ROUNDS as usize {
        return format!("{value:.3}");
    }
    format!("{value:.3} [{low:.3} {high:.3}]")
}

#[cfg(test)]
mod tests {
    use crate::{report, result::tests::rates};

    #[test]
    fn a_rate_is_told_with_those_of_the_direct_wire_and_kube_proxy() {
        let files = rates();
        let verdict = report::Verdict::of(&files);
        assert_eq!(
            verdict.sentence,
            "ours-ipip-1 takes 3.000 [3.000 3.000] million frames a second, 0.750 [0.750 0.750] times as many as \
             direct-1, 6.000 [6.000 6.000] times as many as kube-proxy-nftables-1."
        );
        let text = report::text(&files);
        assert!(text.contains("4000000"), "{text}");
        assert!(!text.contains("round trip"), "{text}");
        let page = report::render(std::slice::from_ref(&files));
        assert!(page.contains("<h2>Rates</h2>") && !page.contains("<h2>Latency</h2>"));
    }
}
