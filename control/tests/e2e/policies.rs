//! Traffic policy, session affinity and source ranges between real sockets.

use std::{collections::BTreeSet, io::ErrorKind, time::Duration};

use lab::{Machine, Topology};

use crate::support::{Capture, Cluster, Flow, Mode, PodService, Protocol, Service, serve_on_pods};

const NODE_PORT: u16 = 30_080;
/// How long to wait for answers that must not come.
const SHORT: Duration = Duration::from_millis(500);

/// The services of all pods, or of one, at VIPs and a NodePort, with these lines of the configuration.
fn services<'net>(
    only: Option<&'net Machine>,
    settings: &'net str,
    node_port: u16,
) -> Vec<PodService<'net>> {
    let of = |service| PodService {
        node_port: Some(node_port),
        only,
        settings,
        ..PodService::over_all(service)
    };
    let all = Service::all(&[Mode::IpipV4]).into_iter();
    all.map(of).collect()
}

#[test]
fn policy_local_is_for_the_pods_of_the_node_alone() {
    let net = Topology::builder().pods(1).build().unwrap();
    let [with_pod, without] = net.nodes() else {
        panic!("two nodes");
    };
    let (pod, client) = (&with_pod.pods()[0], &net.clients()[0]);
    let local = services(Some(pod), "traffic_policy: local", NODE_PORT);
    let _echoes = serve_on_pods(&net, &local);
    let cluster = Cluster::start(&net, &local);

    for service in &local {
        // The edge in front knows no policy: it sends to where the pods are.
        for service in [service.service, service.at_node(with_pod)] {
            for flow in Flow::open_many(client, &[service], 8) {
                assert_eq!(flow.node, pod.label(), "{service}");
            }
        }
    }
    let delivered = || Cluster::packets(&cluster.nodes[0], "pass", "delivered");
    let delivered_before = delivered();
    for service in &local {
        let elsewhere = &cluster.nodes[1];
        let dropped_before = Cluster::packets(elsewhere, "drop", "no_local_backend");
        let silent = service.at_node(without);
        let error = Flow::open_within(client, &silent, SHORT).unwrap_err();
        let waited = [ErrorKind::TimedOut, ErrorKind::WouldBlock];
        assert!(waited.contains(&error.kind()), "{silent}: {error}");
        Cluster::wait_for_more(elsewhere, "drop", "no_local_backend", dropped_before);
    }
    assert_eq!(delivered(), delivered_before, "nothing was sent on");
}

#[test]
fn service_without_any_pod_is_refused() {
    let net = Topology::builder().pods(1).build().unwrap();
    let client = &net.clients()[0];
    let mut all = services(Some(client), "traffic_policy: local", NODE_PORT);
    let cluster = services(Some(client), "traffic_policy: cluster", NODE_PORT + 1);
    all.extend(cluster.into_iter().map(|mut service| {
        service.service.address.set_port(7001);
        service
    }));
    let _cluster = Cluster::start(&net, &all);
    let capture = Capture::start(client);
    let mut refused = 0;
    for service in &all {
        let nodes = net.nodes().iter().map(|node| service.at_node(node));
        for service in nodes.chain([service.service]) {
            let error = Flow::open(client, &service).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{service}");
            refused += 1;
        }
    }
    // Resets and ICMP errors.
    assert!(capture.assert_good_checksums() >= 2 * refused);
}

#[test]
fn client_has_one_pod_at_every_address_and_node() {
    let net = Topology::builder().clients(4).pods(2).build().unwrap();
    let all = services(None, "session_affinity: client-ip", NODE_PORT);
    let _echoes = serve_on_pods(&net, &all);
    let _cluster = Cluster::start(&net, &all);
    let mut chosen = BTreeSet::new();
    for client in net.clients() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let of_protocol = all.iter().filter(|one| one.service.protocol == protocol);
            for service in of_protocol {
                let nodes = net.nodes().iter().map(|node| service.at_node(node));
                let addresses: Vec<Service> = nodes.chain([service.service]).collect();
                let flows = Flow::open_many(client, &addresses, 4);
                let pods: BTreeSet<String> = flows.into_iter().map(|flow| flow.node).collect();
                assert_eq!(pods.len(), 1, "{} to {addresses:?}", client.label());
                chosen.extend(pods);
            }
        }
    }
    assert!(chosen.len() > 1, "all clients have {chosen:?}");
}

#[test]
fn source_ranges_keep_other_clients_out_at_vips_and_node_ports() {
    let net = Topology::builder().clients(2).pods(1).build().unwrap();
    let [admitted, other] = net.clients() else {
        panic!("two clients");
    };
    let ranges = [admitted.v4(), admitted.v6()]
        .map(|client| (client, format!("source_ranges: [\"{client}\"]")));
    let all: Vec<PodService<'_>> = ranges
        .iter()
        .flat_map(|(client, line)| {
            let all = services(None, line, NODE_PORT).into_iter();
            all.filter(|one| one.service.address.is_ipv4() == client.is_ipv4())
        })
        .collect();
    let _echoes = serve_on_pods(&net, &all);
    let cluster = Cluster::start(&net, &all);
    for service in &all {
        let node = &net.nodes()[0];
        let places = [
            (&cluster.edge, service.service),
            (&cluster.nodes[0], service.at_node(node)),
        ];
        for (agent, service) in places {
            Flow::open(admitted, &service).unwrap();
            let before = Cluster::packets(agent, "drop", "source_range");
            Flow::open_within(other, &service, SHORT).unwrap_err();
            Cluster::wait_for_more(agent, "drop", "source_range", before);
        }
    }
}
