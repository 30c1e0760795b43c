//! One Service with its slices, turned into services of the dataplane.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use xdp_prog::maglev::{MAX_LOG2_LEN, SLOTS_PER_BACKEND, class_for};

use super::few::Few;
use super::machines::Machines;
use super::objects::{self, ObjectName, TABLE_SIZE};
use super::problem::{Findings, Object, Problem, Rule};
use super::room::Room;
use super::select::{Candidate, Place, PortName, Selection, SlicesByPort, select};
use super::service::{self, MOST_ASKED, Port, Wanted};
use super::slice::{Condition, Endpoint, Slices};
use super::{HealthCheck, Options, TopologyHints, front_name};
use crate::desired::{
    BackendSpec, ForwardMode, Protocol, Service, ServiceKey, ServiceSpec, TrafficPolicy,
    affinity_seed, owner, unspecified,
};

/// What becomes of a Service.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) services: Few<ServiceKey, Arc<Service>>,
    /// Endpoints that serve and terminate and get no new connections.
    pub(super) draining: Few<ServiceKey, Arc<[BackendSpec]>>,
    /// With the policy `Local`, addresses of the Nodes that have endpoints of any port which share connections.
    pub(super) announcers: Few<ServiceKey, Arc<BTreeSet<IpAddr>>>,
    /// Its addresses, and why they are.
    pub(super) captured: Few<IpAddr, Capture>,
    pub(super) health_check: Option<HealthCheck>,
    /// What it takes of the tables.
    pub(super) takes: Room,
    pub(super) problems: Vec<Problem>,
}

