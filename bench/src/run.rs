//! Runs a scenario: each system under each load, in rounds that go back and forth (A B, B A, A B, ..).
//!
//! The first trial of each series warms caches up, and is thrown away. After each round the result is written,
//! marked as interrupted until the last round: so a run that is ended at any time leaves what it measured, and
//! another one goes on from there.

mod record;
mod reference;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    environment::{self, Interrupts, Watch},
    host,
    load::{
        self, Asked, Generator, search,
        sockets::{self, now_ns},
    },
    preflight,
    result::{
        Comparability, Files, Happened, Run, SCHEMA_VERSION, Series, Streams, Tool, Trial, figures,
    },
    scenario::{Event, Load, ReferenceRate, Scenario, SearchKind, System},
    stats::rounded,
    wire::{self, Wire, counted_between},
};

pub use record::record;

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
    /// Share of the core's time (0 to 1) that other work may take.
    pub most_noise: f64,
    /// The command that repeats the run.
    pub command: String,
}

/// The rounds of an interrupted result are not this run's: the reason.
#[derive(Debug, thiserror::Error)]
#[error("the interrupted result is not of this run: {0}; name another directory")]
pub struct OfAnotherRun(pub(crate) String);

impl Scenario {
    /// Returns how many seconds the trials of a run take, those that are thrown away among them.
    pub fn trial_seconds(&self) -> f64 {
        let trials_of = |load: &Load| {
            let of_round = match load.search {
                SearchKind::None => 1.0,
                SearchKind::Ndr | SearchKind::Pdr | SearchKind::Rfc2544 => search::USUAL_TRIALS,
                SearchKind::Rfc2544Loss => f64::from(search::LOSS_STEPS),
            };
            of_round * f64::from(self.rounds + 1)
        };
        let trials: f64 = self.loads.iter().map(trials_of).sum();
        let before: f64 = (self.reference_rates().iter())
            .map(ReferenceRate::usual_trials)
            .sum();
        let trials = trials * self.systems.len() as f64 + before;
        trials * (self.seconds + sockets::OVERHEAD.as_secs_f64())
    }
}

