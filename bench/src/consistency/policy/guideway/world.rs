//! The memory of all machines: the tables of each edge, and what the nodes remember.
//!
//! One network stands for all machines, of which one has a frame at a time. Backends have the same ids everywhere, and a
//! flow's key has its pod, so that one table of flows is that of all nodes.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, hash_map::Entry},
};

use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_VIP, AddressKey, BACKEND_POD, Backend, CONFIG_NODE, Client,
        ClientBackend, Config, EdgeMac, FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_RESET, IndexEntry,
        LocalFlow, NextHop, Past, PastOwner, Pin, Pod, PodFlow, PodKey, Probe, Service,
        ServiceKeyV4, ServiceKeyV6, Slot, Tuple, age,
    },
    egress::Memory,
    flow_state::{IDLE_TCP_NS, IDLE_TRANSITORY_NS},
    wire::protocol,
    world::{
        BetweenStages, Clients, Clock, Counters, FlowTable, Flows, InUserSpace, Inserted, PinTable,
        Pins, Sockets, Tables, World,
    },
};

use super::edge::{Edge, PLACES, service};
use crate::consistency::{
    Policy, Scenario,
    addresses::{self, BackendId, HASH_SEED, POD_PORT, PORT, VIP, edge_of, node_of},
    backends::{Table, log2_slots},
};

/// Id of the only service.
const SERVICE: u32 = 1;
/// Id of the next hop to all nodes.
const NEXT_HOP: u32 = 1;

/// The machine that has the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Edge(usize),
    Node(u32),
}

/// What a machine has counted for a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// The backend that it was forwarded or delivered to.
    pub(super) backend: Option<BackendId>,
    /// The last reason.
    pub(super) reason: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) now: Cell<u64>,
    pub(super) edges: Vec<Edge>,
    /// The backends of which the pods run.
    pub(super) is_alive: Vec<bool>,
    at: Cell<At>,
    counted: Cell<Counted>,
    between_stages: BetweenStages,
    flows: RefCell<[HashMap<Tuple, PodFlow>; 2]>,
    keeps_pins: bool,
    pub(super) has_returns: bool,
    /// The service as nodes have it.
    service: Service,
    node: Config,
    hop: NextHop,
    at_edges: Vec<Backend>,
    at_nodes: Vec<Backend>,
}

impl Network {
    pub(super) fn new(scenario: &Scenario, ids: usize, policy: Policy) -> Self {
        let slots = 1 << log2_slots(scenario.most_backends());
        let backends = |is_own| -> Vec<Backend> {
            let ids = 0..u32::try_from(ids).unwrap_or_default();
            ids.map(|id| addresses::backend(id, is_own)).collect()
        };
        let has_returns = policy != Policy::WithoutReturns;
        let mut at_edges = backends(false);
        if !has_returns {
            // An edge expects returns from pods' nodes alone.
            for backend in &mut at_edges {
                backend.flags &= !BACKEND_POD;
            }
        }
        Self {
            now: Cell::new(0),
            edges: (0..scenario.edges)
                .map(|edge| Edge::new(edge, slots))
                .collect(),
            is_alive: vec![false; ids],
            at: Cell::new(At::Edge(0)),
            counted: Cell::default(),
            between_stages: BetweenStages::default(),
            flows: RefCell::default(),
            keeps_pins: policy != Policy::WithoutPins,
            has_returns,
            service: service(&Table::empty()),
            node: Config {
                hash_seed: HASH_SEED,
                flags: CONFIG_NODE,
                ..Config::default()
            },
            hop: NextHop {
                ifindex: super::DEVICE,
                mtu: 1500,
                macs: [2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 1],
                ..NextHop::default()
            },
            at_edges,
            at_nodes: backends(true),
        }
    }

    /// Gives a machine a frame.
    pub(super) fn enter(&self, at: At) {
        self.at.set(at);
        self.counted.take();
    }

    /// Returns what was counted for the frame.
    pub(super) fn counted(&self) -> Counted {
        self.counted.get()
    }

