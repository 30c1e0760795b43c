//! Which endpoints get traffic: conditions, policies, hints, affinity, and machines without Guideway.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::words::*;
use crate::desired::{ForwardMode, ServiceKey, TrafficPolicy};
use crate::index::objects::MODE;
use crate::index::{Options, Reserved, TopologyHints};

#[test]
fn missing_conditions_mean_ready_and_serving_and_not_terminating() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1", "10.244.1.2@node-1 unready terminating"],
    ));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    cluster.slice(slice("web-1", &["10.244.1.2@node-1 unready terminating"]));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.2:8080"]),
        "serving, as nothing else is said"
    );
    cluster.slice(slice("web-1", &["10.244.1.2@node-1 unready serving"]));
    assert_eq!(
        cluster.used(VIP),
        pods(&[]),
        "not terminating, as nothing else is said"
    );
}

#[test]
fn selection_is_uniform_over_the_chosen_set() {
    let endpoints = [
        "10.244.1.1@node-1",
        "10.244.1.2@node-1",
        "10.244.2.1@node-2",
        "10.244.3.1@node-3 unready",
    ];
    for (service, number) in [(web(), 3), (web().local(), 2), (web().affinity(), 3)] {
        let is_local = number == 2;
        let mut cluster = cluster();
        cluster.service(service.node_port(30080));
        cluster.slice(slice("web-1", &endpoints));
        for key in [VIP, NODE_PORT] {
            let sharing = cluster.served(key).unwrap().spec.sharing();
            let own: IpAddr = [10, 0, 0, 1].into();
            let used = sharing.filter(|backend| !is_local || backend.address == own);
            let weights: Vec<_> = used.map(|backend| backend.weight).collect();
            assert_eq!(weights, vec![1; number], "{key}");
        }
    }
}

#[test]
fn only_ready_endpoints_are_used_while_there_are_some() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice(
        "web-1",
        &[
            "10.244.1.1@node-1 ready",
            "10.244.1.2@node-1 unready serving terminating",
            "10.244.1.3@node-1 unready serving",
        ],
    ));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
}

#[test]
fn without_ready_endpoints_those_that_serve_and_terminate_are_used() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice(
        "web-1",
        &[
            "10.244.1.2@node-1 unready serving terminating",
            "10.244.2.2@node-2 unready serving terminating",
            "10.244.1.3@node-1 unready silent terminating",
        ],
    ));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.2:8080", "10.244.2.2:8080"])
    );
}

#[test]
fn endpoint_that_terminates_without_serving_is_never_used() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1 unready silent terminating"],
    ));
    assert_eq!(cluster.used(VIP), pods(&[]));
    assert_eq!(
        cluster.reachable(VIP),
        ["10.244.1.1:8080"],
        "what is under way to it"
    );
}

#[test]
fn pod_that_is_not_ready_is_delivered_to_on_its_own_node_alone() {
    let state = [
        "10.244.1.1@node-1 unready",
        "10.244.2.1@node-2 ready",
        "10.244.2.2@node-2 unready",
        "10.244.9.9 unready",
    ];
    for service in [web(), web().local()] {
        let mut here = cluster();
        here.service(service.clone().node_port(30080));
        here.slice(slice("web-1", &state));
        for key in [VIP, NODE_PORT] {
            assert_eq!(here.reachable(key), ["10.244.1.1:8080"], "{key}");
        }
        let mut edge = edge_of_the_cluster();
        edge.service(service).slice(slice("web-1", &state));
        assert_eq!(edge.used(VIP), pods(&["10.244.2.1:8080"]));
        assert_eq!(edge.reachable(VIP), [""; 0]);
    }
}

