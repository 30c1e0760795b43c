//! Path MTUs of nodes: an ICMP error of a router about an outer packet makes a path smaller for a while.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{Agent, LOGGED_ONE_BY_ONE};
use crate::chain::chain;

/// How long a path stays smaller (RFC 1191 section 6.3, RFC 8201 section 4).
const LIFETIME: Duration = Duration::from_secs(600);
/// Time between two looks at the routers' errors. One error per node is judged each time, so a forger can guess
/// one tag per second.
const PAUSE: Duration = Duration::from_secs(1);

/// The nodes with smaller paths, and when these expire.
#[derive(Debug)]
pub(super) struct PathMtus {
    looked: Instant,
    until: BTreeMap<IpAddr, Instant>,
}

impl PathMtus {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            looked: now,
            until: BTreeMap::new(),
        }
    }

    /// Removes and returns the nodes whose paths have expired.
    fn take_expired(&mut self, now: Instant) -> Vec<IpAddr> {
        let expired = self.until.extract_if(.., |_, until| *until <= now);
        expired.map(|(node, _)| node).collect()
    }
}

impl Agent {
    /// Returns how long until the next look at the routers' errors; `None` if there are no paths.
    pub(super) fn path_pause(&self, now: Instant) -> Option<Duration> {
        let due = self.path_mtus.looked + PAUSE;
        let is_needed = self.tables.has_paths() || !self.path_mtus.until.is_empty();
        is_needed.then(|| due.saturating_duration_since(now))
    }

    /// Makes paths smaller according to the routers' errors, and expired paths large again.
    pub(super) fn follow_paths(&mut self, now: Instant) {
        if self.path_pause(now) != Some(Duration::ZERO) {
            return;
        }
        self.path_mtus.looked = now;
        for node in self.path_mtus.take_expired(now) {
            if let Err(error) = self.tables.set_path_mtu(node, None) {
                tracing::warn!(%node, error = chain(&error), "the path stays as small as it was");
                self.path_mtus.until.insert(node, now + LIFETIME);
            }
        }
        let smaller = match self.tables.take_path_mtus() {
            Ok(smaller) => smaller,
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "cannot read what routers say of paths"
                );
                return;
            }
        };
        for (index, (node, mtu)) in smaller.into_iter().enumerate() {
            match self.tables.set_path_mtu(node, Some(mtu)) {
                Ok(()) => drop(self.path_mtus.until.insert(node, now + LIFETIME)),
                Err(error) => {
                    tracing::warn!(%node, mtu, error = chain(&error), "the path to a node is smaller, but cannot be stored");
                    continue;
                }
            }
            if index < LOGGED_ONE_BY_ONE {
                tracing::info!(%node, mtu, "a router on the path to a node takes no more");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_small_for_ten_minutes() {
        let now = Instant::now();
        let mut paths = PathMtus::new(now);
        let [first, second] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        paths.until.insert(first, now + LIFETIME);
        paths.until.insert(second, now + LIFETIME + PAUSE);
        assert!(paths.take_expired(now).is_empty());
        assert_eq!(paths.take_expired(now + LIFETIME), [first]);
        assert!(paths.take_expired(now + LIFETIME).is_empty());
        assert_eq!(paths.take_expired(now + 2 * LIFETIME), [second]);
    }
}
