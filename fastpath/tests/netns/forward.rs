//! Real traffic: client - router - edge - nodes, TCP and UDP, both families, all modes.
//!
//! The dataplane is driven directly, without an agent.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    time::Duration,
};

use crate::next_hops::resolve;
use fastpath::{
    attach::Options,
    load::{Loaded, Loader},
    tables::{
        Addresses, BackendSpec, Counters, ForwardMode, Outcome, Protocol, ServiceKey, ServiceSpec,
        Settings, Tables, Trace,
    },
};
use lab::{Machine, Topology, vip_v4, vip_v6, wait_until};
use xdp_prog::abi::map;

const PORT: u16 = 7000;
const TIMEOUT: Duration = Duration::from_secs(60);
const CONNECTIONS: u64 = 40;

#[test]
fn ipip_in_all_four_family_pairs() {
    let lab = Topology::builder()
        .nodes(2)
        .routed_nodes(1)
        .build()
        .unwrap();
    for vip in [IpAddr::V4(vip_v4(1)), IpAddr::V6(vip_v6(1))] {
        let echoes = Echoes::start(&lab, vip);
        for by_v4 in [true, false] {
            let outer = |machine: &Machine| if by_v4 { machine.v4() } else { machine.v6() };
            let _nodes: Vec<_> = lab
                .nodes()
                .iter()
                .map(|node| Dataplane::node(node, &lab))
                .collect();
            let mut edge = Dataplane::start(&lab.edges()[0]);
            let nodes: Vec<IpAddr> = lab.nodes().iter().map(outer).collect();
            edge.serve(vip, ForwardMode::Ipip, &nodes);
            exercise(&lab, vip, &edge);
        }
        drop(echoes);
    }
}

#[test]
fn nodes_that_trust_a_prefix_take_flows_from_sources_of_their_own() {
    let lab = Topology::builder()
        .nodes(1)
        .routed_nodes(1)
        .build()
        .unwrap();
    let vip = IpAddr::V4(vip_v4(1));
    let echoes = Echoes::start(&lab, vip);
    let (prefix_v4, prefix_v6) = ("10.7.0.0/20", "2001:db8:7::/112");
    let spread = Settings {
        prefix_v4: Some(prefix_v4.parse().unwrap()),
        prefix_v6: Some(prefix_v6.parse().unwrap()),
        ..sources(&lab.edges()[0])
    };
    for by_v4 in [true, false] {
        let nodes = lab.nodes().iter();
        let mut nodes: Vec<_> = nodes.map(|node| Dataplane::node(node, &lab)).collect();
        let mut edge = Dataplane::start(&lab.edges()[0]);
        edge.tables.set_settings(spread).unwrap();
        let addresses = nodes.iter().map(|node| {
            if by_v4 {
                node.machine.v4()
            } else {
                node.machine.v6()
            }
        });
        let addresses: Vec<IpAddr> = addresses.collect();
        edge.serve(vip, ForwardMode::Ipip, &addresses);
        lab.clients()[0].namespace().run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(b"hello", (vip, PORT)).unwrap();
        });
        // The edge's own address alone is trusted so far.
        wait_until("the packet is refused", TIMEOUT, || {
            let counters = nodes.iter().map(Dataplane::counters);
            let refused = counters.map(|counters| reason(&counters, "encap_untrusted"));
            refused.sum::<u64>() == 1
        })
        .unwrap();
        let prefixes = [prefix_v4, prefix_v6].map(|prefix| prefix.parse().unwrap());
        for node in &mut nodes {
            node.tables
                .set_trusted_edges(&prefixes.into_iter().collect())
                .unwrap();
        }
        exercise_beyond(&lab, vip, &edge, 1);
    }
    drop(echoes);
}

#[test]
fn l2dsr_for_both_families() {
    let lab = Topology::builder().nodes(3).build().unwrap();
    for vip in [IpAddr::V4(vip_v4(1)), IpAddr::V6(vip_v6(1))] {
        let echoes = Echoes::start(&lab, vip);
        let mut edge = Dataplane::start(&lab.edges()[0]);
        let nodes: Vec<IpAddr> = lab
            .nodes()
            .iter()
            .map(|node| node.address_like(vip))
            .collect();
        edge.serve(vip, ForwardMode::L2dsr, &nodes);
        exercise(&lab, vip, &edge);
        drop(echoes);
    }
}

