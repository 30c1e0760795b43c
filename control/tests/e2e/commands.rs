//! The commands tell what the datapath does.

use std::{net::SocketAddr, time::Duration};

use control::api::NameParts;
use lab::{Machine, Signal, Topology};
use serde_json::Value;

use crate::support::{
    Agent, Cluster, Echo, Flow, Mode, PodService, Protocol, Service, cluster_config, edge_config,
    node_config, serve_on_pods,
};

const MODES: [Mode; 3] = [Mode::L2dsr, Mode::IpipV4, Mode::IpipV6];
const SHORT: Duration = Duration::from_millis(300);

/// Starts servers and agents on the nodes and an edge; no node gets any echo, so that what it takes off its outer header is the client's.
fn start<'net>(
    net: &'net Topology,
    services: &[Service],
) -> (Agent<'net>, Vec<Agent<'net>>, Vec<Echo>) {
    let (edge, nodes) = (&net.edges()[0], net.nodes());
    let echoes = nodes
        .iter()
        .map(|node| Echo::start(node, services))
        .collect();
    let agents = Agent::start_all(nodes, &node_config([edge]));
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
    const TO_OTHER: u64 = 20;
    let net = Topology::builder().build().unwrap();
    let services = Service::all(&[Mode::IpipV4]);
    let (edge, nodes, _echoes) = start(&net, &services);
    let mut by_udp = services.iter().filter(|one| one.protocol == Protocol::Udp);
    let [udp, other] = [by_udp.next().unwrap(), by_udp.next().unwrap()];
    let open = |service| Flow::open(&net.clients()[0], service).unwrap();
    let mut flow = open(udp);
    let mut same_backend = std::iter::repeat_with(|| open(other));
    let mut of_other = same_backend.find(|one| one.node == flow.node).unwrap();
    for (flow, questions) in [(&mut flow, QUESTIONS), (&mut of_other, TO_OTHER)] {
        for _ in 1..questions {
            flow.ask().unwrap();
        }
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
    let backend_of = |service: &Service| {
        let is_of = |row: &&Value| {
            row["service"] == service.to_string() && row["backend"] == node.v4().to_string()
        };
        rows(&answer).iter().find(is_of).unwrap()
    };
    let [backend, backend_of_other] = [backend_of(udp), backend_of(other)];
    assert_eq!(backend["packets"], QUESTIONS);
    assert_eq!(backend_of_other["packets"], TO_OTHER);
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
    assert_eq!(decapsulated.unwrap()["packets"], QUESTIONS + TO_OTHER);

    let name = service["name"].as_str().unwrap();
    let of_one = edge.json(&["backends", name]);
    let is_meant = |row: &Value| row["name"] == name;
    assert!(rows(&of_one).iter().all(is_meant), "{of_one}");
    assert_eq!(rows(&of_one).len(), 2, "{of_one}");
    let from = "10.0.0.2:4000";
    let which = edge.json(&["which", "--service", name, "--from", from]);
    assert_eq!(which["service"], udp.to_string(), "{which}");
    let sorted = edge.json(&["services", "--sort", "packets"]);
    assert_eq!(rows(&sorted)[0]["packets"], QUESTIONS, "{sorted}");
    let rated = edge.json(&["services", name, "--rate"]);
    assert_eq!(rows(&rated)[0]["rates"]["packets"], 0, "{rated}");
    let settings = edge.json(&["config"]);
    assert_eq!(settings["interfaces"][0]["name"], "eth0", "{settings}");
    assert!(edge.page(&["version"]).contains("agent   0."));

    let metrics = edge.get("/metrics");
    let line = format!(
        "guideway_service_packets_total{{{},address=\"{}\",port=\"{}\",\
         protocol=\"udp\"}} {QUESTIONS}",
        name_labels(name),
        udp.address.ip(),
        udp.address.port()
    );
    assert!(metrics.lines().any(|other| other == line), "{metrics}");
    for (row, packets) in [(backend, QUESTIONS), (backend_of_other, TO_OTHER)] {
        let line = format!(
            "guideway_backend_packets_total{{{},port=\"{}\",backend=\"{}\"}} {packets}",
            name_labels(row["name"].as_str().unwrap()),
            udp.address.port(),
            node.v4()
        );
        assert!(metrics.lines().any(|other| other == line), "{metrics}");
    }
    let attached = "guideway_interface_attached{interface=\"eth0\",mode=\"native\"} 1";
    assert!(metrics.contains(attached), "{metrics}");
    assert_eq!(edge.get("/healthz"), "ok\n");
}

/// The labels of a metric that name a service.
fn name_labels(service: &str) -> String {
    let NameParts {
        namespace, name, ..
    } = NameParts::of(service);
    format!("service=\"{service}\",namespace=\"{namespace}\",name=\"{name}\"")
}

/// The frame that an edge would send for the first packet of a flow.
fn sent_by(edge: &Agent<'_>, service: &Service, client: &Machine) -> String {
    let from = SocketAddr::new(client.address_like(service.address.ip()), 4711).to_string();
    let trace = edge.json(&["trace", "--service", &service.to_string(), "--from", &from]);
    assert_eq!(trace["action"], "forward", "{trace}");
    trace["after"].as_str().unwrap().to_owned()
}

/// Overwrites bytes of a frame in hexadecimal digits.
fn with_bytes(frame: &str, at: usize, digits: &str) -> String {
    let mut frame = frame.to_owned();
    frame.replace_range(2 * at..2 * at + digits.len(), digits);
    frame
}

/// As `tags_of_an_edge_that_lies_reach_no_pod_outside_the_service` sees the datapath do it.
#[test]
fn trace_answers_for_a_pod_that_is_not_there_by_the_kernels_routes() {
    /// Behind Ethernet and two IPv4 headers.
    const TCP_FLAGS: usize = 14 + 20 + 20 + 13;
    const TAG: usize = 14 + 4;
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let (node, client) = (&net.nodes()[0], &net.clients()[0]);
    let service = Service::all(&[Mode::IpipV4])[0];
    let services = [PodService::over_all(service)];
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    // The neighbour on the way back is known by then.
    let _flow = Flow::open(client, &service).unwrap();

    let (from, pod) = (client.v4().to_string(), node.pods()[0].v4().to_string());
    for words in [&["s0"][..], &["--client", &from, "--backend", &pod]] {
        let [known] = &cluster.nodes[0].flows(words)[..] else {
            panic!("{words:?}: {:?}", cluster.nodes[0].flows(words));
        };
        assert_eq!(known["service"], service.to_string(), "{known}");
        assert_eq!(known["table"], "node", "{known}");
    }
    for words in [["--client", &pod], ["--backend", &from]] {
        assert!(cluster.nodes[0].flows(&words).is_empty(), "{words:?}");
    }
    let counted = cluster.nodes[0].json(&["services", "--stats"]);
    assert_eq!(rows(&counted)[0]["connections"], 1, "{counted}");

    let ack = with_bytes(&sent_by(&cluster.edge, &service, client), TCP_FLAGS, "10");
    let to_nobody = with_bytes(&ack, TAG, "07ff");
    let agent = &cluster.nodes[0];
    let traced = |frame: &str, more: &[&str]| {
        let words = [&["trace", "--hex", frame][..], more].concat();
        agent.json(&words)
    };
    assert_eq!(traced(&ack, &[])["reason"], "delivered");
    for more in [&[][..], &["--interface", "eth0"]] {
        let trace = traced(&to_nobody, more);
        assert_eq!(
            (&trace["action"], &trace["reason"]),
            (&"reply".into(), &"reset".into()),
            "{trace}"
        );
        let steps = trace["steps"].as_array().unwrap().iter();
        let mut asked = steps.filter(|step| step["name"] == "fib");
        let way = format!("to {}: device ", client.v4());
        let is_told = asked.any(|step| step["text"].as_str().unwrap().starts_with(&way));
        assert!(is_told, "{trace}");
    }
    let mut nowhere = agent.command(&["trace", "--hex", &ack, "--interface", "eth9"]);
    let said = nowhere.output().unwrap();
    assert_eq!(said.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&said.stderr).contains("no interface eth9"));

    // Where the kernel forwards nothing, the datapath finds no way back either.
    let forwarding = "net/ipv4/conf/eth0/forwarding";
    node.namespace().set_sysctl(forwarding, "0").unwrap();
    let trace = traced(&to_nobody, &[]);
    assert_eq!(trace["reason"], "unknown_pod", "{trace}");
}

