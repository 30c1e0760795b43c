//! Walks through tables that the datapath writes: NAT mode's flows that are over go in pairs, and of the others those
//! that live are counted.

use std::collections::BTreeMap;

use aya::maps::{HashMap, Map, MapData};
use fastpath::{
    clock::monotonic_ns,
    load::{Loaded, Loader},
    tables::Tables,
};
use xdp_prog::{
    abi::{
        AddressKey, Datagram, FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_RESET, LocalFlow,
        NAT_FIN_BACKEND, NAT_FIN_CLIENT, NAT_OPEN, NatForward, NatLink, NatMark, NatReverse,
        PodFlow, Tuple, map,
    },
    decide::nat::{GUARD_NS, IDLE_CLOSED_NS, IDLE_HALF_OPEN_TCP_NS},
    flow_state::IDLE_TCP_NS,
    wire::protocol::{TCP, UDP},
};

use crate::STUBS;

const SECOND: u64 = 1_000_000_000;
const LIVE: u16 = 10_000;

#[test]
fn flows_that_are_over_go_and_free_their_ports() {
    let (mut tables, mut flows) = nat();
    for port in 0..LIVE {
        flows.add(port, 0, 0);
    }
    let closed = NAT_OPEN | NAT_FIN_CLIENT | NAT_FIN_BACKEND;
    let (unanswered, old_but_live, over) = (LIVE, LIVE + 1, LIVE + 2);
    let (orphan, both_closed) = (LIVE + 3, LIVE + 4);
    flows.add(unanswered, 0, IDLE_HALF_OPEN_TCP_NS + GUARD_NS + SECOND);
    flows.add(old_but_live, NAT_OPEN, IDLE_CLOSED_NS + GUARD_NS + SECOND);
    flows.add(both_closed, closed, IDLE_CLOSED_NS + GUARD_NS + SECOND);
    flows.add(over, NAT_OPEN, IDLE_TCP_NS + GUARD_NS + SECOND);
    flows.add(orphan, 0, IDLE_CLOSED_NS + GUARD_NS + SECOND);
    flows.forward.remove(&request(orphan)).unwrap();

    assert_eq!(tables.sweep_nat(usize::MAX).unwrap(), 4);

    for (port, stays) in [
        (0, true),
        (LIVE - 1, true),
        (old_but_live, true),
        (unanswered, false),
        (over, false),
        (orphan, false),
        (both_closed, false),
    ] {
        assert_eq!(
            flows.forward.get(&request(port), 0).is_ok(),
            stays,
            "{port}"
        );
        assert_eq!(flows.reverse.get(&reply(port), 0).is_ok(), stays, "{port}");
    }
    assert_eq!(tables.nat_fill().used, usize::from(LIVE) + 1);
    assert!(tables.may_have_nat_flows());
    assert_eq!(tables.sweep_nat(usize::MAX).unwrap(), 0);
}

#[test]
fn a_small_budget_gets_through_in_several_calls() {
    let (mut tables, mut flows) = nat();
    for port in 0..LIVE {
        flows.add(port, 0, IDLE_HALF_OPEN_TCP_NS + GUARD_NS + SECOND);
    }
    let first = tables.sweep_nat(1).unwrap();
    assert!(first > 0 && first < usize::from(LIVE), "{first}");
    assert!(tables.may_have_nat_flows(), "the walk is not at its end");
    let mut removed = first;
    for _ in 0..10 {
        removed += tables.sweep_nat(1).unwrap();
    }
    assert_eq!(removed, usize::from(LIVE));
    assert!(!tables.may_have_nat_flows());
    assert_eq!(flows.reverse.keys().count(), 0);
    assert_eq!(flows.forward.keys().count(), 0);
}

