//! Computes the dataplane services of one port of a Service.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use xdp_prog::maglev::{MAX_LOG2_LEN, SLOTS_PER_BACKEND, class_for};

use super::TopologyHints;
use super::machines::Machines;
use super::outcome::{Announced, OutcomeBuilder, port_name};
use super::problem::{BrokenRule, more};
use super::select::{MachineLocation, PortEndpoint, Selection, SlicesByPort, select};
use super::service::{CapturedService, MOST_ASKED, Port};
use super::table_entries::TableEntries;
use super::update::served_at_name;
use crate::desired::{
    BackendSpec, ForwardMode, Protocol, Service, ServiceKey, ServiceSpec, TrafficPolicy,
    affinity_seed, owner, unspecified,
};

/// Where clients reach a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServedAt {
    LoadBalancer(IpAddr),
    External(IpAddr),
    NodePort,
}

impl ServedAt {
    /// Returns the number of lookup tables: a NodePort has one for packets from edges and one for the machine's
    /// own addresses.
    pub(super) const fn tables(self) -> u64 {
        match self {
            Self::LoadBalancer(_) | Self::External(_) => 1,
            Self::NodePort => 2,
        }
    }
}

/// The backends of a port.
#[derive(Clone, Copy, Debug)]
struct BackendSet<'a> {
    mode: ForwardMode,
    backends: &'a [BackendSpec],
    /// Whether hints select them.
    is_by_hints: bool,
    /// How many are pods of this machine.
    own_pods: u64,
}

