//! An edge, nodes with pods, and the one configuration file that all have.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    slice,
};

use lab::{Machine, Topology, wait_for, wait_until};

use super::{
    Agent, Echo, Protocol, Service, TIMEOUT,
    service::{list, machine_config},
};

/// Where pods listen, for services on any port.
const TARGET_PORT: u16 = 8080;

/// How pods have their addresses, and where in them a service is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodKind {
    /// At addresses of their own.
    Plain,
    /// As [`Self::Plain`], but the program listens on loopback alone, for a [`Sidecar`](super::Sidecar). For TCP only.
    WithSidecar,
    /// At their nodes' addresses: each node is a pod.
    OfHostNetwork,
}

/// A service over pods.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PodService<'net> {
    /// At the unspecified address it is a NodePort only.
    pub(crate) service: Service,
    pub(crate) node_port: Option<u16>,
    pub(crate) target_port: u16,
    pub(crate) kind: PodKind,
    /// The pod, or all pods; a machine that is no pod leaves none.
    pub(crate) only: Option<&'net Machine>,
    /// One more line of the configuration, such as `traffic_policy: local`.
    pub(crate) settings: &'net str,
}

impl<'net> PodService<'net> {
    /// Makes a service over all pods, on [`TARGET_PORT`].
    pub(crate) fn over_all(service: Service) -> Self {
        Self {
            service,
            node_port: None,
            target_port: TARGET_PORT,
            kind: PodKind::Plain,
            only: None,
            settings: "",
        }
    }

    /// The service as a node serves it at the NodePort.
    pub(crate) fn at_node(&self, node: &Machine) -> Service {
        let address = node.address_like(self.service.address.ip());
        Service {
            address: (address, self.node_port.unwrap()).into(),
            ..self.service
        }
    }

    /// Where a pod serves it.
    fn target(&self, pod: &Machine) -> SocketAddr {
        let address = pod.address_like(self.service.address.ip());
        SocketAddr::new(address, self.target_port)
    }

    /// Where the program of a pod listens.
    fn socket(&self, pod: &Machine) -> SocketAddr {
        let target = self.target(pod);
        let loopback: IpAddr = match (self.kind, target.ip()) {
            (PodKind::Plain | PodKind::OfHostNetwork, _) => return target,
            (PodKind::WithSidecar, IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
            (PodKind::WithSidecar, IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
        };
        SocketAddr::new(loopback, self.target_port)
    }

    /// The service's pods on a node.
    fn pods<'a>(&self, node: &'a Machine) -> impl Iterator<Item = &'a Machine> {
        let pods = match self.kind {
            PodKind::Plain | PodKind::WithSidecar => node.pods(),
            PodKind::OfHostNetwork => slice::from_ref(node),
        };
        pods.iter().filter(|pod| self.has(pod))
    }

    fn has(&self, pod: &Machine) -> bool {
        self.only.is_none_or(|only| only.label() == pod.label())
    }

    fn write(&self, text: &mut String, number: usize, net: &Topology) {
        let Service {
            address,
            protocol,
            mode,
        } = self.service;
        writeln!(
            text,
            "  - name: s{number}\n    protocol: {protocol}\n    mode: {mode}"
        )
        .unwrap();
        if !address.ip().is_unspecified() {
            let (address, port) = (address.ip(), address.port());
            writeln!(text, "    address: \"{address}\"\n    port: {port}").unwrap();
        }
        if let Some(port) = self.node_port {
            writeln!(text, "    node_port: {port}").unwrap();
        }
        if !self.settings.is_empty() {
            writeln!(text, "    {}", self.settings).unwrap();
        }
        if net
            .nodes()
            .iter()
            .all(|node| self.pods(node).next().is_none())
        {
            text.push_str("    backends: []\n");
            return;
        }
        text.push_str("    backends:\n");
        for node in net.nodes() {
            for pod in self.pods(node) {
                let (pod, node) = (self.target(pod), self.service.backend(node));
                writeln!(
                    text,
                    "      - {{ address: \"{}\", port: {}, node: \"{node}\" }}",
                    pod.ip(),
                    pod.port(),
                )
                .unwrap();
            }
        }
    }
}

/// The agents of a network with pods.
#[derive(Debug)]
pub(crate) struct Cluster<'net> {
    pub(crate) edge: Agent<'net>,
    pub(crate) nodes: Vec<Agent<'net>>,
}

