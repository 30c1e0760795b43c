//! Tables changed under load: every packet sees the table before or after, never between.
//!
//! Two threads push packets through the loaded program while a third changes
//! the tables as fast as it can. For each packet the rightful backends are
//! known: the owners of its slot in the one and in the other backend set.
//!
//! `GUIDEWAY_TABLE_CHANGES` sets the number of changes.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

use aya::programs::{TestRun, TestRunOptions};
use etherparse::PacketBuilder;
use fastpath::{
    load::{Loaded, Loader},
    nexthop::Resolution,
    tables::{Addresses, BackendSpec, Protocol, ServiceKey, ServiceSpec, Settings, Tables},
};
use xdp_prog::{
    abi::map,
    flow::{FlowKey, V4},
    maglev,
    reason::ReasonKind,
};

use crate::loopback::{self, OWN};

/// Changes of a test at the least. They go on until enough packets have met them.
const CHANGES: usize = 20_000;
/// Changes between two replacements of the steady service's backends.
const CHANGES_PER_FLIP: usize = 10;
/// Packets to the steady service, and of each other kind, that a verdict takes more than.
const STEADY_PACKETS: u64 = 50_000;
const OTHER_PACKETS: u64 = 5_000;
const SEED: u64 = 7;
const SLOTS_LOG2: u8 = 11;
const VIP: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const STEADY_PORT: u16 = 80;
/// Ports of the services that come and go; the backend of port p is 10.3.0.(p - 1000).
const FLEETING_PORTS: std::ops::Range<u16> = 1000..1040;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

#[test]
fn no_packet_sees_a_half_written_table_or_another_services_entry() {
    let (loaded, mut tables) = load();
    let sets = [backends(1), backends(2)];
    let owners = [rightful(&sets[0]), rightful(&sets[1])];
    tables
        .put_service(service(STEADY_PORT), &spec(&sets[0]))
        .unwrap();

    let done = AtomicBool::new(false);
    let steady = AtomicU64::new(0);
    let fleeting = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for sender in 0..2 {
            let (loaded, owners) = (&loaded, &owners);
            let (done, steady, fleeting) = (&done, &steady, &fleeting);
            scope.spawn(move || {
                let _done = SetOnDrop(done);
                let mut source_port = 1024_u16 + sender;
                while !done.load(Ordering::Relaxed) {
                    source_port = source_port.checked_add(2).unwrap_or(1024 + sender);
                    check_steady(loaded, owners, source_port);
                    steady.fetch_add(1, Ordering::Relaxed);
                    let port = FLEETING_PORTS.start + source_port / 2 % 40;
                    fleeting
                        .fetch_add(check_fleeting(loaded, source_port, port), Ordering::Relaxed);
                }
            });
        }
        let _done = SetOnDrop(&done);
        let mut changes = Changes::new(
            &done,
            [(&steady, STEADY_PACKETS), (&fleeting, OTHER_PACKETS)],
        );
        change_tables(&mut tables, &sets, &mut changes);
    });

    let [steady, fleeting] = [steady, fleeting].map(AtomicU64::into_inner);
    println!(
        "{steady} packets to the steady service, {fleeting} to services while they were there"
    );
    assert!(
        steady > STEADY_PACKETS,
        "too little load for a verdict: {steady} packets"
    );
    assert!(
        fleeting > OTHER_PACKETS,
        "too little load for a verdict: {fleeting} packets"
    );
    let counters = tables.counters().unwrap();
    let unexpected: Vec<_> = counters
        .reasons
        .iter()
        .filter(|count| count.packets > 0 && count.kind == ReasonKind::Drop)
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
}

#[test]
fn replacing_all_of_131072_slots_is_complete_when_it_returns() {
    let (loaded, mut tables) = load();
    let large = |set| ServiceSpec {
        log2_slots: Some(17),
        ..spec(&backends(set))
    };
    tables.put_service(service(STEADY_PORT), &large(1)).unwrap();

    let start = Instant::now();
    let change = tables.put_service(service(STEADY_PORT), &large(2)).unwrap();
    println!("131072 slots replaced in {:?}", start.elapsed());

    assert_eq!(change.slots, 1 << 17);
    for source_port in 1024..4096 {
        let (_, destination) = run(&loaded, source_port, STEADY_PORT);
        assert_eq!(
            destination.map(|d| d.octets()[1]),
            Some(2),
            "port {source_port}"
        );
    }
}

