//! Where Services are served: node ports, addresses of load balancers, external addresses.

use std::net::IpAddr;

use super::words::*;
use crate::desired::ForwardMode;
use crate::index::objects::{Ingress, MODE, ObjectName, Service, TABLE_SIZE};
use crate::index::{BrokenRule, Object, Options, Reserved};

const PODS: &[&str] = &["10.244.1.1@node-1", "10.244.2.1@node-2"];

#[test]
fn cluster_address_is_not_captured() {
    let mut cluster = cluster();
    cluster
        .service(service("web").port("", 80, "TCP"))
        .slice(slice("web-1", PODS));
    assert_eq!(cluster.keys(), [""; 0]);
    assert!(cluster.state().vips.is_empty());
}

#[test]
fn node_port_is_served_at_the_unspecified_address() {
    let mut cluster = cluster();
    cluster.service(
        service("web")
            .kind("NodePort")
            .port("", 80, "TCP")
            .node_port(30080),
    );
    cluster.slice(slice("web-1", PODS));
    assert_eq!(cluster.keys(), [NODE_PORT]);
    let spec = &cluster.served(NODE_PORT).unwrap().spec;
    assert!(spec.node_port);
    assert_eq!(spec.backends.len(), 2);
    assert!(cluster.state().vips.is_empty());
}

#[test]
fn node_ports_of_load_balancers_of_every_class_are_served() {
    for class in [None, Some("metallb"), Some(Options::DEFAULT_CLASS)] {
        let mut cluster = cluster();
        cluster.service(web().class(class).node_port(30080));
        assert!(cluster.served(NODE_PORT).is_some(), "{class:?}");
    }
}

#[test]
fn load_balancer_address_is_served_at_the_service_port() {
    let mut cluster = cluster();
    cluster
        .service(web().node_port(30080))
        .slice(slice("web-1", PODS));
    assert_eq!(
        cluster.used(VIP),
        pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
    );
    assert_eq!(cluster.state().vips, addresses(&["192.0.2.1"]));
    assert!(!cluster.served(VIP).unwrap().spec.node_port);
}

#[test]
fn ip_mode_vip_or_none_is_captured_and_proxy_is_not() {
    let mut cluster = cluster();
    cluster.service(
        load_balancer("web", "192.0.2.1")
            .ip_mode("VIP")
            .ingress("192.0.2.2")
            .ip_mode("Proxy")
            .ingress("192.0.2.3"),
    );
    assert_eq!(cluster.keys(), ["192.0.2.1:80/tcp", "192.0.2.3:80/tcp"]);
    assert_eq!(cluster.state().vips, addresses(&["192.0.2.1", "192.0.2.3"]));
}

#[test]
fn ingress_with_a_host_name_alone_has_no_rule() {
    let mut cluster = cluster();
    let mut named = web().without_ingress();
    named.ingress = vec![Ingress::default()];
    cluster.service(named);
    assert_eq!(cluster.keys(), [""; 0]);
    assert_eq!(cluster.problems("web"), [""; 0]);
}

#[test]
fn status_that_is_cleared_ends_the_service() {
    let mut cluster = cluster();
    cluster.service(web());
    assert_eq!(cluster.keys(), [VIP]);
    cluster.service(web().without_ingress());
    assert_eq!(cluster.keys(), [""; 0]);
    assert!(cluster.state().vips.is_empty());
}

#[test]
fn ingress_of_another_type_is_not_captured() {
    let mut cluster = cluster();
    cluster.service(web().kind("NodePort").node_port(30080));
    assert_eq!(cluster.keys(), [NODE_PORT]);
}

#[test]
fn addresses_of_another_class_are_left_to_it() {
    for class in [None, Some("metallb.io/metallb")] {
        let mut cluster = cluster();
        cluster.service(web().class(class));
        assert_eq!(cluster.keys(), [""; 0], "{class:?}");
        assert!(cluster.state().vips.is_empty());
    }
}

#[test]
fn addresses_without_a_class_are_captured_where_the_options_say_so() {
    let mut cluster = cluster_with(Options {
        serve_unset_class: true,
        ..Options::default()
    });
    cluster
        .service(web().class(None))
        .service(load_balancer("other", "192.0.2.2").class(Some("x")));
    assert_eq!(cluster.keys(), [VIP]);
    assert_eq!(cluster.state().assigned, addresses(&["192.0.2.1"]));
}

