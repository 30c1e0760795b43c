//! The tables, as typed operations: what a change of a service does to the maps.
//!
//! ```text
//! SERVICE_INDEX         SERVICE                 LUT               BACKENDS        NEXTHOPS
//! address, port, --id-> base, length, --slot--> current owner --> address, ----> device, MACs
//! protocol              key check, mode                           next hop
//! ```
//!
//! A packet may be anywhere along this chain while it changes. Therefore what
//! is pointed to is complete before anything points to it, live entries change
//! by single stores only, and what nothing points to any more is reused only
//! after an RCU grace period (see [`Tables::reclaim`]).
//!
//! [`Tables::open`] adopts what an earlier agent left in the maps: the same
//! ids, runs and slots, so a restart changes nothing that is not asked to change.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    sync::Arc,
};

use aya::maps::{self, Map, MapData, MapError};
use imbl::OrdMap;
use ipnet::IpNet;
use xdp_prog::abi::{
    AddressKey, Backend, Claim, Config, Datagram, EdgeMac, EdgePrefix, LocalFlow, NatBegun,
    NatCount, NatForward, NatReverse, NextHop, PathReport, Pod, PodFlow, PodKey, Probe, Service,
    SourcePrefix, TaggedLink, Tuple, map,
};

pub use self::{
    announce::AnnouncedElsewhere,
    arena::{Arena, ArenaFill, Run},
    counters::{Counters, ReasonCount},
    error::TableError,
    explain::{ChosenBackend, Explanation, Outcome, Trace, TraceStep, Translated},
    probes::{MAX_PROBES, ProbeSpec, probe_mark},
    reader::TableReader,
    types::{
        Addresses, BackendKey, BackendSpec, ForwardMode, NatSettings, OwnedBackend, Protocol,
        ServiceKey, ServiceKeyError, ServiceSpec, Settings, TrafficPolicy,
    },
    view::TableView,
};
use self::{
    encode::backend_key, error::read_failed, ids::Ids, index::ServiceIndex, live::Live,
    mapped::Mapped, policy::Pods, slots::Slots, view::Newest, walk::Walk, written::Written,
};
use crate::{load::Loaded, nexthop::Resolution};

mod adopt;
mod announce;
mod arena;
mod backends;
mod batch;
mod counters;
mod encode;
mod error;
mod explain;
mod grace;
mod ids;
mod index;
#[cfg(test)]
mod interrupted;
mod layout;
mod live;
mod lut;
mod machine;
mod mapped;
mod nat;
mod paths;
mod policy;
mod probes;
mod reader;
mod services;
mod slots;
mod types;
mod view;
mod walk;
mod written;

/// A service as the tables have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledService {
    /// Service id.
    pub id: u32,
    /// Its lookup table.
    pub run: Run,
    /// The table of this machine's pods, if it has any: the same one where there are no others.
    pub local: Option<Run>,
    /// How packets reach the backends.
    pub mode: ForwardMode,
    /// Ids of the backends that it uses.
    backends: Box<[u32]>,
    /// Whose its backends are ([`ServiceSpec::owner`]).
    pub owner: u32,
    /// This machine's pods by tag.
    pods: Pods,
    /// The clients that may use it, of its own family; all, if the specification names none.
    source_ranges: BTreeSet<IpNet>,
    /// Pods that another one of their node has the tag of.
    left_out: Box<[BackendKey]>,
}

impl InstalledService {
    /// Counts the slots of its lookup tables.
    pub fn slots(&self) -> u64 {
        let local = self.local.filter(|local| *local != self.run);
        let runs = [Some(self.run), local].into_iter().flatten();
        runs.map(|run| u64::from(run.length())).sum()
    }

    /// Lists the pods that get no traffic because their node could not tell them from another one.
    pub fn left_out(&self) -> &[BackendKey] {
        &self.left_out
    }

    /// Counts the pods of this machine that serve it.
    pub fn local_pods(&self) -> usize {
        self.pods.len()
    }

    /// Counts the backends that it uses; some may be other services' of its owner too.
    pub fn backends(&self) -> usize {
        self.backends.len()
    }

    /// Counts the source ranges that can hold its clients.
    pub fn source_ranges(&self) -> usize {
        self.source_ranges.len()
    }
}

/// Specifications of services.
pub type Specs = OrdMap<ServiceKey, Arc<ServiceSpec>>;

/// A backend as the tables have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstalledBackend {
    /// Backend id.
    pub id: u32,
    /// Services of its owner whose lookup table names it.
    pub services: u32,
}

/// How a node address is reached.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Id of the next hop; 0 for none.
    next_hop: u32,
    /// As it was told; unknown after adoption.
    resolution: Option<Resolution>,
    /// Whether the node is this machine.
    local: bool,
}

