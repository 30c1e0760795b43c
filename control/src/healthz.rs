//! What load balancers and the kubelet ask this machine: is it fit for traffic.
//!
//! ```text
//! watchers, agent -> reports -+-> vitals --> server: /healthz, /livez, /readyz
//!                             |      v
//!                             +-> ports:   a listener for each healthCheckNodePort
//! ```
//!
//! The answers are those of kube-proxy, so that a load balancer cannot tell the two apart. `vitals` has the
//! rules and no clock; the servers have neither rules nor state.

pub mod ports;
pub mod server;
pub mod vitals;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use imbl::OrdMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use self::vitals::Vitals;
use crate::index::objects::ObjectName;
use crate::index::{HealthCheck, Problem};

/// What is told at the health check ports, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// The Services that have one.
    pub services: OrdMap<ObjectName, HealthCheck>,
    /// The addresses that are listened at; all if unspecified.
    pub addresses: BTreeSet<IpAddr>,
}

/// What the watchers and the agent tell, and the servers read.
#[derive(Clone, Debug)]
pub struct Reports {
    vitals: Arc<Mutex<Vitals>>,
    checks: watch::Sender<Checks>,
    problems: watch::Sender<Vec<Problem>>,
    problems_here: watch::Sender<Vec<Problem>>,
}

impl Reports {
    /// Begins at the time `now`, with nothing told.
    pub fn new(now: Instant) -> Self {
        Self {
            vitals: Arc::new(Mutex::new(Vitals::new(now))),
            checks: watch::Sender::default(),
            problems: watch::Sender::default(),
            problems_here: watch::Sender::default(),
        }
    }

    /// Gives access to what probes are answered from.
    pub fn vitals(&self) -> MutexGuard<'_, Vitals> {
        self.vitals.lock()
    }

    /// Replaces what is told at the health check ports.
    pub fn set_checks(&self, checks: Checks) {
        tell_if_new(&self.checks, checks);
    }

    /// Returns what is wrong with health check ports.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.borrow().clone()
    }

    /// Follows what is wrong with health check ports.
    pub fn follow_problems(&self) -> watch::Receiver<Vec<Problem>> {
        self.problems.subscribe()
    }

    fn set_problems(&self, problems: Vec<Problem>) {
        tell_if_new(&self.problems, problems);
    }

    /// Replaces what is wrong with objects on this machine alone, which `kubernetes::events` tells of.
    pub(crate) fn set_problems_here(&self, problems: Vec<Problem>) {
        tell_if_new(&self.problems_here, problems);
    }

    /// Follows what is wrong with objects on this machine alone.
    pub(crate) fn follow_problems_here(&self) -> watch::Receiver<Vec<Problem>> {
        self.problems_here.subscribe()
    }
}

/// Replaces a value; who follows it hears only of one that differs.
pub(crate) fn tell_if_new<T: PartialEq>(known: &watch::Sender<T>, value: T) {
    known.send_if_modified(|known| {
        let changed = *known != value;
        *known = value;
        changed
    });
}
