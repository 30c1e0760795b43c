//! Backends and nodes fail and come back, and new flows go where they are served.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr, TcpListener},
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use lab::{Machine, Stopwatch, Topology, vip_v4, vip_v6};
use nix::sys::socket::{Shutdown, shutdown};
use serde_json::Value;

use crate::support::{Agent, Echo, Flow, Mode, Protocol, Service, edge_config, node_config};

const PORT: u16 = 8080;
/// From the first failure that a check may see to the last that counts, and the agent's part.
const WITHIN: Duration = Duration::from_secs(3);
/// Three echoes missed, one a second, and the agent's part.
const NODE_WITHIN: Duration = Duration::from_millis(4_500);

#[test]
fn backend_that_fails_gets_no_new_flows_until_it_is_well_again() {
    let net = Topology::builder().nodes(3).build().unwrap();
    let cluster = Cluster::start(&net);
    cluster.wait_for_health("node0", "healthy");
    assert!(cluster.nodes_of_flows().contains("node0"));

    let broken = Stopwatch::start();
    cluster.readiness[0].answer(503);
    let row = cluster.wait_for_health("node0", "unhealthy");
    assert!(broken.is_within(WITHIN), "{:?}", broken.elapsed());
    assert_eq!(row["reason"], "HTTP 503");
    assert_eq!(
        (&row["slots"], &row["all_fail"]),
        (&0.into(), &false.into())
    );
    assert_eq!(cluster.nodes_of_flows(), names(&["node1", "node2"]));
    let page = cluster.edge.page(&["backends"]);
    assert!(
        page.contains("UNHEALTHY for") && page.contains("left out: HTTP 503"),
        "{page}"
    );
    let metrics = cluster.metrics();
    let gone = format!("backend=\"{}\"}} 0", net.nodes()[0].v4());
    assert!(
        metrics
            .lines()
            .any(|line| { line.starts_with("guideway_backend_healthy{") && line.ends_with(&gone) }),
        "{metrics}"
    );

    let mended = Stopwatch::start();
    cluster.readiness[0].answer(200);
    cluster.wait_for_health("node0", "healthy");
    assert!(mended.is_within(WITHIN), "{:?}", mended.elapsed());
    assert!(cluster.nodes_of_flows().contains("node0"));
}

#[test]
fn what_is_known_survives_a_reload() {
    let net = Topology::builder().nodes(2).build().unwrap();
    let cluster = Cluster::start(&net);
    cluster.readiness[0].answer(500);
    let before = cluster.wait_for_health("node0", "unhealthy");
    cluster
        .edge
        .write_config(&(cluster.config.clone() + "hash_seed: 7\n"));
    cluster
        .edge
        .wait_for_answer("the reload takes effect", &["status"], |status| {
            status["config"]["reloads"] == 2
        });
    let row = cluster.row("node0").unwrap();
    assert_eq!(
        (&row["health"], &row["slots"]),
        (&"unhealthy".into(), &0.into())
    );
    assert!(row["since_seconds"].as_u64() >= before["since_seconds"].as_u64());
    assert_eq!(cluster.nodes_of_flows(), names(&["node1"]));
}

#[test]
fn backends_of_an_unplugged_node_are_left_out_until_it_is_back() {
    let net = Topology::builder().nodes(2).build().unwrap();
    let cluster = Cluster::start(&net);
    cluster.wait_for_health("node1", "healthy");

    let link = net.far_end(&net.nodes()[1]).unwrap();
    let unplugged = Stopwatch::start();
    link.set_down().unwrap();
    let row = cluster.wait_for_health("node1", "unreachable");
    assert!(
        unplugged.is_within(NODE_WITHIN),
        "{:?}",
        unplugged.elapsed()
    );
    assert!(
        row["reason"]
            .as_str()
            .unwrap()
            .starts_with("node unreachable: "),
        "{row}"
    );
    assert_eq!(row["slots"], 0);
    assert_eq!(cluster.nodes_of_flows(), names(&["node0"]));
    assert_eq!(cluster.edge.json(&["status"])["health"]["unreachable"], 1);

    link.set_up().unwrap();
    cluster.wait_for_health("node1", "healthy");
    assert_eq!(cluster.nodes_of_flows(), names(&["node0", "node1"]));
}

