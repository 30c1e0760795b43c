//! Makes the checks that are due, and keeps what they come to.
//!
//! The agent's thread sets the targets and reads; the checks run beside it, and so do those who observe. All hold the lock for
//! moments only, never while a check is under way.

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
use super::schedule::{BegunCheck, EndedCheck, Rule, Schedule, Target};
use super::selection::{LeftOut, Member};
use super::targets::{BackendCheck, NodeCheck, Targets};
use crate::durations::Durations;
use crate::timer::sleep_until;

/// Checks under way at a time with sockets of their own, of backends and of nodes each.
const MAX_UNDER_WAY: usize = 256;
/// Nodes that become due within this time are checked together: waking up for each costs more than its echo.
const ROUND: Duration = Duration::from_millis(100);
/// Targets that are read under one lock.
const READ_AT_A_TIME: usize = 2048;
/// Upper bounds in seconds of how long checks take; what takes longer has timed out.
const DURATION_BOUNDS: &[f64] = &[
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
];

/// Everything known of the health of backends and nodes.
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

/// What is known of one backend or node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Whether it should serve.
    pub healthy: bool,
    /// Whether a check has come to a result yet.
    pub checked: bool,
    /// How long it has been so.
    pub since: Duration,
    /// The last failure, and how many checks in a row say otherwise than `healthy`.
    pub note: Option<String>,
}

impl Monitor {
    /// Makes a monitor without targets; the seed spreads the checks of several machines over time.
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

    /// Makes these the targets; those that stay keep what is known of them.
    pub fn set_targets(&self, targets: Targets) {
        let now = Instant::now();
        let mut state = self.lock();
        let backends = targets.backends.into_iter();
        let (names, backends) = backends
            .map(|(member, (name, check))| {
                let rule = check.check.rule();
                ((member, name), (member, (check, rule)))
            })
            .unzip();
        state.names = names;
        state.backends.set_targets(now, backends);
        let nodes = targets.nodes.into_iter();
        let nodes = nodes.map(|(node, check)| (node, (check, NodeCheck::RULE)));
        state.nodes.set_targets(now, nodes.collect());
        drop(state);
        self.changed.notify_one();
    }

    /// Returns what should not serve.
    pub fn left_out(&self) -> LeftOut {
        let state = self.lock();
        LeftOut {
            backends: state.backends.unhealthy().copied().collect(),
            nodes: state.nodes.unhealthy().copied().collect(),
        }
    }

    /// Returns what is known of each backend that is checked.
    pub fn backends(&self) -> BTreeMap<Member, Condition> {
        self.conditions(|state| &state.backends, failure_of_backend)
    }

    /// Returns what is known of each node that is checked.
    pub fn nodes(&self) -> BTreeMap<IpAddr, Condition> {
        self.conditions(|state| &state.nodes, failure_of_node)
    }

    /// Reads a schedule some targets at a time: neither the agent nor a check waits for all of them.
    fn conditions<K: Ord + Copy, C: Clone + PartialEq>(
        &self,
        schedule: fn(&State) -> &Schedule<K, C>,
        failure: fn(&str) -> String,
    ) -> BTreeMap<K, Condition> {
        let now = Instant::now();
        let mut conditions = BTreeMap::new();
        loop {
            let known = conditions.len();
            let last = conditions.last_key_value().map(|(key, _)| *key);
            let state = self.lock();
            let targets = schedule(&state).after(last.as_ref()).take(READ_AT_A_TIME);
            conditions
                .extend(targets.map(|(key, target)| (*key, Condition::of(target, now, failure))));
            drop(state);
            if conditions.len() < known + READ_AT_A_TIME {
                return conditions;
            }
        }
    }

    /// Returns how long the checks of each kind took.
    pub fn durations(&self) -> BTreeMap<&'static str, Durations> {
        self.lock().durations.clone()
    }

    /// Checks until the task is dropped; calls `turned` when a backend or node turned healthy or unhealthy.
    pub async fn run(&self, turned: impl Fn()) {
        let mut backends = JoinSet::new();
        let mut nodes = JoinSet::new();
        let mut echoes = Echoes::new();
        loop {
            let due = self.begin(&mut backends, &mut nodes, &mut echoes);
            let turns = tokio::select! {
                // An error is a check that was cancelled, which none is.
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

    /// Begins the checks that are due; returns when the next one is.
    fn begin(
        &self,
        backends: &mut JoinSet<EndedCheck<Member, BackendCheck>>,
        nodes: &mut JoinSet<EndedCheck<IpAddr, NodeCheck>>,
        echoes: &mut Echoes,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.lock();
        while let Some(begun) = state.nodes.start(now) {
            // Where so many fail, that others are checked in time counts for more than why each does.
            let is_crowded = nodes.len() >= MAX_UNDER_WAY;
            if (begun.has_just_passed || is_crowded) && echoes.send(&begun) {
                continue;
            }
            if is_crowded {
                // It cannot be made now, and says nothing.
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
        // Every change is complete within one call, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes what a check of a backend came to; true if the backend turned healthy or unhealthy by it.
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
                // One line for the node is enough, not one for each of its backends.
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

    /// Takes what checks of nodes came to; true if a node turned reachable or unreachable by them.
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

impl Condition {
    fn of<C>(target: &Target<C>, now: Instant, failure: fn(&str) -> String) -> Self {
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

/// That an echo was not answered in time is said by how many were missed.
fn failure_of_node(reason: &str) -> String {
    let Rule { fall, .. } = NodeCheck::RULE;
    if reason.starts_with("timeout") {
        format!("node unreachable: {fall} echoes missed")
    } else {
        format!("node unreachable: {reason}")
    }
}

/// Asks a node for an echo by the way of client packets; none where only its kernel replies, and Guideway there may
/// be starting.
async fn check_node(begun: &BegunCheck<IpAddr, NodeCheck>) -> Option<Result<(), String>> {
    let (node, mark) = (begun.key, begun.check.mark);
    let through = echo::echo(node, mark, NodeCheck::TIMEOUT);
    let outcome = if mark != 0 && begun.may_be_starting {
        // At once: a node that is dead must not be left out any later.
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

/// Makes a panic a failure: a target whose check broke off without a result would never be checked again.
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
