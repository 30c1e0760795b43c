//! The wire `lab`: namespaces of this machine.
//!
//! ```text
//!  client ---- router ---- switch ---- edge        requests of ours-ipip: client, router, edge, node
//!                            +-------- node 0..2   requests of direct:    client, router, node
//! ```
//!
//! Answers go from the node to the client by the router, in both. All systems are up at the same time, so trials of
//! different systems follow each other at once.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use lab::{Guideway, Machine, Process, Topology, vip_v4, wait_for};

use crate::{
    load::sockets::{self, Flow},
    probe::{Key, PROBE_LENGTH},
    scenario::{Load, SMALLEST_FRAME, System},
};

/// Number of backends.
const NODES: u8 = 3;
/// The port of the service and of the backends.
const PORT: u16 = 7000;
/// How long a responder may take to notice that it is to end.
const POLL: Duration = Duration::from_millis(50);
/// How long a system may take until all its flows have had an answer.
const PROOF_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two probes of a proof.
const PROOF_PACE: Duration = Duration::from_millis(1);

/// The machines, and what runs on them.
#[derive(Debug)]
pub struct Lab {
    // First, because fields are dropped in order, and programs must end before their machines are removed.
    agents: Vec<Process>,
    responders: Vec<Responder>,
    net: Topology,
    guideway: Guideway,
    marks: Key,
}

impl Lab {
    /// Builds the network and brings the systems up. Backends answer with the key `marks`.
    ///
    /// # Errors
    ///
    /// When the caller is not root, or a system does not come up.
    pub fn start(systems: &[System], guideway: &Path, marks: Key) -> Result<Self> {
        let net = Topology::builder().nodes(NODES).build();
        let mut lab = Self {
            agents: Vec::new(),
            responders: Vec::new(),
            net: net.context("building the network; it takes root")?,
            guideway: Guideway::new(guideway),
            marks,
        };
        lab.start_responders()?;
        if systems.contains(&System::OursIpip) {
            ensure!(
                guideway.exists(),
                "{} is missing: build it (cargo build --release --package control) or name it by --guideway",
                guideway.display()
            );
            lab.start_agents().context("bringing ours-ipip up")?;
        }
        Ok(lab)
    }

    /// Returns the backends' names, by their numbers.
    pub fn backends(&self) -> Vec<String> {
        let names = self.net.nodes().iter();
        names.map(|node| node.label().to_owned()).collect()
    }

    /// Says what a system is, and the way of a packet.
    pub fn describe(system: System) -> &'static str {
        match system {
            System::Direct => {
                "no load balancer: the client sends to the nodes' own addresses through a router; \
                 each flow has a node of its own"
            }
            System::OursIpip => {
                "Guideway: the router sends the VIP to an edge, which balances over three nodes by IPIP \
                 (XDP, native mode, on veth); the agents of the nodes decapsulate; the nodes answer \
                 the client directly, past the edge"
            }
        }
    }

    /// Opens the flows of a load to a system, and proves that each has an answer from its own backend.
    ///
    /// # Errors
    ///
    /// When a flow has no answer, or another backend's.
    pub fn open(&self, system: System, load: &Load) -> Result<Vec<Flow>> {
        let flows = (0..load.flows).map(|number| self.open_flow(system, number));
        let flows: Vec<Flow> = flows.collect::<Result<_>>()?;
        self.prove(system, &flows)?;
        Ok(flows)
    }

    fn open_flow(&self, system: System, number: u32) -> Result<Flow> {
        let client = &self.net.clients()[0];
        let own = SocketAddr::new(client.v4(), client.fresh_port());
        let (to, backend) = match system {
            System::Direct => {
                let node = number as usize % self.net.nodes().len();
                (SocketAddr::new(self.net.nodes()[node].v4(), PORT), node)
            }
            System::OursIpip => (service(), self.expected(own)?),
        };
        let open = || {
            let socket = UdpSocket::bind(own)?;
            socket.connect(to)?;
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(socket)
        };
        Ok(Flow {
            socket: client.namespace().run(open).context("opening a flow")?,
            backend: u16::try_from(backend)?,
        })
    }

    /// Asks the edge's agent which node a flow belongs to.
    fn expected(&self, client: SocketAddr) -> Result<usize> {
        let (key, from) = (format!("{}/udp", service()), client.to_string());
        let arguments = ["which", "--service", &key, "--from", &from];
        let edge = self.net.edges()[0].namespace();
        let answer = self.guideway.ask(edge, &arguments)?;
        let backend = answer["choice"]["backend"].as_str().unwrap_or_default();
        let address: IpAddr = backend
            .parse()
            .with_context(|| format!("no backend in {answer}"))?;
        let place = self
            .net
            .nodes()
            .iter()
            .position(|node| node.v4() == address);
        place.with_context(|| format!("{address} is no node"))
    }

    /// Sends one probe by each flow until all are answered by the right backend.
    fn prove(&self, system: System, flows: &[Flow]) -> Result<()> {
        let pace = u64::try_from(PROOF_PACE.as_nanos())?;
        let due: Vec<u64> = (0..)
            .map(|number| number * pace)
            .take(flows.len())
            .collect();
        let backends = self.net.nodes().len();
        let awaited = format!(
            "{system} answers all of {} flows from their backends",
            flows.len()
        );
        wait_for(&awaited, PROOF_TIMEOUT, || {
            let trial = sockets::run(flows, &due, SMALLEST_FRAME, self.marks, backends)?;
            let tally = trial.tally;
            if tally.received == tally.offered && tally.misdelivered + tally.corrupt == 0 {
                return Ok(());
            }
            bail!("{tally:?}")
        })?;
        Ok(())
    }

    fn start_responders(&mut self) -> Result<()> {
        for (number, node) in (0..).zip(self.net.nodes()) {
            node.add_vip(vip_v4(1))?;
            for address in [SocketAddr::new(node.v4(), PORT), service()] {
                let responder = Responder::start(node, address, number, self.marks)?;
                self.responders.push(responder);
            }
        }
        Ok(())
    }

    fn start_agents(&mut self) -> Result<()> {
        let edge = &self.net.edges()[0];
        let (of_edge, of_node) = (edge_config(self.net.nodes())?, node_config(edge));
        let nodes = self.net.nodes().iter().map(|node| (node, &of_node));
        let machines: Vec<(&Machine, &String)> = nodes.chain([(edge, &of_edge)]).collect();
        for (machine, config) in &machines {
            self.guideway.configure(machine.namespace(), config)?;
            self.agents.push(self.guideway.run(machine.namespace())?);
        }
        for ((machine, _), agent) in machines.iter().zip(&mut self.agents) {
            self.guideway.wait_until_ready(machine.namespace(), agent)?;
        }
        Ok(())
    }
}