#[test]
fn load_balancer_without_node_ports_works() {
    let mut cluster = cluster();
    cluster
        .service(web().node_port(0))
        .slice(slice("web-1", PODS));
    assert_eq!(cluster.keys(), [VIP]);
    cluster.service(web().node_port(30080));
    assert_eq!(
        cluster.keys(),
        [NODE_PORT, VIP],
        "an explicit one is respected"
    );
}

#[test]
fn external_addresses_are_off_by_default() {
    let mut cluster = cluster();
    cluster.service(external(&["198.51.100.1"]));
    assert_eq!(cluster.keys(), [""; 0]);
    assert_eq!(cluster.problems("web"), [""; 0]);
}

#[test]
fn external_addresses_are_served_within_the_configured_networks() {
    let mut cluster = cluster_with(with_external_ips());
    cluster
        .service(external(&["198.51.100.1", "203.0.113.1"]))
        .slice(slice("web-1", PODS));
    assert_eq!(cluster.keys(), ["198.51.100.1:80/tcp"]);
    assert_eq!(cluster.state().vips, addresses(&["198.51.100.1"]));
    assert_eq!(cluster.problems("web"), ["ExternalAddressNotAllowed"]);
}

#[test]
fn other_ports_of_an_address_are_rejected_only_where_our_class_assigned_it() {
    let mut cluster = cluster_with(with_external_ips());
    cluster.service(web().external(&["198.51.100.1"]));
    assert_eq!(
        cluster.state().vips,
        addresses(&["192.0.2.1", "198.51.100.1"])
    );
    assert_eq!(cluster.state().assigned, addresses(&["192.0.2.1"]));
    assert_eq!(cluster.state().shared, addresses(&["198.51.100.1"]));
    cluster.service(load_balancer("other", "198.51.100.1"));
    assert_eq!(cluster.state().shared, addresses(&[]), "assigned after all");
}

#[test]
fn source_ranges_bound_the_load_balancer_address_alone() {
    let mut cluster = cluster_with(with_external_ips());
    cluster.service(
        web()
            .node_port(30080)
            .external(&["198.51.100.1", "192.0.2.1"])
            .source_ranges(&["10.0.0.0/8"]),
    );
    assert_eq!(ranges(&mut cluster, VIP), ["10.0.0.0/8"]);
    for key in [NODE_PORT, "198.51.100.1:80/tcp"] {
        assert_eq!(ranges(&mut cluster, key), [""; 0], "{key}");
    }
}

#[test]
fn source_ranges_are_trimmed_and_may_have_leading_zeros() {
    let mut cluster = cluster();
    cluster.service(web().source_ranges(&[" 010.001.0.0/16 ", "192.0.2.0/024"]));
    assert_eq!(ranges(&mut cluster, VIP), ["10.1.0.0/16", "192.0.2.0/24"]);
    assert_eq!(cluster.problems("web"), [""; 0]);
}

#[test]
fn source_ranges_count_per_family() {
    let mut cluster = cluster();
    let dual = web()
        .cluster_ips(&["10.96.0.1", "fd00:96::1"])
        .ingress("2001:db8::1");
    cluster.service(dual.source_ranges(&["10.0.0.0/8"]));
    assert_eq!(ranges(&mut cluster, VIP), ["10.0.0.0/8"]);
    assert_eq!(
        ranges(&mut cluster, "[2001:db8::1]:80/tcp"),
        [""; 0],
        "unrestricted"
    );
}

#[test]
fn source_ranges_of_the_annotation_are_not_read() {
    let mut cluster = cluster();
    let annotation = "service.beta.kubernetes.io/load-balancer-source-ranges";
    cluster.service(web().annotation(annotation, "10.0.0.0/8"));
    assert_eq!(ranges(&mut cluster, VIP), [""; 0]);
}

#[test]
fn source_range_that_cannot_be_read_is_named_and_admits_nobody() {
    let mut cluster = cluster();
    cluster.service(web().source_ranges(&["10.0.0.0/8", "everyone"]));
    assert_eq!(ranges(&mut cluster, VIP), ["10.0.0.0/8"]);
    assert_eq!(cluster.problems("web"), ["InvalidSourceRange"]);
    cluster.service(web().source_ranges(&["everyone"]));
    assert_eq!(cluster.keys(), [""; 0], "not open to everyone");
    assert_eq!(cluster.problems("web"), ["InvalidSourceRange"]);
}

