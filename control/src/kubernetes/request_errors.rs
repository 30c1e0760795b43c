//! Counts failed requests to the API server by purpose, and logs each reason once.
//!
//! The watches of the index's four kinds are counted where the agent watches them. The controller likewise
//! counts its watches and its writes of status itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// Tell the controller what this edge announces.
    Announced,
    Event,
    /// Renew the Lease of this edge or of the acting controller.
    Lease,
    /// List or watch the Leases of all edges.
    LeaseWatch,
    /// List or watch the metadata of this machine's Node.
    NodeWatch,
    /// Read or make the key of the exchange between edges.
    PeersKey,
    /// Read a pool again after somebody else has written it.
    Pool,
    Seed,
}

impl Purpose {
    /// Returns the name for metrics, and a text that says what the request does.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Announced => ("announced", "tell the controller what is announced here"),
            Self::Event => ("event", "publish an Event"),
            Self::Lease => ("lease", "read or renew the Lease"),
            Self::LeaseWatch => ("lease_watch", "watch the Leases of edges"),
            Self::NodeWatch => ("node_watch", "watch this machine's Node"),
            Self::PeersKey => (
                "peers_key",
                "read or make the key of the exchange between edges",
            ),
            Self::Pool => ("pool", "read a pool"),
            Self::Seed => ("seed", "read or make the seed of the flow hash"),
        }
    }
}

/// Most reasons logged of consecutive failures. Texts that differ at each attempt must not fill the memory.
const REASONS_LOGGED: usize = 10;

/// Counters of failed requests. Clones share them.
#[derive(Clone, Debug)]
pub struct RequestErrors(Arc<Mutex<BTreeMap<Purpose, Failures>>>);

#[derive(Clone, Debug, Default)]
struct Failures {
    number: u64,
    /// Reasons of the failures since the last success.
    reasons: Reasons,
}

/// The reasons of consecutive failures, each of which is logged once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reasons(BTreeSet<String>);

impl Reasons {
    /// Adds a reason. Returns whether to log it.
    pub(crate) fn note(&mut self, reason: &str) -> bool {
        self.0.len() < REASONS_LOGGED && self.0.insert(reason.to_owned())
    }
}

impl RequestErrors {
    /// Returns counters for the requests of an agent, all 0.
    pub fn of_agent() -> Self {
        Self::none([
            Purpose::Announced,
            Purpose::Event,
            Purpose::Lease,
            Purpose::LeaseWatch,
            Purpose::NodeWatch,
            Purpose::PeersKey,
            Purpose::Seed,
        ])
    }

    /// Returns counters for the requests of a controller, all 0.
    pub(crate) fn of_controller() -> Self {
        Self::none([
            Purpose::Event,
            Purpose::Lease,
            Purpose::PeersKey,
            Purpose::Pool,
            Purpose::Seed,
        ])
    }

    fn none<const N: usize>(purposes: [Purpose; N]) -> Self {
        let none = purposes.map(|purpose| (purpose, Failures::default()));
        Self(Arc::new(Mutex::new(none.into())))
    }

    /// Records the outcome of a request. Counts a failure and logs each reason once until a request succeeds.
    /// Returns whether something was logged.
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

    /// Counts a failed request that is logged elsewhere.
    pub(crate) fn count(&self, purpose: Purpose) {
        self.0.lock().entry(purpose).or_default().number += 1;
    }

    /// Returns the counters by name, including those that are 0.
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
            ("announced", 0),
            ("event", 0),
            ("lease", 2),
            ("lease_watch", 0),
            ("node_watch", 0),
            ("peers_key", 0),
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