/// Pods come to this machine, leave it for another one, and go, under their services' feet.
#[test]
fn no_packet_reaches_a_pod_of_another_service_or_leaves_for_a_node_without_one() {
    let (loaded, mut tables) = load_node();
    let done = AtomicBool::new(false);
    let seen: [AtomicU64; 4] = Default::default();
    std::thread::scope(|scope| {
        for sender in 0..2 {
            let (loaded, done, seen) = (&loaded, &done, &seen);
            scope.spawn(move || {
                let _done = SetOnDrop(done);
                let mut number = sender;
                while !done.load(Ordering::Relaxed) {
                    number += 2;
                    let outcome = check_pods(loaded, number);
                    seen[outcome as usize].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _done = SetOnDrop(&done);
        let wanted = [Outcome::Delivered, Outcome::Forwarded, Outcome::Stack];
        let wanted = wanted.map(|outcome| (&seen[outcome as usize], OTHER_PACKETS));
        let mut changes = Changes::new(&done, wanted);
        move_pods(&mut tables, &mut changes);
    });

    let seen = seen.map(AtomicU64::into_inner);
    println!("delivered, forwarded, left to the stack, dropped: {seen:?}");
    for outcome in [Outcome::Delivered, Outcome::Forwarded, Outcome::Stack] {
        let packets = seen[outcome as usize];
        assert!(
            packets > OTHER_PACKETS,
            "too little load for a verdict: {seen:?}"
        );
    }
    let counters = tables.counters().unwrap();
    let dropped = counters.reasons.iter().filter(|count| {
        let rightful = ["unknown_pod", "no_local_backend"].contains(&count.label);
        count.packets > 0 && count.kind == ReasonKind::Drop && !rightful
    });
    let dropped: Vec<_> = dropped.collect();
    assert!(dropped.is_empty(), "{dropped:?}");
}

/// The numbers of the changes that a test makes.
struct Changes<'a, const KINDS: usize> {
    made: usize,
    least: usize,
    /// Whether a sender has found a stray packet and panicked.
    done: &'a AtomicBool,
    /// Packets of each kind that have met the changes, and how many must have been exceeded.
    packets: [(&'a AtomicU64, u64); KINDS],
}

impl<'a, const KINDS: usize> Changes<'a, KINDS> {
    fn new(done: &'a AtomicBool, packets: [(&'a AtomicU64, u64); KINDS]) -> Self {
        let least = std::env::var("GUIDEWAY_TABLE_CHANGES");
        Self {
            made: 0,
            least: least.map_or(CHANGES, |number| number.parse().unwrap()),
            done,
            packets,
        }
    }
}

impl<const KINDS: usize> Iterator for Changes<'_, KINDS> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let is_met =
            |(packets, bound): &(&AtomicU64, u64)| packets.load(Ordering::Relaxed) > *bound;
        let is_enough = self.made >= self.least && self.packets.iter().all(is_met);
        if is_enough || self.done.load(Ordering::Relaxed) {
            return None;
        }
        self.made += 1;
        Some(self.made - 1)
    }
}

fn change_tables(
    tables: &mut Tables,
    sets: &[Vec<Ipv4Addr>; 2],
    changes: impl Iterator<Item = usize>,
) {
    let mut present = [false; 40];
    let mut state = 1_u64;
    for number in changes {
        if number % CHANGES_PER_FLIP == 0 {
            let set = &sets[number / CHANGES_PER_FLIP % 2];
            tables
                .put_service(service(STEADY_PORT), &spec(set))
                .unwrap();
        }
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let index = u16::try_from((state >> 33) % 40).unwrap();
        let key = service(FLEETING_PORTS.start + index);
        let present = &mut present[usize::from(index)];
        if *present {
            assert!(tables.remove_service(&key).unwrap());
        } else {
            tables
                .put_service(key, &spec(&[fleeting_backend(key.port)]))
                .unwrap();
        }
        *present = !*present;
    }
}

#[track_caller]
fn check_steady(loaded: &Loaded, owners: &[Vec<Ipv4Addr>; 2], source_port: u16) {
    let (action, destination) = run(loaded, source_port, STEADY_PORT);
    let slot = usize::try_from(maglev::slot(flow(source_port).hash(SEED), SLOTS_LOG2)).unwrap();
    let rightful = [owners[0][slot], owners[1][slot]];
    assert_eq!(action, XDP_TX, "from port {source_port}");
    let destination = destination.unwrap();
    assert!(
        rightful.contains(&destination),
        "port {source_port} went to {destination}, not to {rightful:?}"
    );
}

/// Returns 1 if the service was there.
#[track_caller]
fn check_fleeting(loaded: &Loaded, source_port: u16, port: u16) -> u64 {
    let (action, destination) = run(loaded, source_port, port);
    match action {
        XDP_PASS => 0,
        XDP_TX => {
            assert_eq!(destination, Some(fleeting_backend(port)), "service {port}");
            1
        }
        _ => panic!("service {port}: action {action}"),
    }
}

/// Runs the program on one packet; returns its action and the outer destination.
fn run(loaded: &Loaded, source_port: u16, port: u16) -> (u32, Option<Ipv4Addr>) {
    let mut input = Vec::with_capacity(64);
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
        .ipv4(CLIENT.octets(), VIP.octets(), 64)
        .udp(source_port, port)
        .write(&mut input, &[0; 18])
        .unwrap();
    let (action, output) = run_frame(loaded, &input);
    let outer = output
        .get(14 + 16..14 + 20)
        .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    let encapsulated = output.len() == input.len() + 20;
    (action, outer.filter(|_| encapsulated).map(Ipv4Addr::from))
}

/// Runs the program on one frame; returns its action and the frame.
fn run_frame(loaded: &Loaded, input: &[u8]) -> (u32, Vec<u8>) {
    let mut output = vec![0; 128];
    let result = loaded
        .program()
        .test_run(TestRunOptions {
            data_in: Some(input),
            data_out: Some(&mut output),
            ..TestRunOptions::default()
        })
        .unwrap();
    output.truncate(result.data_size_out as usize);
    (result.return_value, output)
}

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

fn flow(source_port: u16) -> FlowKey<V4> {
    FlowKey {
        source: V4(CLIENT.octets()),
        destination: V4(VIP.octets()),
        source_port: source_port.to_be_bytes(),
        destination_port: STEADY_PORT.to_be_bytes(),
        protocol: Protocol::Udp.number(),
    }
}

fn service(port: u16) -> ServiceKey {
    ServiceKey {
        address: VIP.into(),
        port,
        protocol: Protocol::Udp,
    }
}

fn backends(set: u8) -> Vec<Ipv4Addr> {
    (1..=30)
        .map(|host| Ipv4Addr::new(10, set, 0, host))
        .collect()
}

fn fleeting_backend(port: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 3, 0, u8::try_from(port - FLEETING_PORTS.start).unwrap())
}