#[test]
fn ipip_from_an_untrusted_edge_is_left_alone() {
    let lab = Topology::builder().nodes(1).build().unwrap();
    let vip = IpAddr::V4(vip_v4(1));
    let _echoes = Echoes::start(&lab, vip);
    let node = &lab.nodes()[0];
    let mut receiver = Dataplane::start(node);
    receiver
        .tables
        .set_addresses(Arc::new(Addresses {
            local: BTreeSet::from([node.v4()]),
            ..Addresses::default()
        }))
        .unwrap();
    let mut edge = Dataplane::start(&lab.edges()[0]);
    edge.serve(vip, ForwardMode::Ipip, &[node.v4()]);

    let reply = lab.clients()[0].namespace().run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        socket.send_to(b"hello", (vip, PORT)).unwrap();
        socket.recv(&mut [0; 16]).map_err(|error| error.kind())
    });
    assert!(reply.is_err(), "{reply:?}");
    wait_until("the node counts the packet", TIMEOUT, || {
        reason(&receiver.counters(), "encap_untrusted") == 1
    })
    .unwrap();
    assert_eq!(reason(&receiver.counters(), "decapsulated"), 0);
    assert_eq!(receiver.last_untrusted(), Some(lab.edges()[0].v4()));
    assert_eq!(edge.last_untrusted(), None);
}

#[test]
fn next_hops_that_nobody_resolved_are_found_in_the_kernels_fib() {
    let lab = Topology::builder()
        .nodes(1)
        .routed_nodes(1)
        .build()
        .unwrap();
    let edge_machine = &lab.edges()[0];
    edge_machine.namespace().enable_forwarding().unwrap();
    for vip in [IpAddr::V4(vip_v4(1)), IpAddr::V6(vip_v6(1))] {
        let _echoes = Echoes::start(&lab, vip);
        let _nodes: Vec<_> = lab
            .nodes()
            .iter()
            .map(|node| Dataplane::node(node, &lab))
            .collect();
        let mut edge = Dataplane::start(edge_machine);
        edge.tables.set_settings(sources(edge_machine)).unwrap();
        let nodes: Vec<IpAddr> = lab
            .nodes()
            .iter()
            .map(|node| node.address_like(vip))
            .collect();
        edge.put(vip, ForwardMode::Ipip, &nodes);
        edge_machine.namespace().run(|| nodes.iter().for_each(meet));

        exercise(&lab, vip, &edge);
        explanations_ask_the_fib_too(&edge, vip, lab.clients()[0].address_like(vip));
    }
}

fn explanations_ask_the_fib_too(edge: &Dataplane<'_>, vip: IpAddr, client: IpAddr) {
    let device = edge.machine.link().unwrap();
    let (key, from) = (key(vip, Protocol::Tcp), SocketAddr::new(client, 4711));
    let trace = |ingress| {
        let namespace = edge.machine.namespace();
        namespace.run(|| edge.tables.trace(&key, from, ingress).unwrap())
    };
    let way = |trace: &Trace| {
        let step = trace.steps.iter().find(|step| step.name == "fib");
        step.unwrap_or_else(|| panic!("{trace:?}")).text.clone()
    };
    let found = trace(device.index());
    assert_eq!(found.verdict, Outcome::Forward(device.index()), "{found:?}");
    let known = format!("device {}, MAC ", device.index());
    assert!(way(&found).contains(&known), "{found:?}");
    assert_eq!(found.after[6..12], device.mac());

    let lost = Outcome::Drop("next_hop_unresolved");
    let nowhere = trace(0);
    assert_eq!(nowhere.verdict, lost, "{nowhere:?}");
    let family = if vip.is_ipv4() { "ipv4" } else { "ipv6" };
    let forwarding = format!("net/{family}/conf/eth0/forwarding");
    edge.machine
        .namespace()
        .set_sysctl(&forwarding, "0")
        .unwrap();
    let closed = trace(device.index());
    assert_eq!(closed.verdict, lost, "{closed:?}");
    assert!(way(&closed).ends_with("forwarding is off on eth0"));
}

