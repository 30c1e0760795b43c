//! NAT mode with real traffic: client - router - edge - machines that know nothing of it.
//!
//! The machines have neither the VIP nor Guideway, one of them is in a network of its own
//! behind the router. The edge forwards nothing by itself and has no netfilter rule.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use crate::next_hops::resolve;
use fastpath::{
    attach::Options,
    load::{Loaded, Loader},
    tables::{
        Addresses, BackendSpec, ForwardMode, NatSettings, Protocol, ServiceKey, ServiceSpec,
        Settings, Tables,
    },
};
use lab::{Machine, Topology, vip_v4, vip_v6};
use xdp_prog::abi::map;

/// What clients talk to, and what the machines listen on.
const PORT: u16 = 80;
const MACHINE_PORT: u16 = 8080;
const TIMEOUT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(500);
/// More than the window and the buffers of a connection hold.
const TRANSFER: usize = 8 << 20;

#[test]
fn unmodified_machines_serve_tcp_and_udp() {
    let lab = lab(1600);
    for vip in [IpAddr::V4(vip_v4(1)), IpAddr::V6(vip_v6(1))] {
        for machine in lab.nodes() {
            serve(machine, vip);
        }
        let edge = Edge::start(&lab, vip);
        let client = lab.clients()[0].namespace();
        for _ in 0..20 {
            client.run(|| fetch(vip, 1000));
            client.run(|| {
                let (answer, from) = ask(vip, b"who?");
                assert_eq!(
                    (&answer[..], from),
                    (&b"who?"[..], SocketAddr::new(vip, PORT))
                );
            });
        }
        client.run(|| fetch(vip, TRANSFER));

        let counters = edge.tables.counters().unwrap();
        let served: Vec<u64> = counters
            .backends
            .iter()
            .map(|(_, traffic)| traffic.packets)
            .collect();
        assert!(
            served.len() == lab.nodes().len() && !served.contains(&0),
            "both machines have served: {served:?}"
        );
        assert!(edge.reason("nat_reply") > 0);
        assert_eq!(edge.reason("nat_unknown_flow"), 0);
        assert_eq!(edge.reason("nat_ports_exhausted"), 0);
    }
}

#[test]
fn datagrams_in_pieces_get_there_and_back() {
    let lab = lab(1500);
    for vip in [IpAddr::V4(vip_v4(1)), IpAddr::V6(vip_v6(1))] {
        for machine in lab.nodes() {
            serve(machine, vip);
        }
        let edge = Edge::start(&lab, vip);
        let client = lab.clients()[0].namespace();
        let question = pattern(4000);
        for _ in 0..20 {
            client.run(|| {
                let (answer, from) = ask(vip, &question);
                assert_eq!(from, SocketAddr::new(vip, PORT));
                assert!(answer == question, "{} bytes", answer.len());
            });
        }
        assert_eq!(edge.reason("fragment_out_of_order"), 0);
        assert!(edge.reason("nat_reply") >= 20 * 3, "three pieces each");
    }
}

