//! NAT mode under load from two CPUs at once: no port is given twice, none is lost, none comes back too early.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
    sync::Barrier,
    time::Duration,
};

use aya::maps::{HashMap, MapData};
use etherparse::PacketBuilder;
use fastpath::{
    clock::monotonic_ns,
    load::{Loaded, Loader},
    tables::{Protocol, Tables},
};
use lab::wait_for;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use xdp_prog::{
    abi::{NAT_ANSWERED, NAT_OPEN, NatForward, NatMark, NatReverse, Tuple, map},
    decide::nat::{GUARD_NS, QUIET_DATAGRAMS_NS, SPAN_OF_USE_NS},
    flow_state::IDLE_UDP_NS,
    wire::protocol::UDP,
};

use crate::nat_edge::{self, EDGE, sent_on, table, tuple};

const VIP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 1), 53);
const BACKEND_PORT: u16 = 5353;
const XDP_DROP: u32 = 1;
const SECOND: u64 = 1_000_000_000;
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn sixty_thousand_flows_share_no_port_and_get_their_replies() {
    const FLOWS: u32 = 60_000;
    /// Few enough that none of them is over before both CPUs have had all of them.
    const BATCH: u32 = 5_000;
    let edge = Edge::start(16, 8_000);
    let mut seen = [Vec::new(), Vec::new()];
    for first in (0..FLOWS).step_by(BATCH as usize) {
        // Every flow comes in on both CPUs, nearly at the same time.
        let of_batch = on_two_cpus(|_| {
            // While the other CPU makes a flow's entries its packets are dropped: for long, where the host has stopped it.
            let begin = |flow| wait_for("the flow begins", TIMEOUT, || edge.request(flow));
            let flows = first..first + BATCH;
            flows
                .map(|flow| begin(flow).unwrap())
                .collect::<Vec<Ends>>()
        });
        for (all, ends) in seen.iter_mut().zip(of_batch) {
            all.extend(ends);
        }
        // However long that took.
        edge.age(0);
    }
    assert_eq!(seen[0], seen[1], "both CPUs give a flow the same port");
    let distinct: BTreeSet<&Ends> = seen[0].iter().collect();
    assert_eq!(distinct.len(), FLOWS as usize);
    let backends: BTreeSet<Ipv4Addr> = seen[0].iter().map(|ends| *ends.backend.ip()).collect();
    assert_eq!(backends.len(), 16);
    edge.assert_consistent(FLOWS as usize);
    assert_eq!(edge.drops(), edge.dropped("table_changed"));

    on_two_cpus(|cpu| {
        for flow in (0..FLOWS).filter(|flow| flow % 2 == cpu) {
            let returned = edge.reply(&seen[0][flow as usize]).unwrap();
            assert_eq!(returned, (VIP, client(flow)));
        }
    });
}

#[test]
fn exhaustion_is_counted_and_ports_come_back_after_the_stated_time() {
    const PORTS: u16 = 1_000;
    const FLOWS: u32 = 5_000;
    let mut edge = Edge::start(1, PORTS);
    // A flow that nobody answers gives its port away after a while: so they are opened before that, as a rule.
    let begin = |edge: &Edge, flows: Range<u32>| {
        let mut served = Vec::new();
        for first in flows.clone().step_by(500) {
            let batch = first..flows.end.min(first + 500);
            let of_batch = on_two_cpus(|cpu| {
                let own = batch.clone().filter(|flow| flow % 2 == cpu);
                own.filter_map(|flow| Some((flow, edge.request(flow).ok()?)))
                    .collect::<Vec<_>>()
            });
            served.extend(of_batch.concat());
            edge.age(0);
        }
        served
    };
    let served = begin(&edge, 0..FLOWS);
    let refused = u64::from(FLOWS) - served.len() as u64;
    assert_eq!(edge.dropped("nat_ports_exhausted"), refused);
    assert_eq!(edge.drops(), refused);
    let served = edge.still(served);
    assert_eq!(served.len(), usize::from(PORTS), "every port is found");
    let distinct: BTreeSet<&Ends> = served.iter().map(|(_, ends)| ends).collect();
    assert_eq!(distinct.len(), served.len());

    // For so long they keep their ports from others.
    edge.age(QUIET_DATAGRAMS_NS / 2);
    assert_eq!(begin(&edge, FLOWS..FLOWS + 1_000), []);
    // Nobody may renew these flows any more, but their ports are still theirs, unless others want them.
    edge.age(IDLE_UDP_NS + GUARD_NS - 30 * SECOND);
    assert_eq!(edge.tables.sweep_nat(usize::MAX).unwrap(), 0);
    assert_eq!(edge.tables.nat_fill().used, usize::from(PORTS));

    // The sweep, new flows, and clients of old ones that come back, all at the same time.
    edge.age(IDLE_UDP_NS + GUARD_NS + SECOND);
    let Edge { loaded, tables } = &mut edge;
    let swept = Barrier::new(3);
    let served = std::thread::scope(|scope| {
        let cpus = [0, 1].map(|cpu| {
            let (loaded, swept) = (&*loaded, &swept);
            scope.spawn(move || {
                pin(cpu);
                swept.wait();
                // Every fifth flow had a port before.
                let flows = (0..FLOWS).filter(|flow| flow % 2 == cpu);
                let served = flows.filter_map(|flow| Some((flow, request(loaded, flow).ok()?)));
                served.collect::<Vec<_>>()
            })
        });
        swept.wait();
        for _ in 0..10 {
            tables.sweep_nat(usize::MAX).unwrap();
        }
        cpus.map(|cpu| cpu.join().unwrap()).concat()
    });
    edge.age(0);
    let served = edge.still(served);
    let distinct: BTreeSet<&Ends> = served.iter().map(|(_, ends)| ends).collect();
    assert_eq!(distinct.len(), served.len(), "no port is given twice");
    edge.tables.sweep_nat(usize::MAX).unwrap();
    edge.assert_consistent(served.len());
    // What is left over is found: nothing of the old flows is in the way.
    let more = edge.still(begin(&edge, FLOWS..2 * FLOWS));
    assert_eq!(served.len() + more.len(), usize::from(PORTS));
    edge.assert_consistent(usize::from(PORTS));
}

