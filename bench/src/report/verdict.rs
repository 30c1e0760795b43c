//! The verdict: what the result says, in a sentence, and why.

use super::{duration, measurements, rates};
use crate::{
    compare::{self, Comparison, Judgement, LEAST_DIFFERENCE, Quantity},
    environment::is_momentary,
    result::{Files, Run, Series, Stream},
    scenario::{LEAST_ROUNDS, Load, Named, System},
    stats::Estimate,
};

/// Share of the CPUs' time in a round that a hypervisor may take without a word.
const STOLEN_AT_MOST: f64 = 0.01;

/// What a result says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The result in one sentence.
    pub sentence: String,
    /// What it rests on, and what makes it doubtful.
    pub reasons: Vec<String>,
}

impl Verdict {
    /// Says what a result says.
    pub fn of(files: &Files) -> Self {
        let run = &files.run;
        let mut findings = findings(run);
        findings.sort_by_key(|one| one.rank);
        let mut findings = findings.into_iter();
        let first = findings.next();
        let (main, others): (Vec<_>, Vec<_>) = findings.partition(|one| one.rank < Rank::Other);
        let texts = |all: Vec<Finding>| all.into_iter().map(|one| one.text);
        let reasons = basis(run).into_iter().chain(texts(main));
        Self {
            sentence: first.map(|one| one.text).unwrap_or_default(),
            reasons: reasons.chain(doubts(run)).chain(texts(others)).collect(),
        }
    }
}

/// What a finding is about. The first one of a result is its sentence; from [`Rank::Other`] on, what makes the run
/// doubtful comes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Answers that no system may give.
    WrongPackets,
    /// A series of Guideway's, of which the run was long and quiet enough to tell.
    Own,
    /// What Guideway adds of what kube-proxy adds.
    Added,
    /// Figures that belong to no load.
    Measurements,
    /// Another series.
    Other,
    /// A series of Guideway's, of which nothing can be told.
    OwnUntold,
    /// Another series, of which nothing can be told.
    OtherUntold,
}

/// Something that a result says.
struct Finding {
    rank: Rank,
    text: String,
}

impl Finding {
    fn told(series: &Series, text: String) -> Self {
        let rank = if is_ours(series) {
            Rank::Own
        } else {
            Rank::Other
        };
        Self { rank, text }
    }

    fn untold(series: &Series, text: String) -> Self {
        let rank = if is_ours(series) {
            Rank::OwnUntold
        } else {
            Rank::OtherUntold
        };
        Self { rank, text }
    }
}

/// Returns all that a result says, in the order of its series.
fn findings(run: &Run) -> Vec<Finding> {
    let with = |rank| move |text| Finding { rank, text };
    let wrong = wrong_packets(run);
    let of_wrong = format!(
        "Wrong packets: {wrong} answers were damaged or came from another backend than the flow's."
    );
    let of_wrong = (wrong > 0).then_some(of_wrong);
    let series = || run.series.iter();
    let ours = series().filter(|one| is_ours(one));
    let added = ours.flat_map(|one| shares_added(run, one));
    let all = series().filter_map(|one| finding(run, one));
    all.chain(of_wrong.map(with(Rank::WrongPackets)))
        .chain(added.map(with(Rank::Added)))
        .chain(measurements::sentence(run).map(with(Rank::Measurements)))
        .collect()
}

/// Returns the answers that no system may give.
pub fn wrong_packets(run: &Run) -> u64 {
    let trials = run.series.iter().flat_map(|series| &series.trials);
    trials
        .map(|trial| trial.tally.corrupt + trial.tally.misdelivered)
        .sum()
}

/// Returns the comparison of a series with the direct wire under the same load; `None` for the direct wire itself, and
/// where an interrupted run has too few rounds for an interval.
pub(super) fn against_direct(run: &Run, series: &Series) -> Option<Comparison> {
    let direct = of_system(run, System::Direct, series)?;
    let rounds = direct.trials.len().min(series.trials.len());
    (direct.name != series.name && rounds >= LEAST_ROUNDS as usize)
        .then(|| compare::of_series(direct, series, true, LEAST_DIFFERENCE))
}

/// Returns the comparisons of a series of Guideway's with kube-proxy under the same load.
pub(super) fn against_proxies(run: &Run, series: &Series) -> Vec<Comparison> {
    let compare = |proxy| {
        let rounds = series.trials.len();
        let complete = rounds >= LEAST_ROUNDS as usize;
        complete.then(|| compare::of_series(proxy, series, true, LEAST_DIFFERENCE))
    };
    proxies(run, series).filter_map(compare).collect()
}

/// Says what a series of Guideway's adds to the direct wire, as a share of what each kube-proxy adds.
fn shares_added(run: &Run, series: &Series) -> Vec<String> {
    let Some(direct) = of_system(run, System::Direct, series) else {
        return Vec::new();
    };
    let quantities = quantities_added(run);
    let all = proxies(run, series).flat_map(|proxy| {
        let say = |&(stream, percentile, name): &(Stream, f64, &str)| {
            let share = share_added(run, [direct, series, proxy], stream, percentile)?;
            let Estimate { value, low, high } = share;
            Some(format!(
                "Of what {} adds to the {name} of the direct wire ({}), {} adds {value:.2} [{low:.2} {high:.2}].",
                proxy.name,
                stream.words(),
                series.name
            ))
        };
        quantities.iter().filter_map(say).collect::<Vec<_>>()
    });
    all.collect()
}

