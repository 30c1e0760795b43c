//! Plain maps with the contents of the tables, and counters.

mod nat;

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
};

use aya::{
    Ebpf,
    maps::{HashMap as KernelHash, MapError},
};
use fastpath::{clock::coarse_ns, cpus::entries_of_all};
use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, AddressKey, BACKEND_V4, Backend, Bucket, CONFIG_NODE, CONFIG_OVERFLOW,
        Claim, Client, ClientBackend, Config, Datagram, DeliveryKeys, EdgeMac, EdgePrefix,
        FlowNote, IndexEntry, IndexKey, LocalFlow, NAMESPACE_OWN, NAMESPACE_UNKNOWN, NextHop, Past,
        PastOwner, PathReport, Pin, Pod, PodFlow, PodKey, REASONS_OF_CPU, SERVICE_NAT, Service,
        ServiceKeyV4, ServiceKeyV6, ServiceWord, Slot, SourcePrefix, Tag, TaggedLink, Traffic,
        Tuple, lay_out, map,
    },
    reason::REASON_COUNT,
    stage::Duties,
    world::{
        Announcements, Answers, BetweenStages, Clients, Clock, Counters, FlowTable, Flows,
        Fragments, InUserSpace, Inserted, Paths, PinTable, Pins, Probes, Shortcuts, SocketState,
        Sockets, Tables, World,
    },
};
use zerocopy::IntoBytes as _;

pub(crate) use self::nat::Nat;
use super::{memory::Arrays, pod_sockets::PodSocket, routes};

/// Secret of the services' index.
const INDEX_SEED: u64 = 0x0123_4567_89ab_cdef;

/// Entries of each table; the kernel's maps are made with the same sizes.
pub(crate) mod size {
    pub(crate) const HASH: u32 = 64;
    pub(crate) const SERVICES: u32 = 32;
    pub(crate) const BACKENDS: u32 = 32;
    pub(crate) const NEXT_HOPS: u32 = 32;
    pub(crate) const LUT: u32 = 512;
    pub(crate) const HISTORY: u32 = 64;
    pub(crate) const BUCKETS: u32 = 16;
    /// LRU maps evict early where there are few entries for each CPU.
    pub(crate) const LRU: u32 = 4096;
    /// Enough for a range of ports to run out before.
    pub(crate) const NAT: u32 = 128;
    /// The hands of all rings, and three places of each.
    pub(crate) const NAT_BEGUN: u32 = 64;
}