#[test]
fn l2dsr_never_goes_through_a_router() {
    let lab = Topology::builder()
        .nodes(0)
        .routed_nodes(1)
        .build()
        .unwrap();
    let vip = IpAddr::V4(vip_v4(1));
    let _echoes = Echoes::start(&lab, vip);
    let edge_machine = &lab.edges()[0];
    edge_machine.namespace().enable_forwarding().unwrap();
    let node = lab.nodes()[0].v4();
    for resolved in [true, false] {
        let mut edge = Dataplane::start(edge_machine);
        if resolved {
            let tables = &mut edge.tables;
            edge.machine.namespace().run(|| resolve(tables, &[node]));
        } else {
            edge_machine.namespace().run(|| meet(&node));
        }
        edge.put(vip, ForwardMode::L2dsr, &[node]);
        lab.clients()[0].namespace().run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(b"who?", (vip, PORT)).unwrap();
        });
        wait_until("the edge drops the packet", TIMEOUT, || {
            reason(&edge.counters(), "not_on_link") == 1
        })
        .unwrap();
    }
}

fn sources(machine: &Machine) -> Settings {
    let (IpAddr::V4(v4), IpAddr::V6(v6)) = (machine.v4(), machine.v6()) else {
        panic!("addresses of another family");
    };
    Settings {
        source_v4: Some(v4),
        source_v6: Some(v6),
        ..Settings::default()
    }
}

/// Sends something of the kernel's own, so that it resolves the neighbour on the way.
fn meet(node: &IpAddr) {
    let any: IpAddr = if node.is_ipv4() {
        [0; 4].into()
    } else {
        [0; 16].into()
    };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.connect((*node, 9)).unwrap();
    socket.send(b"anyone?").unwrap();
    // Nobody listens: the node says so, and by then the neighbour is known.
    socket.recv(&mut [0; 1]).unwrap_err();
}

/// Sends TCP and UDP; every reply must come from a node, and no reply cross the edge.
fn exercise(lab: &Topology, vip: IpAddr, edge: &Dataplane<'_>) {
    exercise_beyond(lab, vip, edge, 0);
}

/// Does so after some UDP packets that came before.
fn exercise_beyond(lab: &Topology, vip: IpAddr, edge: &Dataplane<'_>, earlier: u64) {
    let client = lab.clients()[0].namespace();
    let mut seen = BTreeSet::new();
    for _ in 0..CONNECTIONS {
        seen.insert(client.run(|| tcp_exchange(vip)));
        seen.insert(client.run(|| udp_exchange(vip)));
    }
    assert_eq!(
        seen.len(),
        lab.nodes().len(),
        "nodes that answered: {seen:?}"
    );

    let counters = edge.counters();
    let forwarded: Vec<u64> = counters
        .services
        .iter()
        .map(|(_, traffic)| traffic.packets)
        .collect();
    let by_backend: u64 = counters
        .backends
        .iter()
        .map(|(_, traffic)| traffic.packets)
        .sum();
    assert_eq!(forwarded.iter().sum::<u64>(), by_backend);
    assert!(
        forwarded.contains(&(CONNECTIONS + earlier)),
        "one UDP packet each: {forwarded:?}"
    );
    let drops: Vec<_> = counters
        .reasons
        .iter()
        .filter(|count| count.kind == xdp_prog::reason::ReasonKind::Drop && count.packets > 0)
        .collect();
    assert!(drops.is_empty(), "{drops:?}");
}

fn tcp_exchange(vip: IpAddr) -> String {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(vip, PORT), TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"who?").unwrap();
    let mut name = String::new();
    stream.read_to_string(&mut name).unwrap();
    name
}

fn udp_exchange(vip: IpAddr) -> String {
    let any: IpAddr = if vip.is_ipv4() {
        [0; 4].into()
    } else {
        [0; 16].into()
    };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.send_to(b"who?", (vip, PORT)).unwrap();
    let mut name = [0; 64];
    let (length, from) = socket.recv_from(&mut name).unwrap();
    assert_eq!(
        from,
        SocketAddr::new(vip, PORT),
        "the reply comes from the VIP"
    );
    String::from_utf8_lossy(&name[..length]).into_owned()
}

/// Servers on every node that answer with the node's name.
struct Echoes<'lab> {
    lab: &'lab Topology,
    vip: IpAddr,
}

