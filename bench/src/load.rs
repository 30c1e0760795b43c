//! Loads: when requests are due, and what sends them.
//!
//! Every [`Generator`] tells what was offered, what it really sent and what came of it. One that times requests gives a
//! [`Sent`] for each, from which latencies follow. What came of the probes is the matter of [`crate::probe::Ledger`].

mod afxdp;
pub(crate) mod frame;
pub mod live;
pub mod message;
pub(crate) mod numbered;
pub mod pktgen;
mod schedule;
pub mod search;
pub mod sockets;

use std::{
    fmt, mem,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
pub use schedule::due_times;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    probe::{PROBE_LENGTH, Tally},
    scenario::{GeneratorKind, Load},
};

/// What sends the requests of a load to a system, trial after trial.
pub trait Generator: fmt::Debug {
    /// Runs a trial.
    ///
    /// # Errors
    ///
    /// When requests cannot be sent or counted at all. What is lost on the way is no error.
    fn run(&mut self, asked: Asked) -> Result<Trial>;
}

/// Returns the client of each flow of a load to so many Services, where a generator makes the frames; `None` where requests
/// are sent.
pub(crate) fn clients_of_frames(load: &Load, services: usize) -> Option<Vec<SocketAddr>> {
    match load.generator {
        GeneratorKind::Sockets => None,
        GeneratorKind::Live | GeneratorKind::Afxdp => {
            let flows = 0..load.flows;
            Some(
                flows
                    .map(|flow| numbered::client(load.family, flow))
                    .collect(),
            )
        }
        GeneratorKind::Pktgen => Some(pktgen::clients(load, services)),
    }
}

/// What is asked of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Requests a second: the load's, or others that a search tries.
    pub rate: Option<f64>,
    /// How long requests are sent.
    pub seconds: f64,
    /// Decides whatever is drawn.
    pub seed: u64,
}

/// What a trial gave.
#[derive(Debug)]
pub struct Trial {
    /// `CLOCK_MONOTONIC` at the beginning of the schedule, in nanoseconds.
    pub start: u64,
    /// How long requests were sent, in seconds.
    pub seconds: f64,
    /// The requests that were sent, in order; none if the generator does not time them.
    pub requests: Vec<Sent>,
    /// Time for which requests were under way, summed up in nanoseconds; `None` if the generator does not time them.
    pub under_way_ns: Option<u64>,
    /// What became of the requests.
    pub tally: Tally,
    /// Answers by backend; empty if the generator does not know who answers.
    pub shares: Vec<u64>,
    /// What became of the live frames beside the requests, if there were any.
    pub background: Option<Passed>,
    /// What became of the frames at each rate that a procedure for frame loss has tried, the highest first; empty without
    /// one.
    pub losses: Vec<Passed>,
}

/// What became of live frames.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Passed {
    /// How long they were sent, in seconds.
    pub seconds: f64,
    /// How many were offered, sent and received.
    pub tally: Tally,
}

/// A request: when it was due, sent, received by a backend and answered, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When it was due.
    pub due: u64,
    /// When it was sent: just before the system call.
    pub sent: u64,
    /// When a backend first read it; `None` if none did.
    pub arrived: Option<u64>,
    /// When its answer was read; `None` without one.
    pub answered: Option<u64>,
    /// Stamps of the request and of its answer, by a clock of their own, in nanoseconds.
    pub stamps: [Option<u64>; 2],
}

impl Sent {
    /// Returns the time from when the request was due to its answer.
    pub fn round_trip(&self) -> Option<u64> {
        Some(self.answered?.saturating_sub(self.due))
    }

    /// Returns the time from the stamp of the request to that of its answer; `None` unless both are there.
    pub fn round_trip_stamped(&self) -> Option<u64> {
        let [request, answer] = self.stamps;
        answer?.checked_sub(request?)
    }

    /// Returns the time from when the request was sent to its answer.
    pub fn round_trip_uncorrected(&self) -> Option<u64> {
        Some(self.answered?.saturating_sub(self.sent))
    }

    /// Returns the time from when the request was due to its arrival at a backend.
    pub fn forward(&self) -> Option<u64> {
        Some(self.arrived?.saturating_sub(self.due))
    }

    /// Returns how late the request was sent.
    pub fn lateness(&self) -> u64 {
        self.sent.saturating_sub(self.due)
    }
}

/// A probe that a backend has read, and when: in nanoseconds of `CLOCK_MONOTONIC`.
pub type Arrived = ([u8; PROBE_LENGTH], u64);

/// What the backends have read. Backends and sender run in this process and read one clock, so the time of the way there
/// is known. All clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    all: Arc<Mutex<Vec<Arrived>>>,
    /// Whether nobody will take them.
    are_ignored: bool,
}

impl Arrivals {
    /// Makes a list that stays empty, for backends whose sender is another machine.
    pub fn ignored() -> Self {
        Self {
            are_ignored: true,
            ..Self::default()
        }
    }

    /// Adds a probe.
    pub fn add(&self, arrived: Arrived) {
        if self.are_ignored {
            return;
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(arrived);
    }

    /// Takes all that has been added.
    pub fn take(&self) -> Vec<Arrived> {
        mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
