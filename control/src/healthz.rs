//! Answers load balancers and the kubelet: whether this machine is fit for traffic.
//!
//! ```text
//! watchers, agent -> reports -+-> machine_health -> server: /healthz, /livez, /readyz
//!                             |         v
//!                             +-> ports:   a listener for each healthCheckNodePort
//! ```
//!
//! The answers are those of kube-proxy, so a load balancer cannot tell the two apart. `machine_health` has the
//! rules and gets the time as an argument. The servers have neither rules nor state.

pub mod machine_health;
pub mod ports;
pub mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use imbl::OrdMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use self::machine_health::MachineHealth;
use crate::index::objects::ObjectName;
use crate::index::{HealthCheck, Problem};

/// The answers at the health check ports, and where to listen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthCheckPorts {
    /// The Services that have such a port.
    pub services: OrdMap<ObjectName, HealthCheck>,
    /// Addresses to listen at; the unspecified address for all.
    pub addresses: BTreeSet<IpAddr>,
}

/// What the watchers and the agent report and the servers read. Clones share it.
#[derive(Clone, Debug)]
pub struct Reports {
    machine_health: Arc<Mutex<MachineHealth>>,
    check_ports: watch::Sender<HealthCheckPorts>,
    problems: watch::Sender<Vec<Problem>>,
    problems_here: watch::Sender<Vec<Problem>>,
    problems_of_all: watch::Sender<Vec<Problem>>,
    announced: watch::Sender<AnnouncedServices>,
    machine_state: watch::Sender<Option<MachineState>>,
}

/// How this machine is, as an Event about its Node tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineState {
    /// The Event's reason, in CamelCase.
    pub(crate) reason: &'static str,
    /// Whether a human should look.
    pub(crate) is_warning: bool,
    pub(crate) text: String,
}

/// Services whose addresses this machine announces, by `namespace/name`, each with these addresses.
pub(crate) type AnnouncedServices = BTreeMap<String, BTreeSet<IpAddr>>;

impl Reports {
    /// Creates empty reports at the time `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            machine_health: Arc::new(Mutex::new(MachineHealth::new(now))),
            check_ports: watch::Sender::default(),
            problems: watch::Sender::default(),
            problems_here: watch::Sender::default(),
            problems_of_all: watch::Sender::default(),
            announced: watch::Sender::default(),
            machine_state: watch::Sender::default(),
        }
    }

    /// Locks the state that probes are answered from.
    pub fn machine_health(&self) -> MutexGuard<'_, MachineHealth> {
        self.machine_health.lock()
    }

    /// Replaces the answers at the health check ports.
    pub fn set_check_ports(&self, check_ports: HealthCheckPorts) {
        tell_if_new(&self.check_ports, check_ports);
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

    /// Replaces the problems that all agents see and the controller does not. `kubernetes::object_events` publishes them.
    pub(crate) fn set_problems_of_all(&self, problems: Vec<Problem>) {
        tell_if_new(&self.problems_of_all, problems);
    }

    /// Returns a receiver for the problems that all agents see and the controller does not.
    pub(crate) fn follow_problems_of_all(&self) -> watch::Receiver<Vec<Problem>> {
        self.problems_of_all.subscribe()
    }

    /// Replaces the Services whose addresses are announced here. `kubernetes::events` publishes them.
    pub(crate) fn set_announced(&self, services: AnnouncedServices) {
        tell_if_new(&self.announced, services);
    }

    /// Returns a receiver for the Services whose addresses are announced here.
    pub(crate) fn follow_announced(&self) -> watch::Receiver<AnnouncedServices> {
        self.announced.subscribe()
    }

    /// Replaces how this machine is. `kubernetes::node_events` publishes it.
    pub(crate) fn set_machine_state(&self, state: MachineState) {
        tell_if_new(&self.machine_state, Some(state));
    }

    /// Returns a receiver for how this machine is; `None` until that is known.
    pub(crate) fn follow_machine_state(&self) -> watch::Receiver<Option<MachineState>> {
        self.machine_state.subscribe()
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