    /// Takes out of the nodes' tables what nobody would find there any more.
    pub(super) fn forget_old_flows(&self) {
        const ENDED: u8 = FLOW_FIN_CLIENT | FLOW_FIN_POD;
        let now = self.now.get();
        for flows in self.flows.borrow_mut().iter_mut() {
            flows.retain(|_, flow| {
                let state = flow.state();
                let has_ended = state & FLOW_RESET != 0 || state & ENDED == ENDED;
                let limit = if has_ended {
                    2 * IDLE_TRANSITORY_NS
                } else {
                    IDLE_TCP_NS
                };
                age(flow.seen, now) < limit
            });
        }
    }

    fn edge(&self) -> Option<&Edge> {
        match self.at.get() {
            At::Edge(edge) => self.edges.get(edge),
            At::Node(_) => None,
        }
    }

    /// Returns the service as this machine has it.
    fn own_service(&self) -> &Service {
        self.edge().map_or(&self.service, |edge| &edge.service)
    }

    /// Returns the slot with this index in `LUT`.
    fn place(&self, index: u32) -> u32 {
        index.wrapping_sub(self.own_service().word.base())
    }
}

impl World for Network {}

impl Tables for Network {
    fn config(&self) -> Option<&Config> {
        Some(self.edge().map_or(&self.node, |edge| &edge.config))
    }

    fn address_flags(&self, address: &AddressKey) -> u32 {
        let address = address.last_octets();
        let is_own = match self.at.get() {
            At::Edge(edge) => edge_of(address).is_some_and(|own| own as usize == edge),
            At::Node(node) => node_of(address) == Some(node),
        };
        match address {
            VIP => ADDRESS_VIP,
            _ if is_own => ADDRESS_LOCAL,
            _ => 0,
        }
    }

    fn is_trusted_edge(&self, source: &AddressKey) -> bool {
        let edge = edge_of(source.last_octets());
        edge.is_some_and(|edge| (edge as usize) < self.edges.len())
    }

    fn is_edge_mac(&self, _: &EdgeMac) -> bool {
        false
    }

    fn is_in_source_range(&self, _: u32, _: &AddressKey) -> bool {
        true
    }

    fn is_local_flow(&self, _: &Tuple) -> bool {
        false
    }

    fn pod(&self, key: &PodKey) -> Option<Pod> {
        let At::Node(node) = self.at.get() else {
            return None;
        };
        let (_, tag) = key.parts();
        let id = addresses::tagged(node, tag)?;
        self.is_alive[id as usize].then(|| Pod::new(*key, id))
    }

    fn service_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry> {
        let own = ServiceKeyV4::new(VIP, PORT, protocol::TCP);
        (*key == own).then(|| IndexEntry::new(SERVICE, self.own_service()))
    }

    fn service_v6(&self, _: &ServiceKeyV6) -> Option<IndexEntry> {
        None
    }

    fn service(&self, id: u32) -> Option<Service> {
        (id == SERVICE).then_some(*self.own_service())
    }

    fn slot(&self, index: u32) -> Option<Slot> {
        let edge = self.edge()?;
        let slot = self.place(index);
        let length = edge.lengths.get(slot as usize)?;
        Some(Slot::new(edge.owner(slot), *length != 0))
    }

    fn past(&self, index: u32) -> Past {
        let slot = self.place(index);
        let Some(edge) = self.edge() else {
            return Past::default();
        };
        let Some(length) = edge.lengths.get(slot as usize) else {
            return Past::default();
        };
        let past = Past::new(slot * PLACES, u32::from(*length));
        if edge.is_pinned[slot as usize].get() {
            past.pinned()
        } else {
            past
        }
    }

    fn past_owner(&self, index: u32) -> PastOwner {
        let owner = self
            .edge()
            .and_then(|edge| edge.history.get(index as usize));
        owner.copied().unwrap_or_default()
    }

    fn backend(&self, id: u32) -> Option<&Backend> {
        match self.at.get() {
            At::Edge(_) => self.at_edges.get(id as usize),
            At::Node(_) => self.at_nodes.get(id as usize),
        }
    }

