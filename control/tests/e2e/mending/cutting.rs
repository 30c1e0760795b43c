//! Datagrams that may be fragmented, and do not fit where they are to go.

use std::{
    fmt::Debug,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
};

use lab::{Cidr, Machine, Route, Topology, output, vip_v4, vip_v6, wait_until};

use super::{
    MEND, PATIENT, PORT, SHORT, assert_ledger_adds_up, count, place, send, services,
    wait_until_mending,
};
use crate::support::{
    Agent, Asked, Capture, Cluster, Echo, Mode, PodService, Protocol, Sender, Service, TIMEOUT,
    cluster_config, nat_config, serve_on_pods,
};

/// Payload of a datagram that fills a packet of the clients' MTU.
const FULL: usize = CLIENT_MTU - 28;
const CLIENT_MTU: usize = 1500;
/// Payload of a datagram in three fragments, two of which are full.
const THREE: usize = 4096;
/// MTU of an edge's routes to the nodes where nothing is put in front of packets.
const NARROW: u32 = 1400;
const ROUNDS: usize = 100;
/// Datagrams under way at once. Linux gives up a datagram when more than 64 fragments of others come from its source
/// meanwhile (`ipfrag_max_dist`).
const WAVE: usize = 20;

/// Asserts that a full datagram is lost, and that one of a few bytes arrives.
fn assert_full_is_lost(sender: &mut Sender<'_>, to: SocketAddr) {
    let full = sender.ask(to, FULL);
    assert_eq!(full.fragments.len(), 1);
    send(sender, &full, &[0]);
    let short = sender.ask(to, 100);
    send(sender, &short, &[0]);
    assert!(short.answer(TIMEOUT).is_some(), "{to}");
    assert_eq!(full.answer(SHORT), None, "{to}");
}

/// Sends full datagrams, and such in three fragments in every order, and asserts that each is answered once.
fn assert_all_arrive(sender: &mut Sender<'_>, to: SocketAddr) {
    let mut all: Vec<Asked> = Vec::new();
    let assert_answered = |asked: &Asked, what: &dyn Debug| {
        let name = asked.answer(TIMEOUT);
        assert!(name.is_some(), "datagram {what:?} to {to} is lost");
    };
    for wave in 0..ROUNDS / WAVE {
        let asked: Vec<Asked> = (0..WAVE).map(|_| sender.ask(to, FULL)).collect();
        for asked in &asked {
            send(sender, asked, &[0]);
        }
        for asked in &asked {
            assert_answered(asked, &wave);
        }
        all.extend(asked);
    }
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1], [1, 2, 0]] {
        let asked = sender.ask(to, THREE);
        send(sender, &asked, &order);
        assert_answered(&asked, &order);
        all.push(asked);
    }
    for asked in &all {
        assert!(!asked.has_another(), "{to}");
    }
}

/// Gives a machine's routes to others an MTU. They go by the gateway that they go by without it.
fn narrow_routes<'net>(from: &Machine, to: impl IntoIterator<Item = &'net Machine>) {
    for machine in to {
        let address = machine.v4();
        let mut ip = from.namespace().command("ip");
        let found = output(ip.args(["route", "get", &address.to_string()])).unwrap();
        let mut words = found.split_whitespace();
        let gateway = words.find(|word| *word == "via").and_then(|_| words.next());
        let mut route = Route::to(Cidr::host(address)).through(&from.link().unwrap());
        if let Some(gateway) = gateway {
            route = route.via(gateway.parse::<IpAddr>().unwrap());
        }
        from.namespace().add_route(&route.mtu(NARROW)).unwrap();
    }
}

/// Asserts what is counted of so many services, to each of which [`assert_all_arrive`] has sent.
fn assert_cut(agent: &Agent<'_>, services: usize) {
    let services = services as u64;
    assert_ledger_adds_up(agent);
    // Of three fragments two are full.
    let full = services * (ROUNDS as u64 + 5 * 2);
    assert_eq!(count(agent, "punt", "punted_too_big"), full);
    assert_eq!(count(agent, "mend", "mend_cut"), full);
    for lost in ["mend_unreadable", "mend_unsent", "mend_no_piece_fits"] {
        assert_eq!(count(agent, "mend", lost), 0, "{lost}");
    }
}

