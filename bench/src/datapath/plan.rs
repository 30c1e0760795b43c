//! What is measured: the systems, the streams of each, and the reference of each.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::tables::KNOWN_FLOWS;

/// A program under test, on one path of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// Returns `XDP_TX`.
    Floor,
    /// Adds a fixed outer header.
    Static,
    /// Makes one lookup in a hash map.
    #[serde(rename = "hash_hit")]
    Hit,
    /// Returns `XDP_PASS`.
    Pass,
    /// Passes packets to the next TC program.
    PassSkb,
    /// The product, on the plain path.
    Guideway,
    /// The same, to a service with 131 072 slots.
    #[serde(rename = "slots_131072")]
    Slots,
    /// The same, to 10 000 services in turn.
    #[serde(rename = "services_10000")]
    Services,
    /// The product, from a NodePort to a pod on another node.
    NodePort,
    /// The product, by L2 DSR: with other MACs and without an outer header.
    #[serde(rename = "l2_dsr")]
    L2Dsr,
    /// The product, with packets that are for none of its addresses.
    Miss,
    /// The product, from an edge to a pod.
    Node,
    /// The product, from a pod to a client.
    Reply,
    /// The product, from a client to a backend of NAT mode.
    Nat,
    /// The product, from a backend of NAT mode to a client.
    NatReply,
    /// The product, with packets at TC egress that are no pod's reply.
    OtherEgress,
}

impl System {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Floor,
        Self::Static,
        Self::Hit,
        Self::Pass,
        Self::PassSkb,
        Self::Guideway,
        Self::Slots,
        Self::Services,
        Self::NodePort,
        Self::L2Dsr,
        Self::Miss,
        Self::Node,
        Self::Reply,
        Self::Nat,
        Self::NatReply,
        Self::OtherEgress,
    ];

    /// Returns the name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Static => "static",
            Self::Hit => "hash_hit",
            Self::Pass => "pass",
            Self::PassSkb => "pass_skb",
            Self::Guideway => "guideway",
            Self::Slots => "slots_131072",
            Self::Services => "services_10000",
            Self::NodePort => "node_port",
            Self::L2Dsr => "l2_dsr",
            Self::Miss => "miss",
            Self::Node => "node",
            Self::Reply => "reply",
            Self::Nat => "nat",
            Self::NatReply => "nat_reply",
            Self::OtherEgress => "other_egress",
        }
    }

    /// Returns the empty program that a system is compared with; `None` for an empty program.
    pub(super) const fn empty(self) -> Option<Self> {
        match self {
            Self::Floor | Self::Pass | Self::PassSkb => None,
            Self::Hit
            | Self::Static
            | Self::Guideway
            | Self::Slots
            | Self::Services
            | Self::NodePort
            | Self::L2Dsr
            | Self::Nat
            | Self::NatReply => Some(Self::Floor),
            Self::Node | Self::Miss => Some(Self::Pass),
            Self::Reply | Self::OtherEgress => Some(Self::PassSkb),
        }
    }

    /// Returns whether the rate is measured too.
    const fn has_rate(self) -> bool {
        matches!(
            self,
            Self::Floor | Self::Static | Self::Guideway | Self::Slots
        )
    }

    /// Returns the streams that a system is measured with. Yardsticks that use the streams of others have none.
    ///
    /// If flows are in tables, the memory that their packets touch fits into a core's caches for a thousand
    /// flows, but not for ten thousand.
    pub(super) fn streams(self) -> &'static [Stream] {
        const PLAIN: [Stream; 5] = [
            Stream::in_turn(1),
            Stream::in_turn(10_000),
            Stream::in_turn(1_000_000),
            Stream::random(10_000),
            Stream::random(1_000_000),
        ];
        const KNOWN: [Stream; 4] = [
            Stream::in_turn(1),
            Stream::in_turn(1_000),
            Stream::in_turn(KNOWN_FLOWS),
            Stream::random(KNOWN_FLOWS),
        ];
        const MANY: [Stream; 3] = [
            Stream::in_turn(10_000),
            Stream::random(10_000),
            Stream::random(1_000_000),
        ];
        const BOTH: [Stream; 2] = [Stream::in_turn(10_000), Stream::random(10_000)];
        match self {
            Self::Floor | Self::Static | Self::Guideway | Self::Slots => &PLAIN,
            Self::Services => &MANY,
            Self::NodePort | Self::L2Dsr | Self::Miss | Self::OtherEgress => &BOTH,
            Self::Node | Self::Reply | Self::Nat | Self::NatReply => &KNOWN,
            Self::Hit | Self::Pass | Self::PassSkb => &[],
        }
    }

    /// Lists the rows of the report, in their order.
    pub(super) fn rows() -> impl Iterator<Item = (Self, Stream)> {
        let of = |system: Self| system.streams().iter().map(move |stream| (system, *stream));
        Self::ALL.into_iter().flat_map(of)
    }
}

