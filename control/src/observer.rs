//! Answers questions about the agent's state and counters beside the agent's thread: for the socket, the
//! metrics and the health page.
//!
//! It reads the view that the agent published last, and the maps through handles of its own, in threads of its
//! own. So answers and changes do not wait for each other, however long they take. Three requests go to the
//! agent's thread: `which` and `trace`, which follow a packet through the live tables, and `detach`. Nobody
//! sends these every minute.
//!
//! ```text
//! agent -- View --> Observer --> rows of `status`, `services`, `backends`, `drops`
//! maps ---- TableReader --^  \-> Snapshot -> metrics
//! ```

mod backends;
mod captured;
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
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastpath::tables::TableReader;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use self::health::HealthStates;
use crate::agent::{Command, Handle, Question, View};
use crate::announce::LoopHeartbeat;
use crate::api::server::{error_line, line};
use crate::api::{Reply, Request, unattached};
use crate::health::monitor::Monitor;
use crate::kubernetes::ClusterFeed;
use crate::kubernetes::leases::DrainRequest;
use crate::metrics::{self, Others};
use crate::peers::{PeerStates, WAITS_FOR_PAST};

/// Most simultaneous answers; further ones wait. Each uses a core, and in a large cluster hundreds of megabytes.
const MAX_ANSWERS: usize = 2;
/// Most pages with a row for each service or backend that are made or sent at a time; further ones wait. Each has up to
/// 60 MB, and a peer may read slowly.
const MAX_LARGE_PAGES: usize = 2;
/// How long the agent's loop may show no sign of life. A sleeping loop gives one every 30 s.
const LIFE_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers questions beside the agent's thread. Clones are the same observer.
#[derive(Clone, Debug)]
pub struct Observer {
    inputs: Arc<ObserverInputs>,
    answers: Arc<Semaphore>,
    large_pages: Arc<Semaphore>,
}

/// What the answers are made from.
pub(crate) struct ObserverInputs {
    pub(crate) views: watch::Receiver<Arc<View>>,
    pub(crate) reader: TableReader,
    pub(crate) health: Arc<Monitor>,
    pub(crate) feed: Option<ClusterFeed>,
    pub(crate) heartbeat: LoopHeartbeat,
    pub(crate) agent: Handle,
    /// Where to leave wishes to drain this edge; `None` if it takes part in no election.
    pub(crate) drains: Option<mpsc::UnboundedSender<DrainRequest>>,
    /// The exchange of owners with other edges.
    pub(crate) peers: Option<PeerStates>,
    pub(crate) started: Instant,
    /// The start in seconds since 1970.
    pub(crate) started_at: u64,
    /// What the metrics keep between scrapes.
    pub(crate) others: Mutex<Others>,
}

impl fmt::Debug for ObserverInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObserverInputs")
            .field("started_at", &self.started_at)
            .finish_non_exhaustive()
    }
}

/// The state at one time, for one answer.
struct Observation<'s> {
    inputs: &'s ObserverInputs,
    view: Arc<View>,
    /// The results of checks, read when first needed.
    health_states: OnceCell<HealthStates>,
    /// Returns whether nobody waits for the answer any more.
    is_gone: &'s dyn Fn() -> bool,
}

/// The error of an answer that nobody waits for.
const GONE: &str = "the asker has gone";

impl Observer {
    pub(crate) fn new(inputs: ObserverInputs) -> Self {
        Self {
            inputs: Arc::new(inputs),
            answers: Arc::new(Semaphore::new(MAX_ANSWERS)),
            large_pages: Arc::new(Semaphore::new(MAX_LARGE_PAGES)),
        }
    }

