//! Answers beside the agent: what the socket, the metrics and the health page ask of its state and of the counters.
//!
//! It reads the view that the agent has published last, and the maps by handles of its own, in threads of its own: however
//! long an answer takes, no change waits for it, nor does it wait for a change. What follows a packet through the
//! live tables (`which`, `trace`) and `detach` are the agent's own matter; nobody asks these by the minute.
//!
//! ```text
//! agent -- View --> Observer --> rows of `status`, `services`, `backends`, `drops`
//! maps ---- TableReader --^  \-> Snapshot -> metrics
//! ```

mod backends;
mod counters;
mod flows;
mod health;
mod kubernetes;
pub(crate) mod pages;
mod programs;
mod services;
mod status;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath::tables::TableReader;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use self::health::Conditions;
use crate::agent::{Command, Handle, Question, View};
use crate::announce::Pulse;
use crate::api::server::{error_line, line};
use crate::api::{Reply, Request, unattached};
use crate::health::monitor::Monitor;
use crate::kubernetes::Feed;
use crate::metrics;

/// Answers that are made at a time; further ones wait. Each has a core to itself, and in a large cluster hundreds of
/// megabytes.
const MAX_ANSWERS: usize = 2;
/// How long the agent's loop may give no sign of life; asleep it gives one every 30 s.
const LIFE_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers beside the agent. Clones are one observer.
#[derive(Clone, Debug)]
pub struct Observer {
    sources: Arc<Sources>,
    answers: Arc<Semaphore>,
}

/// What answers are made from.
pub(crate) struct Sources {
    pub(crate) views: watch::Receiver<Arc<View>>,
    pub(crate) reader: TableReader,
    pub(crate) health: Arc<Monitor>,
    pub(crate) feed: Option<Feed>,
    pub(crate) pulse: Pulse,
    pub(crate) agent: Handle,
    pub(crate) started: Instant,
    /// The same in seconds since 1970.
    pub(crate) started_at: u64,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("started_at", &self.started_at)
            .finish_non_exhaustive()
    }
}

/// One look at everything, for one who asked.
struct Observation<'s> {
    sources: &'s Sources,
    view: Arc<View>,
    /// What the checks come to, once that was asked.
    conditions: OnceCell<Conditions>,
    /// Tells whether nobody waits for the answer any more.
    is_gone: &'s dyn Fn() -> bool,
}

/// The asker has gone, so that there is no answer.
const GONE: &str = "the asker has gone";

impl Observer {
    pub(crate) fn new(sources: Sources) -> Self {
        Self {
            sources: Arc::new(sources),
            answers: Arc::new(Semaphore::new(MAX_ANSWERS)),
        }
    }

    /// Answers a request with a line of JSON; dropped before, it ends the work.
    pub async fn answer(&self, request: Request) -> String {
        let answered = match request {
            Request::Which(flow) => return self.ask_agent(Question::Which(flow)).await,
            Request::Trace(packet) => return self.ask_agent(Question::Trace(packet)).await,
            Request::Config {} => return self.ask_agent(Question::Config).await,
            Request::Detach {} => return self.ask_agent(Question::Detach).await,
            Request::Status {} => self.observe(|seen| reply(Ok(seen.status()))).await,
            Request::Services(of) => self.observe(move |seen| reply(seen.services(&of))).await,
            Request::Backends(of) => self.observe(move |seen| reply(seen.backends(&of))).await,
            Request::Flows(of) => self.observe(move |seen| reply(seen.flows(&of))).await,
            Request::Drops {} => self.observe(|seen| reply(seen.drops())).await,
        };
        answered.unwrap_or_else(|| error_line("the answer broke off, see the log".to_owned()))
    }

    async fn ask_agent(&self, question: Question) -> String {
        self.sources.agent.ask(question).await
    }

    /// Writes a scrape; dropped before, it ends the work.
    pub async fn metrics(&self) -> Option<String> {
        let text = self.observe(|seen| metrics::render(seen.snapshot()?).ok());
        text.await.flatten()
    }

    /// Names each device without its program; nothing if the agent's loop hangs.
    pub async fn unattached(&self) -> Option<Vec<String>> {
        if self.sources.pulse.age(Instant::now()) > LIFE_TIMEOUT {
            return None;
        }
        // A probe waits for nobody's rows.
        let programs = self.run(None, |seen| seen.programs());
        let (interfaces, egress) = programs.await?;
        Some(unattached(&interfaces, &egress))
    }

    /// Waits for its turn, looks at everything and makes an answer of it.
    async fn observe<T: Send + 'static>(
        &self,
        answer: impl FnOnce(&Observation<'_>) -> T + Send + 'static,
    ) -> Option<T> {
        let permit = Arc::clone(&self.answers).acquire_owned().await.ok()?;
        self.run(Some(permit), answer).await
    }

    /// Makes an answer in a thread of its own; nothing if that panics.
    async fn run<T: Send + 'static>(
        &self,
        permit: Option<OwnedSemaphorePermit>,
        answer: impl FnOnce(&Observation<'_>) -> T + Send + 'static,
    ) -> Option<T> {
        let sources = Arc::clone(&self.sources);
        let (tell, told) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let is_gone = || tell.is_closed();
            let view = Arc::clone(&sources.views.borrow());
            let answer = answer(&Observation {
                sources: &sources,
                view,
                conditions: OnceCell::new(),
                is_gone: &is_gone,
            });
            // Before the next one begins, what this one needed is free but for the answer itself.
            drop(permit);
            // Nobody waits for it any more, if this fails.
            let _ = tell.send(answer);
        });
        told.await.ok()
    }
}

impl Observation<'_> {
    /// Goes on if somebody still waits for the answer.
    fn go_on(&self) -> Result<(), String> {
        match (self.is_gone)() {
            true => Err(GONE.to_owned()),
            false => Ok(()),
        }
    }

    /// Has the agent look at what runs on the devices.
    fn have_programs_looked_at(&self) {
        self.sources.agent.send(Command::Look);
    }
}

/// Writes an answer as a line of JSON, or why there is none.
fn reply<T: Serialize>(answer: Result<T, String>) -> String {
    answer.map_or_else(error_line, |answer| line(&Reply::Ok(answer)))
}
