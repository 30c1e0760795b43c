//! Mending: what XDP cannot finish is held here until it can be.
//!
//! A later fragment that arrives before its datagram's first one is held until the first one has shown the ports, and
//! then sent back through the same program; [`xdp_prog::punt`] describes the way. A packet that is too big for where it
//! is to go is cut into fragments, and they are sent back. One thread does so for all queues of all interfaces. The
//! kernel copies the frames to it, and it copies what it holds, so that held frames take no buffer of a queue.
//!
//! `store` holds, within limits. `cut` cuts. `worker` judges frames, over any [`Rings`](crate::port::Rings). `thread`
//! has the kernel's sockets and the time, `queues` says which of them are open. `pair` is the way back.

mod counts;
mod cut;
mod pair;
#[cfg(feature = "xsk")]
mod queues;
mod store;
#[cfg(feature = "xsk")]
mod thread;
mod worker;

use std::time::Duration;

pub use self::{
    counts::{Counts, LOSSES, Outcome},
    pair::{MENDED_END, PairError, remove_pair},
};
#[cfg(feature = "xsk")]
pub use self::{
    queues::{Queue, QueueError, QueueStates},
    thread::{Mend, MendError, MendReader},
};

/// How much is held, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that all held packets take, with what is noted of each.
    pub bytes: usize,
    /// Those of one source: an IPv4 address, or an IPv6 network of 64 bits.
    pub bytes_of_source: usize,
    /// How long a packet waits for its datagram's first fragment.
    pub wait: Duration,
}

impl Default for Limits {
    /// 4 MiB, 128 KiB of a source, half a second. The largest datagram in packets of 1500 bytes takes 80 KiB.
    fn default() -> Self {
        Self {
            bytes: 4 << 20,
            bytes_of_source: 128 << 10,
            wait: Duration::from_millis(500),
        }
    }
}
