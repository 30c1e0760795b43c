//! Requests to the API server that failed, counted by what they were for.
//!
//! Those of the four kinds that the index is made of are counted by the watchers themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// An Event is published.
    Event,
    /// This edge's Lease is renewed.
    Lease,
    /// The Leases of all edges are listed or watched.
    LeaseWatch,
    /// The metadata of this machine's Node are listed or watched.
    NodeWatch,
    /// The seed of the flow hash is read.
    Seed,
}

impl Purpose {
    const ALL: [Self; 5] = [
        Self::Event,
        Self::Lease,
        Self::LeaseWatch,
        Self::NodeWatch,
        Self::Seed,
    ];

    /// Returns the name for metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Lease => "lease",
            Self::LeaseWatch => "lease_watch",
            Self::NodeWatch => "node_watch",
            Self::Seed => "seed",
        }
    }
}

/// How many requests have failed; a clone counts on in the same place.
#[derive(Clone, Debug, Default)]
pub struct RequestErrors(Arc<Mutex<BTreeMap<Purpose, u64>>>);

impl RequestErrors {
    /// Counts one.
    pub(super) fn count(&self, purpose: Purpose) {
        *self.lock().entry(purpose).or_default() += 1;
    }

    /// Returns the numbers by name; of what has never failed, too.
    pub(super) fn by_name(&self) -> BTreeMap<&'static str, u64> {
        let counted = self.lock();
        let number = |purpose| counted.get(&purpose).copied().unwrap_or_default();
        let all = Purpose::ALL.into_iter();
        all.map(|purpose| (purpose.name(), number(purpose)))
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
        let request_errors = RequestErrors::default();
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
