//! Runs a scenario: each system under each load, in rounds that go back and forth (A B, B A, A B, ..).
//!
//! The first trial of each series warms caches up, and is thrown away. After each round the result is written,
//! marked as interrupted until the last round: so a run that is ended at any time leaves what it measured, and
//! another one goes on from there.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    environment::{self, Watch},
    host,
    load::{
        self, Asked, Generator, Sent, search,
        sockets::{self, now_ns},
    },
    preflight,
    result::{
        Comparability, Files, Interval, Run, SCHEMA_VERSION, Series, Stream, Streams, Tool, Trial,
        figures, new_histogram,
    },
    scenario::{Load, Scenario, SearchKind, System},
    wire::{Lab, Wire, dropped_between},
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
    /// An interrupted result, whose rounds count as this run's.
    pub interrupted: Option<Files>,
    /// The command that repeats the run.
    pub command: String,
}

/// The rounds of an interrupted result are not this run's: the reason.
#[derive(Debug, thiserror::Error)]
#[error("the interrupted result is not of this run: {0}; name another directory")]
pub struct OfAnotherRun(String);

impl Scenario {
    /// Returns how many seconds the trials of a run take, those that are thrown away among them.
    pub fn trial_seconds(&self) -> f64 {
        let trials_of = |load: &Load| match load.search {
            SearchKind::None => 1.0,
            SearchKind::Ndr | SearchKind::Pdr | SearchKind::Rfc2544 => search::USUAL_TRIALS,
        };
        let series: f64 = self.loads.iter().map(trials_of).sum();
        let trials = series * self.systems.len() as f64 * f64::from(self.rounds + 1);
        trials * (self.seconds + sockets::OVERHEAD.as_secs_f64())
    }
}

/// Runs a scenario and writes its result.
///
/// # Errors
///
/// When the scenario is refused, the machine cannot run it ([`preflight::Unable`]), an interrupted result is not of this
/// run ([`OfAnotherRun`]), a system does not come up, or the result cannot be written.
pub fn run(options: &Options, show_progress: &(dyn Fn(&str) + Sync)) -> Result<Files> {
    let scenario = Scenario::parse(&options.scenario)?;
    preflight::check(&scenario, &options.guideway)?;
    let mut session = Session::start(options, scenario)?;
    show_progress("bringing the systems up");
    let lab = Lab::start(&session.run.scenario, &options.guideway, show_progress)?;
    let mut generators = session
        .open_series(&lab)
        .context("proving that the systems answer")?;
    for (index, generator) in generators.iter_mut().enumerate() {
        show_progress("warming up");
        session.measure(&lab, generator.as_mut(), index, 0)?;
    }
    let rounds = session.run.scenario.rounds;
    for round in session.measured + 1..=rounds {
        show_progress(&format!("round {round} of {rounds}"));
        session.look_around();
        let mut order: Vec<usize> = (0..generators.len()).collect();
        if round % 2 == 0 {
            order.reverse();
        }
        for (place, index) in (1..).zip(order) {
            let generator = generators[index].as_mut();
            let (mut trial, intervals) = session.measure(&lab, generator, index, round)?;
            trial.place = place;
            session.keep(index, trial, intervals);
        }
        session.write(&options.out, round < rounds)?;
    }
    session.look_around();
    let after = environment::collect(&options.guideway);
    session.run.environment_changes = environment::changes(&session.run.environment, &after);
    session.write(&options.out, false)
}

/// A run in progress.
struct Session {
    run: Run,
    streams: BTreeMap<String, Streams>,
    watch: Watch,
    /// The last round that is in the result.
    measured: u32,
    /// `CLOCK_MONOTONIC` when this program started, in nanoseconds.
    began: u64,
    /// Time from the start of the run to that of this program, which takes an interrupted run up.
    before: Duration,
    /// The start of the run in seconds since the epoch.
    started: f64,
}

impl Session {
    fn start(options: &Options, scenario: Scenario) -> Result<Self> {
        let (began, now) = (now_ns(), SystemTime::now().duration_since(UNIX_EPOCH)?);
        let new = new_run(options, scenario);
        let (run, streams, started) = match &options.interrupted {
            Some(files) => {
                expect_same(&files.run, &new)?;
                // Without a log, nothing tells the start: the time since the last trial is left out.
                let measured = files.run.series.iter().flat_map(|series| &series.trials);
                let end = measured.map(|trial| trial.at + trial.seconds);
                let end = Duration::from_secs_f64(end.fold(0.0, f64::max));
                let started = files.started().unwrap_or(now.saturating_sub(end));
                (files.run.clone(), files.series.clone(), started)
            }
            None => (new, BTreeMap::new(), now),
        };
        let trials = run.series.iter().flat_map(|series| &series.trials);
        let measured = trials.map(|trial| trial.round).max().unwrap_or(0);
        Ok(Self {
            run,
            streams,
            watch: Watch::default(),
            measured,
            began,
            before: now.saturating_sub(started),
            started: started.as_secs_f64(),
        })
    }

