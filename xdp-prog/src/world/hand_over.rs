//! The facts that one stage leaves for the next.

/// The facts about the current packet when its stage ends. The next stage parses the frame again, but need not look
/// these up again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HandOver {
    /// Service id; 0 if the packet is not from a client.
    pub service: u32,
    /// Backend id; 0 if none is chosen. For [`Stage::Past`](crate::stage::Stage::Past), the index of the flow's slot.
    pub backend: u32,
    /// Source and destination port, in wire order. A later fragment does not contain them.
    pub ports: u32,
    /// For [`Stage::Answer`](crate::stage::Stage::Answer), the [`Answer`](super::Answer) that is due; for
    /// [`Stage::Punt`](crate::stage::Stage::Punt), the [`Punt`](crate::punt::Punt); for a stage of NAT mode, what
    /// earlier ones have done with the packet; for [`Stage::Past`](crate::stage::Stage::Past), the flow's hash; for
    /// [`Stage::Send`](crate::stage::Stage::Send), the [`Try`](crate::decide::edge::send::Try).
    pub detail: u32,
}

/// The place where a stage leaves its facts.
pub trait HandOvers {
    /// Leaves facts for the next stage.
    fn hand_over(&self, known: HandOver);
    /// Returns the facts that the last stage left.
    fn handed_over(&self) -> HandOver;
}
