//! Requests that are timed while live frames pass the system.

use anyhow::Result;

use super::{Lab, flows::Sockets};
use crate::{
    load::{Asked, Generator, Passed, Trial, live::Live, sockets::OVERHEAD},
    scenario::{Load, System},
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
    /// Opens a load with so many frames a second beside the requests; without any, the requests alone.
    pub(super) fn open_requests(
        &self,
        system: System,
        load: &Load,
        beside: Option<f64>,
    ) -> Result<Box<dyn Generator + '_>> {
        let requests = self.open_sockets(system, load)?;
        let Some(rate) = beside else {
            return Ok(Box::new(requests));
        };
        Ok(Box::new(Beside {
            requests,
            frames: self.open_live(system, &load.background_frames())?,
            rate,
        }))
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
