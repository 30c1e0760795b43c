//! An edge whose frames threads take all the way (`datapath: afxdp`), with nodes that take the outer header off by the
//! kernel's own tunnels. Needs root and their modules: `deploy/kernel-matrix/run.sh` runs it in a virtual machine, with
//! a kernel on which the programs do not load.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

#[path = "../e2e/support/mod.rs"]
mod support;

mod captured;

use std::{collections::BTreeSet, net::UdpSocket};

use captured::Capture;
use lab::{Machine, Topology, output, vip_v4};
use support::{Agent, Cluster, Echo, Flow, Mode, Protocol, Service, edge_config};

/// Enough that a node is left out by chance once in 2^30 runs.
const FLOWS: usize = 4;

/// Gives a node the tunnels that take off outer headers of every pair of families.
fn add_tunnels(node: &Machine) {
    let (v4, v6) = (node.v4(), node.v6());
    for (name, tunnel) in [
        ("in44", format!("ipip mode ipip local {v4} remote any")),
        ("in64", format!("sit mode ip6ip local {v4} remote any")),
        ("in6", format!("ip6tnl mode any local {v6} remote any")),
    ] {
        for arguments in [
            format!("link add {name} type {tunnel}"),
            format!("link set {name} up"),
        ] {
            let mut ip = node.namespace().command("ip");
            output(ip.args(arguments.split(' '))).unwrap();
        }
    }
}

/// Sends a datagram to a VIP's port of no service.
fn ask_nobody(client: &Machine) {
    client.namespace().run(|| {
        let socket = UdpSocket::bind((client.v4(), 0)).unwrap();
        socket.send_to(b"", (vip_v4(1), 9)).unwrap();
    });
}

#[test]
fn threads_reach_every_node_by_every_mode_and_captures_see_it() {
    let net = Topology::builder().build().unwrap();
    let (edge, client) = (&net.edges()[0], &net.clients()[0]);
    let services = Service::all(&[Mode::L2dsr, Mode::IpipV4, Mode::IpipV6]);
    let serve = |node| {
        add_tunnels(node);
        Echo::start(node, &services)
    };
    let _echoes: Vec<Echo> = net.nodes().iter().map(serve).collect();
    let config = edge_config(&services, net.nodes());
    let agent = Agent::start(edge, &format!("datapath: afxdp\n{config}"));

    let capture = Capture::start(&agent, &["udp"]);
    let mut flows = Vec::new();
    for service in &services {
        let mut of_service = Flow::open_many(client, &[*service], FLOWS);
        for flow in &mut of_service {
            assert_eq!(flow.ask().unwrap(), flow.node, "a flow keeps its node");
        }
        flows.extend(of_service);
    }
    ask_nobody(client);
    let count = |reason| Cluster::packets(&agent, "edge", reason);
    Cluster::wait_for_packets(&agent, "reply", "port_unreachable", 1);
    let (said, packets) = capture.end();
    let is_captured = |flow: &&Flow| flow.service.protocol == Protocol::Udp;
    let captured = 2 * flows.iter().filter(is_captured).count() + 1;
    assert!(
        said.contains(&format!("{captured} packets captured, 0 lost")),
        "{said}"
    );
    for flow in flows.iter().filter(is_captured) {
        let node = net.nodes().iter().find(|node| node.label() == flow.node);
        captured::assert_seen(&packets, flow, node.unwrap(), 2);
    }
    let nobodys = packets.iter().rev().map(|packet| &packet.comment);
    let refused = format!("reply port_unreachable, service {}:9/udp", vip_v4(1));
    let refused = ["after", "before"].map(|side| format!("{side}: {refused}"));
    assert!(nobodys.take(2).eq(&refused), "{packets:?}");

    let nodes = Flow::open_many(client, &services, FLOWS).into_iter();
    let nodes: BTreeSet<String> = nodes.map(|flow| flow.node).collect();
    assert_eq!(nodes.len(), net.nodes().len(), "{nodes:?}");

    let status = agent.json(&["status"]);
    assert_eq!(status["problems"], serde_json::json!([]), "{status}");
    assert!(count("edge_sent") > 0);
    for reason in [
        "edge_dropped",
        "edge_not_passed",
        "edge_other_device",
        "edge_lost",
    ] {
        assert_eq!(count(reason), 0, "{reason}");
    }
}
