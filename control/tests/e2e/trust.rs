//! A node takes the outer header off only what its edges send.

use std::{io, time::Duration};

use lab::Topology;

use crate::support::{
    Agent, Cluster, Echo, Flow, Mode, PodService, Protocol, Service, cluster_config, edge_config,
    node_config, resolve_way, serve_on_pods,
};

/// How long to wait for answers that must not come.
const SHORT: Duration = Duration::from_millis(500);

#[test]
fn ipip_of_an_untrusted_edge_is_left_alone() {
    let net = Topology::builder().edges(2).nodes(1).build().unwrap();
    let [trusted, stranger] = net.edges() else {
        panic!("two edges");
    };
    let (node, client) = (&net.nodes()[0], &net.clients()[0]);
    let services = Service::all(&[Mode::IpipV4, Mode::IpipV6]);
    let _echo = Echo::start(node, &services);
    // Else the stranger's echoes are counted too.
    let config = edge_config(&services, [node]) + "node_health: off\n";
    let _edges = [trusted, stranger].map(|edge| Agent::start(edge, &config));
    let agent = Agent::start(node, &node_config([trusted]));

    Flow::open_many(client, &services, 1);
    assert_eq!(packets(&agent, "encap_untrusted"), 0);

    net.route_vips(&[1]).unwrap();
    let udp = services
        .iter()
        .filter(|service| service.protocol == Protocol::Udp);
    for (service, sent) in udp.zip(1..) {
        let error = Flow::open_within(client, service, SHORT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{service}");
        Cluster::wait_for_packets(&agent, "pass", "encap_untrusted", sent);
    }

    agent.write_config(&node_config([trusted, stranger]));
    agent.wait_for_reloads(2);
    Flow::open_many(client, &services, 1);
}

#[test]
fn what_an_edge_sends_for_no_address_of_services_does_not_reach_the_stack() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let (edge, node, client) = (&net.edges()[0], &net.nodes()[0], &net.clients()[0]);
    let all = Service::all(&[Mode::IpipV4, Mode::IpipV6]);
    let udp: Vec<PodService<'_>> = all
        .into_iter()
        .filter(|service| service.protocol == Protocol::Udp)
        .map(PodService::over_all)
        .collect();
    // The node's file is behind the edge's. Its kernel forwards for pods: it would route what comes for these addresses
    // to the edge, as it would take what comes for its own to any port.
    let mut agent = Agent::launch(node, &cluster_config(&net, &[]));
    let config = cluster_config(&net, &udp) + "node_health: off\n";
    let mut at_edge = Agent::launch(edge, &config);
    agent.wait_until_ready();
    at_edge.wait_until_ready();
    for (service, sent) in udp.iter().zip(1..) {
        let error = Flow::open_within(client, &service.service, SHORT).unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::WouldBlock,
            "{}",
            service.service
        );
        Cluster::wait_for_packets(&agent, "drop", "inner_not_ours", sent);
    }
    assert_eq!(Cluster::packets(&agent, "pass", "decapsulated"), 0);
}

/// The edge's file names a pod that serves something else: so do the tags that it writes.
#[test]
fn tags_of_an_edge_that_lies_reach_no_pod_outside_the_service() {
    let net = Topology::builder().nodes(1).pods(2).build().unwrap();
    let (edge, node, client) = (&net.edges()[0], &net.nodes()[0], &net.clients()[0]);
    let [own, foreign] = node.pods() else {
        panic!("two pods");
    };
    let of = |only, port| {
        let all = Service::all(&[Mode::IpipV4, Mode::IpipV6]).into_iter();
        all.map(move |mut service| {
            service.address.set_port(port);
            PodService {
                only: Some(only),
                ..PodService::over_all(service)
            }
        })
    };
    let honest: Vec<PodService<'_>> = of(own, 7000).chain(of(foreign, 7100)).collect();
    let lie: Vec<PodService<'_>> = of(foreign, 7000).collect();
    let _echoes = serve_on_pods(&net, &honest);
    let agent = Agent::start(node, &cluster_config(&net, &honest));
    let _edge = Agent::start(edge, &cluster_config(&net, &lie));

    resolve_way(node, client);
    let counted = |action, reason| Cluster::packets(&agent, action, reason);
    for PodService { service, .. } in lie {
        match service.protocol {
            // Each datagram may be a flow's first: it goes to a pod of the service.
            Protocol::Udp => {
                let mut flow = Flow::open(client, &service).unwrap();
                assert_eq!(flow.node, own.label(), "{service}");
                assert_eq!(flow.ask().unwrap(), own.label(), "{service}");
            }
            // A SYN goes to the pod that it names or to none, and so does what follows.
            Protocol::Tcp | Protocol::Sctp => {
                let before = counted("drop", "unknown_pod_syn");
                let error = Flow::open_within(client, &service, SHORT).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{service}");
                Cluster::wait_for_more(&agent, "drop", "unknown_pod_syn", before);
                let before = counted("reply", "reset");
                let error = Flow::resume(client, &service).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{service}");
                assert!(counted("reply", "reset") > before, "{service}");
            }
        }
    }
}

/// Packets that the node passed to its stack for this reason.
fn packets(agent: &Agent<'_>, reason: &str) -> u64 {
    Cluster::packets(agent, "pass", reason)
}