#[test]
fn when_all_backends_fail_all_serve_and_it_is_said() {
    let net = Topology::builder().nodes(2).build().unwrap();
    let cluster = Cluster::start(&net);
    cluster.wait_for_health("node0", "healthy");
    for readiness in &cluster.readiness {
        readiness.answer(503);
    }
    let status = cluster
        .edge
        .wait_for_answer("all backends fail", &["status"], |status| {
            status["health"]["all_fail"]
                .as_array()
                .is_some_and(|all| all.len() == 1)
        });
    let title = format!("s0 ({})", cluster.service);
    assert_eq!(status["health"]["all_fail"][0], title);
    assert_eq!(cluster.nodes_of_flows(), names(&["node0", "node1"]));
    let page = cluster.edge.page(&["status"]);
    assert!(
        page.contains("EVERY BACKEND FAILS, SO ALL SERVE\n"),
        "{page}"
    );
    let page = cluster.edge.page(&["backends"]);
    assert!(page.contains("SERVES AS ALL FAIL: HTTP 503"), "{page}");
    assert!(cluster.metrics().lines().any(|line| {
        line.starts_with("guideway_service_all_backends_fail{") && line.ends_with(" 1")
    }));

    cluster.readiness[1].answer(200);
    cluster.wait_for_health("node1", "healthy");
    assert_eq!(cluster.nodes_of_flows(), names(&["node1"]));
    let status = cluster
        .edge
        .wait_for_answer("one backend serves alone", &["status"], |status| {
            status["health"]["all_fail"] == Value::Array(vec![])
        });
    assert_eq!(status["health"]["unhealthy"], 1);
}

#[test]
fn node_that_starts_after_the_edge_keeps_its_backends() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let at_edge = Agent::start(edge, &edge_config(&Service::all(&[Mode::IpipV4]), [node]));
    // More than count against a node that is known.
    at_edge.wait_for_answer("echoes go unanswered", &["drops", "--all"], |reasons| {
        packets(reasons, "probe_sent") > Some(4)
    });
    assert_eq!(at_edge.json(&["status"])["health"]["unreachable"], 0);
    assert_eq!(states(&at_edge.json(&["backends"])), names(&["new"]));

    let _node = Agent::start(node, &node_config([edge]));
    at_edge.wait_for_answer("the node has replied", &["backends"], |rows| {
        states(rows) == names(&["healthy"])
    });
}

/// No backend is checked, and the kernel of the node replies all the time.
#[test]
fn node_that_no_longer_takes_the_outer_header_off_is_left_out() {
    let net = Topology::builder().nodes(2).build().unwrap();
    let (edge, nodes, client) = (&net.edges()[0], net.nodes(), &net.clients()[0]);
    let services = Service::all(&[Mode::IpipV4]);
    let _echoes: Vec<Echo> = nodes
        .iter()
        .map(|node| Echo::start(node, &services))
        .collect();
    let agents: Vec<Agent> = Agent::start_all(nodes, &node_config([edge]));
    let at_edge = Agent::start(edge, &edge_config(&services, nodes));
    at_edge.wait_for_answer("the nodes have replied", &["backends"], |rows| {
        states(rows) == names(&["healthy"])
    });

    agents[0].write_config(&node_config([&nodes[1]]));
    at_edge.wait_for_answer("node0 is left out", &["backends"], |rows| {
        states(rows) == names(&["healthy", "unreachable"])
    });
    let flows = Flow::open_many(client, &services, 20);
    let used: BTreeSet<String> = flows.into_iter().map(|flow| flow.node).collect();
    assert_eq!(used, names(&["node1"]));
}

