//! The machines of the demo, and the programs on them.

use std::{
    env,
    fmt::{self, Write as _},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use lab::{Guideway, Machine, Process, Topology, serve_page, vip_v4, vip_v6, wait_for};

use crate::progress;

/// The weights of the nodes, one for each node.
pub(crate) const WEIGHTS: [u32; 3] = [1, 1, 2];

/// Size of the page that the pods serve, in bytes. It is large compared with a request.
pub(crate) const PAGE_BYTES: usize = 8192;

const PORT: u16 = 80;
/// The port that the pods listen on.
const TARGET_PORT: u16 = 8080;
/// Longer than the default for three backends. In a longer table, a removal moves fewer slots of the other backends.
const TABLE_SIZE: u32 = 16_384;
const TIMEOUT: Duration = Duration::from_secs(20);
/// Number of log lines shown after a failure.
const LOG_TAIL: usize = 30;

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        })
    }
}

/// A service, and how its packets reach the nodes of the pods.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    pub(crate) number: u8,
    /// Family of the outer header; `None` for L2 DSR.
    pub(crate) outer: Option<Family>,
}

/// All services, in the order of the page.
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

    /// Returns the address and port of a node's pod that serves it.
    fn pod(&self, node: &Machine) -> Result<SocketAddr> {
        let [pod] = node.pods() else {
            bail!("one pod on each node was asked for");
        };
        let address = pod.address_like(self.address().ip());
        Ok(SocketAddr::new(address, TARGET_PORT))
    }

    /// Returns the address by which the edge reaches a node.
    fn node(&self, node: &Machine) -> IpAddr {
        match self.outer.unwrap_or(self.family) {
            Family::V4 => node.v4(),
            Family::V6 => node.v6(),
        }
    }
}

/// A running demo: the network, the web servers and the agents.
#[derive(Debug)]
pub(crate) struct Cluster {
    // First, because fields are dropped in order, and programs must end before their machines are removed.
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
            .pods(1)
            .build()
            .context("cannot build the network; the demo needs root")?;
        print!("{}", progress::network(&net, &WEIGHTS));
        progress::step("network", "10 namespaces, veth and a bridge", began);

        let mut cluster = Self {
            agents: Vec::new(),
            servers: Vec::new(),
            net,
            guideway,
        };
        let began = Instant::now();
        cluster.start_servers()?;
        progress::step(
            "servers",
            "nginx in a pod on each node, on port 8080",
            began,
        );
        Ok(cluster)
    }

    /// Starts the agents and waits until they are ready.
    pub(crate) fn start_agents(&mut self) -> Result<()> {
        let began = Instant::now();
        self.write_config(None)?;
        let [edge] = self.net.edges() else {
            bail!("one edge was asked for");
        };
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
        progress::step("agents", "guideway run on the edge and each node", began);
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

    /// Returns the number of challenge ACKs that the pods have sent (RFC 5961 section 4).
    pub(crate) fn challenges(&self) -> Result<u64> {
        let mut challenges = 0;
        for pod in self.net.pods() {
            challenges += pod.namespace().tcp_counter("TCPChallengeACK")?;
        }
        Ok(challenges)
    }

    /// Writes the configuration with all pods, or without one node's pod. Waits until the edge's tables match,
    /// and returns how long that took.
    pub(crate) fn configure(&self, without: Option<&Machine>) -> Result<Duration> {
        let began = Instant::now();
        let wanted: Vec<&Machine> = self.nodes().iter().collect();
        let backends = wanted.len() - usize::from(without.is_some());
        self.write_config(without)?;
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

    /// Asks the edge's agent, by `guideway which`, which node a flow gets.
    pub(crate) fn which(&self, service: &Service, client: SocketAddr) -> Result<String> {
        let key = format!("{}/tcp", service.address());
        let from = client.to_string();
        let arguments = ["which", "--service", &key, "--from", &from];
        let answer = self.guideway.ask(self.edge().namespace(), &arguments)?;
        let backend = answer["choice"]["backend"]
            .as_str()
            .with_context(|| format!("no backend in {answer}"))?;
        // The text is a pod, followed by its node.
        let pod = backend.split(' ').next().unwrap_or(backend);
        let address: SocketAddr = pod
            .parse()
            .with_context(|| format!("{backend:?} is no pod"))?;
        for node in self.nodes() {
            if service.pod(node)? == address {
                return Ok(node.label().to_owned());
            }
        }
        bail!("{address} is no pod")
    }

    /// Returns the last lines of the agents' logs.
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
            let mut page = format!("{}\n", node.label());
            page.extend(std::iter::repeat_n('.', PAGE_BYTES - page.len()));
            for pod in node.pods() {
                let addresses = [pod.v4(), pod.v6()].map(|address| (address, TARGET_PORT).into());
                self.servers.push(serve_page(pod, &addresses, &page)?);
            }
        }
        Ok(())
    }

    /// Writes the configuration, which is the same on all machines.
    fn write_config(&self, without: Option<&Machine>) -> Result<()> {
        let config = self.config(without)?;
        for machine in self.net.nodes().iter().chain(self.net.edges()) {
            self.guideway.configure(machine.namespace(), &config)?;
        }
        Ok(())
    }

    fn config(&self, without: Option<&Machine>) -> Result<String> {
        let (socket, interface) = (Guideway::socket(), Machine::INTERFACE);
        let (edge, nodes) = (self.edge(), self.nodes());
        // Small tables, because six services need no 128 MiB. No checks of nodes, because packets are counted.
        let mut text = format!(
            "interfaces: [{{ name: {interface}, mode: native }}]
tables: {{ lut_arena_mib: 1, services: 64, backends: 256, next_hops: 256, vips: 256 }}
api: {{ socket: {} }}
trusted_edges: [\"{}\", \"{}\"]
node_health: off
nodes:
",
            socket.display(),
            edge.v4(),
            edge.v6(),
        );
        for address in nodes.iter().flat_map(|node| [node.v4(), node.v6()]) {
            writeln!(text, "  - address: \"{address}\"")?;
        }
        text.push_str("vips:\n");
        for service in &SERVICES {
            writeln!(text, "  - \"{}\"", service.address().ip())?;
        }
        text.push_str("services:\n");
        for service in &SERVICES {
            write!(
                text,
                "  - name: {}\n    address: \"{}\"\n    port: {PORT}\n    protocol: tcp\n    \
                 mode: {}\n    table_size: {TABLE_SIZE}\n    backends:\n",
                service.name,
                service.address().ip(),
                service.mode(),
            )?;
            let left = |node: &Machine| without.is_none_or(|gone| gone.label() != node.label());
            for (node, weight) in nodes.iter().zip(WEIGHTS).filter(|(node, _)| left(node)) {
                let (pod, node) = (service.pod(node)?, service.node(node));
                writeln!(
                    text,
                    "      - {{ address: \"{}\", port: {TARGET_PORT}, node: \"{node}\", \
                     weight: {weight} }}",
                    pod.ip(),
                )?;
            }
        }
        Ok(text)
    }
}

/// Finds the `guideway` binary beside this one.
fn find_guideway() -> Result<Guideway> {
    let binary = env::current_exe()?.with_file_name("guideway");
    ensure!(
        binary.exists(),
        "{} is missing; `make demo` builds it",
        binary.display()
    );
    Ok(Guideway::new(binary))
}
