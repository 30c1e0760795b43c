//! An agent that ends between any two writes: every packet is treated as before the change or as after it, and the
//! next agent takes over what is there and finishes the change.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use aya::{
    maps::{HashMap, Map},
    programs::{TestRun, TestRunOptions},
};
use etherparse::PacketBuilder;
use xdp_prog::abi::{Tuple, map};

use super::{
    Addresses, BackendSpec, ForwardMode, NatSettings, Protocol, ServiceKey, ServiceSpec, Settings,
    TableError, Tables, TrafficPolicy, gate,
};
use crate::{
    load::{Loaded, Loader},
    nexthop::{NextHop, Reason, Resolution},
};

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const VIP: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
const EDGE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 50);
const NODES: [Ipv4Addr; 3] = [
    Ipv4Addr::new(10, 9, 0, 1),
    Ipv4Addr::new(10, 9, 0, 2),
    Ipv4Addr::new(10, 9, 0, 3),
];
const PORT: u16 = 80;
const POD_PORT: u16 = 8080;
/// Few slots and so few writes; more clients than slots.
const LOG2_SLOTS: u8 = 2;
const CLIENTS: u16 = 12;

/// A change, from one state to another.
struct Change {
    name: &'static str,
    before: fn(&mut Tables),
    change: fn(&mut Tables) -> Result<(), TableError>,
}

const CHANGES: [Change; 21] = [
    Change {
        name: "a service comes",
        before: |_| {},
        change: |tables| put(tables, &nodes(&NODES[..2])),
    },
    Change {
        name: "a service goes",
        before: |tables| put(tables, &nodes(&NODES[..2])).unwrap(),
        change: |tables| tables.remove_service(&service()).map(drop),
    },
    Change {
        name: "a service with pods goes",
        before: |tables| put(tables, &pods(&[OWN, NODES[0]])).unwrap(),
        change: |tables| tables.remove_service(&service()).map(drop),
    },
    Change {
        name: "backends change",
        before: |tables| put(tables, &nodes(&NODES[..2])).unwrap(),
        change: |tables| put(tables, &nodes(&NODES[1..])),
    },
    Change {
        name: "the last pod of this machine goes",
        before: |tables| put(tables, &local(pods(&[OWN, NODES[0]]))).unwrap(),
        change: |tables| put(tables, &local(pods(&[NODES[1], NODES[0]]))),
    },
    Change {
        name: "the table grows",
        before: |tables| put(tables, &pods(&[OWN, NODES[0]])).unwrap(),
        change: |tables| {
            let longer = ServiceSpec {
                log2_slots: Some(LOG2_SLOTS + 1),
                ..pods(&[OWN, NODES[1], OWN])
            };
            put(tables, &longer)
        },
    },
    Change {
        name: "from IPIP to NAT",
        before: |tables| put(tables, &pods(&NODES)).unwrap(),
        change: |tables| put(tables, &nat(pods(&NODES))),
    },
    Change {
        name: "from NAT to IPIP",
        before: |tables| put(tables, &nat(pods(&NODES))).unwrap(),
        change: |tables| put(tables, &pods(&NODES)),
    },
    Change {
        name: "from IPIP to L2 DSR",
        before: |tables| put(tables, &nodes(&NODES)).unwrap(),
        change: |tables| {
            let direct = ServiceSpec {
                mode: ForwardMode::L2dsr,
                ..nodes(&NODES)
            };
            put(tables, &direct)
        },
    },
    Change {
        name: "from nodes to pods",
        before: |tables| put(tables, &nodes(&NODES)).unwrap(),
        change: |tables| put(tables, &pods(&[OWN, NODES[0], NODES[1]])),
    },
    Change {
        name: "pods change places",
        before: |tables| put(tables, &pods(&[OWN, NODES[0], OWN])).unwrap(),
        change: |tables| put(tables, &pods(&[OWN, OWN, NODES[0]])),
    },
    Change {
        name: "the first pod of this machine comes",
        before: |tables| put(tables, &local(pods(&NODES[..2]))).unwrap(),
        change: |tables| put(tables, &local(pods(&[OWN, NODES[0]]))),
    },
    Change {
        name: "source ranges come with other backends",
        before: |tables| put(tables, &nodes(&NODES[..2])).unwrap(),
        change: |tables| put(tables, &within("10.0.0.0/8", nodes(&NODES[1..]))),
    },
    Change {
        name: "source ranges go",
        before: |tables| put(tables, &within("198.51.100.0/24", nodes(&NODES[..2]))).unwrap(),
        change: |tables| put(tables, &nodes(&NODES[..2])),
    },
    Change {
        name: "source ranges change",
        before: |tables| put(tables, &within("192.0.2.0/24", nodes(&NODES[..2]))).unwrap(),
        change: |tables| put(tables, &within("198.51.100.0/24", nodes(&NODES[..2]))),
    },
    Change {
        name: "affinity comes with other backends",
        before: |tables| put(tables, &nodes(&NODES[..2])).unwrap(),
        change: |tables| {
            let sticky = ServiceSpec {
                affinity: Some(5),
                ..nodes(&NODES[1..])
            };
            put(tables, &sticky)
        },
    },
    Change {
        name: "a node gets another next hop",
        before: |tables| put(tables, &pods(&NODES)).unwrap(),
        change: |tables| tables.set_next_hop(NODES[0].into(), hop(20)),
    },
    Change {
        name: "a node loses its next hop",
        before: |tables| put(tables, &nodes(&NODES)).unwrap(),
        change: |tables| {
            let lost = Resolution::Unresolved(Reason::NoRoute);
            tables.set_next_hop(NODES[0].into(), lost)
        },
    },
    Change {
        name: "a node turns out to be this machine",
        before: |tables| put(tables, &pods(&NODES)).unwrap(),
        change: |tables| {
            tables.set_next_hop(NODES[0].into(), Resolution::Local)?;
            put(tables, &pods(&NODES))
        },
    },
    Change {
        name: "addresses change",
        before: |tables| put(tables, &pods(&[OWN, NODES[0]])).unwrap(),
        change: |tables| {
            let others = Addresses {
                local: [NODES[2].into()].into(),
                ..addresses()
            };
            tables.set_addresses(others.into())
        },
    },
    Change {
        name: "edges change",
        before: |tables| put(tables, &pods(&[OWN, NODES[0]])).unwrap(),
        change: |tables| tables.set_trusted_edges(&[IpAddr::V4(CLIENT).into()].into()),
    },
];

