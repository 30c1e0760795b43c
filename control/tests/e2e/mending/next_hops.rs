//! Packets to a node whose neighbour entry is missing.

use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use lab::{Machine, Topology, output, vip_v4, vip_v6, wait_until};

use super::{
    MEND, PORT, SHORT, assert_ledger_adds_up, count, place, send, services, wait_until_mending,
};
use crate::support::{
    Agent, Asked, Echo, Flow, Mode, PodService, Protocol, Sender, Service, TIMEOUT, cluster_config,
    nat_config, serve_on_pods,
};

/// Payload of a datagram in one packet.
const LENGTH: usize = 100;
/// Packets wait for as long as they can: a busy machine takes its time.
const PATIENT: &str = "mend_limits: { next_hop_wait: 30s }\n";
/// When the kernel sends a SYN again (RFC 6298).
const SYN_AGAIN: Duration = Duration::from_secs(1);
/// How often connections are tried while the machine is so slow that they may wait for their second SYN.
const ATTEMPTS: usize = 100;

/// A node, and the edge whose neighbour it is.
struct Neighbours<'net> {
    net: &'net Topology,
    node: &'net Machine,
    edge: &'net Machine,
    /// The addresses by which packets are sent to the node.
    used: Vec<IpAddr>,
}

impl<'net> Neighbours<'net> {
    /// The kernel asks the node often, and does not give up.
    fn of(net: &'net Topology, used: impl Fn(&Machine) -> Vec<IpAddr>) -> Self {
        let (node, edge) = (&net.nodes()[0], &net.edges()[0]);
        for family in ["ipv4", "ipv6"] {
            for (setting, value) in [("retrans_time_ms", "50"), ("mcast_solicit", "100000")] {
                let key = format!("net/{family}/neigh/{}/{setting}", Machine::INTERFACE);
                edge.namespace().set_sysctl(&key, value).unwrap();
            }
        }
        // It never asks the edge, which would learn its MAC by that.
        for address in [edge.v4(), edge.v6()] {
            let link = node.link().unwrap();
            link.set_neighbour(address, edge.mac()).unwrap();
        }
        Self {
            net,
            node,
            edge,
            used: used(node),
        }
    }

    /// Has the edge lose the entries of the node, which hears no question for them any more.
    fn lose(&self, agent: &Agent<'_>) {
        self.hear("off");
        for address in &self.used {
            let link = self.edge.link().unwrap();
            link.delete_neighbour(*address).unwrap();
        }
        self.wait_for_unresolved(agent, self.used.len() as u64);
    }

    /// Has the node hear questions again.
    fn find(&self, agent: &Agent<'_>) {
        self.hear("on");
        self.wait_for_unresolved(agent, 0);
    }

    fn hear(&self, flood: &str) {
        let port = self.net.far_end(self.node).unwrap();
        let mut ip = self.net.switch().command("ip");
        ip.args(["link", "set", "dev", port.name(), "type", "bridge_slave"]);
        output(ip.args(["bcast_flood", flood, "mcast_flood", flood])).unwrap();
    }

    fn wait_for_unresolved(&self, agent: &Agent<'_>, number: u64) {
        agent.wait_for_answer("the next hops are followed", &["status"], |status| {
            let unresolved = status["next_hops"]["unresolved"].as_u64();
            unresolved.unwrap_or(0) == number
        });
    }
}

/// Datagrams to services of a node that the edge may have lost.
struct Trial<'a> {
    sender: Sender<'a>,
    agent: &'a Agent<'a>,
    neighbours: &'a Neighbours<'a>,
    at: &'a [SocketAddr],
}

impl Trial<'_> {
    /// Loses the node, and sends a datagram to each service.
    fn ask_a_lost_node(&mut self) -> Vec<Asked> {
        self.neighbours.lose(self.agent);
        ask_all(&mut self.sender, self.at)
    }

    /// Asserts that datagrams are lost while there is no neighbour.
    fn assert_lost(&mut self) {
        let asked = self.ask_a_lost_node();
        for (asked, address) in asked.iter().zip(self.at) {
            assert_eq!(asked.answer(SHORT), None, "{address}");
        }
        let dropped = count(self.agent, "drop", "next_hop_unresolved");
        assert_eq!(dropped, self.at.len() as u64);
        self.neighbours.find(self.agent);
    }

    /// Asserts that datagrams wait for the neighbour, and that each arrives once.
    fn assert_all_arrive(&mut self) {
        let asked = self.ask_a_lost_node();
        wait_for_held(self.agent, self.at.len());
        self.neighbours.find(self.agent);
        for (asked, address) in asked.iter().zip(self.at) {
            assert!(asked.answer(TIMEOUT).is_some(), "{address}");
            assert!(!asked.has_another(), "{address}");
        }
    }
}

