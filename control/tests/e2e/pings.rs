//! Pings of a VIP by the machine's own `ping`: larger than a packet, and with options.

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
            ping.args(["-c", &PINGS.to_string(), "-i", "1", "-W", "20"]);
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

#[test]
fn pings_with_options_are_answered_by_a_vip_that_enters_itself() {
    const PINGS: u64 = 3;
    let net = Topology::builder().nodes(1).build().unwrap();
    let client = &net.clients()[0];
    let services = Service::all(&[Mode::IpipV4]);
    let edge = Agent::start(&net.edges()[0], &edge_config(&services, []));
    let capture = Capture::start(client);
    let vip = vip_v4(1).to_string();
    let ping = |options: &[&str]| {
        let mut ping = client.namespace().command("ping");
        ping.args(["-n", "-c", &PINGS.to_string(), "-i", "1", "-W", "20"]);
        let told = output(ping.args(options).arg(&vip)).unwrap();
        assert!(told.contains(&format!("{PINGS} received")), "{told}");
        told
    };
    // Behind the mark of what was recorded, in a line of its own.
    let records_vip = |told: &str, mark: &str| {
        let (_, recorded) = told.split_once(mark).unwrap();
        recorded.lines().any(|line| line.trim().starts_with(&vip))
    };
    let route = ping(&["-R"]);
    assert!(records_vip(&route, "RR:"), "{route}");
    let stamps = ping(&["-T", "tsonly"]);
    assert!(stamps.contains("TS:"), "{stamps}");
    let addresses = ping(&["-T", "tsandaddr"]);
    assert!(records_vip(&addresses, "TS:"), "{addresses}");
    let given = ping(&["-T", "tsprespec", &vip]);
    assert!(given.contains("TS:"), "{given}");

    assert_eq!(Cluster::packets(&edge, "reply", "echo_reply"), 4 * PINGS);
    assert_eq!(Cluster::packets(&edge, "drop", "icmp_options"), 0);
    assert!(capture.assert_good_checksums() >= 8 * usize::try_from(PINGS).unwrap());
}
