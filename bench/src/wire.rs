//! The wire `lab`: namespaces of this machine.
//!
//! ```text
//!  client ---- router ---- switch ---- edge 0..     one for each system but the direct wire
//!                            +-------- node 0..2    backends with Guideway's agents, for its systems
//!                            +-------- node 3..5    backends without, for all others
//!
//!  direct:              client, router, node;                           answer: node, router, client
//!  routing, ipip, DSR:  client, router, edge, node;                     answer: node, router, client
//!  NAT, kube-proxy:     client, router, edge, node;                     answer: node, edge, router, client
//! ```
//!
//! All systems are up at the same time, so trials of different systems follow each other at once. Each balancer has an
//! address of its own, and as many Services as the scenario says, at ports of that address.

mod backends;
mod drops;
mod flows;
mod guideway;
mod kube_proxy;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
};

use anyhow::{Context, Result};
use lab::{Cidr, Guideway, Machine, Process, Route, Topology, vip_v4};

pub use backends::Responder;
pub use drops::{Drops, dropped_between};

use self::kube_proxy::Cluster;
use crate::{
    load::{Arrivals, sockets::Backends},
    probe::Key,
    scenario::{Scenario, System},
};

/// Number of backends of a system.
const BACKENDS: usize = 3;
/// The port of the backends.
const PORT: u16 = 7000;
/// The port of the first Service; the others follow.
const FIRST_SERVICE_PORT: u16 = 10_000;
/// Most Services that flows go to: each is a socket at every backend.
const MOST_TRIED: u32 = 16;
/// The first of the addresses that the system `routing` routes to backends.
const FIRST_ROUTED: u8 = 200;
/// The Services of a balancer: one address with a port for each.
#[derive(Clone, Copy, Debug)]
struct Listing {
    vip: Ipv4Addr,
    services: u32,
}

impl Listing {
    /// Returns the port of a Service.
    fn port(self, number: u32) -> u16 {
        FIRST_SERVICE_PORT + u16::try_from(number).expect("there are at most 10 000 Services")
    }

    /// Returns the Services that flows go to: at equal distances, from the first on.
    fn tried(self) -> impl Iterator<Item = SocketAddr> {
        let tried = self.services.min(MOST_TRIED);
        (0..tried).map(move |place| {
            let number = place * self.services / tried;
            SocketAddr::new(self.vip.into(), self.port(number))
        })
    }
}