/// The arrays that have a region for each CPU, with their sizes.
pub(crate) fn of_each_cpu() -> [(&'static str, u32); 4] {
    [
        (map::CPU_SCRATCH, 1, 128),
        (map::REASONS, REASONS_OF_CPU, 8),
        (map::SERVICE_TRAFFIC, size::SERVICES, 16),
        (map::BACKEND_TRAFFIC, size::BACKENDS, 16),
    ]
    .map(|(name, entries, bytes)| (name, entries_of_all(entries, bytes).unwrap()))
}

/// Sums the counters of all reasons over the CPUs.
pub(crate) fn counted_reasons(arrays: &Arrays) -> Vec<u64> {
    let mut sums = vec![0; REASON_COUNT];
    let reasons = arrays.read::<u64>(map::REASONS);
    for (place, counted) in reasons.into_iter().enumerate() {
        if let Some(sum) = sums.get_mut(place % REASONS_OF_CPU as usize) {
            *sum += counted;
        }
    }
    sums
}

/// Contents of all tables, without the counters.
#[derive(Clone, Debug)]
pub(crate) struct TableSet {
    pub(crate) config: Config,
    pub(crate) vips: HashMap<AddressKey, u32>,
    pub(crate) probe_peers: HashMap<Tuple, AddressKey>,
    pub(crate) services_v4: HashMap<ServiceKeyV4, u32>,
    pub(crate) services_v6: HashMap<ServiceKeyV6, u32>,
    pub(crate) service: Vec<Service>,
    pub(crate) lut: Vec<Slot>,
    /// By the indices of `lut`.
    pub(crate) pasts: Vec<Past>,
    pub(crate) history: Vec<PastOwner>,
    /// Kept and young ones.
    pub(crate) pins: [HashMap<Tuple, Pin>; 2],
    /// The backends of clients' last new connections.
    pub(crate) clients: HashMap<Client, ClientBackend>,
    /// When the allowance of flows whose owner is looked for is full again, ns.
    pub(crate) returns_full_at: u64,
    pub(crate) backends: Vec<Backend>,
    pub(crate) next_hops: Vec<NextHop>,
    /// Prefix length as the trie counts it, and the prefix.
    pub(crate) trusted: Vec<(u32, EdgePrefix)>,
    pub(crate) source_ranges: Vec<(u32, SourcePrefix)>,
    pub(crate) edge_macs: HashMap<EdgeMac, u32>,
    pub(crate) pods: HashMap<PodKey, Pod>,
    pub(crate) flows: HashMap<Tuple, PodFlow>,
    pub(crate) embryonic: HashMap<Tuple, PodFlow>,
    pub(crate) local_flows: HashMap<Tuple, LocalFlow>,
    pub(crate) nat: Nat,
    pub(crate) announced: HashMap<AddressKey, u32>,
    /// When the agent has last said that it serves, ns.
    pub(crate) announce_stamp: u64,
    pub(crate) announce_links: HashMap<TaggedLink, EdgeMac>,
    /// What others have announced; none at first.
    pub(crate) claims: HashMap<AddressKey, Claim>,
    /// Nodes about whose paths errors are noted; what, is nothing at first.
    pub(crate) paths: HashMap<AddressKey, PathReport>,
    pub(crate) datagrams: HashMap<Tuple, Datagram>,
    /// The connection that the kernel has in the network namespace of the pods, if they have one.
    pub(crate) socket: Option<PodSocket>,
    /// When the allowances of sources are full again, ns.
    pub(crate) answers: HashMap<AddressKey, u64>,
    /// When the allowance of all sources is full again, ns.
    pub(crate) answers_of_all: u64,
    free_slot: u32,
}

impl Default for TableSet {
    fn default() -> Self {
        Self {
            config: Config::default(),
            vips: HashMap::new(),
            probe_peers: HashMap::new(),
            services_v4: HashMap::new(),
            services_v6: HashMap::new(),
            service: vec![Service::default(); size::SERVICES as usize],
            lut: vec![Slot::default(); size::LUT as usize],
            pasts: vec![Past::default(); size::LUT as usize],
            history: vec![PastOwner::default(); size::HISTORY as usize],
            pins: Default::default(),
            clients: HashMap::new(),
            returns_full_at: 0,
            backends: vec![Backend::default(); size::BACKENDS as usize],
            next_hops: vec![NextHop::default(); size::NEXT_HOPS as usize],
            trusted: Vec::new(),
            source_ranges: Vec::new(),
            edge_macs: HashMap::new(),
            pods: HashMap::new(),
            flows: HashMap::new(),
            embryonic: HashMap::new(),
            local_flows: HashMap::new(),
            nat: Nat::default(),
            announced: HashMap::new(),
            announce_stamp: 0,
            announce_links: HashMap::new(),
            claims: HashMap::new(),
            paths: HashMap::new(),
            datagrams: HashMap::new(),
            socket: None,
            answers: HashMap::new(),
            answers_of_all: 0,
            // Slot 0 is never used.
            free_slot: 1,
        }
    }
}

impl TableSet {
    /// Adds an address to `VIPS`.
    pub(crate) fn address(&mut self, address: IpAddr, flags: u32) {
        self.vips.insert(address_key(address), flags);
    }

    /// Accepts IP-in-IP from a prefix.
    pub(crate) fn trust(&mut self, address: IpAddr, bits: u32) {
        let front = match address {
            IpAddr::V4(_) => EdgePrefix::FRONT_BITS_V4,
            IpAddr::V6(_) => EdgePrefix::FRONT_BITS_V6,
        };
        self.trusted
            .push((front + bits, EdgePrefix::new(address_key(address))));
    }

    /// Lets clients in this prefix talk to a service.
    pub(crate) fn admit(&mut self, service: u32, address: IpAddr, bits: u32) {
        let front = match address {
            IpAddr::V4(_) => SourcePrefix::FRONT_BITS_V4,
            IpAddr::V6(_) => SourcePrefix::FRONT_BITS_V6,
        };
        self.source_ranges.push((
            front + bits,
            SourcePrefix::new(service, address_key(address)),
        ));
    }

    /// Makes a backend a pod of this machine that a service's tags may name.
    pub(crate) fn pod(&mut self, service: u32, backend: u32) {
        let tag = Tag(self.backends[backend as usize].tag);
        let key = PodKey::new(service, tag);
        self.pods.insert(key, Pod::new(key, backend));
    }

    /// Adds a service whose slots have these owners; their number is a power of two.
    pub(crate) fn service(
        &mut self,
        id: u32,
        to: (IpAddr, u16),
        protocol: u8,
        mode: u32,
        owners: &[u32],
    ) {
        let port = to.1.to_be_bytes();
        let check = match to.0 {
            IpAddr::V4(address) => {
                let key = ServiceKeyV4::new(address.octets(), port, protocol);
                self.services_v4.insert(key, id);
                key.check()
            }
            IpAddr::V6(address) => {
                let key = ServiceKeyV6::new(address.octets(), port, protocol);
                self.services_v6.insert(key, id);
                key.check()
            }
        };
        let log2_length = u8::try_from(owners.len().ilog2()).unwrap();
        let base = self.lay_out(owners);
        self.service[id as usize] = Service {
            word: ServiceWord::new(base, log2_length, check),
            mode,
            ..Service::default()
        };
    }

    /// Returns the settings as the kernel's index of services needs them.
    pub(crate) fn indexed_config(&self) -> Config {
        let v4 = self.services_v4.keys().map(|key| &key.as_bytes()[4..6]);
        let v6 = self.services_v6.keys().map(|key| &key.as_bytes()[16..18]);
        let ports = self.config.nat_ports;
        let is_taken = |port: &[u8]| self.config.is_nat_port([port[0], port[1]], ports);
        Config {
            nat_only_ports: if v4.chain(v6).any(is_taken) { 0 } else { ports },
            delivery_keys: DeliveryKeys::new(|index| INDEX_SEED.wrapping_mul(index as u64 * 2 + 1)),
            index_seed: INDEX_SEED,
            index_mask: size::BUCKETS - 1,
            services_of_cpu: size::SERVICES,
            backends_of_cpu: size::BACKENDS,
            flags: self.config.flags | CONFIG_OVERFLOW,
            ..self.config
        }
    }

    /// Lays out the services' index and its overflow.
    pub(crate) fn index(&self) -> (Vec<Bucket>, HashMap<u64, IndexEntry>) {
        let v4 = self.services_v4.keys();
        let v6 = self.services_v6.keys();
        let entries = v4
            .map(|key| (IndexKey::v4(*key), self.entry_v4(key)))
            .chain(v6.map(|key| (IndexKey::v6(key, INDEX_SEED), self.entry_v6(key))));
        let mut buckets = vec![Bucket::default(); size::BUCKETS as usize];
        let mut overflow = HashMap::new();
        for (key, entry) in entries {
            let entry = entry.unwrap();
            if is_aside(key) || !lay_out(&mut buckets, INDEX_SEED, key, entry) {
                overflow.insert(key.0, IndexEntry::of_id(entry.id()));
            }
        }
        (buckets, overflow)
    }

    /// Returns what the index says of an IPv4 service.
    pub(crate) fn entry_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry> {
        let id = *self.services_v4.get(key)?;
        Some(self.entry(IndexKey::v4(*key), key.check(), id))
    }

    /// Returns what the index says of an IPv6 service.
    pub(crate) fn entry_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry> {
        let id = *self.services_v6.get(key)?;
        Some(self.entry(IndexKey::v6(key, INDEX_SEED), key.check(), id))
    }

    /// Makes the entry of a key that leads to an id. It says no more than the id if that is another service's.
    fn entry(&self, key: IndexKey, check: u32, id: u32) -> IndexEntry {
        match self.service.get(id as usize) {
            Some(service) if service.word.check() == check && !is_aside(key) => {
                IndexEntry::new(id, service)
            }
            _ => IndexEntry::of_id(id),
        }
    }

    /// Gives a service a second table, of this machine's pods alone.
    pub(crate) fn local_table(&mut self, service: u32, owners: &[u32]) {
        let log2_length = u8::try_from(owners.len().ilog2()).unwrap();
        self.service[service as usize].local =
            ServiceWord::new(self.lay_out(owners), log2_length, 0);
    }

    /// Writes a table of slots into the arena and returns its first index.
    fn lay_out(&mut self, owners: &[u32]) -> u32 {
        assert!(owners.len().is_power_of_two());
        let base = self.free_slot;
        let slots = &mut self.lut[base as usize..][..owners.len()];
        for (slot, owner) in slots.iter_mut().zip(owners) {
            *slot = Slot(*owner);
        }
        self.free_slot += u32::try_from(owners.len()).unwrap();
        base
    }

    /// Gives the only slot of a service a list of past owners, the newest first, which have just ceased to own it; `place`
    /// is that of the list.
    pub(crate) fn set_past(&mut self, service: u32, place: u32, owners: &[u32]) {
        self.set_past_of(service, place, owners, second_ago(0));
    }

    /// As [`Self::set_past`], with owners that have ceased to own it in this second.
    pub(crate) fn set_past_of(&mut self, service: u32, place: u32, owners: &[u32], second: u32) {
        let base = self.service[service as usize].word.base();
        for (index, owner) in (place as usize..).zip(owners) {
            self.history[index] = PastOwner::new(*owner, second);
        }
        let count = u32::try_from(owners.len()).unwrap();
        self.pasts[base as usize] = Past::new(place, count);
        let owner = self.lut[base as usize].owner();
        self.lut[base as usize] = Slot::new(owner, true);
    }

    /// Returns the index of the only slot of a service.
    pub(crate) fn only_slot(&self, service: u32) -> u32 {
        self.service[service as usize].word.base()
    }

    /// Uses the allowance of returned packets up.
    pub(crate) fn use_up_returns(&mut self) {
        self.returns_full_at = coarse_ns() + 3_600_000_000_000;
    }

    /// Gives the only slot of a service another owner.
    pub(crate) fn set_owner(&mut self, service: u32, owner: u32) {
        let base = self.service[service as usize].word.base();
        self.lut[base as usize] = Slot(owner);
    }
}

/// Returns the second of the monotonic clock so many seconds ago, modulo 2^31.
pub(crate) fn second_ago(seconds: u32) -> u32 {
    let now = u32::try_from(coarse_ns() / 1_000_000_000).unwrap();
    now.wrapping_sub(seconds) & 0x7fff_ffff
}

/// Spells an address as the tables do.
pub(crate) fn address_key(address: IpAddr) -> AddressKey {
    match address {
        IpAddr::V4(address) => AddressKey::v4(address.octets()),
        IpAddr::V6(address) => AddressKey::v6(address.octets()),
    }
}

/// Puts an address into 16 bytes, IPv4 in the first four.
pub(crate) fn padded(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// All counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) reasons: Vec<u64>,
    pub(crate) services: Vec<Traffic>,
    pub(crate) backends: Vec<Traffic>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            reasons: vec![0; REASON_COUNT],
            services: vec![Traffic::default(); size::SERVICES as usize],
            backends: vec![Traffic::default(); size::BACKENDS as usize],
        }
    }
}

