//! NAT mode under forged SYNs: which flow gives its port away, what renews one, and what user space counts.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use aya::maps::{Array, HashMap, Map, MapData};
use etherparse::{PacketBuilder, PacketBuilderStep, TcpHeader};
use fastpath::{
    clock::monotonic_ns,
    load::{Loaded, Loader},
    tables::{Protocol, Tables},
};
use xdp_prog::{
    abi::{
        NAT_ANSWERED, NAT_FIN_BACKEND, NAT_FIN_CLIENT, NAT_OPEN, NAT_RESET, NatCount, NatForward,
        NatLink, NatMark, NatReverse, Tuple, map,
    },
    decide::nat::HANDSHAKE_NS,
    wire::protocol::TCP,
};

use crate::nat_edge::{self, EDGE, FIRST_PORT, sent_on, table, tuple};

const VIP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 1), 80);
const BACKEND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 8080);
const PORTS: u16 = 1_000;
const FLOWS: u32 = 8_192;
const SECOND: u64 = 1_000_000_000;
const SEQUENCE: u32 = 0xffff_ffff;

#[test]
fn the_oldest_half_open_flows_give_their_ports_away_and_open_ones_none() {
    const OPEN: u32 = PORTS as u32 / 2;
    let edge = Edge::start();
    // Neighbouring ports have flows of different ages. Those that are half-open are all old enough.
    for flow in 0..PORTS {
        let rank = age_rank(flow.into());
        let (flags, idle) = if rank < OPEN {
            (NAT_OPEN, 100 * SECOND)
        } else {
            let since = u64::from(u32::from(PORTS) - rank) * 4_000_000;
            (NAT_ANSWERED, HANDSHAKE_NS + since)
        };
        let mark = NatMark::new(monotonic_ns().wrapping_sub(idle), flags);
        edge.seed(flow, mark);
    }

    const NEW: u32 = 100;
    for flow in 0..NEW {
        assert!(edge.syn(FLOWS + flow).is_some(), "flow {flow} finds a port");
    }

    let left: BTreeSet<u32> = edge.forward().iter().map(|(key, _)| flow_of(key)).collect();
    assert_eq!(left.len(), usize::from(PORTS));
    let before = 0..u32::from(PORTS);
    let gone = before.filter(|flow| !left.contains(flow)).map(age_rank);
    let gone: Vec<u32> = gone.collect();
    assert_eq!(gone.len(), NEW as usize);
    assert!(
        gone.iter().all(|rank| *rank >= OPEN),
        "open flows stay: {gone:?}"
    );
    // Of eight or more that are looked at, none is the oldest that is of the youngest quarter.
    assert!(gone.iter().all(|rank| *rank < 875), "{gone:?}");
    edge.assert_consistent(PORTS.into());
}

#[test]
fn handshake_is_proved_by_its_number_and_renewed_by_a_syn_alone() {
    let edge = Edge::start();
    let port = edge.syn(1).unwrap();
    assert_eq!(edge.flags(1), 0);
    let old = edge.age(1, SECOND);
    edge.reply(1, port, &Segment::syn_ack(SEQUENCE)).unwrap();
    assert_eq!(edge.flags(1), NAT_ANSWERED);
    assert_eq!(edge.mark(1).time(), old.time(), "an answer renews nothing");
    edge.request(1, &Segment::ack(SEQUENCE)).unwrap();
    assert_eq!(
        edge.mark(1),
        old.with(NAT_ANSWERED),
        "nor does another number"
    );
    edge.request(1, &Segment::syn()).unwrap();
    assert_eq!(edge.flags(1), NAT_ANSWERED);
    assert!(edge.mark(1).time() > old.time(), "a SYN does");
    edge.request(1, &Segment::ack(SEQUENCE.wrapping_add(1)))
        .unwrap();
    assert_eq!(edge.flags(1), NAT_OPEN);
    assert_eq!(
        edge.both(1).0,
        edge.both(1).1,
        "where ports are looked for, the same is known"
    );
}

