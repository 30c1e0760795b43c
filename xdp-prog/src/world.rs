//! Traits for everything that the code which decides may look up, remember and count.
//!
//! Decisions see the maps only through these traits. The programs implement them with the kernel's maps, the tests
//! with a model, and the explanation of a decision with the maps as user space reads them.

mod answers;
mod clients;
mod flows;
mod hand_over;
mod minimal;
mod nat;
mod pins;
mod relay;
mod sockets;
mod tables;
mod user_space;

pub(crate) use self::relay::OFFSETS;
pub use self::{
    answers::{Answer, Answers},
    clients::Clients,
    flows::{Clock, FlowTable, Flows, Fragments, Inserted, Shortcuts},
    hand_over::{HandOver, HandOvers},
    minimal::MinimalWorld,
    nat::{NatFlows, NatState, Origin, Taken, Translation},
    pins::{PinTable, Pins},
    relay::Relay,
    sockets::{SocketState, Sockets},
    tables::Tables,
    user_space::{BetweenStages, InUserSpace},
};
use crate::abi::{AddressKey, EdgeMac, PathReport, TaggedLink, Tuple};

/// All of these traits together.
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
    + Pins
    + Clients
    + Sockets
{
}

/// The counters that a packet can move.
pub trait Counters {
    /// Counts a pass or drop under the reason's index.
    fn count_reason(&self, index: u32);
    /// Counts a forwarded packet and its `bytes` for its service and its backend.
    fn count_forward(&self, service: u32, backend: u32, bytes: u64);
}

/// The memory of this machine's running checks of backends.
pub trait Probes {
    /// Returns the address to which a check's socket is connected, by the answer's tuple as it comes in.
    fn probe_peer(&self, answer: &Tuple) -> Option<AddressKey>;
}

/// The addresses and links on which this machine answers ARP and neighbour solicitations.
pub trait Announcements {
    /// Tells whether this machine announces an address.
    fn is_announced(&self, address: &AddressKey) -> bool;
    /// Returns when the agent last said that it serves, in ns of [`Clock`].
    fn announce_stamp(&self) -> u64;
    /// Returns this machine's MAC on a link where it announces addresses; `None` on other links.
    fn announcing_mac(&self, link: TaggedLink) -> Option<EdgeMac>;
    /// Notes that another MAC announces an address that this machine announces.
    fn note_claim(&self, address: &AddressKey, mac: EdgeMac);
}

/// The memory of path MTUs that routers report.
pub trait Paths: Tables {
    /// Notes a router's report about the path to a node. Returns false if this machine sends nothing to the node.
    fn note_path(&self, node: &AddressKey, report: PathReport) -> bool;
}
