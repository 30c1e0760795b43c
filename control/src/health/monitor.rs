//! Makes the checks that are due, and keeps their results.
//!
//! The agent's thread sets the targets and reads the results. The checks and the observers run beside it.
//! Everyone holds the lock only for moments, never during a check.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::echo;
use super::echoes::Echoes;
use super::probe::probe;
use super::schedule::{BegunCheck, CheckThresholds, CheckedTarget, EndedCheck, Schedule};
use super::selection::{LeftOut, Member};
use super::targets::{BackendCheck, NodeCheck, Targets};
use crate::durations::Durations;
use crate::timer::sleep_until;

/// Most simultaneous checks with a socket of their own; one limit for backends, one for nodes.
const MAX_UNDER_WAY: usize = 256;
/// Nodes that are due within this time are checked together. Waking up for each would cost more than its echo.
const ROUND: Duration = Duration::from_millis(100);
/// Most targets that are read under one lock.
const READ_AT_A_TIME: usize = 2048;
/// Upper bounds, in seconds, of the histogram of check durations. A longer check has timed out.
const DURATION_BOUNDS: &[f64] = &[
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
];

/// The health of all backends and nodes.
#[derive(Debug)]
pub struct Monitor {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    backends: Schedule<Member, BackendCheck>,
    nodes: Schedule<IpAddr, NodeCheck>,
    durations: BTreeMap<&'static str, Durations>,
    names: BTreeMap<Member, String>,
}

/// The health of one backend or node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthState {
    /// Whether it should get traffic.
    pub healthy: bool,
    /// Whether a check has had a result.
    pub checked: bool,
    /// Time since it became healthy or unhealthy.
    pub since: Duration,
    /// The last failure, and the number of consecutive results that contradict `healthy`.
    pub note: Option<String>,
}

impl Monitor {
    /// Creates a monitor without targets. The seed spreads the checks of different machines over time.
    pub fn new(seed: u64) -> Self {
        Self {
            state: Mutex::new(State {
                backends: Schedule::new(seed),
                nodes: Schedule::new(!seed),
                durations: BTreeMap::new(),
                names: BTreeMap::new(),
            }),
            changed: Notify::new(),
        }
    }

    /// Replaces the targets. Targets that stay keep their state.
    pub fn set_targets(&self, targets: Targets) {
        let now = Instant::now();
        let mut state = self.lock();
        let backends = targets.backends.into_iter();
        let (names, backends) = backends
            .map(|(member, (name, check))| {
                let thresholds = check.check.thresholds();
                ((member, name), (member, (check, thresholds)))
            })
            .unzip();
        state.names = names;
        state.backends.set_targets(now, backends);
        let nodes = targets.nodes.into_iter();
        let nodes = nodes.map(|(node, check)| (node, (check, NodeCheck::THRESHOLDS)));
        state.nodes.set_targets(now, nodes.collect());
        drop(state);
        self.changed.notify_one();
    }

    /// Returns the backends and nodes that should not get traffic.
    pub fn left_out(&self) -> LeftOut {
        let state = self.lock();
        LeftOut {
            backends: state.backends.unhealthy().copied().collect(),
            nodes: state.nodes.unhealthy().copied().collect(),
        }
    }

    /// Returns the health of every checked backend.
    pub fn backends(&self) -> BTreeMap<Member, HealthState> {
        self.health_states(|state| &state.backends, failure_of_backend)
    }

    /// Returns the health of every checked node.
    pub fn nodes(&self) -> BTreeMap<IpAddr, HealthState> {
        self.health_states(|state| &state.nodes, failure_of_node)
    }

