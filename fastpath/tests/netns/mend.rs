//! The way of mended frames back, devices by which finished frames leave, and kernels that have no sockets for it.

use std::{collections::BTreeSet, time::Duration};

use fastpath::{
    attach,
    load::{Loaded, Loader},
    mend::{self, Limits, MENDED_END, Mend, Outcome, PreparedPair, Queue},
    pins::Pins,
};
use lab::{Link, Namespace, Veth};
use xdp_prog::abi::map;

use crate::failures::{DATAGRAMS, Edge, Machines};

const TIMEOUT: Duration = Duration::from_secs(60);

fn start(loaded: &mut Loaded) -> Mend {
    let pair = PreparedPair::prepare(loaded).unwrap();
    Mend::start(loaded, &pair, Limits::default()).unwrap()
}

fn small(loader: Loader) -> Loader {
    loader
        .max_entries(map::LUT, 4096)
        .max_entries(map::BACKENDS, 64)
        .max_entries(map::BACKEND_TRAFFIC, 64)
}

/// A pin directory of this test's own, removed with everything in it.
struct TestPins(Pins);

impl Drop for TestPins {
    fn drop(&mut self) {
        let removed = self.0.remove_all();
        if !std::thread::panicking() {
            removed.unwrap();
        }
    }
}

#[test]
fn kernel_without_af_xdp_loads_everything_else() {
    let directory = format!("/sys/fs/bpf/guideway-test-{}-mend", std::process::id());
    let pins = TestPins(Pins::new(directory));
    let (near, far) = (
        Namespace::new("near").unwrap(),
        Namespace::new("far").unwrap(),
    );
    let (near_end, _far_end) = Veth::between((&near, "near0"), (&far, "far0"))
        .create()
        .unwrap();
    near.run(|| {
        // The second one adopts what the first one has pinned.
        for adopts in [false, true] {
            let loader = small(Loader::pinned(pins.0.clone())).without_af_xdp();
            let mut loaded = loader.load().unwrap();
            let options = attach::Options::default();
            let attachment = loaded.attach(near_end.name(), &options).unwrap();
            assert_eq!(attachment.replaced.is_some(), adopts);
        }
        pins.0.detach(near_end.name()).unwrap();
    });
}

#[test]
fn queues_are_followed_and_the_pair_stays_until_it_is_removed() {
    let (near, far) = (
        Namespace::new("near").unwrap(),
        Namespace::new("far").unwrap(),
    );
    let (near_end, _far_end) = Veth::between((&near, "near0"), (&far, "far0"))
        .queues(2)
        .create()
        .unwrap();
    let queues = |numbers: &[u32]| -> BTreeSet<Queue> {
        let queue = |queue: &u32| Queue {
            interface: near_end.name().to_owned(),
            device: near_end.index(),
            queue: *queue,
        };
        numbers.iter().map(queue).collect()
    };
    near.run(|| {
        assert!(!mend::remove_pair().unwrap());
        let mut loaded = small(Loader::unpinned()).load().unwrap();
        let mend = start(&mut loaded);
        let pair = near.link(MENDED_END).unwrap().index();
        let wait_for = |mend: &Mend, open: usize, problem: &str| {
            lab::wait_until("the queues are followed", TIMEOUT, || {
                let queues = mend.reader().queues();
                let mut problems = queues.problems.iter().map(ToString::to_string);
                let is_as_told = if problem.is_empty() {
                    queues.wanted == queues.open
                } else {
                    problems.any(|told| told.contains(problem))
                };
                // That of the pair is open too.
                queues.open == open + 1 && is_as_told
            })
            .unwrap();
        };
        mend.follow(queues(&[0, 1]));
        wait_for(&mend, 2, "");
        mend.follow(queues(&[0, 7]));
        wait_for(&mend, 1, "no queue 7");
        mend.follow(queues(&[1]));
        wait_for(&mend, 1, "");
        // The next one gets the queue and the pair.
        drop(mend);
        loaded.detach_mended();
        drop(loaded);
        let mut loaded = small(Loader::unpinned()).load().unwrap();
        let mend = start(&mut loaded);
        mend.follow(queues(&[0, 1]));
        wait_for(&mend, 2, "");
        assert_eq!(near.link(MENDED_END).unwrap().index(), pair);
        drop(mend);
        assert!(mend::remove_pair().unwrap());
        assert!(near.link(MENDED_END).is_err());
        assert!(!mend::remove_pair().unwrap());
    });
}

fn queue(link: &Link<'_>) -> Queue {
    Queue {
        interface: link.name().to_owned(),
        device: link.index(),
        queue: 0,
    }
}

/// An edge whose next hop is behind a device that takes no frames from XDP.
struct Carrying<'a> {
    machines: &'a Machines,
    edge: Edge,
    mend: Mend,
}

