//! Requests that are timed while live frames pass the system.

use anyhow::{Context, Result};

use super::{Lab, flows::Sockets};
use crate::{
    load::{
        Asked, Generator, Passed, Trial,
        live::Live,
        search::{self, Goal},
        sockets::OVERHEAD,
    },
    scenario::{Background, Load, SearchKind, System},
};

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
            Background::ShareOfPdr(share) => {
                let mut frames = open()?;
                let most = self.partial_drop_rate(system, &mut frames)?;
                (frames, share * most)
            }
        };
        Ok(Box::new(Beside {
            requests,
            frames,
            rate,
        }))
    }

    /// Searches for the partial-drop rate, up to what the generator can send.
    fn partial_drop_rate(&self, system: System, frames: &mut Live<'_>) -> Result<f64> {
        let asked = Asked {
            rate: None,
            seconds: self.scenario.seconds,
            seed: self.scenario.seed,
        };
        let most = frames.run(asked)?;
        let goal = Goal::of(SearchKind::Pdr).context("it has a goal")?;
        let asked = Asked {
            rate: Some(most.tally.sent as f64 / most.seconds),
            ..asked
        };
        let (rate, _) = search::find(frames, goal, asked)
            .with_context(|| format!("searching for the partial-drop rate of {system}"))?;
        Ok(rate)
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
