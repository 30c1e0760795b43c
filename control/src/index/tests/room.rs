//! How much room Services and namespaces have in the lookup tables.

use super::words::*;
use crate::index::objects::{ObjectName, Service, TABLE_SIZE};
use crate::index::{Object, Options};

const PODS: &[&str] = &["10.244.1.1@node-1", "10.244.2.1@node-2"];

fn room(slots_per_service: u64, slots_per_namespace: Option<u64>) -> Cluster {
    cluster_with(Options {
        node_name: Some("node-1".to_owned()),
        slots_per_service,
        slots_per_namespace,
        ..Options::default()
    })
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
            slots_per_service: 256,
            ..Options::default()
        });
        assert_eq!(cluster.keys().len(), 4, "{order:?}");
    }
}
