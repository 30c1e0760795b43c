//! Packets that XDP cannot finish: datagrams whose fragments come in another order than they were sent in, those that
//! have to be cut, what is to go to a node whose neighbour entry is missing, and what is to leave by a device that takes no
//! frames from XDP.

mod carrying;
mod cutting;
mod next_hops;
mod orders;
mod orphans;

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use lab::{Machine, RawSocket, Signal, Topology, output, vip_v4, vip_v6};
use serde_json::Value;

use self::orders::assert_datagrams_arrive;
use crate::support::{
    Agent, Asked, Cluster, Echo, Mode, PodService, Protocol, Sender, Service, TIMEOUT,
    cluster_config, nat_config, serve_on_pods,
};

const PORT: u16 = 7000;
const NODE_PORT: u16 = 30_700;
/// Bytes of a datagram: four fragments.
const LENGTH: usize = 4096;
/// How long an answer is waited for that is not to come.
const SHORT: Duration = Duration::from_millis(300);
const MEND: &str = "mend: on\n";
/// Fragments wait for as long as they can: a busy machine takes its time.
const PATIENT: &str = "mend_limits: { wait: 30s }\n";

/// The orders in which the fragments of a datagram are sent, by their places.
const ORDERS: [[usize; 4]; 4] = [[3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 1, 0], [1, 2, 3, 0]];

/// UDP services of both families, by IPIP, by L2 DSR, and at a NodePort.
fn services<'net>() -> Vec<PodService<'net>> {
    let at = |address, mode| {
        PodService::over_all(Service {
            address,
            protocol: Protocol::Udp,
            mode,
        })
    };
    let mut services = Vec::new();
    for (number, mode) in [(1, Mode::IpipV4), (2, Mode::IpipV6), (3, Mode::L2dsr)] {
        for vip in [IpAddr::from(vip_v4(number)), vip_v6(number).into()] {
            services.push(at(SocketAddr::new(vip, PORT), mode));
        }
    }
    let unspecified = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
    for address in unspecified.map(|address| SocketAddr::new(address, 0)) {
        services.push(PodService {
            node_port: Some(NODE_PORT),
            ..at(address, Mode::IpipV4)
        });
    }
    services
}

/// Where a client finds a service.
fn place(service: &PodService<'_>, edge: &Machine) -> SocketAddr {
    let address = service.service.address;
    if address.ip().is_unspecified() {
        SocketAddr::new(edge.address_like(address.ip()), NODE_PORT)
    } else {
        address
    }
}

/// Sends the fragments of a datagram in an order.
fn send(sender: &Sender<'_>, asked: &Asked, order: &[usize]) {
    assert_eq!(order.len(), asked.fragments.len());
    for place in order {
        sender.send(&asked.fragments[*place]);
    }
}

/// Sends datagrams in every order, and interleaved, and asserts that each is answered once.
fn assert_all_arrive(sender: &mut Sender<'_>, to: SocketAddr) {
    let mut all: Vec<Asked> = Vec::new();
    for order in ORDERS {
        let asked = sender.ask(to, LENGTH);
        send(sender, &asked, &order);
        all.push(asked);
    }
    let [one, other] = [0, 1].map(|_| sender.ask(to, LENGTH));
    for place in ORDERS[0] {
        // Each fragment twice: the second one is dropped by whoever joins them.
        for asked in [&one, &other, &one] {
            sender.send(&asked.fragments[place]);
        }
    }
    all.extend([one, other]);
    for (number, asked) in all.iter().enumerate() {
        let name = asked.answer(TIMEOUT);
        assert!(name.is_some(), "datagram {number} to {to} is lost");
    }
    for asked in &all {
        assert!(!asked.has_another(), "{to}");
    }
}

/// Asserts that a reversed datagram is lost while one in order arrives.
fn assert_reversed_is_lost(sender: &mut Sender<'_>, to: SocketAddr) {
    let reversed = sender.ask(to, LENGTH);
    send(sender, &reversed, &ORDERS[0]);
    let ordered = sender.ask(to, LENGTH);
    send(sender, &ordered, &[0, 1, 2, 3]);
    assert!(ordered.answer(TIMEOUT).is_some(), "{to}");
    assert_eq!(reversed.answer(SHORT), None, "{to}");
}

fn count(agent: &Agent<'_>, action: &str, reason: &str) -> u64 {
    Cluster::packets(agent, action, reason)
}