/// The flows of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream {
    /// Number of flows.
    pub flows: u32,
    /// Which flow the next packet belongs to.
    pub order: Order,
}

/// The order of a trial's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One packet of each flow in turn.
    InTurn,
    /// A random flow, each with the same probability.
    Random,
}

impl Stream {
    pub(super) const fn in_turn(flows: u32) -> Self {
        let order = Order::InTurn;
        Self { flows, order }
    }

    pub(super) const fn random(flows: u32) -> Self {
        let order = Order::Random;
        Self { flows, order }
    }
}

/// One trial of a round.
pub(super) type Trial = (Stream, System);

/// Returns the rate trials of a round. Systems that are compared, under the same stream, are next to each other.
pub(super) fn rate_trials(round: usize) -> Vec<Trial> {
    let trials = System::rows().filter(|(system, _)| system.has_rate());
    turns(trials.map(|(system, stream)| (stream, system)), round)
}

/// Returns the cost trials of a round in the same order: those of each row and of the yardsticks that it needs.
pub(super) fn cost_trials(round: usize) -> Vec<Trial> {
    let with_yardsticks = |(system, stream): (System, Stream)| {
        let systems = [
            Some(system),
            system.empty(),
            Some(System::Floor),
            Some(System::Hit),
        ];
        let systems = systems.into_iter().flatten();
        systems.map(move |system| (stream, system))
    };
    turns(System::rows().flat_map(with_yardsticks), round)
}

/// Rotates the trials by one every second round, and reverses them in between.
pub(super) fn turns<T: Ord>(trials: impl IntoIterator<Item = T>, round: usize) -> Vec<T> {
    let trials: BTreeSet<T> = trials.into_iter().collect();
    let mut trials: Vec<T> = trials.into_iter().collect();
    let length = trials.len();
    trials.rotate_left(round / 2 % length);
    if round % 2 == 1 {
        trials.reverse();
    }
    trials
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_runs_every_trial_once() {
        for trials in [rate_trials, cost_trials] {
            let sorted = |round| {
                let mut trials = trials(round);
                trials.sort();
                trials
            };
            for round in 1..200 {
                assert_eq!(sorted(round), sorted(0));
            }
        }
    }

    #[test]
    fn consecutive_rounds_mirror_each_other() {
        let mut even = cost_trials(4);
        even.reverse();
        assert_eq!(even, cost_trials(5));
        assert_ne!(cost_trials(4), cost_trials(6));
    }

    #[test]
    fn every_row_is_measured_beside_its_yardsticks() {
        let trials = cost_trials(0);
        for (system, stream) in System::rows() {
            for other in [
                Some(system),
                system.empty(),
                Some(System::Floor),
                Some(System::Hit),
            ] {
                assert!(other.is_none_or(|other| trials.contains(&(stream, other))));
            }
            if system.has_rate() {
                assert!(rate_trials(0).contains(&(stream, System::Floor)));
            }
        }
    }
}
