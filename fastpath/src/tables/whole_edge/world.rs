//! The tables for one thread of a whole edge, as the datapath's code asks for them.
//!
//! What only machines with pods, with NAT mode or with announced addresses ask for is not there, and the stages that
//! would are missing. There is no FIB either: a packet without a next hop in the tables is dropped.

use std::{
    cell::{Cell, OnceCell, RefCell},
    mem::offset_of,
    sync::Arc,
};

use xdp_prog::{
    abi::{
        AddressKey, Backend, Bucket, CONFIG_OVERFLOW, Client, ClientBackend, Config, Datagram,
        EdgeMac, EdgePrefix, IndexEntry, IndexKey, NextHop, Past, PastOwner, PastPair, PathReport,
        Pin, Pod, PodFlow, PodKey, REASONS_OF_CPU, Service, ServiceKeyV4, ServiceKeyV6,
        ServiceWord, Slot, SourcePrefix, Traffic, Tuple, WAYS,
    },
    capture::Reasons,
    frame::{FrameMut, FrameSum},
    process::{Action, process, resume},
    reason::DropReason,
    stage::{Duties, Stage},
    world::{
        self, Answers, BetweenStages, Clients, Clock, Counters, FlowTable, Flows, Fragments,
        InUserSpace, Inserted, MinimalWorld, Paths, PinTable, Pins, Sockets,
    },
};
use zerocopy::transmute;

use super::{
    super::{
        TableError,
        mapped::Mapped,
        syscall_map::{EXIST, SyscallMap},
    },
    Arrays, EdgeTables, Snapshot,
    batch_traffic::{BatchTraffic, Counted},
    snapshot::Reader,
};
use crate::clock::coarse_ns;

/// Entries of a kind that one packet looks at, at most: those of a slot's list of past owners, and some more.
const MOST_COPIES: usize = 32;

/// The tables for one thread.
pub struct EdgeWorld {
    arrays: Arc<Arrays>,
    reader: Reader,
    snapshot: Arc<Snapshot>,
    /// The CPU in whose region it counts.
    cpu: u32,
    shared: MapsOfThread,
    backends: Copies<Backend>,
    next_hops: Copies<NextHop>,
    service_traffic: BatchTraffic,
    backend_traffic: BatchTraffic,
    between_stages: BetweenStages,
    /// The reasons that were counted since a capture has taken them.
    counted: Cell<Reasons>,
    /// When the allowances of this thread are full again, in ns.
    answers_full_at: Cell<u64>,
    returns_full_at: Cell<u64>,
}

impl std::fmt::Debug for EdgeWorld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EdgeWorld").finish_non_exhaustive()
    }
}

/// The maps that packets of all queues write.
pub(super) struct MapsOfThread {
    pub(super) pins: [RefCell<SyscallMap<Tuple, Pin>>; 2],
    pub(super) clients: RefCell<SyscallMap<Client, ClientBackend>>,
    pub(super) datagrams: RefCell<SyscallMap<Tuple, Datagram>>,
    pub(super) answers: RefCell<SyscallMap<AddressKey, u64>>,
    pub(super) paths: RefCell<SyscallMap<AddressKey, PathReport>>,
}

/// Copies of entries, to be lent while a packet is judged. Their owner may change the entries meanwhile.
struct Copies<T> {
    places: [OnceCell<T>; MOST_COPIES],
    used: Cell<usize>,
}

impl<T> Copies<T> {
    fn new() -> Self {
        Self {
            places: [const { OnceCell::new() }; MOST_COPIES],
            used: Cell::new(0),
        }
    }

    /// Lends a copy; `None` if there are too many.
    fn lend(&self, entry: T) -> Option<&T> {
        let place = self.places.get(self.used.get())?;
        self.used.set(self.used.get() + 1);
        Some(place.get_or_init(|| entry))
    }

    fn forget(&mut self) {
        for place in &mut self.places[..self.used.take()] {
            place.take();
        }
    }
}

impl EdgeWorld {
    pub(super) fn new(tables: &EdgeTables, cpu: u32) -> Result<Self, TableError> {
        Ok(Self {
            arrays: Arc::clone(&tables.arrays),
            reader: Reader::new(&tables.snapshots),
            snapshot: tables.snapshots.newest(),
            cpu,
            shared: tables.shared.of_thread()?,
            backends: Copies::new(),
            next_hops: Copies::new(),
            service_traffic: BatchTraffic::new(),
            backend_traffic: BatchTraffic::new(),
            between_stages: BetweenStages::default(),
            counted: Cell::default(),
            answers_full_at: Cell::default(),
            returns_full_at: Cell::default(),
        })
    }

    /// Begins a batch, whose frames all see the same snapshot.
    pub fn begin(&mut self) {
        self.snapshot = self.reader.begin();
    }

    /// Ends a batch, and counts what it has forwarded. Until the next one, nobody waits for this thread.
    pub fn end(&mut self) {
        for counted in self.service_traffic.take() {
            self.count_service(counted);
        }
        for counted in self.backend_traffic.take() {
            self.count_backend(counted);
        }
        self.reader.end();
    }

