//! Connections, and flows of datagrams, stay at their pods through single changes, and connections through two changes at
//! once: of pods, of the length of tables, of edges and of agents. All of it in one network, which is as at first after
//! each of them.
//!
//! `GUIDEWAY_CHANGES_SECONDS` takes all pairs, again and again for so long, and holds more connections.
//! `GUIDEWAY_CHANGES_SEED`, which is printed, repeats a choice of pairs.

mod change;
mod world;

use std::{
    collections::{BTreeSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    mem,
    time::{Duration, Instant},
};

use lab::{Machine, Topology};

use crate::support::{Flow, Numbered, Protocol, Service, TIMEOUT, Traffic, number};

use self::{
    change::{Change, Pods},
    world::{World, topology},
};

/// Held connections to each service, by default and where somebody has said how long it may take.
const HELD: [usize; 2] = [100, 500];
/// Connections to each service that are opened before a change, during it, and after it.
const OPENED: usize = 24;
/// Flows of datagrams to each service that are opened before a change, and after it.
const DATAGRAMS: usize = 8;
/// Flows to each service that are asked all the time.
const BUSY: usize = 1;
/// How long these are idle, about.
const IDLE: Duration = Duration::from_millis(10);
const ROUNDS: u64 = 5;
/// Pairs that are chosen by default.
const PAIRS: usize = 4;
const SEED: u64 = 19;
/// When a port may be used again: for a minute after its end, a node takes what comes from there for a part of the earlier
/// connection.
const END: Duration = Duration::from_secs(90);
/// Datagrams with numbers before an agent is killed, while it is away and after it has come back, at the least.
const NUMBERS: u64 = 1000;

#[test]
fn flows_live_through_single_changes_and_pairs_of_them() {
    let duration = number("GUIDEWAY_CHANGES_SECONDS").map(Duration::from_secs);
    let first = number("GUIDEWAY_CHANGES_SEED").unwrap_or(SEED);
    let [few, many] = HELD;
    let (held, pairs) = match duration {
        None => (few, PAIRS),
        Some(_) => (many, usize::MAX),
    };
    let began = Instant::now();
    for seed in first.. {
        println!("GUIDEWAY_CHANGES_SEED={seed}");
        let net = topology();
        let mut trial = Trial::start(&net, held);
        // An edge is added on the way back from its loss.
        let singles = Change::ALL.into_iter();
        for change in singles.filter(|change| *change != Change::EdgeAdded) {
            trial.live_through(&[change]);
        }
        for pair in shuffled(seed).into_iter().take(pairs) {
            trial.live_through(&pair);
        }
        trial.end();
        if duration.is_none_or(|duration| began.elapsed() >= duration) {
            break;
        }
    }
}

/// All pairs in an order by a seed, which also decides about the order of the two.
fn shuffled(seed: u64) -> Vec<[Change; 2]> {
    let hash = |pair: &[Change; 2]| {
        let mut hasher = DefaultHasher::new();
        (seed, pair).hash(&mut hasher);
        hasher.finish()
    };
    let mut pairs: Vec<[Change; 2]> = Change::pairs().collect();
    for pair in &mut pairs {
        if hash(pair).is_multiple_of(2) {
            pair.reverse();
        }
    }
    pairs.sort_by_cached_key(hash);
    pairs
}

/// The network with the flows that are held.
struct Trial<'net> {
    world: World<'net>,
    client: &'net Machine,
    /// Asked all the time.
    busy: Vec<Flow>,
    /// From the first change to the last one. A third is asked after each change, a third seldom, and a third at the end.
    held: Vec<Flow>,
    /// Opened before, during and after a change.
    opened: [Vec<Flow>; 3],
    /// Earlier ones: when they were closed, their services and their ports.
    closed: VecDeque<(Instant, Vec<(Service, u16)>)>,
    /// Changes, and pairs of them, so far.
    number: usize,
}