impl Outcome {
    /// Leaves out everything, as the Services of a namespace take no more than `most` together.
    pub(super) fn refuse(self, object: &Object, most: Room) -> Self {
        let mut findings = Findings::default();
        findings.add(
            Rule::TableShare,
            || {
                format!(
                    "nothing of it is served: it takes {}, and the Services of its namespace {most} at most, which older \
                     ones take",
                    self.takes
                )
            },
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

/// Why a Service has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    /// A controller assigned it for our class.
    Assigned,
    /// The Service names it as an external one.
    External,
    /// It does, and is not served there, for a machine has it.
    Withheld,
}

/// What a Service is read with.
#[derive(Clone, Copy, Debug)]
pub(super) struct World<'a> {
    pub(super) options: &'a Options,
    pub(super) machines: &'a Machines,
}

/// Returns when a Service was created; one that does not say so counts as the youngest.
pub(super) fn created(service: &objects::Service) -> i64 {
    service.created.unwrap_or(i64::MAX)
}

/// Computes what becomes of a Service.
pub(super) fn outcome(world: World<'_>, service: &objects::Service, slices: &Slices) -> Outcome {
    let mut findings = Findings::default();
    let mut outcome = Outcome::default();
    let wanted = service::read(service, world.options, world.machines, &mut findings);
    if let Some(mut wanted) = wanted {
        bound_table_size(&mut wanted, world.options.service_room.slots, &mut findings);
        let mut making = Making {
            world,
            name: &service.name,
            created: created(service),
            wanted: &wanted,
            findings: &mut findings,
            outcome: &mut outcome,
            looked_at: 0,
        };
        making.all(slices);
        let captured = [
            (&wanted.of_machines, Capture::Withheld),
            (&wanted.external, Capture::External),
            (&wanted.load_balancer, Capture::Assigned),
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

/// What helps a Service that has no room.
const MORE_ROOM: &str =
    "use fewer ports, addresses, source ranges and endpoints, or raise kubernetes.table_share";

/// Names a port for people.
fn port_name((name, protocol, is_ipv4): PortName<'_>) -> String {
    let family = if is_ipv4 { "IPv4" } else { "IPv6" };
    match name {
        "" => format!("its {protocol} port of {family}"),
        name => format!("port {name}/{protocol} of {family}"),
    }
}

struct Making<'a> {
    world: World<'a>,
    name: &'a ObjectName,
    created: i64,
    wanted: &'a Wanted,
    findings: &'a mut Findings,
    outcome: &'a mut Outcome,
    /// Endpoints that the ports so far have, whatever they are used for.
    looked_at: u64,
}

/// Endpoints of any condition that a Service may have for each backend that it has room for: judging them is work, and
/// an endpoint that gets no traffic takes no room.
const ENDPOINTS_PER_BACKEND: u64 = 4;

/// Where a port is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    LoadBalancer(IpAddr),
    External(IpAddr),
    NodePort,
}

impl Front {
    /// Counts the lookup tables: a NodePort has one for what edges send, and one for each address of the machine.
    const fn tables(self) -> u64 {
        match self {
            Self::LoadBalancer(_) | Self::External(_) => 1,
            Self::NodePort => 2,
        }
    }
}

/// Lists where a port is served in a family.
fn fronts(wanted: &Wanted, port: &Port, is_ipv4: bool) -> Vec<Front> {
    let of_family = |address: &&IpAddr| address.is_ipv4() == is_ipv4;
    let load_balancer = wanted.load_balancer.iter().filter(of_family);
    let external = wanted.external.iter().filter(of_family);
    let node_port = port
        .node_port
        .filter(|_| wanted.families[usize::from(!is_ipv4)]);
    load_balancer
        .map(|address| Front::LoadBalancer(*address))
        .chain(external.map(|address| Front::External(*address)))
        .chain(node_port.map(|_| Front::NodePort))
        .collect()
}

/// Lets the length that a Service asks for count only if all its tables fit the room that one Service may have.
fn bound_table_size(wanted: &mut Wanted, most: u64, findings: &mut Findings) {
    let Some(asked) = wanted.log2_slots else {
        return;
    };
    let ports = wanted.ports.iter();
    let fronts = ports.flat_map(|port| {
        [true, false]
            .into_iter()
            .flat_map(|is_ipv4| fronts(wanted, port, is_ipv4))
    });
    let tables: u64 = fronts.map(Front::tables).sum();
    let slots = tables << asked.min(MOST_ASKED);
    if slots <= most {
        return;
    }
    wanted.log2_slots = None;
    findings.add(
        Rule::InvalidAnnotation,
        || {
            format!(
                "{TABLE_SIZE} asks for {slots} slots in {tables} tables, and one Service has {most} at most, so the default \
                 counts"
            )
        },
        "ask for a smaller size, use fewer ports and addresses, or raise kubernetes.table_share",
    );
}

/// What has to be announced of a Service with the policy `Local`, in one family.
#[derive(Debug, Default)]
struct Announced {
    keys: Vec<ServiceKey>,
    /// Addresses of the Nodes with endpoints of any port. A port that has none yet, as while it is added, is not
    /// to take the address away from the clients of the others.
    nodes: BTreeSet<IpAddr>,
}

impl Making<'_> {
    fn all(&mut self, slices: &Slices) {
        let wanted = self.wanted;
        let mut announced = [Announced::default(), Announced::default()];
        let by_port = SlicesByPort::of(slices);
        for port in &wanted.ports {
            for (is_ipv4, announced) in [true, false].into_iter().zip(&mut announced) {
                let fronts = fronts(wanted, port, is_ipv4);
                if !fronts.is_empty() {
                    self.port(&by_port, port, is_ipv4, &fronts, announced);
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

    /// Makes the services of one port in one family.
    fn port(
        &mut self,
        slices: &SlicesByPort<'_>,
        port: &Port,
        is_ipv4: bool,
        fronts: &[Front],
        announced: &mut Announced,
    ) {
        let World { options, machines } = self.world;
        let own_node = machines.own_node();
        let place = Place {
            node: own_node,
            zone: machines.zone(),
            hints: options.topology_hints == TopologyHints::Honour,
        };
        let key = (port.name.as_str(), port.protocol, is_ipv4);
        if !self.may_look_at(slices.endpoints(key), key) {
            return;
        }
        let (wanted, findings) = (self.wanted, &mut *self.findings);
        let sound = |candidate: &Candidate<'_>| {
            let socket = candidate.socket;
            let comes_back = comes_back(wanted, machines, port.protocol, socket);
            if comes_back {
                findings.add(
                    Rule::EndpointIsVip,
                    || format!("endpoint {socket} gets no traffic: the Service itself is served at that address"),
                    "give the endpoint the address of the machine or pod that answers",
                );
            }
            !comes_back
        };
        let selection = select(slices, key, &place, wanted.only_local, sound);
        let mode = self.mode(&selection, own_node.is_some());
        let backends = self.backends(&selection, mode);
        let draining = selection.draining.iter();
        let draining: Arc<[BackendSpec]> = draining
            .filter_map(|candidate| self.backend(candidate, mode, 0))
            .collect();
        // All addresses of a port share the entries.
        let takes = Room {
            backends: (backends.len() + draining.len()) as u64,
            ..Room::default()
        };
        if !self.take(takes, || port_name(key)) {
            return;
        }
        let own = selection.used.iter().chain(&selection.reachable);
        let own_pods = own
            .filter(|candidate| place.has(candidate.endpoint))
            .count() as u64;
        // Not by what this machine does with its pods, which others cannot know.
        let by_node = selection.by_node.iter();
        let nodes = by_node.filter_map(|local| local.endpoint.node.as_deref());
        announced
            .nodes
            .extend(nodes.filter_map(|node| machines.address(node)));
        for front in fronts {
            let Some(key) = self.service(port, is_ipv4, *front, (mode, &backends), own_pods) else {
                continue;
            };
            if !draining.is_empty() {
                self.outcome.draining.insert(key, Arc::clone(&draining));
            }
            if wanted.only_local && matches!(front, Front::LoadBalancer(_)) {
                announced.keys.push(key);
            }
        }
    }

    /// Chooses how packets reach the backends of a port: one way for all of them, so by NAT where most are on
    /// machines that do not run Guideway.
    fn mode(&mut self, selection: &Selection<'_>, is_node: bool) -> ForwardMode {
        if self.wanted.only_local && is_node {
            // A pod of this machine is handed its packets, whatever others are sent.
            return match self.wanted.mode {
                ForwardMode::Nat => ForwardMode::Ipip,
                mode => mode,
            };
        }
        let foreign = selection.used.iter();
        let foreign: Vec<_> = foreign
            .filter(|candidate| self.node_of(candidate).is_none())
            .collect();
        let (Some(first), true) = (foreign.first(), self.wanted.mode != ForwardMode::Nat) else {
            return self.wanted.mode;
        };
        let are_most = foreign.len() * 2 > selection.used.len();
        self.findings.add(
            Rule::MachineWithoutGuideway,
            || {
                let socket = first.socket;
                let why = match first.endpoint.node.as_deref() {
                    Some(node) if self.world.machines.is_own(node) => {
                        format!("{socket} is on this machine, which has not the role node")
                    }
                    Some(node) => format!("{socket} is on Node {node}, which runs no Guideway"),
                    None => format!("{socket} is on no Node"),
                };
                let how_many = match foreign.len() {
                    1 => String::new(),
                    all => format!(" (and {} more)", all - 1),
                };
                let so = if are_most {
                    "this port goes by NAT, and its pods do not see the addresses of clients"
                } else {
                    "it gets no traffic from outside, which the other endpoints of the port take"
                };
                format!("endpoint {why}{how_many}: {so}")
            },
            "run Guideway, with the role node, on all Nodes that have pods of the Service",
        );
        if are_most {
            ForwardMode::Nat
        } else {
            self.wanted.mode
        }
    }

    fn node_of(&self, candidate: &Candidate<'_>) -> Option<IpAddr> {
        let node = candidate.endpoint.node.as_deref()?;
        self.world.machines.address_of_pods(node)
    }

    fn backend(
        &self,
        candidate: &Candidate<'_>,
        mode: ForwardMode,
        weight: u32,
    ) -> Option<BackendSpec> {
        match mode {
            ForwardMode::Nat => Some(BackendSpec::nat(candidate.socket, weight)),
            ForwardMode::Ipip | ForwardMode::L2dsr => {
                let node = self.node_of(candidate)?;
                Some(BackendSpec::pod(node, candidate.socket, weight))
            }
        }
    }

    fn backends(&self, selection: &Selection<'_>, mode: ForwardMode) -> Vec<BackendSpec> {
        let used = selection.used.iter();
        // Of machines that packets are not sent to the policy `Local` knows only that they are others.
        let is_local = self.wanted.only_local && self.world.machines.own_node().is_some();
        let nowhere = |candidate: &Candidate<'_>| {
            let node = unspecified(candidate.socket.is_ipv4());
            is_local.then(|| BackendSpec::pod(node, candidate.socket, 1))
        };
        let mut backends: Vec<BackendSpec> = used
            .filter_map(|candidate| {
                let known = self.backend(candidate, mode, 1);
                known.or_else(|| nowhere(candidate))
            })
            .collect();
        // Other machines may select them, or have done so a moment ago.
        if mode != ForwardMode::Nat {
            let reachable = selection.reachable.iter();
            backends.extend(reachable.filter_map(|candidate| {
                let node = self.node_of(candidate)?;
                Some(BackendSpec::pod(node, candidate.socket, 0))
            }));
        }
        backends.sort_unstable();
        backends
    }

    /// Tells whether the endpoints of one more port may be judged.
    fn may_look_at(&mut self, endpoints: u64, port: PortName<'_>) -> bool {
        let most = self.world.options.service_room.backends * ENDPOINTS_PER_BACKEND;
        let all = self.looked_at + endpoints;
        if all > most {
            self.findings.add(
                Rule::TableShare,
                || {
                    format!(
                        "{} is not served: with its {endpoints} endpoints the ports of the Service would have {all}, of \
                         which {most} are the most",
                        port_name(port)
                    )
                },
                MORE_ROOM,
            );
            return false;
        }
        self.looked_at = all;
        true
    }

    /// Takes so much more of the tables, if the Service may; tells whether it did.
    fn take(&mut self, more: Room, whose: impl FnOnce() -> String) -> bool {
        let takes = self.outcome.takes.and(more);
        let Some(beyond) = takes.beyond(self.world.options.service_room) else {
            self.outcome.takes = takes;
            return true;
        };
        self.findings.add(
            Rule::TableShare,
            || {
                format!(
                    "{} is not served: with it the Service would take {beyond}",
                    whose()
                )
            },
            MORE_ROOM,
        );
        false
    }

    /// Makes the service of one port at one address, of whose backends so many are pods of this machine; nothing if it
    /// is not served there.
    fn service(
        &mut self,
        port: &Port,
        is_ipv4: bool,
        front: Front,
        (mode, backends): (ForwardMode, &[BackendSpec]),
        own_pods: u64,
    ) -> Option<ServiceKey> {
        let machines = self.world.machines;
        let (address, number) = match front {
            Front::LoadBalancer(address) | Front::External(address) => (address, port.number),
            Front::NodePort => (unspecified(is_ipv4), port.node_port.unwrap_or_default()),
        };
        let key = ServiceKey {
            address,
            port: number,
            protocol: port.protocol,
        };
        let socket = SocketAddr::new(address, number);
        if key.protocol == Protocol::Tcp && machines.is_api_server(socket) {
            self.findings.add(
                Rule::AddressIsApiServer,
                || format!("{socket} is the API server's and is not served"),
                "give the Service another address",
            );
            return None;
        }
        let mut backends = self.translatable(&key, backends)?;
        backends.shrink_to_fit();
        // Packets to a machine's own address are for its kernel too, and carry that address behind L2 DSR,
        // where the pod's machine would take them for a stranger's.
        let is_machine = front == Front::NodePort || machines.withholds(address);
        let source_ranges = match front {
            Front::LoadBalancer(_) => {
                let ranges = self.wanted.source_ranges.iter();
                ranges
                    .filter(|range| range.addr().is_ipv4() == is_ipv4)
                    .copied()
                    .collect()
            }
            Front::External(_) | Front::NodePort => BTreeSet::new(),
        };
        let mut name = match port.name.as_str() {
            "" => self.name.to_string(),
            port => format!("{}:{port}", self.name),
        };
        name.shrink_to_fit();
        let Port {
            number, protocol, ..
        } = port;
        let spec = ServiceSpec {
            // A port that gets another name goes on.
            owner: owner(&format!("{}:{number}/{protocol}", self.name)),
            mode: match mode {
                ForwardMode::L2dsr if is_machine => ForwardMode::Ipip,
                mode => mode,
            },
            log2_slots: self.log2_slots(&backends),
            backends,
            // NAT has no pods of any machine.
            traffic_policy: if self.wanted.only_local && mode != ForwardMode::Nat {
                TrafficPolicy::Local
            } else {
                TrafficPolicy::Cluster
            },
            source_ranges,
            affinity: self
                .wanted
                .affinity
                .then(|| affinity_seed(self.world.options.hash_seed, &name)),
            node_port: is_machine,
        };
        let log2 = spec.log2_slots_for(spec.sharing().count());
        let slots = front.tables() << log2.unwrap_or(MAX_LOG2_LEN);
        let takes = Room {
            slots,
            services: front.tables(),
            backends: 0,
            pods: own_pods * front.tables(),
            source_ranges: spec.source_ranges.len() as u64,
        };
        if !self.take(takes, || front_name(&key)) {
            return None;
        }
        let service = Service {
            name,
            created: self.created,
            spec: Arc::new(spec),
            health: None,
        };
        self.outcome.services.insert(key, Arc::new(service));
        Some(key)
    }

    /// Leaves out the backends whose port would have to be translated and cannot; none if that leaves none that
    /// takes new connections, so that the port stays with whoever else can serve it.
    fn translatable(
        &mut self,
        key: &ServiceKey,
        backends: &[BackendSpec],
    ) -> Option<Vec<BackendSpec>> {
        let fits = |backend: &&BackendSpec| {
            key.protocol != Protocol::Sctp || backend.pod.is_none_or(|pod| pod.port() == key.port)
        };
        let fitting: Vec<BackendSpec> = backends.iter().filter(fits).copied().collect();
        let mut sharing = backends.iter().filter(|backend| backend.is_sharing());
        if let Some(misfit) = sharing.find(|backend| !fits(backend)) {
            let pod = misfit.pod.map_or(0, |pod| pod.port());
            self.findings.add(
                Rule::SctpPort,
                || {
                    let at = SocketAddr::new(key.address, key.port);
                    format!(
                        "SCTP at {at} does not reach port {pod}: its ports cannot be translated"
                    )
                },
                "use one number for port and targetPort, and leave nodePort to kube-proxy",
            );
            if !fitting.iter().any(BackendSpec::is_sharing) {
                return None;
            }
        }
        Some(fitting)
    }

    /// Returns the wanted length of the table, unless some backend would have no slot.
    ///
    /// More than [`MOST_ASKED`] gets who has the backends for it, without asking.
    fn log2_slots(&mut self, backends: &[BackendSpec]) -> Option<u8> {
        let log2 = self.wanted.log2_slots?;
        let backends = backends.iter();
        let backends = backends.filter(|backend| backend.is_sharing()).count();
        if log2 > MOST_ASKED {
            let members = u32::try_from(backends).unwrap_or(u32::MAX);
            let needed = class_for(members, SLOTS_PER_BACKEND);
            return needed
                .is_none_or(|needed| needed <= MOST_ASKED)
                .then_some(MOST_ASKED);
        }
        if backends <= 1 << log2 {
            return Some(log2);
        }
        self.findings.add(
            Rule::TooManyBackends,
            || {
                format!(
                    "{backends} backends do not fit a table of {} slots",
                    1_u32 << log2
                )
            },
            "ask for a larger table-size, or leave the annotation out",
        );
        None
    }

    /// Counts the pods of this machine that are ready, whatever ports they have. A pod may have an address of
    /// each family, and kube-proxy tells of one family at a time: the one with more of them counts.
    fn local_endpoints(&self, slices: &Slices) -> usize {
        let machines = self.world.machines;
        let is_here =
            |endpoint: &Endpoint| matches!(&endpoint.node, Some(node) if machines.is_own(node));
        let endpoints = slices.values().flat_map(|slice| &slice.endpoints);
        let ready = endpoints
            .filter(|endpoint| endpoint.condition == Condition::Ready && is_here(endpoint));
        let addresses: BTreeSet<IpAddr> = ready.map(|endpoint| endpoint.address).collect();
        let ipv4 = addresses.iter().filter(|address| address.is_ipv4()).count();
        ipv4.max(addresses.len() - ipv4)
    }
}

/// Tells whether packets to an endpoint would be served for the same Service again: by NAT they would circle
/// until their TTL ends. Nothing else answers at an address that was assigned; at an external one other ports
/// pass, and at a machine's the machine itself may answer.
fn comes_back(
    wanted: &Wanted,
    machines: &Machines,
    protocol: Protocol,
    endpoint: SocketAddr,
) -> bool {
    let address = endpoint.ip();
    let is_served = |port: &Port| (port.number, port.protocol) == (endpoint.port(), protocol);
    let is_own = wanted.load_balancer.contains(&address)
        || (wanted.external.contains(&address) && wanted.ports.iter().any(is_served));
    is_own && !machines.withholds(address)
}
