//! Replies of real pods: client - router - edge - node - pod, and straight back.
//!
//! The pod's cable keeps its offloads, so the egress program meets partial
//! checksums and merged segments; the node's uplink has none, so what the client
//! gets was finished after the program. The client's frames are captured and their
//! checksums computed once more.

mod capture;
mod forge;
use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    thread,
    time::Duration,
};

use crate::next_hops::resolve;
use aya::maps::{Array, HashMap, Map};
use capture::{Capture, Segment};
use fastpath::{
    attach::{EgressHook, Options},
    load::{Loaded, Loader},
    nexthop::Resolution,
    tables::{Addresses, BackendSpec, Protocol, ServiceKey, ServiceSpec, Settings, Tables},
};
use forge::{Forger, Says};
use lab::{Machine, Offload, Topology, output, vip_v4, vip_v6, wait_for, wait_until};
use xdp_prog::{
    abi::{FlowNote, PodFlow, Tuple, map},
    flow_state::HOLD_UNPROVED_NS,
};

const PORT: u16 = 80;
const POD_PORT: u16 = 8080;
const NODE_PORT: u16 = 30_080;
const TIMEOUT: Duration = Duration::from_secs(60);
const MTU: u32 = 1500;
/// Entries of each table of flows.
const TABLE: u32 = 4096;
const BRIDGE: &str = "br0";
/// The machine answers no segment that it knows nothing of.
const SILENCE: &str = "
table ip silence {
    chain output {
        type filter hook output priority filter
        tcp flags & rst == rst drop
    }
}
";
/// The machine answers no SYN.
const NO_SYN_ACKS: &str = "
table ip mute {
    chain output {
        type filter hook output priority filter
        tcp flags & (syn | ack) == (syn | ack) drop
    }
}
";

#[test]
fn megabytes_from_a_pod_with_offloads_arrive_whole() {
    const LENGTH: usize = 8 << 20;
    let world = World::new();
    for vip in world.vips() {
        let listener = world.pod().namespace().run(|| listen(vip));
        let sender = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&pattern(LENGTH)).unwrap();
        });
        let merged = world.received_from_pod();
        let (peer, received, segments) = world.client().run(|| {
            let capture = Capture::start(vip);
            let mut stream = connect(vip).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            (stream.peer_addr().unwrap(), received, capture.stop())
        });
        sender.join().unwrap();
        let merged = world.received_from_pod() - merged;

        assert_eq!(peer, SocketAddr::new(vip, PORT));
        assert!(received == pattern(LENGTH), "the data differ");
        check(&segments);
        let data = LENGTH / 1460;
        // Two segments at least are merged, and more where they are acknowledged soon.
        assert!(
            merged * 4 < 3 * data as u64,
            "the pod sent no merged segments: {merged} packets, {data} segments"
        );

        // The client heeds the SYN+ACK, which leaves room for the outer IPv4 header.
        let mss = segments.iter().find_map(|segment| segment.mss);
        let headers = if vip.is_ipv4() { 40 } else { 60 };
        assert_eq!(mss, Some(1500 - 20 - headers));
    }
}

#[test]
fn answers_of_4_kb_arrive_in_fragments_from_the_vip() {
    const LENGTH: usize = 4096;
    let world = World::new();
    for vip in world.vips() {
        let server = world.pod().namespace().run(|| bind(any(vip), POD_PORT));
        let answers = thread::spawn(move || {
            for _ in 0..3 {
                let (_, from) = server.recv_from(&mut [0; 64]).unwrap();
                server.send_to(&pattern(LENGTH), from).unwrap();
            }
        });
        world.client().run(|| {
            let socket = bind(any(vip), 0);
            for _ in 0..3 {
                socket.send_to(b"query", (vip, PORT)).unwrap();
                let mut answer = [0; 2 * LENGTH];
                let (length, from) = socket.recv_from(&mut answer).unwrap();
                assert_eq!(from, SocketAddr::new(vip, PORT));
                assert!(answer[..length] == pattern(LENGTH), "the data differ");
            }
        });
        answers.join().unwrap();
    }
}