/// What a change did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Slots whose owner is another one than before.
    pub slots: u32,
    /// Whether the service came new, or its table got another length.
    pub new_table: bool,
}

/// How full the tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The LUT arena.
    pub arena: ArenaFill,
    /// Services in use and possible.
    pub services: Usage,
    /// Services that found no place in the index, and how many may.
    pub service_overflow: Usage,
    /// Backends in use and possible.
    pub backends: Usage,
    /// Next hops in use and possible.
    pub next_hops: Usage,
    /// Pods of this machine, once for each service, in use and possible.
    pub pods: Usage,
    /// Source ranges in use and possible.
    pub source_ranges: Usage,
}

/// Entries of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Entries in use, those in their grace period included.
    pub used: usize,
    /// Entries possible.
    pub capacity: usize,
}

/// What was taken out of use and waits for its grace period.
#[derive(Debug, Default)]
struct Retired {
    services: Vec<RetiredService>,
    runs: Vec<Run>,
    backends: Vec<u32>,
    next_hops: Vec<u32>,
}

/// A service id that no key leads to, and what lies under it.
#[derive(Debug)]
struct RetiredService {
    id: u32,
    pods: Pods,
    source_ranges: BTreeSet<IpNet>,
}

/// Retired items that are worth an RCU grace period of their own.
const RETIRED_AT_MOST: usize = 1024;

impl Retired {
    fn count(&self) -> usize {
        self.services.len() + self.runs.len() + self.backends.len() + self.next_hops.len()
    }
}

/// The tables of one dataplane, owned by one agent.
pub struct Tables {
    config: Written<maps::Array<MapData, Config>>,
    vips: Written<maps::HashMap<MapData, AddressKey, u32>>,
    index: ServiceIndex,
    trusted_edges: Written<maps::lpm_trie::LpmTrie<MapData, EdgePrefix, u32>>,
    edge_macs: Written<maps::HashMap<MapData, EdgeMac, u32>>,
    vlans: Written<maps::HashMap<MapData, u32, TaggedLink>>,
    paths: maps::HashMap<MapData, AddressKey, PathReport>,
    source_ranges: Written<maps::lpm_trie::LpmTrie<MapData, SourcePrefix, u32>>,
    pods: Written<maps::HashMap<MapData, PodKey, Pod>>,
    local_flows: maps::HashMap<MapData, Tuple, LocalFlow>,
    probes: Written<maps::Array<MapData, Probe>>,
    flows: maps::HashMap<MapData, Tuple, PodFlow>,
    flows_datagram: maps::HashMap<MapData, Tuple, PodFlow>,
    flows_embryonic: maps::HashMap<MapData, Tuple, PodFlow>,
    probe_peers: maps::HashMap<MapData, Tuple, AddressKey>,
    fragments: maps::HashMap<MapData, Tuple, Datagram>,
    announced: Written<maps::HashMap<MapData, AddressKey, u32>>,
    announce_stamp: Mapped<u64>,
    announce_links: Written<maps::HashMap<MapData, TaggedLink, EdgeMac>>,
    claims: maps::HashMap<MapData, AddressKey, Claim>,
    /// Those of other layout versions that something was inherited of.
    inherited_claims: Vec<maps::HashMap<MapData, AddressKey, Claim>>,
    nat_forward: maps::HashMap<MapData, Tuple, NatForward>,
    nat_reverse: maps::HashMap<MapData, Tuple, NatReverse>,
    nat_counts: maps::Array<MapData, NatCount>,
    nat_begun: maps::Array<MapData, NatBegun>,
    pods_capacity: usize,
    source_ranges_capacity: usize,
    service: Mapped<Service>,
    lut: Slots,
    backends: Mapped<Backend>,
    next_hops: Mapped<NextHop>,
    counters: counters::Maps,
    nat: nat::Nat,
    live: Live,

    settings: Settings,
    current_config: Config,
    /// What `VIPS` holds. Nobody else writes it, and reading it takes two system calls for each entry.
    known_addresses: Arc<Addresses>,
    /// What `TRUSTED_EDGES` holds.
    known_trusted_edges: BTreeSet<IpNet>,
    /// What `EDGE_MACS` holds.
    known_edge_macs: BTreeSet<[u8; 6]>,
    /// What `ANNOUNCED` holds.
    known_announced: BTreeSet<IpAddr>,
    arena: Arena,
    service_ids: Ids,
    backend_ids: Ids,
    next_hop_ids: Ids,
    installed: OrdMap<ServiceKey, Arc<InstalledService>>,
    specs: Specs,
    backend_by_key: OrdMap<OwnedBackend, InstalledBackend>,
    ways: OrdMap<IpAddr, Way>,
    /// Of nodes to which the path takes less than the next hop does.
    path_mtus: OrdMap<IpAddr, u32>,
    has_paths: bool,
    /// How many errors about outer packets had come when they were looked at.
    path_errors: u64,
    retired: Retired,
    freed: Freed,
    newest: Newest,
}

