//! Which objects count, and how slices join Services.

use super::words::*;
use crate::index::Options;
use crate::index::objects::{
    EndpointSlice, HEADLESS, ObjectName, SERVICE_NAME, SERVICE_PROXY_NAME,
};

const POD: &[&str] = &["10.244.1.1@node-1"];

#[test]
fn services_without_a_cluster_address_are_ignored() {
    let all: [&[&str]; 3] = [&["None"], &[""], &[]];
    for cluster_ips in all {
        let mut cluster = cluster();
        cluster.service(web().node_port(30080).cluster_ips(cluster_ips));
        cluster.slice(slice("web-1", POD));
        assert_eq!(cluster.keys(), [""; 0], "{cluster_ips:?}");
        assert!(cluster.state().vips.is_empty());
    }
}

#[test]
fn going_to_external_name_removes_every_rule_and_coming_back_restores_them() {
    let mut cluster = cluster();
    cluster
        .service(web().node_port(30080))
        .slice(slice("web-1", POD));
    assert_eq!(cluster.keys(), [NODE_PORT, VIP]);
    cluster.service(web().node_port(30080).kind("ExternalName"));
    assert_eq!(cluster.keys(), [""; 0]);
    assert!(cluster.state().vips.is_empty());
    cluster.service(web().node_port(30080).kind("NodePort"));
    assert_eq!(cluster.keys(), [NODE_PORT]);
}

#[test]
fn service_proxy_name_and_headless_labels_hide_services() {
    for label in [SERVICE_PROXY_NAME, HEADLESS] {
        let mut cluster = cluster();
        cluster
            .service(web().label(label))
            .slice(slice("web-1", POD));
        assert_eq!(cluster.keys(), [""; 0], "{label}");
        cluster.service(web());
        assert_eq!(
            cluster.used(VIP),
            pods(&["10.244.1.1:8080"]),
            "{label} taken away"
        );
    }
}

#[test]
fn service_proxy_name_and_headless_labels_hide_slices() {
    for label in [SERVICE_PROXY_NAME, HEADLESS] {
        let mut cluster = cluster();
        cluster.service(web()).slice(slice("web-1", POD));
        assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
        cluster.slice(slice("web-1", POD).label(label));
        assert_eq!(cluster.used(VIP), pods(&[]), "{label}");
        assert_eq!(cluster.slice_problems("web-1"), [""; 0]);
    }
}

#[test]
fn slice_belongs_to_the_service_of_its_label_in_its_namespace() {
    let mut cluster = cluster();
    let mut elsewhere = slice("web-2", &["10.244.2.1@node-2"]);
    elsewhere.name = ObjectName::new("other", "web-2");
    cluster
        .service(web())
        .slice(slice("web-1", POD))
        .slice(elsewhere);
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
}

#[test]
fn slice_without_a_service_name_is_ignored_and_named() {
    for label in [None, Some("")] {
        let mut nameless = slice("web-1", POD).without_label(SERVICE_NAME);
        nameless
            .labels
            .extend(label.map(|name| (SERVICE_NAME.to_owned(), name.to_owned())));
        let mut cluster = cluster();
        cluster.service(web()).slice(nameless);
        assert_eq!(cluster.used(VIP), pods(&[]));
        assert_eq!(cluster.slice_problems("web-1"), ["NoServiceName"]);
    }
}

#[test]
fn slice_that_changes_its_label_leaves_one_service_and_joins_another() {
    let mut cluster = cluster();
    cluster
        .service(web())
        .service(load_balancer("api", "192.0.2.2"));
    cluster.slice(slice("any", POD));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    cluster.slice(slice_of("api", "any", POD).port("", 8080, "TCP"));
    assert_eq!(cluster.used(VIP), pods(&[]));
    assert_eq!(cluster.used("192.0.2.2:80/tcp"), pods(&["10.244.1.1:8080"]));
}

#[test]
fn endpoints_of_all_slices_are_united() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice("web-1", &["10.244.1.1@node-1", "10.244.1.2@node-1"]));
    cluster.slice(slice("web-2", &["10.244.2.1@node-2"]));
    let all = ["10.244.1.1:8080", "10.244.1.2:8080", "10.244.2.1:8080"];
    assert_eq!(cluster.used(VIP), pods(&all));
}

