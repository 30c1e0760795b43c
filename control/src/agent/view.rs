//! What the agent publishes: all that it knows at one time, for those who answer beside it.
//!
//! The agent publishes each time before it sleeps. A view shares what is large with the agent, so that it costs the
//! same however many services there are.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use fastpath::tables::{ServiceKey, Specs, TableView};
use imbl::{OrdMap, OrdSet};
use tokio::sync::watch;

use super::Agent;
use super::problems::Problems;
use crate::announce::Pulse;
use crate::api::{ConfigStatus, Egress, Interface};
use crate::clock::unix_time;
use crate::desired::{BackendSpec, Services};
use crate::durations::Durations;
use crate::health::targets::NotMade;
use crate::index::{Object, Problem};

/// What is known at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) tables: Arc<TableView>,
    /// Services that the tables should have.
    pub(crate) wanted: Specs,
    /// The services that the configuration asks for.
    pub(crate) services: Services,
    pub(crate) draining: OrdMap<ServiceKey, Arc<[BackendSpec]>>,
    /// Services of which no backend should serve, so that all do.
    pub(crate) all_fail: OrdSet<ServiceKey>,
    pub(crate) roles: Vec<&'static str>,
    pub(crate) config: ConfigStatus,
    /// Interfaces wanted or attached.
    pub(crate) interfaces: Vec<Interface>,
    /// Devices by which replies leave.
    pub(crate) egress: Vec<Egress>,
    pub(crate) xdp_programs: Vec<Running>,
    /// Where the egress program was put.
    pub(crate) egress_programs: Vec<Running>,
    /// Interfaces that addresses are announced on.
    pub(crate) announce_links: Vec<String>,
    /// Addresses that are announced there.
    pub(crate) announced: Arc<BTreeSet<IpAddr>>,
    /// What could not be applied.
    pub(crate) problems: Problems,
    pub(crate) not_made: NotMade,
    /// What deserves a look.
    pub(crate) warnings: Vec<String>,
    pub(crate) cluster: Option<ClusterView>,
}

/// A program of ours on a device.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// The device as the configuration calls it.
    pub(crate) wanted: String,
    /// Its name when the program was put there.
    pub(crate) device: String,
    pub(crate) ifindex: u32,
    /// The kernel's number for the program.
    pub(crate) program: u32,
}

/// What came of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterView {
    /// When the first state came.
    pub(crate) synced: Option<Instant>,
    pub(crate) problems: OrdMap<Object, Arc<[Problem]>>,
    /// From a change's arrival to the tables.
    pub(crate) sync: Durations,
    /// From a change in the cluster to the tables.
    pub(crate) programming: Durations,
}

/// Where views are published, and what never changes of the agent.
#[derive(Debug)]
pub(super) struct Publication {
    /// What is known, for those who answer beside.
    pub(super) views: watch::Sender<Arc<View>>,
    /// The signs of life of the loop.
    pub(super) pulse: Pulse,
    pub(super) started: Instant,
    /// The same in seconds since 1970.
    pub(super) started_at: u64,
}

impl Publication {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            views: watch::Sender::default(),
            pulse: Pulse::new(now),
            started: now,
            started_at: unix_time(),
        }
    }
}

impl Agent {
    /// Shows all that is known to those who answer beside.
    pub(super) fn publish(&self) {
        let desired = &self.config.desired;
        let node = desired.is_node(&self.machine.addresses);
        let roles = [(desired.edge, "edge"), (node, "node")].into_iter();
        let warnings = self.sweeps.warnings().chain(&self.attachments.uncounted);
        let (announce_links, announced) = self.announced();
        let view = View {
            tables: self.tables.publish(),
            wanted: self.programmed.wanted.clone(),
            services: desired.services.clone(),
            draining: desired.draining.clone(),
            all_fail: self.checks.selection.all_fail.clone(),
            roles: roles
                .filter_map(|(has, role)| has.then_some(role))
                .collect(),
            config: self.file.status.clone(),
            interfaces: self.interface_status(),
            egress: self.egress_status(),
            xdp_programs: self.attachments.running_xdp(),
            egress_programs: self.attachments.running_egress(),
            announce_links,
            announced,
            problems: self.problems.clone(),
            not_made: self.checks.not_made,
            warnings: warnings.chain(self.next_hops.warning()).cloned().collect(),
            cluster: self.cluster_view(),
        };
        // What was published before is freed here, unless somebody still reads it.
        self.publication.views.send_replace(Arc::new(view));
    }
}