impl Counts {
    /// Adds what was counted for a frame.
    pub(crate) fn add(&mut self, events: &[Event]) {
        for event in events {
            match *event {
                Event::Reason(index) => self.reasons[index as usize] += 1,
                Event::Forward {
                    service,
                    backend,
                    bytes,
                } => {
                    for traffic in [
                        &mut self.services[service as usize],
                        &mut self.backends[backend as usize],
                    ] {
                        traffic.packets += 1;
                        traffic.bytes += bytes;
                    }
                }
            }
        }
    }

    /// Returns by how much each counter exceeds `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let traffic = |now: &[Traffic], then: &[Traffic]| {
            now.iter()
                .zip(then)
                .map(|(now, then)| Traffic {
                    packets: now.packets.wrapping_sub(then.packets),
                    bytes: now.bytes.wrapping_sub(then.bytes),
                })
                .collect()
        };
        Self {
            reasons: self
                .reasons
                .iter()
                .zip(&earlier.reasons)
                .map(|(now, then)| now.wrapping_sub(*then))
                .collect(),
            services: traffic(&self.services, &earlier.services),
            backends: traffic(&self.backends, &earlier.backends),
        }
    }
}

/// What `process` counts for one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Reason(u32),
    Forward {
        service: u32,
        backend: u32,
        bytes: u64,
    },
}

