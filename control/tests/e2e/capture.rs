//! `guideway capture`, read by tshark.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    process::{Command, Stdio},
};

use lab::{Machine, Namespace, Process, Signal, Topology, output, wait_for};
use serde_json::Value;

use crate::support::{
    Agent, Cluster, Echo, Flow, Mode, PodService, Protocol, Service, TIMEOUT, edge_config,
    node_config, serve_on_pods,
};

const FILE: &str = "capture.pcapng";

/// A capture under way.
struct Capture<'net> {
    machine: &'net Machine,
    process: Process,
}

impl<'net> Capture<'net> {
    /// Starts a capture at an agent, with these words behind `capture`, and waits until it has begun.
    fn start(agent: &Agent<'net>, words: &[&str]) -> Self {
        let mut process = Process::spawn(&mut Self::command(agent, words)).unwrap();
        process.wait_for_line("capturing on", TIMEOUT).unwrap();
        Self {
            machine: agent.machine(),
            process,
        }
    }

    fn command(agent: &Agent<'net>, words: &[&str]) -> Command {
        let file = Path::new(Namespace::FILES).join(FILE);
        let words = [&["capture", "--write", file.to_str().unwrap()], words].concat();
        agent.command(&words)
    }

    /// Ends it, and returns what it says in the end.
    fn end(&mut self) -> String {
        self.process.signal(Signal::SIGINT).unwrap();
        self.finish()
    }

    fn finish(&mut self) -> String {
        let status = self.process.wait(TIMEOUT).unwrap();
        let said = self.process.stderr();
        assert_eq!(status.code(), Some(0), "{said}");
        said
    }

    /// One line for each packet of the file that a display filter finds: the fields, with tabs between.
    fn packets(&self, filter: &str, fields: &[&str]) -> Vec<String> {
        let mut tshark = self.machine.namespace().command("tshark");
        let file = Path::new(Namespace::FILES).join(FILE);
        tshark
            .arg("-r")
            .arg(file)
            .args(["-n", "-Y", filter, "-T", "fields"]);
        tshark.args(["-o", "ip.check_checksum:TRUE"]);
        for field in fields {
            tshark.args(["-e", field]);
        }
        let lines = output(&mut tshark).unwrap();
        lines.lines().map(str::to_owned).collect()
    }
}

#[test]
fn tshark_reads_packets_before_and_after_with_verdict_and_backend() {
    let net = Topology::builder().build().unwrap();
    let services: Vec<Service> = Service::all(&[Mode::IpipV4, Mode::L2dsr])
        .into_iter()
        .filter(|service| service.protocol == Protocol::Udp && service.address.is_ipv4())
        .collect();
    let (edge, nodes) = (&net.edges()[0], net.nodes());
    let _echoes: Vec<Echo> = nodes
        .iter()
        .map(|node| Echo::start(node, &services))
        .collect();
    let _nodes: Vec<Agent<'_>> = Agent::start_all(nodes, &node_config([edge]));
    let edge = Agent::start(edge, &edge_config(&services, nodes));
    let client = &net.clients()[0];

    let from = client.v4().to_string();
    let mut capture = Capture::start(&edge, &["host", &from, "udp"]);
    let flows = Flow::open_many(client, &services, 4);
    let said = capture.end();
    assert!(
        said.contains(&format!("{} packets captured, 0 lost", flows.len())),
        "{said}"
    );

    for flow in &flows {
        let node = nodes.iter().find(|node| node.label() == flow.node).unwrap();
        let filter = format!("udp.srcport == {}", flow.client.port());
        let fields = [
            "frame.comment",
            "frame.packet_flags_direction",
            "frame.interface_name",
            "ip.dst",
            "frame.len",
        ];
        let lines = capture.packets(&filter, &fields);
        let [before, after] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        let service = format!(" {}", flow.service);
        let (mode, backend) = match flow.service.mode {
            Mode::L2dsr => ("forward (l2dsr)", format!("backend {} (", node.v4())),
            _ => ("forward (ipip)", format!("backend {}", node.v4())),
        };
        for (line, side) in [(before, "before: "), (after, "after: ")] {
            assert!(
                line.starts_with(&format!("{side}{mode}, service ")),
                "{line}"
            );
            assert!(line.contains(&service) && line.contains(&backend), "{line}");
            assert!(line.contains("\teth0\t"), "{line}");
        }
        let column = |line: &str, number: usize| line.split('\t').nth(number).unwrap().to_owned();
        assert_eq!(column(before, 1), "0x00000001", "inbound");
        assert_eq!(column(after, 1), "0x00000002", "outbound");
        if flow.service.mode == Mode::IpipV4 {
            let vip = flow.service.address.ip();
            assert_eq!(column(after, 3), format!("{},{vip}", node.v4()));
            let length = |line: &str| column(line, 4).parse::<u32>().unwrap();
            assert_eq!(length(after), length(before) + 20);
        }
    }
    assert!(
        capture
            .packets("ip.checksum.status == \"Bad\"", &["frame.number"])
            .is_empty()
    );
}