fn spec(backends: &[Ipv4Addr]) -> ServiceSpec {
    let backend = |address: &Ipv4Addr| BackendSpec::node((*address).into(), 1);
    ServiceSpec {
        backends: backends.iter().map(backend).collect(),
        ..ServiceSpec::default()
    }
}

fn rightful(backends: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
    let member = |address: &Ipv4Addr| maglev::Member {
        identity: maglev::Identity::new(IpAddr::V4(*address), 0),
        weight: 1,
    };
    let members: Vec<_> = backends.iter().map(member).collect();
    let table = maglev::table(SEED, &members, SLOTS_LOG2).unwrap();
    table
        .into_iter()
        .map(|owner| backends[owner as usize])
        .collect()
}

fn load() -> (Loaded, Tables) {
    let loaded = Loader::unpinned()
        .max_entries(map::LUT, 1 << 20)
        .max_entries(map::SERVICE, 256)
        .max_entries(map::SERVICE_TRAFFIC, 256)
        .max_entries(map::BACKENDS, 4096)
        .max_entries(map::BACKEND_TRAFFIC, 4096)
        .max_entries(map::NEXTHOPS, 512)
        .load()
        .unwrap();
    let mut tables = Tables::open(&loaded).unwrap();
    tables
        .set_settings(Settings {
            hash_seed: SEED,
            ..Settings::default()
        })
        .unwrap();
    let everyone = backends(1)
        .into_iter()
        .chain(backends(2))
        .chain(FLEETING_PORTS.map(fleeting_backend));
    for address in everyone {
        tables
            .set_next_hop(address.into(), loopback::next_hop())
            .unwrap();
    }
    (loaded, tables)
}

/// What may become of a packet while pods move.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Delivered,
    Forwarded,
    /// As it came, or decapsulated: there is no such service.
    Stack,
    /// Its pod has moved between two look-ups.
    Dropped,
}

/// Services whose pods move; the same pods' tags are used by every eighth of them.
const POD_PORTS: std::ops::Range<u16> = 2000..2040;
const PODS_EACH: u8 = 4;
const POD_PORT: u16 = 8080;
const EDGE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 50);
const OTHER_NODES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
const XDP_DROP: u32 = 1;

fn pod(port: u16, number: u8) -> Ipv4Addr {
    let service = u8::try_from(port - POD_PORTS.start).unwrap();
    Ipv4Addr::new(10, 100 + service, service & 7, number)
}