/// The tables as `process` looks into them; behind them, [`routes`] stand for the FIB.
#[derive(Debug)]
pub(crate) struct ModelTables<'a> {
    tables: &'a TableSet,
    has_fib: bool,
    flows: RefCell<[HashMap<Tuple, PodFlow>; 2]>,
    pub(crate) pins: RefCell<[HashMap<Tuple, Pin>; 2]>,
    pub(crate) clients: RefCell<HashMap<Client, ClientBackend>>,
    pinned: RefCell<Vec<Past>>,
    pub(crate) returns_full_at: Cell<u64>,
    nat: nat::LiveNat,
    datagrams: RefCell<HashMap<Tuple, Datagram>>,
    /// The MAC that each announced address is said to have elsewhere.
    pub(crate) claims: RefCell<HashMap<AddressKey, [u8; 6]>>,
    /// What has been said of the paths to nodes.
    pub(crate) paths: RefCell<HashMap<AddressKey, PathReport>>,
    between_stages: BetweenStages,
    pub(crate) answers: RefCell<HashMap<AddressKey, u64>>,
    pub(crate) answers_of_all: Cell<u64>,
    events: RefCell<Vec<Event>>,
    is_socket_lost: Cell<bool>,
}

impl<'a> ModelTables<'a> {
    pub(crate) fn new(tables: &'a TableSet) -> Self {
        Self {
            tables,
            has_fib: true,
            flows: RefCell::new([tables.flows.clone(), tables.embryonic.clone()]),
            pins: RefCell::new(tables.pins.clone()),
            clients: RefCell::new(tables.clients.clone()),
            pinned: RefCell::new(tables.pasts.clone()),
            returns_full_at: Cell::new(tables.returns_full_at),
            nat: nat::LiveNat::new(tables.nat.fresh()),
            datagrams: RefCell::new(tables.datagrams.clone()),
            claims: RefCell::default(),
            paths: RefCell::default(),
            between_stages: BetweenStages::default(),
            answers: RefCell::new(tables.answers.clone()),
            answers_of_all: Cell::new(tables.answers_of_all),
            events: RefCell::default(),
            is_socket_lost: Cell::new(false),
        }
    }

