//! Pings of a VIP by the machine's own `ping`, larger than a packet.

use std::net::IpAddr;

use lab::{Topology, output, vip_v4, vip_v6};

use crate::support::{Agent, Capture, Cluster, Mode, Service, edge_config};

#[test]
fn large_pings_of_a_vip_are_answered_by_the_same_bytes() {
    const PINGS: u64 = 3;
    const HEADER: usize = 8;
    let net = Topology::builder().nodes(1).build().unwrap();
    let client = &net.clients()[0];
    let services = Service::all(&[Mode::IpipV4]);
    let edge = Agent::start(&net.edges()[0], &edge_config(&services, []));
    let capture = Capture::start(client);
    let mut fragments = 0;
    for vip in [IpAddr::from(vip_v4(1)), vip_v6(1).into()] {
        for size in [4000, 60_000] {
            let mut ping = client.namespace().command("ping");
            ping.args(["-c", &PINGS.to_string(), "-i", "0.2", "-W", "20"]);
            ping.args(["-s", &size.to_string(), &vip.to_string()]);
            let told = output(&mut ping).unwrap();
            assert!(told.contains(&format!("{PINGS} received")), "{told}");
            assert!(!told.contains("wrong data"), "{told}");
            // Of 1500 bytes, or 1496 with the fragment header.
            let payload = if vip.is_ipv4() { 1480 } else { 1448 };
            fragments += PINGS * (size + HEADER).div_ceil(payload) as u64;
        }
    }
    assert_eq!(Cluster::packets(&edge, "reply", "echo_reply"), fragments);
    assert_eq!(Cluster::packets(&edge, "drop", "fragmented_icmp"), 0);
    assert!(capture.assert_good_checksums() >= 12);
}