fn move_pods(tables: &mut Tables, changes: impl Iterator<Item = usize>) {
    let mut state = 1_u64;
    for _ in changes {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let bits = state >> 24;
        let port = POD_PORTS.start + u16::try_from(bits % 40).unwrap();
        let key = service(port);
        // A third is removed; else each pod is here, on either node, or gone.
        if bits >> 6 & 3 == 0 {
            tables.remove_service(&key).unwrap();
            continue;
        }
        let place = |number: u8| match bits >> (8 + 2 * number) & 3 {
            0 => Some(OWN),
            1 => Some(OTHER_NODES[0]),
            2 => Some(OTHER_NODES[1]),
            _ => None,
        };
        let at = |number: u8| {
            let target = (pod(port, number), POD_PORT).into();
            Some(BackendSpec::pod(place(number)?.into(), target, 1))
        };
        let spec = ServiceSpec {
            backends: (1..=PODS_EACH).filter_map(at).collect(),
            ..ServiceSpec::default()
        };
        if spec.backends.is_empty() {
            continue; // such a service answers, which is another test's
        }
        tables.put_service(key, &spec).unwrap();
    }
}

/// Sends one datagram, bare or from the edge, and judges where it goes.
#[track_caller]
fn check_pods(loaded: &Loaded, number: u32) -> Outcome {
    let from = u16::try_from(1024 + number % 60_000).unwrap();
    let mix = number.wrapping_mul(0x9e37_79b9) >> 16;
    let port = POD_PORTS.start + u16::try_from(mix % 40).unwrap();
    let wanted = pod(port, 1 + u8::try_from(mix / 40 % 4).unwrap());
    let bare = datagram(from, port);
    let is_bare = mix & 0x8000 == 0;
    let input = if is_bare {
        frame(&bare)
    } else {
        frame(&within(&bare, tag(wanted)))
    };
    let (action, output) = run_frame(loaded, &input);
    let packet = &output[14..];
    let destination = <[u8; 4]>::try_from(&packet[16..20]).map(Ipv4Addr::from);
    let destination = destination.unwrap();
    let is_ours = (1..=PODS_EACH).any(|number| pod(port, number) == destination);
    let of_ours = |tag| (1..=PODS_EACH).any(|number| self::tag(pod(port, number)) == tag);
    let what = format!("port {port}, bare {is_bare}: action {action} to {destination}");
    match action {
        XDP_PASS if packet.len() == bare.len() && is_ours => {
            assert_eq!(packet[22..24], POD_PORT.to_be_bytes(), "{what}");
            Outcome::Delivered
        }
        XDP_PASS => {
            assert_eq!(destination, VIP, "{what}");
            assert_eq!(packet.len(), bare.len(), "{what}");
            Outcome::Stack
        }
        XDP_TX => {
            assert!(is_bare, "{what}: what an edge sent is sent on");
            assert!(OTHER_NODES.contains(&destination), "{what}");
            // The upper bits are tries.
            let tag = u16::from_be_bytes([packet[4], packet[5]]) & 0x7ff;
            assert!(of_ours(tag), "{what}: tag {tag}");
            Outcome::Forwarded
        }
        XDP_DROP => Outcome::Dropped,
        _ => panic!("{what}"),
    }
}

/// The low eleven bits of a pod's address.
fn tag(pod: Ipv4Addr) -> u16 {
    let [_, _, high, low] = pod.octets();
    u16::from_be_bytes([high & 7, low])
}

fn datagram(source_port: u16, port: u16) -> Vec<u8> {
    let mut packet = Vec::with_capacity(64);
    PacketBuilder::ipv4(CLIENT.octets(), VIP.octets(), 64)
        .udp(source_port, port)
        .write(&mut packet, &[0; 18])
        .unwrap();
    packet
}

/// Puts the edge's outer header in front.
fn within(packet: &[u8], tag: u16) -> Vec<u8> {
    let mut outer = etherparse::Ipv4Header::new(
        u16::try_from(packet.len()).unwrap(),
        64,
        etherparse::IpNumber::IPV4,
        EDGE.octets(),
        OWN.octets(),
    )
    .unwrap();
    outer.identification = tag;
    outer.header_checksum = outer.calc_header_checksum();
    [&outer.to_bytes()[..], packet].concat()
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let link = [2, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 9, 8, 0];
    [&link[..], packet].concat()
}

fn load_node() -> (Loaded, Tables) {
    let (loaded, mut tables) = load();
    let settings = Settings {
        hash_seed: SEED,
        node: true,
        ..Settings::default()
    };
    tables.set_settings(settings).unwrap();
    let local = Addresses {
        local: [OWN.into()].into(),
        inner: [VIP.into()].into(),
        ..Addresses::default()
    };
    tables.set_addresses(local.into()).unwrap();
    let edge = IpAddr::V4(EDGE);
    tables.set_trusted_edges(&[edge.into()].into()).unwrap();
    tables.set_next_hop(OWN.into(), Resolution::Local).unwrap();
    for node in OTHER_NODES {
        tables
            .set_next_hop(node.into(), loopback::next_hop())
            .unwrap();
    }
    (loaded, tables)
}

/// Ends the other threads, also when this one panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