/// The address is one of services, so that the stack would get the packet and route it to the edge, where it comes from.
#[test]
fn trace_tells_what_the_kernel_would_send_back() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let (edge, node, client) = (&net.edges()[0], &net.nodes()[0], &net.clients()[0]);
    let service = Service::all(&[Mode::IpipV4])[0];
    let services = [PodService::over_all(service)];
    // The node knows the address, and no service there yet.
    let vips = format!("vips: [\"{}\"]", service.address.ip());
    let config = cluster_config(&net, &[]).replace("vips: []", &vips);
    let agent = Agent::start(node, &config);
    let edge = Agent::start(edge, &cluster_config(&net, &services));
    let machine = node.namespace();
    machine.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    let mut ping = machine.command("ping");
    lab::output(ping.args(["-c", "1", "-W", "20", &client.v4().to_string()])).unwrap();
    let sent = sent_by(&edge, &service, client);
    let trace = agent.json(&["trace", "--hex", &sent]);
    assert_eq!(trace["action"], "drop", "{trace}");
    assert_eq!(trace["reason"], "sent_back", "{trace}");
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
    Cluster::wait_for_packets(&edge, "reply", "port_unreachable", DATAGRAMS);
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
    assert!(
        page.contains("fail") && page.contains("device_down"),
        "{page}"
    );
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
    assert_eq!(capacity("lut_slots"), Some(262_144));
    for name in ["flows_datagram", "flows_embryonic", "local_flows"] {
        assert_eq!(capacity(name), Some(1600), "{name}");
    }
}