#[test]
fn endpoint_may_move_between_slices_in_either_order() {
    let moved = "10.244.1.2@node-1";
    let both = ["10.244.1.1:8080", "10.244.1.2:8080"];
    for add_first in [true, false] {
        let mut cluster = cluster();
        cluster.service(web());
        cluster.slice(slice("web-1", &["10.244.1.1@node-1", moved]));
        cluster.slice(slice("web-2", &[]));
        let add = slice("web-2", &[moved]);
        let remove = slice("web-1", POD);
        let (first, second) = if add_first {
            (add, remove)
        } else {
            (remove, add)
        };
        cluster.slice(first);
        let between = if add_first { &both[..] } else { &both[..1] };
        assert_eq!(cluster.used(VIP), pods(between));
        cluster.slice(second);
        assert_eq!(cluster.used(VIP), pods(&both));
    }
}

#[test]
fn duplicate_counts_once_and_the_local_one_wins() {
    let here = slice("web-1", &["10.244.1.1@node-1 unready"]);
    let there = slice("web-2", &["10.244.1.1@node-2 ready"]);
    for slices in [[here.clone(), there.clone()], [there, here]] {
        let mut cluster = cluster();
        cluster.service(web());
        for slice in slices {
            cluster.slice(slice);
        }
        assert_eq!(cluster.used(VIP), pods(&[]), "the local one is not ready");
    }
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice("web-1", &["10.244.1.1@node-2", "10.244.1.1@node-1"]));
    let backends = cluster.served(VIP).unwrap().spec.backends.clone();
    assert_eq!(backends.len(), 1);
    assert_eq!(backends[0].address.to_string(), "10.0.0.1");
}

#[test]
fn same_socket_under_two_port_names_is_no_duplicate() {
    let mut cluster = cluster();
    cluster.service(
        load_balancer("web", "192.0.2.1")
            .kind("LoadBalancer")
            .port("b", 81, "TCP"),
    );
    cluster.slice(slice("web-1", POD).port("b", 8080, "TCP"));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    assert_eq!(cluster.used("192.0.2.1:81/tcp"), pods(&["10.244.1.1:8080"]));
}

#[test]
fn fqdn_slices_are_ignored_and_unknown_types_named() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice("web-1", &["pod.example"]).address_type("FQDN"));
    cluster.slice(slice("web-2", POD).address_type("IPv5"));
    assert_eq!(cluster.used(VIP), pods(&[]));
    assert_eq!(cluster.slice_problems("web-1"), [""; 0]);
    assert_eq!(cluster.slice_problems("web-2"), ["InvalidAddress"]);
}

#[test]
fn endpoint_of_another_family_than_its_slice_is_skipped_and_named() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice("web-1", &["10.244.1.1@node-1", "fd00::1@node-1"]));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    assert_eq!(cluster.slice_problems("web-1"), ["OtherFamily"]);
}

#[test]
fn only_the_first_address_of_an_endpoint_counts() {
    let mut several = slice("web-1", POD);
    several.endpoints[0].addresses = strings(&["10.244.1.9", "10.244.1.1"]);
    let mut cluster = cluster();
    cluster.service(web()).slice(several);
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.9:8080"]));
}

#[test]
fn endpoint_without_an_address_that_can_be_reached_is_skipped_and_named() {
    for address in [
        "",
        "pod",
        "127.0.0.1",
        "169.254.1.1",
        "0.0.0.0",
        "224.0.0.1",
    ] {
        let mut cluster = cluster();
        cluster
            .service(web())
            .slice(slice("web-1", &[address, "10.244.1.1@node-1"]));
        assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]), "{address}");
        assert_eq!(
            cluster.slice_problems("web-1"),
            ["InvalidAddress"],
            "{address}"
        );
    }
}

#[test]
fn port_without_a_name_or_number_is_ignored_and_named() {
    let ports = [
        (None, Some(8080)),
        (Some(""), None),
        (Some(""), Some(0)),
        (Some(""), Some(65_536)),
        (Some(""), Some(-1)),
    ];
    for (name, port) in ports {
        let mut cluster = cluster();
        cluster.service(web());
        cluster.slice(slice_of("web", "web-1", POD).raw_port(name, port, Some("TCP")));
        assert_eq!(cluster.used(VIP), pods(&[]), "{name:?} {port:?}");
        assert_eq!(cluster.slice_problems("web-1"), ["InvalidPort"]);
    }
}

