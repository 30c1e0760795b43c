//! Configurations change under traffic.

use std::collections::BTreeSet;

use lab::{Machine, Signal, Topology};
use serde_json::Value;

use crate::support::{
    Agent, Echo, Flow, Mode, Protocol, Service, Traffic, Watched, edge_config, node_config,
};

const ROUNDS: u64 = 20;
const MODES: [Mode; 3] = [Mode::L2dsr, Mode::IpipV4, Mode::IpipV6];

/// An edge and three nodes at work.
struct Cluster<'net> {
    services: Vec<Service>,
    edge: Agent<'net>,
    client: &'net Machine,
    nodes: &'net [Machine],
    _nodes: Vec<Agent<'net>>,
    _echoes: Vec<Echo>,
}

impl<'net> Cluster<'net> {
    fn start(net: &'net Topology) -> Self {
        let services = Service::all(&MODES);
        let (edge, nodes) = (&net.edges()[0], net.nodes());
        Self {
            // First: a node takes what is inside for addresses that its agent has seen there.
            _echoes: nodes
                .iter()
                .map(|node| Echo::start(node, &services))
                .collect(),
            edge: Agent::start(edge, &edge_config(&services, nodes)),
            client: &net.clients()[0],
            nodes,
            _nodes: Agent::start_all(nodes, &node_config([edge])),
            services,
        }
    }

    fn flows(&self, each: usize) -> Vec<Flow> {
        Flow::open_many(self.client, &self.services, each)
    }
}

fn topology() -> Topology {
    Topology::builder().nodes(3).build().unwrap()
}

#[test]
fn changed_file_is_noticed_and_other_services_go_on() {
    let net = topology();
    let cluster = Cluster::start(&net);
    let traffic = Traffic::over(cluster.flows(4));
    traffic.wait_for_rounds(ROUNDS);

    let mut services = cluster.services.clone();
    let added = Service {
        address: (services[0].address.ip(), 7001).into(),
        ..services[0]
    };
    services.push(added);
    cluster
        .edge
        .write_config(&edge_config(&services, cluster.nodes));
    cluster.edge.wait_for_reloads(2);
    traffic.wait_for_rounds(ROUNDS);
    let which = [
        "which",
        "--service",
        &added.to_string(),
        "--from",
        "10.0.0.2:4000",
    ];
    assert_eq!(cluster.edge.json(&which)["action"], "forward");

    cluster
        .edge
        .write_config(&edge_config(&cluster.services, cluster.nodes));
    cluster.edge.wait_for_reloads(3);
    traffic.wait_for_rounds(ROUNDS);
    let services = cluster.edge.json(&["services"]);
    assert_eq!(services.as_array().unwrap().len(), cluster.services.len());
    traffic.stop_unharmed();
}

#[test]
fn sighup_reads_the_file_again_and_breaks_no_flow() {
    let net = topology();
    let mut cluster = Cluster::start(&net);
    let traffic = Traffic::over(cluster.flows(4));
    for reloads in 2..5 {
        traffic.wait_for_rounds(ROUNDS);
        cluster.edge.signal(Signal::SIGHUP);
        cluster.edge.wait_for_reloads(reloads);
    }
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
}

