//! The tables as typed operations: each carries out one change of services, backends or settings in the maps.
//!
//! ```text
//! SERVICE_INDEX         SERVICE                 LUT               BACKENDS        NEXTHOPS
//! address, port, --id-> base, length, --slot--> current owner --> address, ----> device, MACs
//! protocol              key check, mode                           next hop
//! ```
//!
//! Beside a slot, `PASTS` says which owners it has had, as a list in `HISTORY`.
//!
//! A packet may be anywhere on this chain while it changes. Therefore an entry is complete before anything points to
//! it, live entries change only by single stores, and an entry to which nothing points any more is reused only after
//! an RCU grace period (see [`Tables::reclaim`]).
//!
//! [`Tables::open`] adopts the contents that an earlier agent left in the maps. Ids, runs and slots stay the same, so
//! a restart changes only what the new specifications ask for.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    ops::Deref,
    sync::Arc,
};

use aya::maps::lpm_trie::Key;
use ipnet::IpNet;
use xdp_prog::{
    abi::{
        AddressKey, Backend, Claim, Client, ClientBackend, Config, Datagram, EdgeMac, EdgePrefix,
        LocalFlow, NextHop, PathReport, Pin, Pod, PodFlow, PodKey, Probe, Service, SourcePrefix,
        TaggedLink, Tuple, map,
    },
    reason::PuntReason,
};

pub(crate) use self::inherit::converted_maps;
#[cfg(feature = "xsk")]
pub(crate) use self::unresolved::Unresolved;
pub use self::{
    announce::AnnouncedElsewhere,
    arena::{Arena, ArenaFill, Run},
    backends::PodNamespace,
    contents::{Contents, DroppedOwners, InstalledBackend, InstalledService, Specs},
    counters::{Counters, ReasonCount},
    error::TableError,
    explain::{ChosenBackend, Explanation, Outcome, Trace, TraceStep, Translated},
    flows::KnownFlow,
    in_use::in_use_beyond,
    inherit::{FormerTables, FormerTablesError, InheritedFlows},
    past::{ended, former_slots, live_past_owners, newest_owners, past_owners},
    probes::{MAX_PROBES, ProbeSpec, probe_mark},
    reader::TableReader,
    retired::Freed,
    slot_owners::{FormerOwner, OwnedSlot, SlotOwners, TakenOwners},
    types::{
        Addresses, BackendKey, BackendSpec, ForwardMode, NatSettings, OwnedBackend, Protocol,
        ServiceKey, ServiceKeyError, ServiceSpec, Settings, TrafficPolicy,
    },
    view::TableView,
    whole_edge::{EdgeTables, EdgeWorld},
};
use self::{
    contents::NodeRoute,
    egress_ports::EgressPorts,
    encode::{backend_key, edge_prefix_key, edge_prefix_of},
    ids::Ids,
    index::ServiceIndex,
    live::Live,
    mapped::Mapped,
    past::Pasts,
    retired::Retired,
    slots::Slots,
    syscall_map::{Mirrored, SyscallMap},
    types::{address_key, address_of},
    view::Newest,
    whole_edge::Hash,
};
use crate::load::Loaded;

mod adopt;
mod announce;
mod arena;
mod backends;
mod batch;
mod contents;
mod counters;
mod egress_ports;
mod encode;
mod error;
mod explain;
mod flows;
mod gate;
mod grace;
mod ids;
mod in_use;
mod index;
mod inherit;
mod layout;
mod live;
mod lut;
mod machine;
mod mapped;
mod nat;
mod need;
mod past;
mod paths;
mod policy;
mod probes;
mod reader;
mod retired;
mod runs;
mod services;
mod slot_owners;
mod slots;
mod syscall_map;
#[cfg(test)]
mod tests;
mod types;
#[cfg(feature = "xsk")]
mod unresolved;
mod view;
mod walk;
mod whole_edge;

/// The extent of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Number of slots that have a new owner.
    pub slots: u32,
    /// Whether the service is new, or its table has a new length.
    pub new_table: bool,
}

/// How full the tables are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    pub arena: ArenaFill,
    /// Services in use and possible.
    pub services: Usage,
    /// Services that found no place in the index, and how many of them there can be.
    pub service_overflow: Usage,
    /// Backends in use and possible.
    pub backends: Usage,
    /// Entries of lists of past owners in use and possible.
    pub past_owners: Usage,
    /// Next hops in use and possible.
    pub next_hops: Usage,
    /// Pods of this machine in use and possible; each counts once per service.
    pub pods: Usage,
    /// Source ranges in use and possible.
    pub source_ranges: Usage,
}

