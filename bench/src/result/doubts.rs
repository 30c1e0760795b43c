//! What makes the figures of a trial doubtful: checks that each trial must pass.

use std::{collections::BTreeMap, time::Duration};

use super::{KEPT_UP, Run, Stream, Streams, Trial, merge};
use crate::{
    load::{Passed, sockets::OVERHEAD},
    scenario::{Load, SearchKind, System},
};

/// How many times as fast as a system the generator must be. Below, a rate may be the generator's.
pub const CEILING: f64 = 1.3;

/// A request is late from here on, in nanoseconds.
const LATE_NS: u64 = 1_000_000;
/// Share of late requests from which the latencies of a trial are doubtful.
const LATE_SHARE: f64 = 0.001;
/// Share of the live frames beside the requests that must pass.
const BACKGROUND_PASSED: f64 = 0.995;
/// How far the two sides of Little's law may differ. Histograms are exact to a thousandth.
const LITTLES_LAW: f64 = 0.01;

/// The checks of a run.
pub(super) struct Checks {
    /// Frames a second that passed the direct wire, by load and round.
    direct: BTreeMap<(String, u32), f64>,
}

impl Checks {
    pub(super) fn of(run: &Run) -> Self {
        let direct = System::Direct.to_string();
        let wires = run.series.iter();
        let wires = wires.filter(|series| series.system == direct && series.measures_rate());
        let rates = wires.flat_map(|series| {
            let load = series.load.to_string();
            let rate = move |trial: &Trial| ((load.clone(), trial.round), trial.rate());
            series.trials.iter().map(rate)
        });
        Self {
            direct: rates.collect(),
        }
    }

    /// Returns what makes the figures of a trial doubtful.
    pub(super) fn doubts(
        &self,
        trial: &Trial,
        system: &str,
        load: &Load,
        streams: &Streams,
    ) -> Vec<String> {
        let checks = [
            overload(trial, load),
            highest_rate(trial, load),
            unsent(trial),
            self.ceiling(trial, system, load),
            background(trial),
            lateness(trial, streams),
            breach_of_littles_law(trial, streams),
            full_table(trial),
            flapping(trial),
        ];
        checks.into_iter().flatten().collect()
    }

    /// A yardstick has no ceiling above it.
    fn ceiling(&self, trial: &Trial, system: &str, load: &Load) -> Option<String> {
        let is_yardstick = [System::Direct, System::NullProgram].map(|one| one.to_string());
        let direct = self.direct.get(&(load.to_string(), trial.round))?;
        let times = direct / trial.rate();
        let is_near = times < CEILING && !is_yardstick.iter().any(|own| own == system);
        is_near.then(|| {
            format!(
                "the direct wire passes only {times:.2} times as many frames, and not {CEILING}: \
                 the rate may be the generator's"
            )
        })
    }
}

fn overload(trial: &Trial, load: &Load) -> Option<String> {
    let tally = trial.tally;
    // Where the loss is what is asked for, it is no doubt.
    let is_asked_for = load.search == SearchKind::Rfc2544Loss;
    (trial.is_overloaded() && load.rate.is_some() && !is_asked_for).then(|| {
        format!(
            "overloaded: of {} requests that were offered, {} were sent and {} received",
            tally.offered, tally.sent, tally.received
        )
    })
}

fn highest_rate(trial: &Trial, load: &Load) -> Option<String> {
    let most = load.rate.filter(|_| load.search.finds_a_rate())?;
    let is_borne = trial.tally.offered as f64 / trial.seconds > KEPT_UP * most;
    is_borne
        .then(|| "the highest rate that was tried is borne: the system may take more".to_owned())
}

fn unsent(trial: &Trial) -> Option<String> {
    let tally = trial.tally;
    let unsent = tally.offered - tally.sent;
    let told = || format!("{unsent} of {} requests could not be sent", tally.offered);
    (unsent > 0).then(told)
}

fn background(trial: &Trial) -> Option<String> {
    let Passed { tally, .. } = trial.background?;
    ((tally.received as f64) < tally.offered as f64 * BACKGROUND_PASSED).then(|| {
        format!(
            "of {} live frames beside the requests, {} were sent and {} passed",
            tally.offered, tally.sent, tally.received
        )
    })
}

fn lateness(trial: &Trial, streams: &Streams) -> Option<String> {
    let own = streams.get(&Stream::Lateness).into_iter().flatten();
    let own = own.filter(|interval| interval.round == trial.round);
    let late: u64 = own
        .map(|interval| interval.histogram.count_between(LATE_NS, u64::MAX))
        .sum();
    (late as f64 > LATE_SHARE * trial.tally.sent as f64).then(|| {
        format!(
            "{late} of {} requests were sent more than 1 ms late, which their latency includes",
            trial.tally.sent
        )
    })
}

