//! An upgrade from an earlier release with another table layout, under traffic: the agents of `GUIDEWAY_FORMER`, a path,
//! are replaced by those of this build. `make upgrade` builds the former program and runs this.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

#[path = "../e2e/support/mod.rs"]
mod support;

use std::net::{IpAddr, SocketAddr};

use lab::{Guideway, Machine, Signal, Topology, vip_v4, vip_v6};
use support::{
    Agent, Echo, Flow, Mode, Numbered, PodService, Protocol, Quiet, Service, Traffic,
    cluster_config, edge_config, nat_config, node_config, serve_on_pods,
};

/// Questions on every flow before, between and after the upgrades.
const ROUNDS: u64 = 20;
/// Flows of each service.
const FLOWS: usize = 4;
/// Datagrams with numbers before and after an upgrade, at the least.
const NUMBERS: u64 = 5000;

fn former() -> Guideway {
    let path = std::env::var_os("GUIDEWAY_FORMER");
    Guideway::new(path.expect("GUIDEWAY_FORMER names the program of an earlier release"))
}

fn start<'net>(machine: &'net Machine, config: &str) -> Agent<'net> {
    let mut agent = Agent::launch_of(&former(), machine, config);
    agent.wait_until_ready();
    agent
}

/// Replaces an agent by one of this build, which finds the pins of another layout and leaves none of them. Before that, the
/// new program says that connections go on.
fn upgrade(agent: &mut Agent<'_>) {
    let (tables, goes_on) = agent.check_upgrade();
    assert!(goes_on, "{tables:?}");
    agent.signal(Signal::SIGTERM);
    agent.wait_for_end();
    let log = agent.start_over_former_tables();
    assert!(log.contains("pins of former tables"), "{log}");
}

#[test]
fn flows_to_machines_that_have_the_vip_go_on() {
    let net = Topology::builder().build().unwrap();
    let services = Service::all(&[Mode::L2dsr, Mode::IpipV4, Mode::IpipV6]);
    let echo = |node| Echo::start(node, &services);
    let _echoes: Vec<Echo> = net.nodes().iter().map(echo).collect();
    let (edge, client) = (&net.edges()[0], &net.clients()[0]);
    let mut edge = start(edge, &edge_config(&services, net.nodes()));
    let nodes = net.nodes().iter();
    let mut nodes: Vec<_> = nodes
        .map(|node| start(node, &node_config(net.edges())))
        .collect();
    let traffic = Traffic::over(Flow::open_many(client, &services, FLOWS));
    let numbered = Numbered::over(client, &services);
    traffic.wait_for_rounds(ROUNDS);
    numbered.wait_for_more(NUMBERS);
    for agent in nodes.iter_mut().chain([&mut edge]) {
        upgrade(agent);
        traffic.wait_for_rounds(ROUNDS);
        numbered.wait_for_more(NUMBERS);
    }
    Flow::open_many(client, &services, 1);
    traffic.stop_unharmed();
    numbered.stop_complete();
}

#[test]
fn flows_to_pods_go_on_and_pods_may_speak_first() {
    let net = Topology::builder().pods(1).build().unwrap();
    let services = Service::all(&[Mode::L2dsr, Mode::IpipV4]).into_iter();
    let services: Vec<_> = services.map(PodService::over_all).collect();
    let _echoes = serve_on_pods(&net, &services);
    let plain: Vec<Service> = services.iter().map(|one| one.service).collect();
    let client = &net.clients()[0];
    // A service of one pod, which says nothing until the node is another program's.
    let pod = &net.nodes()[0].pods()[0];
    let silent = PodService {
        service: Service {
            address: SocketAddr::new(vip_v4(200).into(), 25),
            protocol: Protocol::Tcp,
            mode: Mode::IpipV4,
        },
        target_port: 2525,
        only: Some(pod),
        ..services[0]
    };
    let config = cluster_config(&net, &[services.clone(), vec![silent]].concat());
    let mut edge = start(&net.edges()[0], &config);
    let nodes = net.nodes().iter();
    let mut nodes: Vec<_> = nodes.map(|node| start(node, &config)).collect();

    let quiet = Quiet::open(client, pod, (pod.v4(), 2525).into(), silent.service.address);
    let traffic = Traffic::over(Flow::open_many(client, &plain, FLOWS));
    traffic.wait_for_rounds(ROUNDS);
    for agent in nodes.iter_mut().chain([&mut edge]) {
        upgrade(agent);
        traffic.wait_for_rounds(ROUNDS);
    }
    quiet.server_speaks();
    Flow::open_many(client, &plain, 1);
    traffic.stop_unharmed();
}

#[test]
fn flows_of_nat_mode_go_on_both_ways() {
    let net = Topology::builder()
        .nodes(0)
        .routed_nodes(1)
        .build()
        .unwrap();
    let (client, edge, host) = (&net.clients()[0], &net.edges()[0], &net.nodes()[0]);
    let vips: [IpAddr; 2] = [vip_v4(1).into(), vip_v6(1).into()];
    let ends = |vip: IpAddr, port, at_host| {
        let host = SocketAddr::new(host.address_like(vip), at_host);
        (SocketAddr::new(vip, port), host)
    };
    let protocols = [Protocol::Tcp, Protocol::Udp];
    let echoed = vips.map(|vip| ends(vip, 80, 8080));
    let silent = ends(vips[0], 25, 2525);
    let all = echoed.into_iter().chain([silent]);
    let mut agent = start(edge, &nat_config(&protocols, all));
    let targets = echoed
        .iter()
        .flat_map(|(_, host)| protocols.map(|protocol| (*host, protocol)));
    let _echo = Echo::serve(host, targets.collect::<Vec<_>>());

    let quiet = Quiet::open(client, host, silent.1, silent.0);
    let services = echoed.iter().flat_map(|(vip, _)| {
        protocols.map(|protocol| Service {
            address: *vip,
            protocol,
            mode: Mode::IpipV4,
        })
    });
    let services: Vec<Service> = services.collect();
    let traffic = Traffic::over(Flow::open_many(client, &services, FLOWS));
    traffic.wait_for_rounds(ROUNDS);
    upgrade(&mut agent);
    traffic.wait_for_rounds(ROUNDS);
    quiet.server_speaks();
    Flow::open_many(client, &services, 1);
    traffic.stop_unharmed();
}
