//! The wires `ports` and `reflector`: network cards of this machine, and devices under test that are not ours.
//!
//! ```text
//!  ports:      client's card ---- device under test ---- backends' card
//!  reflector:  client's card ---- device under test ---- card of another machine: guideway-bench reflect
//! ```
//!
//! Each card is in a namespace of its own while a run has it: so nothing else of this machine uses it, packets between
//! two cards of one machine take the cable, and the kernel answers ARP and ND at the card. Only one device under test is up
//! at a time, because several may be one machine: it is brought up by its commands when its turn comes, and the one before
//! is taken down. Next hops are resolved then, and kept: none is asked for while a trial runs.

mod card;
mod command;
mod next_hop;
mod reflector;
mod traffic;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
};

use anyhow::{Context, Result, bail};
use fastpath::facts::received_by_queue;
use lab::{AtEnd, Cidr, Mac, Namespace, Route, at_end};

use self::{card::Card, command::Shell, reflector::start_responders, traffic::Traffic};
pub use self::{
    card::{reason_against_stamps, reason_against_xdp, reasons_against},
    reflector::Reflector,
};
use super::{Counts, LinkDown, PlannedFlow, Responder, SystemEnded, Wire, drops::of_kernel};
use crate::{
    environment::{self, of_machine},
    load::{Arrivals, Generator, clients_of_frames, search::searching, sockets::Backends},
    probe::Key,
    scenario::{
        AddressFamily, EventKind, Load, Port, Ports, Scenario, System, UnderTest, WireKind, hop_of,
    },
};

/// The name of the machine that answers, in facts and to its command.
const FAR_END: &str = "reflector";
/// The client's port of the first flow; the others follow.
pub(super) const FIRST_CLIENT_PORT: u16 = 10_000;

/// The device that is up, and how to reach it.
#[derive(Clone, Debug)]
struct Active {
    device: UnderTest,
    /// Number of the change that brought it up.
    change: u64,
    /// Destination of frames, by family.
    next_hops: Vec<(AddressFamily, Mac)>,
}

/// The cards, the backends, and the device under test that is up.
#[derive(Debug)]
pub(super) struct Cards {
    // Dropped in order: the device is taken down, programs end, the cards are given back.
    _down: AtEnd,
    _responders: Vec<Responder>,
    shell: Shell,
    active: Arc<Mutex<Option<Active>>>,
    changes: Mutex<u64>,
    /// The client's port of the next flow.
    next_port: AtomicU16,
    client: Card,
    backend: Option<Card>,
    scenario: Scenario,
    ports: Ports,
    backends: Backends,
    /// What other machines have told of themselves.
    facts: Mutex<BTreeMap<String, String>>,
}

impl Cards {
    /// Takes the cards, and starts the backends. Whatever a run has left up which was killed is taken down.
    ///
    /// # Errors
    ///
    /// When a card cannot be taken.
    pub(super) fn start(scenario: &Scenario) -> Result<Self> {
        let ports = scenario.ports.clone().context("the wire has ports")?;
        let shell = Shell::default();
        for device in &scenario.under_test {
            // It may be down.
            let _ = shell.take_down(device);
        }
        let active: Arc<Mutex<Option<Active>>> = Arc::default();
        let (of_end, shell_of_end) = (Arc::clone(&active), shell.clone());
        let down = at_end(move || {
            // Whoever changes it waits for a command, which is ended.
            let _ = shell_of_end.close(None);
            let active = of_end.lock().unwrap_or_else(PoisonError::into_inner).take();
            let device = active.as_ref().map(|active| &active.device);
            if let Err(error) = shell_of_end.close(device) {
                eprintln!("guideway-bench: {error:#}");
            }
        });
        let client = Card::take(&ports.client, "client")?;
        if scenario.has_stamps_of_cards() {
            client.stamp_frames()?;
        }
        let take = |port: &Port| Card::take(port, "backend");
        let backend = ports.backend.as_ref().map(take).transpose()?;
        let number = AddressFamily::ALL.map(|family| ports.backends(family).len());
        let is_local = scenario.wire == WireKind::Ports;
        let backends = Backends {
            marks: if is_local { Key::random()? } else { Key::KNOWN },
            number: number.into_iter().max().unwrap_or(0),
            arrivals: if is_local {
                Arrivals::default()
            } else {
                Arrivals::ignored()
            },
        };
        let of_far_end = shell.ask(ports.facts.as_deref(), FAR_END)?;
        let mut cards = Self {
            facts: Mutex::new(of_machine(FAR_END, &of_far_end)),
            _down: down,
            _responders: Vec::new(),
            shell,
            active,
            changes: Mutex::default(),
            next_port: AtomicU16::new(FIRST_CLIENT_PORT),
            client,
            backend,
            scenario: scenario.clone(),
            ports,
            backends,
        };
        if let Some(card) = &cards.backend {
            let addresses = AddressFamily::ALL.map(|family| cards.ports.backends(family));
            let targets = cards.targets();
            cards._responders = start_responders(card, &addresses, &targets, &cards.backends)?;
        }
        Ok(cards)
    }