#[test]
fn pod_that_becomes_ready_and_ceases_to_be_stays_listed() {
    let mut cluster = cluster();
    cluster.service(web());
    let changes = [
        ("unready", 0),
        ("ready", 1),
        ("unready", 0),
        ("ready", 1),
        ("unready serving terminating", 0),
        ("unready silent terminating", 0),
    ];
    for (condition, weight) in changes {
        let pod = format!("10.244.1.1@node-1 {condition}");
        cluster.slice(slice("web-1", &[&pod, "10.244.2.1@node-2"]));
        let backends = &cluster.served(VIP).unwrap().spec.backends;
        let weights: Vec<u32> = backends.iter().map(|backend| backend.weight).collect();
        assert_eq!(weights, [weight, 1], "{condition}");
    }
    cluster.slice(slice("web-1", &["10.244.2.1@node-2"]));
    assert_eq!(cluster.reachable(VIP), [""; 0]);
}

#[test]
fn pod_that_is_not_ready_is_delivered_to_at_each_of_its_ports() {
    let mut cluster = cluster();
    cluster.service(web().port("admin", 81, "TCP"));
    let pods = ["10.244.1.1@node-1 unready", "10.244.2.1@node-2"];
    cluster.slice(slice("web-1", &pods).port("admin", 9090, "TCP"));
    assert_eq!(cluster.reachable(VIP), ["10.244.1.1:8080"]);
    assert_eq!(cluster.reachable("192.0.2.1:81/tcp"), ["10.244.1.1:9090"]);
}

#[test]
fn pods_that_are_not_ready_count_neither_for_the_mode_nor_for_the_table() {
    let mut cluster = cluster();
    cluster.service(web().annotation("guideway.dev/table-size", "1"));
    let state = [
        "10.244.1.1@node-1 unready",
        "10.244.1.2@node-1 unready",
        "10.244.9.1@node-9",
    ];
    cluster.slice(slice("web-1", &state));
    let spec = &cluster.served(VIP).unwrap().spec;
    assert_eq!(spec.mode, ForwardMode::Nat, "all that is used is elsewhere");
    assert_eq!(spec.backends.len(), 1, "by NAT no machine delivers");
    cluster.slice(slice("web-1", &["10.244.2.1@node-2", state[0], state[1]]));
    let spec = &cluster.served(VIP).unwrap().spec;
    assert_eq!((spec.mode, spec.log2_slots), (ForwardMode::Ipip, Some(0)));
    assert_eq!(spec.backends.len(), 3);
    assert_eq!(cluster.problems("web"), [""; 0]);
}

#[test]
fn sctp_pod_that_is_not_ready_leaves_no_port_to_others() {
    let mut cluster = cluster();
    let sctp = service("web").kind("LoadBalancer");
    let sctp = sctp.class(Some(Options::DEFAULT_CLASS));
    let sctp = sctp.port("", 80, "SCTP").ingress("192.0.2.1");
    let pods = |condition: &str| {
        let pod = format!("10.244.1.1@node-1 {condition}");
        slice_of("web", "web-1", &[&pod]).port("", 9899, "SCTP")
    };
    cluster.service(sctp).slice(pods("unready"));
    assert_eq!(cluster.keys(), ["192.0.2.1:80/sctp"]);
    assert_eq!(cluster.problems("web"), [""; 0]);
    cluster.slice(pods("ready"));
    assert_eq!(cluster.keys(), [""; 0]);
    assert_eq!(cluster.problems("web"), ["SctpPort"]);
}

#[test]
fn local_set_falls_back_on_its_own() {
    let draining_here = slice(
        "web-1",
        &[
            "10.244.1.1@node-1 unready serving terminating",
            "10.244.2.1@node-2 ready",
        ],
    );
    let mut cluster = cluster();
    cluster.service(web().local()).slice(draining_here.clone());
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    cluster.service(web());
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.2.1:8080"]),
        "the Cluster set has a ready one"
    );
}

