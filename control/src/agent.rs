//! The agent: keeps the dataplane equal to the configuration, and answers for it.
//!
//! One thread owns the tables and does everything in order; signals, the file watch,
//! the socket and the metrics listener run beside it and send it [`Command`]s through
//! a [`Handle`]. The thread sleeps in the next-hop watcher, which a command ends.
//!
//! Everything is level-triggered: whatever happened, the difference between installed
//! and desired is computed anew and applied. What cannot be applied leaves the rest in
//! force, is reported, and is tried again with growing pauses.

mod answers;
mod handle;
mod next_hops;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastpath::attach::{AttachError, Attachment, Mode, Options};
use fastpath::facts::{self, Bpffs};
use fastpath::load::{LoadError, Loaded, Loader};
use fastpath::nexthop::{NetlinkError, Wake, Waker, Watcher};
use fastpath::pins::{PinError, Pins};
use fastpath::tables::{ServiceKey, Settings, TableError, Tables};
use xdp_prog::abi::map;

pub use self::handle::{Command, Handle};
use self::next_hops::NextHops;
use crate::api::{ConfigStatus, Detached};
use crate::config::{self, Config, ConfigError, TableSizes, host};
use crate::desired::AttachMode;
use crate::plan::{Installed, Operation, plan};

/// The first pause before something that failed is tried again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often everything is compared without a reason.
const TIMER: Duration = Duration::from_secs(30);

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

/// What could not be brought to its desired state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Table(&'static str),
    NextHops,
    Service(ServiceKey),
    Interface(String),
}

/// Where the program is, and how it was asked to be there.
#[derive(Debug)]
struct Attached {
    allowed: AttachMode,
    attachment: Attachment,
}

/// The dataplane and everything known about it.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    /// What the file said when the agent started; part of it cannot change later.
    started_with: Config,
    status: ConfigStatus,
    path: PathBuf,

    loaded: Loaded,
    pins: Pins,
    /// Held for as long as the agent runs.
    _pins_lock: File,
    tables: Tables,
    next_hops: NextHops,
    watcher: Watcher,

    settings: Option<Settings>,
    /// Interfaces that an earlier agent attached to and this one has not taken over yet.
    inherited: BTreeSet<String>,
    attached: BTreeMap<String, Attached>,
    /// Services whose table is not what their specification makes of the present settings.
    stale: BTreeSet<ServiceKey>,
    own_addresses: BTreeSet<IpAddr>,

    problems: BTreeMap<Item, String>,
    retry: Option<(Instant, Duration)>,
    started: Instant,
    started_at: u64,
}

impl Agent {
    /// Validates the configuration against this machine, loads the program, adopts what an
    /// earlier agent left, programs the tables and attaches.
    ///
    /// # Errors
    ///
    /// Each names the cause and the remedy. What an earlier agent left goes on serving.
    pub fn start(path: &Path, config: Config) -> Result<Self, StartError> {
        let facts = host::facts().map_err(StartError::Facts)?;
        refuse_for_host(path, &config, &facts)?;
        let pins = Pins::new(&config.pin_dir);
        let pins_lock = lock_pins(&config.pin_dir)?;
        let inherited = pins.interfaces()?.into_iter().collect();
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
        let mut agent = Self {
            started_with: config.clone(),
            status: ConfigStatus {
                path: path.display().to_string(),
                loaded_at: unix_time(),
                reloads: 1,
                ..ConfigStatus::default()
            },
            config,
            path: path.to_owned(),
            loaded,
            pins,
            _pins_lock: pins_lock,
            tables,
            // The watcher first: a change between the two is then not missed.
            watcher: Watcher::new()?,
            next_hops: NextHops::new()?,
            settings: None,
            inherited,
            attached: BTreeMap::new(),
            stale: BTreeSet::new(),
            own_addresses: own_addresses(&facts),
            problems: BTreeMap::new(),
            retry: None,
            started: Instant::now(),
            started_at: unix_time(),
        };
        agent.apply();
        if agent.attached.is_empty() {
            return Err(StartError::NotAttached(
                agent.problems.into_values().collect(),
            ));
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

    /// Works until told to stop; everything stays attached, unless told to detach.
    ///
    /// # Errors
    ///
    /// When routes and neighbours cannot be followed any more.
    pub fn run(mut self, commands: &Receiver<Command>) -> Result<(), NetlinkError> {
        loop {
            let timeout = self.retry.map_or(TIMER, |(at, _)| {
                at.saturating_duration_since(Instant::now()).min(TIMER)
            });
            let wake = self.watcher.wait(Some(timeout))?;
            while let Ok(command) = commands.try_recv() {
                if self.obey(command) {
                    return Ok(());
                }
            }
            if self.retry.is_some_and(|(at, _)| at <= Instant::now()) {
                self.apply();
            } else if wake != Wake::Woken {
                self.follow_machine();
            }
        }
    }

    /// Does what a command says; true if it ends the agent.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Reload { cause } => self.reload(cause),
            Command::Ask(request, answer) => {
                let (line, end) = self.answer(&request);
                // A peer that went away is no concern of ours.
                let _ = answer.send(line);
                return end;
            }
            Command::Snapshot(answer) => {
                let _ = answer.send(self.snapshot());
            }
            Command::Stop => return true,
        }
        false
    }

