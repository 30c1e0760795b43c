//! What is told at the health check ports of Services.

use super::words::*;
use crate::index::HealthCheck;
use crate::index::objects::{Node, TO_BE_DELETED};

#[test]
fn health_check_port_is_for_load_balancers_with_the_local_policy() {
    let mut cluster = cluster();
    cluster.slice(slice("web-1", &["10.244.1.1@node-1"]));
    for service in [
        web(),
        web().local().kind("NodePort"),
        web().local().health_check(0),
    ] {
        cluster.service(service);
        assert!(cluster.state().health_checks.is_empty());
    }
    cluster.service(web().health_check(32000));
    assert!(
        cluster.state().health_checks.is_empty(),
        "the policy is Cluster"
    );
    cluster.service(
        web()
            .local()
            .health_check(32000)
            .class(Some("other"))
            .without_ingress(),
    );
    assert_eq!(
        told(&mut cluster),
        Some((32000, 1)),
        "whose load balancer it is does not matter"
    );
}

#[test]
fn local_ready_addresses_count_once_over_all_ports() {
    let mut cluster = cluster();
    cluster.service(web().port("b", 81, "TCP").local().health_check(32000));
    let several = [
        "10.244.1.1@node-1",
        "10.244.1.2@node-1",
        "10.244.2.1@node-2",
    ];
    cluster.slice(slice("web-1", &several).port("b", 8081, "TCP"));
    cluster.slice(slice_of("web", "web-2", &["10.244.1.1@node-1"]).port("b", 9090, "TCP"));
    assert_eq!(told(&mut cluster), Some((32000, 2)));
}

#[test]
fn pod_with_addresses_of_both_families_counts_once() {
    let mut cluster = cluster();
    let dual = web().cluster_ips(&["10.96.0.1", "fd00:96::1"]);
    cluster.service(dual.local().health_check(32000));
    let v6 = ["fd00:1::1@node-1", "fd00:1::2@node-1", "fd00:2::1@node-2"];
    cluster.slice(slice("web-1", &["10.244.1.1@node-1", "10.244.2.1@node-2"]));
    cluster.slice(slice("web-2", &v6[..1]).address_type("IPv6"));
    assert_eq!(told(&mut cluster), Some((32000, 1)));
    // Another one has an address of one family alone.
    cluster.slice(slice("web-2", &v6).address_type("IPv6"));
    assert_eq!(told(&mut cluster), Some((32000, 2)));
}

#[test]
fn terminating_endpoints_get_traffic_and_do_not_count() {
    let mut cluster = cluster();
    cluster.service(web().local().health_check(32000));
    cluster.slice(slice(
        "web-1",
        &["10.244.1.1@node-1 unready serving terminating"],
    ));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    assert_eq!(told(&mut cluster), Some((32000, 0)));
}

#[test]
fn port_that_goes_or_changes_is_told_of() {
    let mut cluster = cluster();
    cluster.service(web().local().health_check(32000));
    cluster.update();
    cluster.service(web().local().health_check(32001));
    assert!(cluster.update().health_checks);
    assert_eq!(told(&mut cluster), Some((32001, 0)));
    cluster.index.delete_service(&name("web"));
    assert!(cluster.update().health_checks);
    assert_eq!(told(&mut cluster), None);
}

#[test]
fn node_is_about_to_go_with_a_deletion_or_the_autoscalers_taint() {
    let own = || node("node-1").internal("10.0.0.1");
    let tainted = |key: &str| Node {
        taints: [key.to_owned()].into(),
        ..own()
    };
    let deleting = Node {
        deleting: true,
        ..own()
    };
    let mut cluster = cluster();
    assert_eq!(cluster.state().leaving, Some(false));
    for (node, leaving) in [
        (tainted("node.kubernetes.io/unschedulable"), false),
        (tainted(TO_BE_DELETED), true),
        (own(), false),
        (deleting, true),
    ] {
        let changes = leaving != (cluster.state().leaving == Some(true));
        cluster.node(node.clone());
        assert_eq!(cluster.update().leaving, changes, "{node:?}");
        assert_eq!(cluster.state().leaving, Some(leaving), "{node:?}");
    }
    cluster.index.delete_node("node-1");
    assert!(cluster.update().leaving);
    assert_eq!(cluster.state().leaving, None);
}

#[test]
fn other_nodes_that_go_and_machines_without_a_node_do_not_matter() {
    let gone = Node {
        deleting: true,
        ..node("node-2").internal("10.0.0.2")
    };
    let mut inside = cluster();
    inside.node(gone.clone());
    assert_eq!(inside.state().leaving, Some(false));
    let mut outside = edge_of_the_cluster();
    outside.node(gone);
    assert_eq!(outside.state().leaving, None);
}

fn told(cluster: &mut Cluster) -> Option<(u16, usize)> {
    let checks = &cluster.state().health_checks;
    let told = |check: &HealthCheck| (check.port, check.local_endpoints);
    checks.get(&name("web")).map(told)
}
