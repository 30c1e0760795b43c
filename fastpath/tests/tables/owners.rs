//! Counters of each service's own: what two services send to one pod is told apart, what one service gets at
//! several addresses is not.

use std::{collections::BTreeMap, net::IpAddr};

use aya::programs::{TestRun, TestRunOptions};
use etherparse::PacketBuilder;
use fastpath::{
    load::{Loaded, Loader},
    nexthop::{NextHop, Resolution},
    tables::{
        Addresses, BackendSpec, ForwardMode, OwnedBackend, Protocol, ServiceKey, ServiceSpec,
        TableError, Tables,
    },
};
use xdp_prog::abi::{Traffic, map};

use crate::example::TestPins;

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const NODE: &str = "10.0.0.2";
const POD: &str = "10.244.1.6:8080";
const XDP_TX: u32 = 3;
/// Backends that the tables of these tests have room for; there is none of id 0.
const ROOM: u32 = 8;

#[test]
fn services_count_apart_what_they_send_to_one_pod() {
    let (loaded, mut tables) = unpinned();
    put(&mut tables, 80, &of(1, &[POD]));
    put(&mut tables, 81, &of(2, &[POD]));
    send(&loaded, 80, 5);
    send(&loaded, 81, 2);
    assert_eq!(packets(&tables), [((POD, 1), 5), ((POD, 2), 2)].into());
}

#[test]
fn addresses_of_one_service_count_together_and_share_entries() {
    let (loaded, mut tables) = unpinned();
    for port in [80, 30_080] {
        put(&mut tables, port, &of(1, &[POD]));
        send(&loaded, port, 3);
    }
    assert_eq!(packets(&tables), [((POD, 1), 6)].into());
    assert_eq!(tables.fill().backends.used, 1);
    tables.remove_service(&service(80)).unwrap();
    send(&loaded, 30_080, 1);
    assert_eq!(packets(&tables), [((POD, 1), 7)].into());
    tables.remove_service(&service(30_080)).unwrap();
    tables.reclaim();
    assert_eq!(tables.fill().backends.used, 0);
}

#[test]
fn next_hop_of_a_node_is_that_of_each_services_backend_there() {
    let (loaded, mut tables) = unpinned();
    for (port, owner) in [(80, 1), (81, 2)] {
        put(&mut tables, port, &of(owner, &[POD]));
    }
    tables.set_next_hop(node(), Resolution::Local).unwrap();
    tables.set_next_hop(node(), resolved(2)).unwrap();
    for port in [80, 81] {
        let output = send(&loaded, port, 1);
        assert_eq!(output[..6], [2, 0, 0, 0, 0, 2], "port {port}");
    }
}

#[test]
fn another_agent_goes_on_with_the_counters_of_each_service() {
    let pins = TestPins::new("adopted");
    let specs = [
        (80, of(1, &[POD])),
        (81, of(2, &[POD])),
        (82, of(2, &[POD])),
    ];
    let ids = {
        let loaded = load(&pins);
        let mut tables = open(&loaded);
        for (port, spec) in &specs {
            put(&mut tables, *port, spec);
            send(&loaded, *port, 3);
        }
        ids(&tables)
    };
    let loaded = load(&pins);
    let mut tables = open(&loaded);
    let counted = [((POD, 1), 3), ((POD, 2), 6)].into();
    assert_eq!(packets(&tables), counted);
    for (port, spec) in &specs {
        assert_eq!(tables.service(&service(*port)).unwrap().owner, spec.owner);
        let change = tables.put_service(service(*port), spec).unwrap();
        assert_eq!((change.slots, change.new_table), (0, false));
    }
    assert_eq!((self::ids(&tables), packets(&tables)), (ids, counted));
}

/// As an agent left them that did not know of owners.
#[test]
fn backends_of_nobody_go_to_the_services_that_have_them() {
    let pins = TestPins::new("nobodys");
    let specs = [80, 81].map(|port| (port, of(u32::from(port), &[POD])));
    {
        let loaded = load(&pins);
        let mut tables = open(&loaded);
        for (port, _) in &specs {
            put(&mut tables, *port, &of(0, &[POD]));
            send(&loaded, *port, 1);
        }
        assert_eq!(packets(&tables), [((POD, 0), 2)].into());
    }
    let loaded = load(&pins);
    let mut tables = open(&loaded);
    for (port, spec) in &specs {
        put(&mut tables, *port, spec);
        send(&loaded, *port, 1);
    }
    // The last one that has it keeps it, with what is known of it.
    assert_eq!(packets(&tables), [((POD, 80), 1), ((POD, 81), 3)].into());
}

#[test]
fn service_of_another_name_keeps_its_backends() {
    let (loaded, mut tables) = unpinned();
    put(&mut tables, 80, &of(1, &[POD]));
    put(&mut tables, 81, &of(3, &[POD]));
    send(&loaded, 80, 4);
    let id = ids(&tables)[&(POD, 1)];
    put(&mut tables, 80, &of(2, &[POD]));
    assert_eq!(packets(&tables), [((POD, 2), 4), ((POD, 3), 0)].into());
    assert_eq!(ids(&tables)[&(POD, 2)], id);
    // Under the name of one that goes on it has no part in that one's.
    put(&mut tables, 80, &of(3, &[POD]));
    put(&mut tables, 81, &of(4, &[POD]));
    assert_eq!(packets(&tables), [((POD, 3), 0), ((POD, 4), 0)].into());
}

