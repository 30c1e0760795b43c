//! Each receive queue of a whole edge has a thread of its own, on a CPU of its own.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use aya::maps::{Array, Map, MapData};
use etherparse::PacketBuilder;
use fastpath::{
    load::Loader,
    mend::{self, Queue},
    port::{
        Port,
        xsk::{Options, Xsk},
    },
    tables::Addresses,
    whole_edge::{EdgeOutcome, WholeEdge},
};
use lab::{Link, Veth, wait_until};
use rustix::thread::{CpuSet, sched_getaffinity};
use xdp_prog::abi::{Traffic, map};

use crate::failures::{CLIENT, Edge, Machines, PORT, VIP};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Frames to each queue. They fit into the rings on their way.
const FRAMES: [u64; 2] = [120, 70];

/// A datagram to the service, by a flow that each number has of its own.
fn datagram(from: &Link<'_>, to: &Link<'_>, number: u64) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(from.mac(), to.mac())
        .ipv4(CLIENT.octets(), VIP.octets(), 64)
        .udp(10_000 + u16::try_from(number).unwrap(), PORT);
    let mut frame = Vec::new();
    builder.write(&mut frame, b"a question").unwrap();
    frame
}

/// Sends frames by one queue; the other end gets them by its queue of this number.
fn send_by(port: &mut Port<Xsk>, frames: impl Iterator<Item = Vec<u8>>) {
    let mut buffers = Vec::new();
    for frame in frames {
        let mut buffer = port.allocate().unwrap();
        assert!(port.resize(&mut buffer, frame.len()));
        port.bytes_mut(&mut buffer).copy_from_slice(&frame);
        buffers.push(buffer);
    }
    wait_until("all frames have left", TIMEOUT, || {
        port.send(&mut buffers);
        port.turn().unwrap();
        buffers.is_empty() && port.in_transit() == 0
    })
    .unwrap();
}

/// Packets of services in each CPU's region of the counters, without those that have none.
fn forwarded_by_cpu(edge: &Edge) -> Vec<u64> {
    let map = Map::Array(edge.loaded.map(map::SERVICE_TRAFFIC).unwrap());
    let traffic: Array<MapData, Traffic> = map.try_into().unwrap();
    // There is one service.
    let packets = traffic.iter().map(|traffic| traffic.unwrap().packets);
    packets.filter(|packets| *packets > 0).collect()
}

fn usable_cpus() -> usize {
    let usable = sched_getaffinity(None).unwrap();
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu));
    cpus.count()
}

#[test]
fn each_thread_takes_the_frames_of_its_queue_alone_and_counts_on_its_own_cpu() {
    let machines = Machines::new();
    let ends = ((&machines.client, "eth0"), (&machines.edge, "up0"));
    let (port, uplink) = Veth::between(ends.0, ends.1).queues(2).create().unwrap();
    let queues = [0, 1].map(|queue| Queue {
        interface: uplink.name().to_owned(),
        device: uplink.index(),
        queue,
    });
    machines.edge.run(|| {
        let mut edge = Edge::start(Loader::unpinned().whole_edge());
        let addresses = Addresses {
            vips: [IpAddr::V4(VIP)].into(),
            ..Addresses::default()
        };
        edge.tables.set_addresses(Arc::new(addresses)).unwrap();
        edge.lead(uplink.index(), false);
        let mut threads = WholeEdge::start(&edge.loaded, &mut edge.tables).unwrap();
        threads.follow(&BTreeSet::from(queues.clone())).unwrap();

        machines.client.run(|| {
            for (queue, frames) in (0..).zip(FRAMES) {
                let mut sender = Port::open(port.name(), queue, &Options::default()).unwrap();
                // The same flows by both queues.
                send_by(
                    &mut sender,
                    (0..frames).map(|n| datagram(&port, &uplink, n)),
                );
            }
        });
        let all: u64 = FRAMES.iter().sum();
        wait_until("all are sent", TIMEOUT, || {
            threads.reader().of(EdgeOutcome::Sent) == all
        })
        .unwrap();
        for outcome in [EdgeOutcome::Taken, EdgeOutcome::Sent] {
            let of_thread = |queue| threads.counts(queue).unwrap().of(outcome);
            assert_eq!(queues.each_ref().map(of_thread), FRAMES, "{outcome:?}");
        }
        assert_eq!(threads.reader().lost(), 0);

        let mut by_cpu = forwarded_by_cpu(&edge);
        by_cpu.sort_unstable_by_key(|packets| std::cmp::Reverse(*packets));
        let expected = match usable_cpus() {
            1 => vec![all],
            _ => FRAMES.to_vec(),
        };
        assert_eq!(by_cpu, expected);
        drop(threads);
        assert!(mend::remove_pair().unwrap());
    });
}
