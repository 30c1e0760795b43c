//! What a result has of a trial: its counts, and its latencies by interval.

use std::time::Duration;

use crate::{
    load::{self, Passed, Sent},
    result::{Interval, Stream, Streams, Trial, new_histogram},
    stats::rounded,
};

/// Length of an interval of the logs, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Makes of a trial what a result has of it: its counts, and its latencies by interval. `at` is its start, from the start
/// of the run.
pub fn record(
    given: &load::Trial,
    streams: &[Stream],
    round: u32,
    at: Duration,
) -> (Trial, Streams) {
    let seconds = rounded(given.seconds);
    let trial = Trial {
        shares: given.shares.clone(),
        longest_gap_ns: longest_gap(given),
        under_way_ns: given.under_way_ns,
        background: given.background.as_ref().map(rounded_seconds),
        losses: given.losses.iter().map(rounded_seconds).collect(),
        ..Trial::new(round, at.as_secs_f64(), seconds, given.tally)
    };
    let place = (given.start, at, Duration::from_secs_f64(given.seconds));
    let intervals = intervals(&given.requests, streams, place, round);
    (trial, intervals)
}

fn rounded_seconds(passed: &Passed) -> Passed {
    Passed {
        seconds: rounded(passed.seconds),
        ..*passed
    }
}

/// Sorts the requests of a trial into intervals by when they were due. `(start, at, length)` is the start of the trial by
/// the clock and from the start of the run, and its length.
fn intervals(
    sent: &[Sent],
    of: &[Stream],
    (start, at, length): (u64, Duration, Duration),
    round: u32,
) -> Streams {
    let mut streams = Streams::new();
    let of_interval = sent
        .chunk_by(|one, next| (one.due - start) / INTERVAL_NS == (next.due - start) / INTERVAL_NS);
    for requests in of_interval {
        let number = (requests[0].due - start) / INTERVAL_NS;
        let after = Duration::from_nanos(number * INTERVAL_NS);
        let rest = length.saturating_sub(after);
        for &stream in of {
            let mut histogram = new_histogram();
            for value in requests.iter().filter_map(|request| value(request, stream)) {
                // 0 has no place of its own in a histogram that begins with 1.
                histogram.saturating_record(value.max(1));
            }
            streams.entry(stream).or_default().push(Interval {
                round,
                start: at + after,
                length: rest.min(Duration::from_nanos(INTERVAL_NS)),
                histogram,
            });
        }
    }
    streams
}

fn value(request: &Sent, stream: Stream) -> Option<u64> {
    match stream {
        Stream::RoundTrip => request.round_trip(),
        Stream::RoundTripUncorrected => request.round_trip_uncorrected(),
        Stream::Forward => request.forward(),
        Stream::Lateness => Some(request.lateness()),
        Stream::RoundTripStamped => request.round_trip_stamped(),
    }
}

/// Returns the longest time between two answers, the begin among them: `None` if no request is timed.
fn longest_gap(given: &load::Trial) -> Option<u64> {
    let first = given.requests.first()?;
    let mut answers: Vec<u64> = given
        .requests
        .iter()
        .filter_map(|one| one.answered)
        .collect();
    answers.push(first.due);
    answers.sort_unstable();
    let gaps = answers.windows(2).map(|pair| pair[1] - pair[0]);
    Some(gaps.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{probe::Tally, result::figures};

    const TEN_SECONDS: (u64, Duration, Duration) = (0, Duration::ZERO, Duration::from_secs(10));

    /// Requests at 1000 a second for 10 s, each answered after 100 us; for 100 ms from the middle on, nothing happens.
    fn stalled() -> Vec<Sent> {
        const STALL: std::ops::Range<u64> = 5_000_000_000..5_100_000_000;
        (0..10_000_u64)
            .map(|number| {
                let due = number * 1_000_000;
                let sent = if STALL.contains(&due) { STALL.end } else { due };
                Sent {
                    due,
                    sent,
                    arrived: Some(sent + 60_000),
                    answered: Some(sent + 100_000),
                    stamps: [Some(sent + 5_000), Some(sent + 95_000)],
                }
            })
            .collect()
    }

    #[test]
    fn a_stalled_sender_shows_in_the_corrected_latency_and_not_in_the_other() {
        let streams = intervals(&stalled(), &Stream::ALL, TEN_SECONDS, 1);
        assert_eq!(streams[&Stream::RoundTrip].len(), 10);
        let figures = figures(&streams, Some(1));
        let p99_9 = |stream| figures.of(stream).value(99.9).unwrap();
        assert!(p99_9(Stream::RoundTrip) >= 85_000_000);
        assert!(p99_9(Stream::RoundTripUncorrected) < 1_000_000);
        assert!(p99_9(Stream::Lateness) >= 85_000_000);
    }

    #[test]
    fn the_longest_gap_is_that_between_two_answers_lost_ones_left_out() {
        let mut requests = stalled();
        let trial = |requests: Vec<Sent>| load::Trial {
            start: 0,
            seconds: 10.0,
            requests,
            tally: Tally::default(),
            under_way_ns: None,
            shares: Vec::new(),
            background: None,
            losses: Vec::new(),
        };
        // From the answer at 4 999.1 ms to that at 5 100.1 ms.
        assert_eq!(longest_gap(&trial(requests.clone())), Some(101_000_000));
        for lost in &mut requests[1_000..1_200] {
            lost.answered = None;
        }
        assert_eq!(longest_gap(&trial(requests)), Some(201_000_000));
        assert_eq!(longest_gap(&trial(Vec::new())), None);
    }

    #[test]
    fn the_last_interval_ends_with_the_trial() {
        let trial = (0, Duration::from_secs(3), Duration::from_millis(9_250));
        let streams = intervals(&stalled(), &Stream::ALL, trial, 1);
        let lateness = &streams[&Stream::Lateness];
        assert_eq!(lateness[8].length, Duration::from_secs(1));
        assert_eq!(lateness[9].start, Duration::from_secs(12));
        assert_eq!(lateness[9].length, Duration::from_millis(250));
    }

    #[test]
    fn requests_without_an_answer_have_no_latency_but_a_lateness() {
        let mut sent = stalled();
        for request in sent.iter_mut().take(7) {
            request.answered = None;
            request.stamps[1] = None;
        }
        // The card has stamped something else meanwhile.
        sent[7].stamps[0] = None;
        for request in sent.iter_mut().take(3) {
            request.arrived = None;
        }
        let streams = intervals(&sent, &Stream::ALL, TEN_SECONDS, 1);
        let figures = figures(&streams, None);
        assert_eq!(figures.round_trip.count, 9_993);
        assert_eq!(figures.round_trip.unanswered, 7);
        assert_eq!(
            (figures.forward.count, figures.forward.unanswered),
            (9_997, 3)
        );
        assert_eq!(figures.lateness.count, 10_000);
        let stamped = &figures.round_trip_stamped;
        assert_eq!((stamped.count, stamped.unanswered), (9_992, 7));
        // Three digits of a value are kept.
        assert_eq!((stamped.value(50.0), stamped.max), (Some(90_047), 90_047));
    }
}