    /// Reads a schedule in parts, so that neither the agent nor a check waits for the whole.
    fn health_states<K: Ord + Copy, C: Clone + PartialEq>(
        &self,
        schedule: fn(&State) -> &Schedule<K, C>,
        failure: fn(&str) -> String,
    ) -> BTreeMap<K, HealthState> {
        let now = Instant::now();
        let mut health_states = BTreeMap::new();
        loop {
            let known = health_states.len();
            let last = health_states.last_key_value().map(|(key, _)| *key);
            let state = self.lock();
            let targets = schedule(&state).after(last.as_ref()).take(READ_AT_A_TIME);
            health_states
                .extend(targets.map(|(key, target)| (*key, HealthState::of(target, now, failure))));
            drop(state);
            if health_states.len() < known + READ_AT_A_TIME {
                return health_states;
            }
        }
    }

    /// Returns the histograms of durations by kind of check.
    pub fn durations(&self) -> BTreeMap<&'static str, Durations> {
        self.lock().durations.clone()
    }

    /// Makes checks until the task is dropped. Calls `turned` when a backend or node becomes healthy or unhealthy.
    pub async fn run(&self, turned: impl Fn()) {
        let mut backends = JoinSet::new();
        let mut nodes = JoinSet::new();
        let mut echoes = Echoes::new();
        loop {
            let due = self.begin(&mut backends, &mut nodes, &mut echoes);
            let turns = tokio::select! {
                // Errors are cancelled checks, and none is ever cancelled.
                Some(Ok(ended)) = backends.join_next() => self.lock().finish_backend(ended),
                Some(Ok(ended)) = nodes.join_next() => self.lock().finish_nodes([ended]),
                ended = echoes.ended() => self.lock().finish_nodes(ended),
                () = sleep_until(due) => false,
                () = self.changed.notified() => false,
            };
            if turns {
                turned();
            }
        }
    }

    /// Starts the checks that are due. Returns when the next one is due.
    fn begin(
        &self,
        backends: &mut JoinSet<EndedCheck<Member, BackendCheck>>,
        nodes: &mut JoinSet<EndedCheck<IpAddr, NodeCheck>>,
        echoes: &mut Echoes,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.lock();
        while let Some(begun) = state.nodes.start(now) {
            // When many nodes fail, checking the others in time matters more than the reason of each failure.
            let is_crowded = nodes.len() >= MAX_UNDER_WAY;
            if (begun.has_just_passed || is_crowded) && echoes.send(&begun) {
                continue;
            }
            if is_crowded {
                // The check cannot be made now. It counts as no result.
                state.nodes.finish(now, &begun.key, begun.ticket, None);
                continue;
            }
            nodes.spawn(async move {
                let outcome = unpanicked(check_node(&begun)).await;
                let outcome = outcome.unwrap_or_else(|panic| Some(Err(panic)));
                EndedCheck { begun, outcome }
            });
        }
        while backends.len() < MAX_UNDER_WAY
            && let Some(begun) = state.backends.start(now)
        {
            backends.spawn(async move {
                let BackendCheck { route, check } = &begun.check;
                let outcome = unpanicked(probe(route, check)).await;
                let outcome = outcome.and_then(|done| done.map_err(|error| error.to_string()));
                let outcome = Some(outcome);
                EndedCheck { begun, outcome }
            });
        }
        let nodes_due = state.nodes.next_due().map(|due| due.max(now + ROUND));
        let is_full = backends.len() >= MAX_UNDER_WAY;
        let backends_due = state.backends.next_due().filter(|_| !is_full);
        nodes_due.into_iter().chain(backends_due).min()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is completed within one call, so a panic elsewhere leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Records the result of a backend's check. Returns whether the backend became healthy or unhealthy.
    fn finish_backend(&mut self, ended: EndedCheck<Member, BackendCheck>) -> bool {
        let now = Instant::now();
        let EndedCheck { begun, outcome } = ended;
        self.measure(begun.check.check.kind.name(), now - begun.began);
        let member = begun.key;
        let failure = outcome.clone().and_then(Result::err);
        let turned = self.backends.finish(now, &member, begun.ticket, outcome);
        if turned {
            let service = self.names.get(&member).map_or("", String::as_str);
            let backend = member.backend;
            let node = self.nodes.get(&member.backend.address);
            match failure {
                None => tracing::info!(service, %backend, "backend is healthy again"),
                // The node has its own log line; its backends need none.
                Some(reason) if node.is_some_and(|node| !node.healthy) => {
                    tracing::debug!(service, %backend, reason, "backend is unhealthy");
                }
                Some(reason) => {
                    tracing::warn!(service, %backend, reason, "backend is unhealthy");
                }
            }
        }
        turned
    }

    /// Records the results of nodes' checks. Returns whether a node became reachable or unreachable.
    fn finish_nodes(
        &mut self,
        all: impl IntoIterator<Item = EndedCheck<IpAddr, NodeCheck>>,
    ) -> bool {
        let now = Instant::now();
        let mut any_turned = false;
        for EndedCheck { begun, outcome } in all {
            self.measure("echo", now - begun.began);
            let node = begun.key;
            let failure = outcome.clone().and_then(Result::err);
            if self.nodes.finish(now, &node, begun.ticket, outcome) {
                any_turned = true;
                match failure {
                    None => tracing::info!(%node, "node is reachable again"),
                    Some(reason) => tracing::warn!(%node, reason, "node is unreachable"),
                }
            }
        }
        any_turned
    }

    fn measure(&mut self, kind: &'static str, took: Duration) {
        let durations = self.durations.entry(kind);
        let durations = durations.or_insert_with(|| Durations::new(DURATION_BOUNDS));
        durations.add(took);
    }
}