/// Waits until the agent has a socket on each queue.
fn wait_until_mending(agent: &Agent<'_>) -> Value {
    let status = agent.wait_for_answer("all queues are open", &["status"], |status| {
        let mend = &status["mend"];
        mend["queues"].as_u64() > Some(0) && mend["queues"] == mend["open"]
    });
    assert_eq!(status["problems"], serde_json::json!([]), "{status}");
    status
}

/// Asserts that every punted packet is somewhere, once all are.
fn assert_ledger_adds_up(agent: &Agent<'_>) {
    let told = agent.wait_for_answer("the ledger adds up", &["status"], |status| {
        let number = |field| status["mend"][field].as_u64().unwrap();
        number("held") == 0 && number("punted") == number("taken") + number("lost")
    });
    let drops = agent.json(&["drops"]);
    let outcomes = drops.as_array().unwrap().iter().filter(|row| {
        let reason = row["reason"].as_str().unwrap();
        row["action"] == "mend" && reason != "mend_taken" && !reason.starts_with("mend_lost")
    });
    let ended: u64 = outcomes.map(|row| row["packets"].as_u64().unwrap()).sum();
    assert_eq!(told["mend"]["taken"], ended, "{told}\n{drops}");
}

#[test]
fn shuffled_datagrams_arrive_by_ipip_by_l2dsr_and_at_node_ports() {
    let net = Topology::builder().pods(1).build().unwrap();
    let services = services();
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    let edge = &net.edges()[0];
    let mut sender = Sender::new(&net);

    for service in &services {
        assert_reversed_is_lost(&mut sender, place(service, edge));
    }
    // Three later fragments of each, at a VIP dropped and at a node's address passed.
    assert_eq!(count(&cluster.edge, "drop", "fragment_out_of_order"), 6 * 3);
    assert_eq!(count(&cluster.edge, "pass", "fragment_not_ours"), 2 * 3);
    assert_eq!(count(&cluster.edge, "punt", "punted_fragment"), 0);

    let config = cluster_config(&net, &services) + MEND + PATIENT;
    // On their way from the edge, fragments may overtake others, too.
    for agent in cluster.nodes.iter().chain([&cluster.edge]) {
        agent.write_config(&config);
        wait_until_mending(agent);
    }
    for service in &services {
        assert_all_arrive(&mut sender, place(service, edge));
        assert_datagrams_arrive(&mut sender, &cluster.edge, place(service, edge));
    }
    assert_ledger_adds_up(&cluster.edge);
    assert!(count(&cluster.edge, "punt", "punted_fragment") >= 6 * 6);
    assert!(count(&cluster.edge, "punt", "punted_node_fragment") >= 2 * 6);
    assert!(count(&cluster.edge, "mend", "mended") >= 8 * 6);
    for lost in [
        "mend_timed_out",
        "mend_unsent",
        "mend_unreadable",
        "mend_overlap",
    ] {
        assert_eq!(count(&cluster.edge, "mend", lost), 0, "{lost}");
    }
    assert_eq!(count(&cluster.edge, "drop", "fragment_out_of_order"), 6 * 3);

    // Switched off again, all is as before, and the pair is gone.
    cluster.edge.write_config(&cluster_config(&net, &services));
    cluster.edge.wait_for_reloads(3);
    assert_reversed_is_lost(&mut sender, place(&services[0], edge));
    assert_eq!(count(&cluster.edge, "drop", "fragment_out_of_order"), 7 * 3);
    assert!(edge.namespace().link("guideway-mended").is_err());
}

#[test]
fn shuffled_datagrams_arrive_by_nat_and_at_the_node_itself() {
    let net = Topology::builder()
        .nodes(0)
        .routed_nodes(1)
        .fabric_mtu(1500)
        .build()
        .unwrap();
    let (edge, host) = (&net.edges()[0], &net.nodes()[0]);
    let vips: [IpAddr; 2] = [vip_v4(1).into(), vip_v6(1).into()];
    let services = vips.map(|vip| {
        let backend = SocketAddr::new(host.address_like(vip), 8080);
        (SocketAddr::new(vip, PORT), backend)
    });
    let at_host = services.map(|(_, backend)| (backend, Protocol::Udp));
    let at_edge = [edge.v4(), edge.v6()].map(|address| SocketAddr::new(address, 9000));
    let _echoes = [
        Echo::serve(host, at_host),
        Echo::serve(edge, at_edge.map(|address| (address, Protocol::Udp))),
    ];
    let config = nat_config(&[Protocol::Udp], services);
    let agent = Agent::start(edge, &config);
    let mut sender = Sender::new(&net);
    for (vip, _) in services {
        assert_reversed_is_lost(&mut sender, vip);
    }
    assert_eq!(count(&agent, "drop", "fragment_out_of_order"), 2 * 3);
    // The kernel joins its own datagrams, in whatever order.
    for address in at_edge {
        assert_all_arrive(&mut sender, address);
    }

    agent.write_config(&(config.clone() + MEND + PATIENT));
    wait_until_mending(&agent);
    for (vip, _) in services {
        assert_all_arrive(&mut sender, vip);
        assert_datagrams_arrive(&mut sender, &agent, vip);
    }
    assert!(count(&agent, "mend", "mended") >= 2 * 6);
    agent.write_config(&(config + MEND));
    agent.wait_for_reloads(3);
    wait_until_mending(&agent);
    // What is the kernel's own reaches it, whether or not it has waited.
    for address in at_edge {
        assert_all_arrive(&mut sender, address);
    }
    assert!(count(&agent, "punt", "punted_node_fragment") >= 2 * 6);
    assert_ledger_adds_up(&agent);
    assert_eq!(count(&agent, "drop", "fragment_out_of_order"), 2 * 3);
}

