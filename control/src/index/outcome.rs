//! Computes the dataplane services of one Service from its slices; [`super::port`] does it for each port.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::machines::Machines;
use super::objects::{self, ObjectName, TABLE_SIZE};
use super::port::ServedAt;
use super::problem::{BrokenRule, Findings, Object, Problem};
use super::select::{PortName, SlicesByPort};
use super::service::{self, CapturedService, MOST_ASKED, Port};
use super::slice::{Endpoint, EndpointCondition, Slices};
use super::sorted_vec_map::SortedVecMap;
use super::table_entries::TableEntries;
use super::{HealthCheck, Options};
use crate::desired::{BackendSpec, Service, ServiceKey};

/// The result for one Service.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) services: SortedVecMap<ServiceKey, Arc<Service>>,
    /// Terminating endpoints that still serve. They get no new connections.
    pub(super) draining: SortedVecMap<ServiceKey, Arc<[BackendSpec]>>,
    /// For policy `Local`: addresses of the Nodes that have endpoints of any port and share its connections.
    pub(super) announcers: SortedVecMap<ServiceKey, Arc<BTreeSet<IpAddr>>>,
    /// Its addresses, and why the Service has each.
    pub(super) captured: SortedVecMap<IpAddr, AddressOrigin>,
    pub(super) health_check: Option<HealthCheck>,
    /// Its use of the tables.
    pub(super) takes: TableEntries,
    pub(super) problems: Vec<Problem>,
}

impl Outcome {
    /// Removes all services of the result, because the namespace may take no more than `most` of the tables.
    pub(super) fn refuse(self, object: &Object, most: TableEntries) -> Self {
        let mut findings = Findings::default();
        findings.add(
            BrokenRule::TableShare,
            format_args!(
                "nothing of it is served: it takes {}, and the Services of its namespace {most} at most, which older \
                 ones take",
                self.takes
            ),
            "use fewer ports, addresses, endpoints or Services in the namespace, or raise kubernetes.namespace_table_share",
        );
        let mut problems = self.problems;
        problems.extend(findings.problems(object));
        Self {
            takes: self.takes,
            problems,
            ..Self::default()
        }
    }
}

/// Why a Service has an address. The reason decides whether the address is virtual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressOrigin {
    /// A controller assigned it, for our class.
    Assigned,
    /// The Service lists it in `spec.externalIPs`.
    External,
    /// The Service lists it in `spec.externalIPs`, but a machine has it: it is not served.
    Withheld,
}

/// Returns the creation time in seconds since 1970. A Service without one counts as the youngest.
pub(super) fn created(service: &objects::Service) -> i64 {
    service.created.unwrap_or(i64::MAX)
}

/// Computes the result for one Service.
pub(super) fn outcome(
    options: &Options,
    machines: &Machines,
    service: &objects::Service,
    slices: &Slices,
) -> Outcome {
    let mut findings = Findings::default();
    let mut outcome = Outcome::default();
    let wanted = service::read(service, options, machines, &mut findings);
    if let Some(mut wanted) = wanted {
        bound_table_size(&mut wanted, options.service_room.slots, &mut findings);
        let builder = OutcomeBuilder {
            options,
            machines,
            name: &service.name,
            created: created(service),
            wanted: &wanted,
            findings: &mut findings,
            outcome: &mut outcome,
            looked_at: 0,
        };
        builder.build(slices);
        let captured = [
            (&wanted.of_machines, AddressOrigin::Withheld),
            (&wanted.external, AddressOrigin::External),
            (&wanted.load_balancer, AddressOrigin::Assigned),
        ];
        let captured = captured.into_iter().flat_map(|(addresses, how)| {
            let addresses = addresses.iter();
            addresses.map(move |address| (*address, how))
        });
        outcome.captured = captured.collect();
    }
    outcome.problems = findings.problems(&Object::Service(service.name.clone()));
    outcome
}

/// Remedy for a Service that exceeds its share of a table.
const MORE_ROOM: &str =
    "use fewer ports, addresses, source ranges and endpoints, or raise kubernetes.table_share";

pub(super) fn port_name((name, protocol, is_ipv4): PortName<'_>) -> String {
    let family = if is_ipv4 { "IPv4" } else { "IPv6" };
    match name {
        "" => format!("its {protocol} port of {family}"),
        name => format!("port {name}/{protocol} of {family}"),
    }
}

/// The result for one Service while it is being computed.
pub(super) struct OutcomeBuilder<'a> {
    pub(super) options: &'a Options,
    pub(super) machines: &'a Machines,
    pub(super) name: &'a ObjectName,
    pub(super) created: i64,
    pub(super) wanted: &'a CapturedService,
    pub(super) findings: &'a mut Findings,
    pub(super) outcome: &'a mut Outcome,
    /// Number of endpoints of the ports computed so far, whether they get traffic or not.
    looked_at: u64,
}

/// Limit of endpoints in any condition, per backend that a Service may have. Endpoints that get no traffic take
/// no room in the tables, but checking them costs time.
const ENDPOINTS_PER_BACKEND: u64 = 4;