/// Servers listen at the VIPs alone, which only the edge's way to a node leads to.
#[test]
fn checks_take_the_way_of_a_clients_packet() {
    let net = Topology::builder().nodes(2).build().unwrap();
    let services: Vec<Service> = Service::all(&[Mode::L2dsr, Mode::IpipV4, Mode::IpipV6])
        .into_iter()
        .filter(|service| service.protocol == Protocol::Tcp)
        .collect();
    let (edge, nodes) = (&net.edges()[0], net.nodes());
    for node in nodes {
        let vips: BTreeSet<IpAddr> = services.iter().map(|one| one.address.ip()).collect();
        vips.into_iter().for_each(|vip| node.add_vip(vip).unwrap());
    }
    let servers: Vec<Vec<Readiness>> = nodes
        .iter()
        .map(|node| {
            services
                .iter()
                .map(|one| Readiness::listen(node, one.address))
                .collect()
        })
        .collect();
    let _nodes: Vec<Agent> = Agent::start_all(nodes, &node_config([edge]));
    let config = edge_config(&services, nodes).replace(
        "    backends:",
        "    health: {type: http, path: /ready, interval: 500ms, timeout: 10s}\n    backends:",
    );
    let agent = Agent::start(edge, &config);

    let state = |rows: &Value, health: &str| {
        let rows = rows.as_array().unwrap();
        let right = rows.iter().filter(|row| row["health"] == health);
        (right.count(), rows.len())
    };
    let all = services.len() * nodes.len();
    agent.wait_for_answer("all backends pass", &["backends"], |rows| {
        state(rows, "healthy") == (all, all)
    });
    for (server, service) in servers.iter().flat_map(|all| all.iter().zip(&services)) {
        let clients = server.clients.lock().unwrap().clone();
        let expected = edge.address_like(service.address.ip());
        assert_eq!(
            clients,
            BTreeSet::from([expected]),
            "{service} {:?}",
            service.mode
        );
    }
    let reasons = agent.json(&["drops", "--all"]);
    for reason in ["probe_sent", "probe_answer"] {
        assert!(packets(&reasons, reason) > Some(0), "{reason}: {reasons}");
    }

    servers[0].iter().for_each(|server| server.answer(503));
    let rows = agent.wait_for_answer("one node's backends fail", &["backends"], |rows| {
        state(rows, "unhealthy") == (services.len(), all)
    });
    for row in rows.as_array().unwrap() {
        let is_first = row["backend"] == nodes[0].v4().to_string().as_str()
            || row["backend"] == nodes[0].v6().to_string().as_str();
        assert_eq!(row["reason"] == "HTTP 503", is_first, "{row}");
    }
    servers[0].iter().for_each(|server| server.answer(200));
    agent.wait_for_answer("they are well again", &["backends"], |rows| {
        state(rows, "healthy") == (all, all)
    });
}

/// Nothing listens at the service's port: the node's table and translation lead to the pod.
#[test]
fn pods_are_checked_through_the_tables_of_their_nodes() {
    const SERVICE_PORT: u16 = 80;
    let net = Topology::builder().nodes(2).pods(1).build().unwrap();
    let (edge, nodes) = (&net.edges()[0], net.nodes());
    let vips: [IpAddr; 2] = [vip_v4(1).into(), vip_v6(1).into()];
    let listen = |node: &Machine, vip: IpAddr| {
        let pod = &node.pods()[0];
        Readiness::listen(pod, (pod.address_like(vip), PORT).into())
    };
    let servers: Vec<Readiness> = nodes
        .iter()
        .flat_map(|node| vips.map(|vip| listen(node, vip)))
        .collect();

    let listed: Vec<String> = nodes
        .iter()
        .map(|node| format!("{{address: {}}}", node.v4()))
        .collect();
    let mut config = edge_config(&[], nodes).replace(
        "vips: []",
        &format!(
            "nodes: [{}]\nvips: [{}, '{}']",
            listed.join(", "),
            vips[0],
            vips[1]
        ),
    );
    for (number, vip) in vips.into_iter().enumerate() {
        let backends: Vec<String> = nodes
            .iter()
            .map(|node| {
                let pod = node.pods()[0].address_like(vip);
                format!("{{address: '{pod}', port: {PORT}, node: {}}}", node.v4())
            })
            .collect();
        config.push_str(&format!(
            "  - {{name: s{number}, address: '{vip}', port: {SERVICE_PORT}, protocol: tcp, \
             health: {{type: http, path: /ready, interval: 500ms, timeout: 10s}}, \
             backends: [{}]}}\n",
            backends.join(", ")
        ));
    }
    let node_config = config.replace("roles: [edge]", "roles: [node]")
        + &format!("trusted_edges: [{}, '{}']\n", edge.v4(), edge.v6());
    let _nodes: Vec<Agent> = Agent::start_all(nodes, &node_config);
    let agent = Agent::start(edge, &config);

    let with = |rows: &Value, field: &str, value: &str| {
        let rows = rows.as_array().unwrap().iter();
        rows.filter(|row| row[field] == value).count()
    };
    agent.wait_for_answer("all pods pass", &["backends"], |rows| {
        with(rows, "health", "healthy") == 4
    });
    for (number, server) in servers.iter().enumerate() {
        let clients = server.clients.lock().unwrap().clone();
        assert_eq!(
            clients,
            BTreeSet::from([edge.address_like(vips[number % 2])])
        );
    }

    drop(servers);
    let _back = listen(&nodes[0], vips[0]);
    agent.wait_for_answer("pods without a server fail", &["backends"], |rows| {
        with(rows, "health", "healthy") == 1 && with(rows, "reason", "connection refused") == 3
    });
}

