//! Mending: what XDP cannot finish is held here until it can be.
//!
//! A later fragment that arrives before its datagram's first one is held until the first one has shown the ports, and
//! then sent back through the same program; [`xdp_prog::punt`] describes the way. A packet for a backend without a next
//! hop is held until the agent has put that into the tables. A packet that is too big for where it is to go is cut into
//! fragments, and they are sent back. One thread does so for all queues of all interfaces. The kernel copies the frames
//! to it, and it copies what it holds, so that held frames take no buffer of a queue.
//!
//! Frames that XDP has finished come here, too, if their device takes none from XDP. They leave by a socket of that device,
//! which is opened for the first of them.
//!
//! `store` holds fragments and `waiting` what lacks a next hop, within limits. `cut` cuts, `carry` sends finished frames.
//! `worker` judges frames, over any [`Rings`](crate::port::Rings). `thread` has the kernel's sockets and the time,
//! `carriers` those of devices that take no frames from XDP, `queues` says which of them are open, `sockets` where programs
//! find them. `known` asks the tables. `pair` is the way back.

#[cfg(feature = "xsk")]
mod carriers;
mod carry;
mod counts;
mod cut;
#[cfg(feature = "xsk")]
mod known;
mod pair;
#[cfg(feature = "xsk")]
mod queues;
#[cfg(feature = "xsk")]
mod sockets;
mod store;
#[cfg(feature = "xsk")]
mod thread;
mod waiting;
mod worker;

use std::time::Duration;

#[cfg(feature = "xsk")]
pub(crate) use self::sockets::Sockets;
pub use self::{
    counts::{Counts, LOSSES, Outcome},
    pair::{MENDED_END, PairError, remove_pair},
};
pub(crate) use self::{
    pair::{Pair, WayBack},
    worker::Back,
};
#[cfg(feature = "xsk")]
pub use self::{
    queues::{Queue, QueueError, QueueStates},
    sockets::MapFailure,
    thread::{Mend, MendError, MendReader, PreparedPair, THREAD},
};

/// How much is held, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that all held packets take, with what is noted of each.
    pub bytes: usize,
    /// Those of the fragments of one source: an IPv4 address, or an IPv6 network of 64 bits.
    pub bytes_of_source: usize,
    /// How long a packet waits for its datagram's first fragment.
    pub wait: Duration,
    /// Packets that wait for one next hop. Those for all of them take half of the memory at most.
    pub packets_of_next_hop: usize,
    /// How long a packet waits for its next hop.
    pub next_hop_wait: Duration,
}

impl Default for Limits {
    /// 4 MiB, 128 KiB of a source, half a second: the largest datagram in packets of 1500 bytes takes 80 KiB. 64 packets
    /// for a next hop, three seconds, in which the kernel asks for a neighbour three times.
    fn default() -> Self {
        Self {
            bytes: 4 << 20,
            bytes_of_source: 128 << 10,
            wait: Duration::from_millis(500),
            packets_of_next_hop: 64,
            next_hop_wait: Duration::from_secs(3),
        }
    }
}