#[test]
fn packets_meet_the_old_state_or_the_new_wherever_an_agent_ends() {
    let loaded = load();
    for change in &CHANGES {
        let tables = &mut begin(&loaded, change);
        let old = treatments(&loaded);
        let (writes, outcome) = gate::end_after(u64::MAX, || (change.change)(tables));
        outcome.unwrap();
        let new = treatments(&loaded);
        assert!(old != new, "{}: no packet tells", change.name);
        let state = state_of(tables);

        for survived in 0..writes {
            let what = format!("{}, {survived} of {writes} writes", change.name);
            let mut tables = begin(&loaded, change);
            let (_, _) = gate::end_after(survived, || (change.change)(&mut tables));
            drop(tables);
            check(&loaded, &old, &new, &what);
            // The next agent ends too, while it takes over.
            let (_, _) = gate::end_after(survived % 7, || Tables::open(&loaded));
            check(&loaded, &old, &new, &format!("{what}, adopted in part"));
            let mut tables = Tables::open(&loaded).unwrap();
            check(&loaded, &old, &new, &format!("{what}, adopted"));
            set_up(&mut tables);
            (change.change)(&mut tables).unwrap();
            forget_pins(&loaded);
            check(&loaded, &new, &new, &format!("{what}, corrected"));
            assert_eq!(state_of(&mut tables), state, "{what}");
        }
    }
}

#[test]
fn list_that_cannot_be_read_takes_nothing_away() {
    let loaded = load();
    let mut tables = begin(&loaded, &CHANGES[6]);
    let old = treatments(&loaded);
    let macs = BTreeSet::from([[2, 0, 0, 0, 0, 1]]);
    tables.set_edge_macs(&macs).unwrap();
    tables.set_announced(&[VIP.into()].into()).unwrap();

    let refused = gate::refuse_reads(|| Tables::open(&loaded)).unwrap_err();

    assert!(matches!(refused, TableError::Read { .. }), "{refused}");
    check(&loaded, &old, &old, "refused");
    // Who is there already needs no list.
    gate::refuse_reads(|| {
        let addresses = tables.addresses();
        tables.set_addresses(addresses).unwrap();
        let edges = tables.trusted_edges();
        tables.set_trusted_edges(&edges).unwrap();
        tables.set_edge_macs(&macs).unwrap();
        tables.set_announced(&[VIP.into()].into()).unwrap();
    });
    check(&loaded, &old, &old, "set again");
    let tables = Tables::open(&loaded).unwrap();
    assert_eq!(*tables.addresses(), addresses());
    assert_eq!(tables.trusted_edges(), [IpAddr::V4(EDGE).into()].into());
    assert_eq!(tables.edge_macs(), macs);
    assert_eq!(tables.announced(), [VIP.into()].into());
}

