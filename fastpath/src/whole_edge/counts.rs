//! What became of the frames of a queue, beside what the datapath's own counters say.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::port::Losses;

/// What became of a frame that a thread has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum EdgeOutcome {
    /// A thread has taken it. The sum of all others.
    Taken = 0,
    /// It was put into the TX ring of its queue.
    Sent = 1,
    /// It was dropped, for a reason that the datapath counts.
    Dropped = 2,
    /// It went to the stack.
    Passed = 3,
    /// It was for the stack, and the way there did not take it.
    NotPassed = 4,
    /// It was to leave by another device than the one that it came in by.
    OtherDevice = 5,
}

impl EdgeOutcome {
    /// Every outcome, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Taken,
        Self::Sent,
        Self::Dropped,
        Self::Passed,
        Self::NotPassed,
        Self::OtherDevice,
    ];

    /// Returns the metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Taken => "edge_taken",
            Self::Sent => "edge_sent",
            Self::Dropped => "edge_dropped",
            Self::Passed => "edge_passed",
            Self::NotPassed => "edge_not_passed",
            Self::OtherDevice => "edge_other_device",
        }
    }
}

/// Metric label of the frames that the kernel has lost before a thread could take them.
pub const EDGE_LOST: &str = "edge_lost";

/// Frames by outcome, of one batch.
pub(super) type Tally = [u64; EdgeOutcome::ALL.len()];

/// The counters of one thread, which others read.
#[derive(Debug, Default)]
pub struct EdgeCounts {
    outcomes: [AtomicU64; EdgeOutcome::ALL.len()],
    lost: AtomicU64,
}

impl EdgeCounts {
    /// Returns the number of frames with this outcome.
    #[must_use]
    pub fn of(&self, outcome: EdgeOutcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of frames that the kernel has lost before the thread could take them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn show_losses(&self, losses: Losses) {
        let Losses {
            no_buffer,
            ring_full,
            too_large,
            invalid: _,
        } = losses;
        self.lost
            .store(no_buffer + ring_full + too_large, Ordering::Relaxed);
    }

    /// Adds all that another thread has counted.
    pub(super) fn add_all(&self, other: &Self) {
        self.add(&mut EdgeOutcome::ALL.map(|outcome| other.of(outcome)));
        self.lost.fetch_add(other.lost(), Ordering::Relaxed);
    }

    pub(super) fn add(&self, tally: &mut Tally) {
        for (counter, frames) in self.outcomes.iter().zip(std::mem::take(tally)) {
            counter.fetch_add(frames, Ordering::Relaxed);
        }
    }
}