#[test]
fn resets_and_answers_that_may_be_forged_leave_a_flow_open_until_another_one_is_proved() {
    let edge = Edge::start();
    let port = edge.syn(1).unwrap();
    edge.reply(1, port, &Segment::syn_ack(SEQUENCE)).unwrap();
    edge.request(1, &Segment::ack(SEQUENCE.wrapping_add(1)))
        .unwrap();
    let assert_flags = |flags| {
        assert_eq!(edge.flags(1), flags);
        assert_eq!(edge.both(1).1.flags(), flags, "where ports are looked for");
    };
    // Whoever sends a RST: the flow is open, and the backend's next segment shows that it lives.
    edge.request(1, &Segment::rst()).unwrap();
    assert_flags(NAT_OPEN | NAT_RESET);
    edge.reply(1, port, &Segment::ack(2)).unwrap();
    assert_flags(NAT_OPEN);
    edge.reply(1, port, &Segment::rst()).unwrap();
    edge.request(1, &Segment::ack(SEQUENCE)).unwrap();
    edge.request(1, &Segment::syn()).unwrap();
    assert_flags(NAT_OPEN | NAT_RESET);
    // The backend seems to accept another connection, with another number: its client proves that.
    let accepted = NAT_OPEN | NAT_RESET | NAT_ANSWERED;
    edge.reply(1, port, &Segment::syn_ack(7)).unwrap();
    assert_flags(accepted);
    edge.request(1, &Segment::ack(SEQUENCE.wrapping_add(1)))
        .unwrap();
    assert_flags(accepted);
    edge.request(1, &Segment::ack(8)).unwrap();
    assert_flags(NAT_OPEN);
    assert_eq!(edge.count().half_open, 0);
    // An old SYN+ACK of a connection that goes on changes nothing.
    edge.reply(1, port, &Segment::syn_ack(9)).unwrap();
    assert_flags(NAT_OPEN);
    // Nor does a closed connection live again before the next one is proved.
    edge.reply(1, port, &Segment::fin()).unwrap();
    edge.request(1, &Segment::fin()).unwrap();
    let closed = NAT_OPEN | NAT_FIN_CLIENT | NAT_FIN_BACKEND;
    assert_eq!(edge.flags(1), closed);
    edge.reply(1, port, &Segment::syn_ack(20)).unwrap();
    assert_flags(closed | NAT_ANSWERED);
    edge.request(1, &Segment::ack(8)).unwrap();
    assert_flags(closed | NAT_ANSWERED);
    edge.request(1, &Segment::ack(21)).unwrap();
    assert_flags(NAT_OPEN);
}

#[test]
fn flows_are_counted_by_service_and_corrected_by_the_sweep() {
    let mut edge = Edge::start();
    let count = |flows, half_open| NatCount { flows, half_open };
    assert_eq!(edge.room(), i64::from(FLOWS));
    for flow in 0..3 {
        edge.syn(flow).unwrap();
    }
    let ports = [0, 1].map(|flow| {
        let port = edge.port(flow);
        edge.reply(flow, port, &Segment::syn_ack(SEQUENCE)).unwrap();
        edge.request(flow, &Segment::ack(0)).unwrap();
        port
    });
    assert_ne!(ports[0], ports[1]);
    assert_eq!(edge.count(), count(3, 1));
    assert_eq!(edge.room(), i64::from(FLOWS) - 3);
    // Whatever was counted, what is there is what counts.
    edge.set_count(0, count(-5, 0));
    edge.set_count(edge.service, count(99, -99));
    edge.tables.sweep_nat(usize::MAX).unwrap();
    assert_eq!(edge.count(), count(3, 1));
    assert_eq!(edge.room(), i64::from(FLOWS) - 3);
    // What has its share takes ports from its own half-open flows alone. Seen in an hour, this one does not come of an age.
    edge.set_count(edge.service, count(4 * i64::from(FLOWS), 0));
    edge.age(2, (3600 * SECOND).wrapping_neg());
    assert_eq!(edge.syn(4), None);
    edge.age(2, SECOND);
    edge.tables.sweep_nat(usize::MAX).unwrap();
    assert!(edge.syn(4).is_some(), "the sweep has corrected the count");
}