#[test]
fn all_machines_agree_on_who_announces_a_local_service() {
    let key = VIP.parse::<ServiceKey>().unwrap();
    for mode in ["ipip", "nat"] {
        let edge_on_a_node = cluster_with(Options {
            node_name: Some("node-1".to_owned()),
            edge_only: true,
            ..Options::default()
        });
        for mut cluster in [cluster(), edge_of_the_cluster(), edge_on_a_node] {
            cluster.service(web().local().annotation(MODE, mode));
            assert!(cluster.state().announcers[&key].is_empty());
            // Each Node falls back on its own, whatever others have.
            cluster.slice(slice(
                "web-1",
                &[
                    "10.244.1.1@node-1 unready serving terminating",
                    "10.244.2.1@node-2",
                    "10.244.3.1@node-3 unready",
                ],
            ));
            assert!(cluster.update().addresses);
            let expected: BTreeSet<IpAddr> = addresses(&["10.0.0.1", "10.0.0.2"]);
            assert_eq!(*cluster.state().announcers[&key], expected, "{mode}");
            // NodePorts are not announced, and with the other policy everybody announces.
            assert_eq!(cluster.state().announcers.len(), 1);
            cluster.service(web());
            assert!(cluster.update().addresses);
            assert!(cluster.state().announcers.is_empty());
        }
    }
}

#[test]
fn port_without_endpoints_leaves_the_address_to_the_nodes_of_the_others() {
    let mut cluster = cluster();
    cluster.service(web().local().port("new", 81, "TCP"));
    cluster.slice(slice("web-1", &["10.244.1.1@node-1", "10.244.2.1@node-2"]));
    let both = Arc::new(addresses(&["10.0.0.1", "10.0.0.2"]));
    let announcers = &cluster.state().announcers;
    let announcers = announcers.iter().map(|(key, nodes)| (key.port, nodes));
    assert_eq!(announcers.collect::<Vec<_>>(), [(80, &both), (81, &both)]);
}

#[test]
fn publish_not_ready_addresses_shows_in_the_conditions_alone() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1 ready serving terminating"],
    ));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
}

#[test]
fn cluster_policy_uses_all_usable_endpoints() {
    let mut cluster = cluster();
    cluster
        .service(web())
        .slice(slice("web-1", &["10.244.1.1@node-1", "10.244.2.1@node-2"]));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
    );
    let spec = &cluster.served(VIP).unwrap().spec;
    assert_eq!(spec.traffic_policy, TrafficPolicy::Cluster);
}

#[test]
fn local_policy_uses_the_pods_of_this_node_alone() {
    let mut cluster = cluster();
    cluster.service(web().local().node_port(30080));
    cluster.slice(slice("web-1", &["10.244.1.1@node-1", "10.244.2.1@node-2"]));
    for key in [VIP, NODE_PORT] {
        assert_eq!(cluster.used(key), pods(&["10.244.1.1:8080"]), "{key}");
        let spec = &cluster.served(key).unwrap().spec;
        assert_eq!(spec.traffic_policy, TrafficPolicy::Local, "{key}");
    }
}

#[test]
fn local_policy_without_local_endpoints_drops_while_others_have_some() {
    let mut cluster = cluster();
    cluster
        .service(web().local())
        .slice(slice("web-1", &["10.244.2.1@node-2"]));
    let spec = &cluster.served(VIP).unwrap().spec;
    assert_eq!(spec.traffic_policy, TrafficPolicy::Local);
    // Tables drop where a service has backends and this machine has none of them.
    assert_eq!(spec.backends.len(), 1);
    assert_eq!(spec.backends[0].address.to_string(), "10.0.0.2");
}

#[test]
fn local_policy_outside_the_cluster_uses_the_cluster_set() {
    let mut edge = edge_of_the_cluster();
    edge.service(web().local());
    edge.slice(slice(
        "web-1",
        &[
            "10.244.1.1@node-1 unready serving terminating",
            "10.244.2.1@node-2 ready",
            "10.244.3.1@node-3 ready",
        ],
    ));
    assert_eq!(
        edge.used(VIP),
        pods(&["10.244.2.1:8080", "10.244.3.1:8080"])
    );
    assert_eq!(
        edge.reachable(VIP),
        ["10.244.1.1:8080"],
        "by its node alone"
    );
}

