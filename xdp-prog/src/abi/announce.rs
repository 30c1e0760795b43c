//! What a machine announces to its neighbours, and who else does.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{EdgeMac, age, plain_data};

/// For how long a machine answers for the addresses that it announces once its agent has last said that it serves,
/// in ns: as long as another machine takes to notice that it is to answer in its place.
pub const ANNOUNCE_NS: u64 = 3_000_000_000;

/// Tells whether an agent that said so at the time `stamp` still serves.
#[inline(always)]
pub const fn is_announcing(stamp: u64, now: u64) -> bool {
    age(stamp, now) < ANNOUNCE_NS
}

/// An announcement by somebody else of an address that this machine announces.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Claim {
    mac: u64,
    /// When it came, on the monotonic clock in ns.
    pub seen: u64,
}

impl Claim {
    /// Notes who announces the address.
    #[inline(always)]
    pub const fn new(mac: EdgeMac, seen: u64) -> Self {
        Self { mac: mac.0, seen }
    }

    /// Returns the MAC that the address is said to have.
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
