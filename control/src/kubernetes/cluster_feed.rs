//! The connection between the watchers and the agent. States go to the agent, the machine's own addresses go to
//! the watchers, and both publish their status here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::cluster_objects::WatchedKind;
use super::request_errors::RequestErrors;
use super::watch_results::WatchStatus;
use crate::healthz::{Reports, tell_if_new};
use crate::index::State;

/// A state for the agent to bring about.
#[derive(Debug)]
pub struct Update {
    /// The desired state.
    pub state: State,
    /// Seed of the flow hash.
    pub hash_seed: u64,
    /// Times of the changes that led to this state, as their objects give them.
    pub change_times: Vec<Timestamp>,
    /// When the first of these changes arrived here.
    pub arrived: Instant,
}

/// Status of the watchers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WatcherStatus {
    /// The name of this machine's Node, or of the machine if it is no Node.
    pub node_name: String,
    /// The API server's URL.
    pub server: String,
    /// What must still arrive before anything is programmed.
    pub missing: Vec<String>,
    /// Number of known objects, by kind.
    pub objects: BTreeMap<&'static str, usize>,
    /// Status of the lists and watches.
    pub watches: WatchStatus,
    /// Number of failed requests other than these lists and watches, by purpose.
    pub failed_requests: BTreeMap<&'static str, u64>,
    /// Time of the last event, in seconds since 1970.
    pub last_event: Option<i64>,
    /// Number of Services that wait for an update.
    pub pending: usize,
}

impl WatcherStatus {
    /// Returns the status at the start: all counters 0.
    fn new(server: String) -> Self {
        let none = WatchedKind::ALL.map(|kind| (kind.name(), 0_u64));
        Self {
            server,
            watches: WatchStatus {
                events: none.into(),
                errors: none.into(),
                ..WatchStatus::default()
            },
            objects: WatchedKind::ALL.map(|kind| (kind.name(), 0)).into(),
            ..Self::default()
        }
    }
}

/// What the watchers need to know about this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnMachine {
    /// Its addresses. They never become virtual.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether it has the edge role only.
    pub edge_only: bool,
}

/// The connection itself. Clones share it.
#[derive(Clone, Debug)]
pub struct ClusterFeed {
    update: Arc<Mutex<Option<Update>>>,
    watchers: Arc<Mutex<WatcherStatus>>,
    machine: watch::Sender<OwnMachine>,
    reports: Reports,
    request_errors: RequestErrors,
}

impl ClusterFeed {
    /// Makes the connection for watchers of the server at this URL.
    pub(super) fn new(server: String) -> Self {
        Self {
            update: Arc::default(),
            watchers: Arc::new(Mutex::new(WatcherStatus::new(server))),
            machine: watch::Sender::default(),
            reports: Reports::new(Instant::now()),
            request_errors: RequestErrors::of_agent(),
        }
    }

    /// Leaves a state for the agent. It replaces one that the agent has not taken, whose changes it takes over.
    pub(super) fn put(&self, mut update: Update) {
        let mut slot = self.update.lock();
        self.reports
            .machine_health()
            .pass(update.arrived, Instant::now());
        if let Some(before) = slot.take() {
            update.arrived = before.arrived;
            let newer = std::mem::replace(&mut update.change_times, before.change_times);
            update.change_times.extend(newer);
        }
        *slot = Some(update);
    }

    /// Takes the newest state, if there is a new one.
    pub fn take(&self) -> Option<Update> {
        let mut slot = self.update.lock();
        let update = slot.take()?;
        self.reports.machine_health().take();
        Some(update)
    }

    /// Returns the data that the health servers answer from.
    pub const fn reports(&self) -> &Reports {
        &self.reports
    }

    /// Returns the status of the watchers.
    pub fn watchers(&self) -> WatcherStatus {
        let mut watchers = self.watchers.lock().clone();
        watchers.failed_requests = self.request_errors.by_name();
        watchers
    }

    /// Returns the counters of failed requests.
    pub(super) const fn request_errors(&self) -> &RequestErrors {
        &self.request_errors
    }

    /// Changes the published status of the watchers.
    pub(super) fn update_status(&self, change: impl FnOnce(&mut WatcherStatus)) {
        change(&mut self.watchers.lock());
    }

    /// Tells the watchers this machine's addresses and role.
    pub fn set_machine(&self, machine: OwnMachine) {
        tell_if_new(&self.machine, machine);
    }

    /// Returns a receiver for this machine's addresses and role.
    pub(super) fn machine(&self) -> watch::Receiver<OwnMachine> {
        self.machine.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untaken_state_is_replaced_and_its_changes_are_kept() {
        let feed = ClusterFeed::new("https://api:6443".to_owned());
        let update = |hash_seed, change| Update {
            state: State::default(),
            hash_seed,
            change_times: vec![change],
            arrived: Instant::now(),
        };
        let first = update(1, Timestamp::UNIX_EPOCH);
        let arrived = first.arrived;
        feed.put(first);
        feed.put(update(2, Timestamp::MAX));
        let taken = feed.take().unwrap();
        assert_eq!(taken.hash_seed, 2);
        assert_eq!(taken.change_times, [Timestamp::UNIX_EPOCH, Timestamp::MAX]);
        assert_eq!(taken.arrived, arrived);
        assert!(feed.take().is_none());
    }
}