#[test]
fn node_with_the_edge_role_only_uses_the_cluster_set_with_local_policy_too() {
    let mut edge = cluster();
    edge.index.set_edge_only(true);
    edge.guideway_on(&["node-1", "node-2"]);
    edge.service(web().local().node_port(30080));
    edge.slice(slice("web-1", &["10.244.2.1@node-2", "10.244.3.1@node-3"]));
    for key in [VIP, NODE_PORT] {
        let spec = &edge.served(key).unwrap().spec;
        let nowhere = spec
            .backends
            .iter()
            .find(|backend| backend.address.is_unspecified());
        assert_eq!(nowhere, None, "{key}");
        let used = edge.used(key).unwrap();
        assert!(
            used.contains(&"10.244.2.1:8080".to_owned()),
            "{key}: {used:?}"
        );
    }
    edge.index.set_edge_only(false);
    assert_eq!(edge.used(VIP), pods(&[]), "none here");
}

#[test]
fn pods_of_a_node_with_the_edge_role_only_are_as_on_a_machine_without_guideway() {
    let mut edge = cluster();
    edge.index.set_edge_only(true);
    edge.service(web())
        .slice(slice("web-1", &["10.244.1.1@node-1"]));
    assert_eq!(edge.served(VIP).unwrap().spec.mode, ForwardMode::Nat);
    assert_eq!(edge.problems("web"), ["MachineWithoutGuideway"]);
    let mut problems = edge.state().problems.values().flat_map(|all| all.iter());
    let text = &problems.next().unwrap().text;
    assert!(text.contains("which has not the role node"), "{text}");
}

#[test]
fn local_policy_lists_the_same_nodes_on_every_machine() {
    let state = [
        "10.244.1.1@node-1 unready serving terminating",
        "10.244.2.1@node-2 ready",
        "10.244.2.2@node-2 unready serving terminating",
        "10.244.3.1@node-3 unready",
    ];
    for mut machine in [cluster(), edge_of_the_cluster()] {
        machine.service(web().local()).slice(slice("web-1", &state));
        let spec = &machine.served(VIP).unwrap().spec;
        assert_eq!(spec.traffic_policy, TrafficPolicy::Local);
        let nodes = spec.backends.iter().map(|backend| backend.address);
        let with_pods = addresses(&["10.0.0.1", "10.0.0.2"]);
        assert_eq!(nodes.collect::<std::collections::BTreeSet<_>>(), with_pods);
    }
}

#[test]
fn no_endpoints_at_all_are_rejected_whatever_the_policy() {
    for service in [web(), web().local()] {
        let mut cluster = cluster();
        cluster.service(service.node_port(30080));
        cluster.slice(slice(
            "web-1",
            &["10.244.1.1@node-1 unready", "10.244.2.1@node-2 unready"],
        ));
        for key in [VIP, NODE_PORT] {
            let spec = &cluster.served(key).unwrap().spec;
            assert_eq!(spec.sharing().count(), 0, "{key}");
            assert_eq!(cluster.reachable(key), ["10.244.1.1:8080"], "{key}");
        }
    }
}

#[test]
fn service_without_slices_is_rejected() {
    let mut cluster = cluster();
    cluster.service(web());
    assert_eq!(cluster.used(VIP), pods(&[]));
}

#[test]
fn unknown_policy_counts_as_the_default_and_is_named() {
    let mut cluster = cluster();
    let mut odd = web();
    odd.external_traffic_policy = Some("Nearby".into());
    odd.session_affinity = Some("Cookie".into());
    cluster
        .service(odd)
        .slice(slice("web-1", &["10.244.2.1@node-2"]));
    let spec = &cluster.served(VIP).unwrap().spec;
    assert_eq!(
        (spec.traffic_policy, spec.affinity),
        (TrafficPolicy::Cluster, None)
    );
    assert_eq!(cluster.problems("web"), ["InvalidPolicy"]);
}