    /// Opens the generator of each series, in the order of the series.
    fn open_series<'a>(&mut self, wire: &'a dyn Wire) -> Result<Vec<Box<dyn Generator + 'a>>> {
        let scenario = self.run.scenario.clone();
        let mut generators = Vec::new();
        for (load, number) in scenario.loads.iter().zip(1..) {
            for &system in &scenario.systems {
                generators.push(wire.open(system, load)?);
                if self.measured == 0 {
                    self.begin_series(wire, format!("{system}-{number}"), system, load);
                }
            }
        }
        Ok(generators)
    }

    fn begin_series(&mut self, wire: &dyn Wire, name: String, system: System, load: &Load) {
        let streams = load.generator.streams().iter();
        let empty = streams.map(|&stream| (stream, Vec::new()));
        self.streams.insert(name.clone(), empty.collect());
        self.run.series.push(Series {
            name,
            system: system.to_string(),
            description: wire.describe(system),
            load: load.clone(),
            backends: wire.backend_names(system),
            trials: Vec::new(),
            figures: figures(&Streams::new(), None),
        });
    }

    /// Returns the time from the start of the run to a reading of `CLOCK_MONOTONIC`, in nanoseconds.
    fn since_start(&self, clock: u64) -> Duration {
        self.before + Duration::from_nanos(clock - self.began)
    }

    /// Runs one trial of a series.
    fn measure(
        &self,
        wire: &dyn Wire,
        generator: &mut dyn Generator,
        index: usize,
        round: u32,
    ) -> Result<(Trial, Streams)> {
        let (series, scenario) = (&self.run.series[index], &self.run.scenario);
        // Each round has times of its own; all systems of a round have the same.
        let system = scenario.systems[index % scenario.systems.len()];
        let before = wire.drops(system)?;
        let given = generator.run(Asked {
            rate: series.load.rate,
            seconds: scenario.seconds,
            seed: scenario.seed.wrapping_add(round.into()),
        })?;
        let drops = dropped_between(&before, &wire.drops(system)?);
        let at = self.since_start(given.start);
        let (mut trial, streams) = record(&given, series.load.generator.streams(), round, at);
        trial.drops = drops;
        Ok((trial, streams))
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
        let at = self.since_start(now_ns()).as_secs_f64();
        let found = self.watch.look(at, QUIETNESS_SECONDS);
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

/// Checks that the rounds of an interrupted result can be rounds of a new run.
fn expect_same(interrupted: &Run, new: &Run) -> Result<(), OfAnotherRun> {
    if interrupted.scenario != new.scenario {
        return Err(OfAnotherRun("its scenario differs".to_owned()));
    }
    let here = Comparability::of(environment::comparable(&new.environment, &new.scenario));
    let differences = interrupted.comparability.differences(&here);
    let differences = differences
        .iter()
        .map(|(fact, there, here)| format!("{fact} was {there:?} and is {here:?}"));
    let differences: Vec<String> = differences.collect();
    if differences.is_empty() {
        return Ok(());
    }
    Err(OfAnotherRun(differences.join(", ")))
}

/// Makes the result of a run that has measured nothing.
pub fn new_run(options: &Options, scenario: Scenario) -> Run {
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
        environment: environment::collect(&options.guideway),
        environment_changes: BTreeMap::new(),
        comparability: Comparability::of(BTreeMap::new()),
        quietness: Vec::new(),
        series: Vec::new(),
        files: BTreeMap::new(),
    }
}

/// Makes of a trial what a result has of it: its counts, and its latencies by interval. `at` is its start, from the start
/// of the run.
pub fn record(
    given: &load::Trial,
    streams: &[Stream],
    round: u32,
    at: Duration,
) -> (Trial, Streams) {
    let trial = Trial {
        round,
        place: 0,
        at: at.as_secs_f64(),
        seconds: rounded(given.seconds),
        tally: given.tally,
        shares: given.shares.clone(),
        drops: BTreeMap::new(),
        figures: figures(&Streams::new(), None),
        doubts: Vec::new(),
    };
    let place = (given.start, at, Duration::from_secs_f64(given.seconds));
    let intervals = intervals(&given.requests, streams, place, round);
    (trial, intervals)
}

/// Rounds to microseconds: such numbers are read from JSON as they were written.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        }
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
    }
}