/// Counts what services have given up since the tables were opened: what did not fit may fit once one of these grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Runs of the LUT arena.
    pub runs: u64,
    /// Entries of other tables, or sets of them.
    pub entries: u64,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables")
            .field("settings", &self.settings)
            .field("installed", &self.installed)
            .field("fill", &self.fill())
            .finish_non_exhaustive()
    }
}

impl Tables {
    /// Opens the maps of a loaded object and adopts what is in them.
    ///
    /// # Errors
    ///
    /// When a map is missing, has another layout, or cannot be read or mapped into memory.
    pub fn open(loaded: &Loaded) -> Result<Self, TableError> {
        fn typed<T: TryFrom<Map, Error = MapError>>(
            loaded: &Loaded,
            name: &'static str,
            wrap: fn(MapData) -> Map,
        ) -> Result<T, TableError> {
            T::try_from(wrap(loaded.map(name)?)).map_err(read_failed(name))
        }
        let service = Mapped::<Service>::open(loaded, map::SERVICE)?;
        let lut = Slots::open(loaded)?;
        let backends = Mapped::<Backend>::open(loaded, map::BACKENDS)?;
        let next_hops = Mapped::<NextHop>::open(loaded, map::NEXTHOPS)?;
        let mut tables = Self {
            config: typed(loaded, map::CONFIG, Map::Array)?,
            vips: typed(loaded, map::VIPS, Map::HashMap)?,
            index: ServiceIndex::open(loaded)?,
            trusted_edges: typed(loaded, map::TRUSTED_EDGES, Map::LpmTrie)?,
            edge_macs: typed(loaded, map::EDGE_MACS, Map::HashMap)?,
            vlans: typed(loaded, map::VLANS, Map::HashMap)?,
            paths: typed(loaded, map::PATHS, Map::HashMap)?,
            source_ranges: typed(loaded, map::SOURCE_RANGES, Map::LpmTrie)?,
            pods: typed(loaded, map::PODS, Map::HashMap)?,
            local_flows: typed(loaded, map::LOCAL_FLOWS, Map::LruHashMap)?,
            probes: typed(loaded, map::PROBES, Map::Array)?,
            flows: typed(loaded, map::FLOWS, Map::LruHashMap)?,
            flows_datagram: typed(loaded, map::FLOWS_DATAGRAM, Map::LruHashMap)?,
            flows_embryonic: typed(loaded, map::FLOWS_EMBRYONIC, Map::LruHashMap)?,
            probe_peers: typed(loaded, map::PROBE_PEERS, Map::LruHashMap)?,
            fragments: typed(loaded, map::FRAGMENTS, Map::LruHashMap)?,
            announce_stamp: Mapped::open(loaded, map::ANNOUNCE_STAMP)?,
            announced: typed(loaded, map::ANNOUNCED, Map::HashMap)?,
            announce_links: typed(loaded, map::ANNOUNCE_LINKS, Map::HashMap)?,
            claims: typed(loaded, map::CLAIMS, Map::HashMap)?,
            inherited_claims: Vec::new(),
            nat_forward: typed(loaded, map::NAT_FORWARD, Map::HashMap)?,
            nat_reverse: typed(loaded, map::NAT_REVERSE, Map::HashMap)?,
            nat_counts: typed(loaded, map::NAT_COUNTS, Map::Array)?,
            nat_begun: typed(loaded, map::NAT_BEGUN, Map::Array)?,
            pods_capacity: capacity(&loaded.map(map::PODS)?, map::PODS)?,
            source_ranges_capacity: capacity(&loaded.map(map::SOURCE_RANGES)?, map::SOURCE_RANGES)?,
            counters: counters::Maps::open(loaded)?,
            nat: nat::Nat {
                entries: nat::Entries {
                    forward: typed(loaded, map::NAT_FORWARD, Map::HashMap)?,
                    reverse: typed(loaded, map::NAT_REVERSE, Map::HashMap)?,
                    claims: typed(loaded, map::NAT_CLAIMS, Map::HashMap)?,
                },
                walk: Walk::through(loaded, map::NAT_REVERSE)?,
                found: BTreeMap::new(),
            },
            live: Live::of(loaded)?,
            settings: Settings::default(),
            current_config: Config::default(),
            known_addresses: Arc::default(),
            known_trusted_edges: BTreeSet::new(),
            known_edge_macs: BTreeSet::new(),
            known_announced: BTreeSet::new(),
            arena: Arena::new(lut.length()),
            service_ids: Ids::new(service.length()),
            backend_ids: Ids::new(backends.length()),
            next_hop_ids: Ids::new(next_hops.length()),
            installed: OrdMap::new(),
            specs: Specs::new(),
            backend_by_key: OrdMap::new(),
            ways: OrdMap::new(),
            path_mtus: OrdMap::new(),
            has_paths: false,
            path_errors: 0,
            retired: Retired::default(),
            freed: Freed::default(),
            newest: Newest::default(),
            service,
            lut,
            backends,
            next_hops,
        };
        tables.nat.entries.drop_stale_claims()?;
        tables.find_room_for_nat()?;
        tables.adopt()?;
        tables.publish();
        Ok(tables)
    }