/// Runs a scenario and writes its result.
///
/// # Errors
///
/// When the scenario is refused, the machine cannot run it ([`preflight::Unable`]) or is too noisy
/// ([`preflight::Noisy`]), a device has no carrier ([`LinkDown`](crate::wire::LinkDown)), an interrupted result is not of this
/// run ([`OfAnotherRun`]), a system does not come up or ends ([`SystemEnded`](crate::wire::SystemEnded)), or the result
/// cannot be written. The rounds that were complete are in the directory by then.
pub fn run(options: &Options, show_progress: &(dyn Fn(&str) + Sync)) -> Result<Files> {
    let scenario = Scenario::parse(&options.scenario)?;
    preflight::check(&scenario, &options.guideway)?;
    if options.most_noise < 1.0 {
        show_progress("watching how quiet the machine is");
        preflight::expect_quiet(options.most_noise)?;
    }
    let mut session = Session::start(options, scenario)?;
    show_progress("bringing the systems up");
    let wire = wire::start(&session.run.scenario, &options.guideway, show_progress)?;
    let mut generators = session
        .open_series(wire.as_ref(), show_progress)
        .context("proving that the systems answer")?;
    session.add_facts(wire.as_ref());
    let interrupts = Interrupts::read();
    for (index, generator) in generators.iter_mut().enumerate() {
        show_progress("warming up");
        let measured = session.measure(wire.as_ref(), generator.as_mut(), index, 0);
        measured.with_context(|| session.kept(&options.out))?;
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
            let measured = session.measure(wire.as_ref(), generator, index, round);
            let (mut trial, intervals) = measured.with_context(|| session.kept(&options.out))?;
            trial.place = place;
            session.keep(index, trial, intervals);
        }
        session.write(&options.out, round < rounds)?;
        session.measured = round;
    }
    session.look_around();
    let mut after = environment::collect(&options.guideway);
    after.extend(wire.facts());
    after.extend(environment::of_bpf());
    let came = Interrupts::read().since(&interrupts);
    after.insert(environment::INTERRUPTS.to_owned(), came);
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
    fn open_series<'a>(
        &mut self,
        wire: &'a dyn Wire,
        show_progress: &(dyn Fn(&str) + Sync),
    ) -> Result<Vec<Box<dyn Generator + 'a>>> {
        let scenario = self.run.scenario.clone();
        let mut generators = Vec::new();
        for (load, number) in scenario.loads.iter().zip(1..) {
            for &system in &scenario.systems {
                let reference = self.reference_rate(wire, system, load, show_progress)?;
                let opened = wire.open(system, load, load.background.rate(reference));
                wire.expect_running(system)?;
                generators.push(opened?);
                if self.measured == 0 {
                    let name = format!("{system}-{number}");
                    self.begin_series(wire, name, system, load, reference);
                }
            }
        }
        Ok(generators)
    }

    /// Returns the rate that the frames beside the requests of a load have a share of: that of a series which has a share
    /// of the same one, or else the rate that is found now.
    fn reference_rate(
        &self,
        wire: &dyn Wire,
        system: System,
        load: &Load,
        show_progress: &(dyn Fn(&str) + Sync),
    ) -> Result<Option<f64>> {
        let Some(wanted) = load.reference_rate(system) else {
            return Ok(None);
        };
        let mut series = self.run.series.iter().enumerate();
        let known = series.find_map(|(index, series)| {
            let of_series = series.load.reference_rate(self.system(index));
            series
                .reference_rate
                .filter(|_| of_series.as_ref() == Some(&wanted))
        });
        if known.is_some() {
            return Ok(known);
        }
        show_progress(&format!("finding {wanted}"));
        let found = (wire.open(wanted.system, &wanted.frames, None))
            .and_then(|mut frames| wanted.find(frames.as_mut(), &self.run.scenario));
        wire.expect_running(wanted.system)?;
        found.map(Some)
    }

    /// Adds the facts that are known once all systems are up. Those of cards were read before they were taken.
    fn add_facts(&mut self, wire: &dyn Wire) {
        let of_others = wire.facts().into_iter();
        let of_others = of_others.filter(|(name, _)| !name.starts_with("nic."));
        let facts = of_others.chain(environment::of_bpf());
        self.run.environment.extend(facts);
    }

    fn begin_series(
        &mut self,
        wire: &dyn Wire,
        name: String,
        system: System,
        load: &Load,
        reference_rate: Option<f64>,
    ) {
        let streams = self.run.scenario.streams(load).into_iter();
        let empty = streams.map(|stream| (stream, Vec::new()));
        self.streams.insert(name.clone(), empty.collect());
        self.run.series.push(Series {
            name,
            system: system.to_string(),
            description: wire.describe(system),
            load: load.clone(),
            reference_rate,
            backends: wire.backend_names(system),
            trials: Vec::new(),
            figures: figures(&Streams::new(), None),
        });
    }

    /// Returns the time from the start of the run to a reading of `CLOCK_MONOTONIC`, in nanoseconds.
    fn since_start(&self, clock: u64) -> Duration {
        self.before + Duration::from_nanos(clock - self.began)
    }

    /// Runs one trial of a series, at the end of which the system must still run.
    fn measure(
        &self,
        wire: &dyn Wire,
        generator: &mut dyn Generator,
        index: usize,
        round: u32,
    ) -> Result<(Trial, Streams)> {
        let measured = self.run_trial(wire, generator, index, round);
        // Where the system has ended, that is the reason of whatever failed, and what did not fail is not its own.
        wire.expect_running(self.system(index))?;
        measured
    }

    /// Returns the system of a series.
    fn system(&self, index: usize) -> System {
        let systems = &self.run.scenario.systems;
        systems[index % systems.len()]
    }

    fn run_trial(
        &self,
        wire: &dyn Wire,
        generator: &mut dyn Generator,
        index: usize,
        round: u32,
    ) -> Result<(Trial, Streams)> {
        let (series, scenario) = (&self.run.series[index], &self.run.scenario);
        let system = self.system(index);
        let read = || -> Result<_> {
            let counts = [wire.drops(system)?, wire.queues(system)?];
            Ok((counts, wire.carriers(system)?))
        };
        let (before, carriers) = read()?;
        // Each round has times of its own; all systems of a round have the same.
        let asked = Asked {
            rate: series.load.rate,
            seconds: scenario.seconds,
            seed: scenario.seed.wrapping_add(round.into()),
        };
        let event = scenario.event.filter(|_| system.has_events());
        let (given, happened) = match event {
            None => (generator.run(asked)?, None),
            Some(event) => {
                let (given, [from, to]) = run_with(event, wire, system, || generator.run(asked))?;
                let happened = Happened {
                    at: seconds_between(given.start, from),
                    seconds: seconds_between(from, to),
                };
                (given, Some(happened))
            }
        };
        let (after, carriers_after) = read()?;
        let at = self.since_start(given.start);
        let (mut trial, streams) = record(&given, &scenario.streams(&series.load), round, at);
        trial.drops = counted_between(&before[0], &after[0]);
        trial.queues = counted_between(&before[1], &after[1]);
        trial.carrier_changes = counted_between(&carriers, &carriers_after);
        trial.event = happened;
        Ok((trial, streams))
    }

    /// Says what is left of the run where it ends early.
    fn kept(&self, out: &Path) -> String {
        match self.measured {
            0 => "no round was complete".to_owned(),
            rounds => format!(
                "{} has {rounds} rounds, as an interrupted result",
                out.display()
            ),
        }
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

/// Runs a trial in which an event happens, and undoes the event. Returns when it began and ended, too.
fn run_with(
    event: Event,
    wire: &dyn Wire,
    system: System,
    trial: impl FnOnce() -> Result<load::Trial>,
) -> Result<(load::Trial, [u64; 2])> {
    let cause = || -> Result<[u64; 2]> {
        thread::sleep(sockets::RUN_UP + Duration::from_secs_f64(event.at));
        let from = now_ns();
        wire.cause(system, event.what)?;
        Ok([from, now_ns()])
    };
    let (given, caused) = thread::scope(|scope| {
        let caused = scope.spawn(cause);
        let given = trial();
        (given, caused.join().expect("it does not panic"))
    });
    wire.undo(system, event.what)?;
    let caused = caused.with_context(|| format!("{} of {system}", event.what))?;
    Ok((given?, caused))
}

/// Returns the seconds from one reading of the clock to another; 0 if the other is earlier.
fn seconds_between(from: u64, to: u64) -> f64 {
    rounded(Duration::from_nanos(to.saturating_sub(from)).as_secs_f64())
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
        measurements: Vec::new(),
        files: BTreeMap::new(),
    }
}

/// Makes the result of a measurement that no scenario's file asked for, and that began at `started` (since the epoch)
/// and ends now.
pub fn ended_run(scenario: Scenario, command: String, started: Duration) -> Run {
    let options = Options {
        scenario: String::new(),
        guideway: PathBuf::new(),
        out: PathBuf::new(),
        interrupted: None,
        most_noise: 1.0,
        command,
    };
    let mut run = new_run(&options, scenario);
    run.interrupted = false;
    run.ended = std::mem::replace(&mut run.started, host::rfc3339_of(started));
    run
}

#[cfg(test)]
mod tests;