#[test]
fn connections_to_a_closed_port_are_refused_by_the_machine() {
    let lab = lab(1600);
    let vip = IpAddr::V4(vip_v4(1));
    let edge = Edge::start(&lab, vip);
    let error = lab.clients()[0]
        .namespace()
        .run(|| TcpStream::connect_timeout(&SocketAddr::new(vip, PORT), TIMEOUT).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    assert_eq!(edge.reason("nat_reply"), 1, "the machine's RST");
}

#[test]
fn machines_learn_of_a_narrower_way_to_the_client() {
    let lab = lab(1600);
    // Too large for the client's network, but not for the others.
    let question = pattern(1530);
    for vip in [IpAddr::V4(vip_v4(1)), IpAddr::V6(vip_v6(1))] {
        let machine = &lab.nodes()[1];
        serve(machine, vip);
        let edge = Edge::over(&lab, vip, &[machine.address_like(vip)]);
        let client = lab.clients()[0].namespace();
        let ask = |within| client.run(|| try_ask(vip, &question, within));
        let lost = ask(SHORT);
        assert_eq!(
            lost.map(|(answer, _)| answer.len())
                .map_err(|error| error.kind()),
            Err(ErrorKind::WouldBlock),
            "the router drops it"
        );
        let (answer, from) = ask(TIMEOUT).unwrap();
        assert_eq!(
            (answer == question, from),
            (true, SocketAddr::new(vip, PORT))
        );
        assert_eq!(edge.reason("malformed_icmp"), 0);
    }
}

#[test]
fn datagrams_to_a_closed_port_are_refused_by_the_machine() {
    let lab = lab(1600);
    for vip in [IpAddr::V4(vip_v4(1)), IpAddr::V6(vip_v6(1))] {
        let edge = Edge::start(&lab, vip);
        let error = lab.clients()[0].namespace().run(|| {
            let socket = UdpSocket::bind((unspecified(vip), 0)).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket.connect((vip, PORT)).unwrap();
            socket.send(b"anyone?").unwrap();
            socket.recv(&mut [0; 64]).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        assert_eq!(edge.reason("nat_error"), 1);
    }
}

/// One machine on the edge's segment, one behind the router. With an MTU above 1500 the way to the client is
/// narrower.
fn lab(mtu: u32) -> Topology {
    let lab = Topology::builder()
        .fabric_mtu(mtu)
        .nodes(1)
        .routed_nodes(1)
        .build()
        .unwrap();
    let edge = lab.edges()[0].namespace();
    for (key, family) in [
        ("net/ipv4/ip_forward", "IPv4"),
        ("net/ipv6/conf/all/forwarding", "IPv6"),
    ] {
        assert_eq!(edge.sysctl(key).unwrap().trim(), "0", "{family}");
    }
    lab
}

/// Starts a server for as many bytes as a client asks for, and one that sends datagrams back.
fn serve(machine: &Machine, like: IpAddr) {
    let own = machine.address_like(like);
    let (tcp, udp) = machine.namespace().run(|| {
        (
            TcpListener::bind((own, MACHINE_PORT)).unwrap(),
            UdpSocket::bind((own, MACHINE_PORT)).unwrap(),
        )
    });
    // Both threads end with the process; the sockets die with their namespace.
    std::thread::spawn(move || {
        for mut stream in tcp.incoming().flatten() {
            std::thread::spawn(move || {
                let mut wanted = [0; 8];
                if stream.read_exact(&mut wanted).is_ok() {
                    let wanted = usize::try_from(u64::from_be_bytes(wanted)).unwrap();
                    let _ = stream.write_all(&pattern(wanted));
                }
            });
        }
    });
    std::thread::spawn(move || {
        let mut question = [0; 65_536];
        while let Ok((length, from)) = udp.recv_from(&mut question) {
            let _ = udp.send_to(&question[..length], from);
        }
    });
}

fn pattern(length: usize) -> Vec<u8> {
    (0..=250_u8).cycle().take(length).collect()
}

fn fetch(vip: IpAddr, length: usize) {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(vip, PORT), TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(&(length as u64).to_be_bytes()).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), length);
    assert!(
        received == pattern(length),
        "the bytes are those that were sent"
    );
}

/// Sends a datagram; returns what comes back, and from whom.
fn ask(vip: IpAddr, question: &[u8]) -> (Vec<u8>, SocketAddr) {
    try_ask(vip, question, TIMEOUT).unwrap()
}

fn try_ask(
    vip: IpAddr,
    question: &[u8],
    within: Duration,
) -> std::io::Result<(Vec<u8>, SocketAddr)> {
    let socket = UdpSocket::bind((unspecified(vip), 0))?;
    socket.set_read_timeout(Some(within))?;
    socket.send_to(question, (vip, PORT))?;
    let mut answer = [0; 65_536];
    let (length, from) = socket.recv_from(&mut answer)?;
    Ok((answer[..length].to_vec(), from))
}

fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    }
}

/// The edge's program and tables.
struct Edge<'lab> {
    machine: &'lab Machine,
    loaded: Option<Loaded>,
    tables: Tables,
}

impl<'lab> Edge<'lab> {
    /// Serves the VIP by all machines of the lab.
    fn start(lab: &'lab Topology, vip: IpAddr) -> Self {
        let machines = lab.nodes().iter().map(|node| node.address_like(vip));
        Self::over(lab, vip, &machines.collect::<Vec<_>>())
    }

    /// Serves the VIP by these machines.
    fn over(lab: &'lab Topology, vip: IpAddr, machines: &[IpAddr]) -> Self {
        let machine = &lab.edges()[0];
        let (loaded, mut tables) = machine.namespace().run(|| {
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
        let settings = Settings {
            nat: Some(NatSettings::default()),
            ..Settings::default()
        };
        tables.set_settings(settings).unwrap();
        let addresses = Addresses {
            vips: [vip].into(),
            nat: [machine.address_like(vip)].into(),
            ..Addresses::default()
        };
        tables.set_addresses(addresses.into()).unwrap();
        machine.namespace().run(|| resolve(&mut tables, machines));
        let backends = machines
            .iter()
            .map(|address| BackendSpec::nat(SocketAddr::new(*address, MACHINE_PORT), 1));
        let spec = ServiceSpec {
            mode: ForwardMode::Nat,
            backends: backends.collect(),
            ..ServiceSpec::default()
        };
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let key = ServiceKey {
                address: vip,
                port: PORT,
                protocol,
            };
            tables.put_service(key, &spec).unwrap();
        }
        Self {
            machine,
            loaded: Some(loaded),
            tables,
        }
    }

    fn reason(&self, label: &str) -> u64 {
        let counters = self.tables.counters().unwrap();
        let mut reasons = counters.reasons.iter();
        let count = reasons.find(|count| count.label == label).unwrap();
        count.packets
    }
}

impl Drop for Edge<'_> {
    fn drop(&mut self) {
        // The link is taken off in the namespace of its interface.
        let loaded = self.loaded.take();
        self.machine.namespace().run(|| drop(loaded));
    }
}