impl<'net> Trial<'net> {
    fn start(net: &'net Topology, held: usize) -> Self {
        let world = World::start(net);
        let client = &net.clients()[0];
        let services = world.services(Protocol::Tcp);
        let open = |each| Flow::open_many_within(client, &services, each, TIMEOUT);
        Self {
            busy: open(BUSY),
            held: open(held),
            opened: Default::default(),
            closed: VecDeque::new(),
            client,
            world,
            number: 0,
        }
    }

    /// Makes changes at once, and then everything as it was. All flows stay where they are.
    fn live_through(&mut self, changes: &[Change]) {
        println!("{changes:?}");
        let when = &format!("through {changes:?}");
        self.world.prepare(changes);
        self.open(0, when);
        let mut datagrams = self.datagrams(changes, DATAGRAMS);
        let mut used = mem::take(&mut self.busy);
        if !changes.contains(&Change::EdgeLost) {
            used.extend(self.datagrams(changes, BUSY));
        }
        let traffic = Traffic::with_pauses(used, IDLE);
        traffic.wait_for_rounds(ROUNDS);

        let pods = self.world.pods().clone();
        if pods == Pods::default() {
            // Those that drained or were replaced take new ones again.
            let open = pods.open(self.world.net());
            assert_eq!(Flow::nodes(&self.opened[0]), open, "before {changes:?}");
        }
        let is_seen_apart = match changes {
            [one, other] => one.is_of_file() && other.is_of_file(),
            _ => false,
        };
        if is_seen_apart {
            self.world.change_for_one_edge(changes[0]);
            self.open(1, when);
        }
        let of_file = matches!(changes, [change] if change.is_of_file());
        if of_file {
            self.change_pods(changes[0], &traffic, &mut datagrams, when);
        } else {
            self.change(changes, &traffic);
        }
        traffic.wait_for_rounds(ROUNDS);
        let [before, between, _] = &mut self.opened;
        let opened = before.iter_mut().chain(between).chain(&mut datagrams);
        Flow::all_stay(opened, when);
        self.open(2, when);
        datagrams.extend(self.datagrams(changes, DATAGRAMS));
        self.new_ones_are_where_they_belong(&pods, &datagrams, when);
        self.some_held_stay(when);

        self.world.go_back();
        let when = &format!("{when} and back");
        traffic.wait_for_rounds(ROUNDS);
        let used = traffic.stop_unharmed();
        let is_connection = |flow: &Flow| flow.service.protocol == Protocol::Tcp;
        self.busy = used.into_iter().filter(is_connection).collect();
        let opened = self.opened.iter_mut().flatten().chain(&mut datagrams);
        Flow::all_stay(opened, when);
        if is_seen_apart {
            self.world.wait_until_agreed();
        }
        self.number += 1;
    }

    /// Makes changes that are not of the file alone. Of datagrams with numbers, none is lost where agents are killed.
    fn change(&mut self, changes: &[Change], traffic: &Traffic) {
        let numbered = match changes {
            [change] if change.kills() => {
                // So many that both edges have some.
                let services = self.world.services(Protocol::Udp).repeat(2);
                Some(Numbered::over(self.client, &services))
            }
            _ => None,
        };
        let pass = || {
            if let Some(numbered) = &numbered {
                numbered.wait_for_more(NUMBERS);
            }
        };
        pass();
        self.world.change(changes, || {
            traffic.wait_for_rounds(ROUNDS);
            pass();
        });
        pass();
        numbered.map(Numbered::stop_complete);
    }

