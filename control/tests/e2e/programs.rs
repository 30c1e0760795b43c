//! Programs that people use, at both ends.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    process::Command,
};

use lab::{Machine, Process, Topology, output, serve_page, vip_v4, vip_v6};
use serde_json::Value;

use crate::support::{Capture, Cluster, Mode, PodService, Protocol, Service, TIMEOUT};

const VIPS: [fn() -> IpAddr; 2] = [|| vip_v4(1).into(), || vip_v6(1).into()];

/// The same port and protocol on the VIPs of both families, over one pod or all.
fn services<'net>(
    port: u16,
    protocol: Protocol,
    only: Option<&'net Machine>,
) -> Vec<PodService<'net>> {
    let service = |vip: fn() -> IpAddr| PodService {
        target_port: port,
        only,
        ..PodService::over_all(Service {
            address: SocketAddr::new(vip(), port),
            protocol,
            mode: Mode::IpipV4,
        })
    };
    VIPS.map(service).into()
}

fn command(machine: &Machine, line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = machine.namespace().command(words.next().unwrap());
    command.args(words);
    command
}

#[test]
fn curl_gets_pages_from_nginx_in_every_pod() {
    const PAGE: usize = 300_000;
    let net = Topology::builder().pods(1).build().unwrap();
    let client = &net.clients()[0];
    let services = services(80, Protocol::Tcp, None);
    let _servers: Vec<Process> = net
        .pods()
        .map(|pod| {
            let page = format!("{}\n{}", pod.label(), "x".repeat(PAGE));
            let addresses = [pod.v4(), pod.v6()].map(|address| (address, 80).into());
            serve_page(pod, &addresses, &page).unwrap()
        })
        .collect();
    let _cluster = Cluster::start(&net, &services);
    let capture = Capture::start(client);
    for service in &services {
        let mut answered = BTreeSet::new();
        for _ in 0..20 {
            let url = format!("http://{}/", service.service.address);
            let page = output(&mut command(client, &format!("curl -sSf -m 10 {url}"))).unwrap();
            assert!(page.len() > PAGE, "{} bytes", page.len());
            answered.insert(page.lines().next().unwrap().to_owned());
        }
        assert_eq!(answered.len(), 2, "{answered:?}");
    }
    assert!(capture.assert_good_checksums() > 1000);
}

#[test]
fn iperf3_measures_tcp_and_udp() {
    let net = Topology::builder().pods(1).build().unwrap();
    let (client, pod) = (&net.clients()[0], &net.nodes()[1].pods()[0]);
    // Its connections have to meet in one server.
    let services = [Protocol::Tcp, Protocol::Udp]
        .map(|protocol| services(5201, protocol, Some(pod)))
        .concat();
    let mut server = Process::spawn(&mut command(pod, "iperf3 --server --forceflush")).unwrap();
    server.wait_for_line("Server listening", TIMEOUT).unwrap();
    let _cluster = Cluster::start(&net, &services);
    let capture = Capture::start(client);
    for vip in VIPS.map(|vip| vip()) {
        for options in [
            "-n 8M",
            "-n 8M -R",
            "-u -b 8M -n 1500K -l 1200",
            "-u -b 8M -n 1500K -l 1200 -R",
        ] {
            let line = format!("iperf3 --json --connect-timeout 5000 -c {vip} {options}");
            let report = output(&mut command(client, &line)).unwrap();
            let report: Value = serde_json::from_str(&report).unwrap();
            let sums = &report["end"];
            if options.starts_with("-u") {
                let (lost, sent) = (&sums["sum"]["lost_packets"], &sums["sum"]["packets"]);
                assert!(sent.as_u64() > Some(1000), "{options}: {sums}");
                // The receiver of a busy machine may drop some.
                assert!(
                    lost.as_u64().unwrap() * 20 < sent.as_u64().unwrap(),
                    "{sums}"
                );
            } else {
                // It ends when all is sent, whatever is still on its way.
                let bytes = |sum: &str| sums[sum]["bytes"].as_u64();
                assert!(bytes("sum_sent") >= Some(8 << 20), "{options}: {sums}");
                assert!(bytes("sum_received") > Some(1 << 20), "{options}: {sums}");
            }
        }
    }
    assert!(capture.assert_good_checksums() > 4000);
}
