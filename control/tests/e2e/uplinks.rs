//! Machines with more than one uplink, and pods that are clients of their neighbours.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use lab::{Link, Machine, Namespace, Topology, Veth, output};
use serde_json::Value;

use crate::support::{
    Agent, Cluster, Flow, Mode, PodService, Service, cluster_config, serve_on_pods,
};

const FLOWS: usize = 16;
const MODES: [Mode; 3] = [Mode::L2dsr, Mode::IpipV4, Mode::IpipV6];

/// The network of the second uplinks: each end has its number in it.
pub(crate) fn second(end: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(10, 0, 200, end).into(),
        Ipv6Addr::new(0xfd00, 0x200, 0, 0, 0, 0, 0, end.into()).into(),
    ]
}

fn ip(machine: &Namespace, arguments: &str) {
    output(machine.command("ip").args(arguments.split(' '))).unwrap();
}

/// Lays a second cable from a machine, `eth1`, to a device of another one; their numbers are 1 and 2.
pub(crate) fn lay_cable<'net>(
    machine: &'net Namespace,
    other: (&'net Namespace, &str),
) -> [Link<'net>; 2] {
    let (near, far) = Veth::between((machine, "eth1"), other)
        .mtu(1600)
        .create()
        .unwrap();
    for (link, end) in [(&near, 1), (&far, 2)] {
        link.disable_tx_offloads().unwrap();
        let [v4, v6] = second(end);
        ip(
            link.namespace(),
            &format!("address add {v4}/24 dev {}", link.name()),
        );
        ip(
            link.namespace(),
            &format!("address add {v6}/64 dev {} nodad", link.name()),
        );
    }
    [near, far]
}

/// The file for machines with two uplinks.
pub(crate) fn with_second_uplink(config: &str) -> String {
    config.replace(
        "{ name: eth0, mode: native }",
        "{ name: eth0, mode: native }, { name: eth1, mode: native }",
    )
}

fn over_all_pods(modes: &[Mode]) -> Vec<PodService<'static>> {
    let services = Service::all(modes).into_iter();
    services.map(PodService::over_all).collect()
}

fn every_pod_answers(net: &Topology, services: &[PodService<'_>]) {
    let every: BTreeSet<String> = net.pods().map(|pod| pod.label().to_owned()).collect();
    for PodService { service, .. } in services {
        let flows = Flow::open_many(&net.clients()[0], &[*service], FLOWS);
        let answered: BTreeSet<String> = flows.into_iter().map(|flow| flow.node).collect();
        assert_eq!(answered, every, "{service}");
    }
}

#[test]
fn replies_leave_by_another_uplink_than_questions_come_in() {
    let net = Topology::builder().nodes(1).pods(2).build().unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let [uplink, far] = lay_cable(node.namespace(), (net.router(), "second"));
    far.attach_pass().unwrap();
    for gateway in second(2) {
        let by_second = format!("route replace default via {gateway} dev eth1");
        ip(node.namespace(), &by_second);
    }

    let services = over_all_pods(&MODES);
    let _echoes = serve_on_pods(&net, &services);
    let config = cluster_config(&net, &services);
    let _node = Agent::start(node, &with_second_uplink(&config));
    let _edge = Agent::start(edge, &config);
    let before = uplink.stats().unwrap().tx_packets;
    every_pod_answers(&net, &services);
    let sent = uplink.stats().unwrap().tx_packets - before;
    assert!(sent > (FLOWS * services.len()) as u64, "{sent} replies");
}

#[test]
fn backends_lie_behind_several_uplinks_of_the_edge() {
    let net = Topology::builder().pods(1).build().unwrap();
    let edge = &net.edges()[0];
    let [near, far] = net.nodes() else {
        panic!("two nodes");
    };
    lay_cable(edge.namespace(), (far.namespace(), "eth1"));

    let services = over_all_pods(&MODES);
    let _echoes = serve_on_pods(&net, &services);
    let mut config = cluster_config(&net, &services);
    for (old, new) in [far.v4(), far.v6()].into_iter().zip(second(2)) {
        config = config.replace(&format!("\"{old}\""), &format!("\"{new}\""));
    }
    let [v4, v6] = second(1);
    config = config.replace(
        "trusted_edges: [",
        &format!("trusted_edges: [\"{v4}\", \"{v6}\", "),
    );
    let _near = Agent::start(near, &config);
    let config = with_second_uplink(&config);
    let far = Agent::start(far, &config);
    let _edge = Agent::start(edge, &config);
    every_pod_answers(&net, &services);
    assert!(Cluster::packets(&far, "pass", "delivered") > 0);
}

/// The pod sees the other's own address, and the reply leaves by the other's device, not by an uplink; to itself
/// it is a client at the VIP.
#[test]
fn pods_are_clients_of_pods_beside_them() {
    let net = Topology::builder().pods(2).build().unwrap();
    for node in net.nodes() {
        output(node.namespace().command("nft").args(["flush", "ruleset"])).unwrap();
    }
    let [server, neighbour] = net.nodes()[0].pods() else {
        panic!("two pods");
    };
    let distant = &net.nodes()[1].pods()[0];
    let services: Vec<PodService<'_>> = over_all_pods(&MODES)
        .into_iter()
        .map(|service| PodService {
            only: Some(server),
            ..service
        })
        .collect();
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    let status = cluster.nodes[0].json(&["status"]);
    assert!(has_egress_program(&status, neighbour.label()), "{status}");

    let translated = |node: &Agent<'_>| Cluster::packets(node, "pass", "translated");
    for client in [neighbour, distant, server] {
        for PodService { service, .. } in &services {
            let before = translated(&cluster.nodes[0]);
            ask(client, service, server);
            assert!(translated(&cluster.nodes[0]) > before, "{service}");
        }
    }

    // A pod that nobody tells of may be a client.
    let cable = "ip link add newcomer type veth peer name newcomer-eth0";
    let mut shell = net.nodes()[0].namespace().command("sh");
    output(shell.args(["-c", cable])).unwrap();
    cluster.nodes[0].wait_for_answer("the newcomer's device is seen to", &["status"], |status| {
        has_egress_program(status, "newcomer")
    });
}

/// Tells whether `status` shows the egress program on a device.
fn has_egress_program(status: &Value, device: &str) -> bool {
    let rows = status["egress"].as_array().unwrap();
    rows.iter()
        .any(|row| row["device"] == *device && row["mode"].is_string())
}

fn ask(client: &Machine, service: &Service, server: &Machine) {
    let mut flow = Flow::open(client, service)
        .unwrap_or_else(|error| panic!("{} to {service}: {error}", client.label()));
    // More than a segment, for TCP; within the MTU, for UDP.
    let bytes = "x".repeat(1400);
    for _ in 0..3 {
        assert_eq!(flow.ask_with(&bytes).unwrap(), server.label(), "{service}");
    }
}
