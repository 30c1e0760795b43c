//! Programs that people use, at both ends.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    process::Command,
};

use lab::{Machine, Process, Topology, output, serve_page, vip_v4, vip_v6};
use serde_json::Value;

use crate::support::{
    Agent, Capture, Cluster, Mode, PodService, Protocol, Service, TIMEOUT, nat_config,
};

/// The same port and protocol on VIPs of both families for each mode, over one pod or all.
fn services<'net>(
    modes: &[Mode],
    port: u16,
    protocol: Protocol,
    only: Option<&'net Machine>,
) -> Vec<PodService<'net>> {
    let service = |vip: IpAddr, mode| PodService {
        target_port: port,
        only,
        ..PodService::over_all(Service {
            address: SocketAddr::new(vip, port),
            protocol,
            mode,
        })
    };
    let modes = modes.iter().zip(1..);
    modes
        .flat_map(|(&mode, number)| {
            let vips: [IpAddr; 2] = [vip_v4(number).into(), vip_v6(number).into()];
            vips.map(|vip| service(vip, mode))
        })
        .collect()
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
    let services = services(&[Mode::IpipV4], 80, Protocol::Tcp, None);
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
            let page = output(&mut command(client, &format!("curl -sSf -m 60 {url}"))).unwrap();
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
        .map(|protocol| services(&[Mode::IpipV4, Mode::L2dsr], 5201, protocol, Some(pod)))
        .concat();
    let vips: BTreeSet<IpAddr> = services
        .iter()
        .map(|service| service.service.address.ip())
        .collect();
    let mut server = Iperf3::serve(pod);
    let _cluster = Cluster::start(&net, &services);
    let capture = Capture::start(client);
    for vip in vips {
        server.measure(client, vip);
    }
    assert!(capture.assert_good_checksums() > 4000);
}

#[test]
fn iperf3_measures_tcp_and_udp_by_nat() {
    let net = Topology::builder()
        .nodes(0)
        .routed_nodes(1)
        .build()
        .unwrap();
    let (client, host) = (&net.clients()[0], &net.nodes()[0]);
    let vips: [IpAddr; 2] = [vip_v4(1).into(), vip_v6(1).into()];
    let services = vips.map(|vip| {
        let at = |address| SocketAddr::new(address, 5201);
        (at(vip), at(host.address_like(vip)))
    });
    let mut server = Iperf3::serve(host);
    let config = nat_config(&[Protocol::Tcp, Protocol::Udp], services);
    let edge = Agent::start(&net.edges()[0], &config);
    let capture = Capture::start(client);
    for vip in vips {
        server.measure(client, vip);
    }
    assert!(capture.assert_good_checksums() > 2000);
    assert!(Cluster::packets(&edge, "to_client", "nat_reply") > 1000);
}

/// A server of iperf3.
struct Iperf3<'net> {
    machine: &'net Machine,
    process: Process,
    measured: u32,
}

impl<'net> Iperf3<'net> {
    fn serve(machine: &'net Machine) -> Self {
        let mut command = command(machine, "iperf3 --server --forceflush");
        Self {
            machine,
            process: Process::spawn(&mut command).unwrap(),
            measured: 0,
        }
    }

    /// Sends by TCP and UDP, both ways, between a client and the one server behind a VIP.
    fn measure(&mut self, client: &Machine, vip: IpAddr) {
        for options in [
            "-n 8M",
            "-n 8M -R",
            "-u -b 24M -n 1500K -l 1200",
            "-u -b 24M -n 1500K -l 1200 -R",
        ] {
            // After each test the server opens its port anew.
            self.measured += 1;
            let listening = format!("Server listening on 5201 (test #{})", self.measured);
            self.process.wait_for_line(&listening, TIMEOUT).unwrap();
            let line = format!("iperf3 --json --connect-timeout 20000 -c {vip} {options}");
            let receiver = if options.ends_with("-R") {
                client
            } else {
                self.machine
            };
            let before = full_buffers(receiver);
            let report = output(&mut command(client, &line)).unwrap();
            let report: Value = serde_json::from_str(&report).unwrap();
            let sums = &report["end"];
            if options.starts_with("-u") {
                let (lost, sent) = (&sums["sum"]["lost_packets"], &sums["sum"]["packets"]);
                assert!(sent.as_u64() > Some(1000), "{options}: {sums}");
                // None on the way: where the receiver is not scheduled, its buffer overflows.
                let full = full_buffers(receiver) - before;
                assert!(
                    lost.as_u64() <= Some(full),
                    "{full} at the receiver: {sums}"
                );
            } else {
                // It ends when all is sent, whatever is still on its way.
                let bytes = |sum: &str| sums[sum]["bytes"].as_u64();
                assert!(bytes("sum_sent") >= Some(8 << 20), "{options}: {sums}");
                assert!(bytes("sum_received") > Some(1 << 20), "{options}: {sums}");
            }
        }
    }
}

