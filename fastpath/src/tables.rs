//! The tables, as typed operations: what a change of a service does to the maps.
//!
//! ```text
//! SERVICES_V4/V6        SERVICE                 LUT               BACKENDS        NEXTHOPS
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
    fmt, io,
    mem::offset_of,
    net::IpAddr,
    sync::atomic::Ordering,
};

use aya::maps::{self, Map, MapData, MapError, lpm_trie::Key};
use ipnet::IpNet;
use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_VIP, AddressKey, BACKEND_LOCAL, BACKEND_V4, BACKEND_V6, Backend,
        Config, EdgeMac, EdgePrefix, HOP_GATEWAY, NextHop, Pod, PodKey, Service, ServiceKeyV4,
        ServiceKeyV6, ServiceWord, Slot, SourcePrefix, Tuple, map,
    },
    maglev,
};

pub use self::{
    arena::{Arena, ArenaFill, Run},
    counters::{Counters, ReasonCount},
    explain::{ChosenBackend, Explanation, Outcome},
    types::{
        BackendSpec, ForwardMode, Protocol, ServiceKey, ServiceKeyError, ServiceSpec, Settings,
    },
};
use self::{
    ids::Ids,
    lut::Lut,
    mapped::Mapped,
    types::{address_key, address_of},
};
use crate::{
    load::{LoadError, Loaded},
    nexthop::Resolution,
};

mod arena;
mod counters;
mod explain;
mod grace;
mod ids;
mod lut;
mod mapped;
mod types;

/// Why a table could not be opened, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A map is missing from the object or cannot be opened.
    #[error(transparent)]
    Open(#[from] LoadError),
    /// A map cannot be shared with the kernel as memory.
    #[error("cannot map the table {map} into memory")]
    Mapping {
        /// The map.
        map: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel does not show what is in a table.
    #[error("cannot read the table {map}")]
    Read {
        /// The map.
        map: &'static str,
        /// What the kernel said.
        source: MapError,
    },
    /// The kernel refused a change.
    #[error("cannot write to the table {map}")]
    Write {
        /// The map.
        map: &'static str,
        /// What the kernel said.
        source: MapError,
    },
    /// No run of the arena is long enough.
    #[error(
        "the LUT arena is full: service {service} needs {wanted} slots in a row, the longest free run \
         has {largest} of {free} free slots; raise tables.lut_arena_mib and restart, or ask for a smaller table"
    )]
    ArenaFull {
        /// The service that was refused.
        service: ServiceKey,
        /// Slots asked for.
        wanted: u32,
        /// The longest run to be had.
        largest: u32,
        /// All free slots.
        free: u32,
    },
    /// A table has no free entry.
    #[error(
        "the table {map} is full with {entries} entries; raise its size under tables and restart"
    )]
    TableFull {
        /// The map.
        map: &'static str,
        /// Its size.
        entries: usize,
    },
    /// The lookup table of a service cannot be built.
    #[error("service {service}: {source}")]
    Lut {
        /// The service.
        service: ServiceKey,
        /// Why.
        source: maglev::MaglevError,
    },
    /// A backend would get no slot of the table size that was asked for.
    #[error(
        "service {service}: the weight of backend {backend} is too small beside the others' for one \
         of {slots} slots; raise it, or ask for a larger table"
    )]
    WeightTooSmall {
        /// The service.
        service: ServiceKey,
        /// The backend's node address.
        backend: IpAddr,
        /// The table size.
        slots: u32,
    },
    /// More backends than the largest table has slots for.
    #[error(
        "service {service}: {backends} backends are more than a table of {slots} slots can hold"
    )]
    TooManyBackends {
        /// The service.
        service: ServiceKey,
        /// Backends asked for.
        backends: usize,
        /// The largest table.
        slots: u32,
    },
}

/// A service as the tables have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledService {
    /// Service id.
    pub id: u32,
    /// Its lookup table.
    pub run: Run,
    /// How packets reach the backends.
    pub mode: ForwardMode,
    /// Backend ids in the lookup table.
    backends: BTreeSet<u32>,
    /// The specification it was made from; unknown after adoption.
    spec: Option<ServiceSpec>,
}

