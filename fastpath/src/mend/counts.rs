//! What became of packets that were punted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::port::Losses;

/// What became of a punted packet. What was taken is the sum of all others and of what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Outcome {
    /// The agent has received it.
    Taken = 0,
    /// It went back to XDP, which knew its ports or its next hop by then.
    Mended = 1,
    /// It went back to XDP and on to the kernel, whose datagram it may be, for its ports stayed unknown.
    PassedOn = 2,
    /// Its datagram's first fragment did not come in time.
    TimedOut = 3,
    /// Its source has its share of the memory.
    SourceShare = 4,
    /// The memory was needed for newer packets.
    OutOfMemory = 5,
    /// It overlaps another fragment of its datagram, or another one does (RFC 5722).
    Overlap = 6,
    /// The same fragment is held already.
    Duplicate = 7,
    /// It is not what it was punted for: no later fragment, or nothing that is too big and may be cut. Or it claims to
    /// end beyond the longest datagram.
    Unreadable = 8,
    /// The way back did not take it.
    Unsent = 9,
    /// Mending was switched off while it was held, or the agent ended.
    Ended = 10,
    /// It was cut into pieces, which went back to XDP.
    Cut = 11,
    /// It is too big, and where it was to go there is no room for a header and eight bytes.
    NoPieceFits = 12,
    /// No next hop to its backend became known in time.
    NextHopUnresolved = 13,
    /// As many packets wait for its next hop as may, or for all next hops together.
    NextHopFull = 14,
    /// A device that takes no frames from XDP has sent it.
    Carried = 15,
    /// No socket sends by its device, or not any more.
    NotCarried = 16,
    /// Its device sends more slowly than packets come.
    CarryFull = 17,
}

impl Outcome {
    /// Every outcome, in the order of their numbers.
    pub const ALL: [Self; 18] = [
        Self::Taken,
        Self::Mended,
        Self::PassedOn,
        Self::TimedOut,
        Self::SourceShare,
        Self::OutOfMemory,
        Self::Overlap,
        Self::Duplicate,
        Self::Unreadable,
        Self::Unsent,
        Self::Ended,
        Self::Cut,
        Self::NoPieceFits,
        Self::NextHopUnresolved,
        Self::NextHopFull,
        Self::Carried,
        Self::NotCarried,
        Self::CarryFull,
    ];

    /// Returns the metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Taken => "mend_taken",
            Self::Mended => "mended",
            Self::PassedOn => "mend_passed_on",
            Self::TimedOut => "mend_timed_out",
            Self::SourceShare => "mend_source_share",
            Self::OutOfMemory => "mend_out_of_memory",
            Self::Overlap => "mend_overlap",
            Self::Duplicate => "mend_duplicate",
            Self::Unreadable => "mend_unreadable",
            Self::Unsent => "mend_unsent",
            Self::Ended => "mend_ended",
            Self::Cut => "mend_cut",
            Self::NoPieceFits => "mend_no_piece_fits",
            Self::NextHopUnresolved => "mend_next_hop_unresolved",
            Self::NextHopFull => "mend_next_hop_full",
            Self::Carried => "mend_carried",
            Self::NotCarried => "mend_not_carried",
            Self::CarryFull => "mend_carry_full",
        }
    }
}

/// Labels of the kernel's losses between XDP and the agent, in the order of [`Counts::losses`].
pub const LOSSES: [&str; 3] = [
    "mend_lost_no_buffer",
    "mend_lost_ring_full",
    "mend_lost_too_large",
];

/// Packets by outcome.
pub(super) type Tally = [u64; Outcome::ALL.len()];

/// The counters of a thread that mends, which others read.
#[derive(Debug, Default)]
pub struct Counts {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    losses: [AtomicU64; LOSSES.len()],
    held: AtomicU64,
    held_bytes: AtomicU64,
}

impl Counts {
    /// Returns the number of packets with this outcome.
    #[must_use]
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Lists the packets that the kernel has lost before the agent could take them, by cause.
    pub fn losses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let lost = self.losses.iter();
        LOSSES
            .into_iter()
            .zip(lost.map(|lost| lost.load(Ordering::Relaxed)))
    }

    /// Returns the number of held packets, and the bytes that they take.
    #[must_use]
    pub fn held(&self) -> (u64, u64) {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        (read(&self.held), read(&self.held_bytes))
    }

    pub(super) fn count(&self, outcome: Outcome, packets: u64) {
        self.outcomes[outcome as usize].fetch_add(packets, Ordering::Relaxed);
    }

    pub(super) fn add(&self, tally: &mut Tally) {
        for (outcome, packets) in Outcome::ALL.into_iter().zip(std::mem::take(tally)) {
            self.count(outcome, packets);
        }
    }

    pub(super) fn show_held(&self, packets: usize, bytes: usize) {
        self.held.store(packets as u64, Ordering::Relaxed);
        self.held_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn show_losses(&self, lost: Losses) {
        let causes = [lost.no_buffer, lost.ring_full, lost.too_large];
        for (counter, lost) in self.losses.iter().zip(causes) {
            counter.store(lost, Ordering::Relaxed);
        }
    }
}
