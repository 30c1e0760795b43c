//! The packets that wait for the next hop to a backend's node, within limits of memory and time.
//!
//! Each node has a queue of its own. One that does not answer keeps others out only where many such nodes take half of the
//! memory together. A full queue takes no more, whoever filled it: the packets that are in it came first, and most of their
//! senders do not send them again before they are let go.

use std::collections::{BTreeSet, HashMap, VecDeque};

use xdp_prog::abi::AddressKey;

use super::{Limits, Outcome, counts::Tally};

/// Bytes that a held packet takes beside its own, in the queues and as the allocator rounds it up.
const NOTES: usize = 256;

/// The packets for a node.
#[derive(Debug, Default)]
struct HeldForNode {
    /// Their backends. Of one that has gone meanwhile, nobody stores the next hop; the others tell of it.
    backends: BTreeSet<u32>,
    /// The packets, each with the time when it came, in ns.
    frames: VecDeque<(u64, Vec<u8>)>,
}

/// Packets that wait for next hops.
#[derive(Debug)]
pub(super) struct Waiting {
    limits: Limits,
    nodes: HashMap<AddressKey, HeldForNode>,
    bytes: usize,
    packets: usize,
}

impl Waiting {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            nodes: HashMap::new(),
            bytes: 0,
            packets: 0,
        }
    }

    /// Tells whether a packet of this length may be held for a node. Half of the memory stays for fragments.
    pub(super) fn has_room(&self, node: &AddressKey, length: usize) -> bool {
        let held = self.nodes.get(node).map_or(0, |held| held.frames.len());
        held < self.limits.packets_of_next_hop && self.bytes + cost(length) <= self.limits.bytes / 2
    }

    /// Holds a packet for a backend at a node that has room.
    pub(super) fn hold(&mut self, now: u64, node: AddressKey, backend: u32, frame: Vec<u8>) {
        self.bytes += cost(frame.len());
        self.packets += 1;
        let held = self.nodes.entry(node).or_default();
        held.backends.insert(backend);
        held.frames.push_back((now, frame));
    }

    /// Takes out the packets for nodes to which a next hop is known, those for each node in the order in which they
    /// came. `unresolved` returns the node of a backend to which none is known.
    pub(super) fn release(
        &mut self,
        unresolved: impl Fn(u32) -> Option<AddressKey>,
    ) -> Vec<Vec<u8>> {
        let mut released = Vec::new();
        self.nodes.retain(|node, held| {
            let ways = || held.backends.iter().map(|id| unresolved(*id));
            // An id may be that of a backend at another node by now.
            let waits = ways().all(|way| way.is_some()) && ways().any(|way| way == Some(*node));
            if !waits {
                released.extend(held.frames.drain(..).map(|(_, frame)| frame));
            }
            waits
        });
        self.bytes -= released
            .iter()
            .map(|frame| cost(frame.len()))
            .sum::<usize>();
        self.packets -= released.len();
        released
    }

    /// Gives up what has waited for too long.
    pub(super) fn expire(&mut self, now: u64, tally: &mut Tally) {
        let wait = u64::try_from(self.limits.next_hop_wait.as_nanos()).unwrap_or(u64::MAX);
        self.nodes.retain(|_, held| {
            while let Some((since, frame)) = held.frames.front()
                && now.saturating_sub(*since) >= wait
            {
                self.bytes -= cost(frame.len());
                self.packets -= 1;
                tally[Outcome::NextHopUnresolved as usize] += 1;
                held.frames.pop_front();
            }
            !held.frames.is_empty()
        });
    }

    /// Gives everything up.
    pub(super) fn clear(&mut self, tally: &mut Tally) {
        tally[Outcome::Ended as usize] += self.packets as u64;
        *self = Self::new(self.limits);
    }

    /// Returns the number of packets.
    pub(super) const fn packets(&self) -> usize {
        self.packets
    }

    /// Returns the bytes that they take.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Returns the bytes that a held packet of this length takes.
const fn cost(length: usize) -> usize {
    length + NOTES
}