#[test]
fn pods_are_named_at_the_edge_and_at_the_node() {
    let net = Topology::builder().pods(1).build().unwrap();
    let service = Service {
        protocol: Protocol::Udp,
        ..Service::all(&[Mode::IpipV4])[0]
    };
    let services = [PodService::over_all(service)];
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    // The only service.
    let words = ["service", "s0"];
    let edge = Capture::start(&cluster.edge, &words);
    let nodes = cluster.nodes.iter();
    let nodes: Vec<_> = nodes.map(|node| Capture::start(node, &words)).collect();
    let flows = Flow::open_many(&net.clients()[0], &[service], 8);

    let comments = |mut capture: Capture<'_>| {
        capture.end();
        capture.packets("udp", &["frame.comment"])
    };
    let at_edge = comments(edge);
    let at_nodes: Vec<String> = nodes.into_iter().flat_map(comments).collect();
    for flow in flows {
        let pod = net.pods().find(|pod| pod.label() == flow.node).unwrap();
        let nodes = net.nodes().iter();
        let mut with_pod = nodes.filter(|node| node.pods().iter().any(|one| one.v4() == pod.v4()));
        let node = with_pod.next().unwrap();
        let named = format!(
            "service s0 {service}, backend {}:8080 on {}",
            pod.v4(),
            node.v4()
        );
        for side in ["before", "after"] {
            let comment = format!("{side}: forward (ipip), {named}");
            assert!(at_edge.contains(&comment), "{comment} not in {at_edge:?}");
            let named = format!("service s0 {service}, backend {}:8080", pod.v4());
            let comment = format!("{side}: pass delivered, {named}");
            assert!(at_nodes.contains(&comment), "{comment} not in {at_nodes:?}");
        }

        // A frame that the edge would send, given to the node's agent.
        let (service, from) = (service.to_string(), flow.client.to_string());
        let at_edge = ["trace", "--service", &service, "--from", &from];
        let sent = cluster.edge.json(&at_edge)["after"].clone();
        let agents = cluster.nodes.iter();
        let agent = agents.clone().find(|one| one.machine().v4() == node.v4());
        let trace = agent
            .unwrap()
            .json(&["trace", "--hex", sent.as_str().unwrap()]);
        assert_eq!(trace["action"], "pass", "{trace}");
        assert_eq!(trace["reason"], "delivered", "{trace}");
        assert!(steps(&trace).contains(&"pod"), "{trace}");
        // The other node leaves what is not addressed to it to its stack.
        let other = agents.clone().find(|one| one.machine().v4() != node.v4());
        let trace = other
            .unwrap()
            .json(&["trace", "--hex", sent.as_str().unwrap()]);
        assert_eq!(trace["reason"], "encap_not_ours", "{trace}");
    }
}