/// A socket takes a RST or an ICMP error only where both name its own flow.
#[test]
fn closed_ports_of_a_pod_are_refused_in_the_name_of_the_vip() {
    let world = World::new();
    for vip in world.vips() {
        let refused = world.client().run(|| connect(vip).unwrap_err().kind());
        assert_eq!(refused, ErrorKind::ConnectionRefused, "TCP to {vip}");

        let refused = world.client().run(|| {
            let socket = bind(any(vip), 0);
            socket.connect((vip, PORT)).unwrap();
            socket.send(b"query").unwrap();
            socket.recv(&mut [0; 64]).unwrap_err().kind()
        });
        assert_eq!(refused, ErrorKind::ConnectionRefused, "UDP to {vip}");
    }
}

#[test]
fn answers_to_the_nodes_own_sockets_on_a_node_port_are_passed() {
    let world = World::new();
    let node = &world.lab.nodes()[0];
    for client in [world.lab.clients()[0].v4(), world.lab.clients()[0].v6()] {
        let own = node.address_like(client);
        let pod = world.pod().namespace().run(|| bind(any(client), POD_PORT));
        let remote = world.client().run(|| bind(client, 9000));
        let socket = node.namespace().run(|| bind(own, NODE_PORT));

        socket.send_to(b"question", (client, 9000)).unwrap();
        let (_, from) = remote.recv_from(&mut [0; 64]).unwrap();
        assert_eq!(from, SocketAddr::new(own, NODE_PORT));
        remote.send_to(b"answer", from).unwrap();
        let mut answer = [0; 64];
        let (length, _) = socket.recv_from(&mut answer).unwrap();
        assert_eq!(&answer[..length], b"answer");

        // From another port it is a client's query to the service.
        let stranger = world.client().run(|| bind(client, 9001));
        stranger.send_to(b"query", (own, NODE_PORT)).unwrap();
        let mut query = [0; 64];
        let (length, from) = pod.recv_from(&mut query).unwrap();
        assert_eq!(&query[..length], b"query");
        pod.send_to(b"reply", from).unwrap();
        let (length, from) = stranger.recv_from(&mut query).unwrap();
        assert_eq!(&query[..length], b"reply");
        assert_eq!(from, SocketAddr::new(own, NODE_PORT));
    }
}

/// By a bridge and its port: the program sees each reply twice, and the second time it leaves from a NodePort.
#[test]
fn replies_that_pass_two_devices_are_no_flows_of_the_node() {
    let mut world = World::behind_a_bridge();
    world.attach_to_node(BRIDGE);
    let node = &world.lab.nodes()[0];
    for client in [world.lab.clients()[0].v4(), world.lab.clients()[0].v6()] {
        let own = node.address_like(client);
        let pod = world.pod().namespace().run(|| bind(any(client), POD_PORT));
        let stranger = world.client().run(|| bind(client, 9001));
        for number in 0..3 {
            stranger.send_to(b"query", (own, NODE_PORT)).unwrap();
            let mut query = [0; 64];
            let (_, from) = pod
                .recv_from(&mut query)
                .unwrap_or_else(|error| panic!("query {number} to {own}: {error}"));
            pod.send_to(b"reply", from).unwrap();
            let (_, from) = stranger.recv_from(&mut query).unwrap();
            assert_eq!(from, SocketAddr::new(own, NODE_PORT));
        }
        drop(pod);

        let server = world.pod().namespace().run(|| listen(client));
        let answers = thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut question = [0; 4];
            while stream.read_exact(&mut question).is_ok() {
                stream.write_all(&question).unwrap();
            }
        });
        world.client().run(|| {
            let to = SocketAddr::new(own, NODE_PORT);
            let mut stream = TcpStream::connect_timeout(&to, TIMEOUT).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            for number in 0..3 {
                let mut answer = [0; 4];
                stream.write_all(b"ping").unwrap();
                stream
                    .read_exact(&mut answer)
                    .unwrap_or_else(|error| panic!("answer {number} of {to}: {error}"));
            }
        });
        answers.join().unwrap();
    }
    assert_eq!(world.node.count("local_flow"), 0);
}