/// Use of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Entries in use, including those in their grace period.
    pub used: usize,
    /// Number of entries that the table can have.
    pub capacity: usize,
}

/// The tables of one dataplane, owned by one agent.
pub struct Tables {
    config: SyscallMap<u32, Config>,
    vips: Mirrored<IpAddr, AddressKey, u32>,
    index: ServiceIndex,
    trusted_edges: Mirrored<IpNet, Key<EdgePrefix>, u32>,
    edge_macs: Mirrored<[u8; 6], EdgeMac, u32>,
    vlans: Mirrored<u32, u32, TaggedLink>,
    paths: Mirrored<IpAddr, AddressKey, PathReport>,
    source_ranges: SyscallMap<Key<SourcePrefix>, u32>,
    pods: SyscallMap<PodKey, Pod>,
    local_flows: SyscallMap<Tuple, LocalFlow>,
    local_ports: SyscallMap<u32, u64>,
    egress_ports: EgressPorts,
    probes: SyscallMap<u32, Probe>,
    flows: SyscallMap<Tuple, PodFlow>,
    flows_datagram: SyscallMap<Tuple, PodFlow>,
    flows_embryonic: SyscallMap<Tuple, PodFlow>,
    probe_peers: SyscallMap<Tuple, AddressKey>,
    fragments: SyscallMap<Tuple, Datagram>,
    announced: Mirrored<IpAddr, AddressKey, u32>,
    announce_stamp: Mapped<u64>,
    announce_links: Mirrored<(u32, u16), TaggedLink, EdgeMac>,
    claims: SyscallMap<AddressKey, Claim>,
    /// The claims of other layout versions from which something was inherited.
    inherited_claims: Vec<SyscallMap<AddressKey, Claim>>,
    service: Mapped<Service>,
    lut: Slots,
    pasts: Pasts,
    /// The lengths that services need, apart from services whose length is given.
    needs: BTreeMap<ServiceKey, need::Need>,
    pins: [SyscallMap<Tuple, Pin>; 2],
    clients: SyscallMap<Client, ClientBackend>,
    backends: Mapped<Backend>,
    next_hops: Mapped<NextHop>,
    counters: counters::Maps,
    nat: nat::Nat,
    live: Live,

    settings: Settings,
    current_config: Config,
    /// Nodes that are known to be unreachable.
    unreachable: BTreeSet<IpAddr>,
    /// The network namespaces of this machine's pods, by the pods' addresses.
    pod_namespaces: BTreeMap<IpAddr, PodNamespace>,
    /// The contents of `VIPS`.
    known_addresses: Arc<Addresses>,
    arena: Arena,
    service_ids: Ids,
    backend_ids: Ids,
    next_hop_ids: Ids,
    contents: Contents,
    /// Number of errors about outer packets when they were last judged.
    path_errors: u64,
    retired: Retired,
    freed: Freed,
    newest: Newest,
    /// The threads that do in user space what the programs do in the kernel, if there are any.
    edge: Option<Arc<EdgeTables>>,
    /// Hashes of which these threads have not seen the last change.
    unseen: BTreeSet<Hash>,
}

impl Deref for Tables {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.contents
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables")
            .field("settings", &self.settings)
            .field("contents", &self.contents)
            .field("fill", &self.fill())
            .finish_non_exhaustive()
    }
}