    /// Returns where flows go to.
    fn targets(&self) -> Vec<SocketAddr> {
        let devices = self.scenario.under_test.iter();
        let of = |device: &UnderTest| AddressFamily::ALL.map(|family| device.targets(family));
        let mut all: Vec<SocketAddr> = devices.flat_map(of).flatten().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Brings a system up, if it is not; returns the number of the change that did.
    fn activate(&self, system: System) -> Result<Active> {
        let mut active = self.active();
        if let Some(active) = active.as_ref()
            && active.device.name == system.to_string()
        {
            return Ok(active.clone());
        }
        // Until it is down, it is to be taken down in the end.
        if let Some(before) = active.as_ref() {
            self.shell.take_down(&before.device)?;
        }
        *active = None;
        let device = self.scenario.device_of(system);
        let device = device
            .with_context(|| format!("{system} is not under test"))?
            .clone();
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        *changes += 1;
        let began = Active {
            device: device.clone(),
            change: *changes,
            next_hops: Vec::new(),
        };
        // From here on it is taken down in the end, though it may be half up.
        *active = Some(began.clone());
        drop(active);
        self.shell.bring_up(&device)?;
        self.learn_facts(&device)?;
        let next_hops = self.route(&device)?;
        let up = Active { next_hops, ..began };
        *self.active() = Some(up.clone());
        Ok(up)
    }

    /// Has a device tell its facts when it is up for the first time.
    fn learn_facts(&self, device: &UnderTest) -> Result<()> {
        let name = format!("device.{}", device.name);
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        if facts
            .keys()
            .any(|fact| fact.starts_with(&format!("{name}.")))
        {
            return Ok(());
        }
        let told = (self.shell).ask(device.commands.facts.as_deref(), &device.name)?;
        facts.extend(of_machine(&name, &told));
        Ok(())
    }

    fn active(&self) -> MutexGuard<'_, Option<Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has both cards send by a device, and resolves their next hops. Returns those of the client's card.
    fn route(&self, device: &UnderTest) -> Result<Vec<(AddressFamily, Mac)>> {
        let mut found = Vec::new();
        self.cards().try_for_each(next_hop::forget)?;
        for family in AddressFamily::ALL {
            let Some(client) = self.ports.client.address(family) else {
                continue;
            };
            let via = hop_of(&device.via, family);
            let Some(target) = device.targets(family).first().map(SocketAddr::ip) else {
                continue;
            };
            set_default(&self.client, family, via)?;
            if let Some(card) = &self.backend {
                let back = hop_of(&device.back, family);
                set_default(card, family, back)?;
                // Without one, the client's own card answers for it, or the device.
                if let Some(back) = back {
                    next_hop::resolve(card, back)?;
                }
            }
            let mac = next_hop::resolve(&self.client, via.unwrap_or(target))?;
            found.push((family, mac));
            if self.backend.is_some() && hop_of(&device.back, family).is_none() && via.is_none() {
                let card = self.backend.as_ref().context("it has a backend")?;
                next_hop::resolve(card, client)?;
            }
        }
        Ok(found)
    }

    fn cards(&self) -> impl Iterator<Item = &Card> {
        [Some(&self.client), self.backend.as_ref()]
            .into_iter()
            .flatten()
    }
}

/// Has a card send all by a next hop; without one, straight to the destination.
fn set_default(card: &Card, family: AddressFamily, via: Option<IpAddr>) -> Result<()> {
    let any = match family {
        AddressFamily::Ipv4 => Cidr::ANY_V4,
        AddressFamily::Ipv6 => Cidr::ANY_V6,
    };
    // Where a default route is there, IPv6 would add the new one to it.
    let flag = if any.address.is_ipv4() { "-4" } else { "-6" };
    card.ip(&[flag, "route", "flush", "default"])?;
    let link = card.link()?;
    let route = Route::to(any).through(&link);
    let route = match via {
        Some(via) => route.via(via),
        None => route,
    };
    Ok(card.namespace().replace_route(&route)?)
}

/// Returns the flows of a load to a device, with the backends that must answer where that is known. `first_port` is the
/// client's port of the first one, where the generator makes no frames.
///
/// # Errors
///
/// When the client has not enough ports.
pub(super) fn planned_flows(
    ports: &Ports,
    device: &UnderTest,
    load: &Load,
    first_port: u16,
) -> Result<Vec<PlannedFlow>> {
    let targets = device.targets(load.family);
    let backends = ports.backends(load.family);
    let client = ports
        .client
        .address(load.family)
        .context("the client has an address")?;
    let of_frames = clients_of_frames(load, targets.len()).unwrap_or_default();
    let flow = |number: u32| {
        let to = targets[number as usize % targets.len()];
        let client = match of_frames.get(number as usize) {
            Some(client) => *client,
            None => {
                let port = u16::try_from(number)?.checked_add(first_port);
                SocketAddr::new(client, port.context("the client has no port left")?)
            }
        };
        let backend = backends.iter().position(|backend| *backend == to.ip());
        let backend = backend.map(u16::try_from).transpose()?;
        Ok(PlannedFlow {
            client,
            to,
            backend,
        })
    };
    (0..load.flows).map(flow).collect()
}

impl Wire for Cards {
    fn open(&self, system: System, load: &Load, _: Option<f64>) -> Result<Box<dyn Generator + '_>> {
        let flows = u16::try_from(load.flows).unwrap_or(0);
        let taken = if load.generator.makes_frames() {
            0
        } else {
            flows
        };
        let first_port = self.next_port.fetch_add(taken, Ordering::Relaxed);
        let mut traffic = Traffic::new(self, system, load, first_port);
        traffic.prepare()?;
        Ok(searching(Box::new(traffic), load.search))
    }