#[test]
fn node_mends_what_edges_send_and_a_killed_agent_drops_it() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let all = services();
    let services = &all[..4];
    let _echoes = serve_on_pods(&net, services);
    let (node, edge) = (&net.nodes()[0], &net.edges()[0]);
    // What comes back by the pair must not be refused for that.
    node.namespace()
        .set_sysctl("net/ipv4/conf/all/rp_filter", "1")
        .unwrap();
    let config = cluster_config(&net, services) + "node_health: off\n";
    let agent_of_edge = Agent::start(edge, &config);
    // What the edge sends is recorded while no program of ours is at the node.
    let mut sender = Sender::new(&net);
    let record = |sender: &mut Sender<'_>| {
        let recorder = RawSocket::open(&node.link().unwrap(), 3).unwrap();
        services
            .iter()
            .map(|service| {
                let asked = sender.ask(place(service, edge), LENGTH);
                send(sender, &asked, &[0, 1, 2, 3]);
                let mut frames = Vec::new();
                while frames.len() < 4 {
                    let frame = recorder.receive(TIMEOUT).unwrap().unwrap();
                    // The fragments of a datagram in outer headers are the largest ones.
                    if frame.len() > 350 {
                        frames.push(frame);
                    }
                }
                (asked, frames)
            })
            .collect::<Vec<_>>()
    };
    let recorded: Vec<_> = (0..4).map(|_| record(&mut sender)).collect();
    drop(agent_of_edge);

    let far = RawSocket::open(&net.far_end(node).unwrap(), 0).unwrap();
    let replay = |frames: &[Vec<u8>]| {
        for frame in frames.iter().rev() {
            while !far.send(frame).unwrap() {}
        }
    };
    let mut agent = Agent::start(node, &config);
    for (asked, frames) in &recorded[0] {
        replay(frames);
        assert_eq!(asked.answer(SHORT), None);
    }
    assert_eq!(count(&agent, "drop", "fragment_out_of_order"), 4 * 3);

    let with_mending = config + MEND + PATIENT;
    agent.write_config(&with_mending);
    wait_until_mending(&agent);
    let pair = || node.namespace().link("guideway-mended").unwrap().index();
    let first_pair = pair();
    let arrive = |recorded: &[(Asked, Vec<Vec<u8>>)]| {
        for (asked, frames) in recorded {
            replay(frames);
            assert!(asked.answer(TIMEOUT).is_some());
            assert!(!asked.has_another());
        }
    };
    arrive(&recorded[1]);
    assert_eq!(count(&agent, "punt", "punted_fragment"), 4 * 3);
    assert_eq!(count(&agent, "mend", "mended"), 4 * 3);
    assert_ledger_adds_up(&agent);

    // Without an agent, XDP drops as it does without mending.
    agent.signal(Signal::SIGKILL);
    agent.wait_for_end();
    for (asked, frames) in &recorded[2] {
        replay(frames);
        assert_eq!(asked.answer(SHORT), None);
    }
    agent.start_again();
    wait_until_mending(&agent);
    assert_eq!(pair(), first_pair, "the pair is adopted");
    assert_eq!(count(&agent, "drop", "fragment_out_of_order"), 2 * 4 * 3);
    arrive(&recorded[3]);
    assert_eq!(count(&agent, "punt", "punted_fragment"), 2 * 4 * 3);
    assert_ledger_adds_up(&agent);

    let detached = agent.page(&["detach"]);
    assert!(detached.contains("no pins are left"), "{detached}");
    let links = output(node.namespace().command("ip").args(["-br", "link"])).unwrap();
    assert!(!links.contains("guideway"), "{links}");
}
