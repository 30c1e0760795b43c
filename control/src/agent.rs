//! The agent: keeps the dataplane equal to the configuration, and answers for it.
//!
//! One thread owns the tables and does everything in order; signals, the file watch,
//! the socket and the metrics listener run beside it and send it [`Command`]s through
//! a [`Handle`]. The thread sleeps in the next-hop watcher, which a command ends.
//!
//! Everything is level-triggered: whatever happened, the difference between installed
//! and desired is computed anew and applied. What cannot be applied leaves the rest in
//! force, is reported, and is tried again with growing pauses.

mod announce;
mod answers;
mod apply;
mod cluster;
mod conditions;
mod egress;
mod handle;
mod next_hops;
mod problems;
mod sweeps;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastpath::attach::EgressAttachment;
use fastpath::capture;
use fastpath::facts::{self, Bpffs, InterfaceError};
use fastpath::load::{LoadError, Loaded, Loader};
use fastpath::memory;
use fastpath::nexthop::{NetlinkError, Wake, Waker, Watcher};
use fastpath::pins::{PinError, Pins};
use fastpath::tables::{Settings, Specs, TableError, Tables};
use xdp_prog::abi::map;

use self::announce::Announcing;
use self::apply::Attached;
use self::cluster::Cluster;
pub use self::handle::{Command, Handle};
use self::next_hops::NextHops;
use self::problems::{Item, Problems};
use self::sweeps::NatSweeps;
use crate::api::{ConfigStatus, Detached};
use crate::census::Census;
use crate::config::{self, Config, ConfigError, Source, TableSizes, host};
use crate::health::monitor::Monitor;
use crate::health::selection::Selection;
use crate::health::targets::{Surroundings, Targets};
use crate::health::ways::Ways;
use crate::kubernetes::Feed;
use crate::random::random;
use crate::target::{Machine, Shapes};

/// How often the machine is looked at without an event: a path MTU is learnt without one.
const TIMER: Duration = Duration::from_secs(30);
/// Flows of NAT mode that one sweep looks at: all of a table of the usual size.
const SWEEP_FLOWS: usize = 262_144;
/// How often the agent sweeps at most.
const SWEEP_PAUSE: Duration = Duration::from_secs(5);
/// Entries of the tables of flows that the agent counts at a time.
const COUNT_FLOWS: usize = 65_536;
/// How long the agent leaves the flows uncounted once it has counted those of all tables.
const COUNT_PAUSE: Duration = Duration::from_secs(60);
/// How often the agent gives back freed memory at most: it takes milliseconds, in which nothing else is done.
const RELEASE_PAUSE: Duration = Duration::from_secs(60);
/// Items of one kind that are logged one by one: a switch that fails takes a thousand nodes along.
const LOGGED_ONE_BY_ONE: usize = 10;

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

