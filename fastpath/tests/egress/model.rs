//! The first engine: the library's functions over plain maps.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, hash_map::Entry},
};

use xdp_prog::{
    abi::{
        AddressKey, Config, Datagram, IndexEntry, LocalFlow, PodFlow, Probe, Service, ServiceKeyV4,
        ServiceKeyV6, Tuple,
    },
    egress::{Memory, Next, host::HostSkb, process},
    reason::REASON_COUNT,
    world::{Clock, Counters, FlowTable, Flows, Fragments, Inserted, Relay},
};

use super::cases::{Case, Outcome, Remembered, Tables};

/// Time as the model reads it, beyond the age of every entry.
const NOW: u64 = 1 << 50;

/// Takes a case's frames through the host functions.
pub(crate) fn run(case: &Case) -> Outcome {
    let world = World::new(&case.tables);
    for frame in &case.earlier {
        let _ = process(&mut HostSkb::new(frame), &world);
    }
    world.reasons.replace(vec![0; REASON_COUNT]);
    let mut skb = HostSkb::new(&case.input).marked(case.mark);
    let goes_on = (0..case.devices).all(|_| process(&mut skb, &world) == Ok(Next::Out));
    Outcome {
        goes_on,
        bytes: skb.bytes().to_vec(),
        reasons: world.reasons.take(),
        remembered: Remembered {
            answered: state(&world.flows[0].borrow()),
            embryonic: state(&world.flows[1].borrow()),
            datagrams: super::cases::ports_of(&world.datagrams.borrow()),
            local: super::cases::lifetimes(&world.local.borrow(), NOW),
            peers: world.peers.take(),
        },
    }
}

fn state(flows: &HashMap<Tuple, PodFlow>) -> HashMap<Tuple, PodFlow> {
    super::cases::timeless(flows)
}

struct World<'c> {
    tables: &'c Tables,
    flows: [RefCell<HashMap<Tuple, PodFlow>>; 2],
    datagrams: RefCell<HashMap<Tuple, Datagram>>,
    local: RefCell<HashMap<Tuple, LocalFlow>>,
    peers: RefCell<HashMap<Tuple, AddressKey>>,
    reasons: RefCell<Vec<u64>>,
    now: Cell<u64>,
}

impl<'c> World<'c> {
    fn new(tables: &'c Tables) -> Self {
        Self {
            tables,
            flows: [
                RefCell::new(tables.flows_at(FlowTable::Established, NOW)),
                RefCell::new(tables.flows_at(FlowTable::Embryonic, NOW)),
            ],
            datagrams: RefCell::new(tables.datagrams_at(NOW)),
            local: RefCell::default(),
            peers: RefCell::default(),
            reasons: RefCell::new(vec![0; REASON_COUNT]),
            now: Cell::new(NOW),
        }
    }
}

impl Relay for World<'_> {
    fn relay(&self, words: [u64; 4]) -> Option<[u64; 4]> {
        Some(words)
    }

    fn relayed(&self) -> Option<[u64; 4]> {
        None
    }
}

impl Memory for World<'_> {
    fn config(&self) -> Option<&Config> {
        Some(&self.tables.set.config)
    }

    fn service_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry> {
        self.tables.set.entry_v4(key)
    }

    fn service_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry> {
        self.tables.set.entry_v6(key)
    }

    fn service(&self, id: u32) -> Option<Service> {
        self.tables.set.service.get(id as usize).copied()
    }

    fn is_egress_port(&self, port: u16) -> bool {
        self.tables.egress_ports.contains(&port)
    }

    fn probe(&self, index: u32) -> Option<&Probe> {
        self.tables.probes.get(index as usize)
    }

    fn remember_probe(&self, answer: &Tuple, peer: &AddressKey) {
        self.peers.borrow_mut().insert(*answer, *peer);
    }

    fn renew_local(&self, flow: &Tuple, renew: impl Fn(LocalFlow) -> LocalFlow) {
        let mut flows = self.local.borrow_mut();
        let known = flows.get(flow).copied().unwrap_or_default();
        let renewed = renew(known);
        if renewed != LocalFlow::default() {
            flows.insert(*flow, renewed);
        }
    }
}

impl Clock for World<'_> {
    fn now(&self) -> u64 {
        self.now.get()
    }
}

impl Fragments for World<'_> {
    fn datagram(&self, key: &Tuple) -> Option<Datagram> {
        self.datagrams.borrow().get(key).copied()
    }

    fn publish(&self, key: &Tuple, datagram: &Datagram) {
        self.datagrams.borrow_mut().insert(*key, *datagram);
    }
}

impl Flows for World<'_> {
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R> {
        let mut flows = self.flows[table as usize].borrow_mut();
        let known = flows.get_mut(key);
        known.filter(|known| known.is_for(key)).map(f)
    }

    fn insert_flow(&self, table: FlowTable, key: &Tuple, flow: &PodFlow) -> Inserted {
        match self.flows[table as usize].borrow_mut().entry(*key) {
            Entry::Occupied(_) => Inserted::Exists,
            Entry::Vacant(place) => {
                place.insert(*flow);
                Inserted::Done
            }
        }
    }

    fn remove_flow(&self, table: FlowTable, key: &Tuple) {
        self.flows[table as usize].borrow_mut().remove(key);
    }
}

impl Counters for World<'_> {
    fn count_reason(&self, index: u32) {
        self.reasons.borrow_mut()[index as usize] += 1;
    }

    fn count_forward(&self, _: u32, _: u32, _: u64) {
        unreachable!("what leaves has been counted as it came");
    }
}
