//! What is said first, and what makes it doubtful.

use super::*;
use crate::{
    result::tests::sample,
    scenario::{Background, SearchKind, ShareOfSearch},
};

#[test]
fn the_verdict_tells_the_median_and_what_the_system_adds() {
    let verdict = Verdict::of(&sample(1, 1.5));
    let sentence = verdict.sentence;
    assert!(
        sentence.starts_with("ours-ipip answers half of 500 requests a second within"),
        "{sentence}"
    );
    assert!(sentence.contains(" of the direct wire, 2"), "{sentence}");
    let unanswered = "24 of 6000 requests had no answer";
    let told = |reason: &String| reason.contains(unanswered);
    assert!(verdict.reasons.iter().any(told), "{:?}", verdict.reasons);
}

#[test]
fn an_interrupted_run_is_named_so_and_judges_nothing() {
    let mut files = sample(1, 1.5);
    files.run.interrupted = true;
    for series in &mut files.run.series {
        series.trials.truncate(5);
    }
    let Verdict { sentence, reasons } = Verdict::of(&files);
    assert!(!sentence.contains("direct wire"), "{sentence}");
    let told = |reason: &String| reason.contains("interrupted");
    assert!(reasons.iter().any(told), "{reasons:?}");
}

/// Adds a kube-proxy that takes `slower` times as long as the direct wire, on a machine that loses a share of the time.
fn beside_proxy(slower: f64, lost: f64) -> Vec<String> {
    let mut files = sample(1, 1.5);
    let mut proxy = sample(2, slower).run.series.remove(1);
    proxy.system = System::KubeProxyNftables.to_string();
    proxy.name = "kube-proxy-nftables-1".to_owned();
    files.run.series.push(proxy);
    files.run.quietness[0].lost = lost;
    Verdict::of(&files).reasons
}

/// Tells whether a reason is the share that Guideway adds to a percentile, of about a half.
fn is_half_of(percentile: &str) -> impl Fn(&String) -> bool {
    let share = format!(
        "Of what kube-proxy-nftables-1 adds to the {percentile} of the direct wire (round trip), \
         ours-ipip-1 adds 0.5"
    );
    move |reason| reason.starts_with(&share)
}

#[test]
fn the_share_of_what_kube_proxy_adds_is_told_if_it_adds_anything() {
    let reasons = beside_proxy(2.0, 0.0);
    assert!(reasons.iter().any(is_half_of("median")), "{reasons:?}");
    let reasons = beside_proxy(1.0, 0.0);
    let told = |reason: &String| reason.starts_with("Of what");
    assert!(!reasons.iter().any(told), "{reasons:?}");
}

#[test]
fn the_share_at_p99_is_told_where_noise_does_not_limit_it() {
    let reasons = beside_proxy(2.0, 0.005);
    assert!(reasons.iter().any(is_half_of("p99")), "{reasons:?}");
    let reasons = beside_proxy(2.0, 0.02);
    assert!(!reasons.iter().any(is_half_of("p99")), "{reasons:?}");
    assert!(reasons.iter().any(is_half_of("median")), "{reasons:?}");
}

#[test]
fn a_latency_at_the_throughput_conforms_with_twenty_streams_of_two_minutes() {
    let told = |seconds, rounds| {
        let mut run = sample(1, 1.5).run;
        run.scenario.seconds = seconds;
        run.scenario.rounds = rounds;
        run.series[0].load.background = Background::OfSearch(ShareOfSearch {
            share: 1.0,
            search: SearchKind::Rfc2544,
        });
        breaches_of_rfc2544(&run)
    };
    assert_eq!(told(120.0, 20), [""; 0]);
    for (seconds, rounds) in [(119.0, 20), (120.0, 19)] {
        let expected = format!("and these are {rounds} of {seconds} s: the figures do not conform");
        assert!(told(seconds, rounds)[0].contains(&expected));
    }
}

#[test]
fn doubtful_rounds_are_one_reason() {
    let mut files = sample(1, 1.5);
    for (series, round) in [(0, 2), (1, 1), (1, 3)] {
        files.run.series[series].trials[round].doubts = vec!["late".to_owned()];
    }
    let reasons = Verdict::of(&files).reasons;
    let expected = "Rounds are doubtful: direct-1 1 of 6, ours-ipip-1 2 of 6; such as round 3 of direct-1: late.";
    assert!(
        reasons.iter().any(|reason| reason == expected),
        "{reasons:?}"
    );
}

#[test]
fn what_could_be_told_comes_first() {
    let mut files = sample(1, 1.0);
    let mut slower = sample(2, 1.5).run.series.remove(1);
    slower.name = "ours-ipip-2".to_owned();
    let unsteady = &mut files.run.series[1].trials;
    let of_slower = slower.trials.iter().cloned();
    unsteady
        .iter_mut()
        .zip(of_slower)
        .step_by(2)
        .for_each(|(trial, other)| *trial = other);
    let of_first = Verdict::of(&files).sentence;
    assert!(of_first.contains("cannot be told"), "{of_first}");
    files.run.series.push(slower);
    let Verdict { sentence, reasons } = Verdict::of(&files);
    assert!(sentence.contains(" of its own."), "{sentence}");
    assert!(reasons.contains(&of_first), "{reasons:?}");
}

/// Makes every other answer of a system's requests late forever.
fn overload(files: &mut Files) {
    let series = &mut files.run.series[1];
    for trial in &mut series.trials {
        trial.tally.received /= 2;
    }
}

#[test]
fn an_overloaded_system_has_no_latency() {
    let mut files = sample(1, 1.5);
    overload(&mut files);
    let sentence = Verdict::of(&files).sentence;
    let expected = "ours-ipip-1 is overloaded: of 6000 requests that were offered, 6000 were sent and 2988 answered";
    assert!(sentence.starts_with(expected), "{sentence}");
    let series = files.series.clone();
    let files = Files::make(files.run, 1_795_219_200.0, series).unwrap();
    let figures = &files.run.series[1].figures.round_trip;
    assert!(figures.count == 0 && figures.value(50.0).is_none());
    let text = crate::report::text(&files);
    let is_told = |text: &str| text.lines().any(|line| line.starts_with("ours-ipip-1  "));
    let (latencies, packets) = text.split_once("\npackets").unwrap();
    assert!(!is_told(latencies) && is_told(packets), "{text}");
    let doubts = &files.run.series[1].trials[0].doubts;
    assert!(doubts[0].starts_with("overloaded: of 1000"), "{doubts:?}");
    assert!(files.run.series[0].figures.round_trip.value(50.0).is_some());
}

#[test]
fn wrong_packets_come_before_any_latency() {
    let mut files = sample(1, 1.5);
    files.run.series[1].trials[3].tally.misdelivered = 2;
    let sentence = Verdict::of(&files).sentence;
    assert!(
        sentence.starts_with("Wrong packets: 2 answers"),
        "{sentence}"
    );
}
