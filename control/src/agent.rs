//! The agent keeps the dataplane equal to the configuration, and answers questions about it.
//!
//! One thread owns the tables and does everything in order. Signals, the file watch, the socket and the metrics
//! listener run beside it and send it [`Command`]s through a [`Handle`]. The thread sleeps in the watcher of
//! routes and neighbours; a command wakes it. Before it sleeps, it publishes what it knows, and the
//! [`observer`](crate::observer) answers from that.
//!
//! Everything is level-triggered: after any event the difference between installed and desired state is
//! computed again and applied. What cannot be applied is reported and tried again with growing pauses; the rest
//! is in force.
//!
//! `start` and `reload` make the desired state, `cluster` takes it from the API. `settle`, in this file, uses
//! `health_checks` (which backends serve, and what is checked) and `apply` (the difference). `view` publishes,
//! `answers` answers commands.

mod announce;
mod announce_state;
mod answers;
mod apply;
mod attachments;
mod cluster;
mod departed_pods;
mod full_tables;
mod handle;
mod health_checks;
mod machine_state;
mod mending;
mod next_hops;
mod path_mtus;
mod peers;
mod periodic_work;
mod pod_devices;
mod pod_namespaces;
mod problems;
mod programmed;
mod reload;
pub(crate) mod start;
mod view;
mod whole_edge;

use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastpath::nexthop::{NetlinkError, Wake, Waker, Watcher};
use fastpath::tables::Tables;
use fastpath::whole_edge::WholeEdge;
use serde_json::Value;

use self::announce_state::Announcing;
use self::attachments::Attachments;
use self::cluster::Cluster;
use self::departed_pods::DepartedPods;
pub use self::handle::{Command, Handle, Question};
use self::health_checks::HealthChecks;
pub(crate) use self::health_checks::reasons;
use self::mending::Mending;
use self::next_hops::NextHops;
use self::path_mtus::PathMtus;
use self::peers::Peering;
use self::periodic_work::PeriodicWork;
use self::pod_devices::PodDevices;
use self::pod_namespaces::PodNamespaces;
pub(crate) use self::problems::{Item, Problems};
use self::programmed::Programmed;
use self::reload::ConfigFile;
pub use self::start::StartError;
use self::view::Publication;
pub(crate) use self::view::{Running, View};
use crate::api::{Detached, Egress, Interface};
use crate::chain::chain;
use crate::config::{Config, host};
use crate::health::monitor::Monitor;
use crate::observer::{Observer, ObserverInputs};
use crate::service_totals::ServiceTotals;
use crate::target_state::{Machine, MachineServices};

/// Longest pause between two looks at the machine. A path MTU is learnt without any event.
const TIMER: Duration = Duration::from_secs(30);
/// Most items of one kind that are logged one by one. A failing switch can take a thousand nodes down.
const LOGGED_ONE_BY_ONE: usize = 10;

/// The dataplane, and everything known about it.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    /// What `guideway config` shows of it.
    settings: Arc<Value>,
    file: ConfigFile,
    /// The state of the cluster; `None` if the file lists services and nodes.
    cluster: Option<Cluster>,

    machine: Machine,
    /// When the machine was last looked at.
    followed: Instant,
    watcher: Watcher,
    next_hops: NextHops,
    path_mtus: PathMtus,
    pod_devices: PodDevices,
    pod_namespaces: PodNamespaces,
    departed_pods: DepartedPods,

    /// Totals of the services that the configuration asks for, including backends that health checks left out.
    totals: ServiceTotals,
    services_here: MachineServices,
    health_checks: HealthChecks,

    attachments: Attachments,
    tables: Tables,
    programmed: Programmed,
    announcing: Announcing,
    peering: Peering,
    mending: Mending,
    /// The threads that take frames all the way; `None` if the programs do.
    whole_edge: Option<WholeEdge>,

    periodic_work: PeriodicWork,
    problems: Problems,
    publication: Publication,
}

impl Agent {
    /// Returns what wakes the agent after a command was sent.
    pub fn waker(&self) -> Waker {
        self.watcher.waker()
    }

    /// Returns the monitor of backends and nodes. Its runner must send [`Command::Health`] when their health changes.
    pub fn health(&self) -> Arc<Monitor> {
        Arc::clone(&self.health_checks.monitor)
    }

