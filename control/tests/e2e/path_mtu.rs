//! Connections carry what fits behind the outer header.

use std::net::{IpAddr, SocketAddr};

use lab::{Topology, vip_v4, vip_v6};

use crate::support::{Cluster, Flow, Mode, PodService, Protocol, Service, serve_on_pods};

const MEGABYTE: usize = 1 << 20;

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
    for service in services {
        let mut flow = Flow::open(client, &service.service).unwrap();
        assert_eq!(flow.ask_with(&"x".repeat(MEGABYTE)).unwrap(), flow.node);
    }
    assert_eq!(
        Cluster::packets(&cluster.edge, "reply", "packet_too_big"),
        0
    );
    assert_eq!(Cluster::packets(&cluster.edge, "drop", "mtu_exceeded"), 0);
}