/// Little's law: as many requests are under way as begin in a second, times how long each takes. One side is counted as
/// things are sent and come, without telling requests apart; the other is of the recorded latencies. They differ if
/// answers were taken for those of other requests, or times are wrong. A request that is lost is under way until the
/// end, and a stray answer ends another one: the law is then kept within bounds.
pub(super) fn breach_of_littles_law(trial: &Trial, streams: &Streams) -> Option<String> {
    let under_way = trial.under_way_ns? as f64;
    let own = streams.get(&Stream::RoundTripUncorrected)?.iter();
    let own = own.filter(|interval| interval.round == trial.round);
    let recorded = merge(own.map(|interval| &interval.histogram));
    let taken = recorded.mean() * recorded.len() as f64;
    let tally = trial.tally;
    let longest = (Duration::from_secs_f64(trial.seconds) + OVERHEAD).as_nanos() as f64;
    let strays = tally.duplicates + tally.foreign + tally.corrupt;
    let unanswered = tally.sent.saturating_sub(tally.received);
    let low = taken * (1.0 - LITTLES_LAW) - strays as f64 * longest;
    let high = taken * (1.0 + LITTLES_LAW) + unanswered as f64 * longest;
    let in_ms = |ns: f64| ns / 1e6;
    (!(low..=high).contains(&under_way)).then(|| {
        format!(
            "Little's law does not hold: requests were under way for {:.3} ms in all, and {} answers took {:.3} ms",
            in_ms(under_way),
            tally.received,
            in_ms(taken)
        )
    })
}

/// Counters of machines that grow when a connection table is full.
pub(crate) const OF_FULL_TABLE: [&str; 2] = ["conntrack drop", "conntrack early_drop"];

fn full_table(trial: &Trial) -> Option<String> {
    let own = |place: &&String| OF_FULL_TABLE.iter().any(|full| place.ends_with(full));
    let place = trial.drops.keys().find(own)?;
    Some(format!("a connection table was full: {place}"))
}

fn flapping(trial: &Trial) -> Option<String> {
    let (device, times) = trial.carrier_changes.first_key_value()?;
    Some(format!("{device} got or lost its carrier {times} times"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report,
        result::{
            Files,
            tests::{rates, sample},
        },
    };

    /// Makes the result of a changed run anew.
    fn changed(files: Files, change: impl Fn(&mut Run)) -> Files {
        let mut run = files.run;
        change(&mut run);
        Files::make(run, 1_795_219_200.0, files.series).unwrap()
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are small"
    )]
    fn nanoseconds(time: f64) -> u64 {
        time as u64
    }

    /// Changes the time under way of a round by a factor, and returns the series.
    fn under_way(factor: f64) -> Files {
        changed(sample(1, 1.5), |run| {
            let time = &mut run.series[1].trials[2].under_way_ns;
            *time = time.map(|ns| nanoseconds(ns as f64 * factor));
        })
    }

    #[test]
    fn a_round_that_contradicts_littles_law_has_no_latency_and_neither_has_its_series() {
        let files = under_way(1.0);
        assert_eq!(files.run.series[1].trials[2].doubts, [""; 0]);
        for factor in [0.9, 0.0] {
            let files = under_way(factor);
            let series = &files.run.series[1];
            let doubts = &series.trials[2].doubts;
            assert!(
                doubts[0].starts_with("Little's law does not hold"),
                "{doubts:?}"
            );
            assert!(series.trials[2].figures.round_trip.value(50.0).is_none());
            assert!(!series.has_latencies() && files.run.series[0].has_latencies());
            let text = report::text(&files);
            let told = "ours-ipip-1 has no latency: its rounds contradict Little's law.";
            assert!(text.starts_with(told), "{text}");
            let read = Files::of_texts(files.json, files.logs).unwrap();
            assert_eq!(read.run.series[1], *series);
        }
    }

    #[test]
    fn lost_requests_and_stray_answers_leave_littles_law_its_bounds() {
        // 4 of 1000 are lost: each may have been under way for the 2.32 s of the trial and its end.
        let lost = |seconds: f64| {
            changed(sample(1, 1.5), |run| {
                let time = &mut run.series[1].trials[2].under_way_ns;
                *time = time.map(|ns| ns + nanoseconds(seconds * 1e9));
            })
        };
        assert!(lost(9.2).run.series[1].has_latencies());
        assert!(!lost(9.4).run.series[1].has_latencies());
        let strays = changed(under_way(0.0), |run| {
            run.series[1].trials[2].tally.duplicates = 1;
        });
        assert!(strays.run.series[1].has_latencies());
    }

    #[test]
    fn each_trial_of_a_rate_is_held_against_the_direct_wire() {
        let doubts = |received| {
            let files = changed(rates(), |run| {
                run.series[1].trials[3].tally.received = received;
            });
            let series = files.run.series.into_iter();
            series
                .map(|one| one.trials[3].doubts.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(doubts(3_000_000), [[""; 0]; 3]);
        let near = doubts(3_200_000);
        assert!(
            near[0].is_empty(),
            "the direct wire is the ceiling: {near:?}"
        );
        let told = "the direct wire passes only 1.25 times as many frames, and not 1.3";
        assert!(near[1][0].starts_with(told), "{near:?}");
        let alone = changed(rates(), |run| drop(run.series.remove(0)));
        let reasons = report::Verdict::of(&alone).reasons;
        let told = "ours-ipip-1: the direct wire is not among the systems";
        assert!(
            reasons.iter().any(|reason| reason.starts_with(told)),
            "{reasons:?}"
        );
    }

    #[test]
    fn full_tables_and_flapping_devices_are_told_in_the_trial() {
        let files = changed(sample(1, 1.5), |run| {
            let trial = &mut run.series[1].trials[2];
            (trial.drops).insert("edge4: conntrack early_drop".to_owned(), 3);
            (trial.carrier_changes).insert("edge0: eth0".to_owned(), 2);
        });
        assert_eq!(
            files.run.series[1].trials[2].doubts,
            [
                "a connection table was full: edge4: conntrack early_drop",
                "edge0: eth0 got or lost its carrier 2 times"
            ]
        );
    }
}