/// As the kernel's connection tracking has it: each VIP has a tuple of its own at the pod, and finds it in TIME_WAIT.
#[test]
fn port_goes_from_vip_to_vip_of_a_pod_without_a_challenge() {
    const ROUNDS: usize = 4;
    let world = World::new();
    let vips = world.vips_v4();
    let server = world.pod().namespace().run(|| listen(vips[0].into()));
    let closer = thread::spawn(move || {
        // The pod closes first, and has the connection in TIME_WAIT.
        for _ in 0..ROUNDS * vips.len() {
            let (stream, _) = server.accept().unwrap();
            drop(stream);
        }
    });
    world.client().run(|| {
        for round in 0..ROUNDS {
            for vip in vips {
                // A busy machine may have the port in use for a moment after the last connection's end.
                let connect = || connect_from(4711, SocketAddrV4::new(vip, PORT));
                let mut stream = wait_for("the port is free", TIMEOUT, connect).unwrap();
                assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "{vip}");
                // By a RST it would answer an ACK of an older connection.
                assert_eq!(sent_resets(), 0, "{vip}, round {round}");
            }
        }
    });
    closer.join().unwrap();
}

#[test]
fn forged_segments_break_no_connection() {
    const CONNECTIONS: usize = 20;
    let world = World::new();
    let [first, second] = world.vips_v4();
    let to = SocketAddr::new(first.into(), PORT);
    let (streams, mut accepted, _server) = world.connections(to, CONNECTIONS);

    world.client().run(|| {
        let forger = Forger::open();
        for stream in &streams {
            let from = local_v4(stream);
            for (says, to) in [
                (Says::Rst, first),
                (Says::Ack, second),
                (Says::Rst, second),
                (Says::Syn, second),
                (Says::Ack, second),
                (Says::Syn, first),
                (Says::Ack, first),
            ] {
                assert!(forger.send(from, SocketAddrV4::new(to, PORT), says));
            }
        }
    });
    world.talk(&streams, &mut accepted);
}

/// The kernel would put the pieces together and refuse, from the NodePort, what it has no connection for.
#[test]
fn pieces_that_hide_a_node_port_break_no_connection() {
    const CONNECTIONS: usize = 20;
    let world = World::new();
    let IpAddr::V4(node) = world.lab.nodes()[0].v4() else {
        panic!("IPv6");
    };
    let to = SocketAddrV4::new(node, NODE_PORT);
    let (streams, mut accepted, _server) = world.connections(to.into(), CONNECTIONS);

    let pieces = || world.node.count("fragment_opaque") + world.node.count("fragment_not_ours");
    let before = pieces();
    world.client().run(|| {
        let forger = Forger::open();
        for stream in &streams {
            assert!(forger.send_in_pieces_of_8(local_v4(stream), to, Says::Ack));
        }
    });
    wait_until("the node has three pieces of each", TIMEOUT, || {
        pieces() - before >= 3 * CONNECTIONS as u64
    })
    .unwrap();
    world.talk(&streams, &mut accepted);
}

/// Whose client talks to the pod by its own address, from a port that somebody else uses for a VIP of the pod.
#[test]
fn forged_segments_break_no_connection_to_the_pod_itself() {
    const CONNECTIONS: usize = 20;
    let world = World::new();
    let [vip, _] = world.vips_v4();
    let pod = world.open_pod();
    let (streams, mut accepted, server) = world.connections(pod.into(), CONNECTIONS);
    let to = SocketAddrV4::new(vip, PORT);
    for says in [Says::Syn, Says::Ack, Says::Rst] {
        let before = world.node.count("delivered");
        world.client().run(|| {
            let forger = Forger::open();
            for stream in &streams {
                assert!(forger.send(local_v4(stream), to, says));
            }
        });
        wait_until("the pod has the segments", TIMEOUT, || {
            world.node.count("delivered") - before >= CONNECTIONS as u64
        })
        .unwrap();
        world.talk(&streams, &mut accepted);
    }
    // By the VIP, the pod has answered a SYN from this port.
    let from = SocketAddrV4::new(*local_v4(&streams[0]).ip(), 4711);
    let before = world.node.count("delivered");
    assert!(
        world
            .client()
            .run(|| Forger::open().send(from, to, Says::Syn))
    );
    wait_until("the pod has the SYN, and the client's RST", TIMEOUT, || {
        world.node.count("delivered") - before >= 2
    })
    .unwrap();
    let stream = world.client().run(|| connect_from(4711, pod)).unwrap();
    let connection = server.accept().unwrap().0;
    world.talk(&[stream], &mut [connection]);
}