#[test]
fn node_hints_leave_those_that_name_this_node() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice(
        "web-1",
        &[
            "10.244.1.1@node-1 node=node-1",
            "10.244.2.1@node-2 node=node-2",
        ],
    ));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
}

#[test]
fn zone_hints_leave_those_that_name_this_zone() {
    let mut cluster = in_zone("a");
    cluster.slice(slice(
        "web-1",
        &[
            "10.244.1.1@node-1 zone=a",
            "10.244.2.1@node-2 zone=b zone=a",
        ],
    ));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
    );
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1 zone=a", "10.244.2.1@node-2 zone=b"],
    ));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
}

#[test]
fn node_hints_come_before_zone_hints() {
    let mut cluster = in_zone("a");
    cluster.slice(slice(
        "web-1",
        &[
            "10.244.1.1@node-1 zone=a node=node-1",
            "10.244.2.1@node-2 zone=a node=node-2",
        ],
    ));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    cluster.slice(slice(
        "web-1",
        &[
            "10.244.1.1@node-3 zone=b node=node-3",
            "10.244.2.1@node-2 zone=a node=node-2",
        ],
    ));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.2.1:8080"]),
        "no node hint names this one"
    );
}

#[test]
fn ready_endpoint_without_a_hint_voids_that_kind() {
    let mut cluster = in_zone("a");
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1 zone=a", "10.244.2.1@node-2"],
    ));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
    );
    cluster.slice(slice(
        "web-1",
        &[
            "10.244.1.1@node-1 zone=b node=node-1",
            "10.244.2.1@node-2 zone=a",
        ],
    ));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.2.1:8080"]),
        "zone hints are whole"
    );
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1 zone=a", "10.244.2.1@node-2 unready"],
    ));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080"]),
        "only ready ones void"
    );
}

#[test]
fn hints_that_name_nobody_here_are_ignored() {
    let mut cluster = in_zone("c");
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1 zone=a", "10.244.2.1@node-2 zone=b"],
    ));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
    );
}

#[test]
fn zone_hints_are_ignored_where_the_node_has_no_zone() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1 zone=a", "10.244.2.1@node-2 zone="],
    ));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
    );
}

#[test]
fn local_policy_and_the_fallback_ignore_hints() {
    let mut cluster = in_zone("a");
    cluster.service(web().local());
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1 zone=b", "10.244.2.1@node-2 zone=a"],
    ));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    cluster.service(web());
    cluster.slice(slice(
        "web-1",
        &[
            "10.244.1.1@node-1 unready serving terminating zone=b",
            "10.244.2.1@node-2 unready serving terminating zone=a",
        ],
    ));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
    );
}

#[test]
fn hints_are_ignored_where_the_options_say_so() {
    let mut cluster = cluster_with(Options {
        node_name: Some("node-1".to_owned()),
        topology_hints: TopologyHints::Ignore,
        ..Options::default()
    });
    cluster.service(web());
    cluster.slice(slice(
        "web-1",
        &[
            "10.244.1.1@node-1 node=node-1",
            "10.244.2.1@node-2 node=node-2",
        ],
    ));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
    );
}

