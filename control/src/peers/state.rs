//! What operators see of the exchange: counts, and how it stands with each peer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fastpath::tables::TakenOwners;
use parking_lot::Mutex;

use super::frame::Instance;
use super::refusal::Refusal;
use crate::api;
use crate::random::random;

/// Most peers that are known by name. Anybody may connect.
const MOST_PEERS: usize = 256;

/// The state of the exchange. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct PeerStates {
    instance: Instance,
    states: Arc<Mutex<States>>,
}

#[derive(Debug, Default)]
struct States {
    begun: Begun,
    asked: u64,
    answered: u64,
    refused: [u64; Refusal::LABELS.len()],
    taken: u64,
    left_out: u64,
    /// Why the key is not known yet; `None` if it is.
    missing_key: Option<String>,
    /// Peers that this edge asks.
    peers: BTreeMap<SocketAddr, Peer>,
    /// Why the requests of others were refused, by address.
    strangers: BTreeMap<String, &'static str>,
}

/// How this edge began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It still waits for a peer.
    #[default]
    Waits,
    /// With the past that an earlier agent left.
    WithOwnPast,
    /// With what a peer told.
    FromPeer,
    /// Without a past: no peer answered.
    Without,
}

/// A peer that is asked.
#[derive(Debug, Default)]
struct Peer {
    answered: Option<Instant>,
    /// Whether its owners were equal when it last answered, or nothing was left to take.
    agrees: bool,
    refused: Option<Refusal>,
}

impl PeerStates {
    pub(crate) fn new() -> Self {
        let halves = [random(), random()].map(u64::to_be_bytes);
        let mut instance = Instance::default();
        instance.copy_from_slice(halves.as_flattened());
        Self {
            instance,
            states: Arc::default(),
        }
    }

    pub(super) const fn instance(&self) -> Instance {
        self.instance
    }

    pub(super) fn note_begun(&self, begun: Begun) {
        self.states.lock().begun = begun;
    }

    /// Records why the key is not known yet; `None` once it is.
    pub(crate) fn note_missing_key(&self, reason: Option<String>) {
        let mut states = self.states.lock();
        if let Some(reason) = reason.as_ref()
            && states.missing_key.as_ref() != Some(reason)
        {
            tracing::warn!(
                reason,
                "nothing is exchanged with other edges without the key"
            );
        }
        states.missing_key = reason;
    }

    /// Forgets those that are no peers any more.
    pub(super) fn retain(&self, peers: &BTreeSet<SocketAddr>) {
        let mut states = self.states.lock();
        states.peers.retain(|peer, _| peers.contains(peer));
    }

    /// Records that a peer was asked, and what came of it: whether its owners agree with those here.
    pub(super) fn note_asked(&self, peer: SocketAddr, outcome: Result<bool, Refusal>) {
        let mut states = self.states.lock();
        states.asked += 1;
        if let Err(refusal) = &outcome {
            states.refused[refusal.index()] += 1;
        }
        let known = states.peers.entry(peer).or_default();
        match outcome {
            Ok(agrees) => {
                if known.refused.take().is_some() {
                    tracing::info!(%peer, "the peer answers again");
                }
                known.answered = Some(Instant::now());
                known.agrees = agrees;
            }
            Err(refusal) => {
                let before = known.refused.as_ref().map(Refusal::label);
                if before != Some(refusal.label()) {
                    tracing::warn!(%peer, reason = %refusal, "no owners are taken from this peer");
                }
                known.refused = Some(refusal);
            }
        }
    }

    /// Records how many requests of another edge were answered, or why one was refused.
    pub(super) fn note_answers(&self, peer: String, outcome: Result<u64, Refusal>) {
        let mut states = self.states.lock();
        let refusal = match outcome {
            Ok(answers) => {
                states.answered += answers;
                states.strangers.remove(&peer);
                return;
            }
            // Whoever looks whether the port is open does this too.
            Err(Refusal::Unreachable(_)) => return,
            Err(refusal) => refusal,
        };
        states.refused[refusal.index()] += 1;
        if states.strangers.len() >= MOST_PEERS {
            states.strangers.pop_first();
        }
        let label = refusal.label();
        if states.strangers.insert(peer.clone(), label) != Some(label) {
            tracing::warn!(peer, reason = %refusal, "a request for owners is refused");
        }
    }

    pub(super) fn note_taken(&self, taken: TakenOwners) {
        let mut states = self.states.lock();
        states.taken += u64::from(taken.slots);
        states.left_out += u64::from(taken.left_out);
    }

    /// Returns what `guideway status` shows.
    pub(crate) fn status(&self) -> api::PeersStatus {
        let states = self.states.lock();
        let peers = states.peers.iter().map(|(address, peer)| api::Peer {
            address: address.to_string(),
            answered_seconds_ago: peer.answered.map(|at| at.elapsed().as_secs()),
            agrees: peer.agrees,
            refused: peer.refused.as_ref().map(Refusal::to_string),
        });
        let refused = Refusal::LABELS.iter().zip(states.refused);
        let begun = match states.begun {
            Begun::Waits => "waits",
            Begun::WithOwnPast => "own_past",
            Begun::FromPeer => "from_peer",
            Begun::Without => "without",
        };
        api::PeersStatus {
            begun: begun.to_owned(),
            missing_key: states.missing_key.clone(),
            asked: states.asked,
            answered: states.answered,
            refused: refused
                .map(|(label, count)| ((*label).to_owned(), count))
                .collect(),
            slots_taken: states.taken,
            owners_left_out: states.left_out,
            peers: peers.collect(),
        }
    }
}
