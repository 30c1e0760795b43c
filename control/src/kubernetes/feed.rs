//! What passes between the watchers and the agent: states one way, addresses of the machine the other, and
//! what both tell about themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;

use super::cluster::Kind;
use super::request_errors::RequestErrors;
use crate::healthz::Reports;
use crate::index::State;

/// A state that the agent is to bring about.
#[derive(Debug)]
pub struct Update {
    /// The state.
    pub state: State,
    /// Seed of the flow hash.
    pub hash_seed: u64,
    /// When the changes happened that came with it.
    pub changes: Vec<Timestamp>,
    /// When the first of these arrived.
    pub arrived: Instant,
}

/// How the watchers are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watching {
    /// The API server's URL.
    pub server: String,
    /// What is still to be learnt before anything is programmed.
    pub missing: Vec<String>,
    /// Objects by kind.
    pub objects: BTreeMap<&'static str, usize>,
    /// Events by kind.
    pub events: BTreeMap<&'static str, u64>,
    /// Errors by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// Requests that failed and are no lists and watches of these kinds, by what they were for.
    pub failed_requests: BTreeMap<&'static str, u64>,
    /// Kinds whose watch is broken, each with the reason: from a failure until the server has answered.
    pub broken: BTreeMap<&'static str, String>,
    /// When the last event arrived, in seconds since 1970.
    pub last_event: Option<i64>,
    /// Services that wait for an update.
    pub pending: usize,
}

impl Watching {
    /// Begins with nothing learnt.
    pub(super) fn new(server: String) -> Self {
        let none = Kind::ALL.map(|kind| (kind.name(), 0_u64));
        Self {
            server,
            events: none.into(),
            errors: none.into(),
            objects: Kind::ALL.map(|kind| (kind.name(), 0)).into(),
            ..Self::default()
        }
    }

    /// Notes that the server has answered, with an event or without one: the kind is not broken.
    pub(super) fn hear(&mut self, kind: Kind, event: Option<i64>) {
        if self.broken.remove(kind.name()).is_some() {
            tracing::info!(kind = kind.name(), "the API server tells of changes again");
        }
        if event.is_some() {
            *self.events.entry(kind.name()).or_default() += 1;
            self.last_event = event;
        }
    }

    /// Notes an error; one that only comes again is logged once.
    pub(super) fn fail(&mut self, kind: Kind, reason: String) {
        *self.errors.entry(kind.name()).or_default() += 1;
        if self.broken.get(kind.name()) != Some(&reason) {
            tracing::warn!(
                kind = kind.name(),
                reason,
                "cannot watch; what is known stays in force"
            );
        }
        self.broken.insert(kind.name(), reason);
    }
}

/// What the watchers have to know of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnMachine {
    /// Its addresses that are never virtual.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether it takes the edge role only.
    pub edge_only: bool,
}

/// The end of the feed that the agent holds.
#[derive(Clone, Debug)]
pub struct Feed {
    update: Arc<Mutex<Option<Update>>>,
    watching: Arc<Mutex<Watching>>,
    machine: watch::Sender<OwnMachine>,
    reports: Reports,
    request_errors: RequestErrors,
}

impl Feed {
    /// Makes a feed for watchers of this server.
    pub(super) fn new(server: String) -> Self {
        Self {
            update: Arc::default(),
            watching: Arc::new(Mutex::new(Watching::new(server))),
            machine: watch::Sender::default(),
            reports: Reports::new(Instant::now()),
            request_errors: RequestErrors::of_agent(),
        }
    }

    /// Leaves a state for the agent, in place of one that it has not taken.
    pub(super) fn put(&self, mut update: Update) {
        let mut slot = lock(&self.update);
        self.reports.vitals().pass(update.arrived, Instant::now());
        if let Some(before) = slot.take() {
            update.arrived = before.arrived;
            let newer = std::mem::replace(&mut update.changes, before.changes);
            update.changes.extend(newer);
        }
        *slot = Some(update);
    }

    /// Takes the newest state, if there is one since the last time.
    pub fn take(&self) -> Option<Update> {
        let mut slot = lock(&self.update);
        let update = slot.take()?;
        self.reports.vitals().take();
        Some(update)
    }

    /// Returns what health servers answer from.
    pub const fn reports(&self) -> &Reports {
        &self.reports
    }

    /// Returns how the watchers are.
    pub fn watching(&self) -> Watching {
        let mut watching = lock(&self.watching).clone();
        watching.failed_requests = self.request_errors.by_name();
        watching
    }

    /// Returns where requests are counted that fail.
    pub(super) const fn request_errors(&self) -> &RequestErrors {
        &self.request_errors
    }

    /// Lets a watcher tell how it is.
    pub(super) fn tell(&self, change: impl FnOnce(&mut Watching)) {
        change(&mut lock(&self.watching));
    }

    /// Tells the watchers what this machine is.
    pub fn set_machine(&self, machine: OwnMachine) {
        self.machine.send_if_modified(|known| {
            let changed = *known != machine;
            *known = machine;
            changed
        });
    }

    /// Follows what this machine is.
    pub(super) fn machine(&self) -> watch::Receiver<OwnMachine> {
        self.machine.subscribe()
    }
}

/// Takes a lock; what it guards is whole after each statement, also where one panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untaken_state_is_replaced_and_its_changes_are_kept() {
        let feed = Feed::new("https://api:6443".to_owned());
        let update = |hash_seed, change| Update {
            state: State::default(),
            hash_seed,
            changes: vec![change],
            arrived: Instant::now(),
        };
        let first = update(1, Timestamp::UNIX_EPOCH);
        let arrived = first.arrived;
        feed.put(first);
        feed.put(update(2, Timestamp::MAX));
        let taken = feed.take().unwrap();
        assert_eq!(taken.hash_seed, 2);
        assert_eq!(taken.changes, [Timestamp::UNIX_EPOCH, Timestamp::MAX]);
        assert_eq!(taken.arrived, arrived);
        assert!(feed.take().is_none());
    }

    #[test]
    fn watch_is_broken_from_a_failure_until_the_server_answers() {
        let feed = Feed::new("https://api:6443".to_owned());
        feed.tell(|watching| {
            watching.fail(Kind::Services, "refused".to_owned());
            watching.fail(Kind::Nodes, "refused".to_owned());
            watching.hear(Kind::Nodes, None);
        });
        let broken = feed.watching().broken;
        assert_eq!(broken.into_keys().collect::<Vec<_>>(), ["services"]);
    }
}
