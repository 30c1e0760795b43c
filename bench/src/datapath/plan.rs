//! What is measured: the systems, the streams of each, and the reference of each.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    frames::Protocol,
    tables::{ASKED_FLOWS, KNOWN_FLOWS},
};

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
    /// The product, on the plain path to pods that are all new owners of their slots.
    Past,
    /// The same, with connections that are pinned to past owners.
    Pinned,
    /// The product, from an edge to a pod, with packets that the node may return.
    NodeTries,
    /// As [`Self::Node`], with the first packet of each flow in a second.
    NodeFirst,
    /// As [`Self::NodeTries`], with the first packet of each flow in a second: the node asks whether it knows the flow.
    NodeAsked,
    /// The product, from an edge to a node that does not know the flow, and back to the edge.
    NodeReturn,
    /// The product, from the node that has returned a packet to the owner that is next.
    Retry,
}

impl System {
    /// All of them.
    pub const ALL: [Self; 23] = [
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
        Self::Past,
        Self::Pinned,
        Self::NodeTries,
        Self::NodeFirst,
        Self::NodeAsked,
        Self::NodeReturn,
        Self::Retry,
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
            Self::Past => "past",
            Self::Pinned => "pinned",
            Self::NodeTries => "node_tries",
            Self::NodeFirst => "node_first",
            Self::NodeAsked => "node_asked",
            Self::NodeReturn => "node_return",
            Self::Retry => "retry",
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
            | Self::NatReply
            | Self::Past
            | Self::Pinned
            | Self::NodeReturn
            | Self::Retry => Some(Self::Floor),
            Self::Node | Self::NodeTries | Self::NodeFirst | Self::NodeAsked | Self::Miss => {
                Some(Self::Pass)
            }
            Self::Reply | Self::OtherEgress => Some(Self::PassSkb),
        }
    }

    /// Returns the system whose service the packets of this one are for.
    pub(super) const fn of_service(self) -> Self {
        match self {
            Self::Pass | Self::NodeTries | Self::NodeFirst | Self::NodeAsked | Self::NodeReturn => {
                Self::Node
            }
            system => system,
        }
    }

    /// Returns the system without what this one does beside it; `None` if the empty program suffices.
    pub(super) const fn without(self) -> Option<Self> {
        match self {
            Self::NodeTries => Some(Self::Node),
            Self::NodeAsked => Some(Self::NodeFirst),
            _ => None,
        }
    }

    /// Returns whether the first packet of each flow is measured, and no other.
    pub(super) const fn is_of_first_packets(self) -> bool {
        matches!(
            self,
            Self::NodeFirst | Self::NodeAsked | Self::NodeReturn | Self::Retry
        )
    }

    /// Returns whether packets of a protocol take this path. Those of connections and of datagrams differ where slots have had
    /// other owners.
    pub(super) const fn has(self, protocol: Protocol) -> bool {
        match self {
            Self::Past | Self::Pinned | Self::NodeReturn | Self::Retry => {
                matches!(protocol, Protocol::Tcp)
            }
            _ => true,
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
        const FEW: [Stream; 1] = [Stream::in_turn(ASKED_FLOWS)];
        const FEW_AND_KNOWN: [Stream; 2] =
            [Stream::in_turn(ASKED_FLOWS), Stream::in_turn(KNOWN_FLOWS)];
        match self {
            Self::Floor | Self::Static | Self::Guideway | Self::Slots => &PLAIN,
            Self::Services => &MANY,
            Self::NodePort | Self::L2Dsr | Self::Miss | Self::OtherEgress | Self::Past => &BOTH,
            Self::Pinned | Self::NodeTries => &FEW_AND_KNOWN,
            Self::NodeFirst | Self::NodeAsked | Self::NodeReturn | Self::Retry => &FEW,
            Self::Node | Self::Reply | Self::Nat | Self::NatReply => &KNOWN,
            Self::Hit | Self::Pass | Self::PassSkb => &[],
        }
    }

    /// Lists the rows of a protocol in the report, in their order.
    pub(super) fn rows(protocol: Protocol) -> impl Iterator<Item = (Self, Stream)> {
        let of = |system: Self| system.streams().iter().map(move |stream| (system, *stream));
        let systems = Self::ALL.into_iter();
        let systems = systems.filter(move |system| system.has(protocol));
        systems.flat_map(of)
    }

    /// Lists the systems that a row's figures are made of.
    fn measured_with(self) -> impl Iterator<Item = Self> {
        let without = self.without();
        let systems = [
            Some(self),
            without,
            self.empty(),
            Some(Self::Floor),
            Some(Self::Hit),
        ];
        systems.into_iter().flatten()
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

/// Returns the rate trials of a round with a protocol. Systems that are compared, under the same stream, are next to each other.
pub(super) fn rate_trials(protocol: Protocol, round: usize) -> Vec<Trial> {
    let trials = System::rows(protocol).filter(|(system, _)| system.has_rate());
    turns(trials.map(|(system, stream)| (stream, system)), round)
}

/// Returns the cost trials of a round in the same order: those of each row and of the yardsticks that it needs.
pub(super) fn cost_trials(protocol: Protocol, round: usize) -> Vec<Trial> {
    let with_yardsticks = |(system, stream): (System, Stream)| {
        let systems = system.measured_with();
        systems.map(move |system| (stream, system))
    };
    turns(System::rows(protocol).flat_map(with_yardsticks), round)
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
            for protocol in Protocol::ALL {
                let sorted = |round| {
                    let mut trials = trials(protocol, round);
                    trials.sort();
                    trials
                };
                for round in 1..200 {
                    assert_eq!(sorted(round), sorted(0));
                }
            }
        }
    }

    #[test]
    fn consecutive_rounds_mirror_each_other() {
        let of_round = |round| cost_trials(Protocol::Tcp, round);
        let mut even = of_round(4);
        even.reverse();
        assert_eq!(even, of_round(5));
        assert_ne!(of_round(4), of_round(6));
    }

    #[test]
    fn every_row_is_measured_beside_its_yardsticks() {
        for protocol in Protocol::ALL {
            let trials = cost_trials(protocol, 0);
            for (system, stream) in System::rows(protocol) {
                for other in [
                    Some(system),
                    system.without(),
                    system.empty(),
                    Some(System::Floor),
                    Some(System::Hit),
                ] {
                    assert!(other.is_none_or(|other| trials.contains(&(stream, other))));
                }
                if system.has_rate() {
                    assert!(rate_trials(protocol, 0).contains(&(stream, System::Floor)));
                }
            }
        }
    }
}
