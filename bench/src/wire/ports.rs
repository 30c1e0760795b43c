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
mod traffic;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result, bail};
use fastpath::facts::received_by_queue;
use lab::{AtEnd, Cidr, Mac, Namespace, Route, at_end};

pub use self::card::reasons_against;
use self::{card::Card, command::bring_up, traffic::Traffic};
use super::{Counts, LinkDown, PlannedFlow, Responder, Wire, drops::of_kernel};
use crate::{
    load::{
        Arrivals, Generator, numbered, pktgen,
        search::{Goal, Searching},
        sockets::Backends,
    },
    probe::Key,
    scenario::{
        AddressFamily, EventKind, GeneratorKind, Load, Port, Ports, Scenario, System, UnderTest,
        WireKind, hop_of,
    },
};

/// The client's port of the first flow; the others follow.
const FIRST_CLIENT_PORT: u16 = 10_000;

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
    active: Arc<Mutex<Option<Active>>>,
    changes: Mutex<u64>,
    client: Card,
    backend: Option<Card>,
    scenario: Scenario,
    ports: Ports,
    backends: Backends,
}

impl Cards {
    /// Takes the cards, and starts the backends. Whatever a run has left up which was killed is taken down.
    ///
    /// # Errors
    ///
    /// When a card cannot be taken.
    pub(super) fn start(scenario: &Scenario) -> Result<Self> {
        let ports = scenario.ports.clone().context("the wire has ports")?;
        for device in &scenario.under_test {
            // It may be down.
            let _ = command::take_down(device);
        }
        let active: Arc<Mutex<Option<Active>>> = Arc::default();
        let of_end = Arc::clone(&active);
        let down = at_end(move || {
            let active = of_end.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(Err(error)) = active.map(|active| command::take_down(&active.device)) {
                eprintln!("guideway-bench: {error:#}");
            }
        });
        let client = Card::take(&ports.client, "client")?;
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
        let mut cards = Self {
            _down: down,
            _responders: Vec::new(),
            active,
            changes: Mutex::default(),
            client,
            backend,
            scenario: scenario.clone(),
            ports,
            backends,
        };
        if let Some(card) = &cards.backend {
            let services = cards.services_of_backends()?;
            let addresses = |family| cards.ports.backends(family);
            let [v4, v6] = AddressFamily::ALL.map(addresses);
            cards._responders = start_responders(card, [&v4, &v6], &services, &cards.backends)?;
        }
        Ok(cards)
    }

    /// Returns the targets that are no backend's address. A device that does not translate sends packets for them to the
    /// backends' card.
    fn services_of_backends(&self) -> Result<Vec<SocketAddr>> {
        let backends: Vec<IpAddr> = AddressFamily::ALL
            .iter()
            .flat_map(|family| self.ports.backends(*family))
            .collect();
        let devices = self.scenario.under_test.iter();
        let all = devices.flat_map(|device| &device.to);
        let mut services: Vec<SocketAddr> = all
            .map(|text| text.parse::<SocketAddr>())
            .collect::<Result<_, _>>()?;
        services.sort_unstable();
        services.dedup();
        services.retain(|service| !backends.contains(&service.ip()));
        Ok(services)
    }

    /// Brings a system up, if it is not; returns the number of the change that did.
    fn activate(&self, system: System) -> Result<Active> {
        let mut active = self.active();
        if let Some(active) = active.as_ref()
            && active.device.name == system.to_string()
        {
            return Ok(active.clone());
        }
        if let Some(before) = active.take() {
            command::take_down(&before.device)?;
        }
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
        bring_up(&device)?;
        let next_hops = self.route(&device)?;
        let up = Active { next_hops, ..began };
        *self.active() = Some(up.clone());
        Ok(up)
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

/// Starts a backend for each address; the first answers for Services that nothing translates, too.
fn start_responders(
    card: &Card,
    addresses: [&[IpAddr]; 2],
    services: &[SocketAddr],
    backends: &Backends,
) -> Result<Vec<Responder>> {
    let mut own: Vec<IpAddr> = services.iter().map(SocketAddr::ip).collect();
    own.dedup();
    let loopback = card.namespace().link("lo")?;
    for address in own {
        loopback.add_address(Cidr::host(address))?;
    }
    let start = |number: usize| {
        let own = addresses.iter().filter_map(|family| family.get(number));
        let mut at: Vec<SocketAddr> = own
            .map(|&address| SocketAddr::new(address, crate::scenario::BACKEND_PORT))
            .collect();
        if number == 0 {
            at.extend(services);
        }
        let mark = u16::try_from(number)?;
        Responder::start(
            card.namespace(),
            &at,
            mark,
            backends.marks,
            &backends.arrivals,
        )
    };
    (0..backends.number).map(start).collect()
}

/// Answers at a card of this machine, until the guard is dropped: the far end of the wire `reflector`.
#[derive(Debug)]
pub struct Reflector {
    _responders: Vec<Responder>,
    _card: Card,
}

impl Reflector {
    /// Takes a card, each of whose addresses is a backend. Answers leave by the next hops, one of each family at most.
    ///
    /// # Errors
    ///
    /// When the card cannot be taken.
    pub fn start(port: &Port, via: &[String]) -> Result<Self> {
        let card = Card::take(port, "reflector")?;
        let of = |family: AddressFamily| -> Vec<IpAddr> {
            let all = port.prefixes().map(|prefix| prefix.address);
            all.filter(|address| family.has(*address)).collect()
        };
        let [v4, v6] = AddressFamily::ALL.map(of);
        for family in AddressFamily::ALL
            .into_iter()
            .filter(|family| port.address(*family).is_some())
        {
            set_default(&card, family, hop_of(via, family))?;
        }
        let backends = Backends {
            marks: Key::KNOWN,
            number: v4.len().max(v6.len()),
            arrivals: Arrivals::ignored(),
        };
        let responders = start_responders(&card, [&v4, &v6], &[], &backends)?;
        Ok(Self {
            _responders: responders,
            _card: card,
        })
    }
}

/// Returns the flows of a load to a device, with the backends that must answer where that is known.
///
/// # Errors
///
/// When the client has not enough ports.
pub(super) fn planned_flows(
    ports: &Ports,
    device: &UnderTest,
    load: &Load,
) -> Result<Vec<PlannedFlow>> {
    let targets = device.targets(load.family);
    let backends = ports.backends(load.family);
    let client = ports
        .client
        .address(load.family)
        .context("the client has an address")?;
    let makes_frames = load.generator.makes_frames();
    let of_pktgen = match load.generator {
        GeneratorKind::Pktgen => pktgen::clients(load, targets.len()),
        _ => Vec::new(),
    };
    let flow = |number: u32| {
        let to = targets[number as usize % targets.len()];
        let client = match of_pktgen.get(number as usize) {
            Some(client) => *client,
            None if makes_frames => numbered::client(load.family, number),
            None => {
                let port = u16::try_from(number)?.checked_add(FIRST_CLIENT_PORT);
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
    fn open(&self, system: System, load: &Load) -> Result<Box<dyn Generator + '_>> {
        let mut traffic = Traffic::new(self, system, load);
        traffic.prepare()?;
        Ok(match Goal::of(load.search) {
            Some(goal) => Box::new(Searching::new(Box::new(traffic), goal)),
            None => Box::new(traffic),
        })
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
