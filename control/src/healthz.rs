//! Answers load balancers and the kubelet: whether this machine is fit for traffic.
//!
//! ```text
//! watchers, agent -> reports -+-> vitals --> server: /healthz, /livez, /readyz
//!                             |      v
//!                             +-> ports:   a listener for each healthCheckNodePort
//! ```
//!
//! The answers are those of kube-proxy, so a load balancer cannot tell the two apart. `vitals` has the rules
//! and gets the time as an argument. The servers have neither rules nor state.

pub mod ports;
pub mod server;
pub mod vitals;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use imbl::OrdMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use self::vitals::Vitals;
use crate::index::objects::ObjectName;
use crate::index::{HealthCheck, Problem};

/// The answers at the health check ports, and where to listen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// The Services that have such a port.
    pub services: OrdMap<ObjectName, HealthCheck>,
    /// Addresses to listen at; the unspecified address for all.
    pub addresses: BTreeSet<IpAddr>,
}

/// What the watchers and the agent report and the servers read. Clones share it.
#[derive(Clone, Debug)]
pub struct Reports {
    vitals: Arc<Mutex<Vitals>>,
    checks: watch::Sender<Checks>,
    problems: watch::Sender<Vec<Problem>>,
    problems_here: watch::Sender<Vec<Problem>>,
    announced: watch::Sender<AnnouncedServices>,
}

/// Services whose addresses this machine announces, by `namespace/name`, each with these addresses.
pub(crate) type AnnouncedServices = BTreeMap<String, BTreeSet<IpAddr>>;

impl Reports {
    /// Creates empty reports at the time `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            vitals: Arc::new(Mutex::new(Vitals::new(now))),
            checks: watch::Sender::default(),
            problems: watch::Sender::default(),
            problems_here: watch::Sender::default(),
            announced: watch::Sender::default(),
        }
    }

    /// Locks the state that probes are answered from.
    pub fn vitals(&self) -> MutexGuard<'_, Vitals> {
        self.vitals.lock()
    }

    /// Replaces the answers at the health check ports.
    pub fn set_checks(&self, checks: Checks) {
        tell_if_new(&self.checks, checks);
    }

    /// Returns the problems of health check ports.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.borrow().clone()
    }

    /// Returns a receiver for the problems of health check ports.
    pub fn follow_problems(&self) -> watch::Receiver<Vec<Problem>> {
        self.problems.subscribe()
    }

    fn set_problems(&self, problems: Vec<Problem>) {
        tell_if_new(&self.problems, problems);
    }

    /// Replaces the problems that objects have on this machine alone. `kubernetes::events` publishes them.
    pub(crate) fn set_problems_here(&self, problems: Vec<Problem>) {
        tell_if_new(&self.problems_here, problems);
    }

    /// Replaces the Services whose addresses are announced here. `kubernetes::events` publishes them.
    pub(crate) fn set_announced(&self, services: AnnouncedServices) {
        tell_if_new(&self.announced, services);
    }

    /// Returns a receiver for the Services whose addresses are announced here.
    pub(crate) fn follow_announced(&self) -> watch::Receiver<AnnouncedServices> {
        self.announced.subscribe()
    }

    /// Returns a receiver for the problems that objects have on this machine alone.
    pub(crate) fn follow_problems_here(&self) -> watch::Receiver<Vec<Problem>> {
        self.problems_here.subscribe()
    }
}

/// Sets a value. Receivers are woken only if it differs.
pub(crate) fn tell_if_new<T: PartialEq>(known: &watch::Sender<T>, value: T) {
    known.send_if_modified(|known| {
        let changed = *known != value;
        *known = value;
        changed
    });
}
