//! What becomes of new flows.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use lab::{Machine, wait_for};

use crate::support::{Flow, Service};
use crate::world::PATIENCE;

/// Flows that are opened to see all pods: one of three is missed in 1 of 5000 cases.
const FLOWS: usize = 24;
/// Pause between such looks: each flow takes one of the machine's ports for good, and many ways are looked at together.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a flow waits for its answer.
const FLOW_PATIENCE: Duration = Duration::from_millis(500);

/// What becomes of new flows to a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// These pods answer, and no flow fails.
    Answers(BTreeSet<String>),
    /// A flow fails like this.
    Fails(ErrorKind),
}

impl Outcome {
    /// Flows are told that nobody serves.
    pub(crate) const REFUSED: Self = Self::Fails(ErrorKind::ConnectionRefused);
    /// Flows get no answer at all.
    pub(crate) const SILENCE: Self = Self::Fails(ErrorKind::TimedOut);

    /// Flows are answered by all of these pods and by nobody else.
    pub(crate) fn by<'a>(pods: impl IntoIterator<Item = &'a Machine>) -> Self {
        let pods = pods.into_iter();
        Self::Answers(pods.map(|pod| pod.label().to_owned()).collect())
    }

    /// Opens flows until one fails.
    pub(crate) fn of(client: &Machine, service: &Service) -> Self {
        let mut pods = BTreeSet::new();
        for _ in 0..FLOWS {
            match Flow::open_within(client, service, FLOW_PATIENCE).map_err(|error| error.kind()) {
                Ok(flow) => drop(pods.insert(flow.node)),
                // A datagram's answer that is waited for in vain.
                Err(ErrorKind::WouldBlock) => return Self::SILENCE,
                Err(kind) => return Self::Fails(kind),
            }
        }
        Self::Answers(pods)
    }
}

/// Waits until new flows from a machine to each of the services come out like this.
pub(crate) fn expect(client: &Machine, services: &[Service], expected: &Outcome) {
    for service in services {
        let awaited = format!("{} to {service}: {expected:?}", client.label());
        wait_for(&awaited, PATIENCE, || {
            let outcome = Outcome::of(client, service);
            if outcome == *expected {
                return Ok(());
            }
            thread::sleep(PAUSE);
            Err(format!("{outcome:?}"))
        })
        .unwrap();
    }
}
