//! Runs a scenario: each system under each load, in rounds that go back and forth (A B, B A, A B, ..).
//!
//! The first trial of each series warms caches up, and is thrown away. After each round the result is written,
//! marked as interrupted until the last round: so a run that is ended at any time leaves what it measured.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    environment, host,
    load::{
        Sent, due_times,
        sockets::{self, Flow, now_ns},
    },
    preflight,
    result::{
        Comparability, Files, Interval, Run, SCHEMA_VERSION, Series, Stream, Streams, Tool, Trial,
        figures, new_histogram,
    },
    scenario::Scenario,
    wire::Lab,
};

/// Length of an interval of the logs, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;
/// Seconds of a look at how quiet the machine is.
const QUIETNESS_SECONDS: f64 = 0.1;

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The text of the scenario's file.
    pub scenario: String,
    /// The `guideway` program.
    pub guideway: PathBuf,
    /// The directory of the result.
    pub out: PathBuf,
    /// The command that repeats the run.
    pub command: String,
}

impl Scenario {
    /// Returns how many seconds the trials of a run take, those that are thrown away among them.
    pub fn trial_seconds(&self) -> f64 {
        let series = self.systems.len() * self.loads.len();
        let trials = series as f64 * f64::from(self.rounds + 1);
        trials * (self.seconds + sockets::OVERHEAD.as_secs_f64())
    }
}

/// Runs a scenario and writes its result.
///
/// # Errors
///
/// When the scenario is refused, the machine cannot run it ([`preflight::Unable`]), a system does not come up, or the
/// result cannot be written.
pub fn run(options: &Options, show_progress: &(dyn Fn(&str) + Sync)) -> Result<Files> {
    let scenario = Scenario::parse(&options.scenario)?;
    preflight::check(&scenario, &options.guideway)?;
    let mut session = Session::start(options, scenario, show_progress)?;
    for place in 0..session.flows.len() {
        show_progress("warming up");
        session.measure(place, 0)?;
    }
    let rounds = session.run.scenario.rounds;
    for round in 1..=rounds {
        show_progress(&format!("round {round} of {rounds}"));
        session.look_around();
        let mut order: Vec<usize> = (0..session.flows.len()).collect();
        if round % 2 == 0 {
            order.reverse();
        }
        for (place, index) in (1..).zip(order) {
            let (mut trial, intervals) = session.measure(index, round)?;
            trial.place = place;
            session.keep(index, trial, intervals);
        }
        session.write(&options.out, round < rounds)?;
    }
    session.look_around();
    let after = environment::collect();
    session.run.environment_changes = environment::changes(&session.run.environment, &after);
    session.write(&options.out, false)
}

/// A run in progress.
struct Session {
    run: Run,
    lab: Lab,
    /// The flows of each series, in the order of the series.
    flows: Vec<Vec<Flow>>,
    streams: BTreeMap<String, Streams>,
    /// `CLOCK_MONOTONIC` at the start of the run, in nanoseconds.
    began: u64,
    /// The start of the run in seconds since the epoch.
    started: f64,
}

impl Session {
    fn start(
        options: &Options,
        scenario: Scenario,
        show_progress: &(dyn Fn(&str) + Sync),
    ) -> Result<Self> {
        let (began, started) = (now_ns(), SystemTime::now().duration_since(UNIX_EPOCH)?);
        show_progress("bringing the systems up");
        let lab = Lab::start(&scenario, &options.guideway, show_progress)?;
        let mut session = Self {
            run: new_run(options, scenario),
            lab,
            flows: Vec::new(),
            streams: BTreeMap::new(),
            began,
            started: started.as_secs_f64(),
        };
        session
            .open_series()
            .context("proving that the systems answer")?;
        Ok(session)
    }

    fn open_series(&mut self) -> Result<()> {
        let scenario = self.run.scenario.clone();
        for (load, number) in scenario.loads.iter().zip(1..) {
            for &system in &scenario.systems {
                let name = format!("{system}-{number}");
                self.flows.push(self.lab.open(system, load)?);
                let empty = Stream::ALL.map(|stream| (stream, Vec::new()));
                self.streams.insert(name.clone(), empty.into());
                self.run.series.push(Series {
                    name,
                    system: system.to_string(),
                    description: Lab::describe(system),
                    load: load.clone(),
                    backends: self.lab.backend_names(system),
                    trials: Vec::new(),
                    figures: figures(&Streams::new(), None),
                });
            }
        }
        Ok(())
    }

