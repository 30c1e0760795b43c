//! Faults that an operator makes are found by `guideway check`, `drops` and `status`, and end by the remedy that
//! these name. Those of a cluster are planted in `tests/kubernetes`.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lab::{Machine, Namespace, Offload, Topology, output, vip_v4, wait_for, wait_until};

use crate::support::faults::{
    Fault, PARTIAL_CHECKSUMS, PEER_WITHOUT_XDP, SMALL_MTU, STRICT_REVERSE_PATHS, TWO_SEEDS,
};
use crate::support::{
    Agent, Cluster, Flow, Mode, PodService, Protocol, Service, TIMEOUT, cluster_config,
    edge_config, node_config, serve_on_pods,
};
use crate::uplinks::{lay_cable, second, with_second_uplink};

/// How the page about troubleshooting has packets counted that a machine refuses.
const BAD_CHECKSUMS: &str = "nstat -az TcpInCsumErrors UdpInCsumErrors";
/// How long to wait for answers that must not come.
const SHORT: Duration = Duration::from_millis(500);

/// A service by IPIP, IPv4.
fn service(protocol: Protocol) -> Service {
    Service {
        address: SocketAddr::new(vip_v4(1).into(), 80),
        protocol,
        mode: Mode::IpipV4,
    }
}

/// Waits until the command that says it is found by this output of it on a machine.
fn wait_until_said(fault: &Fault, by: &str, machine: &Machine) {
    let arguments = by.strip_prefix("guideway ").unwrap();
    let mut command = machine.namespace().command(env!("CARGO_BIN_EXE_guideway"));
    command.arg(arguments);
    if arguments == "check" {
        let file = Path::new(Namespace::FILES).join("guideway.yaml");
        command.arg("--config").arg(file);
    } else {
        command.arg("--socket").arg(lab::Guideway::socket());
    }
    wait_for(&format!("{}: {by} says it", fault.name), TIMEOUT, || {
        // `check` exits with 1 where something fails.
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        fault.is_said(by, &said).then_some(()).ok_or(said)
    })
    .unwrap();
}

fn nobody_answers(net: &Topology, service: &Service) {
    let flow = Flow::open_within(&net.clients()[0], service, SHORT);
    assert!(flow.is_err(), "{flow:?}");
}

#[test]
fn peer_without_xdp() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let edge = &net.edges()[0];
    let udp = service(Protocol::Udp);
    let services = [PodService::over_all(udp)];
    let _echoes = serve_on_pods(&net, &services);
    let _agents = Cluster::start(&net, &services);
    let far_end = net.far_end(edge).unwrap();
    far_end.detach_xdp().unwrap();
    nobody_answers(&net, &udp);
    wait_until_said(&PEER_WITHOUT_XDP, "guideway drops", edge);
    wait_until_said(&PEER_WITHOUT_XDP, "guideway check", edge);

    far_end.attach_pass().unwrap();
    Flow::open(&net.clients()[0], &udp).unwrap();
}

#[test]
fn partial_checksums() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let (edge, client) = (&net.edges()[0], &net.clients()[0]);
    let tcp = service(Protocol::Tcp);
    let services = [PodService::over_all(tcp)];
    let _echoes = serve_on_pods(&net, &services);
    let _agents = Cluster::start(&net, &services);
    // Router and switch hand on what they are given, down to the edge's veth.
    let ends = [
        client.link().unwrap(),
        net.router().link("fabric").unwrap(),
        net.far_end(edge).unwrap(),
    ];
    for end in &ends {
        end.set_offload(Offload::Tx, true).unwrap();
    }
    nobody_answers(&net, &tcp);
    wait_until_said(&PARTIAL_CHECKSUMS, "guideway check", edge);
    let pod = net.pods().next().unwrap();
    let words: Vec<&str> = BAD_CHECKSUMS.split(' ').collect();
    let refused = |line: &str| {
        let mut words = line.split_whitespace();
        words.next() == Some("TcpInCsumErrors") && words.next() != Some("0")
    };
    wait_for("the pod counts what it refuses", TIMEOUT, || {
        let counted = output(pod.namespace().command(words[0]).args(&words[1..])).unwrap();
        let is_counted = counted.lines().any(refused);
        is_counted.then_some(()).ok_or(counted)
    })
    .unwrap();

    client
        .link()
        .unwrap()
        .set_offload(Offload::Tx, false)
        .unwrap();
    Flow::open(client, &tcp).unwrap();
}

