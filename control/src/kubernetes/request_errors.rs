//! Requests to the API server that failed, counted by what they were for.
//!
//! Agents count watches of the four kinds that the index is made of where they watch, and controllers their watches
//! and writes of status where they make them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// An Event is published.
    Event,
    /// The Lease of this edge, or of the controller that acts, is renewed.
    Lease,
    /// The Leases of all edges are listed or watched.
    LeaseWatch,
    /// The metadata of this machine's Node are listed or watched.
    NodeWatch,
    /// A pool is read anew, since somebody else has written it.
    Pool,
    /// The seed of the flow hash is read, or made.
    Seed,
}

impl Purpose {
    /// Returns the name for metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Lease => "lease",
            Self::LeaseWatch => "lease_watch",
            Self::NodeWatch => "node_watch",
            Self::Pool => "pool",
            Self::Seed => "seed",
        }
    }
}

/// How many requests have failed; a clone counts on in the same place.
#[derive(Clone, Debug)]
pub struct RequestErrors(Arc<Mutex<BTreeMap<Purpose, u64>>>);

impl RequestErrors {
    /// Begins with none of an agent's.
    pub fn of_agent() -> Self {
        Self::none([
            Purpose::Event,
            Purpose::Lease,
            Purpose::LeaseWatch,
            Purpose::NodeWatch,
            Purpose::Seed,
        ])
    }

    /// Begins with none of a controller's.
    pub(crate) fn of_controller() -> Self {
        Self::none([Purpose::Event, Purpose::Lease, Purpose::Pool, Purpose::Seed])
    }

    fn none<const N: usize>(purposes: [Purpose; N]) -> Self {
        let none = purposes.map(|purpose| (purpose, 0));
        Self(Arc::new(Mutex::new(none.into())))
    }

    /// Counts one.
    pub(crate) fn count(&self, purpose: Purpose) {
        *self.lock().entry(purpose).or_default() += 1;
    }

    /// Returns the numbers by name; of what has never failed, too.
    pub(crate) fn by_name(&self) -> BTreeMap<&'static str, u64> {
        let counted = self.lock();
        counted
            .iter()
            .map(|(purpose, number)| (purpose.name(), *number))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Purpose, u64>> {
        // Whole after each statement, also where a thread panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_what_the_requests_were_for() {
        let request_errors = RequestErrors::of_agent();
        let elsewhere = request_errors.clone();
        request_errors.count(Purpose::Lease);
        elsewhere.count(Purpose::Lease);
        elsewhere.count(Purpose::Seed);
        let expected = [
            ("event", 0),
            ("lease", 2),
            ("lease_watch", 0),
            ("node_watch", 0),
            ("seed", 1),
        ];
        assert_eq!(request_errors.by_name(), expected.into());
    }
}
