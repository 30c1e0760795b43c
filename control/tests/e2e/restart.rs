//! Agents end and start again under traffic: no flow notices, and no datagram is lost.

use std::net::SocketAddr;

use lab::{Signal, Topology, output, vip_v4, wait_until};

use crate::support::{
    Agent, Cluster, Echo, Flow, Mode, Numbered, PodService, Protocol, Quiet, Service, TIMEOUT,
    Traffic, edge_config, node_config, serve_on_pods,
};

/// Questions on every flow before, between and after the events.
const ROUNDS: u64 = 20;
/// Datagrams with numbers before, between and after the events, at the least.
const NUMBERS: u64 = 5000;

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
    agents.extend(Agent::start_all(net.nodes(), &node_config([edge])));

    let traffic = Traffic::over(Flow::open_many(client, &services, 4));
    let numbered = Numbered::over(client, &services);
    let pass = || {
        traffic.wait_for_rounds(ROUNDS);
        numbered.wait_for_more(NUMBERS);
    };
    pass();
    let before = packets(&agents[0]);
    for agent in &mut agents[..2] {
        agent.signal(signal);
        let code = agent.wait_for_end();
        assert_eq!(code, (signal == Signal::SIGTERM).then_some(0));
        pass();
        // New flows, too, while nobody is at home.
        Flow::open_many(client, &services, 1);
        agent.start_again();
        pass();
    }
    Flow::open_many(client, &services, 1);
    traffic.stop_unharmed();
    numbered.stop_complete();
    let least = before + ROUNDS * services.len() as u64;
    assert!(packets(&agents[0]) >= least, "counters went on");
    let log = agents[0].process().stderr();
    assert!(log.contains("adopted=true"), "{log}");
}

/// A layout version that nothing is known of.
const UNKNOWN: u32 = 0;
/// The layout version of which this one adopts the flows to pods, and no tables of services.
const BEFORE: u32 = 4;

/// Makes the pins of an agent that has ended those of another layout version.
fn age_pins(agent: &Agent<'_>, version: u32) {
    let rename = format!("cd /sys/fs/bpf/guideway && mv v[1-9]* v{version}");
    let machine = agent.machine().namespace();
    output(machine.command("sh").args(["-c", &rename])).unwrap();
}

/// Ends agents, lets their pins look like those of another version, and starts the agents again under traffic.
fn upgrade<'agents, 'net: 'agents>(
    agents: impl IntoIterator<Item = &'agents mut Agent<'net>>,
    version: u32,
    traffic: &Traffic,
) {
    for agent in agents {
        agent.signal(Signal::SIGTERM);
        agent.wait_for_end();
        age_pins(agent, version);
        traffic.wait_for_rounds(ROUNDS);
        agent.start_again();
        traffic.wait_for_rounds(ROUNDS);

        let log = agent.process().stderr();
        assert!(log.contains("pins of former tables"), "{log}");
        assert!(log.contains("adopted=true"), "{log}");
        assert!(!log.contains("adopted=false"), "{log}");
        let machine = agent.machine().namespace();
        let left = output(machine.command("ls").arg("/sys/fs/bpf/guideway")).unwrap();
        assert_eq!(left.lines().count(), 1, "{left}");
    }
}

#[test]
fn start_over_pins_of_another_layout_breaks_no_flow() {
    let net = Topology::builder().build().unwrap();
    let services = Service::all(&[Mode::L2dsr, Mode::IpipV4, Mode::IpipV6]);
    let _echoes: Vec<Echo> = net
        .nodes()
        .iter()
        .map(|node| Echo::start(node, &services))
        .collect();
    let (edge, client) = (&net.edges()[0], &net.clients()[0]);
    let mut edge = Agent::start(edge, &edge_config(&services, net.nodes()));
    let mut nodes: Vec<Agent<'_>> = Agent::start_all(net.nodes(), &node_config(net.edges()));
    let traffic = Traffic::over(Flow::open_many(client, &services, 4));
    let numbered = Numbered::over(client, &services);
    numbered.wait_for_more(NUMBERS);
    upgrade([&mut edge, &mut nodes[0]], UNKNOWN, &traffic);
    numbered.wait_for_more(NUMBERS);
    Flow::open_many(client, &services, 1);
    traffic.stop_unharmed();
    numbered.stop_complete();
}