#[test]
fn bad_file_is_told_and_the_last_good_state_serves() {
    let net = topology();
    let mut cluster = Cluster::start(&net);
    let traffic = Traffic::over(cluster.flows(2));
    let good = edge_config(&cluster.services, cluster.nodes);
    let before = cluster.edge.json(&["backends"]);

    let bad_files = [
        (good.clone() + "colour: blue\n", "colour"),
        (good.replace("protocol: udp", "protocol: icmp"), "icmp"),
        (good.replace("\nvips: [", "\nvips: [["), "YAML"),
        (String::new(), "interfaces"),
        (format!("datapath: afxdp\n{good}"), "set datapath: xdp"),
    ];
    for (bad, named) in &bad_files {
        cluster.edge.write_config(bad);
        let status = cluster
            .edge
            .wait_for_answer("the file is refused", &["status"], |status| {
                let error = status["config"]["error"].as_str();
                error.is_some_and(|error| error.contains(named))
            });
        assert_eq!(status["config"]["reloads"], 1, "{named}");
        let page = cluster.edge.page(&["status"]);
        assert!(page.contains("REFUSED") && page.contains(named), "{page}");
        // Asked for once more, it is refused once more.
        let failures = status["config"]["failures"].as_u64().unwrap();
        cluster.edge.signal(Signal::SIGHUP);
        cluster
            .edge
            .wait_for_answer("the file is refused again", &["status"], |status| {
                status["config"]["failures"].as_u64() > Some(failures)
            });
        traffic.wait_for_rounds(ROUNDS);
        cluster.flows(1);
    }
    let slots = |backends: &Value| {
        let backends = backends.as_array().unwrap().iter();
        backends
            .map(|backend| (backend["name"].clone(), backend["slots"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(slots(&cluster.edge.json(&["backends"])), slots(&before));

    cluster.edge.write_config(&good);
    cluster
        .edge
        .wait_for_answer("the file is taken", &["status"], |status| {
            status["config"]["error"].is_null()
        });
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
}

#[test]
fn datagrams_of_a_removed_backend_move_and_all_else_stays() {
    let net = topology();
    let cluster = Cluster::start(&net);
    let removed = &cluster.nodes[1];
    let traffic = Traffic::over(cluster.flows(12));
    traffic.wait_for_rounds(ROUNDS);

    let rest: Vec<&Machine> = [0, 2].map(|index: usize| &cluster.nodes[index]).into();
    cluster
        .edge
        .write_config(&edge_config(&cluster.services, rest));
    cluster.edge.wait_for_reloads(2);
    traffic.wait_for_rounds(ROUNDS);
    let (of_removed, stayed): (Vec<Watched>, Vec<Watched>) = traffic
        .stop()
        .into_iter()
        .partition(|watched| watched.flow.node == removed.label());

    assert!(stayed.len() > cluster.services.len());
    for watched in stayed {
        assert_eq!(watched.broken, None, "on {}", watched.flow.node);
    }
    assert!(!of_removed.is_empty());
    for mut watched in of_removed {
        let service = watched.flow.service;
        // A connection goes on, and a datagram has a new home.
        if service.protocol == Protocol::Tcp {
            assert_eq!(watched.broken, None, "{service}");
            assert_eq!(watched.flow.ask().unwrap(), removed.label());
        } else {
            assert!(
                watched.broken.is_some(),
                "{service} is asked at the old node"
            );
            assert_ne!(watched.flow.ask().unwrap(), removed.label());
        }
    }
    let names: BTreeSet<String> = cluster.flows(8).into_iter().map(|flow| flow.node).collect();
    assert_eq!(names, ["node0", "node2"].map(str::to_owned).into());

    cluster
        .edge
        .write_config(&edge_config(&cluster.services, cluster.nodes));
    cluster.edge.wait_for_reloads(3);
    let names: BTreeSet<String> = cluster.flows(8).into_iter().map(|flow| flow.node).collect();
    assert!(names.contains(removed.label()), "{names:?}");
}

#[test]
fn full_arena_refuses_one_service_and_the_rest_serves() {
    let net = topology();
    let cluster = Cluster::start(&net);
    let traffic = Traffic::over(cluster.flows(1));
    // The pinned arena keeps its 1 MiB, whatever the file says now.
    let good = edge_config(&cluster.services, cluster.nodes);
    let large: String = [1, 2]
        .map(|port| {
            format!(
                "  - {{ name: large-{port}, address: \"{}\", port: {port}, protocol: tcp, \
                 table_size: 131072, backends: [{{ address: \"{}\" }}] }}\n",
                cluster.services[0].address.ip(),
                cluster.nodes[0].v4()
            )
        })
        .concat();
    let larger_arena = good.replace("lut_arena_mib: 1", "lut_arena_mib: 4");
    cluster.edge.write_config(&(larger_arena + &large));
    let status = cluster.edge.wait_for_reloads(2);
    assert_eq!(status["config"]["needs_restart"][0], "tables");
    let problem = status["problems"][0].as_str().unwrap();
    assert!(problem.contains("the LUT arena is full"), "{problem}");
    traffic.wait_for_rounds(ROUNDS);

    cluster.edge.write_config(&good);
    let status = cluster.edge.wait_for_reloads(3);
    assert_eq!(status["problems"], Value::Array(Vec::new()));
    traffic.stop_unharmed();
}