impl<'net> Cluster<'net> {
    /// Starts the agents of edge and nodes.
    pub(crate) fn start(net: &'net Topology, services: &[PodService<'_>]) -> Self {
        Self::start_with(net, services, "")
    }

    /// Starts the agents, that of the edge with some more in its file.
    pub(crate) fn start_with(
        net: &'net Topology,
        services: &[PodService<'_>],
        of_edge: &str,
    ) -> Self {
        let config = cluster_config(net, services);
        let nodes = net.nodes().iter();
        let mut cluster = Self {
            nodes: nodes.map(|node| Agent::launch(node, &config)).collect(),
            edge: Agent::launch(&net.edges()[0], &format!("{of_edge}{config}")),
        };
        cluster.edge.wait_until_ready();
        for node in &mut cluster.nodes {
            node.wait_until_ready();
        }
        cluster
    }

    /// Packets that the agent of a machine has counted for a reason.
    pub(crate) fn packets(agent: &Agent<'_>, action: &str, reason: &str) -> u64 {
        let reasons = agent.json(&["drops"]);
        let found = reasons
            .as_array()
            .unwrap()
            .iter()
            .find(|other| other["reason"] == reason && other["action"] == action);
        found.unwrap()["packets"].as_u64().unwrap()
    }

    /// Waits until the agent of a machine has counted so many packets for a reason, and no more.
    pub(crate) fn wait_for_packets(agent: &Agent<'_>, action: &str, reason: &str, packets: u64) {
        let awaited = format!("{packets} packets: {action} {reason}");
        wait_for(&awaited, TIMEOUT, || {
            let counted = Self::packets(agent, action, reason);
            (counted == packets).then_some(()).ok_or(counted)
        })
        .unwrap();
    }

    /// Waits until the agent of a machine has counted more packets for a reason than it had.
    pub(crate) fn wait_for_more(agent: &Agent<'_>, action: &str, reason: &str, before: u64) {
        let awaited = format!("more than {before} packets: {action} {reason}");
        wait_until(&awaited, TIMEOUT, || {
            Self::packets(agent, action, reason) > before
        })
        .unwrap();
    }
}

/// Serves services on every pod they have; each answers with its name.
pub(crate) fn serve_on_pods(net: &Topology, services: &[PodService<'_>]) -> Vec<Echo> {
    let mut sockets = BTreeMap::<&str, (&Machine, BTreeSet<(SocketAddr, Protocol)>)>::new();
    for service in services {
        for pod in net.nodes().iter().flat_map(|node| service.pods(node)) {
            let (_, sockets) = sockets.entry(pod.label()).or_insert((pod, BTreeSet::new()));
            sockets.insert((service.socket(pod), service.service.protocol));
        }
    }
    let sockets = sockets.into_values();
    sockets.map(|(pod, at)| Echo::serve(pod, at)).collect()
}

/// The file of every machine. Where there are no edges of their own, every node is one.
pub(crate) fn cluster_config(net: &Topology, services: &[PodService<'_>]) -> String {
    let mut text = machine_config(&table_sizes(services.len()));
    let both = |machine: &Machine| [machine.v4(), machine.v6()];
    let edges = if net.edges().is_empty() {
        net.nodes()
    } else {
        net.edges()
    };
    writeln!(text, "trusted_edges: {}", list(edges.iter().flat_map(both))).unwrap();
    text.push_str("nodes:\n");
    for address in net.nodes().iter().flat_map(both) {
        writeln!(text, "  - {{ address: \"{address}\" }}").unwrap();
    }
    let vips: BTreeSet<IpAddr> = services
        .iter()
        .map(|service| service.service.address.ip())
        .filter(|address| !address.is_unspecified())
        .collect();
    writeln!(text, "vips: {}\nservices:", list(vips)).unwrap();
    for (number, service) in services.iter().enumerate() {
        service.write(&mut text, number, net);
    }
    text
}

/// The file without a pod.
pub(crate) fn without(config: &str, pod: &Machine) -> String {
    let lines = config.lines().filter(|line| !is_about(line, pod));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The file with one more field, such as `weight: 6`, of a pod.
pub(crate) fn with_field(config: &str, pod: &Machine, field: &str) -> String {
    let lines = config.lines().map(|line| {
        if is_about(line, pod) {
            format!("{}\n", line.replace(" }", &format!(", {field} }}")))
        } else {
            format!("{line}\n")
        }
    });
    lines.collect()
}

/// Tells whether a line of the file is about a pod as a backend.
fn is_about(line: &str, pod: &Machine) -> bool {
    let addresses = [pod.v4(), pod.v6()];
    // The list of nodes tells their addresses alone.
    let mut names = addresses
        .iter()
        .map(|address| format!("- {{ address: \"{address}\", port: "));
    names.any(|name| line.contains(&name))
}

/// Room for so many services at a VIP, as NodePorts, and of two families.
fn table_sizes(services: usize) -> String {
    let keys = 64 + 4 * services;
    // A pod is one backend for each service that has it.
    let entries = 2 * keys;
    let slots = keys * 256;
    let mib = (slots * 4).div_ceil(1 << 20);
    format!(
        "tables: {{ lut_arena_mib: {mib}, services: {keys}, pods: {entries}, backends: {entries}, \
         next_hops: 256, vips: 256 }}"
    )
}

/// The file of an edge whose services, of each of these protocols, are translated to one backend each.
pub(crate) fn nat_config(
    protocols: &[Protocol],
    services: impl IntoIterator<Item = (SocketAddr, SocketAddr)>,
) -> String {
    let services: Vec<(Protocol, (SocketAddr, SocketAddr))> = services
        .into_iter()
        .flat_map(|ends| protocols.iter().map(move |&protocol| (protocol, ends)))
        .collect();
    let mut text = machine_config(&table_sizes(services.len()));
    let vips: BTreeSet<IpAddr> = services.iter().map(|(_, (vip, _))| vip.ip()).collect();
    writeln!(text, "vips: {}\nservices:", list(vips)).unwrap();
    for (number, (protocol, (vip, backend))) in services.into_iter().enumerate() {
        writeln!(
            text,
            "  - name: s{number}\n    address: \"{}\"\n    port: {}\n    protocol: {protocol}\n    \
             mode: nat\n    backends: [{{ address: \"{}\", port: {} }}]",
            vip.ip(),
            vip.port(),
            backend.ip(),
            backend.port()
        )
        .unwrap();
    }
    text
}