impl InstalledService {
    /// Returns what the service was made from, or nothing if an earlier agent made it.
    pub fn spec(&self) -> Option<&ServiceSpec> {
        self.spec.as_ref()
    }
}

/// A backend as the tables have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstalledBackend {
    /// Backend id.
    pub id: u32,
    /// Services whose lookup table names it.
    pub services: u32,
}

/// How a node address is reached.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Id of the next hop; 0 for none.
    next_hop: u32,
    /// As it was told; unknown after adoption.
    resolution: Option<Resolution>,
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
    /// Backends in use and possible.
    pub backends: Usage,
    /// Next hops in use and possible.
    pub next_hops: Usage,
}

/// Entries of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Entries in use, those in their grace period included.
    pub used: usize,
    /// Entries possible.
    pub capacity: usize,
}

/// What was taken out of use and waits for its grace period.
#[derive(Debug, Default)]
struct Retired {
    services: Vec<u32>,
    runs: Vec<Run>,
    backends: Vec<u32>,
    next_hops: Vec<u32>,
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
    config: maps::Array<MapData, Config>,
    vips: maps::HashMap<MapData, AddressKey, u32>,
    services_v4: maps::HashMap<MapData, ServiceKeyV4, u32>,
    services_v6: maps::HashMap<MapData, ServiceKeyV6, u32>,
    trusted_edges: maps::lpm_trie::LpmTrie<MapData, EdgePrefix, u32>,
    edge_macs: maps::HashMap<MapData, EdgeMac, u32>,
    source_ranges: maps::lpm_trie::LpmTrie<MapData, SourcePrefix, u32>,
    pods: maps::HashMap<MapData, PodKey, Pod>,
    local_flows: maps::HashMap<MapData, Tuple, u64>,
    service: Mapped<Service>,
    lut: Mapped<Slot>,
    backends: Mapped<Backend>,
    next_hops: Mapped<NextHop>,
    counters: counters::Maps,

    settings: Settings,
    current_config: Config,
    arena: Arena,
    service_ids: Ids,
    backend_ids: Ids,
    next_hop_ids: Ids,
    installed: BTreeMap<ServiceKey, InstalledService>,
    backend_by_address: BTreeMap<IpAddr, InstalledBackend>,
    ways: BTreeMap<IpAddr, Way>,
    retired: Retired,
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

fn read_failed(map: &'static str) -> impl FnOnce(MapError) -> TableError {
    move |source| TableError::Read { map, source }
}

fn write_failed(map: &'static str) -> impl FnOnce(MapError) -> TableError {
    move |source| TableError::Write { map, source }
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
        fn mapped<T: aya::Pod>(
            loaded: &Loaded,
            name: &'static str,
        ) -> Result<Mapped<T>, TableError> {
            Mapped::new(&loaded.map(name)?)
                .map_err(|source| TableError::Mapping { map: name, source })
        }

        let service = mapped::<Service>(loaded, map::SERVICE)?;
        let lut = mapped::<Slot>(loaded, map::LUT)?;
        let backends = mapped::<Backend>(loaded, map::BACKENDS)?;
        let next_hops = mapped::<NextHop>(loaded, map::NEXTHOPS)?;
        let mut tables = Self {
            config: typed(loaded, map::CONFIG, Map::Array)?,
            vips: typed(loaded, map::VIPS, Map::HashMap)?,
            services_v4: typed(loaded, map::SERVICES_V4, Map::HashMap)?,
            services_v6: typed(loaded, map::SERVICES_V6, Map::HashMap)?,
            trusted_edges: typed(loaded, map::TRUSTED_EDGES, Map::LpmTrie)?,
            edge_macs: typed(loaded, map::EDGE_MACS, Map::HashMap)?,
            source_ranges: typed(loaded, map::SOURCE_RANGES, Map::LpmTrie)?,
            pods: typed(loaded, map::PODS, Map::HashMap)?,
            local_flows: typed(loaded, map::LOCAL_FLOWS, Map::LruHashMap)?,
            counters: counters::Maps {
                reasons: typed(loaded, map::REASONS, Map::PerCpuArray)?,
                service_traffic: typed(loaded, map::SERVICE_TRAFFIC, Map::PerCpuArray)?,
                backend_traffic: typed(loaded, map::BACKEND_TRAFFIC, Map::PerCpuArray)?,
            },
            settings: Settings::default(),
            current_config: Config::default(),
            arena: Arena::new(lut.length()),
            service_ids: Ids::new(service.length()),
            backend_ids: Ids::new(backends.length()),
            next_hop_ids: Ids::new(next_hops.length()),
            installed: BTreeMap::new(),
            backend_by_address: BTreeMap::new(),
            ways: BTreeMap::new(),
            retired: Retired::default(),
            service,
            lut,
            backends,
            next_hops,
        };
        tables.adopt()?;
        Ok(tables)
    }

