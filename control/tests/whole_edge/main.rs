//! An edge whose frames threads take all the way (`datapath: afxdp`), with nodes that take the outer header off by the
//! kernel's own tunnels. Needs root and their modules: `deploy/kernel-matrix/run.sh` runs it in a virtual machine, with
//! a kernel on which the programs do not load.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

#[path = "../e2e/support/mod.rs"]
mod support;

use std::collections::BTreeSet;

use lab::{Machine, Topology, output};
use support::{Agent, Cluster, Echo, Flow, Mode, Service, edge_config};

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

#[test]
fn threads_reach_every_node_by_every_mode() {
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

    for service in &services {
        let mut nodes = BTreeSet::new();
        for mut flow in Flow::open_many(client, &[*service], FLOWS) {
            assert_eq!(flow.ask().unwrap(), flow.node, "a flow keeps its node");
            nodes.insert(flow.node);
        }
        assert!(!nodes.is_empty(), "{service}");
    }
    let nodes = Flow::open_many(client, &services, FLOWS).into_iter();
    let nodes: BTreeSet<String> = nodes.map(|flow| flow.node).collect();
    assert_eq!(nodes.len(), net.nodes().len(), "{nodes:?}");

    let status = agent.json(&["status"]);
    assert_eq!(status["problems"], serde_json::json!([]), "{status}");
    let count = |reason| Cluster::packets(&agent, "edge", reason);
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
