//! What is told at the health check ports of Services.

use super::words::*;
use crate::index::HealthCheck;

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

fn told(cluster: &mut Cluster) -> Option<(u16, usize)> {
    let checks = &cluster.state().health_checks;
    let told = |check: &HealthCheck| (check.port, check.local_endpoints);
    checks.get(&name("web")).map(told)
}
