//! What one stage leaves for the next.

use super::Answer;

/// What is known of the packet under way when its stage ends. The next one reads the frame anew, but asks the tables for
/// none of this again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HandOver {
    /// Service id; 0 where the packet is not a client's.
    pub service: u32,
    /// Backend id; 0 where none is chosen.
    pub backend: u32,
    /// Source and destination port, in wire order: a later fragment does not show them.
    pub ports: u32,
    /// The answer that is due.
    pub answer: Answer,
    /// How far NAT mode has come with the packet.
    pub nat_progress: u32,
}

/// The place where a stage leaves it.
pub trait HandOvers {
    /// Leaves what is known for the next stage.
    fn hand_over(&self, known: HandOver);
    /// Returns what the last stage has left.
    fn handed_over(&self) -> HandOver;
}
