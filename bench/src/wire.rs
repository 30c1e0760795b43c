//! The wire `lab`: namespaces of this machine.
//!
//! ```text
//!  client ---- router ---- switch ---- edge 0..     one for each system but the direct wire
//!                            +-------- node 0..2    backends with Guideway's agents, for its systems
//!                            +-------- node 3..5    backends without, for all others
//!                            +-------- node 6..8    with agents and pods, which are the backends behind NodePorts
//!
//!  direct:              client, router, node;                           answer: node, router, client
//!  NodePort:            client, router, edge, node, pod;                answer: pod, node, router, client
//!  routing, ipip, DSR:  client, router, edge, node;                     answer: node, router, client
//!  NAT, kube-proxy:     client, router, edge, node;                     answer: node, edge, router, client
//! ```
//!
//! All systems are up at the same time, so trials of different systems follow each other at once. Each balancer has an
//! address of its own, and as many Services as the scenario says, at ports of that address.

mod addresses;
mod backends;
mod background;
mod carriers;
mod describe;
mod drops;
mod events;
mod flows;
mod guideway;
pub(crate) mod kube_proxy;
mod live;
mod null;
mod planned;
mod ports;
mod running;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{Mutex, atomic::AtomicU16},
};

use anyhow::{Context, Result};
use lab::{Cidr, Guideway, Machine, Process, Route, Topology};

pub use self::{
    addresses::PlannedFlow,
    backends::Responder,
    carriers::LinkDown,
    drops::{Counts, counted_between},
    planned::{PlannedSeries, planned},
    ports::{Reflector, reason_against_stamps, reason_against_xdp, reasons_against},
    running::SystemEnded,
};
use self::{
    addresses::{FIRST_CLIENT_PORT, Listing, first_node, routed},
    kube_proxy::Cluster,
    null::Null,
    ports::Cards,
};
use crate::{
    datapath::Protocol,
    host,
    load::{Arrivals, Generator, search::searching, sockets::Backends},
    probe::Key,
    scenario::{AddressFamily, EventKind, GeneratorKind, Load, Scenario, System, WireKind},
};

/// Number of backends of a system.
const BACKENDS: usize = 3;
/// The port of the backends.
const PORT: u16 = 7000;
/// The port of the first Service; the others follow.
const FIRST_SERVICE_PORT: u16 = 10_000;
/// The port of the first Service that has a NodePort; the others follow.
const FIRST_NODE_PORT: u16 = 30_000;
/// The first of the addresses that the system `routing` routes to backends.
const FIRST_ROUTED: u8 = 200;
/// Seed of the flow hash and the lookup tables of Guideway's edges.
const HASH_SEED: u64 = 1;
const FAMILIES: [AddressFamily; 2] = [AddressFamily::Ipv4, AddressFamily::Ipv6];

/// A network between generators and systems. The systems are up.
pub trait Wire: Sync {
    /// Opens a load to a system, and proves that the system does its work. `beside` are the live frames a second that its
    /// background comes to.
    ///
    /// # Errors
    ///
    /// When it does not.
    fn open(
        &self,
        system: System,
        load: &Load,
        beside: Option<f64>,
    ) -> Result<Box<dyn Generator + '_>>;

    /// Returns the names of a system's backends, by their numbers.
    fn backend_names(&self, system: System) -> Vec<String>;

    /// Reads what each queue of a system's device has received so far, as far as its driver tells.
    ///
    /// # Errors
    ///
    /// When the driver tells nothing.
    fn queues(&self, system: System) -> Result<Counts>;

    /// Has an event happen to a system.
    ///
    /// # Errors
    ///
    /// When it cannot happen.
    fn cause(&self, system: System, event: EventKind) -> Result<()>;

    /// Undoes an event.
    ///
    /// # Errors
    ///
    /// When the system does not come up again.
    fn undo(&self, system: System, event: EventKind) -> Result<()>;

    /// Says what a system is, and the way of a packet.
    fn describe(&self, system: System) -> String;