    /// Returns the observer, which answers beside the agent's thread. It asks the agent by `agent` what it
    /// cannot answer itself.
    ///
    /// # Errors
    ///
    /// When the maps cannot be opened a second time.
    pub fn observer(&self, agent: Handle) -> Result<Observer, StartError> {
        let reader = self.tables.reader(&self.attachments.loaded);
        Ok(Observer::new(ObserverInputs {
            views: self.publication.views.subscribe(),
            reader: reader.map_err(StartError::Tables)?,
            health: self.health(),
            feed: self.feed(),
            heartbeat: self.publication.heartbeat.clone(),
            agent,
            drains: self.announcing.drains(),
            peers: self.peering.states.clone(),
            started: self.publication.started,
            started_at: self.publication.started_at,
            others: Mutex::default(),
        }))
    }

    /// Runs until a command ends it. Everything stays attached, unless the command is to detach.
    ///
    /// # Errors
    ///
    /// When routes and neighbours can no longer be followed.
    pub fn run(mut self, commands: &Receiver<Command>) -> Result<(), NetlinkError> {
        loop {
            let now = Instant::now();
            let pauses = self.problems.pause(now).into_iter();
            let pauses = pauses.chain(self.announcing.pause(now));
            let timer = self
                .periodic_work
                .pause()
                .map_or(TIMER, |pause| pause.min(TIMER));
            let timer = timer.saturating_sub(self.followed.elapsed());
            let timeout = pauses.min().map_or(timer, |pause| pause.min(timer));
            self.publish();
            let others = self.path_pause(now).into_iter();
            let others = others.chain(self.peering.pause());
            let wait = others.min().map_or(timeout, |pause| pause.min(timeout));
            let wake = self.watcher.wait(Some(wait))?;
            self.keep_announcing();
            while let Ok(command) = commands.try_recv() {
                if self.obey(command) {
                    return Ok(());
                }
            }
            let taken = self.take_state();
            let turned = std::mem::take(&mut self.health_checks.is_changed);
            if let Some(taken) = taken {
                self.settle();
                self.account(taken);
            } else if turned || self.problems.pause(Instant::now()) == Some(Duration::ZERO) {
                self.settle();
            }
            // Other work ends the sleep more often than the machine has to be looked at.
            let is_for_others = wake == Wake::TimedOut && now.elapsed() < timeout;
            if wake != Wake::Woken && !is_for_others {
                self.follow_machine();
            }
            self.follow_paths(Instant::now());
            // Last, because it takes tens of milliseconds, and the event that woke the agent must not wait for it.
            self.sweep();
        }
    }

