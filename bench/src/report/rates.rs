//! Rates: what systems take of live frames.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::{
    frame_loss, table,
    verdict::{of_system, proxies},
};
use crate::{
    load::Passed,
    probe::Tally,
    result::{CEILING, Run, Series},
    scenario::{LEAST_ROUNDS, SearchKind, System},
    stats::{self, Estimate, median},
};

/// Says how many frames a system takes.
pub(super) fn sentence(run: &Run, series: &Series) -> String {
    if series.load.search == SearchKind::Rfc2544Loss {
        return frame_loss::sentence(series);
    }
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
        rate(&series.rates())
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
        @if rows(run).next().is_some() { p {
            "Live frames are numbered, and have right checksums. A BPF program makes them in the kernel and sends them into the "
            "system's device; those of the generator afxdp are this program's, and leave by an AF_XDP socket. A sink counts those that leave the system again: in the driver where the system sends by XDP, "
            "right behind it where the stack sends. Generator, system and sink share one core; a load of several threads has a core for "
            "each. With the schedule max, seconds are those that the core had for it, and the rate of several threads is the sum of their "
            "rates, each by the seconds of its own core. On the direct wire the sink is at the first node."
        } }
    }
}

/// Returns the same table as text.
pub(super) fn as_text(run: &Run) -> String {
    let mut text = String::new();
    for [name, offered, sent, received, lost, reordered] in rows(run) {
        if text.is_empty() {
            text = format!(
                "\n{:<28}{:>14}{:>14}{:>24}{:>10}{:>12}\n",
                "rate", "offered /s", "sent /s", "received, million /s", "lost", "reordered"
            );
        }
        let _ = writeln!(
            text,
            "{name:<28}{offered:>14}{sent:>14}{received:>24}{lost:>10}{reordered:>12}"
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

/// Returns a row for each series of frames, and for the frames beside requests.
fn rows(run: &Run) -> impl Iterator<Item = [String; 6]> {
    run.series.iter().filter_map(|series| {
        let trials = series.trials.iter();
        let (name, passed): (String, Vec<Passed>) = if series.is_timed() {
            let passed = trials.filter_map(|trial| trial.background);
            (format!("beside {}", series.name), passed.collect())
        } else {
            let passed = trials.map(|trial| Passed {
                seconds: trial.seconds,
                tally: trial.tally,
            });
            (series.name.clone(), passed.collect())
        };
        (!passed.is_empty()).then(|| row(name, &passed))
    })
}

fn row(name: String, passed: &[Passed]) -> [String; 6] {
    let rates = |of: fn(&Tally) -> u64| {
        let rates = passed.iter();
        let rates = rates.map(|passed| of(&passed.tally) as f64 / passed.seconds);
        rates.collect::<Vec<f64>>()
    };
    let per_second = |of: fn(&Tally) -> u64| format!("{:.0}", median(&rates(of)));
    let sum = |of: fn(&Tally) -> u64| passed.iter().map(|passed| of(&passed.tally)).sum::<u64>();
    let (sent, received) = (sum(|tally| tally.sent), sum(|tally| tally.received));
    let lost = 100.0 * (1.0 - received as f64 / sent.max(1) as f64);
    [
        name,
        per_second(|tally| tally.offered),
        per_second(|tally| tally.sent),
        rate(&rates(|tally| tally.received)),
        format!("{lost:.3} %"),
        sum(|tally| tally.reordered).to_string(),
    ]
}

/// Returns a rate with its interval, in millions.
fn rate(rates: &[f64]) -> String {
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
