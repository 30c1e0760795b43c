//! Pods of two nodes and more answer, by every way there is, and straight to
//! the client.

use std::collections::BTreeSet;

use lab::{Machine, Topology, wait_for};

use crate::support::{
    Agent, Capture, Cluster, Flow, Mode, PodService, Protocol, Service, TIMEOUT, cluster_config,
    edge_apart, serve_on_pods,
};

/// Flows to each service: a pod that gets none of them has been left out.
const FLOWS: usize = 32;
/// More than one segment of any size: pods send such in one piece.
const LARGE: usize = 100_000;
/// For an edge whose bytes are counted: replies to its echoes would be among them.
const WITHOUT_ECHOES: &str = "node_health: off\n";

fn pod_services(modes: &[Mode]) -> Vec<PodService<'static>> {
    let services = Service::all(modes).into_iter();
    services.map(PodService::over_all).collect()
}

fn plain(services: &[PodService<'_>]) -> Vec<Service> {
    services.iter().map(|service| service.service).collect()
}

fn labels<'a>(machines: impl IntoIterator<Item = &'a Machine>) -> BTreeSet<String> {
    let labels = machines.into_iter().map(Machine::label);
    labels.map(str::to_owned).collect()
}

fn every_pod_answers(net: &Topology, mode: Mode) {
    let services = pod_services(&[mode]);
    let _echoes = serve_on_pods(net, &services);
    let cluster = Cluster::start_with(net, &services, WITHOUT_ECHOES);
    let (edge, client) = (&net.edges()[0], &net.clients()[0]);
    let capture = Capture::start(client);
    for service in plain(&services) {
        let mut answered = BTreeSet::new();
        for mut flow in Flow::open_many(client, &[service], FLOWS) {
            assert_eq!(flow.ask().unwrap(), flow.node, "a flow keeps its pod");
            answered.insert(flow.node);
        }
        assert_eq!(answered, labels(net.pods()), "{service}");

        let mut flow = Flow::open(client, &service).unwrap();
        let bytes = match service.protocol {
            Protocol::Tcp | Protocol::Sctp => "x".repeat(LARGE),
            // Up to the client's MTU, less the longer of the headers, and the
            // room that the answer takes for the pod's name.
            Protocol::Udp => "x".repeat(1500 - 40 - 8 - 16),
        };
        // Frames by which machines find each other may cross the edge meanwhile.
        wait_for("replies pass by the edge", TIMEOUT, || {
            let before = Sent::now(client, edge);
            assert_eq!(flow.ask_with(&bytes).unwrap(), flow.node, "{service}");
            before.check_that_replies_passed_by(client, edge, bytes.len())
        })
        .unwrap();
    }
    assert!(capture.assert_good_checksums() > 4 * FLOWS);
    for node in &cluster.nodes {
        assert!(Cluster::packets(node, "pass", "delivered") > 0);
    }
}

#[test]
fn edge_takes_on_pods_by_a_reload() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let (edge, node, client) = (&net.edges()[0], &net.nodes()[0], &net.clients()[0]);
    let services = pod_services(&[Mode::IpipV4, Mode::IpipV6]);
    let _echoes = serve_on_pods(&net, &services);
    let config = cluster_config(&net, &services);
    let (machine, _) = config.split_once("nodes:").unwrap();
    let at_node = Agent::start(node, &format!("{machine}roles: [edge]\nservices: []\n"));
    let _at_edge = Agent::start(edge, &config);
    at_node.write_config(&config);
    at_node.wait_for_reloads(2);
    Flow::open_many(client, &plain(&services), 1);
}

/// Bytes on the wires of client and edge.
struct Sent {
    client_sent: u64,
    client_received: u64,
    edge_received: u64,
}

impl Sent {
    fn now(client: &Machine, edge: &Machine) -> Self {
        let [client, edge] = [client, edge].map(|machine| machine.link().unwrap().stats().unwrap());
        Self {
            client_sent: client.tx_bytes,
            client_received: client.rx_bytes,
            edge_received: edge.rx_bytes,
        }
    }