/// Returns the address of the service.
fn service() -> SocketAddr {
    SocketAddr::new(vip_v4(1).into(), PORT)
}

fn edge_config(nodes: &[Machine]) -> Result<String> {
    let mut text = common_config("edge");
    writeln!(
        text,
        "vips: [\"{vip}\"]\nservices:\n  - name: bench\n    address: \"{vip}\"\n    port: {PORT}\n    \
         protocol: udp\n    mode: ipip\n    backends:",
        vip = vip_v4(1)
    )?;
    for node in nodes {
        writeln!(text, "      - {{ address: \"{}\" }}", node.v4())?;
    }
    Ok(text)
}

fn node_config(edge: &Machine) -> String {
    let trusted = format!("trusted_edges: [\"{}\", \"{}\"]\n", edge.v4(), edge.v6());
    common_config("node") + &trusted
}

/// No checks of nodes: their packets would be measured too.
fn common_config(role: &str) -> String {
    let (socket, interface) = (Guideway::socket(), Machine::INTERFACE);
    format!(
        "interfaces: [{{ name: {interface}, mode: native }}]
tables: {{ lut_arena_mib: 1, services: 64, backends: 256, next_hops: 256, vips: 256 }}
api: {{ socket: {} }}
roles: [{role}]
node_health: off
",
        socket.display()
    )
}

/// A backend: answers each probe with its mark. It ends on drop.
#[derive(Debug)]
struct Responder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    fn start(node: &Machine, at: SocketAddr, number: u16, marks: Key) -> Result<Self> {
        let socket = node.namespace().run(|| UdpSocket::bind(at));
        let socket = socket.with_context(|| format!("listening at {at}"))?;
        socket.set_read_timeout(Some(POLL))?;
        let stop: Arc<AtomicBool> = Arc::default();
        let stopped = Arc::clone(&stop);
        let serve = move || {
            let mut buffer = vec![0; usize::from(u16::MAX)];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((length, client)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let request = &buffer[..length];
                let Some((probe, padding)) = request.split_first_chunk::<PROBE_LENGTH>() else {
                    continue;
                };
                let mark = marks.mark(probe, number);
                // What cannot be sent is lost, and counted as that.
                let _ = socket.send_to(&[probe, &mark[..], padding].concat(), client);
            }
        };
        let thread = thread::Builder::new().name(format!("backend-{number}"));
        Ok(Self {
            stop,
            thread: Some(thread.spawn(serve)?),
        })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
