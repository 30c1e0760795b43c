//! Agents start again with other sizes of tables under traffic, and no flow notices.

use std::net::{IpAddr, SocketAddr};

use lab::{Signal, Topology, vip_v4, vip_v6};

use crate::restart::packets;
use crate::support::{
    Agent, Echo, Flow, Mode, PodService, Protocol, Service, Traffic, cluster_config, edge_config,
    nat_config, serve_on_pods,
};

/// Questions on every flow before, between and after the changes.
const ROUNDS: u64 = 20;
/// Flows of each service.
const FLOWS: usize = 4;
const SIZES: &str = "tables: { lut_arena_mib: 1, services: 100, pods: 300, backends: 300, next_hops: 200, \
                     vips: 200, flows: 9000, nat_flows: 9000 }";
/// More of some things, fewer of others.
const OTHER_SIZES: &str = "tables: { lut_arena_mib: 2, services: 200, pods: 200, backends: 400, next_hops: 100, \
                           vips: 300, flows: 5000, nat_flows: 20000 }";

/// The same file with other sizes.
fn resized(config: &str, sizes: &str) -> String {
    let lines = config
        .lines()
        .map(|line| match line.starts_with("tables:") {
            true => sizes,
            false => line,
        });
    lines.map(|line| line.to_owned() + "\n").collect()
}

/// Ends an agent, changes its file, and starts it again.
fn restart_with(agent: &mut Agent<'_>, config: &str) {
    agent.signal(Signal::SIGTERM);
    agent.wait_for_end();
    agent.write_config(config);
    let log = agent.start_over_former_tables();
    assert!(log.contains("a table gets another size"), "{log}");
    assert!(log.contains("adopted=true"), "{log}");
}

/// Room for services, by the agent's answer.
fn room(agent: &Agent<'_>) -> u64 {
    let status = agent.json(&["status"]);
    let mut tables = status["tables"].as_array().unwrap().iter();
    let services = tables.find(|table| table["name"] == "services").unwrap();
    services["capacity"].as_u64().unwrap()
}

/// Gives an agent other sizes and then its own again, under traffic.
fn there_and_back(agent: &mut Agent<'_>, config: &str, traffic: &Traffic) {
    let before = room(agent);
    restart_with(agent, &resized(config, OTHER_SIZES));
    assert!(room(agent) > before);
    traffic.wait_for_rounds(ROUNDS);
    restart_with(agent, config);
    assert_eq!(room(agent), before);
    traffic.wait_for_rounds(ROUNDS);
}

#[test]
fn flows_to_pods_and_counters_go_on() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let services = Service::all(&[Mode::IpipV4]).into_iter();
    let services: Vec<_> = services.map(PodService::over_all).collect();
    let _echoes = serve_on_pods(&net, &services);
    let plain: Vec<Service> = services.iter().map(|one| one.service).collect();
    let config = resized(&cluster_config(&net, &services), SIZES);
    let mut edge = Agent::start(&net.edges()[0], &config);
    let mut node = Agent::start(&net.nodes()[0], &config);
    let client = &net.clients()[0];

    let traffic = Traffic::over(Flow::open_many(client, &plain, FLOWS));
    traffic.wait_for_rounds(ROUNDS);
    let before = packets(&edge);
    assert!(before > 0);
    restart_with(&mut edge, &resized(&config, OTHER_SIZES));
    traffic.wait_for_rounds(ROUNDS);
    there_and_back(&mut node, &config, &traffic);
    let asked = ROUNDS * (plain.len() * FLOWS) as u64;
    assert!(packets(&edge) >= before + asked, "counters go on");
    Flow::open_many(client, &plain, 1);
    traffic.stop_unharmed();
}

#[test]
fn flows_of_nat_mode_go_on() {
    let net = Topology::builder().nodes(0).routed_nodes(1);
    let net = net.build().unwrap();
    let (client, host) = (&net.clients()[0], &net.nodes()[0]);
    let protocols = [Protocol::Tcp, Protocol::Udp];
    let ends = [IpAddr::from(vip_v4(1)), vip_v6(1).into()].map(|vip| {
        let host = SocketAddr::new(host.address_like(vip), 8080);
        (SocketAddr::new(vip, 80), host)
    });
    let config = resized(&nat_config(&protocols, ends), SIZES);
    let mut edge = Agent::start(&net.edges()[0], &config);
    let of_protocols = |protocol: Protocol| ends.map(|(vip, host)| (vip, host, protocol));
    let all = protocols.into_iter().flat_map(of_protocols);
    let targets = all.clone().map(|(_, host, protocol)| (host, protocol));
    let targets: Vec<_> = targets.collect();
    let _echo = Echo::serve(host, targets);
    let services = all.map(|(address, _, protocol)| Service {
        address,
        protocol,
        mode: Mode::IpipV4,
    });
    let services: Vec<Service> = services.collect();

    let traffic = Traffic::over(Flow::open_many(client, &services, FLOWS));
    traffic.wait_for_rounds(ROUNDS);
    there_and_back(&mut edge, &config, &traffic);
    Flow::open_many(client, &services, 1);
    traffic.stop_unharmed();
}

#[test]
fn table_smaller_than_what_is_in_it_is_refused_by_name() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let services = Service::all(&[Mode::L2dsr]);
    let _echo = Echo::start(&net.nodes()[0], &services);
    let config = edge_config(&services, net.nodes());
    let (machine, client) = (&net.edges()[0], &net.clients()[0]);
    let mut edge = Agent::start(machine, &config);
    let traffic = Traffic::over(Flow::open_many(client, &services, 1));
    edge.signal(Signal::SIGTERM);
    edge.wait_for_end();

    // The file alone would fit.
    let fewer = edge_config(&services[..1], net.nodes());
    let fewer = resized(&fewer, "tables: { services: 1 }");
    let mut refused = Agent::launch(machine, &fewer);
    assert_eq!(refused.wait_for_end(), Some(1));
    let text = refused.process().stderr();
    let used = services.len();
    let said = format!("tables.services: {used} entries are in use, 1 are asked for");
    assert!(text.contains(&said), "{text}");
    traffic.wait_for_rounds(ROUNDS);
    edge.write_config(&config);
    edge.start_again();
    let log = edge.process().stderr();
    assert!(!log.contains("a table gets another size"), "{log}");
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
}