#[test]
fn service_that_hints_divide_is_marked_wherever_the_machine_is() {
    let divided = ["10.244.1.1@node-1 zone=a", "10.244.2.1@node-2 zone=b"];
    let by_node = ["10.244.1.1@node-1 node=node-1"];
    let one_without = ["10.244.1.1@node-1 zone=a", "10.244.2.1@node-2"];
    let fallback = ["10.244.1.1@node-1 unready serving terminating zone=a"];
    for (endpoints, expected) in [
        (&divided[..], true),
        (&by_node, true),
        (&one_without, false),
        (&fallback, false),
        (&[], false),
    ] {
        let mut outside = edge_of_the_cluster();
        outside.service(web());
        for mut cluster in [in_zone("a"), in_zone("c"), outside] {
            cluster.slice(slice("web-1", endpoints));
            let spec = &cluster.served(VIP).unwrap().spec;
            assert_eq!(spec.hinted, expected, "{endpoints:?}");
        }
    }
    let mut local = in_zone("a");
    local.service(web().local()).slice(slice("web-1", &divided));
    assert!(!local.served(VIP).unwrap().spec.hinted);
    let mut ignoring = cluster_with(Options {
        topology_hints: TopologyHints::Ignore,
        ..Options::default()
    });
    ignoring.service(web()).slice(slice("web-1", &divided));
    assert!(!ignoring.served(VIP).unwrap().spec.hinted);
}

#[test]
fn local_pod_that_hints_leave_to_others_is_still_delivered_to() {
    let mut cluster = in_zone("a");
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1 zone=b", "10.244.2.1@node-2 zone=a"],
    ));
    assert_eq!(cluster.used(VIP), pods(&["10.244.2.1:8080"]));
    assert_eq!(cluster.reachable(VIP), ["10.244.1.1:8080"]);
}

#[test]
fn session_affinity_is_shared_by_all_addresses_of_a_port() {
    let mut cluster = cluster();
    cluster.service(web().node_port(30080).port("b", 81, "TCP").affinity());
    let seed = |cluster: &mut Cluster, key: &str| cluster.served(key).unwrap().spec.affinity;
    let at_vip = seed(&mut cluster, VIP);
    assert!(at_vip.is_some());
    assert_eq!(at_vip, seed(&mut cluster, NODE_PORT));
    assert_ne!(at_vip, seed(&mut cluster, "192.0.2.1:81/tcp"));
}

#[test]
fn ports_of_a_service_count_apart_and_addresses_of_one_together() {
    let mut cluster = cluster();
    let at_port = "192.0.2.1:81/tcp";
    let owner = |cluster: &mut Cluster, key: &str| cluster.served(key).unwrap().spec.owner;
    cluster.service(web().node_port(30080).port("b", 81, "TCP"));
    let [first, second] = [VIP, at_port].map(|key| owner(&mut cluster, key));
    assert_ne!(first, second);
    assert_eq!(first, owner(&mut cluster, NODE_PORT));
    cluster.service(web().port("another-name", 81, "TCP"));
    assert_eq!(second, owner(&mut cluster, at_port));
}

#[test]
fn session_affinity_can_be_switched_on_a_live_service() {
    let mut cluster = cluster();
    cluster.service(web().affinity());
    assert!(cluster.served(VIP).unwrap().spec.affinity.is_some());
    cluster.service(web());
    assert!(cluster.served(VIP).unwrap().spec.affinity.is_none());
}

#[test]
fn pods_on_machines_with_guideway_go_by_the_address_of_their_node() {
    let mut cluster = cluster();
    cluster
        .service(web())
        .slice(slice("web-1", &["10.244.1.1@node-1", "10.244.2.1@node-2"]));
    let spec = cluster.served(VIP).unwrap().spec.clone();
    assert_eq!(spec.mode, ForwardMode::Ipip);
    let nodes: Vec<String> = spec
        .backends
        .iter()
        .map(|backend| backend.address.to_string())
        .collect();
    assert_eq!(nodes, ["10.0.0.1", "10.0.0.2"]);
}

#[test]
fn port_goes_by_nat_while_most_endpoints_are_on_machines_without_guideway() {
    for stranger in ["10.244.2.1@node-2", "10.244.2.1@node-9", "10.244.2.1"] {
        let mut cluster = cluster();
        cluster.guideway_on(&["node-3"]);
        let other = "10.244.2.2@node-2";
        cluster
            .service(web())
            .slice(slice("web-1", &["10.244.1.1@node-1", stranger, other]));
        let spec = cluster.served(VIP).unwrap().spec.clone();
        assert_eq!(spec.mode, ForwardMode::Nat, "{stranger}");
        let targets: Vec<String> = spec
            .backends
            .iter()
            .map(|backend| backend.address.to_string())
            .collect();
        assert_eq!(targets, ["10.244.1.1", "10.244.2.1", "10.244.2.2"]);
        assert_eq!(cluster.problems("web"), ["MachineWithoutGuideway"]);
    }
}