#[test]
fn service_under_other_rules_keeps_its_counters() {
    let loaded = load();
    let mut tables = begin(&loaded, &CHANGES[6]);
    treatments(&loaded);
    let counted = tables.counters().unwrap().services;
    assert!(counted[0].1.packets > 0, "{counted:?}");
    (CHANGES[6].change)(&mut tables).unwrap();
    assert_eq!(tables.counters().unwrap().services, counted);
}

/// Everything that a new agent would hold for the same state, and nothing that waits to be freed.
fn state_of(tables: &mut Tables) -> impl PartialEq + std::fmt::Debug + use<> {
    tables.reclaim();
    let fill = tables.fill();
    let owners: Vec<_> = tables
        .services()
        .map(|(key, service)| (*key, service.mode, tables.slots_by_backend(service)))
        .collect();
    let used = [fill.services, fill.backends, fill.pods, fill.source_ranges].map(|one| one.used);
    (
        owners,
        used,
        fill.arena.free,
        *tables.addresses() == addresses(),
    )
}

/// Removes all pins: a flow of an earlier change has the same ends, and may be pinned to a backend that another change has
/// as well. And a flow stays where it was while the change was half done.
fn forget_pins(loaded: &Loaded) {
    for name in [map::PINS, map::PINS_YOUNG] {
        let pins = Map::LruHashMap(loaded.map(name).unwrap());
        let mut pins: HashMap<_, Tuple, u64> = HashMap::try_from(pins).unwrap();
        let flows: Vec<Tuple> = pins.keys().map(Result::unwrap).collect();
        for flow in flows {
            pins.remove(&flow).unwrap();
        }
    }
}

/// Empties the tables and brings them into the state before a change.
fn begin(loaded: &Loaded, change: &Change) -> Tables {
    let mut tables = Tables::open(loaded).unwrap();
    forget_pins(loaded);
    tables.remove_service(&service()).unwrap();
    tables.retain_next_hops(&BTreeSet::new());
    tables.reclaim();
    tables.set_addresses(addresses().into()).unwrap();
    let edge = IpAddr::V4(EDGE).into();
    tables.set_trusted_edges(&[edge].into()).unwrap();
    set_up(&mut tables);
    (change.before)(&mut tables);
    tables
}

/// What an agent does first.
fn set_up(tables: &mut Tables) {
    let settings = Settings {
        hash_seed: 7,
        node: true,
        nat: Some(NatSettings {
            v4: Some(OWN),
            v6: None,
            first_port: 20_000,
            ports: 10_000,
        }),
        ..Settings::default()
    };
    tables.set_settings(settings).unwrap();
    tables.set_next_hop(OWN.into(), Resolution::Local).unwrap();
    let targets = NODES.into_iter().chain((0..3).map(pod));
    for (target, last) in targets.zip(2..) {
        if tables.next_hop(target.into()).is_none() {
            tables.set_next_hop(target.into(), hop(last)).unwrap();
        }
    }
}

fn check(loaded: &Loaded, old: &[Treatment], new: &[Treatment], what: &str) {
    for (number, seen) in treatments(loaded).iter().enumerate() {
        assert!(
            [&old[number], &new[number]].contains(&seen),
            "{what}: packet {number} is treated as {seen:?}, not as before ({:?}) or after ({:?})",
            old[number],
            new[number],
        );
    }
}

/// What becomes of a packet: the action, its length, and where it goes by MAC and by address.
type Treatment = (u32, usize, Vec<u8>, Vec<u8>);

/// Sends packets of several clients, bare and with the tag of each pod.
fn treatments(loaded: &Loaded) -> Vec<Treatment> {
    let mut treatments = Vec::new();
    for client in 0..CLIENTS {
        let bare = datagram(1024 + client);
        treatments.push(run(loaded, &bare));
        for number in 0..3 {
            let mut inner = datagram(2048 + client);
            inner = encapsulated(&inner, tag(pod(number)));
            treatments.push(run(loaded, &inner));
        }
    }
    treatments
}

