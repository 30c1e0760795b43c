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

    /// Adds the figures of one family and protocol, and what they are made of.
    pub(super) fn push(
        &mut self,
        (family, protocol): (Family, Protocol),
        rows: Vec<R>,
        samples: Samples<S, T>,
    ) {
        self.rows.extend(rows);
        self.samples.push((family, protocol, samples));
    }
}

/// Runs a bench in a namespace of its own. `cable` makes the devices, and `bench` gets the core of what is measured and that of
/// the generator.
pub(super) fn run<C: Send, R: Send>(
    options: &Options,
    cable: impl FnOnce(&Namespace) -> Result<C>,
    bench: impl FnOnce(&Namespace, C, [usize; 2]) -> Result<R> + Send,
) -> Result<R> {
    options.check()?;
    host::preflight()?;
    let namespace = Namespace::new("bench").context("making a network namespace")?;
    let cables = cable(&namespace)?;
    namespace.run(|| bench(&namespace, cables, host::two_cores(options.core)?))
}

/// Has subjects take turns, back and forth. The first round does not count.
pub(super) fn measure<S: Copy + Ord, T>(
    subjects: &[S],
    options: &Options,
    (family, protocol): (Family, Protocol),
    progress: &(dyn Fn(&str) + Sync),
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
