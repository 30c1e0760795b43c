//! A client's kernel learns from Guideway what fits, and everything arrives.

use std::net::{IpAddr, SocketAddr};

use lab::{Cidr, Machine, Route, Topology, output, vip_v4, vip_v6, wait_for};

use crate::support::{
    Capture, Cluster, Flow, Mode, PodService, Protocol, Service, TIMEOUT, serve_on_pods,
};

/// Of the way to the nodes, less than their uplinks', to which they clamp the MSS.
const EDGE_MTU: u32 = 1400;
const MEGABYTE: usize = 1 << 20;

/// The path MTU that a machine's kernel remembers.
pub(crate) fn learnt_mtu(machine: &Machine, to: IpAddr) -> Option<u32> {
    let to = to.to_string();
    let mut ip = machine.namespace().command("ip");
    let route = output(ip.args(["route", "get", &to])).unwrap();
    let (_, mtu) = route.split_once(" mtu ")?;
    mtu.split_whitespace().next()?.parse().ok()
}

#[test]
fn client_learns_the_mtu_and_transfers_a_megabyte() {
    let net = Topology::builder()
        .fabric_mtu(1500)
        .pods(1)
        .build()
        .unwrap();
    let (edge, client) = (&net.edges()[0], &net.clients()[0]);
    let uplink = edge.link().unwrap();
    for node in net.nodes() {
        let route = Route::to(Cidr::host(node.v4())).through(&uplink);
        edge.namespace().add_route(&route.mtu(EDGE_MTU)).unwrap();
    }
    let vips: [IpAddr; 2] = [vip_v4(1).into(), vip_v6(1).into()];
    let services = vips.map(|vip| {
        PodService::over_all(Service {
            address: SocketAddr::new(vip, 80),
            protocol: Protocol::Tcp,
            mode: Mode::IpipV4,
        })
    });
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    let capture = Capture::start(client);
    for vip in vips {
        let service = Service {
            address: SocketAddr::new(vip, 80),
            protocol: Protocol::Tcp,
            mode: Mode::IpipV4,
        };
        let mut flow = Flow::open(client, &service).unwrap();
        assert_eq!(learnt_mtu(client, vip), None);
        assert_eq!(flow.ask_with(&"x".repeat(MEGABYTE)).unwrap(), flow.node);
        // The outer header is IPv4.
        let mtu = wait_for("the route has an MTU", TIMEOUT, || {
            learnt_mtu(client, vip).ok_or("none")
        });
        assert_eq!(mtu.unwrap(), EDGE_MTU - 20);
    }
    assert!(Cluster::packets(&cluster.edge, "reply", "packet_too_big") >= 2);
    assert!(capture.assert_good_checksums() > 1000);
}

#[test]
fn edge_learns_the_mtu_of_the_path_to_a_node() {
    mtu_of_a_path_is_learnt("");
}

#[test]
fn threads_learn_the_mtu_of_the_path_to_a_node() {
    mtu_of_a_path_is_learnt("datapath: afxdp\n");
}

/// Behind a router that takes less, the edge learns it from the router, and its clients from the edge.
fn mtu_of_a_path_is_learnt(of_edge: &str) {
    const PATH_MTU: u32 = 1400;
    let net = Topology::builder()
        .nodes(0)
        .routed_nodes(1)
        .pods(1)
        .fabric_mtu(1500)
        .build()
        .unwrap();
    let (client, node) = (&net.clients()[0], &net.nodes()[0]);
    let narrow = net.far_end(node).unwrap();
    for address in [node.v4(), node.v6()] {
        let route = Route::to(Cidr::host(address)).through(&narrow);
        net.router().add_route(&route.mtu(PATH_MTU)).unwrap();
    }
    let services = [
        (vip_v4(1).into(), Mode::IpipV4),
        (vip_v4(2).into(), Mode::IpipV6),
    ];
    let services = services.map(|(vip, mode): (IpAddr, Mode)| {
        PodService::over_all(Service {
            address: SocketAddr::new(vip, 80),
            protocol: Protocol::Tcp,
            mode,
        })
    });
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start_with(&net, &services, of_edge);
    let path_mtu = |service: &Service| {
        let rows = cluster.edge.json(&["backends"]);
        let mut rows = rows.as_array().unwrap().iter();
        let row = rows.find(|row| row["service"] == service.to_string());
        row.unwrap()["path_mtu"].as_u64()
    };
    for (PodService { service, .. }, outer) in services.into_iter().zip([20, 40]) {
        assert_eq!(path_mtu(&service), None);
        let mut flow = Flow::open(client, &service).unwrap();
        assert_eq!(flow.ask_with(&"x".repeat(MEGABYTE)).unwrap(), flow.node);
        assert_eq!(path_mtu(&service), Some(PATH_MTU.into()));
        assert_eq!(
            learnt_mtu(client, service.address.ip()),
            Some(PATH_MTU - outer)
        );
    }
    assert!(cluster.edge.page(&["backends"]).contains("path MTU 1400"));
    assert!(Cluster::packets(&cluster.edge, "pass", "path_mtu") >= 2);
}