#[test]
fn a_service_that_has_its_share_finds_what_gives_way_among_all_its_backends() {
    const BACKENDS: u16 = 500;
    const NEW: u32 = 1_000;
    let backend = |n: u16| {
        let [high, low] = n.to_be_bytes();
        SocketAddrV4::new(Ipv4Addr::new(10, 0, high, low), 8080)
    };
    let backends: Vec<SocketAddrV4> = (1..=BACKENDS).map(backend).collect();
    let edge = Edge::over(&backends);
    // Each backend has a few of them.
    let mut forged = 0;
    while edge.count().leaves_room(edge.room()) {
        assert!(
            edge.syn(forged).is_some(),
            "there is room for flow {forged}"
        );
        forged += 1;
    }
    assert_eq!(forged, FLOWS / 3 + 1);
    std::thread::sleep(Duration::from_nanos(HANDSHAKE_NS));
    let before = edge.count();
    for flow in 0..NEW {
        assert!(edge.syn(FLOWS + flow).is_some(), "flow {flow} is begun");
    }
    assert_eq!(edge.count(), before, "each takes the place of another one");
    edge.assert_consistent(forged as usize);
    let left: BTreeSet<u32> = edge.forward().iter().map(|(key, _)| flow_of(key)).collect();
    assert!(
        (0..NEW).all(|flow| !left.contains(&flow)),
        "the oldest ones have gone"
    );
}

/// What a segment says.
struct Segment {
    flags: fn(PacketBuilderStep<TcpHeader>) -> PacketBuilderStep<TcpHeader>,
    sequence: u32,
    acknowledgement: Option<u32>,
}

impl Segment {
    fn syn() -> Self {
        Self {
            flags: PacketBuilderStep::<TcpHeader>::syn,
            sequence: 1,
            acknowledgement: None,
        }
    }

    fn rst() -> Self {
        Self {
            flags: PacketBuilderStep::<TcpHeader>::rst,
            sequence: 2,
            ..Self::syn()
        }
    }

    fn fin() -> Self {
        Self {
            flags: PacketBuilderStep::<TcpHeader>::fin,
            ..Self::ack(2)
        }
    }

    fn ack(number: u32) -> Self {
        Self {
            flags: |step| step,
            sequence: 2,
            acknowledgement: Some(number),
        }
    }

    fn syn_ack(sequence: u32) -> Self {
        Self {
            sequence,
            acknowledgement: Some(2),
            ..Self::syn()
        }
    }
}

/// The loaded program, which balances one service with one backend.
struct Edge {
    loaded: Loaded,
    tables: Tables,
    service: u32,
}

impl Edge {
    fn start() -> Self {
        Self::over(&[BACKEND])
    }

    fn over(backends: &[SocketAddrV4]) -> Self {
        let loader = Loader::unpinned()
            .max_entries(map::LUT, 1 << 18)
            .max_entries(map::NAT_FORWARD, FLOWS)
            .max_entries(map::NAT_REVERSE, FLOWS);
        let (loaded, tables) = nat_edge::balance(loader, (VIP, Protocol::Tcp), backends, PORTS);
        let (_, service) = tables.services().next().unwrap();
        let service = service.id;
        Self {
            loaded,
            tables,
            service,
        }
    }

    /// Makes the entries of a flow that has the port of its number.
    fn seed(&self, flow: u16, mark: NatMark) {
        let key = tuple(client(flow.into()), VIP, TCP);
        let reply = tuple(BACKEND, SocketAddrV4::new(EDGE, FIRST_PORT + flow), TCP);
        let forward = NatForward::new(&key, &reply, 1, 0, mark);
        let reverse = NatReverse::new(&reply, &key, 1, NatLink::default(), mark);
        self.forward_table().insert(key, forward, 0).unwrap();
        self.table(map::NAT_REVERSE)
            .insert(reply, reverse, 0)
            .unwrap();
    }

    /// Sends a flow's SYN; returns the port that it gets.
    fn syn(&self, flow: u32) -> Option<u16> {
        self.request(flow, &Segment::syn())
    }

    fn request(&self, flow: u32, segment: &Segment) -> Option<u16> {
        let (source, _) = self.run(client(flow), VIP, segment)?;
        assert_eq!(*source.ip(), EDGE);
        Some(source.port())
    }

    fn reply(&self, flow: u32, port: u16, segment: &Segment) -> Option<()> {
        let (_, destination) = self.run(BACKEND, SocketAddrV4::new(EDGE, port), segment)?;
        assert_eq!(destination, client(flow));
        Some(())
    }

