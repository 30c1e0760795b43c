//! The agent's side of the [exchange of owners](crate::peers): it keeps the digests of what the tables have, tells owners,
//! and takes those that a peer told.
//!
//! An edge whose tables are empty when it starts has no past. It announces nothing until it has one, or no peer has told
//! any.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath::tables::{InstalledService, SlotOwners, Tables, TakenOwners};
use imbl::OrdMap;
use tokio::sync::{oneshot, watch};

use super::{Agent, Command, Handle};
use crate::desired::ServiceKey;
use crate::peers::{Owners, PeerStates, Summary, Told};
use crate::versions::sides;

/// Slots of which the agent tells at one go. It does nothing else meanwhile.
const SLOTS_AT_ONCE: usize = 1 << 15;
/// Shortest time between two digests of all services. Owners that expire change lists, whichever those are.
const DIGEST_PAUSE: Duration = Duration::from_secs(30);

/// The state of the exchange in the agent.
#[derive(Debug)]
pub(super) struct Peering {
    /// The state that operators see; `None` if there are no peers.
    pub(super) states: Option<PeerStates>,
    /// Whether nothing is announced until a peer has told the past.
    pub(super) waits_for_past: bool,
    /// The digests of what the tables have; `None` until they have the desired state.
    summaries: watch::Sender<Option<Summary>>,
    digested: Digested,
}

/// The tables as the digests have them.
#[derive(Debug, Default)]
struct Digested {
    services: OrdMap<ServiceKey, Arc<InstalledService>>,
    changes_of_pasts: u64,
    /// When all services were digested.
    at: Option<Instant>,
    summary: Summary,
}

impl Digested {
    /// Digests the services that have changed.
    fn follow(&mut self, tables: &Tables, now: Instant) {
        let services = tables.installed().clone();
        let is_due = self.at.is_none_or(|at| now >= at + DIGEST_PAUSE);
        if tables.changes_of_pasts() != self.changes_of_pasts && is_due {
            self.services = OrdMap::new();
            self.changes_of_pasts = tables.changes_of_pasts();
            self.at = Some(now);
        }
        let before = std::mem::replace(&mut self.services, services.clone());
        for change in before.diff(&services) {
            let (old, new) = sides(change);
            if let Some((key, _)) = new.or(old) {
                self.digest(tables, *key);
            }
        }
    }

    fn digest(&mut self, tables: &Tables, key: ServiceKey) {
        self.summary.set(key, tables.slot_owners(&key).as_ref());
    }

    /// Digests services whose lists were changed at this count of changes.
    fn note_taken(&mut self, tables: &Tables, keys: impl Iterator<Item = ServiceKey>, before: u64) {
        for key in keys {
            self.digest(tables, key);
        }
        if self.changes_of_pasts == before {
            self.changes_of_pasts = tables.changes_of_pasts();
        }
    }
}

impl Peering {
    pub(super) fn new(states: Option<PeerStates>, waits_for_past: bool) -> Self {
        Self {
            states,
            waits_for_past,
            summaries: watch::Sender::default(),
            digested: Digested::default(),
        }
    }

    /// Returns the digests of what the tables have.
    pub(super) fn summary(&self) -> Summary {
        self.digested.summary.clone()
    }

    fn publish(&self) {
        let summary = Some(self.digested.summary.clone());
        self.summaries.send_if_modified(|before| {
            // The sums tell; to compare every service would take long.
            let both = before.as_ref().zip(summary.as_ref());
            let is_known = both.is_some_and(|(before, now)| before.is_as(now));
            *before = summary;
            !is_known
        });
    }
}

impl Agent {
    /// Returns what the exchange needs of this agent: the tables, the state for operators, and whether it began with a
    /// past; `None` if there are no peers.
    pub(crate) fn peering(&self, handle: Handle) -> Option<(AgentOwners, PeerStates, bool)> {
        let states = self.peering.states.clone()?;
        let owners = AgentOwners {
            handle,
            summaries: self.peering.summaries.subscribe(),
        };
        Some((owners, states, !self.peering.waits_for_past))
    }

    /// Brings the digests to what the tables have.
    pub(super) fn digest_owners(&mut self) {
        if self.peering.states.is_none() || self.waits_for_state() {
            return;
        }
        let digested = &mut self.peering.digested;
        digested.summary.set_seed(self.config.desired.hash_seed);
        digested.follow(&self.tables, Instant::now());
        self.peering.publish();
    }

    /// Returns the owners of the slots of the first of these services.
    pub(super) fn owners_of_slots(&self, keys: &[ServiceKey]) -> Vec<Option<SlotOwners>> {
        let mut slots = 0;
        let has_room = |owners: &Option<SlotOwners>| {
            let had_room = slots < SLOTS_AT_ONCE;
            slots += owners.as_ref().map_or(1, |owners| owners.slots.len());
            had_room
        };
        let owners = keys.iter().map(|key| self.tables.slot_owners(key));
        owners.take_while(has_room).collect()
    }

    /// Takes what a peer told that was asked at this time.
    pub(super) fn take_owners(&mut self, told: &Told, asked: Instant) -> TakenOwners {
        let told_ago = asked.elapsed().as_secs() + 1;
        let told_ago = u32::try_from(told_ago).unwrap_or(u32::MAX);
        let nodes = &self.config.desired.nodes;
        let is_node = |node: &IpAddr| nodes.contains(node);
        let before = self.tables.changes_of_pasts();
        let nodes_before = self.tables.nodes_of_past_owners();
        let mut all = TakenOwners::default();
        for (key, owners) in told {
            let is_known = |backend: &fastpath::tables::BackendKey| is_node(&backend.address);
            let taken = self
                .tables
                .take_slot_owners(key, owners, told_ago, is_known);
            all.slots += taken.slots;
            all.left_out += taken.left_out;
        }
        let keys = told.iter().map(|(key, _)| *key);
        self.peering.digested.note_taken(&self.tables, keys, before);
        self.peering.publish();
        // Nodes of past owners need next hops.
        if self.tables.nodes_of_past_owners() != nodes_before {
            self.settle();
        }
        all
    }

    /// Announces what was held back until the past of slots had come.
    pub(super) fn end_wait_for_past(&mut self) {
        if std::mem::take(&mut self.peering.waits_for_past) {
            self.settle();
        }
    }
}

/// The tables for the exchange.
#[derive(Clone, Debug)]
pub(crate) struct AgentOwners {
    handle: Handle,
    summaries: watch::Receiver<Option<Summary>>,
}

impl AgentOwners {
    /// Waits until the tables have the desired state.
    pub(crate) async fn programmed(&mut self) {
        // An error means that the agent has ended.
        let _ = self.summaries.wait_for(Option::is_some).await;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.handle.send(command(answer));
        answered.await.ok()
    }
}

impl Owners for AgentOwners {
    fn summary(&self) -> Summary {
        self.summaries.borrow().clone().unwrap_or_default()
    }

    async fn owners(&self, keys: Vec<ServiceKey>) -> Option<Vec<Option<SlotOwners>>> {
        self.ask(|answer| Command::Owners(keys, answer)).await
    }

    async fn take(&self, told: Told, asked: Instant) -> Option<TakenOwners> {
        self.ask(|taken| Command::TakeOwners { told, asked, taken })
            .await
    }
}
