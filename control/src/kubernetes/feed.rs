//! What passes between the watchers and the agent: states one way, addresses of the machine the other, and
//! what both tell about themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::arrival::WatchStatus;
use super::indexer::Kind;
use super::request_errors::RequestErrors;
use crate::healthz::{Reports, tell_if_new};
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
    /// How the lists and watches go, by kind.
    pub watches: WatchStatus,
    /// Requests that failed and are no lists and watches of these kinds, by what they were for.
    pub failed_requests: BTreeMap<&'static str, u64>,
    /// When the last event arrived, in seconds since 1970.
    pub last_event: Option<i64>,
    /// Services that wait for an update.
    pub pending: usize,
}

impl Watching {
    /// Begins with nothing learnt.
    fn new(server: String) -> Self {
        let none = Kind::ALL.map(|kind| (kind.name(), 0_u64));
        Self {
            server,
            watches: WatchStatus {
                events: none.into(),
                errors: none.into(),
                ..WatchStatus::default()
            },
            objects: Kind::ALL.map(|kind| (kind.name(), 0)).into(),
            ..Self::default()
        }
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
        let mut slot = self.update.lock();
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
        let mut slot = self.update.lock();
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
        let mut watching = self.watching.lock().clone();
        watching.failed_requests = self.request_errors.by_name();
        watching
    }

    /// Returns where requests are counted that fail.
    pub(super) const fn request_errors(&self) -> &RequestErrors {
        &self.request_errors
    }

    /// Lets a watcher tell how it is.
    pub(super) fn tell(&self, change: impl FnOnce(&mut Watching)) {
        change(&mut self.watching.lock());
    }

    /// Tells the watchers what this machine is.
    pub fn set_machine(&self, machine: OwnMachine) {
        tell_if_new(&self.machine, machine);
    }

    /// Follows what this machine is.
    pub(super) fn machine(&self) -> watch::Receiver<OwnMachine> {
        self.machine.subscribe()
    }
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
}