    fn backend_names(&self, _: System) -> Vec<String> {
        let all = AddressFamily::ALL.map(|family| self.ports.backends(family));
        let of = |number: usize| {
            let own = all.iter().filter_map(|family| family.get(number));
            own.map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        (0..self.backends.number).map(of).collect()
    }

    fn drops(&self, _: System) -> Result<Counts> {
        let mut drops = Counts::new();
        self.cards()
            .try_for_each(|card| of_kernel(card.namespace(), &mut drops))?;
        Ok(drops)
    }

    fn queues(&self, _: System) -> Result<Counts> {
        let card = self.backend.as_ref().unwrap_or(&self.client);
        let link = card.link()?;
        let label = card.namespace().label();
        let read = card.namespace().run(|| received_by_queue(link.name()));
        // Not every driver tells.
        let queues = read.unwrap_or_default().into_iter();
        Ok(queues
            .map(|(name, count)| (format!("{label}: {name}"), count))
            .collect())
    }

    fn carriers(&self, _: System) -> Result<Counts> {
        let mut changes = Counts::new();
        for card in self.cards() {
            let link = card.link()?;
            let name = format!("{}: {}", card.namespace().label(), link.name());
            match link.carrier_changes()? {
                Some(count) => changes.insert(name, count),
                None => bail!(LinkDown(name)),
            };
        }
        Ok(changes)
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let told = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let of_card = |card: &Card| card.namespace().run(environment::of_cards);
        let own = self.cards().flat_map(of_card);
        let own = own.filter(|(_, value)| !value.is_empty());
        own.chain(told.clone()).collect()
    }

    fn expect_running(&self, system: System) -> Result<()> {
        let Some(device) = self.scenario.device_of(system) else {
            return Ok(());
        };
        let ended = |error| SystemEnded {
            system,
            what: "its check fails".to_owned(),
            log: format!("{error:#}"),
        };
        Ok(self.shell.check(device).map_err(ended)?)
    }

    fn cause(&self, system: System, event: EventKind) -> Result<()> {
        bail!("{event} does not happen to {system}")
    }

    fn undo(&self, _: System, _: EventKind) -> Result<()> {
        Ok(())
    }

    fn describe(&self, system: System) -> String {
        let Some(device) = self.scenario.device_of(system) else {
            return String::new();
        };
        let far_end = match &self.ports.backend {
            Some(port) => format!("arrive at {}", port.device),
            None => "are answered by another machine".to_owned(),
        };
        let up = match &device.commands.up {
            Some(up) => format!("brought up by `{up}`"),
            None => "which nothing brings up".to_owned(),
        };
        let via = if device.via.is_empty() {
            String::new()
        } else {
            format!(" by {}", device.via.join(" and "))
        };
        format!(
            "{system}, a device under test, {up}: requests to {} leave by {}{via}, and {far_end}",
            device.to.join(", "),
            self.ports.client.device
        )
    }
}

/// Returns the namespace of the client's card.
fn client_of(cards: &Cards) -> &Namespace {
    cards.client.namespace()
}