/// The dataplane and everything known about it.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    /// What the file said when the agent started; part of it cannot change later.
    started_with: Config,
    status: ConfigStatus,
    path: PathBuf,
    /// Where services and nodes come from, if it is not the file.
    cluster: Option<Cluster>,

    loaded: Loaded,
    pins: Pins,
    /// Whether the tables of an earlier agent are of another layout, so that its programs use none of ours.
    other_layout: bool,
    /// Held for as long as the agent runs.
    _pins_lock: File,
    tables: Tables,
    next_hops: NextHops,
    watcher: Watcher,

    settings: Option<Settings>,
    /// Interfaces that an earlier agent attached to and this one has not taken over yet.
    inherited: BTreeSet<String>,
    attached: BTreeMap<String, Attached>,
    /// Wanted interfaces without the program, with their numbers when last looked at.
    unattached: BTreeMap<String, Option<u32>>,
    machine: Machine,
    /// Of the services that the configuration asks for.
    census: Census,
    shapes: Shapes,
    /// When the tables were last brought to the desired state.
    programmed: Instant,
    /// Services that the tables should have.
    wanted: Specs,

    announcing: Announcing,

    /// Devices with the egress program.
    egress: BTreeMap<String, EgressAttachment>,
    /// Those with one of an earlier agent that this one has not taken over yet.
    inherited_egress: BTreeSet<String>,
    /// Pods of this machine, unless the kernel has to be asked again, and the devices that led to them.
    pods: Option<BTreeSet<IpAddr>>,
    pod_devices: BTreeSet<String>,

    health: Arc<Monitor>,
    /// What the configuration asks for, without the backends that should not serve.
    selection: Selection,
    /// Whether the health of backends or nodes has changed since the selection was made.
    health_changed: bool,
    /// When the agent last swept.
    swept: Instant,
    nat_sweeps: NatSweeps,
    /// When the agent last had counted all flows; nothing while it counts them.
    counted: Option<Instant>,
    /// When the agent last gave back what changes had freed.
    released: Instant,
    ways: Ways,
    /// What is checked, and how; nothing if that is not in force.
    targets: Option<Targets>,
    /// Checks that are not made.
    unchecked: usize,

    problems: Problems,
    started: Instant,
    started_at: u64,
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
        refuse_for_host(path, &config, &facts)?;
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
        let tables = Tables::open(&loaded).map_err(StartError::Tables)?;
        let machine = Machine::of(&config.desired, &facts);
        let cluster = feed.map(Cluster::new);
        if let Some(cluster) = &cluster {
            cluster.show_machine(&facts, &config.desired);
        }
        let mut agent = Self {
            health: Arc::new(Monitor::new(random())),
            selection: Selection::default(),
            health_changed: false,
            swept: Instant::now(),
            nat_sweeps: NatSweeps::new(Instant::now()),
            counted: None,
            released: Instant::now(),
            ways: Ways::new(tables.probe_capacity()),
            targets: None,
            unchecked: 0,
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
            pins,
            other_layout: !others.is_empty(),
            _pins_lock: pins_lock,
            tables,
            // The watcher first: a change between the two is then not missed.
            watcher: Watcher::new()?,
            next_hops: NextHops::new()?,
            settings: None,
            inherited,
            attached: BTreeMap::new(),
            unattached: BTreeMap::new(),
            machine,
            census: Census::default(),
            shapes: Shapes::default(),
            programmed: Instant::now(),
            wanted: Specs::new(),
            announcing: Announcing::default(),
            egress: BTreeMap::new(),
            inherited_egress,
            pods: None,
            pod_devices: BTreeSet::new(),
            problems: Problems::default(),
            started: Instant::now(),
            started_at: unix_time(),
        };
        agent.settle();
        if agent.attached.is_empty() && !agent.is_held_back() {
            return Err(StartError::NotAttached(agent.problems.texts().collect()));
        }
        tracing::info!(
            services = agent.tables.services().count(),
            interfaces = agent.attached.len(),
            problems = agent.problems.len(),
            "the dataplane serves"
        );
        Ok(agent)
    }

    /// Returns what ends the agent's sleep when a command was sent.
    pub fn waker(&self) -> Waker {
        self.watcher.waker()
    }

    /// Returns what checks backends and nodes; whoever runs it sends [`Command::Health`] when something turned.
    pub fn health(&self) -> Arc<Monitor> {
        Arc::clone(&self.health)
    }

    /// Works until told to stop; everything stays attached, unless told to detach.
    ///
    /// # Errors
    ///
    /// When routes and neighbours cannot be followed any more.
    pub fn run(mut self, commands: &Receiver<Command>) -> Result<(), NetlinkError> {
        loop {
            let pause = self.problems.pause(Instant::now());
            let pauses = pause
                .into_iter()
                .chain(self.announcing.pause(Instant::now()));
            // A count that is under way goes on with every sweep.
            let timer = self.counted.map_or(SWEEP_PAUSE, |_| TIMER);
            let timeout = pauses.min().map_or(timer, |pause| pause.min(timer));
            let wake = self.watcher.wait(Some(timeout))?;
            self.keep_announcing();
            while let Ok(command) = commands.try_recv() {
                if self.obey(command) {
                    return Ok(());
                }
            }
            let taken = self.take_state();
            let turned = std::mem::take(&mut self.health_changed);
            if let Some(taken) = taken {
                self.settle();
                self.account(taken);
            } else if turned || self.problems.pause(Instant::now()) == Some(Duration::ZERO) {
                self.settle();
            }
            if wake != Wake::Woken {
                self.follow_machine();
            }
            // A walk of tens of milliseconds, which what woke the agent does not wait for.
            self.sweep();
        }
    }

    /// Removes flows of NAT mode that are over, what a capture has left that was killed, and memory that is not in
    /// use; counts the other flows.
    fn sweep(&mut self) {
        if self.swept.elapsed() < SWEEP_PAUSE {
            return;
        }
        self.swept = Instant::now();
        if self.nat_sweeps.are_due(self.swept, self.census.has_nat()) {
            self.sweep_nat();
        }
        let pause = self.counted.map(|counted| self.swept - counted);
        if pause.is_none_or(|pause| pause >= COUNT_PAUSE) {
            self.count_flows();
        }
        if let Err(error) = capture::clear_away(&self.pins) {
            tracing::warn!(%error, "cannot look for what a capture has left");
        }
        if self.programmed > self.released && self.released.elapsed() >= RELEASE_PAUSE {
            memory::release_freed();
            self.released = Instant::now();
        }
    }

    fn sweep_nat(&mut self) {
        let may_be_left = match self.tables.sweep_nat(SWEEP_FLOWS) {
            Ok(removed) => {
                tracing::debug!(removed, "flows of NAT mode swept");
                self.tables.may_have_nat_flows()
            }
            Err(error) => {
                tracing::warn!(%error, "cannot sweep the flows of NAT mode");
                true
            }
        };
        self.nat_sweeps.note(self.swept, may_be_left);
    }

    fn count_flows(&mut self) {
        match self.tables.count_live(COUNT_FLOWS) {
            Ok(false) => self.counted = None,
            Ok(true) => self.counted = Some(self.swept),
            Err(error) => {
                tracing::warn!(%error, "cannot count the flows");
                self.counted = Some(self.swept);
            }
        }
    }

    /// Does what a command says; true if it ends the agent.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Reload { cause } => self.reload(cause),
            // Many may turn at once: the selection is made when all that was sent is read.
            Command::Health => self.health_changed = true,
            Command::Announce(holdings) => self.take_holdings(holdings),
            // Likewise: the newest one is taken.
            Command::State => {}
            Command::Ask(request, answer) => {
                let (line, end) = self.answer(&request);
                // A peer that went away is no concern of ours.
                let _ = answer.send(line);
                return end;
            }
            Command::Snapshot(answer) => {
                // What somebody took off is told first, and then put back.
                let lost = self.forget_detached() | self.forget_egress();
                if lost {
                    // A pod that ended takes its device along.
                    self.look_for_pod_devices();
                }
                let _ = answer.send(self.snapshot());
                if lost {
                    self.settle();
                }
            }
            Command::Stop => return true,
        }
        false
    }

    /// Reads the configuration again; a bad one changes nothing.
    fn reload(&mut self, cause: &'static str) {
        let source = match self.cluster {
            Some(_) => Source::Kubernetes,
            None => Source::File,
        };
        let loaded = config::load(&self.path, source).and_then(|config| {
            let facts = host::facts().map_err(|source| ConfigError::Read {
                path: "/proc/net".into(),
                source,
            })?;
            refuse_for_host(&self.path, &config, &facts)?;
            Ok((config, facts))
        });
        match loaded {
            Ok((config, facts)) => {
                self.status.reloads += 1;
                self.status.loaded_at = unix_time();
                self.status.error = None;
                self.status.needs_restart = needs_restart(&self.started_with, &config);
                let before = std::mem::replace(&mut self.config, config);
                if let Some(cluster) = &self.cluster {
                    cluster::carry_over(before.desired, &mut self.config.desired);
                    cluster.show_machine(&facts, &self.config.desired);
                }
                self.machine = Machine::of(&self.config.desired, &facts);
                self.forget_detached();
                self.forget_egress();
                self.pods = None;
                let put = self.settle();
                tracing::info!(
                    cause,
                    changes = put,
                    services = self.tables.services().count(),
                    problems = self.problems.len(),
                    "configuration loaded"
                );
                if !self.status.needs_restart.is_empty() {
                    tracing::warn!(options = ?self.status.needs_restart, "these options wait for a restart");
                }
            }
            Err(error) => {
                let chain = chain(&error);
                for line in chain.lines() {
                    tracing::error!(
                        cause,
                        problem = line,
                        "configuration refused, the last good state stays in force"
                    );
                }
                self.status.failures += 1;
                self.status.error = Some(chain);
            }
        }
    }

    /// Looks at what the machine changed under us: next hops, addresses, interfaces.
    fn follow_machine(&mut self) {
        let before = self.machine.clone();
        self.look_at_machine();
        let mut lost = self.forget_detached();
        lost |= self.forget_egress();
        let interfaces = self.config.desired.interfaces.keys();
        let unattached: BTreeMap<String, Option<u32>> = interfaces
            .filter(|name| !self.attached.contains_key(*name))
            .map(|name| (name.clone(), index_of(name)))
            .collect();
        let may_attach = lost || unattached != self.unattached;
        self.unattached = unattached;
        let moved = self.look_for_pod_devices();
        if self.machine == before && !may_attach && !moved {
            let outcome = self.next_hops.refresh(&mut self.tables);
            let outcome = outcome.map_err(|error| chain(&error));
            self.problems.note(Instant::now(), Item::NextHops, outcome);
            // A link may have come, or have another MAC.
            for (item, outcome) in self.announce() {
                self.problems.note(Instant::now(), item, outcome);
            }
        } else {
            self.settle();
        }
    }

    /// Reads the machine's addresses and MTUs; what was known stays if they cannot be read.
    fn look_at_machine(&mut self) {
        match host::facts() {
            Ok(facts) => {
                self.machine = Machine::of(&self.config.desired, &facts);
                if let Some(cluster) = &self.cluster {
                    cluster.show_machine(&facts, &self.config.desired);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot read the addresses of this machine"),
        }
    }

    /// Brings dataplane and checks to the desired state as far as possible; returns how many steps changed
    /// something.
    fn settle(&mut self) -> usize {
        let done = self.settle_what_is_known();
        self.report();
        done
    }

    fn settle_what_is_known(&mut self) -> usize {
        if self.waits_for_state() {
            self.hold();
            return 0;
        }
        self.census
            .follow(&self.config.desired, &self.machine.addresses);
        self.select();
        let mut done = self.apply();
        // A check may need what was just put in place, and what it was for may be gone.
        self.aim();
        if self.select() {
            done += self.apply();
        }
        self.show_announceable();
        done
    }

    /// Has everything checked that the configuration asks for.
    fn aim(&mut self) {
        let mut interfaces = self.config.desired.interfaces.keys();
        let around = Surroundings {
            own: &self.machine.addresses,
            diverts: self.census.diverts_checks(&self.config.desired)
                && interfaces.all(|name| self.egress.contains_key(name)),
            source_towards,
        };
        let desired = &self.config.desired;
        let targets = Targets::of(desired, &self.census, &around, &mut self.ways);
        if self.targets.as_ref() == Some(&targets) {
            return;
        }
        let mut unset = 0;
        for (index, way) in &targets.ways {
            if let Err(error) = self.tables.set_probe(*index, way) {
                tracing::debug!(error = chain(&error), "the way of a check is not set");
                unset += 1;
            }
        }
        let left = targets.left + unset;
        if left != self.unchecked && left > 0 {
            tracing::warn!(
                checks = left,
                "not made: their packets cannot be put on the way of a client's"
            );
        }
        self.unchecked = left;
        self.targets = (unset == 0).then(|| targets.clone());
        self.health.set_targets(targets);
    }

    /// Selects the backends that serve; true if that is another selection than before.
    fn select(&mut self) -> bool {
        let before = self.selection.all_fail.clone();
        let changed = self.selection.follow(
            &self.config.desired,
            self.health.left_out(),
            &self.machine.addresses,
        );
        let all_fail = &self.selection.all_fail;
        for key in all_fail.difference(&before) {
            tracing::warn!(service = %self.title(key), "every backend should be left out, so all serve");
        }
        for key in before.difference(all_fail) {
            tracing::info!(service = %self.title(key), "some backends can serve again, the others are left out");
        }
        changed
    }

    /// Takes interfaces that lost the program for what an earlier agent left: a pin at most.
    ///
    /// Returns whether there are any.
    fn forget_detached(&mut self) -> bool {
        let lost = self.attached.iter().filter_map(|(name, attached)| {
            let attachment = &attached.attachment;
            match facts::is_attached(name, attachment.ifindex, attachment.program) {
                Ok(true) => None,
                Ok(false) => Some((name.clone(), "somebody removed the program or its pin")),
                Err(InterfaceError::NotFound { .. }) => {
                    Some((name.clone(), "the interface is gone or has another name"))
                }
                // The next event or the timer tells.
                Err(InterfaceError::Unreadable { .. }) => None,
            }
        });
        let lost: Vec<_> = lost.collect();
        for (interface, reason) in &lost {
            tracing::warn!(interface, reason, "not attached any more");
            self.attached.remove(interface);
            self.inherited.insert(interface.clone());
        }
        !lost.is_empty()
    }

    /// Detaches everything and removes the pins.
    fn detach(&mut self) -> Result<Detached, String> {
        let interfaces = self.pins.remove_all().map_err(|error| chain(&error))?;
        self.attached.clear();
        self.egress.clear();
        tracing::info!(?interfaces, "detached, no pins are left");
        if let Err(error) = self.next_hops.release() {
            tracing::warn!(
                error = chain(&error),
                "neighbours stay resolved by the kernel"
            );
        }
        Ok(Detached { interfaces })
    }
}

/// Applies the rules of a configuration that need the machine.
///
/// # Errors
///
/// With every rule that is broken.
pub fn refuse_for_host(
    path: &Path,
    config: &Config,
    facts: &host::HostFacts,
) -> Result<(), ConfigError> {
    let problems = host::problems(config, facts);
    if problems.is_empty() {
        return Ok(());
    }
    Err(ConfigError::Invalid {
        path: path.to_owned(),
        problems,
    })
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
        .max_entries(map::SERVICES_V4, sizes.services)
        .max_entries(map::SERVICES_V6, sizes.services)
        .max_entries(map::SERVICE, services)
        .max_entries(map::SERVICE_TRAFFIC, services)
        .max_entries(map::BACKENDS, backends)
        .max_entries(map::BACKEND_TRAFFIC, backends)
        .max_entries(map::NEXTHOPS, next_hops)
        .max_entries(map::LUT, sizes.lut_slots)
        .max_entries(map::VIPS, sizes.vips)
        .max_entries(map::TRUSTED_EDGES, sizes.trusted_edges)
        .max_entries(map::PODS, sizes.pods)
        .max_entries(map::SOURCE_RANGES, sizes.source_ranges)
        .max_entries(map::NAT_FORWARD, sizes.nat_flows)
        .max_entries(map::NAT_REVERSE, sizes.nat_flows)
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

/// Names the options that a reload cannot change.
fn needs_restart(started_with: &Config, config: &Config) -> Vec<String> {
    let mut options = Vec::new();
    if started_with.tables != config.tables {
        options.push("tables".to_owned());
    }
    if started_with.socket != config.socket {
        options.push("api.socket".to_owned());
    }
    if started_with.metrics != config.metrics {
        options.push("metrics.listen".to_owned());
    }
    if started_with.pin_dir != config.pin_dir {
        options.push("pin_dir".to_owned());
    }
    // Without the section nobody takes part in the election.
    let announces = |config: &Config| config.desired.announce.is_some();
    if config.kubernetes.is_some() && announces(config) && !announces(started_with) {
        options.push("announce".to_owned());
    }
    if started_with.kubernetes != config.kubernetes {
        options.push("kubernetes".to_owned());
    }
    options
}

/// Finds the address that the kernel would send from; nothing is sent for that.
fn source_towards(node: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match node {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((node, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn index_of(interface: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(interface).ok()
}

fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Writes an error with its sources: `cannot attach: operation not permitted`.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
