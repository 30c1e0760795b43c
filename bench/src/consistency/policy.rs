//! What is compared: how an edge chooses the backend of a segment, and what it remembers for that.

mod guideway;
mod lru;
mod maglev;

use std::fmt;

use serde::{Deserialize, Serialize};
use xdp_prog::abi::MAX_PAST_OWNERS;

use self::{guideway::Guideway, maglev::Maglev};
use super::{
    Scenario,
    addresses::{BackendId, Client},
    backends::Table,
};

/// How edges choose backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// By the lookup table alone.
    Maglev,
    /// With an LRU table of connections at each edge, as load balancers have that know all of them.
    MaglevLru,
    /// With a table of all connections that an edge has seen, from which nothing is ever removed.
    MaglevUnbounded,
    /// Guideway, with lists of one past owner.
    Lists1,
    /// Guideway, with lists of four.
    Lists4,
    /// Guideway as it is.
    Guideway,
    /// Guideway without pins: each segment of a moved connection is tried anew.
    WithoutPins,
    /// Guideway before nodes that return nothing.
    WithoutReturns,
}

impl Policy {
    /// All policies, in the order of tables.
    pub const ALL: [Self; 8] = [
        Self::Maglev,
        Self::MaglevLru,
        Self::MaglevUnbounded,
        Self::Lists1,
        Self::Lists4,
        Self::Guideway,
        Self::WithoutPins,
        Self::WithoutReturns,
    ];

    /// Returns the name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Maglev => "maglev",
            Self::MaglevLru => "maglev-lru",
            Self::MaglevUnbounded => "maglev-unbounded",
            Self::Lists1 => "lists1",
            Self::Lists4 => "lists4",
            Self::Guideway => "guideway",
            Self::WithoutPins => "without-pins",
            Self::WithoutReturns => "without-returns",
        }
    }

    /// Returns the most past owners in a list of a slot; `None` for a policy without lists.
    pub const fn longest_list(self) -> Option<usize> {
        match self {
            Self::Maglev | Self::MaglevLru | Self::MaglevUnbounded => None,
            Self::Lists1 => Some(1),
            Self::Lists4 => Some(4),
            Self::Guideway | Self::WithoutPins | Self::WithoutReturns => {
                Some(MAX_PAST_OWNERS as usize)
            }
        }
    }

    /// Returns the most past owners in a list of a slot within which no connection is to break; `None` for a policy that
    /// does not claim that.
    pub(super) const fn claimed_list(self) -> Option<usize> {
        match self {
            Self::WithoutReturns => None,
            policy => policy.longest_list(),
        }
    }

    /// Makes the edges, which know nothing yet. There are so many ids of backends.
    pub(super) fn edges(self, scenario: &Scenario, ids: usize) -> Box<dyn Edges> {
        let edges = scenario.edges as usize;
        match self {
            Self::Maglev => Box::new(Maglev::new(edges, None)),
            Self::MaglevLru => Box::new(Maglev::new(edges, Some(scenario.lru as usize))),
            Self::MaglevUnbounded => Box::new(Maglev::new(edges, Some(usize::MAX))),
            Self::Lists1
            | Self::Lists4
            | Self::Guideway
            | Self::WithoutPins
            | Self::WithoutReturns => Box::new(Guideway::new(self, scenario, ids)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a segment of a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Syn,
    /// The end of the handshake.
    Ack,
    Data,
    Fin,
}

/// A segment of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub(super) client: Client,
    /// The hash of its connection, which chooses the slot.
    pub(super) hash: u32,
    pub(super) kind: Kind,
    /// The connection's number, of which the sequence numbers are made.
    pub(super) number: u32,
    /// The backends that have a socket for the client's address and port, open or half open.
    pub(super) sockets: &'a [BackendId],
}

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// A backend gets it.
    Delivered(BackendId),
    /// A machine on the way answers with a RST.
    Reset,
    /// It is lost; the client sends it again.
    Lost,
}

/// What a policy costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Look-ups and changes of tables of connections at edges.
    pub(super) look_ups: u64,
    /// Segments that nodes returned.
    pub(super) returns: u64,
    /// Entries in the tables of connections of the edge that has most.
    pub(super) entries: usize,
    /// Entries of the lists of past owners of the edge that has most, equal lists counted once.
    pub(super) history: usize,
}

/// The edges, and the nodes behind them.
pub(super) trait Edges {
    /// Sets the time in ns.
    fn set_time(&mut self, now: u64);
    /// Has a backend begin or end on its node.
    fn set_alive(&mut self, backend: BackendId, is_alive: bool);
    /// Has an edge learn of a new table, of which these slots have another owner than in the one that it has, or are all
    /// of another length; `None` if the edge begins with it, without a memory of anything.
    fn learn(&mut self, edge: usize, table: &Table, changed: Option<&[u32]>);
    /// Sends a segment by an edge.
    fn send(&mut self, edge: usize, segment: &Segment<'_>) -> Fate;
    /// Forgets what has expired.
    fn sweep(&mut self);
    /// Returns what it has cost, and what is remembered at this moment.
    fn cost(&self) -> Cost;
}

#[cfg(test)]
mod tests;