/// How a flow looks behind the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ends {
    edge: SocketAddrV4,
    backend: SocketAddrV4,
}

/// The loaded program, which balances one service.
struct Edge {
    loaded: Loaded,
    tables: Tables,
}

impl Edge {
    fn start(backends: u8, ports: u16) -> Self {
        let loader = Loader::unpinned()
            .max_entries(map::LUT, 1 << 16)
            .max_entries(map::BACKENDS, 64)
            .max_entries(map::BACKEND_TRAFFIC, 64);
        let backend = |n| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, n), BACKEND_PORT);
        let backends: Vec<SocketAddrV4> = (1..=backends).map(backend).collect();
        let service = (VIP, Protocol::Udp);
        let (loaded, tables) = nat_edge::balance(loader, service, &backends, ports);
        Self { loaded, tables }
    }

    fn request(&self, flow: u32) -> Result<Ends, u32> {
        request(&self.loaded, flow)
    }

    /// Sends a backend's datagram; returns the ends that it gets.
    fn reply(&self, ends: &Ends) -> Result<(SocketAddrV4, SocketAddrV4), u32> {
        run(&self.loaded, ends.backend, ends.edge)
    }

    fn assert_consistent(&self, flows: usize) {
        nat_edge::assert_consistent(&self.loaded, flows);
    }

    /// Leaves out flows that have given their ports to others.
    fn still(&self, served: Vec<(u32, Ends)>) -> Vec<(u32, Ends)> {
        let forward = table::<NatForward>(&self.loaded, map::NAT_FORWARD);
        let has_its_port = |(flow, ends): &(u32, Ends)| {
            let entry = forward.get(&request_key(*flow), 0);
            entry.is_ok_and(|entry| entry.port() == ends.edge.port().to_be_bytes())
        };
        served.into_iter().filter(has_its_port).collect()
    }

    /// Makes all flows look as if both ends had been at it for a while, and nothing had been seen for so long.
    fn age(&self, idle: u64) {
        let seen = monotonic_ns().wrapping_sub(idle);
        let began = NatReverse::began_at(seen.wrapping_sub(2 * SPAN_OF_USE_NS));
        let mark = NatMark::new(seen, NAT_OPEN | NAT_ANSWERED);
        let mut forward = table::<NatForward>(&self.loaded, map::NAT_FORWARD);
        for (key, mut entry) in all(&forward) {
            entry.mark = mark;
            forward.insert(key, entry, 0).unwrap();
        }
        let mut reverse = table::<NatReverse>(&self.loaded, map::NAT_REVERSE);
        for (key, mut entry) in all(&reverse) {
            entry.mark = mark;
            entry.began_with = began;
            reverse.insert(key, entry, 0).unwrap();
        }
    }

    fn dropped(&self, label: &str) -> u64 {
        let counters = self.tables.counters().unwrap();
        let mut reasons = counters.reasons.iter();
        reasons.find(|count| count.label == label).unwrap().packets
    }

    fn drops(&self) -> u64 {
        let counters = self.tables.counters().unwrap();
        let drops = counters.reasons.iter();
        let drops = drops.filter(|count| count.kind == xdp_prog::reason::ReasonKind::Drop);
        drops.map(|count| count.packets).sum()
    }
}

/// Sends a datagram of a flow; returns the ends that it gets, or the action where it is not sent on.
fn request(loaded: &Loaded, flow: u32) -> Result<Ends, u32> {
    let (edge, backend) = run(loaded, client(flow), VIP)?;
    assert_eq!((*edge.ip(), backend.port()), (EDGE, BACKEND_PORT));
    Ok(Ends { edge, backend })
}

/// Each flow has a client of its own.
fn client(flow: u32) -> SocketAddrV4 {
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + flow);
    SocketAddrV4::new(address, 40_000)
}

/// A flow's key in its forward entry.
fn request_key(flow: u32) -> Tuple {
    tuple(client(flow), VIP, UDP)
}

/// Runs the program on a datagram; returns its ends as it is sent on, or the action where it is not.
fn run(
    loaded: &Loaded,
    from: SocketAddrV4,
    to: SocketAddrV4,
) -> Result<(SocketAddrV4, SocketAddrV4), u32> {
    let mut input = Vec::with_capacity(64);
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8])
        .ipv4(from.ip().octets(), to.ip().octets(), 64)
        .udp(from.port(), to.port())
        .write(&mut input, &[0; 18])
        .unwrap();
    sent_on(loaded, &input).inspect_err(|action| assert_eq!(*action, XDP_DROP, "{from} -> {to}"))
}

/// Does the same on two CPUs at once; each is told which of the two it is.
fn on_two_cpus<T: Send>(work: impl Fn(u32) -> T + Sync) -> [T; 2] {
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|cpu| {
            let (work, together) = (&work, &together);
            scope.spawn(move || {
                pin(cpu);
                together.wait();
                work(cpu)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    })
}

/// Keeps the calling thread on the `nth` CPU of those that it may use.
fn pin(nth: u32) {
    let usable = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu));
    let cpu = cpus.nth(nth as usize).expect("the machine has two CPUs");
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).unwrap();
}

fn all<V: aya::Pod>(table: &HashMap<MapData, Tuple, V>) -> Vec<(Tuple, V)> {
    table.iter().map(Result::unwrap).collect()
}
