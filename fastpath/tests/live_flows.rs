//! The count of flows that live, in tables that keep what is over until its place is needed.

#![expect(
    clippy::unwrap_used,
    reason = "a panic at the place is how a test fails"
)]

use std::collections::BTreeMap;

use aya::maps::{HashMap, Map, MapData};
use fastpath::{
    load::{Loaded, Loader},
    tables::Tables,
};
use xdp_prog::{
    abi::{
        AddressKey, Datagram, FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_RESET, LocalFlow, PodFlow, Tuple,
        map,
    },
    wire::protocol::{TCP, UDP},
};

const SECOND: u64 = 1_000_000_000;

#[test]
fn what_is_over_does_not_count() {
    let loaded = Loader::unpinned()
        .max_entries(map::LUT, 1024)
        .max_entries(map::FLOWS, 32_768)
        .load()
        .unwrap();
    let mut tables = Tables::open(&loaded).unwrap();
    let now = monotonic_ns();
    let flow = |state| PodFlow::new(AddressKey::v4([192, 0, 2, 1]), [0, 80], 0, state, now);
    let mut answered = table(&loaded, map::FLOWS);
    for port in 0..9_000 {
        answered
            .insert(tuple(TCP, port), flow(FLOW_FIN_CLIENT), 0)
            .unwrap();
    }
    let closed = flow(FLOW_FIN_CLIENT | FLOW_FIN_POD);
    answered.insert(tuple(TCP, 9_000), closed, 0).unwrap();
    for (name, protocol) in [(map::FLOWS_DATAGRAM, UDP), (map::FLOWS_EMBRYONIC, TCP)] {
        let mut flows = table(&loaded, name);
        flows.insert(tuple(protocol, 1), flow(0), 0).unwrap();
        flows
            .insert(tuple(protocol, 2), flow(FLOW_RESET), 0)
            .unwrap();
    }
    let mut local = table(&loaded, map::LOCAL_FLOWS);
    let alive = LocalFlow::new(now + 60 * SECOND, false);
    local.insert(tuple(TCP, 1), alive, 0).unwrap();
    local
        .insert(tuple(TCP, 2), LocalFlow::new(now, false), 0)
        .unwrap();
    let mut fragments = table(&loaded, map::FRAGMENTS);
    for seen in [now, 0] {
        let first = Datagram::new([0, 1], [0, 2], seen);
        fragments
            .insert(tuple(UDP, u16::from(seen == 0)), first, 0)
            .unwrap();
    }

    // A small part at a time: the first table takes several, and nothing is said of it until it is done.
    assert!(!tables.count_live(1).unwrap());
    assert_eq!(used(&tables)[map::FLOWS], 0);
    let calls = 1 + (1..100).find(|_| tables.count_live(1).unwrap()).unwrap();
    assert!(calls > 5, "{calls}");
    let expected = [
        (map::FLOWS, 9_000),
        (map::FLOWS_DATAGRAM, 1),
        (map::FLOWS_EMBRYONIC, 1),
        (map::LOCAL_FLOWS, 1),
        (map::FRAGMENTS, 1),
    ];
    assert_eq!(used(&tables), expected.into());

    // The next walk counts anew.
    for port in 0..8_000 {
        answered.remove(&tuple(TCP, port)).unwrap();
    }
    while !tables.count_live(usize::MAX).unwrap() {}
    assert_eq!(used(&tables)[map::FLOWS], 1_000);
    let (_, flows) = tables.live_fill().next().unwrap();
    assert_eq!(flows.capacity, 32_768);
}

fn used(tables: &Tables) -> BTreeMap<&'static str, usize> {
    tables
        .live_fill()
        .map(|(name, live)| (name, live.used))
        .collect()
}

fn tuple(protocol: u8, port: u16) -> Tuple {
    let [client, pod] = [[198, 51, 100, 7], [10, 2, 0, 1]].map(AddressKey::v4);
    Tuple::new(client, pod, port.to_be_bytes(), [0x1f, 0x90], protocol)
}

fn table<V: aya::Pod>(loaded: &Loaded, name: &str) -> HashMap<MapData, Tuple, V> {
    HashMap::try_from(Map::LruHashMap(loaded.map(name).unwrap())).unwrap()
}

/// Returns the clock of the datapath.
fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * SECOND + u64::try_from(time.tv_nsec).unwrap()
}
