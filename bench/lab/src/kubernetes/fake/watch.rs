//! One watch of the fake API server.

use std::{
    io,
    net::{Shutdown, TcpStream},
    sync::PoisonError,
    time::{Duration, Instant},
};

use super::{
    Fault, OneTimeFault, Shared, State,
    http::{Chunks, Request, error, half},
    lock, store,
};

/// Duration of a watch whose client does not ask for one, in seconds.
const DEFAULT_SECONDS: u64 = 1800;

/// The next step of a watch.
enum Step {
    Tell(Vec<String>),
    /// Suffer a fault, with the events that are due.
    Strike(OneTimeFault, Vec<String>),
    /// Report that the version is too old.
    Expire,
    End,
}

impl Shared {
    pub(super) fn watch(&self, request: &Request, stream: &TcpStream) -> io::Result<()> {
        let seconds = request.number("timeoutSeconds").unwrap_or(DEFAULT_SECONDS);
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let mut chunks = Chunks::begin(stream)?;
        let mut watch = {
            let state = lock(&self.state);
            Watch {
                request,
                version: request.number("resourceVersion").unwrap_or(0),
                struck: state.one_time_faults(&request.resource).len(),
                reversed: state.reversals(&request.resource),
            }
        };
        loop {
            match self.next(&mut watch, deadline) {
                Step::Tell(lines) => chunks.write(&lines.concat())?,
                Step::Strike(fault, lines) => {
                    let next = lines.first().map_or("", String::as_str);
                    match fault {
                        OneTimeFault::Gone => break,
                        OneTimeFault::Cut => {
                            chunks.write_half(next)?;
                            return stream.shutdown(Shutdown::Both);
                        }
                        OneTimeFault::Torn => {
                            chunks.write(half(next))?;
                            return chunks.end();
                        }
                        OneTimeFault::Garbled => {
                            chunks.write(&lines.concat()[half(next).len()..])?;
                        }
                        OneTimeFault::Reset => return stream.shutdown(Shutdown::Both),
                    }
                }
                Step::Expire => break,
                Step::End => return chunks.end(),
            }
        }
        chunks.write(&store::line("ERROR", &error(410)))?;
        chunks.end()
    }

    /// Waits for the next step.
    fn next(&self, watch: &mut Watch<'_>, deadline: Instant) -> Step {
        let mut state = lock(&self.state);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.has_ended {
                return Step::End;
            }
            if let Some(step) = watch.step(&state) {
                return step;
            }
            let is_silent = state.fault(&watch.request.resource) == Some(Fault::Silent);
            if left.is_zero() && !is_silent {
                return Step::End;
            }
            // A silent watch does not even end at its deadline.
            let pause = if is_silent { Duration::MAX } else { left };
            let waited = self.changed.wait_timeout(state, pause);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn one_time_faults(&self, resource: &str) -> &[OneTimeFault] {
        self.one_time_faults
            .get(resource)
            .map_or(&[], Vec::as_slice)
    }
}

/// The progress of a watch.
struct Watch<'request> {
    request: &'request Request,
    /// All changes up to this version have been sent.
    version: u64,
    /// Number of one-time faults that are over.
    struck: usize,
    /// Number of times that held-back events have been sent after [`Fault::Reversed`] was lifted.
    reversed: usize,
}

impl Watch<'_> {
    fn step(&mut self, state: &State) -> Option<Step> {
        let resource = &self.request.resource;
        let fault = state.fault(resource);
        let is_struck = state.one_time_faults(resource).len() > self.struck;
        if fault == Some(Fault::Silent) || fault == Some(Fault::Reversed) && !is_struck {
            return None;
        }
        let Some(mut lines) = state.store.since(self.version, self.request) else {
            return Some(Step::Expire);
        };
        if let Some(&fault) = state.one_time_faults(resource).get(self.struck) {
            let needs_event = !matches!(fault, OneTimeFault::Gone | OneTimeFault::Reset);
            if needs_event && lines.is_empty() {
                return None;
            }
            self.struck += 1;
            self.version = state.store.version();
            return Some(Step::Strike(fault, lines));
        }
        self.version = state.store.version();
        let reversals = state.reversals(resource);
        if reversals > self.reversed {
            self.reversed = reversals;
            lines.reverse();
        }
        if fault == Some(Fault::Doubled) {
            lines = lines
                .into_iter()
                .flat_map(|line| [line.clone(), line])
                .collect();
        }
        (!lines.is_empty()).then_some(Step::Tell(lines))
    }
}