impl OutcomeBuilder<'_> {
    /// Adds the services of one port in one address family.
    pub(super) fn add_port(
        &mut self,
        slices: &SlicesByPort<'_>,
        port: &Port,
        is_ipv4: bool,
        served_at: &[ServedAt],
        announced: &mut Announced,
    ) {
        let (options, machines) = (self.options, self.machines);
        let own_node = machines.own_node();
        let location = MachineLocation {
            node: own_node,
            zone: machines.zone(),
            hints: options.topology_hints == TopologyHints::Honour,
        };
        let key = (port.name.as_str(), port.protocol, is_ipv4);
        if !self.may_look_at(slices.endpoints(key), key) {
            return;
        }
        let (wanted, findings) = (self.wanted, &mut *self.findings);
        let sound = |candidate: &PortEndpoint<'_>| {
            let socket = candidate.socket;
            let comes_back = comes_back(wanted, machines, port.protocol, socket);
            if comes_back {
                findings.add(
                    BrokenRule::EndpointIsVip,
                    format_args!("endpoint {socket} gets no traffic: the Service itself is served at that address"),
                    "give the endpoint the address of the machine or pod that answers",
                );
            }
            !comes_back
        };
        let selection = select(slices, key, &location, wanted.only_local, sound);
        let mode = self.mode(&selection, own_node.is_some());
        let backends = self.backends(&selection, mode);
        let draining = selection.draining.iter();
        let draining: Arc<[BackendSpec]> = draining
            .filter_map(|candidate| self.backend(candidate, mode, 0))
            .collect();
        // All addresses of a port share their entries of the table of backends.
        let takes = TableEntries {
            backends: (backends.len() + draining.len()) as u64,
            ..TableEntries::default()
        };
        if !self.take(takes, || port_name(key)) {
            return;
        }
        let own = selection.used.iter().chain(&selection.reachable);
        let own_pods = own
            .filter(|candidate| location.has(candidate.endpoint))
            .count() as u64;
        // Every machine must announce the same Nodes, so the role of this machine does not count here.
        let by_node = selection.by_node.iter();
        let nodes = by_node.filter_map(|local| local.endpoint.node.as_deref());
        announced
            .nodes
            .extend(nodes.filter_map(|node| machines.address(node)));
        for at in served_at {
            let set = BackendSet {
                mode,
                backends: &backends,
                is_by_hints: selection.is_by_hints,
                own_pods,
            };
            let Some(key) = self.service(port, is_ipv4, *at, set) else {
                continue;
            };
            if !draining.is_empty() {
                self.outcome.draining.insert(key, Arc::clone(&draining));
            }
            if wanted.only_local && matches!(at, ServedAt::LoadBalancer(_)) {
                announced.keys.push(key);
            }
        }
    }

    /// Chooses the forwarding mode of a port. All backends of a port have the same one: NAT if most of them are
    /// on machines that do not run Guideway.
    fn mode(&mut self, selection: &Selection<'_>, is_node: bool) -> ForwardMode {
        if self.wanted.only_local && is_node {
            // This machine delivers to its own pods itself, even if others use NAT.
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
        let socket = first.socket;
        let why = match first.endpoint.node.as_deref() {
            Some(node) if self.machines.is_own(node) => {
                format!("{socket} is on this machine, which has not the role node")
            }
            Some(node) => format!("{socket} is on Node {node}, which runs no Guideway"),
            None => format!("{socket} is on no Node"),
        };
        let more = more(foreign.len(), "");
        let so = if are_most {
            "this port goes by NAT, and its pods do not see the addresses of clients"
        } else {
            "it gets no traffic from outside, which the other endpoints of the port take"
        };
        self.findings.add(
            BrokenRule::MachineWithoutGuideway,
            format_args!("endpoint {why}{more}: {so}"),
            "run Guideway, with the role node, on all Nodes that have pods of the Service",
        );
        if are_most {
            ForwardMode::Nat
        } else {
            self.wanted.mode
        }
    }

    fn node_of(&self, candidate: &PortEndpoint<'_>) -> Option<IpAddr> {
        let node = candidate.endpoint.node.as_deref()?;
        self.machines.address_of_pods(node)
    }

    fn backend(
        &self,
        candidate: &PortEndpoint<'_>,
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
        // Policy `Local` needs no address for a pod on another machine: the table only has to know that others
        // have pods.
        let is_local = self.wanted.only_local && self.machines.own_node().is_some();
        let nowhere = |candidate: &PortEndpoint<'_>| {
            let node = unspecified(candidate.socket.is_ipv4());
            is_local.then(|| BackendSpec::pod(node, candidate.socket, 1))
        };
        let mut backends: Vec<BackendSpec> = used
            .filter_map(|candidate| {
                let known = self.backend(candidate, mode, 1);
                known.or_else(|| nowhere(candidate))
            })
            .collect();
        // Other machines may choose these, or may have chosen them a moment ago.
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

    /// Adds the service of one port at one address. Returns its key, or `None` if it is not served there.
    fn service(
        &mut self,
        port: &Port,
        is_ipv4: bool,
        at: ServedAt,
        set: BackendSet<'_>,
    ) -> Option<ServiceKey> {
        let mode = set.mode;
        let machines = self.machines;
        let (address, number) = match at {
            ServedAt::LoadBalancer(address) | ServedAt::External(address) => (address, port.number),
            ServedAt::NodePort => (unspecified(is_ipv4), port.node_port.unwrap_or_default()),
        };
        let key = ServiceKey {
            address,
            port: number,
            protocol: port.protocol,
        };
        let socket = SocketAddr::new(address, number);
        if key.protocol == Protocol::Tcp && machines.is_api_server(socket) {
            self.findings.add(
                BrokenRule::AddressIsApiServer,
                format_args!("{socket} is the API server's and is not served"),
                "give the Service another address",
            );
            return None;
        }
        let mut backends = self.translatable(&key, set.backends)?;
        backends.shrink_to_fit();
        // The kernel receives packets to the machine's own addresses too. L2 DSR leaves that address in the
        // packet, and the pod's machine would not accept it as its own.
        let is_machine = at == ServedAt::NodePort || machines.withholds(address);
        let source_ranges = match at {
            ServedAt::LoadBalancer(_) => {
                let ranges = self.wanted.source_ranges.iter();
                ranges
                    .filter(|range| range.addr().is_ipv4() == is_ipv4)
                    .copied()
                    .collect()
            }
            ServedAt::External(_) | ServedAt::NodePort => BTreeSet::new(),
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
            // The owner does not depend on the port's name: flows survive a renaming.
            owner: owner(&format!("{}:{number}/{protocol}", self.name)),
            mode: match mode {
                ForwardMode::L2dsr if is_machine => ForwardMode::Ipip,
                mode => mode,
            },
            log2_slots: self.log2_slots(&backends),
            backends,
            // With NAT no backend counts as a pod of some machine.
            traffic_policy: if self.wanted.only_local && mode != ForwardMode::Nat {
                TrafficPolicy::Local
            } else {
                TrafficPolicy::Cluster
            },
            source_ranges,
            affinity: self
                .wanted
                .affinity
                .then(|| affinity_seed(self.options.hash_seed, &name)),
            affinity_seconds: self.wanted.affinity_seconds,
            node_port: is_machine,
            hinted: set.is_by_hints,
        };
        let log2 = spec.log2_slots_for(spec.sharing().count());
        let slots = at.tables() << log2.unwrap_or(MAX_LOG2_LEN);
        let takes = TableEntries {
            slots,
            services: at.tables(),
            backends: 0,
            pods: set.own_pods * at.tables(),
            source_ranges: spec.source_ranges.len() as u64,
        };
        if !self.take(takes, || served_at_name(&key)) {
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

    /// Leaves out SCTP backends whose port would need translation. Returns `None` if none is left for new
    /// connections: another proxy can then serve the port.
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
            let at = SocketAddr::new(key.address, key.port);
            self.findings.add(
                BrokenRule::SctpPort,
                format_args!(
                    "SCTP at {at} does not reach port {pod}: its ports cannot be translated"
                ),
                "use one number for port and targetPort, and leave nodePort to kube-proxy",
            );
            if !fitting.iter().any(BackendSpec::is_sharing) {
                return None;
            }
        }
        Some(fitting)
    }

    /// Returns the table length that the Service asks for, as a power of two; `None` if some backend would have
    /// no slot.
    ///
    /// A length above [`MOST_ASKED`] counts as that. A Service with so many backends that it needs more gets
    /// more without asking.
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
            BrokenRule::TooManyBackends,
            format_args!(
                "{backends} backends do not fit a table of {} slots",
                1_u32 << log2
            ),
            "ask for a larger table-size, or leave the annotation out",
        );
        None
    }
}

/// Returns whether packets to an endpoint would reach the same Service again: by NAT they would circle until
/// their TTL ends. At an assigned address nothing else answers. At an external address only the Service's own
/// ports are captured. At a machine's address the machine itself may answer.
fn comes_back(
    wanted: &CapturedService,
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