/// Percentiles of which the report says what Guideway adds of what kube-proxy adds, with their names.
const PERCENTILES_ADDED: [(f64, &str); 2] = [(50.0, "median"), (99.0, "p99")];

/// Returns the quantities of which that is said. Of a percentile that noise limits, the share would be one of noise.
fn quantities_added(run: &Run) -> Vec<(Stream, f64, &'static str)> {
    let limit = noise_limited_from(run);
    let told = PERCENTILES_ADDED.into_iter();
    let told = told.filter(|(percentile, _)| limit.is_none_or(|from| *percentile < from));
    let of_streams = told.flat_map(|(percentile, name)| {
        let streams = [Stream::RoundTrip, Stream::Forward];
        streams.map(|stream| (stream, percentile, name))
    });
    of_streams.collect()
}

/// Returns the share of what a proxy adds to a percentile; `None` where the proxy may add nothing: a share of that says
/// nothing.
fn share_added(run: &Run, of: [&Series; 3], stream: Stream, percentile: f64) -> Option<Estimate> {
    let [_, _, proxy] = of;
    let wanted = Quantity::Latency { stream, percentile };
    let rows = against_direct(run, proxy)?.rows;
    let row = rows.into_iter().find(|row| row.quantity == wanted)?;
    let adds = row.low > 1.0;
    compare::added(of, stream, percentile).filter(|_| adds)
}

fn is_ours(series: &Series) -> bool {
    let own = |(name, system): &(&str, System)| *name == series.system && system.is_ours();
    System::NAMES.iter().any(own)
}

/// Returns the series of kube-proxy under the load of a series of Guideway's.
pub(super) fn proxies<'a>(run: &'a Run, series: &'a Series) -> impl Iterator<Item = &'a Series> {
    let proxies = [System::KubeProxyNftables, System::KubeProxyIptables];
    let proxies = proxies.into_iter().filter(|_| is_ours(series));
    proxies.filter_map(|proxy| of_system(run, proxy, series))
}

/// Returns the series of a system under the load of another series.
pub(super) fn of_system<'a>(run: &'a Run, system: System, like: &Series) -> Option<&'a Series> {
    let name = system.to_string();
    let mut all = run.series.iter();
    all.find(|other| other.system == name && other.load == like.load)
}

/// Returns what a series says.
fn finding(run: &Run, series: &Series) -> Option<Finding> {
    let told = |text| Some(Finding::told(series, text));
    if series.is_timed() && series.is_overloaded() {
        let [offered, sent, received] = series.totals();
        return told(format!(
            "{} is overloaded: of {offered} requests that were offered, {sent} were sent and {received} answered. \
             It has no latency under this load.",
            series.name
        ));
    }
    if series.is_timed() && !series.has_latencies() && !series.trials.is_empty() {
        return told(format!(
            "{} has no latency: its rounds contradict Little's law.",
            series.name
        ));
    }
    let others = run.series.len() > 1;
    if others && series.system == System::Direct.to_string() {
        return None;
    }
    if !series.is_timed() {
        return told(rates::sentence(run, series));
    }
    let Some(median) = series.figures.round_trip.value(50.0) else {
        return told(format!(
            "{}: half of all requests had no answer.",
            series.name
        ));
    };
    let rate = series.load.mean_rate().unwrap_or_default();
    let beside = series.background_rate().map(|rate| {
        let share = series.load.background.share_in_words();
        let share = share.map(|share| format!(" ({share})")).unwrap_or_default();
        format!(" beside {rate} live frames a second{share}")
    });
    let own = format!(
        "{} answers half of {rate} requests a second{} within {}",
        series.system,
        beside.unwrap_or_default(),
        duration(median as f64)
    );
    let Some(comparison) = against_direct(run, series) else {
        return told(own + ".");
    };
    let Some(row) = comparison.rows.first() else {
        return told(own + ".");
    };
    let ratio = format!(
        "{:.2} [{:.2} {:.2}] of the direct wire",
        row.ratio, row.low, row.high
    );
    match row.judgement {
        Judgement::Inconclusive => {
            let text = "whether that differs from the direct wire cannot be told";
            Some(Finding::untold(series, format!("{own}; {text}: {ratio}.")))
        }
        Judgement::Same => told(format!("{own}, as the direct wire does: {ratio}.")),
        Judgement::Worse | Judgement::Better => told(format!(
            "{own}: {ratio}, {} of its own.",
            duration(row.second - row.first)
        )),
    }
}

/// Says what the run rests on.
fn basis(run: &Run) -> Vec<String> {
    let mut reasons = Vec::new();
    if run.interrupted {
        reasons.push("The run was interrupted: rounds are missing.".to_owned());
    }
    let rounds = run.series.iter().map(|series| series.trials.len()).min();
    let rounds = rounds.map(|rounds| {
        let seconds = run.scenario.seconds;
        format!(
            "{rounds} rounds of {seconds} s for each system, back and forth; intervals are 95 %."
        )
    });
    reasons.extend(rounds);
    reasons
}

