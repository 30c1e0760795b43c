//! Agents end and start again under traffic, and no flow notices.

use lab::{Signal, Topology};

use crate::support::{Agent, Echo, Flow, Mode, Service, Traffic, edge_config, node_config};

/// Questions on every flow before, between and after the events.
const ROUNDS: u64 = 20;

/// Restarts the edge's agent, then a node's, each ended by `signal`.
fn no_flow_notices(signal: Signal) {
    let net = Topology::builder().build().unwrap();
    let services = Service::all(&[Mode::L2dsr, Mode::IpipV4, Mode::IpipV6]);
    let _echoes: Vec<Echo> = net
        .nodes()
        .iter()
        .map(|node| Echo::start(node, &services))
        .collect();
    let (edge, client) = (&net.edges()[0], &net.clients()[0]);
    let mut agents = vec![Agent::start(edge, &edge_config(&services, net.nodes()))];
    agents.extend(
        net.nodes()
            .iter()
            .map(|node| Agent::start(node, &node_config([edge]))),
    );

    let traffic = Traffic::over(Flow::open_many(client, &services, 4));
    traffic.wait_for_rounds(ROUNDS);
    let before = packets(&agents[0]);
    for agent in &mut agents[..2] {
        agent.signal(signal);
        let code = agent.wait_for_end();
        assert_eq!(code, (signal == Signal::SIGTERM).then_some(0));
        traffic.wait_for_rounds(ROUNDS);
        // New flows, too, while nobody is at home.
        Flow::open_many(client, &services, 1);
        agent.start_again();
        traffic.wait_for_rounds(ROUNDS);
    }
    Flow::open_many(client, &services, 1);
    traffic.stop_unharmed();
    let least = before + ROUNDS * services.len() as u64;
    assert!(packets(&agents[0]) >= least, "counters went on");
    let log = agents[0].process().stderr();
    assert!(log.contains("adopted=true"), "{log}");
}

/// Packets that an edge has forwarded.
fn packets(edge: &Agent<'_>) -> u64 {
    let services = edge.json(&["services"]);
    let services = services.as_array().unwrap().iter();
    services.map(|row| row["packets"].as_u64().unwrap()).sum()
}

#[test]
fn restart_after_sigterm_breaks_no_flow() {
    no_flow_notices(Signal::SIGTERM);
}

#[test]
fn restart_after_sigkill_breaks_no_flow() {
    no_flow_notices(Signal::SIGKILL);
}