fn run(loaded: &Loaded, packet: &[u8]) -> Treatment {
    let link = [2, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 9, 8, 0];
    let input = [&link[..], packet].concat();
    let mut output = vec![0; 256];
    let options = TestRunOptions {
        data_in: Some(&input),
        data_out: Some(&mut output),
        ..TestRunOptions::default()
    };
    let result = loaded.program().test_run(options).unwrap();
    let length = result.data_size_out as usize;
    let destination = output[14 + 16..14 + 20].to_vec();
    (
        result.return_value,
        length,
        output[..6].to_vec(),
        destination,
    )
}

fn datagram(source_port: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4(CLIENT.octets(), VIP.octets(), 64)
        .udp(source_port, PORT)
        .write(&mut packet, &[0; 18])
        .unwrap();
    packet
}

/// Puts the edge's outer header in front.
fn encapsulated(packet: &[u8], tag: u16) -> Vec<u8> {
    let length = u16::try_from(packet.len()).unwrap();
    let ipip = etherparse::IpNumber::IPV4;
    let mut outer =
        etherparse::Ipv4Header::new(length, 64, ipip, EDGE.octets(), OWN.octets()).unwrap();
    outer.identification = tag;
    outer.header_checksum = outer.calc_header_checksum();
    [&outer.to_bytes()[..], packet].concat()
}

fn put(tables: &mut Tables, spec: &ServiceSpec) -> Result<(), TableError> {
    tables.put_service(service(), spec).map(drop)
}

fn service() -> ServiceKey {
    ServiceKey {
        address: VIP.into(),
        port: PORT,
        protocol: Protocol::Udp,
    }
}

/// Backends that have the VIP themselves.
fn nodes(nodes: &[Ipv4Addr]) -> ServiceSpec {
    spec(
        nodes
            .iter()
            .map(|node| BackendSpec::node((*node).into(), 1)),
    )
}

/// A pod on each of these machines.
fn pods(nodes: &[Ipv4Addr]) -> ServiceSpec {
    spec(
        (0..).zip(nodes).map(|(number, node)| {
            BackendSpec::pod((*node).into(), (pod(number), POD_PORT).into(), 1)
        }),
    )
}

fn spec(backends: impl Iterator<Item = BackendSpec>) -> ServiceSpec {
    ServiceSpec {
        log2_slots: Some(LOG2_SLOTS),
        backends: backends.collect(),
        ..ServiceSpec::default()
    }
}

fn nat(spec: ServiceSpec) -> ServiceSpec {
    let to = |backend: &BackendSpec| BackendSpec::nat(backend.pod.unwrap(), 1);
    ServiceSpec {
        mode: ForwardMode::Nat,
        backends: spec.backends.iter().map(to).collect(),
        ..spec
    }
}

fn local(spec: ServiceSpec) -> ServiceSpec {
    ServiceSpec {
        traffic_policy: TrafficPolicy::Local,
        ..spec
    }
}

fn within(range: &str, spec: ServiceSpec) -> ServiceSpec {
    ServiceSpec {
        source_ranges: [range.parse().unwrap()].into(),
        ..spec
    }
}

fn pod(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, 0, 1 + number)
}

/// The low eleven bits of a pod's address.
fn tag(pod: Ipv4Addr) -> u16 {
    let [_, _, high, low] = pod.octets();
    u16::from_be_bytes([high & 7, low])
}

fn addresses() -> Addresses {
    Addresses {
        local: [OWN.into()].into(),
        nat: [OWN.into()].into(),
        ..Addresses::default()
    }
}

/// A way on the device that test runs come in on.
fn hop(last: u8) -> Resolution {
    Resolution::Resolved(NextHop {
        ifindex: 1,
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 1, last],
        is_carried: false,
        via_gateway: false,
        vlan: None,
        mtu: 1500,
        source: Some(OWN.into()),
    })
}

fn load() -> Loaded {
    let small = [map::SERVICE, map::SERVICE_TRAFFIC, map::NEXTHOPS];
    let small = small.map(|name| (name, 64));
    let sizes = [
        (map::LUT, 1 << 9),
        (map::BACKENDS, 64),
        (map::BACKEND_TRAFFIC, 64),
    ];
    let loader = small.into_iter().chain(sizes);
    loader
        .fold(Loader::unpinned(), |loader, (name, size)| {
            loader.max_entries(name, size)
        })
        .load()
        .unwrap()
}
