//! The memory of flows that go to a backend of their own, whichever owns their slot. A return has told the backend, or the
//! flow began after the slot's owner had changed.

use super::Clock;
use crate::abi::{Pin, Tuple};

/// The tables of pins; a word, because it may lie on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PinTable {
    /// `PINS`: another packet of the flow has come.
    Kept = 0,
    /// `PINS_YOUNG`: no other packet has come yet. What is never confirmed pushes out nothing that is in use.
    Young = 1,
}

/// The memory of pins. Flows are known by the tuple of their packets as the client sends them.
///
/// The allowance of flows whose owner is looked for is one word, as that of answers ([`super::Answers`]).
pub trait Pins: Clock {
    /// Returns the pin of a flow; the value is read with one load.
    fn pin(&self, table: PinTable, flow: &Tuple) -> Option<Pin>;
    /// Pins a flow.
    fn set_pin(&self, table: PinTable, flow: &Tuple, pin: Pin);
    /// Removes the pin of a flow.
    fn remove_pin(&self, table: PinTable, flow: &Tuple);
    /// Notes that flows of a slot may have pins. The note may be lost if the slot's list changes meanwhile.
    fn mark_pinned(&self, slot: u32);
    /// Returns when this CPU's allowance is full again, in ns.
    fn returns_full_at(&self) -> u64;
    /// Sets when this CPU's allowance is full again, in ns.
    fn set_returns_full_at(&self, time: u64);
}