/// As after a change of the tables' layout, or where there were too many flows.
#[test]
fn connections_go_on_once_their_flows_are_forgotten() {
    const CONNECTIONS: usize = 6;
    const LENGTH: usize = 8 << 20;
    let world = World::new();
    for vip in world.vips() {
        let to = SocketAddr::new(vip, PORT);
        let (mut streams, mut accepted, _server) = world.connections(to, CONNECTIONS);
        world.talk(&streams, &mut accepted);
        world.forget_flows();
        // The client speaks first: what the pod says before nobody can tell from other packets of it.
        let go_on = |mut client: &TcpStream, mut pod: &TcpStream| {
            client.write_all(b"still").unwrap();
            pod.read_exact(&mut [0; 5]).unwrap();
        };
        for (client, pod) in streams.iter().zip(&accepted) {
            go_on(client, pod);
        }
        world.talk(&streams, &mut accepted);

        // In the middle of a transfer, by either end.
        for is_pods in [false, true] {
            let (mut sender, mut receiver) = (streams.pop().unwrap(), accepted.pop().unwrap());
            go_on(&sender, &receiver);
            if is_pods {
                (sender, receiver) = (receiver, sender);
            }
            let sending = thread::spawn(move || {
                sender.write_all(&pattern(LENGTH)).unwrap();
                sender
            });
            let mut received = vec![0; LENGTH];
            let (half, rest) = received.split_at_mut(LENGTH / 2);
            receiver.read_exact(half).unwrap();
            world.forget_flows();
            if is_pods {
                receiver.write_all(b"more").unwrap();
            }
            receiver.read_exact(rest).unwrap();
            drop(sending.join().unwrap());
            assert!(received == pattern(LENGTH), "the data differ");
        }
    }
}

/// The servers are silent until the flood is over.
#[test]
fn connections_of_silent_servers_survive_a_flood_of_handshakes() {
    const CONNECTIONS: usize = 20;
    let world = World::new();
    let [first, second] = world.vips_v4();
    let to = SocketAddr::new(first.into(), PORT);
    let (streams, mut accepted, server) = world.connections(to, CONNECTIONS);
    drop(server);

    let begun = world.node.count("delivered");
    world.client().run(|| {
        let forger = Forger::open();
        let own = world.lab.clients()[0].v4();
        let IpAddr::V4(own) = own else { panic!("IPv6") };
        let taken: BTreeSet<u16> = streams
            .iter()
            .map(|stream| stream.local_addr().unwrap().port())
            .collect();
        // Several times as many flows as the table has entries.
        for port in (1024..u16::MAX)
            .step_by(9)
            .filter(|port| !taken.contains(port))
        {
            let from = SocketAddrV4::new(own, port);
            for to in [first, second] {
                forger.send(from, SocketAddrV4::new(to, PORT), Says::Syn);
            }
        }
    });
    let delivered = world.node.count("delivered") - begun;
    assert!(delivered > u64::from(TABLE), "{delivered} SYNs");
    world.talk(&streams, &mut accepted);
}

/// Of a client that answers nothing, so that the pod waits for the end of the handshake.
#[test]
fn forged_handshake_keeps_no_port_from_another_vip() {
    let world = World::new();
    let [first, second] = world.vips_v4();
    let server = world.pod().namespace().run(|| listen(first.into()));
    world.client().nft(SILENCE).unwrap();
    world.client().run(|| {
        let forger = Forger::open();
        let IpAddr::V4(own) = world.lab.clients()[0].v4() else {
            panic!("IPv6");
        };
        for port in 5000..5010 {
            let from = SocketAddrV4::new(own, port);
            assert!(forger.send(from, SocketAddrV4::new(first, PORT), Says::Syn));
            connect_from(port, SocketAddrV4::new(second, PORT)).unwrap();
        }
    });
    drop(server);
}

