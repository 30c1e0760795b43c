//! Pods as backends, and the ports that egress looks at.

use fastpath::{
    load::{Loaded, Loader},
    nexthop::Resolution,
    tables::{ServiceSpec, TableError, Tables},
};
use xdp_prog::abi::{egress_port, map};

use crate::example::{
    TestPins, address, array, pod_count, pods, resolved, service, sized, small, spec,
};

#[test]
fn pods_are_here_when_their_node_is_this_machine() {
    let (loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    let wanted = pods(&[
        ("10.0.0.1", "10.244.0.5:8080"),
        ("10.0.0.2", "10.244.1.6:8080"),
    ]);
    tables.put_service(key, &wanted).unwrap();
    let local = |tables: &Tables| {
        let service = tables.services().next().unwrap().1;
        (service.local_pods(), service.local.is_some())
    };
    assert_eq!((local(&tables), pod_count(&loaded)), ((0, false), 0));

    for here in [Resolution::Local, Resolution::Local] {
        tables.set_next_hop(address("10.0.0.1"), here).unwrap();
        assert_eq!((local(&tables), pod_count(&loaded)), ((1, true), 1));
    }
    tables
        .set_next_hop(address("10.0.0.2"), Resolution::Local)
        .unwrap();
    assert_eq!((local(&tables), pod_count(&loaded)), ((2, true), 2));
    tables
        .set_next_hop(address("10.0.0.1"), resolved(7))
        .unwrap();
    assert_eq!((local(&tables), pod_count(&loaded)), ((1, true), 1));
    tables
        .put_service(key, &pods(&[("10.0.0.1", "10.244.0.5:8080")]))
        .unwrap();
    assert_eq!((local(&tables), pod_count(&loaded)), ((0, false), 0));
}

#[test]
fn pods_of_one_node_are_backends_of_their_own() {
    let (_loaded, mut tables) = small();
    let wanted = pods(&[
        ("10.0.0.1", "10.244.0.5:8080"),
        ("10.0.0.1", "10.244.0.6:8080"),
    ]);
    for port in [80, 81] {
        let key = service(&format!("10.99.0.1:{port}/tcp"));
        tables.put_service(key, &wanted).unwrap();
    }
    let backends: Vec<(String, u32)> = tables
        .backends()
        .map(|(owned, backend)| (owned.key.to_string(), backend.services))
        .collect();
    assert_eq!(
        backends,
        [
            ("10.244.0.5:8080 on 10.0.0.1".to_owned(), 2),
            ("10.244.0.6:8080 on 10.0.0.1".to_owned(), 2)
        ]
    );
}

#[test]
fn a_pod_that_shares_its_tag_is_reported() {
    let (_loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    let wanted = pods(&[("10.0.0.1", "10.244.8.5:80"), ("10.0.0.1", "10.244.0.5:80")]);
    tables.put_service(key, &wanted).unwrap();
    let installed = tables.services().next().unwrap().1;
    let left_out: Vec<String> = installed
        .left_out()
        .iter()
        .map(|pod| pod.to_string())
        .collect();
    assert_eq!(left_out, ["10.244.8.5:80 on 10.0.0.1"]);
    assert_eq!(tables.slots_by_backend(installed).len(), 1);
}

#[test]
fn a_full_table_of_pods_refuses_and_keeps_the_rest() {
    let loaded = sized(Loader::unpinned())
        .max_entries(map::PODS, 2)
        .load()
        .unwrap();
    let mut tables = Tables::open(&loaded).unwrap();
    tables
        .set_next_hop(address("10.0.0.1"), Resolution::Local)
        .unwrap();
    let key = service("10.99.0.1:80/tcp");
    let one = pods(&[("10.0.0.1", "10.244.0.5:80")]);
    tables.put_service(key, &one).unwrap();
    let before = tables.fill();
    let many: Vec<(&str, &str)> = vec![
        ("10.0.0.1", "10.244.0.5:81"),
        ("10.0.0.1", "10.244.0.6:80"),
        ("10.0.0.1", "10.244.0.7:80"),
        ("10.0.0.1", "10.244.0.8:80"),
        ("10.0.0.1", "10.244.0.9:80"),
    ];
    let error = tables.put_service(key, &pods(&many)).unwrap_err();
    assert!(
        matches!(error, TableError::TableFull { map: map::PODS, .. }),
        "{error}"
    );
    assert_eq!(*tables.specs()[&key], one);
    assert_eq!(pod_count(&loaded), 1);
    let new = service("10.99.0.1:81/tcp");
    tables.put_service(new, &pods(&many)).unwrap_err();
    tables.reclaim();
    assert_eq!(tables.fill(), before);
}

#[test]
fn egress_looks_at_the_ports_of_pods_here_and_at_node_ports() {
    let pins = TestPins::new("ports");
    let loaded = pins.load();
    let mut tables = Tables::open(&loaded).unwrap();
    assert!(egress_ports(&loaded).is_empty());
    let (first, second) = (service("10.99.0.1:80/tcp"), service("10.99.0.2:80/udp"));
    let (here, there) = (
        ("10.0.0.1", "10.244.0.5:8080"),
        ("10.0.0.2", "10.244.1.6:81"),
    );
    let also_here = ("10.0.0.1", "10.244.0.6:8080");
    tables.put_service(first, &pods(&[here, there])).unwrap();
    assert!(egress_ports(&loaded).is_empty());
    let local = Resolution::Local;
    tables.set_next_hop(address("10.0.0.1"), local).unwrap();
    assert_eq!(egress_ports(&loaded), [8080]);

    // Several pods and services have it; the last one that goes takes it along, after a grace period.
    tables.put_service(second, &pods(&[also_here])).unwrap();
    tables.put_service(first, &pods(&[there])).unwrap();
    tables.reclaim();
    assert_eq!(egress_ports(&loaded), [8080]);
    let other = ("10.0.0.1", "10.244.0.6:65535");
    // What a service was before has no past owners that keep their entries.
    tables.remove_service(&second).unwrap();
    tables.put_service(second, &pods(&[other])).unwrap();
    assert_eq!(egress_ports(&loaded), [8080, 65_535]);
    tables.reclaim();
    assert_eq!(egress_ports(&loaded), [65_535]);
    tables.put_service(first, &pods(&[here])).unwrap();
    tables.remove_service(&second).unwrap();
    assert_eq!(egress_ports(&loaded), [8080, 65_535]);
    tables.reclaim();
    assert_eq!(egress_ports(&loaded), [8080]);

    let node_port = ServiceSpec {
        node_port: true,
        ..spec(&[("10.0.0.2", 1)])
    };
    tables
        .put_service(service("10.0.0.1:30080/tcp"), &node_port)
        .unwrap();
    assert_eq!(egress_ports(&loaded), [8080, 30_080]);
    drop(tables);
    // What a killed agent may leave, and what it may have had no time for.
    let mut ports = array::<u64>(&loaded, map::EGRESS_PORTS);
    ports.set(0, 1 << 7, 0).unwrap();
    ports.set(8080 / 64, 0, 0).unwrap();
    let mut tables = Tables::open(&loaded).unwrap();
    assert_eq!(egress_ports(&loaded), [8080, 30_080]);

    let elsewhere = ServiceSpec {
        node_port: false,
        ..node_port
    };
    tables
        .put_service(service("10.0.0.1:30080/tcp"), &elsewhere)
        .unwrap();
    tables.reclaim();
    assert_eq!(egress_ports(&loaded), [8080]);
}

/// A service that is about to be written when what is retired must make room for it.
#[test]
fn port_of_a_new_pod_is_looked_at_though_room_must_be_made() {
    let loaded = sized(Loader::unpinned())
        .max_entries(map::PODS, 1)
        .load()
        .unwrap();
    let mut tables = Tables::open(&loaded).unwrap();
    let local = Resolution::Local;
    tables.set_next_hop(address("10.0.0.1"), local).unwrap();
    let key = service("10.99.0.1:80/tcp");
    let one = pods(&[("10.0.0.1", "10.244.0.5:8080")]);
    tables.put_service(key, &one).unwrap();
    let sticky = ServiceSpec {
        affinity: Some(9),
        ..pods(&[("10.0.0.1", "10.244.0.5:81")])
    };
    // Its old pod waits for packets under way.
    tables.remove_service(&key).unwrap();
    tables.put_service(key, &sticky).unwrap();
    assert_eq!(egress_ports(&loaded), [81, 8080]);
    tables.reclaim();
    assert_eq!(egress_ports(&loaded), [81]);
}

fn egress_ports(loaded: &Loaded) -> Vec<u16> {
    let words = array::<u64>(loaded, map::EGRESS_PORTS);
    let is_there = |port: &u16| {
        let (index, bit) = egress_port(*port);
        words.get(&index, 0).unwrap() & bit != 0
    };
    (0..=u16::MAX).filter(is_there).collect()
}