impl<'lab> Echoes<'lab> {
    fn start(lab: &'lab Topology, vip: IpAddr) -> Self {
        for node in lab.nodes() {
            node.add_vip(vip).unwrap();
            let name = node.label().to_owned();
            let (tcp, udp) = node.namespace().run(|| {
                (
                    TcpListener::bind((vip, PORT)).unwrap(),
                    UdpSocket::bind((vip, PORT)).unwrap(),
                )
            });
            let tcp_name = name.clone();
            // Both threads end with the process; the sockets die with their namespace.
            std::thread::spawn(move || {
                for mut stream in tcp.incoming().flatten() {
                    let mut question = [0; 4];
                    if stream.read_exact(&mut question).is_ok() {
                        let _ = stream.write_all(tcp_name.as_bytes());
                    }
                }
            });
            std::thread::spawn(move || {
                let mut question = [0; 64];
                while let Ok((_, from)) = udp.recv_from(&mut question) {
                    let _ = udp.send_to(name.as_bytes(), from);
                }
            });
        }
        Self { lab, vip }
    }
}

impl Drop for Echoes<'_> {
    fn drop(&mut self) {
        for node in self.lab.nodes() {
            let _ = node.remove_vip(self.vip);
        }
    }
}

/// A machine's program and tables.
struct Dataplane<'lab> {
    machine: &'lab Machine,
    loaded: Option<Loaded>,
    tables: Tables,
}

impl<'lab> Dataplane<'lab> {
    fn start(machine: &'lab Machine) -> Self {
        let (loaded, tables) = machine.namespace().run(|| {
            let mut loaded = Loader::unpinned()
                .max_entries(map::LUT, 4096)
                .max_entries(map::BACKENDS, 64)
                .max_entries(map::BACKEND_TRAFFIC, 64)
                .load()
                .unwrap();
            loaded.attach("eth0", &Options::default()).unwrap();
            let tables = Tables::open(&loaded).unwrap();
            (loaded, tables)
        });
        Self {
            machine,
            loaded: Some(loaded),
            tables,
        }
    }

    fn last_untrusted(&self) -> Option<IpAddr> {
        let reader = self.tables.reader(self.loaded.as_ref().unwrap()).unwrap();
        let (source, _) = reader.last_untrusted().unwrap()?;
        Some(source)
    }

    /// Starts a node that trusts the edges of the lab.
    fn node(machine: &'lab Machine, lab: &Topology) -> Self {
        let mut node = Self::start(machine);
        let addresses = Addresses {
            local: BTreeSet::from([machine.v4(), machine.v6()]),
            inner: BTreeSet::from([vip_v4(1).into(), vip_v6(1).into()]),
            ..Addresses::default()
        };
        node.tables.set_addresses(addresses.into()).unwrap();
        let edges = lab.edges().iter().flat_map(|edge| [edge.v4(), edge.v6()]);
        node.tables
            .set_trusted_edges(&edges.map(Into::into).collect())
            .unwrap();
        node
    }

    fn serve(&mut self, vip: IpAddr, mode: ForwardMode, nodes: &[IpAddr]) {
        let tables = &mut self.tables;
        self.machine.namespace().run(|| resolve(tables, nodes));
        self.put(vip, mode, nodes);
    }

    fn put(&mut self, vip: IpAddr, mode: ForwardMode, nodes: &[IpAddr]) {
        let backends = nodes.iter().map(|node| BackendSpec::node(*node, 1));
        let spec = ServiceSpec {
            mode,
            backends: backends.collect(),
            ..ServiceSpec::default()
        };
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            self.tables.put_service(key(vip, protocol), &spec).unwrap();
        }
    }

    fn counters(&self) -> Counters {
        self.tables.counters().unwrap()
    }
}

fn key(vip: IpAddr, protocol: Protocol) -> ServiceKey {
    ServiceKey {
        address: vip,
        port: PORT,
        protocol,
    }
}

impl Drop for Dataplane<'_> {
    fn drop(&mut self) {
        // The link is taken off in the namespace of its interface.
        let loaded = self.loaded.take();
        self.machine.namespace().run(|| drop(loaded));
    }
}

fn reason(counters: &Counters, label: &str) -> u64 {
    counters
        .reasons
        .iter()
        .find(|count| count.label == label)
        .map_or(0, |count| count.packets)
}
