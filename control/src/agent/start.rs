//! Starts the agent: validates the configuration, loads the programs, and adopts what an earlier agent left.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use fastpath::facts::{self, Bpffs};
use fastpath::load::{Fate, LoadError, Loader, Resized, Takeover};
use fastpath::nexthop::{NetlinkError, Watcher};
use fastpath::pins::{PinError, Pins};
use fastpath::tables::{self, FormerTablesError, TableError, Tables};
use xdp_prog::abi::{VERSION, WAYS, map};
use xdp_prog::stage::Duties;

use super::Agent;
use super::announce_state::Announcing;
use super::attachments::Attachments;
use super::cluster::Cluster;
use super::departed_pods::DepartedPods;
use super::health_checks::HealthChecks;
use super::mending::Mending;
use super::next_hops::NextHops;
use super::path_mtus::PathMtus;
use super::peers::Peering;
use super::periodic_work::PeriodicWork;
use super::pod_devices::PodDevices;
use super::pod_namespaces::PodNamespaces;
use super::problems::Problems;
use super::programmed::Programmed;
use super::reload::ConfigFile;
use super::view::Publication;
use crate::chain::chain;
use crate::config::effective::effective;
use crate::config::{Config, ConfigError, Datapath, TableSizes, host};
use crate::desired::Desired;
use crate::kubernetes::ClusterFeed;
use crate::peers::PeerStates;
use crate::service_totals::ServiceTotals;
use crate::target_state::{Machine, MachineServices};

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The machine's interfaces and addresses cannot be read.
    #[error("cannot read the addresses of this machine")]
    Facts(#[source] io::Error),
    /// Another agent works on the same pins.
    #[error(
        "another agent works on the pins below {}; stop it first, or set pin_dir to another directory",
        pin_dir.display()
    )]
    PinsTaken {
        /// The pin directory.
        pin_dir: PathBuf,
    },
    /// The pin directory cannot be used.
    #[error("cannot use the pin directory {}", pin_dir.display())]
    Pins {
        /// The pin directory.
        pin_dir: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The pins of an earlier agent cannot be read.
    #[error(transparent)]
    Adopt(#[from] PinError),
    /// The tables of an earlier agent cannot be read.
    #[error("cannot read the tables that are pinned")]
    FormerTables(#[from] FormerTablesError),
    /// A table would be made smaller than what is in it.
    #[error(
        "tables.{table}: {used} entries are in use, {asked} are asked for; ask for more, or remove some first \
         with the size as it was"
    )]
    TooSmall {
        /// The field below `tables`.
        table: &'static str,
        /// Entries that are asked for, which are slots in the lookup tables.
        asked: u32,
        /// Entries in use.
        used: usize,
    },
    /// The programs cannot be loaded.
    #[error("cannot load the dataplane")]
    Load(#[from] LoadError),
    /// The tables cannot be opened.
    #[error("cannot open the tables")]
    Tables(#[source] TableError),
    /// Routes and neighbours cannot be followed.
    #[error("cannot follow routes and neighbours")]
    NextHops(#[from] NetlinkError),
    /// The program could be attached to no interface.
    #[error("not attached to any interface:\n{}", .0.join("\n"))]
    NotAttached(Vec<String>),
}

impl Agent {
    /// Validates the configuration against this machine, loads the programs, adopts what an earlier agent left,
    /// programs the tables and attaches.
    ///
    /// With a feed, services and nodes come from it. Until its first state the tables stay as they are. With `peers`, owners
    /// are exchanged with other edges.
    ///
    /// # Errors
    ///
    /// Each error names cause and remedy. What an earlier agent left goes on serving.
    pub(crate) fn start(
        path: &Path,
        mut config: Config,
        feed: Option<ClusterFeed>,
        peers: Option<PeerStates>,
    ) -> Result<Self, StartError> {
        let facts = host::facts().map_err(StartError::Facts)?;
        let pins = Pins::new(&config.pin_dir);
        config.assume_default_routes(pins.interfaces()?);
        config.find_interfaces(&facts).map_err(StartError::Facts)?;
        host::validate(path, &config, &facts)?;
        let pins_lock = lock_pins(&config.pin_dir)?;
        pins.follow_renames()?;
        refuse_smaller_than_used(&pins, &config.tables)?;
        let machine = Machine::of(&config.desired, &facts);
        let duties = duties(&pins, &config.desired, &machine)?;
        let loader = loader(pins.clone(), &config.tables).duties(duties);
        let loader = match config.datapath {
            Datapath::Xdp => loader,
            Datapath::Afxdp => loader.whole_edge(),
        };
        let loaded = loader.load()?;
        for Resized { map, pinned, asked } in loaded.resized() {
            tracing::info!(map, pinned, asked, "a table gets another size");
        }
        let others = pins.other_versions()?;
        for other in &others {
            tracing::warn!(
                pins = %other.display(),
                "pins of former tables: programs are replaced in place"
            );
        }
        log_takeover(loaded.takeover());
        let attachments = Attachments::new(loaded, pins, pins_lock, !others.is_empty())?;
        let mut tables = Tables::open(&attachments.loaded).map_err(StartError::Tables)?;
        for [announced, claims] in attachments
            .pins
            .open_maps_in_force([map::ANNOUNCED, map::CLAIMS])?
        {
            if let Err(error) = tables.inherit_announced(announced, claims) {
                tracing::warn!(
                    error = chain(&error),
                    "what the former programs announce is not gone on with until the election has settled"
                );
            }
        }
        let waits_for_past = peers.is_some() && tables.services().len() == 0;
        let cluster = feed.map(Cluster::new);
        if let Some(cluster) = &cluster {
            cluster.show_machine(&facts, &config.desired);
        }
        let now = Instant::now();
        let mut agent = Self {
            file: ConfigFile::new(path, &config),
            settings: Arc::new(effective(&config)),
            config,
            cluster,
            machine,
            followed: now,
            // The watcher comes before the first look at routes, so that no change between the two is missed.
            watcher: Watcher::new()?,
            next_hops: NextHops::new()?,
            path_mtus: PathMtus::new(now),
            pod_devices: PodDevices::default(),
            pod_namespaces: PodNamespaces::default(),
            departed_pods: DepartedPods::default(),
            totals: ServiceTotals::default(),
            services_here: MachineServices::default(),
            health_checks: HealthChecks::new(tables.probe_capacity()),
            attachments,
            tables,
            programmed: Programmed::new(now),
            announcing: Announcing::default(),
            peering: Peering::new(peers, waits_for_past),
            mending: Mending::default(),
            whole_edge: None,
            periodic_work: PeriodicWork::new(now),
            problems: Problems::default(),
            publication: Publication::new(now),
        };
        agent.settle();
        let wants_some = !agent.config.desired.interfaces.is_empty();
        if agent.attachments.interfaces.is_empty() && wants_some && !agent.is_held_back() {
            return Err(StartError::NotAttached(agent.problems.texts().collect()));
        }
        agent.publish();
        tracing::info!(
            services = agent.tables.services().count(),
            interfaces = agent.attachments.interfaces.len(),
            problems = agent.problems.len(),
            "the dataplane serves"
        );
        Ok(agent)
    }
}

/// Returns the number of buckets of the index for so many services. Half of the places stay free, so that few
/// buckets overflow.
const fn buckets_for(services: u32) -> u32 {
    (services.next_power_of_two() * 2).div_ceil(WAYS)
}

/// Refuses to make a table smaller than what is in it. Of tables of flows, the newest go on.
fn refuse_smaller_than_used(pins: &Pins, sizes: &TableSizes) -> Result<(), StartError> {
    let asked = [
        ("services", map::SERVICE, sizes.services),
        ("backends", map::BACKENDS, sizes.backends),
        ("next_hops", map::NEXTHOPS, sizes.next_hops),
        ("lut_arena_mib", map::LUT, sizes.lut_slots),
        ("vips", map::VIPS, sizes.vips),
        ("trusted_edges", map::TRUSTED_EDGES, sizes.trusted_edges),
        ("pods", map::PODS, sizes.pods),
        ("source_ranges", map::SOURCE_RANGES, sizes.source_ranges),
    ];
    let entries = BTreeMap::from(entries(sizes));
    for (table, map, asked) in asked {
        let used = tables::in_use_beyond(pins, map, entries[map])?;
        if used > asked as usize {
            return Err(StartError::TooSmall { table, asked, used });
        }
    }
    Ok(())
}

/// Returns the duties that the programs are loaded for at first. What an earlier agent has left may be for any, and goes on.
fn duties(pins: &Pins, desired: &Desired, machine: &Machine) -> Result<Duties, PinError> {
    if pins.map(map::STAGES).exists() || !pins.other_versions()?.is_empty() {
        return Ok(Duties::ALL);
    }
    Ok(Duties {
        node: desired.is_node(&machine.addresses),
        nat: desired.by_nat().next().is_some(),
    })
}

/// Says what becomes of the maps of an earlier version.
fn log_takeover(takeover: &Takeover) {
    if takeover.layout.is_none_or(|layout| layout == VERSION) {
        return;
    }
    let list = |fate| takeover.of(fate).collect::<Vec<_>>().join(" ");
    tracing::info!(
        layout = takeover.layout,
        adopted = list(Fate::Adopted),
        converted = list(Fate::Converted),
        replaced = list(Fate::Replaced),
        "maps of another layout version"
    );
}

/// Returns the loader of an agent with these sizes of tables.
pub(crate) fn loader(pins: Pins, sizes: &TableSizes) -> Loader {
    let entries = entries(sizes).into_iter();
    entries.fold(Loader::pinned(pins), |loader, (map, entries)| {
        loader.max_entries(map, entries)
    })
}

/// Returns the number of entries of each map whose size can be configured.
fn entries(sizes: &TableSizes) -> [(&'static str, u32); 19] {
    // One entry more in these tables: id 0 means "none".
    let (services, backends, next_hops) =
        (sizes.services + 1, sizes.backends + 1, sizes.next_hops + 1);
    [
        (map::FLOWS, sizes.flows),
        (map::FLOWS_DATAGRAM, sizes.flows),
        (map::FLOWS_EMBRYONIC, sizes.flows),
        (map::LOCAL_FLOWS, sizes.flows),
        (map::SERVICE_INDEX, buckets_for(sizes.services)),
        (map::SERVICE, services),
        (map::SERVICE_TRAFFIC, services),
        (map::BACKENDS, backends),
        (map::BACKEND_TRAFFIC, backends),
        (map::NEXTHOPS, next_hops),
        (map::PATHS, next_hops),
        (map::LUT, sizes.lut_slots / 2),
        (map::VIPS, sizes.vips),
        (map::TRUSTED_EDGES, sizes.trusted_edges),
        (map::PODS, sizes.pods),
        (map::SOURCE_RANGES, sizes.source_ranges),
        (map::NAT_FORWARD, sizes.nat_flows),
        (map::NAT_REVERSE, sizes.nat_flows),
        (map::NAT_COUNTS, services),
    ]
}

/// Locks the pin directory while the file is open, so that other agents keep off the pins.
fn lock_pins(pin_dir: &Path) -> Result<File, StartError> {
    let failed = |source| StartError::Pins {
        pin_dir: pin_dir.to_owned(),
        source,
    };
    // On another file system, the loader reports what is wrong.
    if matches!(facts::bpffs(pin_dir), Ok(Bpffs::Mounted)) {
        std::fs::create_dir_all(pin_dir).map_err(failed)?;
    }
    let nearest = pin_dir.ancestors().find(|ancestor| ancestor.exists());
    let directory = File::open(nearest.unwrap_or(Path::new("/"))).map_err(failed)?;
    match directory.try_lock() {
        Ok(()) => Ok(directory),
        Err(TryLockError::WouldBlock) => Err(StartError::PinsTaken {
            pin_dir: pin_dir.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}