#[test]
fn address_of_this_machine_is_served_and_is_no_vip() {
    for address in ["10.0.0.1", "203.0.113.7"] {
        let mut cluster = cluster();
        cluster.node(
            node("node-1")
                .internal("10.0.0.1")
                .address("ExternalIP", "203.0.113.7"),
        );
        cluster
            .service(load_balancer("web", address))
            .slice(slice("web-1", PODS));
        let key = format!("{address}:80/tcp");
        assert_eq!(
            cluster.used(&key),
            pods(&["10.244.1.1:8080", "10.244.2.1:8080"])
        );
        assert!(
            cluster.served(&key).unwrap().spec.node_port,
            "the kernel has flows there too"
        );
        assert!(cluster.state().vips.is_empty(), "{address}");
        assert!(cluster.state().assigned.is_empty(), "{address}");
        assert_eq!(cluster.state().shared, addresses(&[address]));
        assert_eq!(cluster.problems("web"), ["AddressIsNode"], "{address}");
    }
}

#[test]
fn assigned_address_that_another_node_claims_stays_a_vip() {
    for kind in ["InternalIP", "ExternalIP"] {
        let mut cluster = cluster();
        cluster
            .service(web().annotation(MODE, "l2dsr"))
            .slice(slice("web-1", PODS));
        let before = cluster.state().clone();
        let claims = |name: &str| node(name).internal("10.0.0.9").address(kind, "192.0.2.1");
        cluster.node(claims("node-9"));
        let state = cluster.state().clone();
        assert_eq!(state.services, before.services, "{kind}");
        assert_eq!(state.vips, before.vips, "{kind}");
        assert_eq!(state.assigned, before.assigned, "{kind}");
        assert_eq!(cluster.problems("web"), ["AddressClaimed"], "{kind}");
        // Where it is this machine's own it is none.
        cluster.node(claims("node-1"));
        assert!(cluster.state().vips.is_empty(), "{kind}");
        assert_eq!(cluster.problems("web"), ["AddressIsNode"], "{kind}");
        cluster.node(node("node-1").internal("10.0.0.1"));
        assert_eq!(cluster.state().vips, before.vips, "{kind}");
    }
}

#[test]
fn external_address_of_a_machine_is_not_served() {
    let mut cluster = cluster_with(Options {
        node_name: Some("node-1".to_owned()),
        ..with_external_ips()
    });
    let key = "198.51.100.1:80/tcp";
    let node_of = |name: &str| {
        node(name)
            .internal("10.0.0.9")
            .address("ExternalIP", "198.51.100.1")
    };
    let reserved = |machine: &[&str], api_servers: &[&str]| Reserved {
        machine: addresses(machine),
        api_servers: api_servers
            .iter()
            .map(|text| text.parse().unwrap())
            .collect(),
    };
    cluster.service(external(&["198.51.100.1"]).node_port(30080));
    let is_free = |cluster: &mut Cluster| {
        assert_eq!(cluster.keys(), [NODE_PORT, key]);
        assert_eq!(cluster.state().shared, addresses(&["198.51.100.1"]));
        assert_eq!(cluster.problems("web"), [""; 0]);
    };
    let is_taken = |cluster: &mut Cluster| {
        assert_eq!(cluster.keys(), [NODE_PORT]);
        let state = cluster.state();
        assert!(state.shared.is_empty() && state.vips.is_empty());
        assert_eq!(cluster.problems("web"), ["AddressIsNode"]);
    };
    is_free(&mut cluster);
    for name in ["node-1", "node-9"] {
        cluster.node(node_of(name));
        is_taken(&mut cluster);
        cluster.node(node(name).internal("10.0.0.1"));
        is_free(&mut cluster);
    }
    for reserved in [
        reserved(&["198.51.100.1"], &[]),
        reserved(&[], &["198.51.100.1:6443"]),
    ] {
        cluster.index.set_reserved(reserved);
        is_taken(&mut cluster);
        cluster.index.set_reserved(Reserved::default());
        is_free(&mut cluster);
    }
}