/// The pod would answer the client's SYN as one of that handshake, whose end it waits for.
#[test]
fn forged_handshake_of_a_while_ago_meets_no_connection_by_another_vip() {
    const PORTS: Range<u16> = 5000..5010;
    let world = World::new();
    let [first, second] = world.vips_v4();
    let pod = world.pod().namespace();
    let server = pod.run(|| listen(first.into()));
    // What the pod says renews what is known of a flow.
    pod.nft(NO_SYN_ACKS).unwrap();
    let begun = world.node.count("delivered");
    world.client().run(|| {
        let forger = Forger::open();
        let IpAddr::V4(own) = world.lab.clients()[0].v4() else {
            panic!("IPv6");
        };
        for port in PORTS {
            let from = SocketAddrV4::new(own, port);
            assert!(forger.send(from, SocketAddrV4::new(first, PORT), Says::Syn));
        }
    });
    wait_until("the pod has the SYNs", TIMEOUT, || {
        world.node.count("delivered") - begun >= PORTS.len() as u64
    })
    .unwrap();
    thread::sleep(Duration::from_nanos(HOLD_UNPROVED_NS) + Duration::from_millis(500));
    pod.nft("delete table ip mute").unwrap();
    for port in PORTS {
        let connect = || connect_from(port, SocketAddrV4::new(second, PORT));
        let _stream = world.client().run(connect).unwrap();
        let (_, peer) = server.accept().unwrap();
        assert_ne!(peer.port(), port);
    }
}

fn local_v4(stream: &TcpStream) -> SocketAddrV4 {
    match stream.local_addr().unwrap() {
        SocketAddr::V4(from) => from,
        SocketAddr::V6(from) => panic!("{from}"),
    }
}

/// Connects from this port.
fn connect_from(port: u16, to: SocketAddrV4) -> std::io::Result<TcpStream> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let from = socket_address(SocketAddrV4::new([0; 4].into(), port));
    let length = size_of::<libc::sockaddr_in>().try_into().unwrap();
    // SAFETY: the address is valid for reading, and its length is its own.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const from).cast(), length) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let to = socket_address(to);
    // SAFETY: as above.
    if unsafe { libc::connect(socket.as_raw_fd(), (&raw const to).cast(), length) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn socket_address(end: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET.try_into().unwrap(),
        sin_port: end.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(end.ip().octets()),
        },
        sin_zero: [0; 8],
    }
}

/// Returns how many RSTs the calling thread's namespace has sent.
fn sent_resets() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut tcp = counters.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (tcp.next().unwrap(), tcp.next().unwrap());
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, value) = both.find(|(name, _)| *name == "OutRsts").unwrap();
    value.parse().unwrap()
}

fn pattern(length: usize) -> Vec<u8> {
    (0_u32..)
        .flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_be_bytes())
        .take(length)
        .collect()
}

fn ip(machine: &Machine, arguments: &str) {
    output(machine.namespace().command("ip").args(arguments.split(' '))).unwrap();
}

fn any(like: IpAddr) -> IpAddr {
    if like.is_ipv4() {
        [0; 4].into()
    } else {
        [0; 16].into()
    }
}

fn listen(vip: IpAddr) -> TcpListener {
    TcpListener::bind((any(vip), POD_PORT)).unwrap()
}