    /// Tells what has entered the edge if it is more than what the client has sent.
    fn check_that_replies_passed_by(
        self,
        client: &Machine,
        edge: &Machine,
        length: usize,
    ) -> Result<(), String> {
        let now = Self::now(client, edge);
        let received = now.client_received - self.client_received;
        let sent = now.client_sent - self.client_sent;
        let at_edge = now.edge_received - self.edge_received;
        assert!(received >= length as u64, "{received} bytes came back");
        if at_edge < sent + received / 10 {
            Ok(())
        } else {
            Err(format!(
                "{at_edge} bytes entered the edge, {sent} were meant to"
            ))
        }
    }
}

#[test]
fn ipip_over_ipv4_reaches_every_pod() {
    every_pod_answers(&edge_apart(), Mode::IpipV4);
}

#[test]
fn ipip_over_ipv6_reaches_every_pod() {
    every_pod_answers(&edge_apart(), Mode::IpipV6);
}

#[test]
fn l2dsr_reaches_every_pod() {
    every_pod_answers(&edge_apart(), Mode::L2dsr);
}

#[test]
fn ipip_reaches_pods_behind_a_router() {
    let net = Topology::builder().nodes(1).routed_nodes(1).pods(1);
    every_pod_answers(&net.build().unwrap(), Mode::IpipV4);
}

#[test]
fn node_port_is_served_by_every_node_with_the_pods_of_all() {
    const NODE_PORT: u16 = 30_080;
    let net = edge_apart();
    let services = pod_services(&[Mode::IpipV4])
        .into_iter()
        .map(|service| PodService {
            node_port: Some(NODE_PORT),
            ..service
        });
    let services: Vec<PodService<'_>> = services.collect();
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start_with(&net, &services, WITHOUT_ECHOES);
    let client = &net.clients()[0];
    let router_to_edge = || {
        let link = net.far_end(&net.edges()[0]).unwrap();
        link.stats().unwrap().tx_bytes
    };
    let before = router_to_edge();
    let capture = Capture::start(client);
    for (node, agent) in net.nodes().iter().zip(&cluster.nodes) {
        for service in &services {
            let at_node = service.at_node(node);
            let flows = Flow::open_many(client, &[at_node], FLOWS);
            for flow in flows.iter().take(4) {
                let pod = net.pods().find(|pod| pod.label() == flow.node).unwrap();
                let is_here = node.pods().iter().any(|one| one.label() == pod.label());
                let wanted = if is_here { "pass" } else { "forward" };
                assert_eq!(which(agent, flow, pod), wanted, "{at_node}");
            }
            let answered: BTreeSet<String> = flows.into_iter().map(|flow| flow.node).collect();
            assert_eq!(answered, labels(net.pods()), "{at_node}");
        }
    }
    assert!(capture.assert_good_checksums() > 2 * FLOWS * services.len() * net.nodes().len());
    let broadcasts = 4096;
    assert!(
        router_to_edge() < before + broadcasts,
        "no way past the edge"
    );
    for node in &cluster.nodes {
        assert!(Cluster::packets(node, "pass", "delivered") > 0);
    }
}

/// Asks an agent about a flow, which it must know to be the pod's; returns what it does with it.
fn which(agent: &Agent<'_>, flow: &Flow, pod: &Machine) -> String {
    let (service, from) = (flow.service.to_string(), flow.client.to_string());
    let which = agent.json(&["which", "--service", &service, "--from", &from]);
    let backend = which["choice"]["backend"].as_str().unwrap();
    let pod = pod.address_like(flow.service.address.ip());
    assert!(backend.contains(&pod.to_string()), "{which}");
    if which["action"] == "pass" {
        assert_eq!(which["reason"], "delivered", "{which}");
    }
    which["action"].as_str().unwrap().to_owned()
}

#[test]
fn pod_reaches_itself_through_its_own_service() {
    let net = edge_apart();
    let pod = &net.nodes()[0].pods()[0];
    let services = pod_services(&[Mode::IpipV4])
        .into_iter()
        .map(|service| PodService {
            only: Some(pod),
            ..service
        });
    let services: Vec<PodService<'_>> = services.collect();
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    for service in plain(&services) {
        let mut flow = Flow::open(pod, &service).unwrap();
        let bytes = "x".repeat(1000);
        assert_eq!(flow.ask_with(&bytes).unwrap(), pod.label(), "{service}");
        for (agent, wanted) in [(&cluster.edge, "forward"), (&cluster.nodes[0], "pass")] {
            assert_eq!(which(agent, &flow, pod), wanted, "{service}");
        }
    }
}