    /// Runs one trial of a series.
    fn measure(
        &mut self,
        index: usize,
        round: u32,
    ) -> Result<(Trial, BTreeMap<Stream, Vec<Interval>>)> {
        let (series, scenario) = (&self.run.series[index], &self.run.scenario);
        let system = scenario.systems[index % scenario.systems.len()];
        self.lab.refresh(system, &mut self.flows[index])?;
        let seconds = scenario.seconds;
        // Each round has times of its own; all systems of a round have the same.
        let due = due_times(
            &series.load,
            seconds,
            scenario.seed.wrapping_add(round.into()),
        );
        let flows = &self.flows[index];
        let frame = series.load.frame_bytes;
        let given = sockets::run(flows, &due, frame, self.lab.backends())?;
        let at = Duration::from_nanos(given.start - self.began);
        let trial = Trial {
            round,
            place: 0,
            at: at.as_secs_f64(),
            seconds,
            tally: given.tally,
            shares: given.shares,
            figures: figures(&Streams::new(), None),
            doubts: Vec::new(),
        };
        Ok((trial, intervals(&given.sent, given.start, at, round)?))
    }

    fn keep(&mut self, index: usize, trial: Trial, intervals: Streams) {
        let series = &mut self.run.series[index];
        series.trials.push(trial);
        let Some(streams) = self.streams.get_mut(&series.name) else {
            return;
        };
        for (stream, intervals) in intervals {
            streams.entry(stream).or_default().extend(intervals);
        }
    }

    fn look_around(&mut self) {
        let at = Duration::from_nanos(now_ns() - self.began).as_secs_f64();
        let found = environment::quietness(at, QUIETNESS_SECONDS);
        self.run.quietness.push(found);
    }

    fn write(&mut self, out: &Path, interrupted: bool) -> Result<Files> {
        self.run.interrupted = interrupted;
        self.run.ended = host::rfc3339(clock_gettime(ClockId::Realtime));
        let files = Files::make(self.run.clone(), self.started, self.streams.clone())?;
        files.write(out)?;
        Ok(files)
    }
}

fn new_run(options: &Options, scenario: Scenario) -> Run {
    Run {
        schema_version: SCHEMA_VERSION,
        tool: Tool {
            name: "guideway-bench".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        command: options.command.clone(),
        started: host::rfc3339(clock_gettime(ClockId::Realtime)),
        ended: String::new(),
        interrupted: true,
        scenario,
        scenario_text: options.scenario.clone(),
        environment: environment::collect(),
        environment_changes: BTreeMap::new(),
        comparability: Comparability::of(BTreeMap::new()),
        quietness: Vec::new(),
        series: Vec::new(),
        files: BTreeMap::new(),
    }
}

/// Sorts the requests of a trial into intervals by when they were due. `at` is the start of the trial, from the
/// start of the run.
fn intervals(sent: &[Sent], start: u64, at: Duration, round: u32) -> Result<Streams> {
    let mut streams = Streams::new();
    let of_interval = sent
        .chunk_by(|one, next| (one.due - start) / INTERVAL_NS == (next.due - start) / INTERVAL_NS);
    for requests in of_interval {
        let number = (requests[0].due - start) / INTERVAL_NS;
        let begin = at + Duration::from_nanos(number * INTERVAL_NS);
        for stream in Stream::ALL {
            let mut histogram = new_histogram();
            for value in requests.iter().filter_map(|request| value(request, stream)) {
                // 0 has no place of its own in a histogram that begins with 1.
                histogram.saturating_record(value.max(1));
            }
            streams.entry(stream).or_default().push(Interval {
                round,
                start: begin,
                length: Duration::from_nanos(INTERVAL_NS),
                histogram,
            });
        }
    }
    Ok(streams)
}

fn value(request: &Sent, stream: Stream) -> Option<u64> {
    match stream {
        Stream::RoundTrip => request.round_trip(),
        Stream::RoundTripUncorrected => request.round_trip_uncorrected(),
        Stream::Forward => request.forward(),
        Stream::Lateness => Some(request.lateness()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                }
            })
            .collect()
    }

    #[test]
    fn a_stalled_sender_shows_in_the_corrected_latency_and_not_in_the_other() {
        let streams = intervals(&stalled(), 0, Duration::ZERO, 1).unwrap();
        assert_eq!(streams[&Stream::RoundTrip].len(), 10);
        let figures = figures(&streams, Some(1));
        let p99_9 = |stream| figures.of(stream).value(99.9).unwrap();
        assert!(p99_9(Stream::RoundTrip) >= 85_000_000);
        assert!(p99_9(Stream::RoundTripUncorrected) < 1_000_000);
        assert!(p99_9(Stream::Lateness) >= 85_000_000);
    }

    #[test]
    fn requests_without_an_answer_have_no_latency_but_a_lateness() {
        let mut sent = stalled();
        for request in sent.iter_mut().take(7) {
            request.answered = None;
        }
        for request in sent.iter_mut().take(3) {
            request.arrived = None;
        }
        let streams = intervals(&sent, 0, Duration::ZERO, 1).unwrap();
        let figures = figures(&streams, None);
        assert_eq!(figures.round_trip.count, 9_993);
        assert_eq!(figures.round_trip.unanswered, 7);
        assert_eq!(
            (figures.forward.count, figures.forward.unanswered),
            (9_997, 3)
        );
        assert_eq!(figures.lateness.count, 10_000);
    }
}