/// Sends a datagram to each address.
fn ask_all(sender: &mut Sender<'_>, at: &[SocketAddr]) -> Vec<Asked> {
    let asked = at.iter().map(|address| sender.ask(*address, LENGTH));
    let asked: Vec<_> = asked.collect();
    asked.iter().for_each(|asked| send(sender, asked, &[0]));
    asked
}

fn held(agent: &Agent<'_>) -> u64 {
    let status = agent.json(&["status"]);
    status["mend"]["held"].as_u64().unwrap()
}

fn wait_for_held(agent: &Agent<'_>, packets: usize) {
    wait_until("the packets are held", TIMEOUT, || {
        held(agent) == packets as u64
    })
    .unwrap();
}

/// Asserts that connections wait for the neighbour, and that no SYN is sent again for that.
fn assert_all_connect(
    client: &Machine,
    agent: &Agent<'_>,
    neighbours: &Neighbours<'_>,
    services: &[Service],
) {
    let sent_again = || client.namespace().tcp_counter("TCPSynRetrans").unwrap();
    for _ in 0..ATTEMPTS {
        neighbours.lose(agent);
        let before = sent_again();
        let started = Instant::now();
        thread::scope(|scope| {
            let open = |service| move || Flow::open_within(client, service, TIMEOUT).unwrap();
            let flows: Vec<_> = services.iter().map(|one| scope.spawn(open(one))).collect();
            // As long as none has come a second time.
            wait_until("the SYNs are held", TIMEOUT, || {
                held(agent) >= services.len() as u64
            })
            .unwrap();
            neighbours.find(agent);
            for flow in flows {
                flow.join().unwrap();
            }
        });
        if sent_again() == before {
            return;
        }
        let waited = started.elapsed();
        assert!(waited >= SYN_AGAIN, "sent again after {waited:?}");
    }
    panic!("each connection waits for a second SYN");
}

fn both(node: &Machine) -> Vec<IpAddr> {
    vec![node.v4(), node.v6()]
}

fn assert_nothing_is_given_up(agent: &Agent<'_>) {
    assert_ledger_adds_up(agent);
    for lost in [
        "mend_next_hop_unresolved",
        "mend_next_hop_full",
        "mend_unsent",
        "mend_unreadable",
    ] {
        assert_eq!(count(agent, "mend", lost), 0, "{lost}");
    }
}

#[test]
fn nothing_is_lost_while_a_neighbour_is_resolved_anew() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let datagrams = services();
    let connections = Service::all(&[Mode::IpipV4, Mode::IpipV6, Mode::L2dsr]);
    let connections: Vec<_> = connections
        .into_iter()
        .filter(|service| service.protocol == Protocol::Tcp)
        .collect();
    let of_connections = connections.iter().copied().map(PodService::over_all);
    let all: Vec<_> = datagrams.iter().copied().chain(of_connections).collect();
    let _echoes = serve_on_pods(&net, &all);
    let config = cluster_config(&net, &all) + "node_health: off\n";
    let neighbours = Neighbours::of(&net, both);
    let (client, edge) = (&net.clients()[0], neighbours.edge);
    let machines = net.nodes().iter().chain(net.edges());
    let agents: Vec<Agent<'_>> = Agent::start_all(machines, &config);
    let agent = agents.last().unwrap();
    let at: Vec<_> = datagrams
        .iter()
        .map(|service| place(service, edge))
        .collect();
    let mut trial = Trial {
        sender: Sender::new(&net),
        agent,
        neighbours: &neighbours,
        at: &at,
    };
    trial.assert_lost();

    agent.write_config(&(config + MEND + PATIENT));
    wait_until_mending(agent);
    trial.assert_all_arrive();
    assert_eq!(count(agent, "punt", "punted_next_hop"), at.len() as u64);
    assert_eq!(count(agent, "mend", "mended"), at.len() as u64);
    assert_all_connect(client, agent, &neighbours, &connections);
    assert_nothing_is_given_up(agent);
    assert_eq!(count(agent, "drop", "next_hop_unresolved"), at.len() as u64);

    // `trace` tells what would be done.
    neighbours.lose(agent);
    let asked = trial.sender.ask(at[0], LENGTH);
    let hex = |byte: &u8| format!("{byte:02x}");
    let frame: String = asked.fragments[0].iter().map(hex).collect();
    let trace = agent.json(&["trace", "--hex", &frame]);
    let mut steps = trace["steps"].as_array().unwrap().iter();
    let told = "goes to the agent as punted_next_hop, or else";
    assert!(steps.any(|step| step["text"] == told), "{trace}");
    neighbours.find(agent);
}

