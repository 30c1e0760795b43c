//! The view that the agent publishes for the observer: everything it knows at one time.
//!
//! The agent publishes before each sleep. A view shares its large parts with the agent, so its cost does not
//! depend on the number of services.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use fastpath::tables::{ServiceKey, Specs, TableView};
use fastpath::whole_edge::{EdgeCaptures, EdgeReader, WholeEdge};
use imbl::{OrdMap, OrdSet};
use serde_json::Value;
use tokio::sync::watch;

use super::Agent;
use super::mending::MendView;
use super::problems::Problems;
use crate::announce::LoopHeartbeat;
use crate::api::{ConfigStatus, Egress, HashSeed, Interface};
use crate::clock::unix_time;
use crate::config::effective::seed_source;
use crate::desired::{BackendSpec, Services};
use crate::durations::Durations;
use crate::hash::fingerprint;
use crate::health::targets::NotMade;
use crate::index::{Object, Problem};
use crate::peers::Summary;

/// The agent's knowledge at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) tables: Arc<TableView>,
    /// Services that the tables should contain.
    pub(crate) wanted: Specs,
    /// The services that the configuration asks for.
    pub(crate) services: Services,
    pub(crate) draining: OrdMap<ServiceKey, Arc<[BackendSpec]>>,
    /// Services whose backends all fail, so that all get traffic.
    pub(crate) all_fail: OrdSet<ServiceKey>,
    pub(crate) roles: Vec<&'static str>,
    /// The settings in force; see [`crate::config::effective`].
    pub(crate) settings: Arc<Value>,
    pub(crate) config: ConfigStatus,
    pub(crate) hash_seed: HashSeed,
    /// Interfaces that are configured or attached.
    pub(crate) interfaces: Vec<Interface>,
    /// Devices that replies leave by.
    pub(crate) egress: Vec<Egress>,
    pub(crate) xdp_programs: Vec<Running>,
    /// Where the egress program was attached.
    pub(crate) egress_programs: Vec<Running>,
    /// Interfaces on which addresses are announced.
    pub(crate) announce_links: Vec<String>,
    /// The announced addresses.
    pub(crate) announced: Arc<BTreeSet<IpAddr>>,
    /// Whether this edge is drained: it hands its addresses over.
    pub(crate) is_drained: bool,
    /// The digests of owners, if they are exchanged.
    pub(crate) owners: Summary,
    /// Whether nothing is announced until another edge has told the past.
    pub(crate) waits_for_past: bool,
    /// What could not be applied.
    pub(crate) problems: Problems,
    pub(crate) not_made: NotMade,
    /// The thread that mends packets, if it is asked for.
    pub(crate) mend: Option<MendView>,
    /// The counters of the threads that take frames all the way, if there are any.
    pub(crate) edge: Option<EdgeReader>,
    /// The captures of what they take.
    pub(crate) captures: Option<EdgeCaptures>,
    /// Warnings for users.
    pub(crate) warnings: Vec<String>,
    pub(crate) cluster: Option<ClusterView>,
}

/// A program of ours that was attached to a device.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// The device's name in the configuration.
    pub(crate) wanted: String,
    /// The device's name when the program was attached.
    pub(crate) device: String,
    pub(crate) ifindex: u32,
    /// The kernel's id of the program.
    pub(crate) program: u32,
}

/// The state of the cluster for observers.
#[derive(Clone, Debug)]
pub(crate) struct ClusterView {
    /// When the first state arrived.
    pub(crate) synced: Option<Instant>,
    pub(crate) problems: OrdMap<Object, Arc<[Problem]>>,
    /// Times from a change's arrival to the tables.
    pub(crate) sync: Durations,
    /// Times from a change in the cluster to the tables.
    pub(crate) programming: Durations,
}

/// Where the agent publishes views and its signs of life.
#[derive(Debug)]
pub(super) struct Publication {
    /// The latest view.
    pub(super) views: watch::Sender<Arc<View>>,
    /// The signs of life of the agent's loop.
    pub(super) heartbeat: LoopHeartbeat,
    pub(super) started: Instant,
    /// The start in seconds since 1970.
    pub(super) started_at: u64,
}

impl Publication {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            views: watch::Sender::default(),
            heartbeat: LoopHeartbeat::new(now),
            started: now,
            started_at: unix_time(),
        }
    }
}

impl Agent {
    /// Publishes the current view.
    pub(super) fn publish(&mut self) {
        self.digest_owners();
        let desired = &self.config.desired;
        let node = desired.is_node(&self.machine.addresses);
        let roles = [(desired.edge, "edge"), (node, "node")].into_iter();
        let warnings = self
            .periodic_work
            .warnings()
            .chain(&self.attachments.uncounted);
        let (announce_links, announced) = self.announced();
        let view = View {
            tables: self.tables.publish(),
            wanted: self.programmed.wanted.clone(),
            services: desired.services.clone(),
            draining: desired.draining.clone(),
            all_fail: self.health_checks.selection.all_fail.clone(),
            roles: roles
                .filter_map(|(has, role)| has.then_some(role))
                .collect(),
            settings: Arc::clone(&self.settings),
            config: self.file.status.clone(),
            hash_seed: HashSeed {
                source: seed_source(&self.config).to_owned(),
                fingerprint: (!self.waits_for_state()).then(|| fingerprint(desired.hash_seed)),
            },
            interfaces: self.interface_status(),
            egress: self.egress_status(),
            xdp_programs: self.attachments.running_xdp(),
            egress_programs: self.attachments.running_egress(),
            announce_links,
            announced,
            is_drained: self.announcing.is_drained(),
            owners: self.peering.summary(),
            waits_for_past: self.peering.waits_for_past,
            problems: self.problems.clone(),
            not_made: self.health_checks.not_made,
            mend: self.mending.view(),
            edge: self.whole_edge.as_ref().map(WholeEdge::reader),
            captures: self.whole_edge.as_ref().map(WholeEdge::captures),
            warnings: warnings.chain(self.next_hops.warning()).cloned().collect(),
            cluster: self.cluster_view(),
        };
        if let Some(feed) = self.feed().filter(|_| !self.waits_for_state()) {
            let refused = self.programmed.refused.problems(&desired.services);
            feed.reports().set_refused(refused);
            feed.reports().set_machine_state(view.machine_state());
        }
        // Frees the previous view, unless somebody still reads it.
        self.publication.views.send_replace(Arc::new(view));
    }
}