/// Says what makes the run doubtful.
fn doubts(run: &Run) -> Vec<String> {
    let mut reasons = Vec::new();
    let without_ceiling = |series: &&Series| {
        let is_of_scenario = !run.scenario.systems.is_empty();
        let measured = is_of_scenario && series.measures_rate();
        measured && of_system(run, System::Direct, series).is_none()
    };
    if let Some(series) = run.series.iter().find(without_ceiling) {
        reasons.push(format!(
            "{}: the direct wire is not among the systems, so the rate may be the generator's.",
            series.name
        ));
    }
    for series in &run.series {
        let figures = &series.figures.round_trip;
        if figures.unanswered > 0 {
            reasons.push(format!(
                "{}: {} of {} requests had no answer. They count as longer than any latency.",
                series.name,
                figures.unanswered,
                figures.count + figures.unanswered
            ));
        }
    }
    reasons.extend(doubtful_rounds(run));
    reasons.extend(breaches_of_rfc2544(run));
    if let Some(from) = noise_limited_from(run) {
        reasons.push(format!(
            "Other work took the core for {:.1} % of the time while nothing was measured: from p{from} on, marked *, \
             percentiles tell of the machine as much as of the system.",
            lost(run) * 100.0
        ));
    }
    let stolen = run.quietness.iter().filter_map(|look| look.stolen);
    let stolen = stolen.fold(0.0, f64::max);
    if stolen > STOLEN_AT_MOST {
        reasons.push(format!(
            "A hypervisor took up to {:.1} % of the CPUs' time in a round.",
            stolen * 100.0
        ));
    }
    let changes = run.environment_changes.iter();
    for (name, value) in changes.filter(|(name, _)| !is_momentary(name)) {
        reasons.push(format!("{name} changed during the run, to {value}."));
    }
    reasons
}

/// Seconds of a trial for throughput and frame loss (RFC 2544, section 24), and of a stream for latency (section 26.2), with
/// its repetitions.
const RFC2544_TRIAL: f64 = 60.0;
const RFC2544_STREAM: (f64, u32) = (120.0, 20);

/// Says what is shorter than RFC 2544 asks for.
fn breaches_of_rfc2544(run: &Run) -> Vec<String> {
    let (seconds, rounds) = (run.scenario.seconds, run.scenario.rounds);
    let mut loads = run.series.iter().map(|series| &series.load);
    let is_trial = |load: &Load| load.search.is_of_rfc2544() && seconds < RFC2544_TRIAL;
    let of_trials = loads.clone().any(is_trial).then(|| {
        format!(
            "RFC 2544 wants trials of {RFC2544_TRIAL} s for throughput and frame loss, and these have {seconds} s: \
             the figures do not conform to it."
        )
    });
    let (long, often) = RFC2544_STREAM;
    let is_short = seconds < long || rounds < often;
    let of_latency = loads.any(|load| load.is_at_throughput() && is_short).then(|| {
        format!(
            "RFC 2544 wants {often} streams of {long} s for the latency at the throughput, and these are {rounds} of \
             {seconds} s: the figures do not conform to it."
        )
    });
    of_trials.into_iter().chain(of_latency).collect()
}

/// Names the series with doubtful rounds, and what one of these is doubtful for.
fn doubtful_rounds(run: &Run) -> Option<String> {
    let doubtful = |series: &Series| -> usize {
        let trials = series.trials.iter();
        trials.filter(|trial| !trial.doubts.is_empty()).count()
    };
    let named: Vec<_> = run
        .series
        .iter()
        .filter(|series| doubtful(series) > 0)
        .map(|series| {
            format!(
                "{} {} of {}",
                series.name,
                doubtful(series),
                series.trials.len()
            )
        })
        .collect();
    let mut all = run
        .series
        .iter()
        .flat_map(|one| one.trials.iter().map(move |trial| (one, trial)));
    let (series, trial) = all.find(|(_, trial)| !trial.doubts.is_empty())?;
    Some(format!(
        "Rounds are doubtful: {}; such as round {} of {}: {}.",
        named.join(", "),
        trial.round,
        series.name,
        trial.doubts.join("; ")
    ))
}

/// Returns the share of the time that was lost while nothing was measured.
pub(super) fn lost(run: &Run) -> f64 {
    let all = run.quietness.len().max(1) as f64;
    run.quietness.iter().map(|look| look.lost).sum::<f64>() / all
}

/// Returns the lowest reported percentile above which no more samples lie than were lost: from there on, noise shows as
/// much as the system.
pub(super) fn noise_limited_from(run: &Run) -> Option<f64> {
    let lost = lost(run) * 100.0;
    let series = run
        .series
        .iter()
        .flat_map(|series| &series.figures.round_trip.percentiles);
    let limited = series
        .map(|one| one.percentile)
        .filter(|percentile| 100.0 - percentile <= lost);
    limited.min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests;