fn served_at(wanted: &CapturedService, port: &Port, is_ipv4: bool) -> Vec<ServedAt> {
    let of_family = |address: &&IpAddr| address.is_ipv4() == is_ipv4;
    let load_balancer = wanted.load_balancer.iter().filter(of_family);
    let external = wanted.external.iter().filter(of_family);
    let node_port = port
        .node_port
        .filter(|_| wanted.families[usize::from(!is_ipv4)]);
    load_balancer
        .map(|address| ServedAt::LoadBalancer(*address))
        .chain(external.map(|address| ServedAt::External(*address)))
        .chain(node_port.map(|_| ServedAt::NodePort))
        .collect()
}

/// Drops the table size that a Service asks for if all its tables together would exceed `most` slots.
fn bound_table_size(wanted: &mut CapturedService, most: u64, findings: &mut Findings) {
    let Some(asked) = wanted.log2_slots else {
        return;
    };
    let ports = wanted.ports.iter();
    let served_at = ports.flat_map(|port| {
        [true, false]
            .into_iter()
            .flat_map(|is_ipv4| served_at(wanted, port, is_ipv4))
    });
    let tables: u64 = served_at.map(ServedAt::tables).sum();
    let slots = tables << asked.min(MOST_ASKED);
    if slots <= most {
        return;
    }
    wanted.log2_slots = None;
    findings.add(
        BrokenRule::InvalidAnnotation,
        format_args!(
                "{TABLE_SIZE} asks for {slots} slots in {tables} tables, and one Service has {most} at most, so the default \
                 counts"
            ),
        "ask for a smaller size, use fewer ports and addresses, or raise kubernetes.table_share",
    );
}

/// What to announce for a Service with policy `Local`, in one address family.
#[derive(Debug, Default)]
pub(super) struct Announced {
    pub(super) keys: Vec<ServiceKey>,
    /// Addresses of the Nodes that have endpoints of any port. A port without endpoints, for example one just
    /// added, must not take the address away from clients of the other ports.
    pub(super) nodes: BTreeSet<IpAddr>,
}

impl OutcomeBuilder<'_> {
    fn build(mut self, slices: &Slices) {
        let wanted = self.wanted;
        let mut announced = [Announced::default(), Announced::default()];
        let by_port = SlicesByPort::of(slices);
        for port in &wanted.ports {
            for (is_ipv4, announced) in [true, false].into_iter().zip(&mut announced) {
                let served_at = served_at(wanted, port, is_ipv4);
                if !served_at.is_empty() {
                    self.add_port(&by_port, port, is_ipv4, &served_at, announced);
                }
            }
        }
        for Announced { keys, nodes } in announced {
            let nodes = Arc::new(nodes);
            for key in keys {
                self.outcome.announcers.insert(key, Arc::clone(&nodes));
            }
        }
        if let Some(port) = wanted.health_check_port {
            self.outcome.health_check = Some(HealthCheck {
                port,
                local_endpoints: self.local_endpoints(slices),
            });
        }
    }

    /// Counts the endpoints of one more port. Returns false, with a problem, if they are too many to check.
    pub(super) fn may_look_at(&mut self, endpoints: u64, port: PortName<'_>) -> bool {
        let most = self.options.service_room.backends * ENDPOINTS_PER_BACKEND;
        let all = self.looked_at + endpoints;
        if all > most {
            self.findings.add(
                BrokenRule::TableShare,
                format_args!(
                        "{} is not served: with its {endpoints} endpoints the ports of the Service would have {all}, of \
                         which {most} are the most",
                        port_name(port)
                    ),
                MORE_ROOM,
            );
            return false;
        }
        self.looked_at = all;
        true
    }

    /// Adds `more` to the use of the tables. Returns false, with a problem, if the Service may not take that much.
    pub(super) fn take(&mut self, more: TableEntries, whose: impl FnOnce() -> String) -> bool {
        let takes = self.outcome.takes.and(more);
        let Some(beyond) = takes.beyond(self.options.service_room) else {
            self.outcome.takes = takes;
            return true;
        };
        self.findings.add(
            BrokenRule::TableShare,
            format_args!(
                "{} is not served: with it the Service would take {beyond}",
                whose()
            ),
            MORE_ROOM,
        );
        false
    }

    /// Counts the ready pods of this machine, whatever ports they have. A pod may have an address of each
    /// family: the family with more pods counts, because kube-proxy too reports one family at a time.
    fn local_endpoints(&self, slices: &Slices) -> usize {
        let machines = self.machines;
        let is_here =
            |endpoint: &Endpoint| matches!(&endpoint.node, Some(node) if machines.is_own(node));
        let endpoints = slices.values().flat_map(|slice| &slice.endpoints);
        let ready = endpoints
            .filter(|endpoint| endpoint.condition == EndpointCondition::Ready && is_here(endpoint));
        let addresses: BTreeSet<IpAddr> = ready.map(|endpoint| endpoint.address).collect();
        let ipv4 = addresses.iter().filter(|address| address.is_ipv4()).count();
        ipv4.max(addresses.len() - ipv4)
    }
}