#[test]
fn few_endpoints_on_machines_without_guideway_get_no_traffic_and_move_no_flow() {
    for stranger in ["10.244.2.1@node-2", "10.244.2.1@node-9", "10.244.2.1"] {
        let mut cluster = cluster();
        cluster.guideway_on(&["node-3"]);
        let alone = slice("web-1", &["10.244.1.1@node-1"]);
        cluster.service(web()).slice(alone);
        let before = cluster.served(VIP).unwrap().spec.clone();
        assert_eq!(cluster.problems("web"), [""; 0]);
        cluster.slice(slice("web-1", &["10.244.1.1@node-1", stranger]));
        assert_eq!(cluster.served(VIP).unwrap().spec, before, "{stranger}");
        assert_eq!(cluster.problems("web"), ["MachineWithoutGuideway"]);
    }
}

#[test]
fn local_policy_needs_guideway_on_this_machine_alone() {
    let mut cluster = cluster();
    cluster.guideway_on(&[]);
    cluster
        .service(web().local())
        .slice(slice("web-1", &["10.244.1.1@node-1", "10.244.2.1@node-2"]));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    assert_eq!(cluster.served(VIP).unwrap().spec.mode, ForwardMode::Ipip);
    assert_eq!(cluster.problems("web"), [""; 0]);
}

/// The cluster with this machine in a zone, and [`web`].
fn in_zone(zone: &str) -> Cluster {
    let mut cluster = cluster();
    cluster.node(node("node-1").internal("10.0.0.1").zone(zone));
    cluster.service(web());
    cluster
}

#[test]
fn endpoint_at_an_address_of_its_own_service_is_named_and_left_out() {
    for mode in ["ipip", "nat"] {
        let mut cluster = edge_of_the_cluster();
        cluster
            .service(web().annotation(MODE, mode))
            .slice(slice("web-1", &["192.0.2.1@node-1", "10.244.2.1@node-2"]));
        assert_eq!(cluster.used(VIP), pods(&["10.244.2.1:8080"]), "{mode}");
        assert_eq!(cluster.problems("web"), ["EndpointIsVip"]);
        // Where the machine itself has the address, it may answer at another port.
        cluster.index.set_reserved(Reserved {
            machine: ["192.0.2.1".parse().unwrap()].into(),
            ..Reserved::default()
        });
        let mut all = pods(&["10.244.2.1:8080", "192.0.2.1:8080"]).unwrap();
        let mut used = cluster.used(VIP).unwrap();
        used.sort_unstable();
        all.sort_unstable();
        assert_eq!(used, all, "{mode}");
        assert_eq!(cluster.problems("web"), ["AddressIsNode"]);
    }
}

#[test]
fn endpoint_at_an_external_address_counts_unless_its_port_is_served_there() {
    let mut cluster = cluster_with(Options {
        external_ips: ["203.0.113.0/24".parse().unwrap()].into(),
        ..Options::default()
    });
    let external = web().without_ingress().external(&["203.0.113.7"]);
    cluster
        .service(external.clone().annotation(MODE, "nat"))
        .slice(slice("web-1", &["203.0.113.7"]));
    let key = "203.0.113.7:80/tcp";
    assert_eq!(cluster.used(key), pods(&["203.0.113.7:8080"]));
    assert_eq!(cluster.problems("web"), [""; 0]);
    cluster.service(external.annotation(MODE, "nat").port("b", 8080, "TCP"));
    assert_eq!(cluster.used(key), pods(&[]));
    assert_eq!(cluster.problems("web"), ["EndpointIsVip"]);
}
