//! What the agent publishes: all that it knows at one time, for those who answer beside it.
//!
//! The agent publishes each time before it sleeps. A view shares what is large with the agent, so that it costs the
//! same however many services there are.

use std::sync::Arc;
use std::time::Instant;

use fastpath::tables::{ServiceKey, Specs, TableView};
use imbl::{OrdMap, OrdSet};

use super::Agent;
use super::problems::{Item, Problems};
use crate::api::{ConfigStatus, Egress, Interface};
use crate::chain::chain;
use crate::desired::{BackendSpec, Services};
use crate::durations::Durations;
use crate::health::targets::NotMade;
use crate::index::{Object, Problem};

/// What is known at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// What the tables have.
    pub(crate) tables: Arc<TableView>,
    /// Services that the tables should have.
    pub(crate) wanted: Specs,
    /// The services that the configuration asks for.
    pub(crate) services: Services,
    /// Backends that terminate, by service.
    pub(crate) draining: OrdMap<ServiceKey, Arc<[BackendSpec]>>,
    /// Services of which no backend should serve, so that all do.
    pub(crate) all_fail: OrdSet<ServiceKey>,
    /// Roles in force.
    pub(crate) roles: Vec<&'static str>,
    /// The configuration in force.
    pub(crate) config: ConfigStatus,
    /// Interfaces wanted or attached.
    pub(crate) interfaces: Vec<Interface>,
    /// Devices by which replies leave.
    pub(crate) egress: Vec<Egress>,
    /// Where the XDP program was put.
    pub(crate) xdp_programs: Vec<Running>,
    /// Where the egress program was put.
    pub(crate) egress_programs: Vec<Running>,
    /// What could not be applied.
    pub(crate) problems: Problems,
    /// Checks that are not made.
    pub(crate) not_made: NotMade,
    /// What deserves a look.
    pub(crate) warnings: Vec<String>,
    /// What came of the cluster, where there is one.
    pub(crate) cluster: Option<ClusterView>,
}

/// A program of ours on a device.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// The device as the configuration calls it.
    pub(crate) wanted: String,
    /// Its name when the program was put there.
    pub(crate) device: String,
    /// Its number.
    pub(crate) ifindex: u32,
    /// The kernel's number for the program.
    pub(crate) program: u32,
}

/// What came of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterView {
    /// When the first state came.
    pub(crate) synced: Option<Instant>,
    /// What is wrong, by object.
    pub(crate) problems: OrdMap<Object, Arc<[Problem]>>,
    /// From a change's arrival to the tables.
    pub(crate) sync: Durations,
    /// From a change in the cluster to the tables.
    pub(crate) programming: Durations,
}

impl Agent {
    /// Shows all that is known to those who answer beside.
    pub(super) fn publish(&self) {
        let desired = &self.config.desired;
        let node = desired.is_node(&self.machine.addresses);
        let roles = [(desired.edge, "edge"), (node, "node")];
        let xdp = self.attached.iter().map(|(name, attached)| Running {
            wanted: name.clone(),
            device: attached.attachment.interface.clone(),
            ifindex: attached.attachment.ifindex,
            program: attached.attachment.program,
        });
        let egress = self.egress.iter().map(|(name, attachment)| Running {
            wanted: name.clone(),
            device: attachment.device.clone(),
            ifindex: attachment.ifindex,
            program: attachment.program,
        });
        let view = View {
            tables: self.tables.publish(),
            wanted: self.wanted.clone(),
            services: desired.services.clone(),
            draining: desired.draining.clone(),
            all_fail: self.selection.all_fail.clone(),
            roles: roles
                .into_iter()
                .filter_map(|(has, role)| has.then_some(role))
                .collect(),
            config: self.status.clone(),
            interfaces: self.interfaces(),
            egress: self.egress_status(),
            xdp_programs: xdp.collect(),
            egress_programs: egress.collect(),
            problems: self.problems.clone(),
            not_made: self.not_made,
            warnings: self
                .sweeps
                .warnings()
                .chain(&self.uncounted)
                .chain(self.next_hops.warning())
                .cloned()
                .collect(),
            cluster: self.cluster_view(),
        };
        // What was published before is freed here, unless somebody still reads it.
        self.views.send_replace(Arc::new(view));
    }

    /// Lists the interfaces that are wanted, and how the program is there.
    pub(super) fn interfaces(&self) -> Vec<Interface> {
        let wanted = self.config.desired.interfaces.iter();
        wanted
            .map(|(name, mode)| {
                let attachment = self.attached.get(name).map(|attached| &attached.attachment);
                let problem = self.problems.of(&Item::Interface(name.clone())).cloned();
                let fallback = attachment.and_then(|attachment| attachment.fallback.as_deref());
                Interface {
                    name: name.clone(),
                    wanted: mode.name().to_owned(),
                    mode: attachment.map(|attachment| attachment.mode.to_string()),
                    note: problem.or_else(|| fallback.map(|error| chain(error))),
                }
            })
            .collect()
    }
}
