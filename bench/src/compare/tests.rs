//! Judgements, and which results may be compared.

use super::*;
use crate::{
    result::tests::{rates, sample, series},
    stats::SplitMix64,
};

fn judge(value: f64, low: f64, high: f64) -> Judgement {
    Judgement::of(Estimate { value, low, high }, 0.02)
}

#[test]
fn judgements_follow_the_interval_and_the_least_difference() {
    assert_eq!(judge(1.0, 0.99, 1.01), Judgement::Same);
    assert_eq!(judge(1.05, 1.04, 1.06), Judgement::Worse);
    assert_eq!(judge(0.95, 0.94, 0.96), Judgement::Better);
    // Told apart from 1, but by less than what matters.
    assert_eq!(judge(1.015, 1.005, 1.03), Judgement::Inconclusive);
    assert_eq!(judge(1.2, 0.9, 1.5), Judgement::Inconclusive);
}

fn of_samples(seed: u64, slower: f64) -> Judgement {
    let (series, _) = series(seed, slower);
    of_series(&series[0], &series[1], true, LEAST_DIFFERENCE).judgement()
}

#[test]
fn twenty_comparisons_of_equals_find_no_difference_and_ten_of_unequals_do() {
    let told = |judgement| matches!(judgement, Judgement::Same | Judgement::Inconclusive);
    let equal = (0..20).filter(|&seed| told(of_samples(seed, 1.0))).count();
    assert!(equal >= 19, "{equal} of 20");
    let worse = (0..10)
        .filter(|&seed| of_samples(seed, 1.05) == Judgement::Worse)
        .count();
    assert!(worse >= 9, "{worse} of 10");
    let better = (0..10)
        .filter(|&seed| of_samples(seed, 0.9) == Judgement::Better)
        .count();
    assert!(better >= 9, "{better} of 10");
}

/// Has the machine be up to twice as slow in each round, for both, and each trial differ by up to a percent of its own.
fn of_disturbed_samples(seed: u64, slower: f64) -> Judgement {
    let (mut series, _) = series(seed, slower);
    let mut random = SplitMix64::new(!seed);
    for round in 0..series[0].trials.len() {
        let shared = 1.0 + random.open_unit();
        for one in &mut series {
            let factor = shared * (0.99 + 0.02 * random.open_unit());
            for percentile in &mut one.trials[round].figures.round_trip.percentiles {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "latencies are small"
                )]
                let scaled = |ns: u64| (ns as f64 * factor) as u64;
                percentile.value = percentile.value.map(scaled);
            }
        }
    }
    of_series(&series[0], &series[1], true, LEAST_DIFFERENCE).judgement()
}

#[test]
fn noise_that_both_of_a_round_share_hides_no_difference_and_makes_none() {
    let different = [Judgement::Better, Judgement::Worse];
    let equal = (0..20).filter(|&seed| !different.contains(&of_disturbed_samples(seed, 1.0)));
    assert!(equal.count() >= 19);
    let worse = (0..10).filter(|&seed| of_disturbed_samples(seed, 1.05) == Judgement::Worse);
    assert!(worse.count() >= 9);
}

#[test]
fn rates_are_compared_by_the_time_per_frame_unless_they_are_the_loads_own() {
    fn judge(files: &Files, one: &str, other: &str) -> Result<Comparison> {
        let side = |name| Side::find(files, Some(name)).unwrap();
        compare(side(one), side(other), LEAST_DIFFERENCE)
    }
    let mut files = rates();
    let comparison = judge(&files, "kube-proxy-nftables", "ours-ipip").unwrap();
    assert_eq!(comparison.judgement(), Judgement::Better);
    let text = comparison.to_string();
    let line = text.lines().find(|line| line.starts_with("time per frame"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(words[3..8], ["2000.0", "ns", "333.3", "ns", "0.167"]);
    let slower = judge(&files, "direct", "ours-ipip").unwrap();
    assert_eq!(slower.judgement(), Judgement::Worse);
    for series in &mut files.run.series {
        series.load.rate = Some(1e6);
    }
    let error = judge(&files, "direct", "ours-ipip")
        .unwrap_err()
        .to_string();
    assert!(error.contains("the rate of its load"), "{error}");
}

#[test]
fn results_of_different_runs_are_compared_without_pairs() {
    let (one, other) = (sample(1, 1.0), sample(2, 1.3));
    let (one, other) = (
        Side::find(&one, Some("direct")),
        Side::find(&other, Some("ours-ipip")),
    );
    let comparison = compare(one.unwrap(), other.unwrap(), LEAST_DIFFERENCE).unwrap();
    assert!(!comparison.paired);
    assert_eq!(comparison.judgement(), Judgement::Worse);
    assert!(
        (comparison.rows[0].ratio - 1.3).abs() < 0.05,
        "{comparison}"
    );
}

#[test]
fn results_that_differ_in_what_matters_are_refused_by_name() {
    let (one, mut other) = (sample(1, 1.0), sample(2, 1.0));
    let facts = &mut other.run.comparability.facts;
    facts.insert("kernel.release".to_owned(), "5.0".to_owned());
    let side = |files| Side::find(files, Some("direct")).unwrap();
    assert!(compare(side(&one), side(&one), 0.02).unwrap().paired);
    let error = compare(side(&one), side(&other), 0.02)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("kernel.release: 6.1 </script>, and 5.0"),
        "{error}"
    );
}

#[test]
fn a_series_is_found_by_its_name_or_its_system() {
    let files = sample(1, 1.0);
    assert!(Side::find(&files, Some("direct-1")).is_ok());
    let error = Side::find(&files, None).unwrap_err().to_string();
    assert!(error.contains("direct-1, ours-ipip-1"), "{error}");
    assert!(Side::find(&files, Some("moon")).is_err());
}