impl Carrying<'_> {
    fn of(&self, outcome: Outcome) -> u64 {
        self.mend.reader().counts().of(outcome)
    }

    fn held(&self) -> u64 {
        self.mend.reader().counts().held().0
    }

    /// Asserts that all datagrams leave by a device and arrive at its other end.
    fn assert_carried(&mut self, by: &Link<'_>, far: &Link<'_>) {
        self.edge.lead(by.index(), true);
        let (carried, before) = (self.of(Outcome::Carried), received(far));
        self.machines.send();
        lab::wait_until("all are carried", TIMEOUT, || {
            self.of(Outcome::Carried) == carried + DATAGRAMS && received(far) >= before + DATAGRAMS
        })
        .unwrap();
        self.assert_all_counted();
    }

    /// Asserts that no datagram leaves by a device, and that this is told.
    fn assert_not_carried(&mut self, by: u32, problem: &str) {
        self.edge.lead(by, true);
        let before = self.of(Outcome::NotCarried);
        self.machines.send();
        lab::wait_until("none is carried", TIMEOUT, || {
            let problems = self.mend.reader().queues().problems;
            self.of(Outcome::NotCarried) == before + DATAGRAMS
                && problems
                    .iter()
                    .any(|told| told.to_string().contains(problem))
        })
        .unwrap();
        self.assert_all_counted();
    }

    /// Asserts that each frame was counted as forwarded, and is somewhere.
    fn assert_all_counted(&self) {
        lab::wait_until("the ledger adds up", TIMEOUT, || {
            let lost: u64 = self
                .mend
                .reader()
                .counts()
                .losses()
                .map(|(_, lost)| lost)
                .sum();
            let taken = self.of(Outcome::Taken);
            let ended = Outcome::ALL.into_iter().skip(1);
            let ended: u64 = ended.map(|outcome| self.of(outcome)).sum();
            self.edge.tables.punted() == taken + lost && taken == ended + self.held()
        })
        .unwrap();
        assert_eq!(self.edge.forwarded(), self.edge.tables.punted());
    }
}

/// Frames that have arrived at a device.
fn received(link: &Link<'_>) -> u64 {
    link.stats().unwrap().rx_packets
}

#[test]
fn finished_frames_leave_by_devices_that_take_none_from_xdp() {
    let machines = Machines::new();
    let (port, far) = machines.links();
    // The other end of this one has no program either. Packets that come in by it are mended.
    let (other, other_far) = Veth::between((&machines.edge, "other0"), (&machines.node, "other0"))
        .create()
        .unwrap();
    let bridge = machines.edge.add_bridge("br0").unwrap();
    port.set_bridge(&bridge).unwrap();
    bridge.wait_until_ready().unwrap();
    let uplink = machines.edge.link("up0").unwrap();
    machines.edge.run(|| {
        let mut edge = Edge::start(Loader::unpinned());
        edge.loaded
            .attach(other.name(), &attach::Options::default())
            .unwrap();
        let mend = start(&mut edge.loaded);
        mend.follow([&uplink, &other].map(queue).into());
        lab::wait_until("the queues are open", TIMEOUT, || {
            let queues = mend.reader().queues();
            (queues.wanted, queues.open) == (3, 3)
        })
        .unwrap();
        let mut carrying = Carrying {
            machines: &machines,
            edge,
            mend,
        };
        carrying.assert_carried(&bridge, &far);
        // The socket of its queue sends.
        carrying.assert_carried(&other, &other_far);
        carrying.assert_carried(&bridge, &far);
        carrying.assert_not_carried(1 << 30, "no interface has the index 1073741824");
        // The socket of a device that goes away fails, and another device gets one of its own.
        let gone = bridge.index();
        machines
            .edge
            .command("ip")
            .args(["link", "delete", "br0"])
            .status()
            .unwrap();
        carrying.assert_not_carried(gone, "interface");
        let bridge = machines.edge.add_bridge("br1").unwrap();
        port.set_bridge(&bridge).unwrap();
        bridge.wait_until_ready().unwrap();
        carrying.assert_carried(&bridge, &far);
        assert_eq!(carrying.of(Outcome::CarryFull), 0);
        // Without the thread they are lost as before, and counted as forwarded all the same.
        let Carrying { mut edge, mend, .. } = carrying;
        drop(mend);
        let (forwarded, punted) = (edge.forwarded(), edge.tables.punted());
        edge.lead(bridge.index(), true);
        machines.send();
        lab::wait_until("all are forwarded", TIMEOUT, || {
            edge.forwarded() == forwarded + DATAGRAMS
        })
        .unwrap();
        assert_eq!(edge.tables.punted(), punted);
        assert!(mend::remove_pair().unwrap());
    });
}
