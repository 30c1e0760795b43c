//! TCP and UDP of both families reach every node, by every way there is, and
//! the nodes answer the client directly. Threads over AF_XDP sockets do at the
//! edge what the programs do.

use std::collections::BTreeMap;

use lab::{Machine, Topology};

use crate::support::{Agent, Echo, Flow, Mode, Protocol, Service, edge_config, node_config};

/// Flows to each service: a node that gets none of them has been left out.
const FLOWS: usize = 24;
/// More than one segment of any size, in one direction and in the other.
const LARGE: usize = 60_000;
/// The usual MTU of a client.
const CLIENT_MTU: usize = 1500;

/// What the edge's configuration says of the datapath.
const PROGRAMS: &str = "";
const THREADS: &str = "datapath: afxdp\n";

fn every_node_answers(net: &Topology, mode: Mode, datapath: &str) {
    every_node_answers_packets_of(CLIENT_MTU, net, mode, datapath);
}

fn every_node_answers_packets_of(mtu: usize, net: &Topology, mode: Mode, datapath: &str) {
    let services = Service::all(&[mode]);
    let _echoes: Vec<Echo> = net
        .nodes()
        .iter()
        .map(|node| Echo::start(node, &services))
        .collect();
    let (edge, client) = (&net.edges()[0], &net.clients()[0]);
    let config = edge_config(&services, net.nodes());
    let _edge = Agent::start(edge, &format!("{datapath}{config}"));
    let _nodes: Vec<Agent<'_>> = Agent::start_all(net.nodes(), &node_config([edge]));

    for service in &services {
        let mut by_node: BTreeMap<String, usize> = BTreeMap::new();
        for mut flow in Flow::open_many(client, &[*service], FLOWS) {
            assert_eq!(flow.ask().unwrap(), flow.node, "a flow keeps its node");
            *by_node.entry(flow.node).or_default() += 1;
        }
        assert_eq!(by_node.len(), net.nodes().len(), "{service}: {by_node:?}");
    }
    full_packets_pass(client, &services, mtu);
    replies_do_not_cross_the_edge(client, edge, &services);
}

fn full_packets_pass(client: &Machine, services: &[Service], mtu: usize) {
    for service in services {
        let bytes = match service.protocol {
            Protocol::Tcp | Protocol::Sctp => "x".repeat(LARGE),
            // Up to the client's MTU, less the longer of the headers, and the
            // room that the answer takes for the node's name.
            Protocol::Udp => "x".repeat(mtu - 40 - 8 - 16),
        };
        let mut flow = Flow::open(client, service).unwrap();
        assert_eq!(flow.ask_with(&bytes).unwrap(), flow.node, "{service}");
    }
}

fn replies_do_not_cross_the_edge(client: &Machine, edge: &Machine, services: &[Service]) {
    let stats = || {
        (
            client.link().unwrap().stats().unwrap(),
            edge.link().unwrap().stats().unwrap(),
        )
    };
    let tcp = services
        .iter()
        .filter(|service| service.protocol == Protocol::Tcp);
    for service in tcp {
        let mut flow = Flow::open(client, service).unwrap();
        let (client_before, edge_before) = stats();
        flow.ask_with(&"x".repeat(LARGE)).unwrap();
        let (client_after, edge_after) = stats();
        let received = client_after.rx_bytes - client_before.rx_bytes;
        let sent = client_after.tx_bytes - client_before.tx_bytes;
        let at_edge = edge_after.rx_bytes - edge_before.rx_bytes;
        assert!(received >= LARGE as u64, "{received} bytes came back");
        assert!(
            at_edge < sent + received / 10,
            "{at_edge} bytes entered the edge, {sent} were meant to"
        );
    }
}

fn segment() -> Topology {
    Topology::builder().nodes(3).build().unwrap()
}

#[test]
fn l2dsr_reaches_every_node() {
    every_node_answers(&segment(), Mode::L2dsr, PROGRAMS);
}

#[test]
fn threads_reach_every_node() {
    for mode in [Mode::L2dsr, Mode::IpipV4, Mode::IpipV6] {
        every_node_answers(&segment(), mode, THREADS);
    }
}

#[test]
fn threads_take_packets_as_large_as_the_mtu() {
    const LARGE_MTU: u32 = 3000;
    let net = Topology::builder()
        .client_mtu(LARGE_MTU)
        .fabric_mtu(LARGE_MTU + 40)
        .build()
        .unwrap();
    every_node_answers_packets_of(LARGE_MTU as usize, &net, Mode::IpipV6, THREADS);
}

#[test]
fn ipip_over_ipv4_reaches_every_node() {
    every_node_answers(&segment(), Mode::IpipV4, PROGRAMS);
}

#[test]
fn ipip_over_ipv6_reaches_every_node() {
    every_node_answers(&segment(), Mode::IpipV6, PROGRAMS);
}

#[test]
fn ipip_reaches_nodes_behind_a_router() {
    let build = || {
        Topology::builder()
            .nodes(1)
            .routed_nodes(2)
            .build()
            .unwrap()
    };
    for datapath in [PROGRAMS, THREADS] {
        every_node_answers(&build(), Mode::IpipV4, datapath);
        every_node_answers(&build(), Mode::IpipV6, datapath);
    }
}
