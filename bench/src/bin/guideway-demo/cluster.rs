//! The demo's machines and what runs on them.

use std::{
    env,
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use lab::{Guideway, Machine, Process, Topology, serve_page, vip_v4, vip_v6, wait_for};

use crate::page;

/// Each node's weight; there are as many nodes.
pub(crate) const WEIGHTS: [u32; 3] = [1, 1, 2];

/// Bytes of the page that the nodes serve, large beside a request.
pub(crate) const PAGE_BYTES: usize = 8192;

const PORT: u16 = 80;
/// More than three backends get by themselves: the longer the table, the fewer
/// slots of the others a removal moves.
const TABLE_SIZE: u32 = 16_384;
const TIMEOUT: Duration = Duration::from_secs(20);
/// Lines of a log that are shown after a failure.
const LOG_TAIL: usize = 30;

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A service, and the way its packets go to the nodes.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    pub(crate) number: u8,
    /// The family of the outer header; none for L2 DSR.
    pub(crate) outer: Option<Family>,
}

/// All services, in the order in which they are shown.
pub(crate) const SERVICES: [Service; 6] = [
    service("l2dsr-v4", Family::V4, 1, None),
    service("l2dsr-v6", Family::V6, 1, None),
    service("ipip-v4-in-v4", Family::V4, 2, Some(Family::V4)),
    service("ipip-v6-in-v6", Family::V6, 2, Some(Family::V6)),
    service("ipip-v4-in-v6", Family::V4, 3, Some(Family::V6)),
    service("ipip-v6-in-v4", Family::V6, 3, Some(Family::V4)),
];

const fn service(name: &'static str, family: Family, number: u8, outer: Option<Family>) -> Service {
    Service {
        name,
        family,
        number,
        outer,
    }
}

impl Service {
    /// Returns the VIP and port.
    pub(crate) fn address(&self) -> SocketAddr {
        let vip: IpAddr = match self.family {
            Family::V4 => vip_v4(self.number).into(),
            Family::V6 => vip_v6(self.number).into(),
        };
        SocketAddr::new(vip, PORT)
    }

    /// Returns the forwarding mode's name.
    pub(crate) fn mode(&self) -> &'static str {
        match self.outer {
            None => "l2dsr",
            Some(_) => "ipip",
        }
    }

    /// Returns the address by which the edge reaches a node.
    pub(crate) fn backend(&self, node: &Machine) -> IpAddr {
        match self.outer.unwrap_or(self.family) {
            Family::V4 => node.v4(),
            Family::V6 => node.v6(),
        }
    }
}

/// A running demo: the network, the web servers and the agents.
#[derive(Debug)]
pub(crate) struct Cluster {
    // Before the network: programs end before their machines go.
    agents: Vec<Agent>,
    servers: Vec<Process>,
    net: Topology,
    guideway: Guideway,
}

#[derive(Debug)]
struct Agent {
    machine: String,
    process: Process,
}

impl Cluster {
    /// Builds the network, starts the servers and waits until they answer.
    pub(crate) fn start() -> Result<Self> {
        let guideway = find_guideway()?;
        let began = Instant::now();
        let net = Topology::builder()
            .nodes(WEIGHTS.len().try_into()?)
            .build()
            .context("cannot build the network; the demo needs root")?;
        print!("{}", page::network(&net));
        page::step("network", "7 namespaces, veth and a bridge", began);

        let mut cluster = Self {
            agents: Vec::new(),
            servers: Vec::new(),
            net,
            guideway,
        };
        let began = Instant::now();
        cluster.start_servers()?;
        page::step("servers", "nginx on each node, the VIPs on its lo", began);
        Ok(cluster)
    }

    /// Starts the agents and waits until they are ready.
    pub(crate) fn start_agents(&mut self) -> Result<()> {
        let began = Instant::now();
        self.write_edge_config(None)?;
        let [edge] = self.net.edges() else {
            bail!("one edge was asked for");
        };
        for node in self.net.nodes() {
            self.guideway
                .configure(node.namespace(), &node_config(edge))?;
        }
        let machines = || [edge].into_iter().chain(self.net.nodes());
        for machine in machines() {
            self.agents.push(Agent {
                machine: machine.label().to_owned(),
                process: self.guideway.run(machine.namespace())?,
            });
        }
        for (machine, agent) in machines().zip(&mut self.agents) {
            self.guideway
                .wait_until_ready(machine.namespace(), &mut agent.process)?;
        }
        page::step("agents", "guideway run on the edge and each node", began);
        Ok(())
    }

    /// Returns the client's machine.
    pub(crate) fn client(&self) -> &Machine {
        &self.net.clients()[0]
    }

    /// Returns the edge's machine.
    pub(crate) fn edge(&self) -> &Machine {
        &self.net.edges()[0]
    }

