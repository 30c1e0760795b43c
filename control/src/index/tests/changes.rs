//! What changes when objects come, change and go.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::words::*;
use crate::desired::{ForwardMode, ServiceKey};
use crate::index::objects::ObjectName;
use crate::index::{Changes, GuidewayMachines, Object, Options};

const PODS: &[&str] = &["10.244.1.1@node-1", "10.244.2.1@node-2"];

#[test]
fn change_of_one_service_computes_and_changes_it_alone() {
    let mut cluster = two_services();
    let before = cluster.state().clone();
    cluster.slice(slice("web-1", &PODS[..1]));
    let changes = cluster.update();
    assert_eq!(changes.computed, 1);
    assert_eq!(changes.services, BTreeSet::from([VIP.parse().unwrap()]));
    assert!(!changes.addresses && !changes.problems && !changes.health_checks);
    let after = cluster.state();
    for (key, service) in &after.services {
        let shared = Arc::ptr_eq(service, &before.services[key]);
        assert_eq!(shared, key.to_string() != VIP, "{key}");
    }
}

#[test]
fn object_that_comes_again_changes_nothing() {
    let mut cluster = two_services();
    cluster.update();
    cluster.service(web()).slice(slice("web-1", PODS));
    cluster.node(node("node-2").internal("10.0.0.2"));
    cluster.guideway_on(&["node-1", "node-2", "node-3"]);
    assert_eq!(cluster.index.pending(), 0);
    assert_eq!(cluster.update(), Changes::default());
}

#[test]
fn what_changes_and_changes_back_keeps_its_place_in_memory() {
    let mut cluster = two_services();
    let before = cluster.state().clone();
    cluster
        .slice(slice("web-1", &[]))
        .slice(slice("web-1", PODS));
    let changes = cluster.update();
    assert!(changes.is_empty(), "{changes:?}");
    let key: ServiceKey = VIP.parse().unwrap();
    assert!(Arc::ptr_eq(
        &cluster.state().services[&key],
        &before.services[&key]
    ));
}

#[test]
fn order_of_objects_does_not_matter() {
    let forwards = two_services().state().clone();
    let mut cluster = cluster_with(Options {
        node_name: Some("node-1".to_owned()),
        ..Options::default()
    });
    cluster.index.delete_node("node-2");
    cluster.slice(slice_of("api", "api-1", PODS).port("", 8080, "TCP"));
    cluster.update();
    cluster
        .slice(slice("web-1", PODS))
        .service(load_balancer("api", "192.0.2.2"));
    cluster.update();
    cluster
        .service(web())
        .node(node("node-2").internal("10.0.0.2"));
    assert_eq!(*cluster.state(), forwards);
}

#[test]
fn everything_of_a_deleted_service_goes() {
    let mut cluster = two_services();
    cluster.service(web().source_ranges(&["x"]));
    cluster.update();
    for service in ["web", "api"] {
        cluster.index.delete_service(&name(service));
        cluster.index.delete_slice(&name(&format!("{service}-1")));
    }
    let state = cluster.state();
    assert!(state.services.is_empty() && state.vips.is_empty() && state.assigned.is_empty());
    assert!(state.problems.is_empty() && state.draining.is_empty());
    assert!(cluster.index.entries.is_empty() && cluster.index.claims.is_empty());
    assert!(cluster.index.captured.is_empty());
}

#[test]
fn service_that_is_created_anew_finds_its_slices() {
    let mut cluster = two_services();
    cluster.index.delete_service(&name("web"));
    assert_eq!(cluster.used(VIP), None);
    cluster.service(web().created(9));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
    );
}

#[test]
fn new_list_removes_what_it_does_not_have() {
    let mut cluster = two_services();
    cluster.update();
    cluster.index.retain_services(&[name("web")].into());
    cluster.index.retain_slices(&[name("web-1")].into());
    cluster
        .index
        .retain_nodes(&["node-1", "node-2"].map(ToOwned::to_owned).into());
    assert_eq!(cluster.keys(), [VIP]);
    assert_eq!(cluster.index.slices().collect::<Vec<_>>(), [&name("web-1")]);
    assert_eq!(cluster.state().nodes, addresses(&["10.0.0.1", "10.0.0.2"]));
}

#[test]
fn pods_of_a_removed_node_get_no_traffic() {
    let mut cluster = two_services();
    cluster.index.delete_node("node-2");
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    assert_eq!(cluster.served(VIP).unwrap().spec.mode, ForwardMode::Ipip);
    assert_eq!(cluster.state().nodes, addresses(&["10.0.0.1", "10.0.0.3"]));
    assert_eq!(cluster.problems("web"), ["MachineWithoutGuideway"]);
    cluster.slice(slice("web-1", &PODS[..1]));
    assert_eq!(cluster.problems("web"), [""; 0]);
}

#[test]
fn changed_address_of_a_node_is_followed() {
    let mut cluster = two_services();
    cluster.update();
    cluster.node(node("node-2").internal("10.0.9.2"));
    let changes = cluster.update();
    assert_eq!(changes.services.len(), 2);
    assert!(changes.addresses);
    let backends = &cluster.served(VIP).unwrap().spec.backends;
    assert_eq!(backends[1].address.to_string(), "10.0.9.2");
    assert!(cluster.state().nodes.contains(&"10.0.9.2".parse().unwrap()));
}

#[test]
fn pods_are_reached_at_the_primary_address_of_their_node_and_both_families_are_trusted() {
    let mut cluster = two_services();
    let dual = node("node-2")
        .address("Hostname", "node-2")
        .address("ExternalIP", "203.0.113.2");
    cluster.node(dual.internal("fd00::2").internal("10.0.0.2"));
    let backends = cluster.served(VIP).unwrap().spec.backends.clone();
    assert_eq!(backends[1].address.to_string(), "fd00::2");
    let wanted = addresses(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "203.0.113.2", "fd00::2"]);
    assert_eq!(cluster.state().nodes, wanted);
}

