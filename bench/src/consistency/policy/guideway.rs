//! Guideway: frames go through the functions that the programs are made of, at the edge, the node, and back.
//!
//! ```text
//! client's frame -> edge: xdp_prog::process -> node: xdp_prog::process -> delivered -> the pod's answer: xdp_prog::egress
//!                     ^                          |
//!                     '--------- returned -------'
//! ```
//!
//! The lists are made by the agent's own functions ([`fastpath::tables::past_owners`]). What is simulated is the memory
//! that both work on.

mod edge;
mod frames;
mod unused;
mod world;

use fastpath::tables::live_past_owners;
use xdp_prog::{
    abi::{OLDER_CONNECTION_SECONDS, PastOwner},
    egress::{self, host::HostSkb},
    frame::HostFrame,
    process::{Action, process, resume},
    reason::{PassReason, ReplyReason, ToNodeReason},
};

use self::{
    edge::Edge,
    frames::{Answer, answer, outer_destination, request},
    world::{At, Network},
};
use super::{Cost, Edges, Fate, Kind, Policy, Segment};
use crate::consistency::{
    Scenario,
    addresses::{BackendId, edge_of, node_of},
    backends::Table,
};

/// Interface index of the only device of each machine.
const DEVICE: u32 = 1;
/// A segment that was sent more often circles.
const MOST_HOPS: usize = 40;
const SECOND_NS: u64 = 1_000_000_000;

/// The edges and nodes.
#[derive(Debug)]
pub(super) struct Guideway {
    network: Network,
    longest_list: usize,
    returns: u64,
}

impl Guideway {
    pub(super) fn new(policy: Policy, scenario: &Scenario, ids: usize) -> Self {
        Self {
            network: Network::new(scenario, ids, policy),
            longest_list: policy.longest_list().unwrap_or_default(),
            returns: 0,
        }
    }

    fn second(&self) -> u32 {
        u32::try_from(self.network.now.get() / SECOND_NS).unwrap_or(u32::MAX)
    }

    /// Takes a frame through a machine; returns it as the machine leaves it.
    fn run(&self, at: At, bytes: &[u8]) -> (Action, HostFrame) {
        self.network.enter(at);
        let mut frame = HostFrame::new(bytes);
        let mut action = process(&mut frame, &self.network, DEVICE);
        while let Action::Continue(stage) = action {
            action = resume(stage, &mut frame, &self.network, DEVICE);
        }
        (action, frame)
    }

    /// Sends a segment; returns the backend that gets it.
    fn carry(&mut self, edge: usize, segment: &Segment<'_>) -> Fate {
        let mut frame = HostFrame::new(&request(segment));
        let mut at = At::Edge(edge);
        for _ in 0..MOST_HOPS {
            let (action, left) = self.run(at, frame.bytes());
            frame = left;
            let counted = self.network.counted();
            let is_sent = matches!(action, Action::Transmit | Action::Redirect(_));
            let reason = counted.reason;
            if is_sent && reason == Some(ReplyReason::Reset.index()) {
                return Fate::Reset;
            }
            at = match at {
                At::Edge(_) if is_sent => {
                    let is_tried = reason == Some(ToNodeReason::Retried.index());
                    if !is_tried && counted.backend.is_none() {
                        return Fate::Lost;
                    }
                    match outer_destination(frame.bytes()).and_then(node_of) {
                        Some(node) => At::Node(node),
                        None => return Fate::Lost,
                    }
                }
                At::Node(_) if reason == Some(PassReason::Delivered.index()) => {
                    return counted.backend.map_or(Fate::Lost, Fate::Delivered);
                }
                At::Node(_) if is_sent && reason == Some(ReplyReason::Returned.index()) => {
                    self.returns += 1;
                    match outer_destination(frame.bytes()).and_then(edge_of) {
                        Some(edge) => At::Edge(edge as usize),
                        None => return Fate::Lost,
                    }
                }
                At::Edge(_) | At::Node(_) => return Fate::Lost,
            };
        }
        Fate::Lost
    }

    /// Sends what the pod's kernel answers to a segment that it got.
    fn answer(&self, segment: &Segment<'_>, backend: BackendId) {
        let answered = match segment.kind {
            Kind::Syn => Answer::SynAck,
            _ if !segment.sockets.contains(&backend) => Answer::Reset,
            Kind::Fin => Answer::Fin,
            // What a pod sends else changes nothing that is remembered.
            Kind::Ack | Kind::Data => return,
        };
        let mut packet = HostSkb::new(&answer(segment, backend, answered));
        // An answer that is dropped half translated is one that the client does not get.
        let _ = egress::process(&mut packet, &self.network);
    }
}

impl Edges for Guideway {
    fn set_time(&mut self, now: u64) {
        self.network.now.set(now);
    }

    fn set_alive(&mut self, backend: BackendId, is_alive: bool) {
        self.network.is_alive[backend as usize] = is_alive;
    }

    fn learn(&mut self, edge: usize, table: &Table, changed: Option<&[u32]>) {
        let (second, longest) = (self.second(), self.longest_list);
        let pinned_for = if self.network.has_returns {
            0
        } else {
            OLDER_CONNECTION_SECONDS
        };
        let Network {
            edges, is_alive, ..
        } = &mut self.network;
        let edge = &mut edges[edge];
        match changed {
            None => edge.begin_anew(table),
            Some(changed) => {
                edge.change(table, changed, second, (longest, is_alive), pinned_for);
            }
        }
    }

    fn send(&mut self, edge: usize, segment: &Segment<'_>) -> Fate {
        let fate = self.carry(edge, segment);
        if let Fate::Delivered(backend) = fate {
            self.answer(segment, backend);
        }
        fate
    }

    fn sweep(&mut self) {
        let second = self.second();
        for edge in &mut self.network.edges {
            for slot in edge.slots() {
                let is_live = |list: &[PastOwner]| live_past_owners(list, second);
                let list = edge.list(slot);
                let kept = is_live(list);
                if kept.len() < list.len() {
                    edge.set_list(slot, &kept);
                }
            }
        }
        self.network.forget_old_flows();
    }

    fn cost(&self) -> Cost {
        let edges = self.network.edges.iter();
        Cost {
            look_ups: edges.clone().map(|edge| edge.look_ups.get()).sum(),
            returns: self.returns,
            entries: edges.clone().map(Edge::pins).max().unwrap_or_default(),
            history: edges.map(Edge::history).max().unwrap_or_default(),
        }
    }
}