/// An edge and nodes at work; each node tells by HTTP whether it is ready.
struct Cluster<'net> {
    service: Service,
    config: String,
    edge: Agent<'net>,
    client: &'net Machine,
    nodes: &'net [Machine],
    readiness: Vec<Readiness>,
    _nodes: Vec<Agent<'net>>,
    _echoes: Vec<Echo>,
}

impl<'net> Cluster<'net> {
    fn start(net: &'net Topology) -> Self {
        let services = Service::all(&[Mode::IpipV4]);
        let service = services
            .into_iter()
            .find(|service| service.protocol == Protocol::Tcp && service.address.is_ipv4())
            .unwrap();
        let (edge, nodes) = (&net.edges()[0], net.nodes());
        let readiness = nodes.iter().map(Readiness::start).collect();
        let echoes = nodes
            .iter()
            .map(|node| Echo::start(node, &[service]))
            .collect();
        let config = edge_config(&[service], nodes).replace(
            "    backends:",
            &format!(
                "    health: {{type: http, port: {PORT}, path: /ready, interval: 500ms, timeout: 10s}}\n    backends:"
            ),
        );
        Self {
            service,
            edge: Agent::start(edge, &config),
            config,
            client: &net.clients()[0],
            nodes,
            readiness,
            _nodes: Agent::start_all(nodes, &node_config([edge])),
            _echoes: echoes,
        }
    }

    fn row(&self, node: &str) -> Option<Value> {
        let rows = self.edge.json(&["backends"]);
        self.row_of(&rows, node)
    }

    fn row_of(&self, rows: &Value, node: &str) -> Option<Value> {
        let node = self.nodes.iter().find(|machine| machine.label() == node)?;
        let address = node.v4().to_string();
        let mut rows = rows.as_array()?.iter();
        rows.find(|row| row["backend"] == address.as_str()).cloned()
    }

    /// Waits until a node's backend is in a state of health and in the table or not accordingly.
    fn wait_for_health(&self, node: &str, health: &str) -> Value {
        let rows =
            self.edge
                .wait_for_answer(&format!("{node} is {health}"), &["backends"], |rows| {
                    self.row_of(rows, node).is_some_and(|row| {
                        row["health"] == health && (row["slots"] != 0) == (health == "healthy")
                    })
                });
        self.row_of(&rows, node).unwrap()
    }

    /// Opens flows and returns the nodes that answered.
    fn nodes_of_flows(&self) -> BTreeSet<String> {
        let flows = Flow::open_many(self.client, &[self.service], 40);
        flows.into_iter().map(|flow| flow.node).collect()
    }

    fn metrics(&self) -> String {
        self.edge.machine().namespace().run(|| {
            let mut stream = std::net::TcpStream::connect("127.0.0.1:9750").unwrap();
            stream
                .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                .unwrap();
            std::io::read_to_string(stream).unwrap()
        })
    }
}

/// The states of health that backends are in.
fn states(rows: &Value) -> BTreeSet<String> {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row["health"].as_str().unwrap().to_owned())
        .collect()
}

fn packets(reasons: &Value, reason: &str) -> Option<u64> {
    let mut rows = reasons.as_array()?.iter();
    rows.find(|row| row["reason"] == reason)?["packets"].as_u64()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Answers GETs at a node's address with a status.
struct Readiness {
    status: Arc<AtomicU16>,
    /// Who has asked.
    clients: Arc<Mutex<BTreeSet<IpAddr>>>,
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Readiness {
    fn start(node: &Machine) -> Self {
        Self::listen(node, SocketAddr::new(node.v4(), PORT))
    }

    fn listen(node: &Machine, address: SocketAddr) -> Self {
        let listener = node.namespace().run(|| TcpListener::bind(address)).unwrap();
        let accepting = listener.try_clone().unwrap();
        let status = Arc::new(AtomicU16::new(200));
        let answered = Arc::clone(&status);
        let clients = Arc::<Mutex<BTreeSet<IpAddr>>>::default();
        let seen = Arc::clone(&clients);
        let thread = thread::spawn(move || {
            while let Ok((mut stream, client)) = accepting.accept() {
                seen.lock().unwrap().insert(client.ip());
                let mut asked = String::new();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while reader.read_line(&mut asked).is_ok_and(|length| length > 2) {}
                let status = match asked.starts_with("GET /ready HTTP/1.1\r\n") {
                    true => answered.load(Ordering::Relaxed),
                    false => 404,
                };
                let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
            }
        });
        Self {
            status,
            clients,
            listener,
            thread: Some(thread),
        }
    }

    fn answer(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        // Linux: wakes the thread in accept().
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
