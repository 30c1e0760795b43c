//! Flows of a machine's own kernel.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::plain_data;

/// How long `LOCAL_FLOWS` is looked up for a port after a flow there was renewed: longer than any flow lives
/// unrenewed.
pub const LOCAL_PORT_NS: u64 = 14 * 86_400_000_000_000;

/// The time until which a flow counts as alive, on the monotonic clock in ns, in one word that is read and written at
/// once. The lowest bit is set once this machine has closed the flow.
///
/// Zero is an unknown flow.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct LocalFlow(u64);

impl LocalFlow {
    const CLOSED: u64 = 1;

    /// Packs the fields; the time loses its lowest bit.
    #[inline(always)]
    pub const fn new(until: u64, is_closed: bool) -> Self {
        Self((until & !Self::CLOSED) | is_closed as u64)
    }

    /// Returns the time from which the flow does not count.
    #[inline(always)]
    pub const fn until(self) -> u64 {
        self.0 & !Self::CLOSED
    }

    /// Tells whether this machine has closed the flow.
    #[inline(always)]
    pub const fn is_closed(self) -> bool {
        self.0 & Self::CLOSED != 0
    }

    /// Tells whether the flow is alive, so that incoming packets count as its answers.
    #[inline(always)]
    pub const fn is_alive(self, now: u64) -> bool {
        now < self.until()
    }
}

plain_data! {
    LocalFlow: 8,
}