#[test]
fn mtu_too_small() {
    let net = Topology::builder()
        .fabric_mtu(1500)
        .nodes(1)
        .pods(1)
        .build()
        .unwrap();
    let edge = &net.edges()[0];
    let udp = service(Protocol::Udp);
    let services = [PodService::over_all(udp)];
    let _echoes = serve_on_pods(&net, &services);
    let _agents = Cluster::start(&net, &services);
    let client = &net.clients()[0];
    // Datagrams of which the kernel lets routers cut pieces.
    client
        .namespace()
        .set_sysctl("net/ipv4/ip_no_pmtu_disc", "1")
        .unwrap();
    let open = || Flow::open_within(client, &udp, SHORT);
    let mut flow = wait_for("small datagrams get through", TIMEOUT, open).unwrap();
    let large = "x".repeat(1460);
    flow.ask_with(&large).unwrap_err();
    wait_until_said(&SMALL_MTU, "guideway check", edge);
    wait_until_said(&SMALL_MTU, "guideway drops", edge);

    let wider = [
        edge.link().unwrap(),
        net.far_end(edge).unwrap(),
        net.nodes()[0].link().unwrap(),
        net.far_end(&net.nodes()[0]).unwrap(),
        net.switch().link("br0").unwrap(),
    ];
    for link in &wider {
        link.set_mtu(1540).unwrap();
    }
    wait_until("large datagrams get through", TIMEOUT, || {
        Flow::open_within(client, &udp, SHORT).is_ok_and(|mut flow| flow.ask_with(&large).is_ok())
    })
    .unwrap();
}

#[test]
fn strict_reverse_path_filter() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let [_near, far] = lay_cable(node.namespace(), (net.router(), "second"));
    far.attach_pass().unwrap();
    let gateway = second(2)[0].to_string();
    let by_second = [
        "route", "replace", "default", "via", &gateway, "dev", "eth1",
    ];
    output(node.namespace().command("ip").args(by_second)).unwrap();
    let tcp = service(Protocol::Tcp);
    let services = [PodService::over_all(tcp)];
    let _echoes = serve_on_pods(&net, &services);
    let config = cluster_config(&net, &services);
    let _node = Agent::start(node, &with_second_uplink(&config));
    let _edge = Agent::start(edge, &config);
    let filter = |interface: &str, value: &str| {
        let path = format!("net/ipv4/conf/{interface}/rp_filter");
        node.namespace().set_sysctl(&path, value).unwrap();
    };
    filter("all", "1");
    nobody_answers(&net, &tcp);
    wait_until_said(&STRICT_REVERSE_PATHS, "guideway check", node);

    filter("eth0", "2");
    Flow::open(&net.clients()[0], &tcp).unwrap();
}

#[test]
fn two_seeds() {
    let net = Topology::builder().edges(2).nodes(2).build().unwrap();
    let udp = service(Protocol::Udp);
    let config = edge_config(&[udp], net.nodes());
    let _nodes: Vec<Agent<'_>> = (net.nodes().iter())
        .map(|node| Agent::start(node, &node_config(net.edges())))
        .collect();
    let [first, second] = [
        Agent::start(&net.edges()[0], &config),
        Agent::start(&net.edges()[1], &format!("hash_seed: 7\n{config}")),
    ];
    for edge in [&first, &second] {
        wait_until_said(&TWO_SEEDS, "guideway status", edge.machine());
    }
    let fingerprint = |edge: &Agent<'_>| {
        let seed = &edge.json(&["status"])["hash_seed"];
        seed["fingerprint"].as_str().unwrap().to_owned()
    };
    assert_ne!(fingerprint(&first), fingerprint(&second));

    drop(second);
    let again = Agent::start(&net.edges()[1], &config);
    assert_eq!(fingerprint(&first), fingerprint(&again));
}