    /// Reads what was thrown away so far on the way of a system's packets.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell, or an agent does not answer.
    fn drops(&self, system: System) -> Result<Counts>;

    /// Returns the facts that a wire knows of: those of other machines, and those of the network cards that it has taken.
    fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Reads how often each device on the way of a system's packets has got or lost its carrier so far.
    ///
    /// # Errors
    ///
    /// [`LinkDown`] when one has none.
    fn carriers(&self, system: System) -> Result<Counts>;

    /// Checks that a system still runs, which its packets need not tell.
    ///
    /// # Errors
    ///
    /// [`SystemEnded`] when it does not.
    fn expect_running(&self, system: System) -> Result<()>;
}

/// Builds the wire of a scenario.
///
/// # Errors
///
/// When the caller is not root, a program or a network card is missing, or a system does not come up.
pub fn start(
    scenario: &Scenario,
    guideway: &Path,
    show_progress: &(dyn Fn(&str) + Sync),
) -> Result<Box<dyn Wire>> {
    Ok(match scenario.wire {
        WireKind::Ports | WireKind::Reflector => Box::new(Cards::start(scenario)?),
        WireKind::Lab | WireKind::Pair => Box::new(Lab::start(scenario, guideway, show_progress)?),
    })
}

/// The machines, and what runs on them.
#[derive(Debug)]
pub struct Lab {
    // First, because fields are dropped in order, and programs must end before their machines are removed.
    /// By machine.
    agents: Mutex<BTreeMap<String, Process>>,
    cluster: Option<Cluster>,
    _null: Option<Null>,
    _responders: Vec<Responder>,
    net: Topology,
    guideway: Guideway,
    scenario: Scenario,
    /// The systems that have an edge, in the order of the edges.
    systems: Vec<System>,
    backends: Backends,
    /// The client's port of the next flow.
    next_port: AtomicU16,
    /// Which systems have proved that they answer, by which families and protocols.
    proven: Mutex<Vec<(System, AddressFamily, Protocol)>>,
}

impl Lab {
    /// Builds the network and brings the systems up.
    ///
    /// # Errors
    ///
    /// When the caller is not root, a program is missing, or a system does not come up.
    pub fn start(
        scenario: &Scenario,
        guideway: &Path,
        show_progress: &(dyn Fn(&str) + Sync),
    ) -> Result<Self> {
        // Each flow, and each address of a backend, has one. Fewer are reported by those that cannot be opened.
        host::allow_many_sockets();
        let systems = scenario.systems.iter().copied();
        let systems: Vec<System> = systems.filter(|one| *one != System::Direct).collect();
        let edges = u8::try_from(systems.len())?;
        let plain = u8::try_from(2 * BACKENDS)?;
        // Frames of a CPU go by a queue of its own.
        let threads = scenario.loads.iter().map(|load| load.threads).max();
        let mut net = Topology::builder().edges(edges).nodes(plain);
        net = net.queues(threads.unwrap_or(1));
        if systems.contains(&System::OursNodeport) {
            let all = u8::try_from(3 * BACKENDS)?;
            net = net.nodes(all).pods(1).pods_from(plain);
        }
        let net = net.build();
        let mut lab = Self {
            agents: Mutex::default(),
            cluster: None,
            _null: None,
            _responders: Vec::new(),
            net: net.context("building the network; it takes root")?,
            guideway: Guideway::new(guideway),
            scenario: scenario.clone(),
            systems,
            backends: Backends {
                marks: Key::random()?,
                number: BACKENDS,
                arrivals: Arrivals::default(),
            },
            next_port: AtomicU16::new(FIRST_CLIENT_PORT),
            proven: Mutex::default(),
        };
        lab.route()?;
        lab.start_responders()?;
        if lab.systems.iter().any(|system| system.is_ours()) {
            lab.start_agents().context("bringing Guideway up")?;
        }
        if lab.systems.contains(&System::NullProgram) {
            let (edge, node) = (
                lab.edge(System::NullProgram)?,
                &lab.nodes(System::NullProgram)[0],
            );
            lab._null = Some(Null::attach(edge, node)?);
        }
        lab.start_kube_proxies(show_progress)
            .context("bringing kube-proxy up")?;
        Ok(lab)
    }

