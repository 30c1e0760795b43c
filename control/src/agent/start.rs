//! The start: the configuration is validated, the program loaded, what an earlier agent left adopted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use fastpath::facts::{self, Bpffs};
use fastpath::load::{LoadError, Loader};
use fastpath::nexthop::{NetlinkError, Watcher};
use fastpath::pins::{PinError, Pins};
use fastpath::tables::{Specs, TableError, Tables};
use tokio::sync::watch;
use xdp_prog::abi::{WAYS, map};

use super::Agent;
use super::announce::Announcing;
use super::cluster::Cluster;
use super::next_hops::NextHops;
use super::path_mtus::PathMtus;
use super::problems::Problems;
use super::reload::unix_time;
use super::room::Refused;
use super::sweeps::Sweeps;
use crate::announce::Pulse;
use crate::api::ConfigStatus;
use crate::census::Census;
use crate::chain::chain;
use crate::config::{Config, ConfigError, TableSizes, host};
use crate::health::monitor::Monitor;
use crate::health::selection::Selection;
use crate::health::targets::NotMade;
use crate::health::ways::Ways;
use crate::kubernetes::Feed;
use crate::random::random;
use crate::target::{Machine, Shapes};

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
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
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// What an earlier agent pinned cannot be read.
    #[error(transparent)]
    Adopt(#[from] PinError),
    /// The program cannot be loaded.
    #[error("cannot load the dataplane")]
    Load(#[from] LoadError),
    /// The tables cannot be opened.
    #[error("cannot open the tables")]
    Tables(#[source] TableError),
    /// Routes and neighbours cannot be followed.
    #[error("cannot follow routes and neighbours")]
    NextHops(#[from] NetlinkError),
    /// The program could not be attached anywhere.
    #[error("not attached to any interface:\n{}", .0.join("\n"))]
    NotAttached(Vec<String>),
}

impl Agent {
    /// Validates the configuration against this machine, loads the program, adopts what an
    /// earlier agent left, programs the tables and attaches.
    ///
    /// With a feed, services and nodes come from there; until its first state the tables stay as they are.
    ///
    /// # Errors
    ///
    /// Each names the cause and the remedy. What an earlier agent left goes on serving.
    pub fn start(path: &Path, config: Config, feed: Option<Feed>) -> Result<Self, StartError> {
        let facts = host::facts().map_err(StartError::Facts)?;
        host::validate(path, &config, &facts)?;
        let pins = Pins::new(&config.pin_dir);
        let pins_lock = lock_pins(&config.pin_dir)?;
        pins.follow_renames()?;
        let others = pins.other_versions()?;
        for other in &others {
            tracing::warn!(
                pins = %other.display(),
                "pins of another table layout: programs are replaced in place, tables filled anew; \
                 what was counted and remembered of flows is not carried over"
            );
        }
        let inherited = pins.interfaces()?.into_iter().collect();
        let inherited_egress = pins.egress_devices()?.into_iter().collect();
        let loaded = loader(pins.clone(), config.tables).load()?;
        for kept in loaded.kept_sizes() {
            tracing::warn!(
                map = kept.map,
                pinned = kept.pinned,
                asked = kept.asked,
                "a pinned table keeps its size until `guideway detach`"
            );
        }
        let mut tables = Tables::open(&loaded).map_err(StartError::Tables)?;
        for [announced, claims] in pins.open_maps_in_force([map::ANNOUNCED, map::CLAIMS])? {
            if let Err(error) = tables.inherit_announced(announced, claims) {
                tracing::warn!(
                    error = chain(&error),
                    "what the other layout announces is not gone on with until the election has settled"
                );
            }
        }
        let machine = Machine::of(&config.desired, &facts);
        let cluster = feed.map(Cluster::new);
        if let Some(cluster) = &cluster {
            cluster.show_machine(&facts, &config.desired);
        }
        let mut agent = Self {
            health: Arc::new(Monitor::new(random())),
            selection: Selection::default(),
            health_changed: false,
            ways: Ways::new(tables.probe_capacity()),
            targets: None,
            not_made: NotMade::default(),
            started_with: config.clone(),
            status: ConfigStatus {
                path: path.display().to_string(),
                loaded_at: unix_time(),
                reloads: 1,
                ..ConfigStatus::default()
            },
            config,
            path: path.to_owned(),
            cluster,
            loaded,
            uncounted: None,
            pins,
            other_layout: !others.is_empty(),
            _pins_lock: pins_lock,
            tables,
            // The watcher first: a change between the two is then not missed.
            watcher: Watcher::new()?,
            next_hops: NextHops::new()?,
            path_mtus: PathMtus::new(Instant::now()),
            settings: None,
            inherited,
            attached: BTreeMap::new(),
            unattached: BTreeMap::new(),
            machine,
            census: Census::default(),
            shapes: Shapes::default(),
            followed: Instant::now(),
            programmed: Instant::now(),
            wanted: Specs::new(),
            refused: Refused::default(),
            announcing: Announcing::default(),
            egress: BTreeMap::new(),
            inherited_egress,
            pods: None,
            pod_devices: BTreeSet::new(),
            sweeps: Sweeps::new(Instant::now()),
            problems: Problems::default(),
            views: watch::Sender::default(),
            pulse: Pulse::new(Instant::now()),
            started: Instant::now(),
            started_at: unix_time(),
        };
        agent.settle();
        if agent.attached.is_empty() && !agent.is_held_back() {
            return Err(StartError::NotAttached(agent.problems.texts().collect()));
        }
        agent.publish();
        tracing::info!(
            services = agent.tables.services().count(),
            interfaces = agent.attached.len(),
            problems = agent.problems.len(),
            "the dataplane serves"
        );
        Ok(agent)
    }
}

/// Returns how many buckets the index of so many services has: half of their places stay free, so that few overflow.
const fn buckets_for(services: u32) -> u32 {
    (services.next_power_of_two() * 2).div_ceil(WAYS)
}

fn loader(pins: Pins, sizes: TableSizes) -> Loader {
    // Id 0 means "none" in these tables.
    let (services, backends, next_hops) =
        (sizes.services + 1, sizes.backends + 1, sizes.next_hops + 1);
    let flows = [
        map::FLOWS,
        map::FLOWS_DATAGRAM,
        map::FLOWS_EMBRYONIC,
        map::LOCAL_FLOWS,
    ];
    let loader = flows.into_iter().fold(Loader::pinned(pins), |loader, map| {
        loader.max_entries(map, sizes.flows)
    });
    loader
        .max_entries(map::SERVICE_INDEX, buckets_for(sizes.services))
        .max_entries(map::SERVICE, services)
        .max_entries(map::SERVICE_TRAFFIC, services)
        .max_entries(map::BACKENDS, backends)
        .max_entries(map::BACKEND_TRAFFIC, backends)
        .max_entries(map::NEXTHOPS, next_hops)
        .max_entries(map::PATHS, next_hops)
        .max_entries(map::LUT, sizes.lut_slots / 2)
        .max_entries(map::VIPS, sizes.vips)
        .max_entries(map::TRUSTED_EDGES, sizes.trusted_edges)
        .max_entries(map::PODS, sizes.pods)
        .max_entries(map::SOURCE_RANGES, sizes.source_ranges)
        .max_entries(map::NAT_FORWARD, sizes.nat_flows)
        .max_entries(map::NAT_REVERSE, sizes.nat_flows)
        .max_entries(map::NAT_COUNTS, services)
}

/// Keeps other agents off the pins for as long as the file is open.
fn lock_pins(pin_dir: &Path) -> Result<File, StartError> {
    let failed = |source| StartError::Pins {
        pin_dir: pin_dir.to_owned(),
        source,
    };
    // Elsewhere the loader says what is wrong with the directory.
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