#[test]
fn protocol_of_a_port_defaults_to_tcp() {
    let mut cluster = cluster();
    let mut web = web();
    web.ports[0].protocol = None;
    cluster.service(web);
    cluster.slice(slice_of("web", "web-1", POD).raw_port(Some(""), Some(8080), None));
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
}

#[test]
fn unknown_protocol_is_named_and_the_other_ports_served() {
    let mut cluster = cluster();
    cluster
        .service(web().port("b", 81, "QUIC"))
        .slice(slice("web-1", POD));
    assert_eq!(cluster.keys(), [VIP]);
    assert_eq!(cluster.problems("web"), ["InvalidProtocol"]);
}

#[test]
fn ports_are_joined_by_name_never_by_number() {
    let mut cluster = cluster();
    cluster.service(
        service("web")
            .kind("LoadBalancer")
            .class(Some(Options::DEFAULT_CLASS))
            .ingress("192.0.2.1")
            .port("a", 80, "TCP")
            .port("b", 81, "TCP"),
    );
    // A named targetPort: the same port name leads to different numbers.
    cluster.slice(
        slice_of("web", "web-1", POD)
            .port("a", 81, "TCP")
            .port("b", 80, "TCP"),
    );
    cluster.slice(slice_of("web", "web-2", &["10.244.2.1@node-2"]).port("a", 8081, "TCP"));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:81", "10.244.2.1:8081"])
    );
    assert_eq!(cluster.used("192.0.2.1:81/tcp"), pods(&["10.244.1.1:80"]));
}

#[test]
fn ports_are_joined_by_protocol() {
    let mut cluster = cluster();
    cluster.service(web());
    cluster.slice(slice_of("web", "web-1", POD).port("", 8080, "UDP"));
    assert_eq!(cluster.used(VIP), pods(&[]));
}

#[test]
fn one_number_serves_tcp_and_udp_on_the_address_and_on_one_node_port() {
    let mut cluster = cluster();
    cluster.service(
        service("dns")
            .kind("LoadBalancer")
            .class(Some(Options::DEFAULT_CLASS))
            .ingress("192.0.2.1")
            .port("tcp", 53, "TCP")
            .node_port(30053)
            .port("udp", 53, "UDP")
            .node_port(30053),
    );
    let both = slice_of("dns", "dns-1", POD)
        .port("tcp", 53, "TCP")
        .port("udp", 5353, "UDP");
    cluster.slice(both);
    assert_eq!(cluster.used("192.0.2.1:53/tcp"), pods(&["10.244.1.1:53"]));
    assert_eq!(cluster.used("192.0.2.1:53/udp"), pods(&["10.244.1.1:5353"]));
    assert_eq!(cluster.used("0.0.0.0:30053/tcp"), pods(&["10.244.1.1:53"]));
    assert_eq!(
        cluster.used("0.0.0.0:30053/udp"),
        pods(&["10.244.1.1:5353"])
    );
    assert_eq!(cluster.problems("dns"), [""; 0]);
}

#[test]
fn sctp_is_served_where_no_port_is_translated_and_named_elsewhere() {
    let sctp = |port, node_port| {
        service("sctp")
            .kind("LoadBalancer")
            .class(Some(Options::DEFAULT_CLASS))
            .ingress("192.0.2.1")
            .port("", port, "SCTP")
            .node_port(node_port)
    };
    let mut cluster = cluster();
    cluster.slice(slice_of("sctp", "sctp-1", POD).port("", 9899, "SCTP"));
    cluster.service(sctp(9899, 30099));
    assert_eq!(
        cluster.keys(),
        ["192.0.2.1:9899/sctp"],
        "the node port is kube-proxy's"
    );
    assert_eq!(cluster.problems("sctp"), ["SctpPort"]);
    cluster.service(sctp(9898, 30099));
    assert_eq!(cluster.keys(), [""; 0]);
    cluster.slice(slice_of("sctp", "sctp-1", POD).port("", 30099, "SCTP"));
    cluster.service(sctp(30099, 30099));
    assert_eq!(
        cluster.keys(),
        ["0.0.0.0:30099/sctp", "192.0.2.1:30099/sctp"]
    );
    assert_eq!(cluster.problems("sctp"), [""; 0]);
}