    fn next_hop(&self, id: u32) -> Option<&NextHop> {
        (id == NEXT_HOP).then_some(&self.hop)
    }

    fn fib_next_hop(&self, _: &Backend) -> Option<&NextHop> {
        None
    }

    fn fib_route(&self, _: &AddressKey) -> Option<&NextHop> {
        None
    }

    fn fib_device(&self, _: &AddressKey) -> Option<u32> {
        None
    }
}

/// Nodes know connections by their tables of flows alone.
impl Sockets for Network {}

/// Services have no affinity here.
impl Clients for Network {
    fn client(&self, _: &Client) -> ClientBackend {
        ClientBackend::default()
    }

    fn set_client(&self, _: &Client, _: ClientBackend) {}
}

/// Each access counts as a look-up.
impl Pins for Network {
    fn pin(&self, table: PinTable, flow: &Tuple) -> Option<Pin> {
        let edge = self.edge()?;
        edge.note_look_up();
        edge.pins.borrow()[table as usize].get(flow).copied()
    }

    fn set_pin(&self, table: PinTable, flow: &Tuple, pin: Pin) {
        if let Some(edge) = self.edge().filter(|_| self.keeps_pins) {
            edge.note_look_up();
            edge.pins.borrow_mut()[table as usize].insert(*flow, pin);
        }
    }

    fn remove_pin(&self, table: PinTable, flow: &Tuple) {
        if let Some(edge) = self.edge().filter(|_| self.keeps_pins) {
            edge.note_look_up();
            edge.pins.borrow_mut()[table as usize].remove(flow);
        }
    }

    fn mark_pinned(&self, slot: u32) {
        let place = self.place(slot) as usize;
        if let Some(edge) = self.edge().filter(|_| self.keeps_pins)
            && let Some(is_pinned) = edge.is_pinned.get(place)
        {
            is_pinned.set(true);
        }
    }

    fn returns_full_at(&self) -> u64 {
        self.edge().map_or(0, |edge| edge.returns_full_at.get())
    }

    fn set_returns_full_at(&self, time: u64) {
        if let Some(edge) = self.edge() {
            edge.returns_full_at.set(time);
        }
    }
}

impl Clock for Network {
    fn now(&self) -> u64 {
        self.now.get()
    }
}

impl Flows for Network {
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R> {
        self.flows.borrow_mut()[table as usize].get_mut(key).map(f)
    }

    fn insert_flow(&self, table: FlowTable, key: &Tuple, flow: &PodFlow) -> Inserted {
        match self.flows.borrow_mut()[table as usize].entry(*key) {
            Entry::Occupied(_) => Inserted::Exists,
            Entry::Vacant(place) => {
                place.insert(*flow);
                Inserted::Done
            }
        }
    }

    fn remove_flow(&self, table: FlowTable, key: &Tuple) {
        self.flows.borrow_mut()[table as usize].remove(key);
    }
}

impl Counters for Network {
    fn count_reason(&self, index: u32) {
        let reason = Some(index);
        let counted = self.counted.get();
        self.counted.set(Counted { reason, ..counted });
    }

    fn count_forward(&self, _: u32, backend: u32, _: u64) {
        let backend = Some(backend);
        let counted = self.counted.get();
        self.counted.set(Counted { backend, ..counted });
    }
}

impl InUserSpace for Network {
    fn between_stages(&self) -> &BetweenStages {
        &self.between_stages
    }
}

impl Memory for Network {
    fn config(&self) -> Option<&Config> {
        Some(&self.node)
    }

    fn service_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry> {
        Tables::service_v4(self, key)
    }

    fn service_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry> {
        Tables::service_v6(self, key)
    }

    fn service(&self, id: u32) -> Option<Service> {
        Tables::service(self, id)
    }

    fn is_egress_port(&self, port: u16) -> bool {
        port.to_be_bytes() == POD_PORT
    }

    fn probe(&self, _: u32) -> Option<&Probe> {
        None
    }

    fn remember_probe(&self, _: &Tuple, _: &AddressKey) {}

    fn renew_local(&self, _: &Tuple, _: impl Fn(LocalFlow) -> LocalFlow) {}
}