#[test]
fn flows_that_are_over_do_not_count() {
    let loaded = Loader::unpinned()
        .object(&STUBS)
        .max_entries(map::LUT, 1024)
        .max_entries(map::FLOWS, 32_768)
        .load()
        .unwrap();
    let mut tables = Tables::open(&loaded).unwrap();
    let now = monotonic_ns();
    let flow = |state| {
        let vip = AddressKey::v4([192, 0, 2, 1]);
        PodFlow::new(&Tuple::default(), vip, [0, 80], 0, state, now)
    };
    let mut answered = table(&loaded, map::FLOWS);
    for port in 0..9_000 {
        answered
            .insert(to_pod(TCP, port), flow(FLOW_FIN_CLIENT), 0)
            .unwrap();
    }
    let closed = flow(FLOW_FIN_CLIENT | FLOW_FIN_POD);
    answered.insert(to_pod(TCP, 9_000), closed, 0).unwrap();
    for (name, protocol) in [(map::FLOWS_DATAGRAM, UDP), (map::FLOWS_EMBRYONIC, TCP)] {
        let mut flows = table(&loaded, name);
        flows.insert(to_pod(protocol, 1), flow(0), 0).unwrap();
        flows
            .insert(to_pod(protocol, 2), flow(FLOW_RESET), 0)
            .unwrap();
    }
    let mut local = table(&loaded, map::LOCAL_FLOWS);
    let alive = LocalFlow::new(now + 60 * SECOND, false);
    local.insert(to_pod(TCP, 1), alive, 0).unwrap();
    local
        .insert(to_pod(TCP, 2), LocalFlow::new(now, false), 0)
        .unwrap();
    let mut fragments = table(&loaded, map::FRAGMENTS);
    let over = now.wrapping_sub(Datagram::LIFETIME_NS + SECOND);
    for (port, seen) in [(0, now), (1, over)] {
        let first = Datagram::new([0, 1], [0, 2], seen);
        fragments.insert(to_pod(UDP, port), first, 0).unwrap();
    }

    // A part at a time: the first table takes several, and nothing is said of it until it is done.
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
        answered.remove(&to_pod(TCP, port)).unwrap();
    }
    while !tables.count_live(usize::MAX).unwrap() {}
    assert_eq!(used(&tables)[map::FLOWS], 1_000);
    let (_, flows) = tables.live_fill().next().unwrap();
    assert_eq!(flows.capacity, 32_768);
}

fn nat() -> (Tables, Flows) {
    let loaded = Loader::unpinned()
        .object(&STUBS)
        .max_entries(map::LUT, 1024)
        .load()
        .unwrap();
    (Tables::open(&loaded).unwrap(), Flows::of(&loaded))
}

/// The two tables as any process with the right to may change them.
struct Flows {
    forward: HashMap<MapData, Tuple, NatForward>,
    reverse: HashMap<MapData, Tuple, NatReverse>,
}

impl Flows {
    fn of(loaded: &Loaded) -> Self {
        let map = |name| Map::HashMap(loaded.map(name).unwrap());
        Self {
            forward: HashMap::try_from(map(map::NAT_FORWARD)).unwrap(),
            reverse: HashMap::try_from(map(map::NAT_REVERSE)).unwrap(),
        }
    }

    /// Adds a flow that was idle for so long.
    fn add(&mut self, port: u16, flags: u8, idle: u64) {
        let (request, reply) = (request(port), reply(port));
        let mark = NatMark::new(monotonic_ns().wrapping_sub(idle), flags);
        let forward = NatForward::new(&request, &reply, 1, 0, mark);
        let reverse = NatReverse::new(&reply, &request, 1, NatLink::default(), mark);
        self.forward.insert(request, forward, 0).unwrap();
        self.reverse.insert(reply, reverse, 0).unwrap();
    }
}

/// The client's side of flow `port`.
fn request(port: u16) -> Tuple {
    let (client, vip) = ([198, 51, 100, 7], [203, 0, 113, 10]);
    tuple(client, vip, port.to_be_bytes(), [0, 80])
}

/// The backend's side of flow `port`.
fn reply(port: u16) -> Tuple {
    let (backend, edge) = ([192, 0, 2, 40], [192, 0, 2, 1]);
    tuple(backend, edge, [0x1f, 0x90], port.to_be_bytes())
}

fn tuple(from: [u8; 4], to: [u8; 4], source: [u8; 2], destination: [u8; 2]) -> Tuple {
    Tuple::new(
        AddressKey::v4(from),
        AddressKey::v4(to),
        source,
        destination,
        6,
    )
}

fn used(tables: &Tables) -> BTreeMap<&'static str, usize> {
    tables
        .live_fill()
        .map(|(name, live)| (name, live.used))
        .collect()
}

fn to_pod(protocol: u8, port: u16) -> Tuple {
    let [client, pod] = [[198, 51, 100, 7], [10, 2, 0, 1]].map(AddressKey::v4);
    Tuple::new(client, pod, port.to_be_bytes(), [0x1f, 0x90], protocol)
}

fn table<V: aya::Pod>(loaded: &Loaded, name: &str) -> HashMap<MapData, Tuple, V> {
    HashMap::try_from(Map::LruHashMap(loaded.map(name).unwrap())).unwrap()
}