    /// Sets the machine-wide settings.
    ///
    /// Another hash seed moves nearly every flow, and the tables are rebuilt
    /// only as their services are put again.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the write.
    pub fn set_settings(&mut self, settings: Settings) -> Result<(), TableError> {
        let config = Config {
            hash_seed: settings.hash_seed,
            source_v4: settings
                .source_v4
                .map_or([0; 16], |v4| wire_address(v4.into())),
            source_v6: settings.source_v6.map_or([0; 16], |v6| v6.octets()),
            ..Config::default()
        };
        self.config
            .set(0, config, 0)
            .map_err(write_failed(map::CONFIG))?;
        self.settings = settings;
        self.current_config = config;
        Ok(())
    }

    /// Lists the virtual addresses.
    pub fn vips(&self) -> BTreeSet<IpAddr> {
        self.addresses(ADDRESS_VIP)
    }

    /// Lists the addresses of this machine at which IP-in-IP is decapsulated.
    pub fn local_addresses(&self) -> BTreeSet<IpAddr> {
        self.addresses(ADDRESS_LOCAL)
    }

    /// Makes exactly these the virtual and the local addresses.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write, as it does when the table is full.
    pub fn set_addresses(
        &mut self,
        vips: &BTreeSet<IpAddr>,
        local: &BTreeSet<IpAddr>,
    ) -> Result<(), TableError> {
        let mut wanted: BTreeMap<IpAddr, u32> = BTreeMap::new();
        for (addresses, flag) in [(vips, ADDRESS_VIP), (local, ADDRESS_LOCAL)] {
            for address in addresses {
                *wanted.entry(*address).or_default() |= flag;
            }
        }
        for (address, flags) in &wanted {
            let key = address_key(*address);
            if self.vips.get(&key, 0).ok() != Some(*flags) {
                self.vips
                    .insert(key, flags, 0)
                    .map_err(write_failed(map::VIPS))?;
            }
        }
        let present: Result<Vec<AddressKey>, MapError> = self.vips.keys().collect();
        for key in present.map_err(read_failed(map::VIPS))? {
            if !wanted.contains_key(&address_of(key)) {
                self.vips.remove(&key).map_err(write_failed(map::VIPS))?;
            }
        }
        Ok(())
    }

    /// Lists the prefixes from which IP-in-IP is accepted.
    pub fn trusted_edges(&self) -> BTreeSet<IpNet> {
        self.trusted_edges
            .keys()
            .flatten()
            .filter_map(prefix_of)
            .collect()
    }

    /// Makes exactly these the prefixes from which IP-in-IP is accepted.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a write, as it does when the table is full.
    pub fn set_trusted_edges(&mut self, wanted: &BTreeSet<IpNet>) -> Result<(), TableError> {
        let present = self.trusted_edges();
        // The table holds no bits beyond a prefix's length.
        let wanted: BTreeSet<IpNet> = wanted.iter().map(IpNet::trunc).collect();
        for net in wanted.difference(&present) {
            self.trusted_edges
                .insert(&prefix_key(*net), 1, 0)
                .map_err(write_failed(map::TRUSTED_EDGES))?;
        }
        for net in present.difference(&wanted) {
            self.trusted_edges
                .remove(&prefix_key(*net))
                .map_err(write_failed(map::TRUSTED_EDGES))?;
        }
        Ok(())
    }