#[test]
fn node_without_an_address_is_named() {
    let mut cluster = two_services();
    cluster.node(node("node-2").internal("nowhere"));
    let object = crate::index::Object::Node("node-2".to_owned());
    assert_eq!(
        cluster.rules(&object),
        ["InvalidAddress", "NoInternalAddress"]
    );
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
}

#[test]
fn machines_that_begin_or_cease_to_run_guideway_are_followed() {
    let mut cluster = two_services();
    cluster.update();
    cluster.guideway_on(&["node-1", "node-3"]);
    let changes = cluster.update();
    assert_eq!(changes.services.len(), 2);
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    assert_eq!(cluster.state().nodes, addresses(&["10.0.0.1", "10.0.0.3"]));
    cluster.guideway_on(&["node-2"]);
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
    );
    assert_eq!(
        cluster.state().nodes,
        addresses(&["10.0.0.1", "10.0.0.2"]),
        "this machine is one"
    );
}

#[test]
fn other_edges_are_trusted_and_never_become_vips() {
    let mut cluster = two_services();
    cluster.update();
    cluster.index.set_guideway_machines(GuidewayMachines {
        nodes: BTreeSet::new(),
        edges: addresses(&["192.0.2.1"]),
        ..GuidewayMachines::default()
    });
    assert!(cluster.update().addresses);
    let state = cluster.state();
    assert_eq!(
        state.trusted_edges,
        ["192.0.2.1/32".parse().unwrap()].into()
    );
    assert_eq!(state.vips, addresses(&["192.0.2.2"]));
    assert_eq!(
        cluster.problems("web"),
        ["AddressIsNode", "MachineWithoutGuideway"]
    );
}

#[test]
fn edge_that_has_no_address_is_named_until_it_has_one() {
    let mut cluster = cluster();
    cluster.update();
    let slice = ObjectName::new("guideway-system", "edges");
    let unreadable = [(slice.clone(), ["edge-1".to_owned()].into())];
    cluster.index.set_guideway_machines(GuidewayMachines {
        unreadable: unreadable.into(),
        ..GuidewayMachines::default()
    });
    let slice = Object::Slice(slice);
    assert_eq!(cluster.rules(&slice), ["InvalidAddress"]);
    cluster
        .index
        .set_guideway_machines(GuidewayMachines::default());
    assert_eq!(cluster.rules(&slice), [""; 0]);
}

#[test]
fn own_node_that_takes_the_address_of_a_vip_ends_it_and_gives_it_back() {
    let mut cluster = two_services();
    cluster.update();
    let own = || node("node-1").internal("10.0.0.1");
    cluster.node(own().address("ExternalIP", "192.0.2.1"));
    let changes = cluster.update();
    assert!(changes.addresses && changes.problems);
    assert_eq!(cluster.state().vips, addresses(&["192.0.2.2"]));
    cluster.node(own());
    assert_eq!(cluster.state().vips, addresses(&["192.0.2.1", "192.0.2.2"]));
    assert_eq!(cluster.problems("web"), [""; 0]);
}

#[test]
fn draining_endpoints_are_told_of_and_delivered_to_on_their_node() {
    let mut cluster = two_services();
    cluster.slice(slice(
        "web-1",
        &[
            "10.244.1.1@node-1 unready serving terminating",
            "10.244.2.1@node-2 unready serving terminating",
            "10.244.3.1@node-3",
        ],
    ));
    assert!(cluster.update().draining);
    assert_eq!(cluster.used(VIP), pods(&["10.244.3.1:8080"]));
    assert_eq!(cluster.reachable(VIP), ["10.244.1.1:8080"]);
    let draining = &cluster.state().draining[&VIP.parse::<ServiceKey>().unwrap()];
    let draining = draining
        .iter()
        .map(|backend| (backend.pod.unwrap().to_string(), backend.weight));
    assert_eq!(
        draining.collect::<Vec<_>>(),
        [
            ("10.244.1.1:8080".to_owned(), 0),
            ("10.244.2.1:8080".to_owned(), 0)
        ]
    );
    cluster.slice(slice("web-1", &["10.244.3.1@node-3"]));
    assert!(cluster.update().draining);
    assert!(cluster.state().draining.is_empty());
}

#[test]
fn ports_may_be_added_and_deleted_and_the_type_changed() {
    let mut cluster = two_services();
    cluster.service(web().port("b", 81, "TCP").node_port(30081));
    assert!(cluster.served("192.0.2.1:81/tcp").is_some());
    cluster.service(web());
    assert!(cluster.served("192.0.2.1:81/tcp").is_none());
    cluster.service(web().kind("NodePort").node_port(30080));
    assert!(cluster.served(VIP).is_none() && cluster.served(NODE_PORT).is_some());
    cluster.service(service("web").port("", 80, "TCP"));
    assert_eq!(cluster.keys(), ["192.0.2.2:80/tcp"]);
}

#[test]
fn changed_options_are_followed() {
    let mut cluster = two_services();
    cluster.update();
    cluster.index.set_options(Options {
        load_balancer_class: "other".to_owned(),
        ..Options::default()
    });
    assert_eq!(cluster.keys(), [""; 0]);
    assert!(cluster.state().vips.is_empty());
}

fn two_services() -> Cluster {
    let mut cluster = cluster();
    cluster.service(web()).slice(slice("web-1", PODS));
    cluster.service(load_balancer("api", "192.0.2.2"));
    cluster.slice(slice_of("api", "api-1", PODS).port("", 8080, "TCP"));
    cluster
}