#[test]
fn nodes_clamp_the_mss_by_the_outer_header() {
    let net = Topology::builder()
        .fabric_mtu(1500)
        .pods(1)
        .build()
        .unwrap();
    let client = &net.clients()[0];
    let vips: [IpAddr; 2] = [vip_v4(1).into(), vip_v6(1).into()];
    let services = vips.map(|vip| {
        PodService::over_all(Service {
            address: SocketAddr::new(vip, 80),
            protocol: Protocol::Tcp,
            mode: Mode::IpipV4,
        })
    });
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    let capture = Capture::start(client);
    for service in services {
        let mut flow = Flow::open(client, &service.service).unwrap();
        assert_eq!(flow.ask_with(&"x".repeat(MEGABYTE)).unwrap(), flow.node);
    }
    assert!(capture.assert_good_checksums() > 1000);
    assert_eq!(
        Cluster::packets(&cluster.edge, "reply", "packet_too_big"),
        0
    );
    for reason in ["mtu_exceeded", "fragmentation_needed"] {
        assert_eq!(Cluster::packets(&cluster.edge, "drop", reason), 0);
    }
}

#[test]
fn pods_learn_the_mtu_of_the_way_to_a_client() {
    const TO_CLIENT_MTU: u32 = 1400;
    let net = Topology::builder()
        .fabric_mtu(1600)
        .pods(1)
        .build()
        .unwrap();
    let client = &net.clients()[0];
    let narrow = net.far_end(client).unwrap();
    for address in [client.v4(), client.v6()] {
        let route = Route::to(Cidr::host(address)).through(&narrow);
        net.router().add_route(&route.mtu(TO_CLIENT_MTU)).unwrap();
    }
    let services: Vec<PodService<'_>> = Service::all(&[Mode::L2dsr, Mode::IpipV4, Mode::IpipV6])
        .into_iter()
        .filter(|service| service.protocol == Protocol::Tcp)
        .map(PodService::over_all)
        .collect();
    let _echoes = serve_on_pods(&net, &services);
    let _cluster = Cluster::start(&net, &services);
    for PodService { service, .. } in services {
        for pod in net.pods() {
            let flush = ["route", "flush", "cache"];
            output(pod.namespace().command("ip").args(flush)).unwrap();
            let flush = ["-6", "route", "flush", "cache"];
            output(pod.namespace().command("ip").args(flush)).unwrap();
        }
        let mut flow = Flow::open(client, &service).unwrap();
        let node = flow.ask_with(&"x".repeat(MEGABYTE)).unwrap();
        assert_eq!(node, flow.node, "{service}");
        let pod = net.pods().find(|pod| pod.label() == node).unwrap();
        let learnt = learnt_mtu(pod, client.address_like(service.address.ip()));
        assert_eq!(learnt, Some(TO_CLIENT_MTU), "{service}");
    }
}

/// Larger than three fragments.
const LARGE_DATAGRAM: usize = 5000;

#[test]
fn large_datagrams_reach_pods_in_fragments() {
    let net = Topology::builder()
        .fabric_mtu(1600)
        .pods(1)
        .build()
        .unwrap();
    let client = &net.clients()[0];
    let services: Vec<PodService<'_>> = Service::all(&[Mode::L2dsr, Mode::IpipV4, Mode::IpipV6])
        .into_iter()
        .filter(|service| service.protocol == Protocol::Udp)
        .map(PodService::over_all)
        .collect();
    let _echoes = serve_on_pods(&net, &services);
    let _cluster = Cluster::start(&net, &services);
    let capture = Capture::start(client);
    for PodService { service, .. } in &services {
        for mut flow in Flow::open_many(client, &[*service], 4) {
            let node = flow.ask_with(&"x".repeat(LARGE_DATAGRAM)).unwrap();
            assert_eq!(node, flow.node, "{service}");
        }
    }
    // A question and an answer of each flow, first small and then large.
    assert!(capture.assert_good_checksums() >= 4 * 4 * services.len());
}

#[test]
fn jumbo_frames_reach_pods_whole() {
    const JUMBO: u32 = 9000;
    const FLOWS: usize = 4;
    /// A datagram that fills a client's frame, less the longer of the headers and room for the pod's name.
    const DATAGRAM: usize = JUMBO as usize - 40 - 8 - 16;
    let net = Topology::builder()
        .client_mtu(JUMBO)
        .fabric_mtu(JUMBO + 100)
        .pod_mtu(JUMBO)
        .pods(1)
        .build()
        .unwrap();
    let client = &net.clients()[0];
    let services = Service::all(&[Mode::L2dsr, Mode::IpipV4, Mode::IpipV6]);
    let services: Vec<PodService<'_>> = services.into_iter().map(PodService::over_all).collect();
    let _echoes = serve_on_pods(&net, &services);
    let cluster = Cluster::start(&net, &services);
    let mut capture = Capture::start(client);
    for PodService { service, .. } in &services {
        let length = match service.protocol {
            Protocol::Tcp | Protocol::Sctp => 100_000,
            Protocol::Udp => DATAGRAM,
        };
        for mut flow in Flow::open_many(client, &[*service], FLOWS) {
            let node = flow.ask_with(&"x".repeat(length)).unwrap();
            assert_eq!(node, flow.node, "{service}");
        }
    }
    capture.stop();
    assert!(capture.assert_none_bad() > 4 * FLOWS * services.len());
    let datagrams = services
        .iter()
        .filter(|one| one.service.protocol == Protocol::Udp);
    assert_eq!(
        capture.packets("udp && frame.len > 8900").len(),
        2 * FLOWS * datagrams.count()
    );
    let pieces = "ip.flags.mf == 1 || ip.frag_offset > 0 || ipv6.fraghdr";
    assert_eq!(capture.packets(pieces), Vec::<String>::new());
    assert_eq!(
        Cluster::packets(&cluster.edge, "reply", "packet_too_big"),
        0
    );
}
