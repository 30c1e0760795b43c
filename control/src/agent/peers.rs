//! The agent's side of the [exchange of owners](crate::peers): it keeps the digests of what the tables have, tells owners,
//! and takes those that a peer told.
//!
//! An edge whose tables are empty when it starts has no past. It announces nothing until it has one, or no peer has told
//! any.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath::tables::{BackendKey, InstalledService, SlotOwners, Tables, TakenOwners};
use imbl::OrdMap;
use tokio::sync::{oneshot, watch};

use super::{Agent, Command, Handle};
use crate::config::PeersFound;
use crate::desired::ServiceKey;
use crate::healthz::tell_if_new;
use crate::peers::{Network, OwnEdge, Owners, PeerStates, SLOTS_AT_ONCE, Summary, Told};
use crate::versions::sides;

/// The state of the exchange in the agent.
#[derive(Debug)]
pub(super) struct Peering {
    /// The state that operators see; `None` if there are no peers.
    pub(super) states: Option<PeerStates>,
    /// Whether nothing is announced until a peer has told the past.
    pub(super) waits_for_past: bool,
    /// Addresses and ports of the other edges.
    network: watch::Sender<BTreeSet<SocketAddr>>,
    /// The digests of what the tables have; `None` until they have the desired state.
    summaries: watch::Sender<Option<Summary>>,
    digested: Digested,
}

/// The tables as the digests have them.
#[derive(Debug, Default)]
struct Digested {
    services: OrdMap<ServiceKey, Arc<InstalledService>>,
    /// Services that have changed since they were digested.
    due: BTreeSet<ServiceKey>,
    summary: Summary,
}

impl Digested {
    /// Digests services that have changed, as many as are digested at one go.
    fn follow(&mut self, tables: &Tables) {
        let services = tables.installed().clone();
        let before = std::mem::replace(&mut self.services, services.clone());
        let changes = before.diff(&services).map(sides);
        self.due
            .extend(changes.filter_map(|(old, new)| Some(*new.or(old)?.0)));
        let mut slots = 0;
        while slots < SLOTS_AT_ONCE
            && let Some(key) = self.due.pop_first()
        {
            let owners = tables.slot_owners(&key);
            slots += owners.as_ref().map_or(1, |owners| owners.slots.len());
            self.summary.set(key, owners.as_ref());
        }
    }
}

impl Peering {
    pub(super) fn new(states: Option<PeerStates>, waits_for_past: bool) -> Self {
        Self {
            states,
            waits_for_past,
            network: watch::Sender::default(),
            summaries: watch::Sender::default(),
            digested: Digested::default(),
        }
    }

    /// Returns the digests of what the tables have.
    pub(super) fn summary(&self) -> Summary {
        self.digested.summary.clone()
    }

    /// Returns the longest sleep of the agent; `None` for any.
    pub(super) fn pause(&self) -> Option<Duration> {
        (!self.digested.due.is_empty()).then_some(Duration::ZERO)
    }

    /// Publishes the digests, once there is one of each service.
    fn publish(&self) {
        if self.summaries.borrow().is_none() && !self.digested.due.is_empty() {
            return;
        }
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
    /// Returns what the exchange needs of this agent; `None` if there are no peers.
    pub(crate) fn own_edge(&self, handle: Handle) -> Option<OwnEdge<AgentOwners>> {
        self.peering.states.is_some().then(|| OwnEdge {
            owners: AgentOwners {
                handle,
                summaries: self.peering.summaries.subscribe(),
            },
            network: Network(self.peering.network.subscribe()),
            has_past: !self.peering.waits_for_past,
        })
    }

    /// Tells the exchange which other edges there are.
    pub(super) fn show_peers(&self) {
        let configured = self.file.started_with.peers.as_ref();
        let peers: BTreeSet<SocketAddr> = match configured.map(|peers| &peers.found) {
            None => return,
            Some(PeersFound::InFile { addresses, .. }) => addresses.clone(),
            Some(PeersFound::InCluster { port }) => {
                let machines = self
                    .cluster_state()
                    .into_iter()
                    .flat_map(|state| &state.peers);
                machines
                    .map(|machine| SocketAddr::new(*machine, *port))
                    .collect()
            }
        };
        let is_other = |peer: &SocketAddr| !self.machine.addresses.contains(&peer.ip());
        tell_if_new(
            &self.peering.network,
            peers.into_iter().filter(is_other).collect(),
        );
    }

    /// Brings the digests to what the tables have.
    pub(super) fn digest_owners(&mut self) {
        if self.peering.states.is_none() || self.waits_for_state() {
            return;
        }
        let digested = &mut self.peering.digested;
        digested.summary.set_seed(self.config.desired.hash_seed);
        digested.follow(&self.tables);
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
        let is_known = |backend: &BackendKey| nodes.contains(&backend.address);
        let nodes_before = self.tables.nodes_of_past_owners();
        let mut all = TakenOwners::default();
        for (key, owners) in told {
            let taken = self
                .tables
                .take_slot_owners(key, owners, told_ago, is_known);
            all.slots += taken.slots;
            all.left_out += taken.left_out;
        }
        // The asker compares the digests next.
        self.digest_owners();
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
