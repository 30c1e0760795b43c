//! Loads: when requests are due, and what sends them.
//!
//! Every generator gives a [`Sent`] for each request that it really sent, with the times from which latencies follow.
//! What came of the probes is the matter of [`crate::probe::Ledger`].

mod schedule;
pub mod sockets;

pub use schedule::due_times;

/// A request: when it was due, sent and answered, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When it was due.
    pub due: u64,
    /// When it was sent: just before the system call.
    pub sent: u64,
    /// When its answer was read; `None` without one.
    pub answered: Option<u64>,
}

impl Sent {
    /// Returns the time from when the request was due to its answer.
    pub fn round_trip(&self) -> Option<u64> {
        Some(self.answered?.saturating_sub(self.due))
    }

    /// Returns the time from when the request was sent to its answer.
    pub fn round_trip_uncorrected(&self) -> Option<u64> {
        Some(self.answered?.saturating_sub(self.sent))
    }

    /// Returns how late the request was sent.
    pub fn lateness(&self) -> u64 {
        self.sent.saturating_sub(self.due)
    }
}