#[test]
fn pod_that_asks_itself_is_seen_with_the_vip_in_its_place() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let pod = &node.pods()[0];
    let services: Vec<PodService<'_>> = Service::all(&[Mode::IpipV4])
        .into_iter()
        .filter(|service| service.protocol == Protocol::Udp)
        .map(PodService::over_all)
        .collect();
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    for (number, PodService { service, .. }) in services.iter().enumerate() {
        let vip = service.address.ip();
        let addresses = if vip.is_ipv4() {
            ["ip.src", "ip.dst"]
        } else {
            ["ipv6.src", "ipv6.dst"]
        };
        // The node masquerades what its pods send to the outside.
        let [asking, asked] = [node, pod].map(|machine| machine.address_like(vip));
        let mut captures = [&cluster.edge, &cluster.nodes[0]]
            .map(|agent| Capture::start(agent, &["service", &service.to_string()]));
        let flow = Flow::open(pod, service).unwrap();
        assert_eq!(flow.node, pod.label());

        let backend = format!(
            "service s{number} {service}, backend {}",
            SocketAddr::new(asked, 8080)
        );
        let verdicts = [
            format!("forward (ipip), {backend} on {}", node.v4()),
            format!("pass delivered, {backend}"),
        ];
        // The outer header's addresses too, where it is of the same family.
        let within = |outer: &Machine, inner: IpAddr| match inner {
            IpAddr::V4(_) => format!("{},{inner}", outer.v4()),
            IpAddr::V6(_) => inner.to_string(),
        };
        let sent = [asking, vip].map(|address| address.to_string());
        let forwarded = [within(edge, asking), within(node, vip)];
        let delivered = [vip, asked].map(|address| address.to_string());
        let ends = [[&sent, &forwarded], [&forwarded, &delivered]];
        for ((capture, verdict), ends) in captures.iter_mut().zip(verdicts).zip(ends) {
            capture.end();
            let [source, destination] = addresses;
            let seen = capture.packets("udp", &["frame.comment", source, destination]);
            let sides = ["before", "after"].into_iter().zip(ends);
            let wanted = sides.map(|(side, [from, to])| format!("{side}: {verdict}\t{from}\t{to}"));
            assert_eq!(seen, wanted.collect::<Vec<_>>());
        }
    }
}

/// The names of a trace's steps.
fn steps(trace: &Value) -> Vec<&str> {
    let steps = trace["steps"].as_array().unwrap().iter();
    steps.map(|step| step["name"].as_str().unwrap()).collect()
}

#[test]
fn node_ports_and_refusals_are_named() {
    const NODE_PORT: u16 = 30_080;
    let net = Topology::builder().pods(1).build().unwrap();
    let client = &net.clients()[0];
    let [served, empty] = [Mode::IpipV4, Mode::IpipV6].map(|mode| {
        let all = Service::all(&[Mode::IpipV4, Mode::IpipV6]).into_iter();
        let mut all = all.filter(|one| one.mode == mode && one.address.is_ipv4());
        all.find(|one| one.protocol == Protocol::Udp).unwrap()
    });
    let services = [
        PodService {
            node_port: Some(NODE_PORT),
            ..PodService::over_all(served)
        },
        PodService {
            only: Some(client),
            ..PodService::over_all(empty)
        },
    ];
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    let comments = |mut capture: Capture<'_>| {
        capture.end();
        capture.packets("udp", &["frame.comment"])
    };

    let node = &cluster.nodes[0];
    let node_port = Service {
        address: (node.machine().v4(), NODE_PORT).into(),
        ..served
    };
    let capture = Capture::start(node, &["host", &client.v4().to_string(), "udp"]);
    let flows = Flow::open_many(client, &[node_port], 16);
    let said = comments(capture);
    for flow in flows {
        let pod = net.pods().find(|pod| pod.label() == flow.node).unwrap();
        let node = net.nodes().iter().find(|node| {
            let pods = node.pods().iter();
            pods.map(Machine::label).any(|label| label == flow.node)
        });
        let (pod, node) = (pod.v4(), node.unwrap().v4());
        let named = if node == node_port.address.ip() {
            format!("pass delivered, service s0 {node_port}, backend {pod}:8080")
        } else {
            format!("forward (ipip), service s0 {node_port}, backend {pod}:8080 on {node}")
        };
        for side in ["before", "after"] {
            let comment = format!("{side}: {named}");
            assert!(said.contains(&comment), "{comment} not in {said:?}");
        }
    }

    let capture = Capture::start(&cluster.edge, &["service", &empty.to_string()]);
    Flow::open(client, &empty).unwrap_err();
    let said = comments(capture);
    for side in ["before", "after"] {
        let named = format!("{side}: reply port_unreachable, service {empty}");
        assert!(said.contains(&named), "{named} not in {said:?}");
    }
    let (service, from) = (
        empty.to_string(),
        SocketAddr::new(client.v4(), 1).to_string(),
    );
    for command in ["which", "trace"] {
        let told = cluster
            .edge
            .json(&[command, "--service", &service, "--from", &from]);
        assert_eq!(told["action"], "reply", "{told}");
        assert_eq!(told["reason"], "port_unreachable", "{told}");
    }
}

