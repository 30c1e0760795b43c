//! The agent: keeps the dataplane equal to the configuration, and answers for it.
//!
//! One thread owns the tables and does everything in order; signals, the file watch,
//! the socket and the metrics listener run beside it and send it [`Command`]s through
//! a [`Handle`]. Before it sleeps, the thread publishes what it knows, which the
//! [`observer`](crate::observer) answers from beside it. The thread sleeps in the next-hop watcher, which a command ends.
//!
//! Everything is level-triggered: whatever happened, the difference between installed
//! and desired is computed anew and applied. What cannot be applied leaves the rest in
//! force, is reported, and is tried again with growing pauses.
//!
//! `start` and `reload` make the state that is wanted, `cluster` takes it from the API. `settle`, here, goes by
//! `checks` (what serves, and what is checked) and `apply` (what differs). `sweeps` has what is done now and
//! then, `view` what is published, `answers` what commands ask.

mod announce;
mod answers;
mod apply;
mod checks;
mod cluster;
mod egress;
mod handle;
mod next_hops;
mod path_mtus;
mod problems;
mod reload;
mod room;
mod start;
mod sweeps;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use fastpath::attach::EgressAttachment;
use fastpath::facts::Devices;
use fastpath::load::Loaded;
use fastpath::nexthop::{NetlinkError, Wake, Waker, Watcher};
use fastpath::pins::Pins;
use fastpath::tables::{Settings, Specs, Tables};
use tokio::sync::watch;

use self::announce::Announcing;
use self::apply::Attached;
pub(crate) use self::checks::reasons;
use self::cluster::Cluster;
pub use self::handle::{Command, Handle, Question};
use self::next_hops::NextHops;
use self::path_mtus::PathMtus;
pub(crate) use self::problems::{Item, Problems};
use self::room::Refused;
pub use self::start::StartError;
use self::sweeps::Sweeps;
pub(crate) use self::view::{Running, View};
use crate::announce::Pulse;
use crate::api::{ConfigStatus, Detached};
use crate::census::Census;
use crate::chain::chain;
use crate::config::{Config, host};
use crate::health::monitor::Monitor;
use crate::health::selection::Selection;
use crate::health::targets::{NotMade, Targets};
use crate::health::ways::Ways;
use crate::observer::{Observer, Sources};
use crate::target::{Machine, Shapes};

/// How often the machine is looked at without an event: a path MTU is learnt without one.
const TIMER: Duration = Duration::from_secs(30);
/// Items of one kind that are logged one by one: a switch that fails takes a thousand nodes along.
const LOGGED_ONE_BY_ONE: usize = 10;

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
    /// Why frames that XDP fails to send are not counted.
    uncounted: Option<String>,
    pins: Pins,
    /// Whether the tables of an earlier agent are of another layout, so that its programs use none of ours.
    other_layout: bool,
    /// Held for as long as the agent runs.
    _pins_lock: File,
    tables: Tables,
    next_hops: NextHops,
    path_mtus: PathMtus,
    watcher: Watcher,

    settings: Option<Settings>,
    /// Interfaces that an earlier agent attached to and this one has not taken over yet.
    inherited: BTreeSet<String>,
    attached: BTreeMap<String, Attached>,
    /// Wanted interfaces without the program, with their numbers when last looked at.
    unattached: BTreeMap<String, Option<u32>>,
    machine: Machine,
    /// When the machine was last looked at.
    followed: Instant,
    /// Of the services that the configuration asks for.
    census: Census,
    shapes: Shapes,
    /// When the tables were last brought to the desired state.
    programmed: Instant,
    /// Services that the tables should have.
    wanted: Specs,
    /// Those that did not fit.
    refused: Refused,

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
    ways: Ways,
    /// What is checked, and how; nothing if that is not in force.
    targets: Option<Targets>,
    /// Checks that are not made.
    not_made: NotMade,

    sweeps: Sweeps,
    problems: Problems,
    /// What is known, for those who answer beside.
    views: watch::Sender<Arc<View>>,
    /// The signs of life of the loop.
    pulse: Pulse,
    started: Instant,
    started_at: u64,
}

impl Agent {
    /// Returns what ends the agent's sleep when a command was sent.
    pub fn waker(&self) -> Waker {
        self.watcher.waker()
    }