    /// Answers a request with a line of JSON. Dropping the future ends the work.
    pub async fn answer(&self, request: Request) -> String {
        let answered = match request {
            Request::Which(flow) => return self.ask_agent(Question::Which(flow)).await,
            Request::Trace(packet) => return self.ask_agent(Question::Trace(packet)).await,
            Request::DrainEdge { drained } => return reply(self.drain(drained).await),
            Request::Detach {} => return self.ask_agent(Question::Detach).await,
            Request::Status {} => self.observe(|seen| reply(Ok(seen.status()))).await,
            Request::Services(of) => self.observe(move |seen| reply(seen.services(&of))).await,
            Request::Backends(of) => self.observe(move |seen| reply(seen.backends(&of))).await,
            Request::Flows(of) => self.observe(move |seen| reply(seen.flows(&of))).await,
            Request::Capture {} => self.observe(|seen| reply(seen.captured())).await,
            Request::Drops {} => self.observe(|seen| reply(seen.drops())).await,
            Request::Config {} => self.observe(|seen| reply(Ok(&*seen.view.settings))).await,
        };
        answered.unwrap_or_else(|| error_line("the answer broke off, see the log".to_owned()))
    }

    /// Has the election drain this edge, or end that.
    async fn drain(&self, is_drained: bool) -> Result<(), String> {
        let drains = self.inputs.drains.as_ref().ok_or(
            "no other edge can take over: where addresses are announced without Kubernetes, the configuration of each \
             machine says which it has",
        )?;
        let (written, outcome) = oneshot::channel();
        let ending = "the agent is ending";
        drains
            .send(DrainRequest {
                is_drained,
                written,
            })
            .map_err(|_| ending)?;
        outcome.await.map_err(|_| ending)?
    }

    async fn ask_agent(&self, question: Question) -> String {
        self.inputs.agent.ask(question).await
    }

    /// Returns the metrics. Dropping the future ends the work.
    pub async fn metrics(&self) -> Option<String> {
        let text = self.observe(|seen| metrics::render(seen.snapshot()?).ok());
        text.await.flatten()
    }

    /// Lists the devices that lack their program, and what else keeps this machine from being ready; `None` if the agent's loop hangs.
    pub async fn unattached(&self) -> Option<Vec<String>> {
        if self.inputs.heartbeat.age(Instant::now()) > LIFE_TIMEOUT {
            return None;
        }
        // Without a permit: a probe must not wait for long answers to others.
        let seen = self.run(None, |seen| (seen.programs(), seen.view.waits_for_past));
        let ((interfaces, egress), waits_for_past) = seen.await?;
        let mut missing = unattached(&interfaces, &egress);
        missing.extend(waits_for_past.then(|| WAITS_FOR_PAST.to_owned()));
        Some(missing)
    }

    /// Waits for a permit, then makes an answer from the current state.
    async fn observe<T: Send + 'static>(
        &self,
        answer: impl FnOnce(&Observation<'_>) -> T + Send + 'static,
    ) -> Option<T> {
        let permit = Arc::clone(&self.answers).acquire_owned().await.ok()?;
        self.run(Some(permit), answer).await
    }

    /// Makes an answer in a thread of its own; `None` if that panics.
    async fn run<T: Send + 'static>(
        &self,
        permit: Option<OwnedSemaphorePermit>,
        answer: impl FnOnce(&Observation<'_>) -> T + Send + 'static,
    ) -> Option<T> {
        let inputs = Arc::clone(&self.inputs);
        let (tell, told) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let is_gone = || tell.is_closed();
            let view = Arc::clone(&inputs.views.borrow());
            let answer = answer(&Observation {
                inputs: &inputs,
                view,
                health_states: OnceCell::new(),
                is_gone: &is_gone,
            });
            // Released here: all memory of the work is free by now, except the answer.
            drop(permit);
            // This fails only if nobody waits for the answer any more.
            let _ = tell.send(answer);
        });
        told.await.ok()
    }
}

impl Observation<'_> {
    /// Returns an error if nobody waits for the answer any more.
    fn go_on(&self) -> Result<(), String> {
        match (self.is_gone)() {
            true => Err(GONE.to_owned()),
            false => Ok(()),
        }
    }

    /// Makes the agent check what runs on the devices.
    fn have_programs_looked_at(&self) {
        self.inputs.agent.send(Command::Look);
    }
}

/// Formats an answer or error as a line of JSON.
fn reply<T: Serialize>(answer: Result<T, String>) -> String {
    answer.map_or_else(error_line, |answer| line(&Reply::Ok(answer)))
}