/// The machines, and what runs on them.
#[derive(Debug)]
pub struct Lab {
    // First, because fields are dropped in order, and programs must end before their machines are removed.
    _agents: Vec<Process>,
    _cluster: Option<Cluster>,
    _responders: Vec<Responder>,
    net: Topology,
    guideway: Guideway,
    /// The systems that have an edge, in the order of the edges.
    systems: Vec<System>,
    services: u32,
    backends: Backends,
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
        let systems = scenario.systems.iter().copied();
        let systems: Vec<System> = systems.filter(|one| *one != System::Direct).collect();
        let edges = u8::try_from(systems.len())?;
        let nodes = u8::try_from(2 * BACKENDS)?;
        let net = Topology::builder().edges(edges).nodes(nodes).build();
        let mut lab = Self {
            _agents: Vec::new(),
            _cluster: None,
            _responders: Vec::new(),
            net: net.context("building the network; it takes root")?,
            guideway: Guideway::new(guideway),
            systems,
            services: scenario.services,
            backends: Backends {
                marks: Key::random()?,
                number: BACKENDS,
                arrivals: Arrivals::default(),
            },
        };
        lab.route()?;
        lab.start_responders()?;
        if lab.systems.iter().any(|system| system.is_ours()) {
            lab.start_agents().context("bringing Guideway up")?;
        }
        lab.start_kube_proxies(show_progress)
            .context("bringing kube-proxy up")?;
        Ok(lab)
    }

    /// Returns the far end of all flows.
    pub fn backends(&self) -> &Backends {
        &self.backends
    }

    /// Returns the names of a system's backends, by their numbers.
    pub fn backend_names(&self, system: System) -> Vec<String> {
        let names = self.nodes(system).iter();
        names.map(|node| node.label().to_owned()).collect()
    }

    /// Says what a system is, and the way of a packet.
    pub fn describe(system: System) -> String {
        const ANSWER_PAST: &str = "the nodes answer the client directly, past it";
        const ANSWER_BACK: &str =
            "the nodes answer to it, and it sends the answer on to the client";
        let ours = |mode: &str, end: &str| {
            format!(
                "Guideway: the router sends the address of the Service to an edge, which balances over three nodes \
                 by {mode} (XDP, native mode, on veth); {end}"
            )
        };
        let proxy = |mode: &str| {
            format!(
                "kube-proxy {} of the Kubernetes project in {mode} mode, fed by a real API server: the router sends the \
                 address of the Service to its machine, which balances over three nodes by DNAT and masquerades; {ANSWER_BACK}",
                lab::kubernetes::version()
            )
        };
        match system {
            System::Direct => {
                "no load balancer: the client sends to the nodes' own addresses through a router; \
                 each flow has a node of its own"
                    .to_owned()
            }
            System::Routing => {
                format!(
                    "no load balancer, but one machine more, which routes (Linux, no netfilter rules): {ANSWER_PAST}"
                )
            }
            System::OursIpip => ours(
                "IPIP",
                &format!("the agents of the nodes decapsulate; {ANSWER_PAST}"),
            ),
            System::OursL2dsr => ours("rewriting MAC addresses", ANSWER_PAST),
            System::OursNat => ours("NAT", ANSWER_BACK),
            System::KubeProxyNftables => proxy("nftables"),
            System::KubeProxyIptables => proxy("iptables"),
        }
    }

    /// Returns the backends' machines. Only Guideway's own systems have its agents on them.
    fn nodes(&self, system: System) -> &[Machine] {
        let (with_agents, without) = self.net.nodes().split_at(BACKENDS);
        if system.is_ours() {
            with_agents
        } else {
            without
        }
    }

    fn edge(&self, system: System) -> Result<&Machine> {
        let place = self.systems.iter().position(|one| *one == system);
        let edge = place.and_then(|place| self.net.edges().get(place));
        edge.with_context(|| format!("{system} has no edge"))
    }

    fn listing(&self, system: System) -> Result<Listing> {
        let place = self.systems.iter().position(|one| *one == system);
        let place = place.with_context(|| format!("{system} has no Services"))?;
        Ok(Listing {
            vip: vip_v4(1 + u8::try_from(place)?),
            services: self.services,
        })
    }

    /// Has the router send each balancer's address to its edge.
    fn route(&self) -> Result<()> {
        for &system in &self.systems {
            let edge = self.edge(system)?;
            if system != System::Routing {
                let vip = Cidr::host(self.listing(system)?.vip);
                self.net
                    .router()
                    .replace_route(&Route::to(vip).via(edge.v4()))?;
                continue;
            }
            kube_proxy::prepare(edge)?;
            for (number, node) in self.nodes(system).iter().enumerate() {
                let to = Cidr::host(routed(number)?);
                let router = self.net.router();
                router.replace_route(&Route::to(to).via(edge.v4()))?;
                edge.namespace()
                    .replace_route(&Route::to(to).via(node.v4()))?;
            }
        }
        Ok(())
    }

    fn start_responders(&mut self) -> Result<()> {
        let mut responders = Vec::new();
        for (place, node) in self.net.nodes().iter().enumerate() {
            let (has_agent, number) = (place < BACKENDS, place % BACKENDS);
            let mut addresses = vec![SocketAddr::new(node.v4(), PORT)];
            if has_agent {
                let dsr = [System::OursIpip, System::OursL2dsr];
                for &system in self.systems.iter().filter(|one| dsr.contains(one)) {
                    let listing = self.listing(system)?;
                    node.add_vip(listing.vip)?;
                    addresses.extend(listing.tried());
                }
            } else if self.systems.contains(&System::Routing) {
                node.add_vip(routed(number)?)?;
                addresses.push(SocketAddr::new(routed(number)?.into(), PORT));
            }
            let (number, backends) = (u16::try_from(number)?, &self.backends);
            let (marks, arrivals) = (backends.marks, &backends.arrivals);
            let responder = Responder::start(node, &addresses, number, marks, arrivals)?;
            responders.push(responder);
        }
        self._responders = responders;
        Ok(())
    }

    fn start_agents(&mut self) -> Result<()> {
        let ours = self.systems.iter().filter(|system| system.is_ours());
        let ours: Vec<System> = ours.copied().collect();
        let nodes = self.nodes(ours[0]);
        let edges = ours.iter().map(|&system| self.edge(system));
        let edges: Vec<&Machine> = edges.collect::<Result<_>>()?;
        let addresses: Vec<IpAddr> = edges.iter().map(|edge| edge.v4()).collect();
        let mut machines = Vec::new();
        for node in nodes {
            machines.push((node.namespace(), guideway::node(&addresses)));
        }
        for (&system, edge) in ours.iter().zip(&edges) {
            let config = guideway::edge(system, &self.listing(system)?, nodes)?;
            machines.push((edge.namespace(), config));
        }
        let mut agents = Vec::new();
        for (machine, config) in &machines {
            self.guideway.configure(machine, config)?;
            agents.push(self.guideway.run(machine)?);
        }
        for ((machine, _), agent) in machines.iter().zip(&mut agents) {
            self.guideway.wait_until_ready(machine, agent)?;
        }
        self._agents = agents;
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
            self._cluster = Some(cluster);
        }
        Ok(())
    }
}

/// Returns the address of a backend that the system `routing` routes to it.
fn routed(number: usize) -> Result<Ipv4Addr> {
    Ok(vip_v4(FIRST_ROUTED + u8::try_from(number)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_go_to_services_from_all_parts_of_the_list() {
        let tried = |services| {
            let vip = vip_v4(1);
            let listing = Listing { vip, services };
            let ports = listing
                .tried()
                .map(|service| service.port() - FIRST_SERVICE_PORT);
            ports.collect::<Vec<u16>>()
        };
        assert_eq!(tried(1), [0]);
        assert_eq!(tried(3), [0, 1, 2]);
        let many = tried(10_000);
        assert_eq!((many.len(), many[1], many[15]), (16, 625, 9_375));
    }
}