    /// Takes a frame of a batch all the way: decides, rewrites, counts. It came in by the device with this index.
    pub fn process<F: FrameMut + FrameSum>(&mut self, frame: &mut F, ingress: u32) -> Action {
        self.backends.forget();
        self.next_hops.forget();
        let tables: &Self = self;
        let mut action = process(frame, tables, ingress);
        while let Action::Continue(stage) = action {
            action = if Self::has(stage) {
                resume(stage, frame, tables, ingress)
            } else {
                tables.count_reason(DropReason::StageMissing.index());
                Action::Drop
            };
        }
        action
    }

    /// Returns the reasons that were counted since they were returned last.
    pub fn take_reasons(&self) -> Reasons {
        self.counted.take()
    }

    /// Tells whether a stage is there: those of pods, of NAT mode and of announced addresses are missing.
    fn has(stage: Stage) -> bool {
        stage.is_reached(Duties::default()) && stage != Stage::Neighbour
    }

    /// Looks a service up in the index.
    fn index_entry(&self, key: IndexKey) -> Option<IndexEntry> {
        let Config {
            index_seed,
            index_mask,
            flags,
            ..
        } = self.snapshot.config;
        let buckets = key.buckets(index_seed, index_mask).into_iter();
        let places = buckets.flat_map(|index| (0..WAYS as usize).map(move |way| (index, way)));
        for (index, way) in places {
            if self.index_word(index, offset_of!(Bucket, keys), way)? == key.0 {
                let entry = self.index_word(index, offset_of!(Bucket, entries), way)?;
                return Some(IndexEntry(entry));
            }
        }
        if flags & CONFIG_OVERFLOW == 0 {
            return None;
        }
        self.snapshot.hashes.overflow.get(&key.0).copied()
    }

    fn index_word(&self, index: u32, part: usize, way: usize) -> Option<u64> {
        let offset = part + way * size_of::<u64>();
        self.arrays.service_index.load_u64(index, offset)
    }

    fn count_service(&self, counted: Counted) {
        let of_cpu = self.snapshot.config.services_of_cpu;
        self.count(&self.arrays.service_traffic, of_cpu, counted);
    }

    fn count_backend(&self, counted: Counted) {
        let of_cpu = self.snapshot.config.backends_of_cpu;
        self.count(&self.arrays.backend_traffic, of_cpu, counted);
    }

    /// Counts in this thread's region of an array whose regions have so many entries. Threads on one CPU share a region.
    fn count(&self, array: &Mapped<Traffic>, of_cpu: u32, Counted { id, traffic }: Counted) {
        let place = self.cpu.wrapping_mul(of_cpu).wrapping_add(id);
        array.add_u64(place, offset_of!(Traffic, packets), traffic.packets);
        array.add_u64(place, offset_of!(Traffic, bytes), traffic.bytes);
    }
}

impl world::World for EdgeWorld {}

impl world::Tables for EdgeWorld {
    fn config(&self) -> Option<&Config> {
        Some(&self.snapshot.config)
    }

    fn address_flags(&self, address: &AddressKey) -> u32 {
        let flags = self.snapshot.hashes.vips.get(address);
        flags.copied().unwrap_or(0)
    }

    fn is_trusted_edge(&self, source: &AddressKey) -> bool {
        let prefix: [u8; 20] = transmute!(EdgePrefix::new(*source));
        self.snapshot.hashes.trusted_edges.cover(prefix)
    }

    fn is_edge_mac(&self, source: &EdgeMac) -> bool {
        self.snapshot.hashes.edge_macs.contains(source)
    }

    fn is_in_source_range(&self, service: u32, client: &AddressKey) -> bool {
        let prefix: [u8; 20] = transmute!(SourcePrefix::new(service, *client));
        self.snapshot.hashes.source_ranges.cover(prefix)
    }

    /// The egress program notes them, which machines with pods alone have.
    fn is_local_flow(&self, _: &Tuple) -> bool {
        false
    }

    fn pod(&self, _: &PodKey) -> Option<Pod> {
        None
    }

    fn service_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry> {
        self.index_entry(IndexKey::v4(*key))
    }

    fn service_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry> {
        self.index_entry(IndexKey::v6(key, self.snapshot.config.index_seed))
    }

    fn service(&self, id: u32) -> Option<Service> {
        let services = &self.arrays.service;
        Some(Service {
            word: ServiceWord(services.load_u64(id, offset_of!(Service, word))?),
            local: ServiceWord(services.load_u64(id, offset_of!(Service, local))?),
            ..services.read(id)?
        })
    }

    fn slot(&self, index: u32) -> Option<Slot> {
        let offset = (index % 2) as usize * size_of::<Slot>();
        self.arrays.lut.load_u32(index / 2, offset).map(Slot)
    }