#[test]
fn sctp_endpoints_with_the_right_port_are_served_beside_others() {
    let mut cluster = cluster();
    let sctp = web().kind("LoadBalancer").port("s", 9899, "SCTP");
    cluster.service(sctp);
    cluster.slice(slice_of("web", "web-1", POD).port("s", 9899, "SCTP"));
    cluster.slice(slice_of("web", "web-2", &["10.244.2.1@node-2"]).port("s", 9, "SCTP"));
    assert_eq!(
        cluster.used("192.0.2.1:9899/sctp"),
        pods(&["10.244.1.1:9899"])
    );
    assert_eq!(cluster.problems("web"), ["SctpPort"]);
}

#[test]
fn dual_stack_is_served_per_family() {
    let mut cluster = cluster();
    let dual = web().cluster_ips(&["fd00:96::1", "10.96.0.1"]);
    cluster.service(dual.node_port(30080).ingress("2001:db8::1"));
    cluster.slice(slice("web-1", POD));
    let v6 = slice("web-2", &["fd00:1::1@node-1"]).address_type("IPv6");
    cluster.slice(v6);
    assert_eq!(cluster.used(VIP), pods(&["10.244.1.1:8080"]));
    assert_eq!(cluster.used(NODE_PORT), pods(&["10.244.1.1:8080"]));
    assert_eq!(
        cluster.used("[2001:db8::1]:80/tcp"),
        pods(&["[fd00:1::1]:8080"])
    );
    assert_eq!(cluster.used("[::]:30080/tcp"), pods(&["[fd00:1::1]:8080"]));
}

#[test]
fn family_without_a_cluster_address_is_not_served() {
    let mut cluster = cluster_with(Options {
        external_ips: ["::/0".parse().unwrap()].into(),
        ..Options::default()
    });
    let slice = slice("web-2", &["fd00:1::1@node-1"]);
    cluster.slice(slice.address_type("IPv6"));
    for service in [
        web().ingress("2001:db8::1"),
        web().external(&["2001:db8::1"]),
    ] {
        cluster.service(service.node_port(30080));
        assert_eq!(cluster.keys(), [NODE_PORT, VIP]);
        assert_eq!(cluster.problems("web"), ["OtherFamily"]);
    }
}

#[test]
fn endpoint_without_a_node_name_is_never_local() {
    let mut cluster = cluster();
    cluster
        .service(web().local())
        .slice(slice("web-1", &["10.0.0.1"]));
    let spec = &cluster.served(VIP).unwrap().spec;
    let own: Vec<_> = addresses(&["10.0.0.1"]);
    assert!(!spec.backends.is_empty(), "dropped, not rejected");
    assert!(
        spec.backends
            .iter()
            .all(|backend| !own.contains(&backend.address))
    );
}

#[test]
fn slices_of_a_service_without_a_selector_count_the_same() {
    let mut cluster = cluster();
    cluster
        .service(web())
        .slice(slice("by-hand", &["198.51.100.7"]));
    assert_eq!(cluster.used(VIP), pods(&["198.51.100.7:8080"]));
}

#[test]
fn slice_without_endpoints_is_an_empty_one() {
    let mut cluster = cluster();
    cluster.service(web()).slice(EndpointSlice {
        endpoints: Vec::new(),
        ..slice("web-1", POD)
    });
    assert_eq!(cluster.used(VIP), pods(&[]));
    assert_eq!(cluster.slice_problems("web-1"), [""; 0]);
}

#[test]
fn duplicate_ports_of_a_service_are_named_and_the_first_one_served() {
    let mut cluster = cluster();
    cluster
        .service(web().port("b", 80, "TCP").port("", 82, "TCP"))
        .slice(slice("web-1", POD));
    assert_eq!(cluster.keys(), [VIP]);
    assert_eq!(cluster.problems("web"), ["DuplicatePort"]);
}
