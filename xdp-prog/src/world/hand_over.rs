//! The facts that one stage leaves for the next.

/// The facts about the current packet when its stage ends. The next stage parses the frame again, but need not look
/// these up again.
///
/// What the fields hold depends on the next stage:
///
/// | stage | `service` | `backend` | `ports` | `detail` |
/// |---|---|---|---|---|
/// | `Past` | service | index of the flow's slot | ports | hash of the flow |
/// | `Send`, `AskHere` | service | backend | ports | [`Try`](crate::decide::edge::send::Try) |
/// | `Ask` | [`DeliveryKey`](crate::abi::DeliveryKey), in all three | | | |
/// | `Answer` | | | | [`Answer`](super::Answer) that is due |
/// | `Punt` | | | | [`Punt`](crate::punt::Punt) |
/// | of NAT mode | service | | ports | what earlier stages have done with the packet |
/// | any other | service; 0 if the packet is not from a client | backend; 0 if none is chosen | ports | |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HandOver {
    /// A service's id, mostly.
    pub service: u32,
    /// A backend's id, mostly.
    pub backend: u32,
    /// Source and destination port, in wire order. A later fragment does not contain them.
    pub ports: u32,
    /// One word more.
    pub detail: u32,
}

/// The place where a stage leaves its facts.
pub trait HandOvers {
    /// Leaves facts for the next stage.
    fn hand_over(&self, known: HandOver);
    /// Returns the facts that the last stage left.
    fn handed_over(&self) -> HandOver;
}