impl Tables {
    /// Opens the maps of a loaded object and adopts their contents.
    ///
    /// # Errors
    ///
    /// Fails if a map is missing, has another layout, or cannot be read or mapped into memory.
    pub fn open(loaded: &Loaded) -> Result<Self, TableError> {
        let service = Mapped::<Service>::open(loaded, map::SERVICE)?;
        let lut = Slots::open(loaded)?;
        let pasts = Pasts::open(loaded)?;
        let backends = Mapped::<Backend>::open(loaded, map::BACKENDS)?;
        let next_hops = Mapped::<NextHop>::open(loaded, map::NEXTHOPS)?;
        let address = |key| Some(address_of(key));
        let mut tables = Self {
            config: SyscallMap::open(loaded, map::CONFIG)?,
            vips: Mirrored::open(loaded, map::VIPS, address_key, address)?,
            index: ServiceIndex::open(loaded)?,
            trusted_edges: Mirrored::open(
                loaded,
                map::TRUSTED_EDGES,
                edge_prefix_key,
                edge_prefix_of,
            )?,
            edge_macs: Mirrored::open(loaded, map::EDGE_MACS, EdgeMac::new, |key| Some(key.mac()))?,
            vlans: Mirrored::open(loaded, map::VLANS, |device| device, Some)?,
            paths: Mirrored::open(loaded, map::PATHS, address_key, address)?,
            source_ranges: SyscallMap::open(loaded, map::SOURCE_RANGES)?,
            pods: SyscallMap::open(loaded, map::PODS)?,
            local_flows: SyscallMap::open(loaded, map::LOCAL_FLOWS)?,
            local_ports: SyscallMap::open(loaded, map::LOCAL_PORTS)?,
            egress_ports: EgressPorts::open(loaded)?,
            probes: SyscallMap::open(loaded, map::PROBES)?,
            flows: SyscallMap::open(loaded, map::FLOWS)?,
            flows_datagram: SyscallMap::open(loaded, map::FLOWS_DATAGRAM)?,
            flows_embryonic: SyscallMap::open(loaded, map::FLOWS_EMBRYONIC)?,
            probe_peers: SyscallMap::open(loaded, map::PROBE_PEERS)?,
            fragments: SyscallMap::open(loaded, map::FRAGMENTS)?,
            announced: Mirrored::open(loaded, map::ANNOUNCED, address_key, address)?,
            announce_stamp: Mapped::open(loaded, map::ANNOUNCE_STAMP)?,
            announce_links: Mirrored::open(
                loaded,
                map::ANNOUNCE_LINKS,
                |(ifindex, vlan)| TaggedLink::new(ifindex, vlan),
                |key| Some(key.parts()),
            )?,
            claims: SyscallMap::open(loaded, map::CLAIMS)?,
            inherited_claims: Vec::new(),
            counters: counters::Maps::open(loaded)?,
            nat: nat::Nat::open(loaded)?,
            live: Live::of(loaded)?,
            settings: Settings::default(),
            current_config: Config::default(),
            unreachable: BTreeSet::new(),
            pod_namespaces: BTreeMap::new(),
            known_addresses: Arc::default(),
            arena: Arena::new(lut.length()),
            service_ids: Ids::new(service.length()),
            backend_ids: Ids::new(backends.length()),
            next_hop_ids: Ids::new(next_hops.length()),
            contents: Contents::default(),
            path_errors: 0,
            retired: Retired::default(),
            freed: Freed::default(),
            newest: Newest::default(),
            edge: None,
            unseen: BTreeSet::new(),
            pins: [
                SyscallMap::open(loaded, map::PINS)?,
                SyscallMap::open(loaded, map::PINS_YOUNG)?,
            ],
            clients: SyscallMap::open(loaded, map::CLIENTS)?,
            service,
            lut,
            pasts,
            needs: BTreeMap::new(),
            backends,
            next_hops,
        };
        tables.nat.entries.drop_stale_claims()?;
        tables.find_room_for_nat()?;
        tables.adopt()?;
        tables.publish();
        Ok(tables)
    }

    /// Counts the slots that each backend of a service owns.
    pub fn slots_by_backend(&self, service: &InstalledService) -> BTreeMap<BackendKey, u32> {
        let mut slots = BTreeMap::new();
        for slot in self.lut.of(service.run) {
            if let Some(backend) = self.backends.get(slot.owner()).filter(|b| b.flags != 0) {
                *slots.entry(backend_key(backend)).or_default() += 1;
            }
        }
        slots
    }

    /// Sums all counters over all CPUs. Readers other than the owner of the tables use a [`TableReader`].
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be read.
    pub fn counters(&self) -> Result<Counters, TableError> {
        let counters = &self.counters;
        let services = self.services();
        let backends = self.backends();
        Ok(Counters {
            reasons: counters.reasons(),
            failures: counters.failures()?,
            services: services
                .map(|(key, service)| (*key, counters.services.of(service.id)))
                .collect(),
            backends: backends
                .map(|(key, backend)| (*key, counters.backends.of(backend.id)))
                .collect(),
        })
    }

    /// Returns the number of packets that XDP has handed to the agent.
    pub fn punted(&self) -> u64 {
        let reasons = PuntReason::ALL.iter();
        reasons
            .map(|reason| self.counters.reason(reason.index()))
            .sum()
    }

    /// Reports how full the tables are.
    pub fn fill(&self) -> Fill {
        self.view().fill()
    }
}