#[test]
fn start_over_pins_of_another_layout_goes_on_announcing() {
    const BEGINS: &str = "announced from here";
    let net = Topology::builder().nodes(1).build().unwrap();
    let services = Service::all(&[Mode::L2dsr]);
    let config = edge_config(&services, net.nodes()) + "announce: { interfaces: [eth0] }\n";
    let mut agent = Agent::start(&net.edges()[0], &config);
    let says = |agent: &mut Agent<'_>, text: &str| {
        wait_until(text, TIMEOUT, || agent.process().stderr().contains(text)).unwrap();
        agent.process().stderr()
    };
    says(&mut agent, BEGINS);
    agent.signal(Signal::SIGTERM);
    agent.wait_for_end();
    age_pins(&agent, UNKNOWN);
    agent.start_again();
    // The last line of a start.
    let log = says(&mut agent, "the dataplane serves");
    assert!(log.contains("pins of former tables"), "{log}");
    assert!(!log.contains(BEGINS), "{log}");
}

#[test]
fn start_over_pins_of_another_layout_breaks_no_connection_to_pods() {
    let net = Topology::builder().pods(1).build().unwrap();
    // The reply to what the old program has delivered finds no flow in the new one's tables: a
    // segment is sent again, a datagram is not.
    let services: Vec<PodService<'_>> = Service::all(&[Mode::L2dsr, Mode::IpipV4])
        .into_iter()
        .filter(|service| service.protocol == Protocol::Tcp)
        .map(PodService::over_all)
        .collect();
    let _echoes = serve_on_pods(&net, &services);
    let mut cluster = Cluster::start(&net, &services);
    let plain: Vec<Service> = services.iter().map(|one| one.service).collect();
    let client = &net.clients()[0];
    let traffic = Traffic::over(Flow::open_many(client, &plain, 4));
    upgrade(
        [&mut cluster.edge, &mut cluster.nodes[0]],
        UNKNOWN,
        &traffic,
    );
    Flow::open_many(client, &plain, 1);
    traffic.stop_unharmed();
}

#[test]
fn start_over_pins_of_the_version_before_adopts_flows_to_pods() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let services = Service::all(&[Mode::L2dsr, Mode::IpipV4]).into_iter();
    let services: Vec<_> = services.map(PodService::over_all).collect();
    let _echoes = serve_on_pods(&net, &services);
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
    let mut cluster = Cluster::start(&net, &[services.clone(), vec![silent]].concat());
    let plain: Vec<Service> = services.iter().map(|one| one.service).collect();
    let client = &net.clients()[0];
    let end = SocketAddr::new(pod.v4(), 2525);
    let quiet = Quiet::open(client, pod, end, silent.service.address);
    let traffic = Traffic::over(Flow::open_many(client, &plain, 4));
    upgrade([&mut cluster.edge, &mut cluster.nodes[0]], BEFORE, &traffic);
    quiet.server_speaks();
    let log = cluster.nodes[0].process().stderr();
    assert!(log.contains("adopted=\"FLOWS "), "{log}");
    Flow::open_many(client, &plain, 1);
    traffic.stop_unharmed();
}

#[test]
fn check_of_an_upgrade_tells_what_becomes_of_the_tables() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let services = Service::all(&[Mode::L2dsr]);
    let config = edge_config(&services, net.nodes());
    let mut agent = Agent::start(&net.edges()[0], &config);
    let (tables, goes_on) = agent.check_upgrade();
    assert!(
        goes_on && tables.values().all(|becomes| becomes == "adopted"),
        "{tables:?}"
    );

    agent.signal(Signal::SIGTERM);
    agent.wait_for_end();
    age_pins(&agent, BEFORE);
    let (tables, goes_on) = agent.check_upgrade();
    assert!(!goes_on, "past owners are lost: {tables:?}");
    // That version had none.
    const REMOVE: &str = "cd /sys/fs/bpf/guideway/v4/maps && rm PASTS HISTORY PINS PINS_YOUNG";
    let machine = agent.machine().namespace();
    output(machine.command("sh").args(["-c", REMOVE])).unwrap();
    let (tables, goes_on) = agent.check_upgrade();
    assert!(goes_on, "{tables:?}");
    for (table, becomes) in [
        ("FLOWS", "adopted"),
        ("NAT_REVERSE", "converted"),
        ("LUT", "made anew"),
        ("REASONS", "made anew"),
    ] {
        assert_eq!(tables[table], becomes, "{table}");
    }
    age_pins(&agent, UNKNOWN);
    let (tables, goes_on) = agent.check_upgrade();
    assert!(!goes_on && tables["FLOWS"] == "made anew", "{tables:?}");
}

/// Packets that an edge has forwarded.
pub(crate) fn packets(edge: &Agent<'_>) -> u64 {
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