#[test]
fn full_datagrams_arrive_by_ipip_where_nothing_larger_fits() {
    let net = Topology::builder()
        .fabric_mtu(1500)
        .pods(1)
        .build()
        .unwrap();
    let services = [(1, Mode::IpipV4), (2, Mode::IpipV6)].map(|(number, mode)| {
        PodService::over_all(Service {
            address: SocketAddr::new(vip_v4(number).into(), PORT),
            protocol: Protocol::Udp,
            mode,
        })
    });
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    let edge = &net.edges()[0];
    let mut sender = Sender::of_mtu(&net, CLIENT_MTU);
    for service in &services {
        assert_full_is_lost(&mut sender, place(service, edge));
    }
    let dropped = || count(&cluster.edge, "drop", "fragmentation_needed");
    assert_eq!(dropped(), 2);

    let config = cluster_config(&net, &services) + MEND + PATIENT;
    cluster.edge.write_config(&config);
    wait_until_mending(&cluster.edge);
    let captures: Vec<_> = net.nodes().iter().map(Capture::start).collect();
    for service in &services {
        assert_all_arrive(&mut sender, place(service, edge));
    }
    assert_eq!(dropped(), 2);
    assert_cut(&cluster.edge, 2);
    let full = sender.ask(place(&services[0], edge), FULL);
    let hex = |byte: &u8| format!("{byte:02x}");
    let frame: String = full.fragments[0].iter().map(hex).collect();
    let trace = cluster.edge.json(&["trace", "--hex", &frame]);
    let mut steps = trace["steps"].as_array().unwrap().iter();
    let told = "goes to the agent as punted_too_big, or else";
    assert!(steps.any(|step| step["text"] == told), "{trace}");
    // Each datagram has two pieces at least, and the nodes know of each.
    let seen = captures.into_iter().map(Capture::assert_good_checksums);
    assert!(seen.sum::<usize>() >= 2 * ROUNDS * 2);
    // Those with DF, as sockets of the kernel send them, are answered as before.
    let told = || count(&cluster.edge, "reply", "packet_too_big");
    assert_eq!(told(), 0);
    let namespace = net.clients()[0].namespace();
    let socket = namespace.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let socket = socket.unwrap();
    socket.send_to(&[b'x'; FULL], (vip_v4(1), PORT)).unwrap();
    wait_until("the client is told what fits", TIMEOUT, || told() == 1).unwrap();
}

#[test]
fn full_datagrams_arrive_by_l2dsr_and_at_node_ports() {
    let net = Topology::builder()
        .fabric_mtu(1500)
        .pods(1)
        .build()
        .unwrap();
    let services: Vec<_> = services()
        .into_iter()
        .filter(|service| {
            let address = service.service.address;
            let is_told = service.service.mode == Mode::L2dsr || address.port() == 0;
            is_told && address.is_ipv4()
        })
        .collect();
    assert_eq!(services.len(), 2);
    let edge = &net.edges()[0];
    narrow_routes(edge, net.nodes());
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    let mut sender = Sender::of_mtu(&net, CLIENT_MTU);
    for service in &services {
        assert_full_is_lost(&mut sender, place(service, edge));
    }
    cluster
        .edge
        .write_config(&(cluster_config(&net, &services) + MEND + PATIENT));
    wait_until_mending(&cluster.edge);
    for service in &services {
        assert_all_arrive(&mut sender, place(service, edge));
    }
    assert_cut(&cluster.edge, 2);
    assert_eq!(count(&cluster.edge, "drop", "fragmentation_needed"), 2);
}

#[test]
fn full_datagrams_arrive_by_nat() {
    let net = Topology::builder()
        .nodes(0)
        .routed_nodes(1)
        .fabric_mtu(1500)
        .build()
        .unwrap();
    let (edge, host) = (&net.edges()[0], &net.nodes()[0]);
    narrow_routes(edge, [host]);
    let vip = SocketAddr::new(vip_v4(1).into(), PORT);
    let backend = SocketAddr::new(host.v4(), 8080);
    let _echo = Echo::serve(host, [(backend, Protocol::Udp)]);
    let config = nat_config(&[Protocol::Udp], [(vip, backend)]);
    let agent = Agent::start(edge, &config);
    let mut sender = Sender::of_mtu(&net, CLIENT_MTU);
    assert_full_is_lost(&mut sender, vip);
    agent.write_config(&(config + MEND + PATIENT));
    wait_until_mending(&agent);
    assert_all_arrive(&mut sender, vip);
    assert_cut(&agent, 1);
    assert_eq!(count(&agent, "drop", "fragmentation_needed"), 1);
}

#[test]
fn datagrams_of_ipv6_are_never_cut() {
    let net = Topology::builder()
        .fabric_mtu(1500)
        .pods(1)
        .build()
        .unwrap();
    let services = [PodService::over_all(Service {
        address: SocketAddr::new(vip_v6(1).into(), PORT),
        protocol: Protocol::Udp,
        mode: Mode::IpipV4,
    })];
    let _echoes = serve_on_pods(&net, &services);
    let config = cluster_config(&net, &services) + MEND;
    let agents: Vec<Agent<'_>> = Agent::start_all(net.nodes().iter().chain(net.edges()), &config);
    let agent = agents.last().unwrap();
    wait_until_mending(agent);
    let to = place(&services[0], &net.edges()[0]);
    let mut sender = Sender::of_mtu(&net, CLIENT_MTU);
    let full = sender.ask(to, CLIENT_MTU - 48);
    send(&sender, &full, &[0]);
    let told = || count(agent, "reply", "packet_too_big");
    wait_until("the client is told what fits", TIMEOUT, || told() == 1).unwrap();
    assert_eq!(count(agent, "punt", "punted_too_big"), 0);
}