    /// Reads the configuration again; a bad one changes nothing.
    fn reload(&mut self, cause: &'static str) {
        let loaded = config::load(&self.path).and_then(|config| {
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
                self.config = config;
                self.own_addresses = own_addresses(&facts);
                let put = self.apply();
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
        let own = match host::facts() {
            Ok(facts) => own_addresses(&facts),
            Err(error) => {
                tracing::warn!(%error, "cannot read the addresses of this machine");
                return;
            }
        };
        let gone: Vec<String> = self
            .attached
            .iter()
            .filter(|(name, attached)| index_of(name) != Some(attached.attachment.ifindex))
            .map(|(name, _)| name.clone())
            .collect();
        for interface in &gone {
            tracing::warn!(interface, "the interface is gone or was created anew");
            self.attached.remove(interface);
        }
        if own == self.own_addresses && gone.is_empty() {
            let outcome = self.next_hops.refresh(&mut self.tables);
            self.note(Item::NextHops, outcome.map_err(|error| chain(&error)));
            self.schedule();
        } else {
            self.own_addresses = own;
            self.apply();
        }
    }

    /// Brings the dataplane to the desired state as far as possible; returns the number of
    /// changes that were made.
    fn apply(&mut self) -> usize {
        self.problems.clear();
        let (mut done, removed) = self.apply_once();
        // What was removed may have made room for what did not fit.
        if !self.problems.is_empty() && removed {
            self.problems.clear();
            done += self.apply_once().0;
        }
        self.tables.reclaim();
        self.schedule();
        done
    }

    /// Does the plan; returns how many steps changed something, and whether one freed room.
    fn apply_once(&mut self) -> (usize, bool) {
        let operations = plan(&self.installed(), &self.config.desired, &self.own_addresses);
        let (mut done, mut removed) = (0, false);
        for operation in operations {
            let resolves = matches!(operation, Operation::Resolve(_));
            removed |= matches!(operation, Operation::Remove(_));
            let (item, outcome) = self.execute(operation);
            if outcome.is_ok() && !resolves {
                done += 1;
            }
            self.note(item, outcome);
        }
        (done, removed)
    }

    fn installed(&self) -> Installed<'_> {
        let services = self.tables.services();
        let inherited = self.inherited.iter().map(|name| (name.clone(), None));
        let attached = self.attached.iter();
        let attached = attached.map(|(name, attached)| (name.clone(), Some(attached.allowed)));
        Installed {
            settings: self.settings,
            vips: self.tables.vips(),
            local: self.tables.local_addresses(),
            trusted_edges: self.tables.trusted_edges(),
            services: services
                .map(|(key, service)| (*key, service.spec().filter(|_| !self.stale.contains(key))))
                .collect(),
            interfaces: inherited.chain(attached).collect(),
        }
    }

    fn execute(&mut self, operation: Operation) -> (Item, Result<(), String>) {
        match operation {
            Operation::Settings(settings) => {
                let outcome = self.tables.set_settings(settings);
                if outcome.is_ok() {
                    if self
                        .settings
                        .is_some_and(|old| old.hash_seed != settings.hash_seed)
                    {
                        self.stale
                            .extend(self.tables.services().map(|(key, _)| *key));
                    }
                    self.settings = Some(settings);
                }
                (Item::Table("settings"), table(outcome))
            }
            Operation::Trust(prefixes) => (
                Item::Table("trusted_edges"),
                table(self.tables.set_trusted_edges(&prefixes)),
            ),
            Operation::Addresses { vips, local } => (
                Item::Table("vips"),
                table(self.tables.set_addresses(&vips, &local)),
            ),
            Operation::Resolve(nodes) => {
                self.next_hops.set_targets(nodes);
                let outcome = self.next_hops.refresh(&mut self.tables);
                (Item::NextHops, outcome.map_err(|error| chain(&error)))
            }
            Operation::Put(key, spec) => {
                let outcome = self.tables.put_service(key, &spec);
                if let Ok(change) = &outcome {
                    self.stale.remove(&key);
                    tracing::debug!(service = %key, slots = change.slots, new_table = change.new_table, "service programmed");
                }
                (Item::Service(key), table(outcome.map(drop)))
            }
            Operation::Remove(key) => {
                let outcome = self.tables.remove_service(&key);
                tracing::debug!(service = %key, "service removed");
                (Item::Service(key), table(outcome.map(drop)))
            }
            Operation::Attach(name, mode) => {
                let outcome = self.attach(&name, mode).map_err(|error| chain(&error));
                (Item::Interface(name), outcome)
            }
            Operation::Detach(name) => {
                let outcome = self.pins.detach(&name).map_err(|error| chain(&error));
                if outcome.is_ok() {
                    tracing::info!(interface = name, "detached");
                    self.inherited.remove(&name);
                    self.attached.remove(&name);
                }
                (Item::Interface(name), outcome.map(drop))
            }
        }
    }

    fn attach(&mut self, name: &str, allowed: AttachMode) -> Result<(), AttachError> {
        let options = Options {
            mode: match allowed {
                AttachMode::Native => Mode::Native,
                AttachMode::NativeOrGeneric => Mode::NativeOrGeneric,
                AttachMode::Generic => Mode::Generic,
            },
            ..Options::default()
        };
        let attachment = self.loaded.attach(name, &options)?;
        tracing::info!(
            interface = name,
            mode = %attachment.mode,
            adopted = attachment.replaced.is_some(),
            "attached"
        );
        if let Some(obstacle) = &attachment.fallback {
            tracing::warn!(
                interface = name,
                reason = chain(obstacle.as_ref()),
                "native mode is not possible, generic mode is several times slower"
            );
        }
        if !attachment.switched_off.is_empty() {
            tracing::warn!(interface = name, offloads = ?attachment.switched_off, "switched off: generic mode needs single packets");
        }
        self.inherited.remove(name);
        self.attached.insert(
            name.to_owned(),
            Attached {
                allowed,
                attachment,
            },
        );
        Ok(())
    }

    /// Keeps or forgets why an item is not as desired; a new reason is logged.
    fn note(&mut self, item: Item, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                self.problems.remove(&item);
            }
            Err(reason) => {
                if self.problems.get(&item) != Some(&reason) {
                    tracing::error!(reason, "not applied, tried again later");
                }
                self.problems.insert(item, reason);
            }
        }
    }

    /// Sets the time of the next attempt by whether anything is left to do.
    fn schedule(&mut self) {
        let now = Instant::now();
        self.retry = match self.retry {
            _ if self.problems.is_empty() => None,
            None => Some((now + FIRST_PAUSE, FIRST_PAUSE)),
            Some((at, pause)) if at <= now => {
                let pause = (pause * 2).min(LONGEST_PAUSE);
                Some((now + pause, pause))
            }
            waiting => waiting,
        };
    }

    /// Detaches everything and removes the pins.
    fn detach(&mut self) -> Result<Detached, String> {
        let interfaces = self.pins.remove_all().map_err(|error| chain(&error))?;
        self.attached.clear();
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
    Loader::pinned(pins)
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

/// Lists the addresses at which outer headers may arrive: all but those that never
/// leave the machine or its segment.
fn own_addresses(facts: &host::HostFacts) -> BTreeSet<IpAddr> {
    let routed = |address: &&IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    facts.addresses.keys().filter(routed).copied().collect()
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
    options
}

fn index_of(interface: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(interface).ok()
}

fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn table(outcome: Result<(), TableError>) -> Result<(), String> {
    outcome.map_err(|error| chain(&error))
}

/// Writes an error with its sources: `cannot attach: operation not permitted`.
fn chain(error: &dyn std::error::Error) -> String {
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