    /// Makes a change of pods, or of the length of tables. What is at a past owner is looked for once.
    fn change_pods(
        &mut self,
        change: Change,
        traffic: &Traffic,
        datagrams: &mut [Flow],
        when: &str,
    ) {
        let before = self.world.counted();
        self.world.change(&[change], || {});
        traffic.wait_for_rounds(ROUNDS);
        let opened = &mut self.opened[0];
        Flow::all_stay(opened.iter_mut().chain(&mut *datagrams), when);
        let open = self.world.pods().open(self.world.net());
        let is_moved = |flow: &&Flow| !open.contains(flow.node.as_str());
        let moved = opened.iter().filter(is_moved).count() as u64;
        let after = self.world.counted();
        assert!(after.returned - before.returned >= moved.max(1), "{when}");
        assert!(after.retried - before.retried >= moved.max(1), "{when}");
        let again = format!("{when}, pinned");
        Flow::all_stay(opened.iter_mut().chain(datagrams), &again);
        assert_eq!(self.world.counted(), after, "{again}");
    }

    /// Closes connections and opens others, from ports that were used long ago if there are any.
    fn open(&mut self, which: usize, when: &str) {
        let client = self.client;
        let closed = mem::take(&mut self.opened[which]);
        let ports = closed.iter();
        let ports = ports.map(|flow| (flow.service, flow.client.port()));
        let ports: Vec<(Service, u16)> = ports.collect();
        drop(closed);
        if !ports.is_empty() {
            self.closed.push_back((Instant::now(), ports));
        }
        let used = self
            .closed
            .pop_front_if(|(closed, _)| closed.elapsed() >= END);
        self.opened[which] = match used {
            None => {
                let services = self.world.services(Protocol::Tcp);
                Flow::open_many_within(client, &services, OPENED, TIMEOUT)
            }
            Some((_, ports)) => {
                let open = |(service, port): (Service, u16)| {
                    let flow = Flow::open_from(client, &service, port, TIMEOUT);
                    flow.unwrap_or_else(|error| {
                        panic!("port {port} again to {service} {when}: {error}")
                    })
                };
                ports.into_iter().map(open).collect()
            }
        };
    }

    /// Opens flows of datagrams. There are none during two changes: more past owners follow each other then than are tried.
    fn datagrams(&self, changes: &[Change], each: usize) -> Vec<Flow> {
        let services: Vec<Service> = match changes {
            [_] => self.world.services(Protocol::Udp),
            _ => Vec::new(),
        };
        Flow::open_many_within(self.client, &services, each, TIMEOUT)
    }

    /// New connections are at pods that take some. A pod that did not take any before has some now, and one that has become
    /// heavier has more. `before` is what was before.
    fn new_ones_are_where_they_belong(&self, before: &Pods, datagrams: &[Flow], when: &str) {
        let net = self.world.net();
        let [old, _, new] = &self.opened;
        let (was_open, pods) = (before.open(net), self.world.pods());
        let open = pods.open(net);
        let reached = Flow::nodes(new);
        assert!(reached.is_subset(&open), "{when}: {reached:?} of {open:?}");
        let added: BTreeSet<&str> = open.difference(&was_open).copied().collect();
        assert!(
            reached.is_superset(&added),
            "{when}: {reached:?}, {added:?}"
        );
        let (_, new_datagrams) = datagrams.split_at(datagrams.len() / 2);
        let reached = Flow::nodes(new_datagrams);
        assert!(reached.is_subset(&open), "{when}: {reached:?} of {open:?}");
        if let Some(heavier) = pods.heavier(net) {
            let at = |flows: &[Flow]| {
                flows
                    .iter()
                    .filter(|flow| flow.node == heavier.label())
                    .count()
            };
            assert!(at(new) > at(old), "{when}");
        }
    }

    /// Asks a part of the connections that are held.
    fn some_held_stay(&mut self, when: &str) {
        const SELDOM: usize = 4;
        let is_now = |index: usize| match index % 3 {
            0 => true,
            1 => self.number.is_multiple_of(SELDOM),
            _ => false,
        };
        let held = self.held.iter_mut().enumerate();
        let some = held.filter(|(index, _)| is_now(*index));
        Flow::all_stay(some.map(|(_, flow)| flow), when);
    }

    fn end(mut self) {
        Flow::all_stay(&mut self.held, "at the end");
        self.world.assert_whole();
    }
}