    /// Lists the services in the tables.
    pub fn services(&self) -> impl ExactSizeIterator<Item = (&ServiceKey, &InstalledService)> {
        let services = self.installed.iter();
        services.map(|(key, service)| (key, service.as_ref()))
    }

    /// Returns an installed service.
    pub fn service(&self, key: &ServiceKey) -> Option<&InstalledService> {
        self.installed.get(key).map(Arc::as_ref)
    }

    /// Returns what services were made from under the present settings. Those that an earlier agent made are not
    /// among them, nor is one that could not be made anew.
    ///
    /// A clone shares everything, and two versions are compared without a look at what they share.
    pub const fn specs(&self) -> &Specs {
        &self.specs
    }

    /// Lists the backends in the tables, once for each owner.
    pub fn backends(&self) -> impl Iterator<Item = (&OwnedBackend, &InstalledBackend)> {
        self.backend_by_key.iter()
    }

    /// Counts the slots that each backend of a service owns.
    pub fn slots_by_backend(&self, service: &InstalledService) -> BTreeMap<BackendKey, u32> {
        let mut slots = BTreeMap::new();
        for slot in self.lut.of(service.run) {
            if let Some(backend) = self.backends.get(slot.0).filter(|b| b.flags != 0) {
                *slots.entry(backend_key(backend)).or_default() += 1;
            }
        }
        slots
    }

    /// Sums all counters over all CPUs; beside the owner of the tables, a [`TableReader`] does.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn counters(&self) -> Result<Counters, TableError> {
        let services = self.installed.iter();
        let services = services.map(|(key, service)| (*key, service.id));
        let backends = self.backend_by_key.iter();
        let backends = backends.map(|(key, backend)| (*key, backend.id));
        Ok(Counters {
            reasons: self.counters.reasons()?,
            failures: self.counters.failures()?,
            services: self.counters.services.of_each(services)?,
            backends: self.counters.backends.of_each(backends)?,
        })
    }

    /// Reports how full the tables are.
    pub fn fill(&self) -> Fill {
        self.view().fill()
    }

    /// Counts what was given up so far.
    pub fn freed(&self) -> Freed {
        self.freed
    }

    /// Waits until no packet in flight can still hold a retired id or run, and frees them.
    pub fn reclaim(&mut self) {
        if self.retired.count() == 0 {
            return;
        }
        // What programs have noted names ids too; until that has ended, they stay retired.
        if self.begin_epoch().is_err() {
            return;
        }
        // Who reads counters beside is told, long enough before, that the ids are nobody's.
        self.publish();
        grace::wait();
        let retired = std::mem::take(&mut self.retired);
        for service in retired.services {
            let RetiredService {
                id,
                pods,
                source_ranges,
            } = service;
            self.remove_pods(id, &Pods::new(), &pods);
            self.remove_source_ranges(id, &source_ranges);
            self.service.write(id, Service::default());
            self.service_ids.release(id);
        }
        for run in retired.runs {
            self.arena.release(run);
        }
        self.index.reclaim();
        for id in retired.backends {
            self.backends.write(id, Backend::default());
            self.backend_ids.release(id);
        }
        for id in retired.next_hops {
            self.next_hops.write(id, NextHop::default());
            self.next_hop_ids.release(id);
        }
    }

    fn reclaim_if_worth_it(&mut self) {
        if self.retired.count() >= RETIRED_AT_MOST {
            self.reclaim();
        }
    }

    /// Tries again after a grace period where something retired may help.
    fn or_reclaim<T>(&mut self, mut take: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        take(self).or_else(|| {
            if self.retired.count() == 0 {
                return None;
            }
            self.reclaim();
            take(self)
        })
    }
}

/// Returns how many entries a map may have.
fn capacity(map: &MapData, name: &'static str) -> Result<usize, TableError> {
    let info = map.info().map_err(read_failed(name))?;
    Ok(info.max_entries() as usize)
}