    /// Executes a command. Returns whether it ends the agent.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Reload { cause } => self.reload(cause),
            // Many may change at once. The selection is made once, after all commands have been read.
            Command::Health => self.health_checks.is_changed = true,
            Command::Announce(result) => self.take_election_result(result),
            Command::Owners(keys, answer) => {
                // The asker may have gone.
                let _ = answer.send(self.owners_of_slots(&keys));
            }
            Command::TakeOwners { told, asked, taken } => {
                let _ = taken.send(self.take_owners(&told, asked));
            }
            Command::PastTaken => self.end_wait_for_past(),
            // The newest state is taken once, after all commands have been read.
            Command::State => {}
            // Nobody waits for the answer any more. Only a detach has an effect beside its answer.
            Command::Ask(question, answer)
                if answer.is_closed() && question != Question::Detach => {}
            Command::Ask(question, answer) => {
                let (line, end) = self.answer(&question);
                // The asker may have gone.
                let _ = answer.send(line);
                return end;
            }
            Command::Look => {
                if self.attachments.forget_lost() {
                    // The device may have been a pod's, which is gone with the pod.
                    self.look_for_pod_devices();
                    self.settle();
                }
            }
            Command::Stop => return true,
        }
        false
    }

    /// Adapts to changes of the machine: its addresses, interfaces and next hops.
    fn follow_machine(&mut self) {
        self.followed = Instant::now();
        let before = self.machine.clone();
        let found = self.look_at_machine();
        let lost = self.attachments.forget_lost();
        let wanted = self.config.desired.interfaces.keys();
        let may_attach = self.attachments.look_for_unattached(wanted) || lost;
        let moved = self.look_for_pod_devices();
        self.mending.forget_queues();
        let gone = self.departed_pods.has_lost_device();
        if self.machine == before && !found && !may_attach && !moved && !gone {
            self.follow_pod_namespaces();
            let outcome = self.next_hops.refresh(&mut self.tables);
            let outcome = outcome.map_err(|error| chain(&error));
            self.problems.note(Instant::now(), Item::NextHops, outcome);
            // A link may have appeared or changed its MAC.
            for (item, outcome) in self.announce() {
                self.problems.note(Instant::now(), item, outcome);
            }
            self.show_announceable();
            // An interface may have other queues.
            for (item, outcome) in self.mend() {
                self.problems.note(Instant::now(), item, outcome);
            }
        } else {
            self.settle();
        }
    }

    /// Reads the machine's addresses and MTUs, and looks for interfaces that are not given by name. Returns whether
    /// these have changed. If that fails, what is known stays.
    fn look_at_machine(&mut self) -> bool {
        let looked = host::facts().and_then(|facts| {
            let found = self.config.find_interfaces(&facts)?;
            Ok((facts, found))
        });
        match looked {
            Ok((facts, found)) => {
                self.machine = Machine::of(&self.config.desired, &facts);
                if let Some(cluster) = &self.cluster {
                    cluster.show_machine(&facts, &self.config.desired);
                }
                found
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the addresses of this machine");
                false
            }
        }
    }

    /// Brings dataplane and checks to the desired state as far as possible. Returns the number of operations
    /// that changed something.
    fn settle(&mut self) -> usize {
        let done = self.settle_what_is_known();
        self.show_peers();
        self.report();
        done
    }

    fn settle_what_is_known(&mut self) -> usize {
        if self.waits_for_state() {
            self.follow_pod_namespaces();
            self.hold();
            self.hold_announcements();
            return 0;
        }
        let own = &self.machine.addresses;
        self.totals.follow(&self.config.desired, own);
        self.health_checks.select(&self.config.desired, own);
        self.follow_pod_namespaces();
        let mut done = self.apply();
        // Only now, because checks may need what was just applied; and some may have lost their target.
        self.set_check_targets();
        if self
            .health_checks
            .select(&self.config.desired, &self.machine.addresses)
        {
            done += self.apply();
        }
        self.show_announceable();
        done
    }

    /// Sets the targets of checks from the configuration.
    fn set_check_targets(&mut self) {
        let desired = &self.config.desired;
        let mut interfaces = desired.interfaces.keys();
        let diverts = self.totals.diverts_checks(desired)
            && interfaces.all(|name| self.attachments.egress.contains_key(name));
        let own = &self.machine.addresses;
        let tables = &mut self.tables;
        self.health_checks
            .set_targets(desired, &self.totals, own, diverts, tables);
    }

    /// Asks the kernel for the devices of this machine's pods. Returns whether they changed.
    fn look_for_pod_devices(&mut self) -> bool {
        let pods = self.totals.own_pods();
        self.pod_devices.look(pods, &mut self.next_hops)
    }

    /// Tells the programs in which network namespaces this machine's pods are. Those that have left their services count too:
    /// they are asked as past owners.
    fn follow_pod_namespaces(&mut self) {
        let listed = self.totals.own_pods();
        let departed = self.tables.own_pod_addresses();
        let own = &self.machine.addresses;
        self.pod_namespaces
            .follow(listed, &departed, own, &mut self.next_hops);
        self.tables.set_pod_namespaces(self.pod_namespaces.by_pod());
    }

    /// Lists the configured interfaces, and how the program is attached to each. An entry that no device matches is
    /// listed too.
    fn interface_status(&self) -> Vec<Interface> {
        let mut wanted = self.config.desired.interfaces.clone();
        let missing = self.config.interfaces.iter();
        let missing = missing.filter(|entry| entry.missing.is_some());
        wanted.extend(missing.map(|entry| (entry.selector.label().to_owned(), entry.mode)));
        self.attachments.interface_status(&wanted, &self.problems)
    }

    /// Returns the entries under `interfaces` that no device matches, as outcomes for the list of problems.
    fn missing_interfaces(&self) -> impl Iterator<Item = (Item, Result<(), String>)> {
        self.config.interfaces.iter().filter_map(|entry| {
            let item = Item::Interface(entry.selector.label().to_owned());
            Some((item, Err(entry.missing.clone()?)))
        })
    }

    /// Lists the devices that have or should have the egress program.
    fn egress_status(&self) -> Vec<Egress> {
        let desired = &self.config.desired;
        let mut wanted = BTreeSet::new();
        if desired.is_node(&self.machine.addresses) {
            wanted.extend(desired.interfaces.keys().cloned());
            wanted.extend(self.pod_devices.devices.iter().cloned());
        }
        self.attachments.egress_status(wanted, &self.problems)
    }

    fn detach(&mut self) -> Result<Detached, String> {
        let interfaces = self.attachments.detach_all();
        let interfaces = interfaces.map_err(|error| chain(&error))?;
        self.whole_edge = None;
        self.mending.end()?;
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