    /// As the second engine's.
    pub(crate) fn lose_socket(&self) {
        let is_lost = |socket: PodSocket| socket.is_lost_at_last;
        self.is_socket_lost
            .set(self.tables.socket.is_some_and(is_lost));
    }

    /// Takes the FIB away.
    pub(crate) fn without_fib(self) -> Self {
        Self {
            has_fib: false,
            ..self
        }
    }

    /// Returns what has been counted since the last call.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        self.events.take()
    }
}

impl World for ModelTables<'_> {}

impl Tables for ModelTables<'_> {
    fn config(&self) -> Option<&Config> {
        Some(&self.tables.config)
    }

    fn address_flags(&self, address: &AddressKey) -> u32 {
        self.tables.vips.get(address).copied().unwrap_or(0)
    }

    fn is_trusted_edge(&self, source: &AddressKey) -> bool {
        let front = EdgePrefix::FRONT_BITS_V6;
        let is_v4 =
            |key: AddressKey| key.octets()[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255];
        self.tables.trusted.iter().any(|(bits, prefix)| {
            let prefix = prefix.address();
            is_v4(*source) == is_v4(prefix) && covers(prefix, bits - front, *source)
        })
    }

    fn is_edge_mac(&self, source: &EdgeMac) -> bool {
        self.tables.edge_macs.contains_key(source)
    }

    fn is_in_source_range(&self, service: u32, client: &AddressKey) -> bool {
        let front = SourcePrefix::FRONT_BITS_V6;
        self.tables.source_ranges.iter().any(|(bits, prefix)| {
            prefix.service() == service && covers(prefix.address(), bits - front, *client)
        })
    }

    fn is_local_flow(&self, flow: &Tuple) -> bool {
        let known = self.tables.local_flows.get(flow);
        known.is_some_and(|known| known.is_alive(self.now()))
    }

    fn pod(&self, key: &PodKey) -> Option<Pod> {
        self.tables.pods.get(key).copied()
    }

    fn service_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry> {
        self.tables.entry_v4(key)
    }

    fn service_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry> {
        self.tables.entry_v6(key)
    }

    fn service(&self, id: u32) -> Option<Service> {
        self.tables.service.get(id as usize).copied()
    }

    fn slot(&self, index: u32) -> Option<Slot> {
        self.tables.lut.get(index as usize).copied()
    }

    fn past(&self, index: u32) -> Past {
        let words = self.pinned.borrow();
        words.get(index as usize).copied().unwrap_or_default()
    }

    fn past_owner(&self, index: u32) -> PastOwner {
        let history = &self.tables.history;
        history.get(index as usize).copied().unwrap_or_default()
    }

    fn backend(&self, id: u32) -> Option<&Backend> {
        self.tables.backends.get(id as usize)
    }

    fn next_hop(&self, id: u32) -> Option<&NextHop> {
        self.tables.next_hops.get(id as usize)
    }

    fn fib_next_hop(&self, backend: &Backend) -> Option<&NextHop> {
        self.fib_route(&if backend.flags & BACKEND_V4 != 0 {
            AddressKey::v4(backend.address_v4())
        } else {
            AddressKey::v6(backend.address)
        })
    }

    fn fib_route(&self, address: &AddressKey) -> Option<&NextHop> {
        routes::hop(address).filter(|_| self.has_fib)
    }

    fn fib_device(&self, address: &AddressKey) -> Option<u32> {
        routes::device(address).filter(|_| self.has_fib)
    }
}