#[test]
fn service_that_does_not_fit_under_another_name_keeps_counters_and_backends() {
    const OTHERS: [&str; 8] = [
        "10.244.1.10:80",
        "10.244.1.11:80",
        "10.244.1.12:80",
        "10.244.1.13:80",
        "10.244.1.14:80",
        "10.244.1.15:80",
        "10.244.1.16:80",
        "10.244.1.17:80",
    ];
    let (loaded, mut tables) = unpinned();
    put(&mut tables, 80, &of(1, &[POD]));
    send(&loaded, 80, 4);
    let outcome = tables.put_service(service(80), &of(2, &OTHERS));
    assert!(matches!(outcome, Err(TableError::TableFull { .. })));
    assert_eq!(packets(&tables), [((POD, 1), 4)].into());
    assert_eq!(tables.service(&service(80)).unwrap().owner, 1);
    assert_eq!(tables.specs()[&service(80)].owner, 1);
    send(&loaded, 80, 1);
    assert_eq!(packets(&tables), [((POD, 1), 5)].into());
}

/// Sums per pod and owner.
fn packets(tables: &Tables) -> BTreeMap<(&'static str, u32), u64> {
    let traffic = tables.counters().unwrap().backends;
    let packets = |(backend, traffic): (OwnedBackend, Traffic)| (told(backend), traffic.packets);
    traffic.into_iter().map(packets).collect()
}

/// Lists the ids per pod and owner.
fn ids(tables: &Tables) -> BTreeMap<(&'static str, u32), u32> {
    let backends = tables.backends();
    backends
        .map(|(backend, installed)| (told(*backend), installed.id))
        .collect()
}

fn told(backend: OwnedBackend) -> (&'static str, u32) {
    assert_eq!(backend.key.pod.unwrap(), POD.parse().unwrap());
    (POD, backend.owner)
}

/// Sends packets of as many flows to a service; returns the last one as it leaves.
fn send(loaded: &Loaded, port: u16, count: u16) -> Vec<u8> {
    let mut output = Vec::new();
    for source_port in 1024..1024 + count {
        let mut input = Vec::with_capacity(64);
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
            .ipv4(CLIENT, [10, 99, 0, 1], 64)
            .udp(source_port, port)
            .write(&mut input, &[0; 18])
            .unwrap();
        output = vec![0; 128];
        let options = TestRunOptions {
            data_in: Some(&input),
            data_out: Some(&mut output),
            ..TestRunOptions::default()
        };
        let result = loaded.program().test_run(options).unwrap();
        assert_eq!(result.return_value, XDP_TX, "port {port}");
    }
    output
}

fn put(tables: &mut Tables, port: u16, spec: &ServiceSpec) {
    tables.put_service(service(port), spec).unwrap();
    tables.reclaim();
}

/// Describes a service of pods on one node, in a mode in which no past owner keeps its entry.
fn of(owner: u32, pods: &[&str]) -> ServiceSpec {
    let backends = pods
        .iter()
        .map(|pod| BackendSpec::pod(node(), pod.parse().unwrap(), 1));
    ServiceSpec {
        owner,
        mode: ForwardMode::L2dsr,
        backends: backends.collect(),
        ..ServiceSpec::default()
    }
}

fn service(port: u16) -> ServiceKey {
    ServiceKey {
        address: [10, 99, 0, 1].into(),
        port,
        protocol: Protocol::Udp,
    }
}

fn node() -> IpAddr {
    NODE.parse().unwrap()
}

fn unpinned() -> (Loaded, Tables) {
    let loaded = sized(Loader::unpinned()).load().unwrap();
    let tables = open(&loaded);
    (loaded, tables)
}

fn open(loaded: &Loaded) -> Tables {
    let mut tables = Tables::open(loaded).unwrap();
    let addresses = Addresses {
        vips: [service(80).address].into(),
        ..Addresses::default()
    };
    tables.set_addresses(addresses.into()).unwrap();
    tables.set_next_hop(node(), resolved(1)).unwrap();
    tables
}

fn sized(loader: Loader) -> Loader {
    loader
        .max_entries(map::LUT, 8192)
        .max_entries(map::BACKENDS, ROOM)
        .max_entries(map::BACKEND_TRAFFIC, ROOM)
}

fn resolved(router: u8) -> Resolution {
    Resolution::Resolved(NextHop {
        ifindex: 1,
        source_mac: [2, 0, 0, 0, 0, 9],
        destination_mac: [2, 0, 0, 0, 0, router],
        is_carried: false,
        via_gateway: false,
        vlan: None,
        mtu: 1500,
        source: Some([10, 0, 0, 100].into()),
    })
}

fn load(pins: &TestPins) -> Loaded {
    sized(Loader::pinned(pins.0.clone())).load().unwrap()
}