    /// Returns the nodes.
    pub(crate) fn nodes(&self) -> &[Machine] {
        self.net.nodes()
    }

    /// Rewrites the edge's configuration without one node, or with all of them,
    /// and waits until the tables say the same; returns how long it took.
    pub(crate) fn configure_edge(&self, without: Option<&Machine>) -> Result<Duration> {
        let began = Instant::now();
        let wanted: Vec<&Machine> = self.nodes().iter().collect();
        let backends = wanted.len() - usize::from(without.is_some());
        self.write_edge_config(without)?;
        wait_for("the edge has its new backends", TIMEOUT, || {
            let services = self.guideway.ask(self.edge().namespace(), &["services"])?;
            let done = services.as_array().is_some_and(|services| {
                services
                    .iter()
                    .all(|service| service["backends"] == backends)
            });
            ensure!(done, "{services}");
            anyhow::Ok(())
        })?;
        Ok(began.elapsed())
    }

    /// Asks the edge's agent which node a flow gets, as `guideway which` tells it.
    pub(crate) fn which(&self, service: &Service, client: SocketAddr) -> Result<String> {
        let key = format!("{}/tcp", service.address());
        let from = client.to_string();
        let arguments = ["which", "--service", &key, "--from", &from];
        let answer = self.guideway.ask(self.edge().namespace(), &arguments)?;
        let backend = answer["choice"]["backend"]
            .as_str()
            .with_context(|| format!("no backend in {answer}"))?;
        let address: IpAddr = backend.parse()?;
        self.nodes()
            .iter()
            .find(|node| service.backend(node) == address)
            .map(|node| node.label().to_owned())
            .with_context(|| format!("{address} is no node"))
    }

    /// Returns the ends of the agents' logs.
    pub(crate) fn logs(&self) -> String {
        let mut text = String::new();
        for agent in &self.agents {
            let log = agent.process.stdout() + &agent.process.stderr();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(LOG_TAIL)..];
            // Writing to a string cannot fail.
            let _ = writeln!(text, "--- agent of {}\n{}", agent.machine, tail.join("\n"));
        }
        text
    }

    fn start_servers(&mut self) -> Result<()> {
        for node in self.net.nodes() {
            for service in &SERVICES {
                node.add_vip(service.address().ip())?;
            }
            let mut page = format!("{}\n", node.label());
            page.extend(std::iter::repeat_n('.', PAGE_BYTES - page.len()));
            let mut addresses: Vec<SocketAddr> = SERVICES.iter().map(Service::address).collect();
            addresses.dedup();
            self.servers.push(serve_page(node, &addresses, &page)?);
        }
        Ok(())
    }

    fn write_edge_config(&self, without: Option<&Machine>) -> Result<()> {
        let nodes: Vec<(&Machine, u32)> = self
            .nodes()
            .iter()
            .zip(WEIGHTS)
            .filter(|(node, _)| without.is_none_or(|gone| gone.label() != node.label()))
            .collect();
        self.guideway
            .configure(self.edge().namespace(), &edge_config(&nodes))?;
        Ok(())
    }
}

/// Finds the binary beside this one.
fn find_guideway() -> Result<Guideway> {
    let binary = env::current_exe()?.with_file_name("guideway");
    ensure!(
        binary.exists(),
        "{} is missing; `make demo` builds it",
        binary.display()
    );
    Ok(Guideway::new(binary))
}

fn edge_config(nodes: &[(&Machine, u32)]) -> String {
    let mut text = common_config("edge");
    text.push_str("vips:\n");
    for service in &SERVICES {
        let _ = writeln!(text, "  - \"{}\"", service.address().ip());
    }
    text.push_str("services:\n");
    for service in &SERVICES {
        let _ = write!(
            text,
            "  - name: {}\n    address: \"{}\"\n    port: {PORT}\n    protocol: tcp\n    \
             mode: {}\n    table_size: {TABLE_SIZE}\n    backends:\n",
            service.name,
            service.address().ip(),
            service.mode(),
        );
        for (node, weight) in nodes {
            let address = service.backend(node);
            let _ = writeln!(
                text,
                "      - {{ address: \"{address}\", weight: {weight} }}"
            );
        }
    }
    text
}

fn node_config(edge: &Machine) -> String {
    let mut text = common_config("node");
    let _ = writeln!(
        text,
        "trusted_edges: [\"{}\", \"{}\"]",
        edge.v4(),
        edge.v6()
    );
    text
}

/// Small tables: six services need no 128 MiB.
fn common_config(role: &str) -> String {
    let (socket, interface) = (Guideway::socket(), Machine::INTERFACE);
    format!(
        "interfaces: [{{ name: {interface}, mode: native }}]
roles: [{role}]
tables: {{ lut_arena_mib: 1, services: 64, backends: 256, next_hops: 256, vips: 256 }}
api: {{ socket: {} }}
",
        socket.display()
    )
}