#[test]
fn address_of_an_interface_or_of_the_api_server_is_no_vip() {
    let mut cluster = cluster();
    cluster.index.set_reserved(Reserved {
        machine: addresses(&["192.0.2.1"]),
        api_servers: ["192.0.2.2:6443".parse().unwrap()].into(),
    });
    cluster
        .service(web())
        .service(load_balancer("api", "192.0.2.2").port("https", 6443, "TCP"));
    assert!(cluster.state().vips.is_empty());
    assert_eq!(cluster.problems("web"), ["AddressIsNode"]);
    assert_eq!(
        cluster.keys(),
        [VIP, "192.0.2.2:80/tcp"],
        "the API server keeps its port"
    );
    assert_eq!(
        cluster.problems("api"),
        ["AddressIsNode", "AddressIsApiServer"]
    );
    cluster.index.set_reserved(Reserved::default());
    assert_eq!(cluster.state().vips, addresses(&["192.0.2.1", "192.0.2.2"]));
    assert_eq!(cluster.keys().len(), 3);
    assert_eq!(cluster.problems("api"), [""; 0]);
}

#[test]
fn address_of_an_interface_that_no_node_has_is_for_this_machine_to_tell() {
    let mut cluster = cluster();
    cluster.index.set_reserved(Reserved {
        machine: addresses(&["10.0.0.1", "192.0.2.1"]),
        api_servers: ["192.0.2.2:6443".parse().unwrap()].into(),
    });
    cluster.service(web().ingress("10.0.0.1").ingress("192.0.2.2"));
    let told = |cluster: &mut Cluster| {
        let web = Object::Service(ObjectName::new("default", "web"));
        let problems = cluster.state().problems[&web].iter();
        let told = problems.map(|problem| {
            assert_eq!(problem.rule, BrokenRule::AddressIsNode);
            let (text, _) = problem.text.split_once(':').unwrap();
            (problem.only_here, text.to_owned())
        });
        told.collect::<Vec<_>>()
    };
    let everywhere = |address: &str| (false, format!("{address} belongs to a machine"));
    let here = "192.0.2.1 belongs to an interface of this machine".to_owned();
    let expected = [everywhere("10.0.0.1"), (true, here)];
    assert_eq!(told(&mut cluster), expected);
    cluster.node(
        node("node-1")
            .internal("10.0.0.1")
            .address("ExternalIP", "192.0.2.1"),
    );
    assert_eq!(told(&mut cluster), expected[..1]);
}

#[test]
fn address_that_cannot_be_balanced_is_named_and_the_others_served() {
    for address in [
        "127.0.0.1",
        "224.0.0.1",
        "0.0.0.0",
        "169.254.1.1",
        "lb.example",
        "::ffff:192.0.2.9",
    ] {
        let mut cluster = cluster();
        cluster.service(load_balancer("web", address).ingress("192.0.2.1"));
        assert_eq!(cluster.keys(), [VIP], "{address}");
        assert_eq!(cluster.problems("web"), ["InvalidAddress"], "{address}");
    }
}

#[test]
fn port_that_is_none_is_named_and_the_others_served() {
    for port in [0, -1, 65_536] {
        let mut cluster = cluster();
        cluster.service(
            web()
                .port("b", port, "TCP")
                .port("c", 82, "TCP")
                .node_port(70_000),
        );
        assert_eq!(cluster.keys(), [VIP, "192.0.2.1:82/tcp"], "{port}");
        assert_eq!(cluster.problems("web"), ["InvalidPort"], "{port}");
    }
}

#[test]
fn mode_annotation_chooses_the_mode() {
    let modes = [
        ("ipip", ForwardMode::Ipip),
        ("l2dsr", ForwardMode::L2dsr),
        ("nat", ForwardMode::Nat),
    ];
    for (text, mode) in modes {
        let mut cluster = cluster();
        cluster
            .service(web().annotation(MODE, text))
            .slice(slice("web-1", PODS));
        assert_eq!(cluster.served(VIP).unwrap().spec.mode, mode);
        assert_eq!(cluster.problems("web"), [""; 0]);
    }
}

#[test]
fn unknown_mode_or_table_size_is_named_and_the_default_serves() {
    for (annotation, value) in [(MODE, "IPIP"), (TABLE_SIZE, "300"), (TABLE_SIZE, "")] {
        let mut cluster = cluster();
        cluster
            .service(web().annotation(annotation, value))
            .slice(slice("web-1", PODS));
        let spec = &cluster.served(VIP).unwrap().spec;
        assert_eq!((spec.mode, spec.log2_slots), (ForwardMode::Ipip, None));
        assert_eq!(cluster.problems("web"), ["InvalidAnnotation"], "{value}");
    }
}

#[test]
fn node_port_of_an_l2dsr_service_goes_by_ipip() {
    let mut cluster = cluster();
    cluster.service(web().annotation(MODE, "l2dsr").node_port(30080));
    assert_eq!(cluster.served(VIP).unwrap().spec.mode, ForwardMode::L2dsr);
    assert_eq!(
        cluster.served(NODE_PORT).unwrap().spec.mode,
        ForwardMode::Ipip
    );
}

