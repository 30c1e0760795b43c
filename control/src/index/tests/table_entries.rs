//! How much room Services and namespaces have in the lookup tables.

use super::words::*;
use crate::index::objects::{ObjectName, Service, TABLE_SIZE};
use crate::index::{Object, Options, TableEntries};

const PODS: &[&str] = &["10.244.1.1@node-1", "10.244.2.1@node-2"];

/// Room for so many slots, and for enough of all else.
fn slots(slots: u64) -> TableEntries {
    TableEntries {
        slots,
        ..TableEntries::DEFAULT
    }
}

fn cluster_of(service_room: TableEntries, namespace_room: Option<TableEntries>) -> Cluster {
    cluster_with(Options {
        node_name: Some("node-1".to_owned()),
        service_room,
        namespace_room,
        ..Options::default()
    })
}

fn room(slots_per_service: u64, slots_per_namespace: Option<u64>) -> Cluster {
    cluster_of(slots(slots_per_service), slots_per_namespace.map(slots))
}

#[test]
fn asked_table_size_counts_only_if_all_tables_of_the_service_fit() {
    let sizes = |slots_per_service: u64, service: &Service| {
        let mut cluster = room(slots_per_service, None);
        cluster.service(service.clone());
        let state = cluster.state();
        let specs = state.services.values().map(|service| &service.spec);
        let sizes: Vec<_> = specs.map(|spec| spec.log2_slots).collect();
        (sizes, cluster.problems("web"))
    };
    let one = web().annotation(TABLE_SIZE, "2048");
    assert_eq!(sizes(2048, &one), (vec![Some(11)], vec![]));
    assert_eq!(sizes(2047, &one), (vec![None], vec!["InvalidAnnotation"]));
    // A NodePort has a table for edges and one at the node's address.
    let two = one.node_port(30080);
    assert_eq!(sizes(3 * 2048, &two), (vec![Some(11); 2], vec![]));
    let refused = (vec![None; 2], vec!["InvalidAnnotation"]);
    assert_eq!(sizes(3 * 2048 - 1, &two), refused);
    // More than may be asked for counts as the most.
    let most = web().annotation(TABLE_SIZE, "131072");
    let capped = (vec![Some(14)], vec!["InvalidAnnotation"]);
    assert_eq!(sizes(16384, &most), capped);
}

#[test]
fn first_ports_of_a_service_have_what_room_it_has() {
    let mut cluster = room(2 * 256 + 1, None);
    let ports = ["a", "b", "c", "d"];
    let mut service = load_balancer("many", "192.0.2.9");
    service.ports.clear();
    let mut slice = slice_of("many", "many-1", PODS);
    for (number, port) in (80..).zip(ports) {
        service = service.port(port, number, "TCP");
        slice = slice.port(port, 8080, "TCP");
    }
    cluster.service(service).slice(slice);
    assert_eq!(cluster.keys(), ["192.0.2.9:80/tcp", "192.0.2.9:81/tcp"]);
    assert_eq!(cluster.problems("many"), ["TableShare"]);
    // Ports without backends take little.
    cluster.slice(slice_of("many", "many-1", PODS).port("d", 8080, "TCP"));
    assert_eq!(cluster.keys().len(), 4);
    assert_eq!(cluster.problems("many"), [""; 0]);
}

#[test]
fn oldest_services_of_a_namespace_have_its_room() {
    let of = |namespace: &str, name: &str, last: u8, created: i64| {
        let mut service = load_balancer(name, &format!("192.0.2.{last}")).created(created);
        service.name = ObjectName::new(namespace, name);
        service.annotation(TABLE_SIZE, "256")
    };
    let services = [
        of("default", "old", 9, 1),
        of("default", "same-a", 8, 2),
        of("default", "same-b", 7, 2),
        of("other", "young", 6, 3),
    ];
    let keys = |last: [u8; 3]| last.map(|last| format!("192.0.2.{last}:80/tcp"));
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
        let mut cluster = room(256, Some(2 * 256));
        for index in order {
            cluster.service(services[index].clone());
            cluster.update();
        }
        assert_eq!(cluster.keys(), keys([6, 8, 9]), "{order:?}");
        assert_eq!(cluster.problems("same-b"), ["TableShare"], "{order:?}");
        let vips = addresses(&["192.0.2.6", "192.0.2.8", "192.0.2.9"]);
        assert_eq!(cluster.state().vips, vips, "{order:?}");
        // What is freed goes to who waits.
        cluster.index.delete_service(&name("old"));
        assert_eq!(cluster.keys(), keys([6, 7, 8]), "{order:?}");
        assert_eq!(cluster.problems("same-b"), [""; 0], "{order:?}");
        let nothing = Object::Service(name("old"));
        assert_eq!(cluster.rules(&nothing), [""; 0]);
        // One that comes back as another is the youngest.
        cluster.service(of("default", "old", 9, 5));
        assert_eq!(cluster.keys(), keys([6, 7, 8]), "{order:?}");
        assert_eq!(cluster.problems("old"), ["TableShare"], "{order:?}");
        // Without a bound all are served.
        cluster.index.set_options(Options {
            service_room: slots(256),
            ..Options::default()
        });
        assert_eq!(cluster.keys().len(), 4, "{order:?}");
    }
}

