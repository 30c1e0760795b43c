//! Threads that hold AF_XDP sockets do with the rights for these alone, once maps, programs and devices are in place.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, thread, time::Duration};

use fastpath::{
    facts::{self, Capability},
    load::Loader,
    mend::{self, Limits, Mend, Outcome, PreparedPair, Queue},
    tables::Addresses,
    whole_edge::{EdgeOutcome, WholeEdge},
};
use lab::{Namespace, wait_until};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::failures::{DATAGRAMS, Edge, Machines, VIP};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `work` in a thread that has these rights alone, as have the threads that it starts.
fn with_rights_for_sockets<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let run = || {
        let kept = CapabilitySet::NET_RAW | CapabilitySet::IPC_LOCK;
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets).unwrap();
        assert_eq!(
            facts::process().missing(&Capability::REQUIRED),
            Capability::REQUIRED
        );
        work()
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

fn uplink(edge: &Namespace) -> Queue {
    let link = edge.link("up0").unwrap();
    Queue {
        interface: link.name().to_owned(),
        device: link.index(),
        queue: 0,
    }
}

#[test]
fn thread_that_mends_needs_no_other_rights() {
    let machines = Machines::new();
    // No program is at the other end of this one, so it takes no frames from XDP.
    let (port, far) = machines.links();
    let queues = BTreeSet::from([uplink(&machines.edge)]);
    machines.edge.run(|| {
        let mut edge = Edge::start(Loader::unpinned());
        edge.lead(port.index(), true);
        let pair = PreparedPair::prepare(&mut edge.loaded).unwrap();
        let mend = with_rights_for_sockets(|| {
            let mend = Mend::start(&edge.loaded, &pair, Limits::default()).unwrap();
            mend.follow(queues);
            mend
        });
        wait_until("the queues are open", TIMEOUT, || {
            let queues = mend.reader().queues();
            (queues.wanted, queues.open) == (2, 2)
        })
        .unwrap();
        let before = far.stats().unwrap().rx_packets;
        machines.send();
        wait_until("all are carried", TIMEOUT, || {
            mend.reader().counts().of(Outcome::Carried) == DATAGRAMS
                && far.stats().unwrap().rx_packets >= before + DATAGRAMS
        })
        .unwrap();
        drop(mend);
        assert!(mend::remove_pair().unwrap());
    });
}

#[test]
fn threads_of_a_whole_edge_need_no_other_rights() {
    let machines = Machines::new();
    let _links = machines.links();
    let queue = uplink(&machines.edge);
    machines.edge.run(|| {
        let mut edge = Edge::start(Loader::unpinned().whole_edge());
        let addresses = Addresses {
            vips: [IpAddr::V4(VIP)].into(),
            ..Addresses::default()
        };
        edge.tables.set_addresses(Arc::new(addresses)).unwrap();
        edge.lead(queue.device, false);
        let mut threads = WholeEdge::start(&edge.loaded, &mut edge.tables).unwrap();
        with_rights_for_sockets(|| threads.follow(&[queue].into()).unwrap());
        machines.send();
        wait_until("all are sent", TIMEOUT, || {
            threads.reader().of(EdgeOutcome::Sent) == DATAGRAMS
        })
        .unwrap();
        assert_eq!(edge.forwarded(), DATAGRAMS);
        drop(threads);
        assert!(mend::remove_pair().unwrap());
    });
}
