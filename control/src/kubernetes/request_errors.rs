//! Requests to the API server that failed, counted by what they were for, and logged once.
//!
//! Agents count watches of the four kinds that the index is made of where they watch, and controllers their watches
//! and writes of status where they make them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    Event,
    /// The Lease of this edge, or of the controller that acts, is renewed.
    Lease,
    /// The Leases of all edges are listed or watched.
    LeaseWatch,
    /// The metadata of this machine's Node are listed or watched.
    NodeWatch,
    /// A pool is read anew, since somebody else has written it.
    Pool,
    Seed,
}

impl Purpose {
    /// Returns the name for metrics, and what the request does.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Event => ("event", "publish an Event"),
            Self::Lease => ("lease", "read or renew the Lease"),
            Self::LeaseWatch => ("lease_watch", "watch the Leases of edges"),
            Self::NodeWatch => ("node_watch", "watch this machine's Node"),
            Self::Pool => ("pool", "read a pool"),
            Self::Seed => ("seed", "read or make the seed of the flow hash"),
        }
    }
}

/// Reasons that are logged of one row of failures: texts that differ at each try are not to fill the memory.
const REASONS_LOGGED: usize = 10;

/// The requests that have failed; a clone counts on in the same place.
#[derive(Clone, Debug)]
pub struct RequestErrors(Arc<Mutex<BTreeMap<Purpose, Failures>>>);

#[derive(Clone, Debug, Default)]
struct Failures {
    number: u64,
    /// Why those failed since the last one that did not.
    reasons: Reasons,
}

/// Why something has failed since it last did not; each reason is logged once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reasons(BTreeSet<String>);

impl Reasons {
    /// Takes a reason; tells whether it is to be logged.
    pub(crate) fn note(&mut self, reason: &str) -> bool {
        self.0.len() < REASONS_LOGGED && self.0.insert(reason.to_owned())
    }
}

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
        let none = purposes.map(|purpose| (purpose, Failures::default()));
        Self(Arc::new(Mutex::new(none.into())))
    }

    /// Takes the outcome of a request: counts one that failed, and logs it once for each reason, however often it is
    /// tried. Tells whether something was logged.
    pub(crate) fn take(&self, purpose: Purpose, outcome: Result<(), String>) -> bool {
        let mut failures = self.0.lock();
        let failures = failures.entry(purpose).or_default();
        let (request, what) = purpose.texts();
        match outcome {
            Ok(()) if failures.reasons.0.is_empty() => return false,
            Ok(()) => {
                failures.reasons = Reasons::default();
                tracing::info!(request, "the API server lets {what} again");
            }
            Err(reason) => {
                failures.number += 1;
                if !failures.reasons.note(&reason) {
                    return false;
                }
                tracing::warn!(request, reason, "cannot {what}; it is tried again");
            }
        }
        true
    }

    /// Counts a failed request that is told of elsewhere.
    pub(crate) fn count(&self, purpose: Purpose) {
        self.0.lock().entry(purpose).or_default().number += 1;
    }

    /// Returns the numbers by name; of what has never failed, too.
    pub(crate) fn by_name(&self) -> BTreeMap<&'static str, u64> {
        let counted = self.0.lock();
        counted
            .iter()
            .map(|(purpose, failures)| (purpose.texts().0, failures.number))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_what_the_requests_were_for() {
        let request_errors = RequestErrors::of_agent();
        let elsewhere = request_errors.clone();
        request_errors.take(Purpose::Lease, Err("away".to_owned()));
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

    #[test]
    fn request_that_fails_is_logged_once_for_each_reason() {
        let request_errors = RequestErrors::of_agent();
        let take = |outcome| request_errors.take(Purpose::Lease, outcome);
        assert!(!take(Ok(())));
        let fail = |reason: &str| Err(reason.to_owned());
        let tries = [
            fail("away"),
            fail("away"),
            fail("forbidden"),
            fail("away"),
            Ok(()),
            Ok(()),
            fail("away"),
        ];
        let logged = tries.map(take);
        assert_eq!(logged, [true, false, true, false, true, false, true]);
        let many = (0..1000).filter(|number| take(fail(&number.to_string())));
        assert_eq!(many.count(), REASONS_LOGGED - 1);
    }
}
