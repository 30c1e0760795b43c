//! Rate limits of answers, and of packets that are returned.

use crate::world::World;

/// A rate limit: an interval, and the number that may be saved up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    interval_ns: u64,
    burst: u64,
}

impl Allowance {
    /// Ten answers a second to one source, ten at once. Linux grants a destination one ICMP error a second, six at
    /// once; but many clients often share the address of a source that is refused.
    pub(super) const OF_SOURCE: Self = Self {
        interval_ns: 100_000_000,
        burst: 10,
    };
    /// Ten thousand answers a second on one CPU, a thousand at once. This limits a flood of spoofed sources, each of
    /// which has a full allowance.
    pub(super) const OF_ALL: Self = Self {
        interval_ns: 100_000,
        burst: 1_000,
    };
    /// Ten thousand a second on one CPU, as many at once: flows of which an edge looks for the owner, and packets that a
    /// node returns. A flood of packets of no known flow costs no more than these.
    const OF_RETURNS: Self = Self {
        interval_ns: 100_000,
        burst: 10_000,
    };

    /// The same allowance for pins of connections that nobody returns: half of it stays for those that are looked for.
    const OF_PINS: Self = Self {
        burst: Self::OF_RETURNS.burst / 2,
        ..Self::OF_RETURNS
    };

    /// Returns when the allowance is full again after one more, in ns; `None` if it is used up.
    #[inline(always)]
    pub(super) const fn take(self, full_at: u64, now: u64) -> Option<u64> {
        if full_at > now + self.interval_ns * (self.burst - 1) {
            return None;
        }
        let from = if full_at > now { full_at } else { now };
        Some(from + self.interval_ns)
    }
}

/// Takes one from this CPU's allowance of returns, if there is one left.
#[inline(always)]
pub(crate) fn take_return<T: World>(tables: &T) -> bool {
    take(tables, Allowance::OF_RETURNS)
}

/// Takes one from this CPU's allowance of returns, if more than half of them are left.
#[inline(always)]
pub(crate) fn take_pin<T: World>(tables: &T) -> bool {
    take(tables, Allowance::OF_PINS)
}

#[inline(always)]
fn take<T: World>(tables: &T, allowance: Allowance) -> bool {
    match allowance.take(tables.returns_full_at(), tables.now()) {
        Some(full_at) => {
            tables.set_returns_full_at(full_at);
            true
        }
        None => false,
    }
}

/// Tells whether one is left of this CPU's allowance of returns.
#[inline(always)]
pub(crate) fn has_return<T: World>(tables: &T) -> bool {
    let taken = Allowance::OF_RETURNS.take(tables.returns_full_at(), tables.now());
    taken.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowance_is_used_up_by_a_burst_and_grows_back_one_by_one() {
        let allowance = Allowance::OF_SOURCE;
        let (mut full_at, now) = (0, 1_000_000_000_000);
        for answer in 0..10 {
            full_at = allowance.take(full_at, now).expect("one of the burst");
            assert_eq!(full_at, now + (answer + 1) * 100_000_000);
        }
        assert_eq!(allowance.take(full_at, now), None);
        assert_eq!(allowance.take(full_at, now + 99_999_999), None);
        full_at = allowance
            .take(full_at, now + 100_000_000)
            .expect("one has grown back");
        assert_eq!(allowance.take(full_at, now + 100_000_000), None);
    }
}
