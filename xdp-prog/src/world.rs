//! What a packet may ask, remember and count.
//!
//! The code that decides sees the maps by these traits alone: behind them lie the kernel's maps in the programs, a model
//! in the tests, and the maps as user space reads them where a decision is explained.

mod answers;
mod flows;
mod hand_over;
mod nat;
mod relay;
mod tables;

pub(crate) use self::relay::OFFSETS;
pub use self::{
    answers::{Answer, Answers},
    flows::{Clock, FlowTable, Flows, Fragments, Inserted, Shortcuts},
    hand_over::{HandOver, HandOvers},
    nat::{NatFlows, NatState, Origin, Taken, Translation},
    relay::Relay,
    tables::Tables,
};
use crate::abi::{AddressKey, EdgeMac, PathReport, TaggedLink, Tuple};

/// Everything that a packet may ask, remember and count.
pub trait World:
    Tables
    + Counters
    + Flows
    + Fragments
    + Relay
    + Probes
    + NatFlows
    + Shortcuts
    + Answers
    + HandOvers
    + Announcements
    + Paths
{
}

/// The counters that a packet may move.
pub trait Counters {
    /// Counts a pass or drop by its index.
    fn count_reason(&self, index: u32);
    /// Counts a forwarded packet and its bytes for service and backend.
    fn count_forward(&self, service: u32, backend: u32, bytes: u64);
}

/// The memory of checks under way.
pub trait Probes {
    /// Returns what the socket of a check is connected to, by the answer as it comes in.
    fn probe_peer(&self, answer: &Tuple) -> Option<AddressKey>;
}

/// What is announced, where, and by whom else.
pub trait Announcements {
    /// Tells whether this machine announces an address.
    fn is_announced(&self, address: &AddressKey) -> bool;
    /// Returns when the agent has last said that it serves, on the clock of [`Clock`].
    fn announce_stamp(&self) -> u64;
    /// Returns the MAC of a link on which addresses are announced.
    fn announcing_mac(&self, link: TaggedLink) -> Option<EdgeMac>;
    /// Notes that somebody else announces an address that this machine announces.
    fn note_claim(&self, address: &AddressKey, mac: EdgeMac);
}

/// The memory of what is said of paths.
pub trait Paths: Tables {
    /// Notes what an error says of the path to a node; false where no packets go to such a node.
    fn note_path(&self, node: &AddressKey, report: PathReport) -> bool;
}