/// Tells whether the first `bits` of two addresses are the same.
/// Tells whether a key lies in the index's overflow: every third one does.
const fn is_aside(key: IndexKey) -> bool {
    key.0.is_multiple_of(3)
}

fn covers(prefix: AddressKey, bits: u32, address: AddressKey) -> bool {
    let differing = u128::from_be_bytes(address.octets()) ^ u128::from_be_bytes(prefix.octets());
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    differing & mask == 0
}

impl Probes for ModelTables<'_> {
    fn probe_peer(&self, answer: &Tuple) -> Option<AddressKey> {
        self.tables.probe_peers.get(answer).copied()
    }
}

impl Paths for ModelTables<'_> {
    fn note_path(&self, node: &AddressKey, report: PathReport) -> bool {
        let is_known = self.tables.paths.contains_key(node);
        if is_known {
            self.paths.borrow_mut().insert(*node, report);
        }
        is_known
    }
}

impl Announcements for ModelTables<'_> {
    fn is_announced(&self, address: &AddressKey) -> bool {
        self.tables.announced.contains_key(address)
    }

    fn announce_stamp(&self) -> u64 {
        self.tables.announce_stamp
    }

    fn announcing_mac(&self, link: TaggedLink) -> Option<EdgeMac> {
        self.tables.announce_links.get(&link).copied()
    }

    fn note_claim(&self, address: &AddressKey, mac: EdgeMac) {
        self.claims.borrow_mut().insert(*address, mac.mac());
    }
}

/// Takes the notes of all flows away that the programs know.
pub(crate) fn forget_notes(ebpf: &Ebpf, arrays: &Arrays) -> Result<(), MapError> {
    for name in [map::FLOWS, map::FLOWS_DATAGRAM] {
        let flows = ebpf.map(name).expect("the object has this map");
        for key in KernelHash::<_, Tuple, PodFlow>::try_from(flows)?.keys() {
            for place in FlowNote::places(&key?) {
                arrays.write_from(map::FLOW_NOTES, place, &[FlowNote::default()]);
            }
        }
    }
    Ok(())
}

