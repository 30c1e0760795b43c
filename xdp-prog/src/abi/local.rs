//! What is remembered of flows of a machine's own kernel.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::plain_data;

/// How long `LOCAL_FLOWS` is asked about a port after a flow there was renewed: longer than any flow lives without.
pub const LOCAL_PORT_NS: u64 = 14 * 86_400_000_000_000;

/// Until when such a flow counts as alive, in one word that is read and written at once: the monotonic
/// clock in ns, but for the lowest bit, which is set once this machine has closed the flow.
///
/// Zero is a flow that is not known.
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

    /// Tells whether packets that come in are taken for its answers.
    #[inline(always)]
    pub const fn is_alive(self, now: u64) -> bool {
        now < self.until()
    }
}

plain_data! {
    LocalFlow: 8,
}