impl HealthState {
    fn of<C>(target: &CheckedTarget<C>, now: Instant, failure: fn(&str) -> String) -> Self {
        let (against, limit) = target.against();
        let note = target.failure().map(|reason| {
            let reason = failure(reason);
            match (against, target.healthy) {
                (0, _) => reason,
                (_, true) => format!("{against} of {limit} failures: {reason}"),
                (_, false) => format!("{reason}; {against} of {limit} successes"),
            }
        });
        Self {
            healthy: target.healthy,
            checked: target.decided,
            since: now.saturating_duration_since(target.since),
            note,
        }
    }
}

fn failure_of_backend(reason: &str) -> String {
    reason.to_owned()
}

/// Describes a node's failure. For a timeout it gives the number of missed echoes.
fn failure_of_node(reason: &str) -> String {
    let CheckThresholds { fall, .. } = NodeCheck::THRESHOLDS;
    if reason.starts_with("timeout") {
        format!("node unreachable: {fall} echoes missed")
    } else {
        format!("node unreachable: {reason}")
    }
}

/// Checks a node by an echo on the path of client packets. Returns `None` if only the node's kernel replies,
/// and Guideway there may still be starting.
async fn check_node(begun: &BegunCheck<IpAddr, NodeCheck>) -> Option<Result<(), String>> {
    let (node, mark) = (begun.key, begun.check.mark);
    let through = echo::echo(node, mark, NodeCheck::TIMEOUT);
    let outcome = if mark != 0 && begun.may_be_starting {
        // Both at the same time: a dead node must not be detected later.
        let straight = echo::echo(node, 0, NodeCheck::TIMEOUT);
        let (through, straight) = tokio::join!(through, straight);
        if through.is_err() && straight.is_ok() {
            return None;
        }
        through
    } else {
        through.await
    };
    Some(outcome.map_err(|error| error.to_string()))
}

/// Turns a panic into a failed check. Without a result the target would never be checked again.
async fn unpanicked<T>(check: impl Future<Output = T>) -> Result<T, String> {
    let done = AssertUnwindSafe(check).catch_unwind().await;
    done.map_err(|_| "the check broke off, see the log".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn check_that_panics_fails() {
        assert_eq!(unpanicked(async { 7 }).await, Ok(7));
        let failed = unpanicked(async { panic!("on purpose") });
        assert!(
            failed
                .await
                .is_err_and(|reason: String| reason.contains("broke off"))
        );
    }
}