fn bind(address: IpAddr, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((address, port)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn connect(vip: IpAddr) -> std::io::Result<TcpStream> {
    connect_to(SocketAddr::new(vip, PORT))
}

fn connect_to(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Every segment that the client got is whole and right.
fn check(segments: &[Segment]) {
    assert!(segments.len() > 100, "{} segments captured", segments.len());
    for segment in segments {
        assert!(segment.is_right, "{segment:?}");
        assert!(segment.length <= MTU as usize, "{segment:?}");
    }
}

/// A lab whose edge sends what comes for the VIPs to the only pod.
struct World {
    edge: Dataplane,
    node: Dataplane,
    lab: Topology,
}

impl World {
    fn new() -> Self {
        Self::over(Topology::builder().nodes(1).pods(1).build().unwrap())
    }

    /// The node's addresses lie on a bridge, whose port is the uplink.
    fn behind_a_bridge() -> Self {
        let lab = Topology::builder().nodes(1).pods(1).build().unwrap();
        let node = &lab.nodes()[0];
        let mtu = format!("link set {BRIDGE} mtu 1600");
        node.namespace().add_bridge(BRIDGE).unwrap();
        for arguments in [
            &mtu,
            "address flush dev eth0 scope global",
            "link set eth0 master br0",
        ] {
            ip(node, arguments);
        }
        let addresses = [(node.v4(), "24"), (node.v6(), "64 nodad")];
        for ((address, rest), gateway) in addresses.into_iter().zip(node.gateways()) {
            ip(node, &format!("address add {address}/{rest} dev {BRIDGE}"));
            ip(
                node,
                &format!("route replace default via {gateway} dev {BRIDGE}"),
            );
        }
        Self::over(lab)
    }

    fn over(lab: Topology) -> Self {
        let pod = lab.pods().next().unwrap();
        for offload in [Offload::Tx, Offload::Tso, Offload::Gso] {
            assert!(pod.link().unwrap().offload(offload).unwrap(), "{offload:?}");
        }
        // What is merged on arrival is not what came.
        let client = lab.clients()[0].link().unwrap();
        client.set_offload(Offload::Gro, false).unwrap();

        let node_machine = &lab.nodes()[0];
        let edge_machine = &lab.edges()[0];
        let mut node = Dataplane::start(node_machine);
        let mut edge = Dataplane::start(edge_machine);
        let own = BTreeSet::from([node_machine.v4(), node_machine.v6()]);
        let settings = Settings {
            node: true,
            mtu: Some(MTU),
            ..Settings::default()
        };
        node.tables.set_settings(settings).unwrap();
        let addresses = Addresses {
            local: own.clone(),
            node_ports: own.clone(),
            ..Addresses::default()
        };
        node.tables.set_addresses(addresses.into()).unwrap();
        let edges = [edge_machine.v4(), edge_machine.v6()];
        node.tables
            .set_trusted_edges(&edges.map(Into::into).into())
            .unwrap();

        edge_machine
            .namespace()
            .run(|| resolve(&mut edge.tables, &[node_machine.v4()]));
        node.tables
            .set_next_hop(node_machine.v4(), Resolution::Local)
            .unwrap();
        for vip in [vip_v4(1).into(), vip_v4(2).into(), vip_v6(1).into()] {
            edge.serve(vip, PORT, node_machine, pod, false);
            node.serve(vip, PORT, node_machine, pod, false);
        }
        for address in own {
            node.serve(address, NODE_PORT, node_machine, pod, true);
        }
        Self { edge, node, lab }
    }

    /// Puts the egress program on one more of the node's devices.
    fn attach_to_node(&mut self, device: &str) {
        let loaded = self.node.loaded.as_mut().unwrap();
        self.lab.nodes()[0].namespace().run(|| {
            loaded.attach_egress(device, EgressHook::default()).unwrap();
        });
    }

    fn vips(&self) -> [IpAddr; 2] {
        [vip_v4(1).into(), vip_v6(1).into()]
    }

    /// Two VIPs of the pod.
    fn vips_v4(&self) -> [std::net::Ipv4Addr; 2] {
        [vip_v4(1), vip_v4(2)]
    }

    /// Opens connections of the client to the pod by this end; returns both ends of each, and what accepts more.
    fn connections(
        &self,
        to: SocketAddr,
        number: usize,
    ) -> (Vec<TcpStream>, Vec<TcpStream>, TcpListener) {
        let server = self.pod().namespace().run(|| listen(to.ip()));
        let connect = |_| connect_to(to).unwrap();
        let streams: Vec<_> = self.client().run(|| (0..number).map(connect).collect());
        let accepted = streams.iter().map(|_| server.accept().unwrap().0).collect();
        (streams, accepted, server)
    }

    /// The pod says something in each connection, and hears something.
    fn talk(&self, streams: &[TcpStream], accepted: &mut [TcpStream]) {
        for stream in &mut *accepted {
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.write_all(b"hello").unwrap();
        }
        let mut answered = 0;
        for mut stream in streams {
            let mut hello = [0; 5];
            answered += usize::from(stream.read_exact(&mut hello).is_ok());
            stream.write_all(b"bye").unwrap();
        }
        assert_eq!(answered, streams.len());
        let mut peers = BTreeSet::new();
        for stream in accepted {
            stream.read_exact(&mut [0; 3]).unwrap();
            peers.insert(stream.peer_addr().unwrap());
        }
        assert_eq!(peers.len(), streams.len());
    }

    /// Lets the client reach the pod by its own address, and returns that.
    fn open_pod(&self) -> SocketAddrV4 {
        let IpAddr::V4(pod) = self.pod().v4() else {
            panic!("IPv6");
        };
        let route = format!("route add {pod} via {}", self.lab.nodes()[0].v4());
        output(self.lab.router().command("ip").args(route.split(' '))).unwrap();
        SocketAddrV4::new(pod, POD_PORT)
    }

    /// Empties the node's memory of flows to its pod.
    fn forget_flows(&self) {
        let map = |name| self.node.loaded.as_ref().unwrap().map(name).unwrap();
        let mut places = BTreeSet::new();
        for table in [map::FLOWS, map::FLOWS_EMBRYONIC] {
            let table = Map::LruHashMap(map(table));
            let mut table = HashMap::<_, Tuple, PodFlow>::try_from(table).unwrap();
            for key in table.keys().collect::<Result<Vec<_>, _>>().unwrap() {
                places.extend(FlowNote::places(&key));
                // It may be pushed out meanwhile.
                let _ = table.remove(&key);
            }
        }
        let notes = Map::Array(map(map::FLOW_NOTES));
        let mut notes = Array::<_, FlowNote>::try_from(notes).unwrap();
        for place in places {
            notes.set(place, FlowNote::default(), 0).unwrap();
        }
    }

    fn client(&self) -> &lab::Namespace {
        self.lab.clients()[0].namespace()
    }

    fn pod(&self) -> &Machine {
        self.lab.pods().next().unwrap()
    }

    /// Packets that came from the pod, merged segments as one.
    fn received_from_pod(&self) -> u64 {
        let far = self.lab.far_end(self.pod()).unwrap();
        far.stats().unwrap().rx_packets
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            for (name, dataplane) in [("edge", &self.edge), ("node", &self.node)] {
                let counters = dataplane.tables.counters().unwrap();
                let moved = counters.reasons.iter().filter(|count| count.packets > 0);
                let moved: Vec<_> = moved.map(|count| (count.label, count.packets)).collect();
                eprintln!("{name}: {moved:?}");
            }
        }
        // Links are taken off in the namespace of their interface.
        for (machine, dataplane) in [
            (&self.lab.edges()[0], &mut self.edge),
            (&self.lab.nodes()[0], &mut self.node),
        ] {
            let loaded = dataplane.loaded.take();
            machine.namespace().run(|| drop(loaded));
        }
    }
}

/// A machine's programs and tables.
struct Dataplane {
    loaded: Option<Loaded>,
    tables: Tables,
}

impl Dataplane {
    fn start(machine: &Machine) -> Self {
        machine.namespace().run(|| {
            let mut loader = Loader::unpinned()
                .max_entries(map::BACKENDS, 64)
                .max_entries(map::BACKEND_TRAFFIC, 64);
            for table in [
                map::LUT,
                map::FLOWS,
                map::FLOWS_DATAGRAM,
                map::FLOWS_EMBRYONIC,
                map::LOCAL_FLOWS,
                map::FRAGMENTS,
            ] {
                loader = loader.max_entries(table, TABLE);
            }
            let mut loaded = loader.load().unwrap();
            loaded
                .attach(Machine::INTERFACE, &Options::default())
                .unwrap();
            loaded
                .attach_egress(Machine::INTERFACE, EgressHook::default())
                .unwrap();
            let tables = Tables::open(&loaded).unwrap();
            Self {
                loaded: Some(loaded),
                tables,
            }
        })
    }

    /// Returns how many packets were counted under a reason.
    fn count(&self, label: &str) -> u64 {
        let counters = self.tables.counters().unwrap();
        let count = counters.reasons.iter().find(|count| count.label == label);
        count.unwrap().packets
    }

    fn serve(&mut self, address: IpAddr, port: u16, node: &Machine, pod: &Machine, local: bool) {
        let target = SocketAddr::new(pod.address_like(address), POD_PORT);
        let spec = ServiceSpec {
            backends: vec![BackendSpec::pod(node.v4(), target, 1)],
            node_port: local,
            ..ServiceSpec::default()
        };
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let key = ServiceKey {
                address,
                port,
                protocol,
            };
            self.tables.put_service(key, &spec).unwrap();
        }
    }
}