    /// Runs the program on a segment; returns its ends if it is sent on.
    fn run(
        &self,
        from: SocketAddrV4,
        to: SocketAddrV4,
        segment: &Segment,
    ) -> Option<(SocketAddrV4, SocketAddrV4)> {
        let step = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
            .ipv4(from.ip().octets(), to.ip().octets(), 64)
            .tcp(from.port(), to.port(), segment.sequence, 1000);
        let mut step = (segment.flags)(step);
        if let Some(number) = segment.acknowledgement {
            step = step.ack(number);
        }
        let mut input = Vec::with_capacity(64);
        step.write(&mut input, &[]).unwrap();
        sent_on(&self.loaded, &input).ok()
    }

    fn forward(&self) -> Vec<(Tuple, NatForward)> {
        self.forward_table().iter().map(Result::unwrap).collect()
    }

    fn forward_table(&self) -> HashMap<MapData, Tuple, NatForward> {
        self.table(map::NAT_FORWARD)
    }

    fn entries(&self, flow: u32) -> (Tuple, NatForward) {
        let mut all = self.forward().into_iter();
        all.find(|(key, _)| flow_of(key) == flow).unwrap()
    }

    fn mark(&self, flow: u32) -> NatMark {
        self.entries(flow).1.mark
    }

    fn flags(&self, flow: u32) -> u8 {
        self.mark(flow).flags()
    }

    fn port(&self, flow: u32) -> u16 {
        u16::from_be_bytes(self.entries(flow).1.port())
    }

    /// The marks of both entries.
    fn both(&self, flow: u32) -> (NatMark, NatMark) {
        let (key, entry) = self.entries(flow);
        (entry.mark, self.reverse_of(&key).1.mark)
    }

    fn reverse_of(&self, forward: &Tuple) -> (Tuple, NatReverse) {
        let table: HashMap<MapData, Tuple, NatReverse> = self.table(map::NAT_REVERSE);
        let mut all = table.iter().map(Result::unwrap);
        all.find(|(reply, entry)| entry.forward_key(reply.protocol()) == *forward)
            .unwrap()
    }

    /// Writes a forward entry, and its mark to the reverse one too.
    fn set(&self, key: &Tuple, entry: &NatForward) {
        let (reply, mut reverse) = self.reverse_of(key);
        self.forward_table().insert(*key, *entry, 0).unwrap();
        reverse.mark = entry.mark;
        let mut table: HashMap<MapData, Tuple, NatReverse> = self.table(map::NAT_REVERSE);
        table.insert(reply, reverse, 0).unwrap();
    }

    /// Makes a flow look as if it had been idle for so long; returns its mark then.
    fn age(&self, flow: u32, idle: u64) -> NatMark {
        let (key, mut entry) = self.entries(flow);
        let time = monotonic_ns().wrapping_sub(idle);
        entry.mark = NatMark::new(time, entry.mark.flags());
        self.set(&key, &entry);
        entry.mark
    }

    fn counts(&self) -> Array<MapData, NatCount> {
        Array::try_from(Map::Array(self.loaded.map(map::NAT_COUNTS).unwrap())).unwrap()
    }

    fn count(&self) -> NatCount {
        self.counts().get(&self.service, 0).unwrap()
    }

    fn room(&self) -> i64 {
        self.counts().get(&0, 0).unwrap().flows
    }

    fn set_count(&self, service: u32, count: NatCount) {
        self.counts().set(service, count, 0).unwrap();
    }

    fn assert_consistent(&self, flows: usize) {
        nat_edge::assert_consistent(&self.loaded, flows);
    }

    fn table<V: aya::Pod>(&self, name: &str) -> HashMap<MapData, Tuple, V> {
        table(&self.loaded, name)
    }
}

/// Of the flows that are seeded, how many are older than this one.
const fn age_rank(flow: u32) -> u32 {
    flow * 387 % PORTS as u32
}

const FIRST_CLIENT: u32 = u32::from_be_bytes([198, 18, 0, 0]);

/// Each flow has a client of its own.
fn client(flow: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(FIRST_CLIENT + flow), 40_000)
}

fn flow_of(key: &Tuple) -> u32 {
    let [.., a, b, c, d] = key.source().octets();
    u32::from_be_bytes([a, b, c, d]) - FIRST_CLIENT
}
