//! Requests that are timed while live frames pass the system.

use std::sync::PoisonError;

use anyhow::{Context, Result};

use super::{Lab, flows::Sockets};
use crate::{
    load::{
        Asked, Generator, Passed, Trial,
        live::Live,
        search::{self, Goal},
        sockets::OVERHEAD,
    },
    scenario::{Background, Load, SearchKind, ShareOfSearch, ShareOfSystem, System},
    stats::median,
};

/// Trials by which the rate of a system is measured. Their median is not affected by a single one beside other work.
pub const RATE_TRIALS: usize = 3;

/// Requests through sockets, and live frames beside them.
#[derive(Debug)]
pub(super) struct Beside<'a> {
    requests: Sockets<'a>,
    frames: Live<'a>,
    /// Frames a second.
    rate: f64,
}

impl Lab {
    /// Opens a load with frames beside the requests; without any, the requests alone.
    pub(super) fn open_requests(
        &self,
        system: System,
        load: &Load,
    ) -> Result<Box<dyn Generator + '_>> {
        let requests = self.open_sockets(system, load)?;
        let open = || self.open_live(system, &load.background_frames());
        let (frames, rate) = match load.background {
            Background::None => return Ok(Box::new(requests)),
            Background::Rate(rate) => (open()?, rate),
            Background::OfSearch(ShareOfSearch { share, search }) => {
                let mut frames = open()?;
                let most = self.borne_rate(system, &mut frames, search)?;
                (frames, share * most)
            }
            Background::OfSystem(ShareOfSystem { share, system }) => {
                let most = self.rate_of(system, &load.background_frames())?;
                (open()?, share * most)
            }
        };
        Ok(Box::new(Beside {
            requests,
            frames,
            rate,
        }))
    }

    /// Searches for the rate that a system bears, up to what the generator can send.
    fn borne_rate(&self, system: System, frames: &mut Live<'_>, kind: SearchKind) -> Result<f64> {
        let asked = Asked {
            rate: None,
            seconds: self.scenario.seconds,
            seed: self.scenario.seed,
        };
        let most = frames.run(asked)?;
        let goal = Goal::of(kind).context("it has a goal")?;
        let asked = Asked {
            rate: Some(most.tally.sent as f64 / most.seconds),
            ..asked
        };
        let (rate, _) = search::find(frames, goal, asked)
            .with_context(|| format!("searching for the {kind} of {system}"))?;
        Ok(rate)
    }

    /// Returns the frames a second that a system takes of a load, in core time: the median of some trials. It is measured
    /// once, so that all systems have the same rate beside them.
    fn rate_of(&self, system: System, load: &Load) -> Result<f64> {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{system}: {load}");
        if let Some(rate) = rates.get(&name) {
            return Ok(*rate);
        }
        let mut frames = self.open_live(system, load)?;
        let asked = Asked {
            rate: None,
            seconds: self.scenario.seconds,
            seed: self.scenario.seed,
        };
        let trials = (0..RATE_TRIALS).map(|_| -> Result<f64> {
            let trial = frames.run(asked)?;
            Ok(trial.tally.received as f64 / trial.seconds)
        });
        let trials: Vec<f64> = trials
            .collect::<Result<_>>()
            .with_context(|| format!("measuring the rate of {system}"))?;
        Ok(*rates.entry(name).or_insert(median(&trials)))
    }
}

impl Generator for Beside<'_> {
    fn run(&mut self, asked: Asked) -> Result<Trial> {
        self.requests.learn()?;
        let send = self.requests.sender(asked);
        let frames = Asked {
            rate: Some(self.rate),
            seconds: asked.seconds + OVERHEAD.as_secs_f64(),
            ..asked
        };
        let (passed, timed) = self.frames.run_beside(frames, send)?;
        Ok(Trial {
            background: Some(Passed {
                seconds: passed.seconds,
                tally: passed.tally,
            }),
            ..timed?
        })
    }
}
