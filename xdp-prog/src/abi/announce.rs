//! Announced addresses: how long a stamp of the agent counts, and other machines' announcements.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{EdgeMac, age, plain_data};

/// How long a machine answers for its announced addresses after its agent last said that it serves, in ns. Another
/// machine takes as long to notice that it must answer instead.
pub const ANNOUNCE_NS: u64 = 3_000_000_000;

/// Tells whether an agent that last said at `stamp` that it serves still counts as serving.
#[inline(always)]
pub const fn is_announcing(stamp: u64, now: u64) -> bool {
    age(stamp, now) < ANNOUNCE_NS
}

/// Another machine's announcement of an address that this machine announces.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Claim {
    mac: u64,
    /// Time of the announcement, on the monotonic clock in ns.
    pub seen: u64,
}

impl Claim {
    /// Notes an announcement of `mac` at the time `seen`.
    #[inline(always)]
    pub const fn new(mac: EdgeMac, seen: u64) -> Self {
        Self { mac: mac.0, seen }
    }

    /// Returns the MAC that was announced for the address.
    pub const fn mac(&self) -> [u8; 6] {
        EdgeMac(self.mac).mac()
    }
}

plain_data! {
    Claim: 16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_answers_for_three_seconds_after_its_agent_has_said_that_it_serves() {
        let stamp = 7_000_000_000;
        assert!(is_announcing(stamp, stamp));
        assert!(is_announcing(stamp, stamp + ANNOUNCE_NS - 1));
        assert!(!is_announcing(stamp, stamp + ANNOUNCE_NS));
        assert!(is_announcing(stamp, stamp - 1), "the clock of another CPU");
    }
}