impl ModelTables<'_> {
    /// Tells what the machine with these tables does beside balancing.
    pub(crate) fn duties(&self) -> Duties {
        let TableSet {
            config,
            vips,
            service,
            backends,
            ..
        } = self.tables;
        let is_local = |flags: &u32| flags & ADDRESS_LOCAL != 0;
        Duties {
            node: config.flags & CONFIG_NODE != 0
                || vips.values().any(is_local)
                || backends.iter().any(Backend::is_own_pod),
            nat: config.nat_ports != 0 || service.iter().any(|one| one.flags & SERVICE_NAT != 0),
        }
    }
}

impl Clock for ModelTables<'_> {
    fn now(&self) -> u64 {
        coarse_ns()
    }
}

impl Flows for ModelTables<'_> {
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R> {
        let mut flows = self.flows.borrow_mut();
        let known = flows[table as usize].get_mut(key);
        known.filter(|known| known.is_for(key)).map(f)
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

/// Every look-up is made.
impl Shortcuts for ModelTables<'_> {
    fn shortcut(&self, _: &Tuple, _: u32) -> Option<u64> {
        None
    }

    fn note_shortcut(&self, _: &Tuple, _: u32, _: u64) {}

    fn note_untrusted(&self, _: &AddressKey) {}
}

impl Fragments for ModelTables<'_> {
    fn datagram(&self, key: &Tuple) -> Option<Datagram> {
        self.datagrams.borrow().get(key).copied()
    }

    fn publish(&self, key: &Tuple, datagram: &Datagram) {
        self.datagrams.borrow_mut().insert(*key, *datagram);
    }
}

impl InUserSpace for ModelTables<'_> {
    fn between_stages(&self) -> &BetweenStages {
        &self.between_stages
    }
}

impl Answers for ModelTables<'_> {
    fn full_at(&self, source: &AddressKey) -> u64 {
        self.answers.borrow().get(source).copied().unwrap_or(0)
    }

    fn set_full_at(&self, source: &AddressKey, time: u64) {
        self.answers.borrow_mut().insert(*source, time);
    }

    fn all_full_at(&self) -> u64 {
        self.answers_of_all.get()
    }

    fn set_all_full_at(&self, time: u64) {
        self.answers_of_all.set(time);
    }
}

impl Pins for ModelTables<'_> {
    fn pin(&self, table: PinTable, flow: &Tuple) -> Option<Pin> {
        self.pins.borrow()[table as usize].get(flow).copied()
    }

    fn set_pin(&self, table: PinTable, flow: &Tuple, pin: Pin) {
        self.pins.borrow_mut()[table as usize].insert(*flow, pin);
    }

    fn remove_pin(&self, table: PinTable, flow: &Tuple) {
        self.pins.borrow_mut()[table as usize].remove(flow);
    }

    fn mark_pinned(&self, slot: u32) {
        if let Some(word) = self.pinned.borrow_mut().get_mut(slot as usize) {
            *word = word.pinned();
        }
    }

    fn returns_full_at(&self) -> u64 {
        self.returns_full_at.get()
    }

    fn set_returns_full_at(&self, time: u64) {
        self.returns_full_at.set(time);
    }
}

impl Clients for ModelTables<'_> {
    fn client(&self, client: &Client) -> ClientBackend {
        let clients = self.clients.borrow();
        clients.get(client).copied().unwrap_or_default()
    }

    fn set_client(&self, client: &Client, entry: ClientBackend) {
        self.clients.borrow_mut().insert(*client, entry);
    }
}

impl Sockets for ModelTables<'_> {
    fn socket_state(&self, connection: &Tuple, namespace: u32) -> SocketState {
        let socket = self.tables.socket.filter(|_| !self.is_socket_lost.get());
        match socket {
            _ if namespace == NAMESPACE_UNKNOWN => SocketState::UNKNOWN,
            Some(socket) if namespace != NAMESPACE_OWN && socket.connection == *connection => {
                socket.end.seen()
            }
            _ => SocketState::NONE,
        }
    }
}

impl Counters for ModelTables<'_> {
    fn count_reason(&self, index: u32) {
        self.events.borrow_mut().push(Event::Reason(index));
    }

    fn count_forward(&self, service: u32, backend: u32, bytes: u64) {
        self.events.borrow_mut().push(Event::Forward {
            service,
            backend,
            bytes,
        });
    }
}