    /// Lists the services in the tables.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceKey, &InstalledService)> {
        self.installed.iter()
    }

    /// Lists the backends in the tables by node address.
    pub fn backends(&self) -> impl Iterator<Item = (&IpAddr, &InstalledBackend)> {
        self.backend_by_address.iter()
    }

    /// Counts the slots that each backend of a service owns.
    pub fn slots_by_backend(&self, service: &InstalledService) -> BTreeMap<IpAddr, u32> {
        let mut slots = BTreeMap::new();
        for slot in self.run_slots(service.run) {
            if let Some(backend) = self.backends.get(slot.current()).filter(|b| b.flags != 0) {
                *slots.entry(backend_address(backend)).or_default() += 1;
            }
        }
        slots
    }

    /// Adds a service or changes it to the specification.
    ///
    /// A table of the same length is changed slot by slot; otherwise a new one
    /// is built and the service turned to it with one store.
    ///
    /// # Errors
    ///
    /// When the specification cannot be met or a table is full; the service is then as before.
    pub fn put_service(
        &mut self,
        key: ServiceKey,
        spec: &ServiceSpec,
    ) -> Result<Change, TableError> {
        let Lut { log2, owners } = lut::build(&key, spec, self.settings.hash_seed)?;
        let present = self
            .installed
            .get(&key)
            .map(|service| (service.id, service.run));
        let ids = self.take_backends(&spec.backends)?;
        let outcome = match present {
            Some((id, run)) if run.log2 == log2 => {
                let changed = self.replace_slots(run, &owners, &ids);
                self.set_mode(id, spec.mode);
                Ok((
                    id,
                    run,
                    Change {
                        slots: changed,
                        new_table: false,
                    },
                ))
            }
            _ => self.new_table(key, spec, log2, &owners, &ids, present),
        };
        let (id, run, change) = match outcome {
            Ok(done) => done,
            Err(error) => {
                self.drop_backends(ids.iter().copied());
                return Err(error);
            }
        };
        let service = InstalledService {
            id,
            run,
            mode: spec.mode,
            backends: ids.into_iter().collect(),
            spec: Some(spec.clone()),
        };
        if let Some(old) = self.installed.insert(key, service) {
            self.drop_backends(old.backends);
        }
        self.reclaim_if_worth_it();
        Ok(change)
    }

    /// Removes a service; returns whether it was there.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the write; the service is then as before.
    pub fn remove_service(&mut self, key: &ServiceKey) -> Result<bool, TableError> {
        let Some(id) = self.installed.get(key).map(|service| service.id) else {
            return Ok(false);
        };
        self.remove_key(key)?;
        self.store_word(id, ServiceWord::default());
        if let Some(service) = self.installed.remove(key) {
            self.retired.services.push(id);
            self.retired.runs.push(service.run);
            self.drop_backends(service.backends);
        }
        self.reclaim_if_worth_it();
        Ok(true)
    }

    /// Tells how a node address is reached; best before a service names it.
    ///
    /// Unresolved ones are left to the kernel's FIB, packet by packet.
    ///
    /// # Errors
    ///
    /// When the table of next hops is full; the old next hop stays.
    pub fn set_next_hop(
        &mut self,
        target: IpAddr,
        resolution: Resolution,
    ) -> Result<(), TableError> {
        let old = self.ways.get(&target).map_or(0, |way| way.next_hop);
        let next_hop = match resolution {
            Resolution::Resolved(hop) => {
                let hop = next_hop_entry(target, &hop);
                if old != 0 && self.next_hops.read(old) == Some(hop) {
                    old
                } else {
                    let id = self.allocate_next_hop()?;
                    self.next_hops.write(id, hop);
                    id
                }
            }
            Resolution::Local | Resolution::Unresolved(_) => 0,
        };
        self.ways.insert(
            target,
            Way {
                next_hop,
                resolution: Some(resolution),
            },
        );
        if let Some(id) = self
            .backend_by_address
            .get(&target)
            .map(|backend| backend.id)
        {
            self.store_backend_word(id, offset_of!(Backend, next_hop), next_hop);
            let flags = backend_flags(target, resolution);
            self.store_backend_word(id, offset_of!(Backend, flags), flags);
        }
        if old != 0 && old != next_hop {
            self.retired.next_hops.push(old);
        }
        self.reclaim_if_worth_it();
        Ok(())
    }

    /// Returns how a node address is reached, as told last.
    pub fn next_hop(&self, target: IpAddr) -> Option<Resolution> {
        self.ways.get(&target)?.resolution
    }

    /// Forgets the ways to all addresses but these and those of backends.
    pub fn retain_next_hops(&mut self, targets: &BTreeSet<IpAddr>) {
        let backends = &self.backend_by_address;
        let retired = &mut self.retired.next_hops;
        self.ways.retain(|target, way| {
            let keep = targets.contains(target) || backends.contains_key(target);
            if !keep && way.next_hop != 0 {
                retired.push(way.next_hop);
            }
            keep
        });
    }

    /// Sums the counters of all CPUs.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn counters(&self) -> Result<Counters, TableError> {
        let services = self
            .installed
            .iter()
            .map(|(key, service)| (*key, service.id));
        let backends = self
            .backend_by_address
            .iter()
            .map(|(address, b)| (*address, b.id));
        self.counters.sum(services, backends)
    }

    /// Reports how full the tables are.
    pub fn fill(&self) -> Fill {
        let usage = |ids: &Ids| Usage {
            used: ids.capacity() - ids.free(),
            capacity: ids.capacity(),
        };
        Fill {
            arena: self.arena.fill(),
            services: usage(&self.service_ids),
            backends: usage(&self.backend_ids),
            next_hops: usage(&self.next_hop_ids),
        }
    }

    /// Waits until no packet in flight can still hold a retired id or run, and frees them.
    pub fn reclaim(&mut self) {
        if self.retired.count() == 0 {
            return;
        }
        grace::wait();
        let retired = std::mem::take(&mut self.retired);
        for id in retired.services {
            self.service.write(id, Service::default());
            self.service_ids.release(id);
        }
        for run in retired.runs {
            self.arena.release(run);
        }
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

    fn allocate_next_hop(&mut self) -> Result<u32, TableError> {
        self.or_reclaim(|tables| tables.next_hop_ids.allocate())
            .ok_or(TableError::TableFull {
                map: map::NEXTHOPS,
                entries: self.next_hop_ids.capacity(),
            })
    }

    /// Counts one more user for each backend; new ones are written first.
    fn take_backends(&mut self, specs: &[BackendSpec]) -> Result<Vec<u32>, TableError> {
        let mut taken = Vec::with_capacity(specs.len());
        for spec in specs {
            match self.take_backend(spec.address) {
                Ok(id) => taken.push(id),
                Err(error) => {
                    self.drop_backends(taken);
                    return Err(error);
                }
            }
        }
        Ok(taken)
    }

    fn take_backend(&mut self, address: IpAddr) -> Result<u32, TableError> {
        if let Some(backend) = self.backend_by_address.get_mut(&address) {
            backend.services += 1;
            return Ok(backend.id);
        }
        let id = self
            .or_reclaim(|tables| tables.backend_ids.allocate())
            .ok_or(TableError::TableFull {
                map: map::BACKENDS,
                entries: self.backend_ids.capacity(),
            })?;
        let way = self.ways.get(&address);
        let entry = Backend {
            address: wire_address(address),
            next_hop: way.map_or(0, |way| way.next_hop),
            flags: match way.and_then(|way| way.resolution) {
                Some(resolution) => backend_flags(address, resolution),
                None => family_flag(address),
            },
            ..Backend::default()
        };
        self.counters.clear_backend(id);
        self.backends.write(id, entry);
        self.backend_by_address
            .insert(address, InstalledBackend { id, services: 1 });
        Ok(id)
    }

    /// Counts one user less for each backend; those without any are retired.
    fn drop_backends(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            let Some(entry) = self.backends.read(id) else {
                continue;
            };
            let address = backend_address(&entry);
            let Some(backend) = self.backend_by_address.get_mut(&address) else {
                continue;
            };
            backend.services -= 1;
            if backend.services == 0 {
                self.backend_by_address.remove(&address);
                self.retired.backends.push(id);
            }
        }
    }

    /// Turns a service to a new run: fills it, then publishes it with one store.
    fn new_table(
        &mut self,
        key: ServiceKey,
        spec: &ServiceSpec,
        log2: u8,
        owners: &[u32],
        ids: &[u32],
        present: Option<(u32, Run)>,
    ) -> Result<(u32, Run, Change), TableError> {
        let run = self
            .or_reclaim(|tables| tables.arena.allocate(log2))
            .ok_or_else(|| {
                let ArenaFill {
                    free,
                    largest_free: largest,
                    ..
                } = self.arena.fill();
                TableError::ArenaFull {
                    service: key,
                    wanted: 1 << log2,
                    largest,
                    free,
                }
            })?;
        self.replace_slots(run, owners, ids);
        let word = ServiceWord::new(run.base, log2, key_check(&key));
        let id = match present {
            Some((id, old)) => {
                self.store_word(id, word);
                self.set_mode(id, spec.mode);
                self.retired.runs.push(old);
                id
            }
            None => match self.publish(key, spec.mode, word) {
                Ok(id) => id,
                Err(error) => {
                    self.arena.release(run);
                    return Err(error);
                }
            },
        };
        Ok((
            id,
            run,
            Change {
                slots: run.length(),
                new_table: true,
            },
        ))
    }

    /// Writes the entry of a new service, then the key that leads to it.
    fn publish(
        &mut self,
        key: ServiceKey,
        mode: ForwardMode,
        word: ServiceWord,
    ) -> Result<u32, TableError> {
        let id = self
            .or_reclaim(|tables| tables.service_ids.allocate())
            .ok_or(TableError::TableFull {
                map: map::SERVICE,
                entries: self.service_ids.capacity(),
            })?;
        self.counters.clear_service(id);
        self.service.write(
            id,
            Service {
                word,
                mode: mode.to_abi(),
                ..Service::default()
            },
        );
        if let Err(error) = self.insert_key(&key, id) {
            self.service.write(id, Service::default());
            self.service_ids.release(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Stores the owners that differ, each with compare-exchange; returns how many did.
    fn replace_slots(&mut self, run: Run, owners: &[u32], ids: &[u32]) -> u32 {
        let mut changed = 0;
        for (index, owner) in (run.base..).zip(owners) {
            let Some(slot) = self.lut.atomic_u64(index, 0) else {
                continue;
            };
            let id = ids.get(*owner as usize).copied().unwrap_or(0);
            let update = |old: u64| {
                let old = Slot(old);
                (old.current() != id).then(|| old.with_current(id).0)
            };
            changed += u32::from(
                slot.fetch_update(Ordering::AcqRel, Ordering::Acquire, update)
                    .is_ok(),
            );
        }
        changed
    }

    fn run_slots(&self, run: Run) -> impl Iterator<Item = Slot> {
        (run.base..run.base + run.length())
            .filter_map(|index| Some(Slot(self.lut.atomic_u64(index, 0)?.load(Ordering::Acquire))))
    }

    fn store_word(&mut self, id: u32, word: ServiceWord) {
        if let Some(stored) = self.service.atomic_u64(id, offset_of!(Service, word)) {
            stored.store(word.0, Ordering::Release);
        }
    }

    fn set_mode(&mut self, id: u32, mode: ForwardMode) {
        if let Some(stored) = self.service.atomic_u32(id, offset_of!(Service, mode)) {
            stored.store(mode.to_abi(), Ordering::Release);
        }
    }

    fn store_backend_word(&mut self, id: u32, offset: usize, value: u32) {
        if let Some(stored) = self.backends.atomic_u32(id, offset) {
            stored.store(value, Ordering::Release);
        }
    }

    fn insert_key(&mut self, key: &ServiceKey, id: u32) -> Result<(), TableError> {
        match key_of(key) {
            KeyOf::V4(wire) => self
                .services_v4
                .insert(wire, id, 0)
                .map_err(write_failed(map::SERVICES_V4)),
            KeyOf::V6(wire) => self
                .services_v6
                .insert(wire, id, 0)
                .map_err(write_failed(map::SERVICES_V6)),
        }
    }

    fn remove_key(&mut self, key: &ServiceKey) -> Result<(), TableError> {
        match key_of(key) {
            KeyOf::V4(wire) => self
                .services_v4
                .remove(&wire)
                .map_err(write_failed(map::SERVICES_V4)),
            KeyOf::V6(wire) => self
                .services_v6
                .remove(&wire)
                .map_err(write_failed(map::SERVICES_V6)),
        }
    }

    fn addresses(&self, flag: u32) -> BTreeSet<IpAddr> {
        self.vips
            .iter()
            .flatten()
            .filter(|(_, flags)| flags & flag != 0)
            .map(|(key, _)| address_of(key))
            .collect()
    }

    /// Takes over what the maps hold; what nothing leads to is cleared.
    fn adopt(&mut self) -> Result<(), TableError> {
        self.current_config = self.config.get(&0, 0).map_err(read_failed(map::CONFIG))?;
        self.settings = settings_of(&self.current_config);
        for (key, id) in self.installed_keys()? {
            match self.adopt_service(&key, id) {
                Some(service) => {
                    self.installed.insert(key, service);
                }
                None => self.remove_key(&key)?,
            }
        }
        // The agent before this one may have ended right after it took something out of use.
        grace::wait();
        self.clear_unreferenced();
        Ok(())
    }

    /// Lists the keys of both families with their ids.
    ///
    /// A list that ends early would have the services beyond it taken for removed.
    fn installed_keys(&self) -> Result<Vec<(ServiceKey, u32)>, TableError> {
        let mut keys = Vec::new();
        for entry in self.services_v4.iter() {
            let (key, id) = entry.map_err(read_failed(map::SERVICES_V4))?;
            let (address, port, protocol) = key.parts();
            keys.extend(service_key(address.into(), port, protocol).zip(Some(id)));
        }
        for entry in self.services_v6.iter() {
            let (key, id) = entry.map_err(read_failed(map::SERVICES_V6))?;
            let (address, port, protocol) = key.parts();
            keys.extend(service_key(address.into(), port, protocol).zip(Some(id)));
        }
        Ok(keys)
    }

    /// Reads a service back, or nothing where the entries contradict each other.
    fn adopt_service(&mut self, key: &ServiceKey, id: u32) -> Option<InstalledService> {
        let entry = self.service.read(id)?;
        let run = Run {
            base: entry.word.base(),
            log2: entry.word.log2_length(),
        };
        if entry.word.check() != key_check(key) || !self.service_ids.reserve(id) {
            return None;
        }
        if !self.arena.reserve(run) {
            self.service_ids.release(id);
            return None;
        }
        let owners: BTreeSet<u32> = self
            .run_slots(run)
            .map(Slot::current)
            .filter(|owner| *owner != 0)
            .collect();
        let backends = owners
            .into_iter()
            .filter(|owner| self.adopt_backend(*owner))
            .collect();
        let mode = ForwardMode::from_abi(entry.mode);
        Some(InstalledService {
            id,
            run,
            mode,
            backends,
            spec: None,
        })
    }

    /// Counts a service for a backend in the maps; returns whether there is such a backend.
    fn adopt_backend(&mut self, id: u32) -> bool {
        let Some(entry) = self.backends.read(id).filter(|entry| entry.flags != 0) else {
            return false;
        };
        let address = backend_address(&entry);
        if let Some(backend) = self.backend_by_address.get_mut(&address) {
            if backend.id == id {
                backend.services += 1;
            }
            return backend.id == id;
        }
        if !self.backend_ids.reserve(id) {
            return false;
        }
        if self.next_hop_ids.reserve(entry.next_hop) {
            self.ways.insert(
                address,
                Way {
                    next_hop: entry.next_hop,
                    resolution: None,
                },
            );
        }
        self.backend_by_address
            .insert(address, InstalledBackend { id, services: 1 });
        true
    }

    fn clear_unreferenced(&mut self) {
        for id in 1..self.service.length() {
            if self.service_ids.is_free(id) && self.service.read(id) != Some(Service::default()) {
                self.service.write(id, Service::default());
            }
        }
        for id in 1..self.backends.length() {
            if self.backend_ids.is_free(id) && self.backends.read(id) != Some(Backend::default()) {
                self.backends.write(id, Backend::default());
            }
        }
        for id in 1..self.next_hops.length() {
            if self.next_hop_ids.is_free(id) && self.next_hops.read(id) != Some(NextHop::default())
            {
                self.next_hops.write(id, NextHop::default());
            }
        }
    }
}

enum KeyOf {
    V4(ServiceKeyV4),
    V6(ServiceKeyV6),
}

fn key_of(key: &ServiceKey) -> KeyOf {
    let port = key.port.to_be_bytes();
    let protocol = key.protocol.number();
    match key.address {
        IpAddr::V4(v4) => KeyOf::V4(ServiceKeyV4::new(v4.octets(), port, protocol)),
        IpAddr::V6(v6) => KeyOf::V6(ServiceKeyV6::new(v6.octets(), port, protocol)),
    }
}

fn service_key(address: IpAddr, port: u16, protocol: u8) -> Option<ServiceKey> {
    Some(ServiceKey {
        address,
        port,
        protocol: Protocol::from_number(protocol)?,
    })
}

fn key_check(key: &ServiceKey) -> u32 {
    match key_of(key) {
        KeyOf::V4(wire) => wire.check(),
        KeyOf::V6(wire) => wire.check(),
    }
}

/// Spells an address as `BACKENDS` does: IPv4 in the first four bytes.
fn wire_address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

const fn family_flag(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => BACKEND_V4,
        IpAddr::V6(_) => BACKEND_V6,
    }
}

fn backend_flags(address: IpAddr, resolution: Resolution) -> u32 {
    let local = if resolution == Resolution::Local {
        BACKEND_LOCAL
    } else {
        0
    };
    family_flag(address) | local
}

fn backend_address(backend: &Backend) -> IpAddr {
    if backend.flags & BACKEND_V4 != 0 {
        backend.address_v4().into()
    } else {
        backend.address.into()
    }
}

fn settings_of(config: &Config) -> Settings {
    let [a, b, c, d, ..] = config.source_v4;
    Settings {
        hash_seed: config.hash_seed,
        source_v4: Some([a, b, c, d].into()).filter(|v4: &std::net::Ipv4Addr| !v4.is_unspecified()),
        source_v6: Some(config.source_v6.into())
            .filter(|v6: &std::net::Ipv6Addr| !v6.is_unspecified()),
    }
}

fn next_hop_entry(target: IpAddr, hop: &crate::nexthop::NextHop) -> NextHop {
    let [a, b, c, d, e, f] = hop.destination_mac;
    let [g, h, i, j, k, l] = hop.source_mac;
    let source = hop
        .source
        .filter(|source| source.is_ipv4() == target.is_ipv4());
    NextHop {
        ifindex: hop.ifindex,
        mtu: hop.mtu,
        source: source.map_or([0; 16], wire_address),
        macs: [a, b, c, d, e, f, g, h, i, j, k, l],
        vlan: hop.vlan.unwrap_or(0).to_be_bytes(),
        flags: if hop.via_gateway { HOP_GATEWAY } else { 0 },
        ..NextHop::default()
    }
}

fn prefix_key(net: IpNet) -> Key<EdgePrefix> {
    let front = match net {
        IpNet::V4(_) => EdgePrefix::FRONT_BITS_V4,
        IpNet::V6(_) => EdgePrefix::FRONT_BITS_V6,
    };
    let data = EdgePrefix::new(address_key(net.network()));
    Key::new(front + u32::from(net.prefix_len()), data)
}

fn prefix_of(key: Key<EdgePrefix>) -> Option<IpNet> {
    let address = address_of(key.data().address());
    let front = match address {
        IpAddr::V4(_) => EdgePrefix::FRONT_BITS_V4,
        IpAddr::V6(_) => EdgePrefix::FRONT_BITS_V6,
    };
    let length = key.prefix_len().checked_sub(front)?;
    IpNet::new(address, u8::try_from(length).ok()?).ok()
}