    /// Returns the backends' machines, or those that have the backends as pods.
    fn nodes(&self, system: System) -> &[Machine] {
        let first = first_node(system);
        &self.net.nodes()[first..first + BACKENDS]
    }

    fn edge(&self, system: System) -> Result<&Machine> {
        let place = self.systems.iter().position(|one| *one == system);
        let edge = place.and_then(|place| self.net.edges().get(place));
        edge.with_context(|| format!("{system} has no edge"))
    }

    fn listing(&self, system: System) -> Result<Listing> {
        Listing::of(&self.scenario, system).with_context(|| format!("{system} has no Services"))
    }

    /// Has the router send each balancer's address to its edge.
    fn route(&self) -> Result<()> {
        let router = self.net.router();
        for &system in &self.systems {
            let edge = self.edge(system)?;
            if system == System::Routing {
                kube_proxy::prepare(edge.namespace(), Machine::INTERFACE)?;
                for (to, node) in self.routes(system)? {
                    let to = Cidr::host(to);
                    router.replace_route(&Route::to(to).via(edge.address_like(to.address)))?;
                    let next = Route::to(to).via(node.address_like(to.address));
                    edge.namespace().replace_route(&next)?;
                }
                continue;
            }
            if system == System::OursNodeport {
                continue;
            }
            for vip in self.listing(system)?.vips() {
                let via = edge.address_like(vip);
                router.replace_route(&Route::to(Cidr::host(vip)).via(via))?;
            }
        }
        Ok(())
    }

    /// Returns the addresses of backends that the system `routing` routes, with the backends.
    fn routes(&self, system: System) -> Result<Vec<(IpAddr, &Machine)>> {
        let mut routes = Vec::new();
        for (node, number) in self.nodes(system).iter().zip(0..) {
            routes.extend(FAMILIES.map(|family| (routed(family, number), node)));
        }
        Ok(routes)
    }

    fn start_responders(&mut self) -> Result<()> {
        let mut responders = Vec::new();
        for (place, node) in self.net.nodes().iter().enumerate() {
            let number = place % BACKENDS;
            let node = node.pods().first().unwrap_or(node);
            let own = [node.v4(), node.v6()];
            let mut addresses = own.map(|own| SocketAddr::new(own, PORT)).to_vec();
            // Where nothing translates, the backend has the Service's address.
            let dsr: &[System] = match place / BACKENDS {
                0 => &[System::OursIpip, System::OursL2dsr],
                1 => &[System::NullProgram],
                _ => &[],
            };
            for &system in self.systems.iter().filter(|one| dsr.contains(one)) {
                let listing = self.listing(system)?;
                for vip in listing.vips() {
                    node.add_vip(vip)?;
                }
                let families = listing.families.iter();
                addresses.extend(families.flat_map(|&family| listing.tried(family)));
            }
            if place / BACKENDS == 1 && self.systems.contains(&System::Routing) {
                let routes = self.routes(System::Routing)?;
                for (to, _) in routes.iter().filter(|(_, to)| to.label() == node.label()) {
                    node.add_vip(*to)?;
                    addresses.push(SocketAddr::new(*to, PORT));
                }
            }
            let (number, backends) = (u16::try_from(number)?, &self.backends);
            let (marks, arrivals) = (backends.marks, &backends.arrivals);
            let responder =
                Responder::start(node.namespace(), &addresses, number, marks, arrivals)?;
            responders.push(responder);
        }
        self._responders = responders;
        Ok(())
    }

    /// Returns the configuration of a system's edge. Services of `changed` lack their last backend.
    fn edge_config(&self, system: System, changed: &[u32]) -> Result<String> {
        let (listing, nodes) = (self.listing(system)?, self.nodes(system));
        match system {
            System::OursNodeport => {
                guideway::node_ports(&listing, self.edge(system)?, nodes, changed)
            }
            _ => guideway::edge(system, &listing, nodes, changed),
        }
    }