/// Counts the datagrams that a machine dropped because a socket's buffer was full.
fn full_buffers(machine: &Machine) -> u64 {
    let counters = output(&mut command(machine, "cat /proc/net/snmp /proc/net/snmp6")).unwrap();
    let v6 = counters
        .lines()
        .find_map(|line| line.strip_prefix("Udp6RcvbufErrors"));
    let mut v4 = counters.lines().filter(|line| line.starts_with("Udp: "));
    let (names, values) = (v4.next().unwrap(), v4.next().unwrap());
    let mut columns = names.split(' ').zip(values.split(' '));
    let v4 = columns.find_map(|(name, value)| (name == "RcvbufErrors").then_some(value));
    [v4, v6]
        .map(|value| value.unwrap().trim().parse::<u64>().unwrap())
        .iter()
        .sum()
}

#[test]
fn ping_is_answered_by_the_vip() {
    let net = Topology::builder().pods(1).build().unwrap();
    let client = &net.clients()[0];
    let services = services(&[Mode::IpipV4, Mode::L2dsr], 80, Protocol::Tcp, None);
    let cluster = Cluster::start(&net, &services);
    let capture = Capture::start(client);
    for service in &services {
        let vip = service.service.address.ip();
        let line = format!("ping -c 5 -i 1 -W 20 -s 1000 {vip}");
        let report = output(&mut command(client, &line)).unwrap();
        assert!(report.contains("5 received, 0% packet loss"), "{report}");
    }
    assert_eq!(Cluster::packets(&cluster.edge, "reply", "echo_reply"), 20);
    assert!(capture.assert_good_checksums() >= 20);
}

/// What a TXT record of the answer says: as much as one string can.
fn text(number: u8) -> String {
    char::from(b'a' + number).to_string().repeat(255)
}

const NAME: &str = "large.test";
/// With these the answer is as large as resolvers used to ask for at most (RFC 6891 section 6.2.5).
const RECORDS: u8 = 15;
const EDNS_SIZE: usize = 4096;

/// Serves the records on a pod's addresses. Such an answer leaves in fragments.
fn serve_dns(pod: &Machine) -> Process {
    let mut dnsmasq = pod.namespace().command("dnsmasq");
    dnsmasq.args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--pid-file=",
        "--user=root",
        "--bind-interfaces",
        "--log-facility=-",
    ]);
    dnsmasq.arg(format!("--edns-packet-max={EDNS_SIZE}"));
    for address in [pod.v4().to_string(), pod.v6().to_string()] {
        dnsmasq.arg(format!("--listen-address={address}"));
    }
    for number in 0..RECORDS {
        dnsmasq.arg(format!("--txt-record={NAME},{}", text(number)));
    }
    let mut server = Process::spawn(&mut dnsmasq).unwrap();
    server.wait_for_line("started", TIMEOUT).unwrap();
    server
}

#[test]
fn large_dns_answers_arrive_in_fragments() {
    const QUERIES: usize = 10;
    let net = Topology::builder().pods(1).build().unwrap();
    let client = &net.clients()[0];
    let modes = [Mode::IpipV4, Mode::IpipV6, Mode::L2dsr];
    let services = services(&modes, 53, Protocol::Udp, None);
    let _servers: Vec<Process> = net.pods().map(serve_dns).collect();
    let _cluster = Cluster::start(&net, &services);
    let mut wanted: Vec<String> = (0..RECORDS)
        .map(|number| format!("\"{}\"", text(number)))
        .collect();
    wanted.sort_unstable();
    let mut capture = Capture::start(client);
    for service in &services {
        let vip = service.service.address.ip();
        for _ in 0..QUERIES {
            // One port that talks to a pod by two VIPs would be a conflict.
            let from = format!("{}#{}", client.address_like(vip), client.fresh_port());
            let line = format!(
                "dig -b {from} @{vip} {NAME} TXT +bufsize={EDNS_SIZE} +ignore +tries=1 +time=20 +short"
            );
            let answer = output(&mut command(client, &line)).unwrap();
            let mut records: Vec<&str> = answer.lines().collect();
            records.sort_unstable();
            assert_eq!(records, wanted, "{vip}");
        }
    }
    capture.stop();
    capture.assert_none_bad();
    // The first and the last fragment of each answer.
    for (first, last) in [
        (
            "ip.flags.mf == 1 && ip.frag_offset == 0",
            "ip.frag_offset > 0",
        ),
        ("ipv6.fraghdr.offset == 0", "ipv6.fraghdr.offset > 0"),
    ] {
        let answers = modes.len() * QUERIES;
        assert_eq!(capture.packets(first).len(), answers, "{first}");
        assert!(capture.packets(last).len() >= answers, "{last}");
    }
    let whole = format!("dns.flags.response == 1 && dns.count.answers == {RECORDS}");
    assert_eq!(capture.packets(&whole).len(), services.len() * QUERIES);
}