#[test]
fn one_service_has_its_share_of_every_table() {
    let mut service = load_balancer("many", "192.0.2.9").source_ranges(&["198.51.100.0/24"]);
    service.ports.clear();
    // One of the pods is this machine's.
    let mut slice = slice_of("many", "many-1", PODS);
    for (number, port) in (80..).zip(["a", "b", "c", "d"]) {
        service = service.port(port, number, "TCP");
        slice = slice.port(port, 8080, "TCP");
    }
    let all = TableEntries::DEFAULT;
    for (room, ports, what) in [
        (all, 4, None),
        (
            TableEntries { services: 3, ..all },
            3,
            Some("addresses with ports"),
        ),
        (TableEntries { backends: 7, ..all }, 3, Some("backends")),
        (
            TableEntries { pods: 2, ..all },
            2,
            Some("pods of this machine"),
        ),
        (
            TableEntries {
                source_ranges: 1,
                ..all
            },
            1,
            Some("source ranges"),
        ),
    ] {
        // For Services and for namespaces, where it is all or nothing.
        let mut cluster = cluster_of(room, None);
        cluster.service(service.clone()).slice(slice.clone());
        assert_eq!(cluster.keys().len(), ports, "{what:?}");
        let problems = &cluster.state().problems;
        let problems = problems.values().flat_map(|problems| problems.iter());
        let texts: Vec<&String> = problems.map(|problem| &problem.text).collect();
        match what {
            Some(what) => {
                let named = texts
                    .iter()
                    .any(|text| text.contains(&format!("{what}, of which")));
                assert!(named, "{what}: {texts:?}");
            }
            None => assert!(texts.is_empty(), "{texts:?}"),
        }
        let mut cluster = cluster_of(all, Some(room));
        cluster.service(service.clone()).slice(slice.clone());
        let expected = if what.is_some() { 0 } else { 4 };
        assert_eq!(cluster.keys().len(), expected, "{what:?}");
    }
}

#[test]
fn ports_by_endpoints_of_a_service_are_work_and_memory_with_a_bound() {
    const ENDPOINTS: u32 = 1000;
    let pods: Vec<String> = (0..ENDPOINTS)
        .map(|pod| {
            let [.., high, low] = pod.to_be_bytes();
            format!("10.244.{high}.{low}@node-2 unready serving terminating")
        })
        .collect();
    // One that is ready, so that the others only drain: they share in no lookup table.
    let pods: Vec<&str> = ["10.245.0.1@node-2"]
        .into_iter()
        .chain(pods.iter().map(String::as_str))
        .collect();
    let mut service = load_balancer("many", "192.0.2.9");
    service.ports.clear();
    let mut slice = slice_of("many", "many-1", &pods);
    for number in 1..=200 {
        let name = format!("p{number}");
        service = service.port(&name, number, "TCP");
        slice = slice.port(&name, number, "TCP");
    }
    let room = TableEntries {
        backends: 10_000,
        ..TableEntries::DEFAULT
    };
    let mut cluster = cluster_of(room, None);
    cluster.service(service).slice(slice);
    assert_eq!(cluster.keys().len(), 9, "1001 entries each");
    assert_eq!(cluster.problems("many"), ["TableShare"]);
    let draining = &cluster.state().draining;
    let kept: usize = draining.values().map(|endpoints| endpoints.len()).sum();
    assert_eq!(kept, 9000);
}