    fn start_agents(&mut self) -> Result<()> {
        let ours = self.systems.iter().filter(|system| system.is_ours());
        let ours: Vec<System> = ours.copied().collect();
        let at_vips = ours.iter().filter(|one| **one != System::OursNodeport);
        let edges = at_vips.map(|&system| self.edge(system));
        let edges: Vec<&Machine> = edges.collect::<Result<_>>()?;
        let mut machines = Vec::new();
        if !edges.is_empty() {
            let addresses = edges.iter().flat_map(|edge| [edge.v4(), edge.v6()]);
            let config = guideway::node(&addresses.collect::<Vec<IpAddr>>());
            let nodes = self.nodes(System::OursIpip).iter();
            machines.extend(nodes.map(|node| (node.namespace(), config.clone())));
        }
        for &system in &ours {
            let config = self.edge_config(system, &[])?;
            if system == System::OursNodeport {
                let nodes = self.nodes(system).iter();
                machines.extend(nodes.map(|node| (node.namespace(), config.clone())));
            }
            machines.push((self.edge(system)?.namespace(), config));
        }
        let mut agents = BTreeMap::new();
        for (machine, config) in &machines {
            self.guideway.configure(machine, config)?;
            agents.insert(machine.label().to_owned(), self.guideway.run(machine)?);
        }
        for (machine, _) in &machines {
            let agent = agents.get_mut(machine.label());
            let agent = agent.context("each machine has an agent")?;
            self.guideway.wait_until_ready(machine, agent)?;
        }
        self.agents = Mutex::new(agents);
        Ok(())
    }

    fn start_kube_proxies(&mut self, show_progress: &(dyn Fn(&str) + Sync)) -> Result<()> {
        let mut edges = Vec::new();
        for &system in &self.systems {
            if let Some(mode) = system.proxy_mode() {
                edges.push((self.edge(system)?, mode, self.listing(system)?));
            }
        }
        if !edges.is_empty() {
            let nodes = self.nodes(System::KubeProxyNftables);
            let cluster = Cluster::start(&edges, nodes, show_progress)?;
            self.cluster = Some(cluster);
        }
        Ok(())
    }
}

impl Wire for Lab {
    fn open(
        &self,
        system: System,
        load: &Load,
        beside: Option<f64>,
    ) -> Result<Box<dyn Generator + '_>> {
        let generator: Box<dyn Generator + '_> = match load.generator {
            GeneratorKind::Sockets => self.open_requests(system, load, beside)?,
            GeneratorKind::Live | GeneratorKind::Afxdp | GeneratorKind::Pktgen => {
                Box::new(self.open_live(system, load)?)
            }
        };
        Ok(searching(generator, load.search))
    }

    fn backend_names(&self, system: System) -> Vec<String> {
        let names = self.nodes(system).iter();
        names.map(|node| node.label().to_owned()).collect()
    }

    fn drops(&self, system: System) -> Result<Counts> {
        self.read_drops(system)
    }

    fn queues(&self, system: System) -> Result<Counts> {
        self.read_queues(system)
    }

    fn carriers(&self, system: System) -> Result<Counts> {
        self.read_carriers(system)
    }

    fn expect_running(&self, system: System) -> Result<()> {
        self.expect_programs(system)
    }

    fn cause(&self, system: System, event: EventKind) -> Result<()> {
        self.cause_event(system, event)
    }

    fn undo(&self, system: System, event: EventKind) -> Result<()> {
        self.undo_event(system, event)
    }

    fn describe(&self, system: System) -> String {
        describe::system(system)
    }
}

fn address_of(machine: &Machine, family: AddressFamily) -> IpAddr {
    match family {
        AddressFamily::Ipv4 => machine.v4(),
        AddressFamily::Ipv6 => machine.v6(),
    }
}