    fn past(&self, index: u32) -> Past {
        let pair = self.arrays.pasts.load_u64(index / 2, 0);
        pair.map_or_else(Past::default, |pair| PastPair(pair).of(index))
    }

    fn past_owner(&self, index: u32) -> PastOwner {
        let owner = self.arrays.history.load_u64(index, 0);
        owner.map(PastOwner).unwrap_or_default()
    }

    fn backend(&self, id: u32) -> Option<&Backend> {
        self.backends.lend(self.arrays.backends.read(id)?)
    }

    fn next_hop(&self, id: u32) -> Option<&NextHop> {
        self.next_hops.lend(self.arrays.next_hops.read(id)?)
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

impl Counters for EdgeWorld {
    fn count_reason(&self, index: u32) {
        let place = self.cpu.wrapping_mul(REASONS_OF_CPU).wrapping_add(index);
        self.arrays.reasons.add_u64(place, 0, 1);
        let mut counted = self.counted.get();
        counted.insert(index);
        self.counted.set(counted);
    }

    fn count_forward(&self, service: u32, backend: u32, bytes: u64) {
        if let Some(former) = self.service_traffic.add(service, bytes) {
            self.count_service(former);
        }
        if let Some(former) = self.backend_traffic.add(backend, bytes) {
            self.count_backend(former);
        }
    }
}

impl Clock for EdgeWorld {
    fn now(&self) -> u64 {
        coarse_ns()
    }
}

impl InUserSpace for EdgeWorld {
    fn between_stages(&self) -> &BetweenStages {
        &self.between_stages
    }
}

/// A whole edge has no pods.
impl Sockets for EdgeWorld {}

impl Clients for EdgeWorld {
    fn client(&self, client: &Client) -> ClientBackend {
        let clients = self.shared.clients.borrow();
        clients.get(client).unwrap_or_default()
    }

    fn set_client(&self, client: &Client, entry: ClientBackend) {
        // If the insertion fails, the client keeps what the lookup table says.
        let _ = self.shared.clients.borrow_mut().insert(client, entry);
    }
}

impl Pins for EdgeWorld {
    fn pin(&self, table: PinTable, flow: &Tuple) -> Option<Pin> {
        self.shared.pins[table as usize].borrow().get(flow)
    }

    fn set_pin(&self, table: PinTable, flow: &Tuple, pin: Pin) {
        // If the insertion fails, the flow's next packet is tried again.
        let _ = self.shared.pins[table as usize]
            .borrow_mut()
            .insert(flow, pin);
    }

    fn remove_pin(&self, table: PinTable, flow: &Tuple) {
        // The pin may be gone already.
        let _ = self.shared.pins[table as usize].borrow_mut().remove(flow);
    }

    fn mark_pinned(&self, slot: u32) {
        let pasts = &self.arrays.pasts;
        if let Some(known) = pasts.load_u64(slot / 2, 0) {
            pasts.exchange_u64(slot / 2, 0, known, PastPair(known).pinned(slot).0);
        }
    }

    fn returns_full_at(&self) -> u64 {
        self.returns_full_at.get()
    }

    fn set_returns_full_at(&self, time: u64) {
        self.returns_full_at.set(time);
    }
}

impl Answers for EdgeWorld {
    fn full_at(&self, source: &AddressKey) -> u64 {
        self.shared.answers.borrow().get(source).unwrap_or(0)
    }

    fn set_full_at(&self, source: &AddressKey, time: u64) {
        // If the insertion fails, the source gets one answer too many.
        let _ = self.shared.answers.borrow_mut().insert(source, time);
    }

    fn all_full_at(&self) -> u64 {
        self.answers_full_at.get()
    }

    fn set_all_full_at(&self, time: u64) {
        self.answers_full_at.set(time);
    }
}

impl Fragments for EdgeWorld {
    fn datagram(&self, key: &Tuple) -> Option<Datagram> {
        self.shared.datagrams.borrow().get(key)
    }

    fn publish(&self, key: &Tuple, datagram: &Datagram) {
        // If there is no room, the later fragments are dropped as out of order, and counted.
        let _ = self.shared.datagrams.borrow_mut().insert(key, datagram);
    }
}

impl Paths for EdgeWorld {
    fn note_path(&self, node: &AddressKey, report: PathReport) -> bool {
        let mut paths = self.shared.paths.borrow_mut();
        paths.insert_if(node, report, EXIST).is_ok()
    }
}

/// Checks of backends go by the kernel's own way. Every look-up is made: only those of packets for pods are noted.
impl MinimalWorld for EdgeWorld {}

/// Delivers to no pods.
impl Flows for EdgeWorld {
    fn with_flow<R>(
        &self,
        _: FlowTable,
        _: &Tuple,
        _: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R> {
        None
    }

    fn insert_flow(&self, _: FlowTable, _: &Tuple, _: &PodFlow) -> Inserted {
        Inserted::Full
    }

    fn remove_flow(&self, _: FlowTable, _: &Tuple) {}
}