#[test]
fn nothing_is_lost_by_nat_while_a_neighbour_is_resolved_anew() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let neighbours = Neighbours::of(&net, both);
    let vips: [IpAddr; 2] = [vip_v4(1).into(), vip_v6(1).into()];
    let services = vips.map(|vip| {
        let backend = SocketAddr::new(neighbours.node.address_like(vip), 8080);
        (SocketAddr::new(vip, PORT), backend)
    });
    let protocols = [Protocol::Udp, Protocol::Tcp];
    let at_host = services
        .iter()
        .flat_map(|(_, backend)| protocols.map(|protocol| (*backend, protocol)));
    let _echo = Echo::serve(neighbours.node, at_host);
    let config = nat_config(&protocols, services);
    let agent = Agent::start(neighbours.edge, &config);
    let at = services.map(|(vip, _)| vip);
    let mut trial = Trial {
        sender: Sender::new(&net),
        agent: &agent,
        neighbours: &neighbours,
        at: &at,
    };
    trial.assert_lost();

    agent.write_config(&(config + MEND + PATIENT));
    wait_until_mending(&agent);
    // Each begins a flow, whose replies leave by the link that the request came by.
    trial.assert_all_arrive();
    let connections = at.map(|address| Service {
        address,
        protocol: Protocol::Tcp,
        mode: Mode::IpipV4,
    });
    assert_all_connect(&net.clients()[0], &agent, &neighbours, &connections);
    assert_nothing_is_given_up(&agent);
    assert_eq!(count(&agent, "drop", "next_hop_unresolved"), 2);
    assert_eq!(count(&agent, "drop", "nat_unknown_flow"), 0);
}

#[test]
fn what_waits_for_a_node_that_does_not_answer_is_given_up() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let datagrams = &services()[..1];
    let _echoes = serve_on_pods(&net, datagrams);
    let config = cluster_config(&net, datagrams)
        + "node_health: off\n"
        + MEND
        + "mend_limits: { next_hop_packets: 3, next_hop_wait: 500ms }\n";
    let neighbours = Neighbours::of(&net, |node| vec![node.v4()]);
    let machines = net.nodes().iter().chain(net.edges());
    let mut agents: Vec<Agent<'_>> = Agent::start_all(machines, &config);
    let agent = agents.last_mut().unwrap();
    wait_until_mending(agent);
    neighbours.lose(agent);
    let mut sender = Sender::new(&net);
    let at = [place(&datagrams[0], neighbours.edge); 5];
    let asked = ask_all(&mut sender, &at);
    wait_until("all are given up", TIMEOUT, || {
        count(agent, "mend", "mend_next_hop_unresolved")
            + count(agent, "mend", "mend_next_hop_full")
            == 5
    })
    .unwrap();
    assert!(count(agent, "mend", "mend_next_hop_unresolved") >= 3);
    assert_ledger_adds_up(agent);
    neighbours.find(agent);
    for asked in &asked {
        assert!(!asked.has_another());
    }
    // Without an agent, XDP drops as it does without mending.
    neighbours.lose(agent);
    agent.signal(lab::Signal::SIGKILL);
    agent.wait_for_end();
    let asked = ask_all(&mut sender, &at);
    assert_eq!(asked[0].answer(SHORT), None);
    // An agent without any way to the nodes is not ready.
    neighbours.hear("on");
    agent.start_again();
    wait_until_mending(agent);
    assert_eq!(count(agent, "drop", "next_hop_unresolved"), 5);
    assert!(ask_all(&mut sender, &at[..1])[0].answer(TIMEOUT).is_some());
}
