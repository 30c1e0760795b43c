//! The commands tell what the datapath does.

use std::time::Duration;

use lab::{Machine, Signal, Topology};
use serde_json::Value;

use crate::support::{Agent, Echo, Flow, Mode, Protocol, Service, edge_config, node_config};

const MODES: [Mode; 3] = [Mode::L2dsr, Mode::IpipV4, Mode::IpipV6];
const SHORT: Duration = Duration::from_millis(300);

/// Starts servers and agents on two nodes and an edge.
/// Starts everything; no node gets any echo, so that what it takes off its outer header is the client's.
fn start<'net>(
    net: &'net Topology,
    services: &[Service],
) -> (Agent<'net>, Vec<Agent<'net>>, Vec<Echo>) {
    let (edge, nodes) = (&net.edges()[0], net.nodes());
    let echoes = nodes
        .iter()
        .map(|node| Echo::start(node, services))
        .collect();
    let agents = nodes
        .iter()
        .map(|node| Agent::start(node, &node_config([edge])))
        .collect();
    let config = edge_config(services, nodes) + "node_health: off\n";
    (Agent::start(edge, &config), agents, echoes)
}

fn rows(answer: &Value) -> &[Value] {
    answer.as_array().unwrap()
}

#[test]
fn which_agrees_with_the_way_of_every_flow() {
    let net = Topology::builder().nodes(3).build().unwrap();
    let services = Service::all(&MODES);
    let (edge, _nodes, _echoes) = start(&net, &services);
    for flow in Flow::open_many(&net.clients()[0], &services, 12) {
        let (service, from) = (flow.service.to_string(), flow.client.to_string());
        let which = edge.json(&["which", "--service", &service, "--from", &from]);
        assert_eq!(which["action"], "forward", "{which}");
        let node = net.nodes().iter().find(|node| node.label() == flow.node);
        let backend = flow.service.backend(node.unwrap()).to_string();
        assert_eq!(which["choice"]["backend"], backend, "{which}");
    }
}

#[test]
fn counters_agree_with_the_traffic_everywhere() {
    const QUESTIONS: u64 = 50;
    let net = Topology::builder().build().unwrap();
    let services = Service::all(&[Mode::IpipV4]);
    let (edge, nodes, _echoes) = start(&net, &services);
    let udp = services
        .iter()
        .find(|one| one.protocol == Protocol::Udp)
        .unwrap();
    let mut flow = Flow::open(&net.clients()[0], udp).unwrap();
    for _ in 1..QUESTIONS {
        flow.ask().unwrap();
    }

    let answer = edge.json(&["services"]);
    let service = rows(&answer)
        .iter()
        .find(|row| row["service"] == udp.to_string())
        .unwrap();
    assert_eq!(service["packets"], QUESTIONS);
    assert_eq!(service["mode"], "ipip");
    assert_eq!(service["backends"], 2);

    let answer = edge.json(&["backends"]);
    let node = net
        .nodes()
        .iter()
        .find(|node| node.label() == flow.node)
        .unwrap();
    let of_node =
        |row: &&Value| row["service"] == udp.to_string() && row["backend"] == node.v4().to_string();
    let backend = rows(&answer).iter().find(of_node).unwrap();
    assert_eq!(backend["packets"], QUESTIONS);
    assert_eq!(backend["state"], "resolved");
    let slots = rows(&answer)
        .iter()
        .filter(|row| row["service"] == udp.to_string())
        .map(|row| row["slots"].as_u64().unwrap());
    assert_eq!(slots.sum::<u64>(), backend["table_size"].as_u64().unwrap());

    let at_node = nodes
        .iter()
        .find(|agent| agent.machine().label() == flow.node)
        .unwrap()
        .json(&["drops"]);
    let decapsulated = rows(&at_node)
        .iter()
        .find(|row| row["reason"] == "decapsulated");
    assert_eq!(decapsulated.unwrap()["packets"], QUESTIONS);

    let metrics = get(edge.machine(), "/metrics");
    let line = format!(
        "guideway_service_packets_total{{service=\"{}\",address=\"{}\",port=\"{}\",\
         protocol=\"udp\"}} {QUESTIONS}",
        service["name"].as_str().unwrap(),
        udp.address.ip(),
        udp.address.port()
    );
    assert!(metrics.lines().any(|other| other == line), "{metrics}");
    let line = format!(
        "guideway_backend_packets_total{{backend=\"{}\"}} {QUESTIONS}",
        node.v4()
    );
    assert!(metrics.lines().any(|other| other == line), "{metrics}");
    let attached = "guideway_interface_attached{interface=\"eth0\",mode=\"native\"} 1";
    assert!(metrics.contains(attached), "{metrics}");
    assert_eq!(get(edge.machine(), "/healthz"), "ok\n");
}

/// Gets a page of the agent's own listener.
fn get(machine: &Machine, path: &str) -> String {
    let url = format!("http://127.0.0.1:9750{path}");
    let mut curl = machine.namespace().command("curl");
    lab::output(curl.args(["-sSf", &url])).unwrap()
}