    /// Returns what checks backends and nodes; whoever runs it sends [`Command::Health`] when something turned.
    pub fn health(&self) -> Arc<Monitor> {
        Arc::clone(&self.health)
    }

    /// Returns who answers beside what is asked of the agent's state; what it cannot, it asks by the handle.
    ///
    /// # Errors
    ///
    /// When the maps cannot be opened once more.
    pub fn observer(&self, agent: Handle) -> Result<Observer, StartError> {
        let reader = self.tables.reader(&self.loaded);
        Ok(Observer::new(Sources {
            views: self.views.subscribe(),
            reader: reader.map_err(StartError::Tables)?,
            health: self.health(),
            feed: self.feed(),
            pulse: self.pulse.clone(),
            agent,
            started: self.started,
            started_at: self.started_at,
        }))
    }

    /// Works until told to stop; everything stays attached, unless told to detach.
    ///
    /// # Errors
    ///
    /// When routes and neighbours cannot be followed any more.
    pub fn run(mut self, commands: &Receiver<Command>) -> Result<(), NetlinkError> {
        loop {
            let now = Instant::now();
            let pauses = self.problems.pause(now).into_iter();
            let pauses = pauses.chain(self.announcing.pause(now));
            let timer = self.sweeps.pause().map_or(TIMER, |pause| pause.min(TIMER));
            let timer = timer.saturating_sub(self.followed.elapsed());
            let timeout = pauses.min().map_or(timer, |pause| pause.min(timer));
            let paths = self.path_pause(now).unwrap_or(timeout);
            self.publish();
            let wake = self.watcher.wait(Some(timeout.min(paths)))?;
            self.show_life();
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
            // What routers say ends the sleep more often than the machine has to be looked at.
            let is_for_paths = wake == Wake::TimedOut && now.elapsed() < timeout;
            if wake != Wake::Woken && !is_for_paths {
                self.follow_machine();
            }
            self.follow_paths(Instant::now());
            // A walk of tens of milliseconds, which what woke the agent does not wait for.
            self.sweep();
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
            // Nobody reads the answer; what a question does besides is still wanted.
            Command::Ask(question, answer)
                if answer.is_closed() && question != Question::Detach => {}
            Command::Ask(question, answer) => {
                let (line, end) = self.answer(&question);
                // A peer that went away is no concern of ours.
                let _ = answer.send(line);
                return end;
            }
            Command::Look => {
                if self.forget_lost() {
                    // A pod that ended takes its device along.
                    self.look_for_pod_devices();
                    self.settle();
                }
            }
            Command::Stop => return true,
        }
        false
    }

    /// Looks at what the machine changed under us: next hops, addresses, interfaces.
    fn follow_machine(&mut self) {
        self.followed = Instant::now();
        let before = self.machine.clone();
        self.look_at_machine();
        let lost = self.forget_lost();
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
            self.show_announceable();
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
            self.hold_announcements();
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

    /// Forgets the programs that interfaces and devices have lost; returns whether there are any.
    fn forget_lost(&mut self) -> bool {
        if self.attached.is_empty() && self.egress.is_empty() {
            return false;
        }
        match Devices::list() {
            Ok(mut devices) => self.forget_detached(&devices) | self.forget_egress(&mut devices),
            Err(error) => {
                // The next event or the timer tells.
                tracing::warn!(error = chain(&error), "cannot list the network devices");
                false
            }
        }
    }

    /// Takes interfaces that lost the program for what an earlier agent left: a pin at most.
    ///
    /// Returns whether there are any.
    fn forget_detached(&mut self, devices: &Devices) -> bool {
        let lost = self.attached.iter().filter_map(|(name, attached)| {
            let attachment = &attached.attachment;
            // By the name that it had then: the configuration may know it by an alternative one.
            match devices.find(&attachment.interface) {
                Some(device)
                    if device.index == attachment.ifindex && device.runs(attachment.program) =>
                {
                    None
                }
                Some(_) => Some((name.clone(), "somebody removed the program or its pin")),
                None => Some((name.clone(), "the interface is gone or has another name")),
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

fn index_of(interface: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(interface).ok()
}
