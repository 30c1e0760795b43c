//! What the benches share that give the generator one core, and what is measured another one.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context as _, Result};
use lab::Namespace;

use super::{Family, Options, Protocol, plan, report::lower};
use crate::{
    bare::Bare,
    host::{self, Facts},
    stats::{Estimate, bootstrap, median},
};

/// The generator must send at least so many times what arrives, for the rate not to be the generator's.
const LEAST_OFFERED: f64 = 1.05;

/// What is sent.
pub(super) type Traffic = (Family, Protocol);

/// Is called with what is being done.
pub(super) type Progress<'a> = &'a (dyn Fn(&str) + Sync);

/// Computes the figures of a subject.
pub(super) type ToRow<R, S, T> = fn(Traffic, S, &Samples<S, T>) -> R;

/// The trials of one family and protocol, by round.
pub(super) type Samples<S, T> = BTreeMap<S, Vec<T>>;

/// Everything that was measured of subjects `S`: rows `R`, made of trials `T`.
#[derive(Clone, Debug)]
pub struct Report<R, S, T> {
    /// The machine.
    pub host: Facts,
    /// The core of what is measured, and that of the generator.
    pub cores: [usize; 2],
    /// Number of rounds that count.
    pub rounds: usize,
    /// The figures.
    pub rows: Vec<R>,
    /// What they are made of, for each family and protocol.
    pub(super) samples: Vec<(Family, Protocol, Samples<S, T>)>,
}

impl<R, S, T> Report<R, S, T> {
    pub(super) const fn new(host: Facts, cores: [usize; 2], rounds: usize) -> Self {
        Self {
            host,
            cores,
            rounds,
            rows: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// Adds one family and protocol: a row of each subject.
    pub(super) fn add(&mut self, traffic: Traffic, samples: Samples<S, T>, row: ToRow<R, S, T>)
    where
        S: Copy,
    {
        let rows = samples
            .keys()
            .map(|subject| row(traffic, *subject, &samples));
        self.rows.extend(rows);
        let (family, protocol) = traffic;
        self.samples.push((family, protocol, samples));
    }
}

/// Runs a bench in a namespace of its own: `cable` makes the devices, `rig` the rest around them, with the core of what is
/// measured and that of the generator, and `measure` measures one family and protocol.
pub(super) fn run<C, G, R, S, T>(
    options: &Options,
    progress: Progress<'_>,
    cable: fn(&Namespace) -> Result<C>,
    rig: fn(&Namespace, C, [usize; 2]) -> Result<G>,
    measure: impl Fn(&mut G, Traffic, &Options, Progress<'_>) -> Result<Samples<S, T>> + Sync,
    row: ToRow<R, S, T>,
) -> Result<Report<R, S, T>>
where
    C: Send,
    R: Send,
    S: Copy + Send,
    T: Send,
{
    options.check()?;
    host::preflight()?;
    let namespace = Namespace::new("bench").context("making a network namespace")?;
    let cables = cable(&namespace)?;
    namespace.run(|| {
        let cores = host::two_cores(options.core)?;
        let mut rig = rig(&namespace, cables, cores)?;
        let mut report = Report::new(Facts::collect(), cores, options.rounds);
        for traffic in options.traffic() {
            let samples = measure(&mut rig, traffic, options, progress)?;
            report.add(traffic, samples, row);
        }
        Ok(report)
    })
}

/// Has subjects take turns, back and forth. The first round does not count.
pub(super) fn measure<S: Copy + Ord, T>(
    subjects: &[S],
    options: &Options,
    (family, protocol): Traffic,
    progress: Progress<'_>,
    mut trial: impl FnMut(S) -> Result<T>,
) -> Result<Samples<S, T>> {
    let mut samples = Samples::new();
    for round in 0..=options.rounds {
        progress(&format!(
            "{} {}: round {round} of {}",
            lower(family),
            lower(protocol),
            options.rounds
        ));
        for subject in plan::turns(subjects.iter().copied(), round) {
            let trial = trial(subject)?;
            if round > 0 {
                samples.entry(subject).or_insert_with(Vec::new).push(trial);
            }
        }
    }
    Ok(samples)
}

/// Runs a loop on a core while `work` lasts.
pub(super) fn beside<T>(
    bare: &mut Bare,
    core: usize,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let forwarder = scope.spawn(|| {
            host::move_to_core(core)?;
            while !is_over.load(Ordering::Relaxed) {
                bare.forward()?;
            }
            anyhow::Ok(())
        });
        let outcome = work();
        is_over.store(true, Ordering::Relaxed);
        forwarder.join().expect("the loop does not panic")?;
        outcome
    })
}

/// Tells whether the generator sends more than arrives, so that the rate is not its own.
pub(super) fn is_overloaded(offered: &[f64], rates: &[f64]) -> bool {
    median(offered) >= LEAST_OFFERED * median(rates)
}

/// Estimates the median of rounds.
pub(super) fn median_of(rounds: &[f64]) -> Estimate {
    bootstrap(rounds.len(), |drawn| {
        median(&drawn.iter().map(|&round| rounds[round]).collect::<Vec<_>>())
    })
}

/// Estimates the median of a figure divided by that of another subject in the same round.
pub(super) fn ratio_of(rounds: &[f64], others: &[f64]) -> Estimate {
    let ratios = rounds.iter().zip(others).map(|(one, other)| one / other);
    median_of(&ratios.collect::<Vec<_>>())
}