#[test]
fn drops_count_what_a_service_without_backends_refuses() {
    const DATAGRAMS: u64 = 3;
    let net = Topology::builder().nodes(1).build().unwrap();
    let services = Service::all(&[Mode::IpipV4]);
    let edge = Agent::start(&net.edges()[0], &edge_config(&services, []));
    let udp = services
        .iter()
        .find(|one| one.protocol == Protocol::Udp)
        .unwrap();
    for _ in 0..DATAGRAMS {
        Flow::open_within(&net.clients()[0], udp, SHORT).unwrap_err();
    }
    let answer = edge.json(&["drops"]);
    let refused = rows(&answer)
        .iter()
        .find(|row| row["reason"] == "port_unreachable" && row["action"] == "reply");
    assert_eq!(refused.unwrap()["packets"], DATAGRAMS);
    let which = edge.json(&[
        "which",
        "--service",
        &udp.to_string(),
        "--from",
        "10.0.0.2:4000",
    ]);
    assert_eq!(
        (&which["action"], &which["reason"]),
        (&"reply".into(), &"port_unreachable".into())
    );
}

#[test]
fn pages_for_people_name_what_there_is() {
    let net = Topology::builder().build().unwrap();
    let services = Service::all(&MODES);
    let (edge, _nodes, _echoes) = start(&net, &services);
    Flow::open_many(&net.clients()[0], &services, 1);

    let status = edge.page(&["status"]);
    assert!(
        status.contains("eth0") && status.contains("native"),
        "{status}"
    );
    let page = edge.page(&["services"]);
    for service in &services {
        assert!(
            page.contains(&service.to_string()),
            "{service} is not in\n{page}"
        );
    }
    let page = edge.page(&["backends"]);
    for node in net.nodes() {
        assert!(page.contains(&node.v6().to_string()), "{page}");
    }
    let page = edge.page(&["drops", "--all"]);
    assert!(page.contains("no_backend"), "{page}");
    let from = "10.0.0.2:4000";
    let page = edge.page(&[
        "which",
        "--service",
        &services[0].to_string(),
        "--from",
        from,
    ]);
    assert!(page.contains("forward") && page.contains("slot"), "{page}");
}

/// What `ip` shows of the machine's interface.
fn xdp(machine: &Machine) -> Value {
    let output = machine
        .namespace()
        .command("ip")
        .args(["-j", "link", "show", "dev", Machine::INTERFACE])
        .output()
        .unwrap();
    let links: Value = serde_json::from_slice(&output.stdout).unwrap();
    links[0]["xdp"].clone()
}

/// Names below the machine's bpffs, but for those that the kernel puts there.
fn pins(machine: &Machine) -> String {
    let output = machine
        .namespace()
        .command("find")
        .args(["/sys/fs/bpf", "-mindepth", "1", "!", "-name", "*.debug"])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn detach_ends_the_agent_and_leaves_nothing() {
    let net = Topology::builder().build().unwrap();
    let services = Service::all(&[Mode::L2dsr]);
    let (mut edge, _nodes, _echoes) = start(&net, &services);
    assert!(xdp(edge.machine()).is_object());
    assert_ne!(pins(edge.machine()), "");

    let detached = edge.json(&["detach"]);
    assert_eq!(detached["interfaces"], Value::from(vec!["eth0"]));
    assert_eq!(edge.wait_for_end(), Some(0));
    assert!(xdp(edge.machine()).is_null());
    assert_eq!(pins(edge.machine()), "");

    edge.start_again();
    Flow::open_many(&net.clients()[0], &services, 2);
}

#[test]
fn detach_works_without_an_agent() {
    let net = Topology::builder().build().unwrap();
    let services = Service::all(&[Mode::L2dsr]);
    let (mut edge, _nodes, _echoes) = start(&net, &services);
    edge.signal(Signal::SIGKILL);
    edge.wait_for_end();
    assert!(xdp(edge.machine()).is_object(), "traffic goes on");

    let detached = "detached from eth0; no pins are left\n";
    assert_eq!(edge.page(&["detach"]), detached);
    assert!(xdp(edge.machine()).is_null());
    assert_eq!(pins(edge.machine()), "");
    let nothing = "nothing was attached; no pins are left\n";
    assert_eq!(edge.page(&["detach"]), nothing);
}

#[test]
fn commands_without_an_agent_say_so_and_fail() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let services = Service::all(&[Mode::L2dsr]);
    let mut edge = Agent::start(&net.edges()[0], &edge_config(&services, net.nodes()));
    edge.signal(Signal::SIGTERM);
    edge.wait_for_end();
    for command in ["status", "services", "backends", "drops"] {
        let output = edge.command(&[command]).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert!(message.contains("guideway run --config"), "{message}");
    }
}

#[test]
fn status_tells_how_large_each_table_is() {
    let net = Topology::builder().nodes(0).build().unwrap();
    let sizes = [
        ("services", 11),
        ("backends", 12),
        ("next_hops", 13),
        ("pods", 14),
        ("source_ranges", 15),
        ("flows", 1600),
        ("nat_flows", 17),
    ];
    let listed: Vec<String> = sizes
        .iter()
        .map(|(name, size)| format!("{name}: {size}"))
        .collect();
    let config = edge_config(&[], net.nodes());
    let tables = config.lines().find(|line| line.starts_with("tables:"));
    let own = format!("tables: {{ lut_arena_mib: 1, {} }}", listed.join(", "));
    let edge = Agent::start(&net.edges()[0], &config.replace(tables.unwrap(), &own));
    let status = edge.json(&["status"]);
    let capacity = |name: &str| {
        let table = rows(&status["tables"])
            .iter()
            .find(|table| table["name"] == name);
        table.unwrap_or_else(|| panic!("no {name} in {status}"))["capacity"].as_u64()
    };
    for (name, size) in sizes {
        assert_eq!(capacity(name), Some(size), "{name}");
    }
    assert_eq!(capacity("lut_slots"), Some(131_072));
    for name in ["flows_datagram", "flows_embryonic", "local_flows"] {
        assert_eq!(capacity(name), Some(1600), "{name}");
    }
}
