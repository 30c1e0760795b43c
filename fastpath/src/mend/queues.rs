//! The queues whose packets are mended: which of them are open, and why others are not.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use aya::maps::MapError;

use crate::port::xsk::OpenError;

/// Pause between the first attempts at a queue that could not be opened, and their number. It doubles from then on.
const RETRY: Duration = Duration::from_millis(200);
const QUICK_RETRIES: u32 = 10;
/// Longest pause between two attempts.
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// A receive queue of an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Queue {
    pub interface: String,
    /// Interface index.
    pub device: u32,
    pub queue: u32,
}

/// Reasons why a queue is not open.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error("too many queues")]
    TooMany,
    #[error(transparent)]
    Open(OpenError),
    #[error("no interface has the index {device}")]
    NoDevice { device: u32 },
    #[error("cannot have packets come by a queue")]
    Map(#[from] MapError),
    // The interface is gone, for example.
    #[error("interface {interface}")]
    Broken {
        interface: String,
        #[source]
        source: io::Error,
    },
}

/// What is known of the queues.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) wanted: usize,
    pub(super) open: usize,
    /// Why a queue is not open.
    pub(super) problems: BTreeMap<Queue, Arc<QueueError>>,
    /// Why devices send nothing that take no frames from XDP.
    pub(super) carriers: Vec<Arc<QueueError>>,
}

/// The state of the queues: those of the interfaces, and the one where mended packets come back.
#[derive(Clone, Debug, Default)]
pub struct QueueStates {
    /// Number of queues that are to be open.
    pub wanted: usize,
    /// Number of open queues; 0 if the thread has ended.
    pub open: usize,
    /// Why others are not, and why devices send nothing that take no frames from XDP.
    pub problems: Vec<Arc<QueueError>>,
}

impl Queues {
    /// Returns what others are told.
    pub(super) fn states(&self) -> QueueStates {
        QueueStates {
            wanted: self.wanted,
            open: self.open,
            problems: self
                .problems
                .values()
                .chain(&self.carriers)
                .cloned()
                .collect(),
        }
    }
}

/// Returns the pause after so many attempts in vain. An agent that has just ended frees its queue soon; another program
/// may keep it for ever.
pub(super) fn pause_behind(failures: u32) -> Duration {
    let doubled = RETRY.saturating_mul(1 << failures.saturating_sub(QUICK_RETRIES).min(16));
    doubled.min(LONGEST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_in_use_is_tried_often_for_two_seconds_and_then_less_and_less() {
        let early: Duration = (0..QUICK_RETRIES).map(pause_behind).sum();
        assert_eq!(early, Duration::from_secs(2));
        let later = [11, 12, 15, 16, u32::MAX].map(|failures| pause_behind(failures).as_millis());
        assert_eq!(later, [400, 800, 6400, 10_000, 10_000]);
    }
}