#[test]
fn table_size_annotation_chooses_the_length_if_all_backends_fit() {
    let mut cluster = cluster();
    cluster
        .service(web().annotation(TABLE_SIZE, "2048"))
        .slice(slice("web-1", PODS));
    assert_eq!(cluster.served(VIP).unwrap().spec.log2_slots, Some(11));
    cluster.service(web().annotation(TABLE_SIZE, "1"));
    assert_eq!(cluster.served(VIP).unwrap().spec.log2_slots, None);
    assert_eq!(cluster.problems("web"), ["TooManyBackends"]);
}

#[test]
fn table_size_annotation_gets_no_more_than_others_can_spare() {
    for size in ["131072", "1048576"] {
        let mut cluster = cluster();
        cluster
            .service(web().annotation(TABLE_SIZE, size))
            .slice(slice("web-1", PODS));
        assert_eq!(cluster.served(VIP).unwrap().spec.log2_slots, Some(14));
        assert_eq!(cluster.problems("web"), ["InvalidAnnotation"]);
        // 410 backends need more, which they get by themselves.
        let many = (0..410).map(|pod| format!("10.244.{}.{}@node-1", pod / 250, pod % 250 + 1));
        let many: Vec<String> = many.collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        cluster.slice(slice("web-1", &many));
        assert_eq!(cluster.served(VIP).unwrap().spec.log2_slots, None);
    }
}

#[test]
fn older_of_two_services_has_what_both_claim() {
    let older = web().created(1);
    let younger = Service {
        name: name("api"),
        ..web().created(2)
    }
    .port("b", 81, "TCP");
    for order in [[&older, &younger], [&younger, &older]] {
        let mut cluster = cluster();
        for service in order {
            cluster.service(service.clone());
        }
        assert_eq!(cluster.served(VIP).unwrap().name, "default/web");
        assert!(
            cluster.served("192.0.2.1:81/tcp").is_some(),
            "ports that nobody else claims"
        );
        assert_eq!(cluster.problems("api"), ["Conflict"]);
        assert_eq!(cluster.problems("web"), [""; 0]);
        cluster.index.delete_service(&name("web"));
        assert_eq!(cluster.served(VIP).unwrap().name, "default/api");
        assert_eq!(cluster.problems("api"), [""; 0]);
        assert_eq!(cluster.state().vips, addresses(&["192.0.2.1"]));
    }
}

#[test]
fn assigned_address_is_not_taken_by_an_older_service_that_names_it_as_external() {
    let assigned = web().created(2);
    let thief = Service {
        name: name("thief"),
        ..external(&["192.0.2.1"]).created(1)
    };
    for order in [[&assigned, &thief], [&thief, &assigned]] {
        let mut cluster = cluster_with(with_external_ips());
        for service in order {
            cluster.service(service.clone());
        }
        assert_eq!(cluster.served(VIP).unwrap().name, "default/web");
        assert_eq!(cluster.problems("thief"), ["Conflict"]);
        assert_eq!(cluster.problems("web"), [""; 0]);
        cluster.index.delete_service(&name("web"));
        assert_eq!(cluster.served(VIP).unwrap().name, "default/thief");
    }
}

#[test]
fn of_equally_old_services_the_first_by_name_has_what_both_claim() {
    let mut cluster = cluster();
    cluster.service(
        service("b")
            .kind("NodePort")
            .port("", 80, "TCP")
            .node_port(30080),
    );
    cluster.service(
        service("a")
            .kind("NodePort")
            .port("", 81, "TCP")
            .node_port(30080),
    );
    assert_eq!(cluster.served(NODE_PORT).unwrap().name, "default/a");
    assert_eq!(cluster.problems("b"), ["Conflict"]);
}

fn external(texts: &[&str]) -> Service {
    service("web").port("", 80, "TCP").external(texts)
}

fn with_external_ips() -> Options {
    Options {
        external_ips: [
            "198.51.100.0/24".parse().unwrap(),
            IpAddr::from([192, 0, 2, 1]).into(),
        ]
        .into(),
        ..Options::default()
    }
}

fn ranges(cluster: &mut Cluster, key: &str) -> Vec<String> {
    let ranges = &cluster.served(key).unwrap().spec.source_ranges;
    ranges.iter().map(ToString::to_string).collect()
}