#[test]
fn counts_filters_and_standard_output() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let service = Service {
        protocol: Protocol::Udp,
        ..Service::all(&[Mode::IpipV4])[0]
    };
    let edge = Agent::start(&net.edges()[0], &edge_config(&[service], net.nodes()));
    let client = &net.clients()[0];

    // To one port that is served, and to one that is not.
    let mut capture = Capture::start(&edge, &["--count", "2", "forward"]);
    let other = Service {
        address: (service.address.ip(), service.address.port() + 1).into(),
        ..service
    };
    for service in [other, service, other, service] {
        let _ = Flow::open_within(client, &service, std::time::Duration::from_millis(50));
    }
    let said = capture.finish();
    assert!(said.contains("2 packets captured"), "{said}");
    let ports = capture.packets("frame", &["udp.dstport"]);
    let served = service.address.port().to_string();
    assert_eq!(ports, [served.as_str(); 4]);

    let mut command = edge.command(&["capture", "--write", "-", "--count", "2", "forward"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut writer = command.spawn().unwrap();
    let mut tshark = edge.machine().namespace().command("tshark");
    tshark.args(["-r", "-", "-T", "fields", "-e", "udp.dstport"]);
    tshark.stdin(writer.stdout.take().unwrap());
    let reader = tshark.stdout(Stdio::piped()).spawn().unwrap();
    let ended = wait_for("two packets were written", TIMEOUT, || {
        let _ = Flow::open_within(client, &service, std::time::Duration::from_millis(50));
        writer.try_wait().unwrap().ok_or("it goes on")
    });
    if ended.is_err() {
        writer.kill().unwrap();
    }
    assert!(ended.unwrap().success());
    let read = reader.wait_with_output().unwrap();
    assert!(read.status.success());
    let ports = String::from_utf8(read.stdout).unwrap();
    assert_eq!(ports.lines().collect::<Vec<_>>(), [served.as_str(); 4]);
}

#[test]
fn a_capture_that_is_killed_disturbs_neither_traffic_nor_the_next_one() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let services = Service::all(&[Mode::L2dsr]);
    let _echo = Echo::start(&net.nodes()[0], &services);
    let mut edge = Agent::start(&net.edges()[0], &edge_config(&services, net.nodes()));
    let client = &net.clients()[0];

    let mut capture = Capture::start(&edge, &[]);
    let busy = Capture::command(&edge, &[]).output().unwrap();
    let said = String::from_utf8_lossy(&busy.stderr);
    assert!(said.contains("captures already"), "{said}");
    capture.process.signal(Signal::SIGKILL).unwrap();
    capture.process.wait(TIMEOUT).unwrap();
    Flow::open_many(client, &services, 1);

    let mut next = wait_for("the next one can begin", TIMEOUT, || {
        let mut process = Process::spawn(&mut Capture::command(&edge, &[])).unwrap();
        match process.wait_for_line("capturing on", TIMEOUT) {
            Ok(_) => Ok(process),
            Err(error) => Err(error.to_string()),
        }
    })
    .unwrap();
    // An agent that starts puts new programs in place, which the capture takes over.
    edge.signal(Signal::SIGTERM);
    edge.wait_for_end();
    edge.start_again();
    let file = Path::new(Namespace::FILES).join(FILE);
    wait_for("packets are captured again", TIMEOUT, || {
        Flow::open_many(client, &services, 1);
        let size = edge.machine().namespace().run(|| std::fs::metadata(&file));
        match size {
            Ok(file) if file.len() > 2000 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
    next.signal(Signal::SIGTERM).unwrap();
    assert!(next.wait(TIMEOUT).unwrap().success());
}

#[test]
fn mistakes_are_told_from_failures() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let services = Service::all(&[Mode::L2dsr]);
    let edge = Agent::start(&net.edges()[0], &edge_config(&services, net.nodes()));
    for (words, code, named) in [
        (&["capture", "-w", "/dev/null", "hots"][..], 2, "hots"),
        (&["capture", "-w", "/nowhere/file"], 1, "/nowhere/file"),
        (
            &["capture", "-w", "/dev/null", "service", "shop/web"],
            1,
            "no service shop/web is here",
        ),
        (&["capture", "-w", "/dev/null", "-i", "eth7"], 1, "eth0"),
        (
            &[
                "capture",
                "-w",
                "/dev/null",
                "--pin-dir",
                "/sys/fs/bpf/nowhere",
            ],
            1,
            "is the agent running",
        ),
    ] {
        let output = edge.command(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(named), "{said}");
    }
}
