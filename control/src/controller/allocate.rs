//! Who gets which address: pools and Services in, addresses out.
//!
//! Everything is decided anew from what there is, which includes the addresses that Services hold. So the
//! order of events changes nothing, and a restart, which knows only what the status of Services says,
//! decides as the process before it did:
//!
//! 1. Services keep what they hold, if the pools and their own requests still allow it; also what a pool has that
//!    is being deleted or whose selectors cannot be read, which gives nothing more, and what a machine has come to
//!    have. Of two that may not have one address together, the older one keeps it.
//! 2. Services that ask for an address get it, the oldest first.
//! 3. The others get one they may share, or else the first free one, from the pools in the order of their names.
//!    Addresses that some Service names as external ones come last: they are not its by right, and one Service
//!    that names all of a pool must not keep the others waiting.

mod error;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::block::{self, Block, Family};
use super::objects::{Labels, Pool, Request, Service};
use crate::index::objects::ObjectName;

pub(super) use error::{AllocationError, Holder};

/// All that allocation reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    /// Pools by name.
    pub(super) pools: BTreeMap<String, Pool>,
    /// Labels of namespaces.
    pub(super) namespaces: BTreeMap<String, Labels>,
    /// Addresses of Nodes.
    pub(super) nodes: BTreeSet<IpAddr>,
    /// Addresses of API servers.
    pub(super) api_servers: BTreeSet<IpAddr>,
    /// Addresses of edges outside the cluster.
    pub(super) edges: BTreeSet<IpAddr>,
    /// Addresses that another implementation gave to Services.
    pub(super) foreign: BTreeMap<IpAddr, ObjectName>,
    /// External addresses of Services: whoever may write a Service writes there what it likes.
    pub(super) external: BTreeSet<IpAddr>,
    /// The Services that get their addresses from here.
    pub(super) services: BTreeMap<ObjectName, Service>,
}

impl Inventory {
    /// Returns the addresses of machines, by kind.
    pub(super) const fn machines(&self) -> [(&BTreeSet<IpAddr>, Holder); 3] {
        [
            (&self.nodes, Holder::Node),
            (&self.edges, Holder::Edge),
            (&self.api_servers, Holder::ApiServer),
        ]
    }

    /// Tells whether a machine has an address.
    pub(super) fn is_machine(&self, address: IpAddr) -> bool {
        self.machine_at(address).is_some()
    }

    /// Returns what kind of machine has an address.
    fn machine_at(&self, address: IpAddr) -> Option<Holder> {
        let mut machines = self.machines().into_iter();
        let having = machines.find(|(addresses, _)| addresses.contains(&address));
        having.map(|(_, holder)| holder)
    }
}

/// What a Service gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// Its addresses, in the order of its families.
    pub(super) addresses: Vec<IpAddr>,
    /// Why it does not have an address of each family.
    pub(super) problem: Option<AllocationError>,
    /// Addresses that it held and may not keep, and why.
    pub(super) lost: Vec<(IpAddr, AllocationError)>,
}

/// Decides what every Service gets.
pub(super) fn allocate(inventory: &Inventory) -> BTreeMap<ObjectName, Decision> {
    let mut services: Vec<&Service> = inventory.services.values().collect();
    services.sort_by_key(|service| (service.created, &service.name));

    let mut ledger = Ledger::new(inventory);
    let mut claims: Vec<Claim<'_>> = services
        .into_iter()
        .map(|service| Claim::new(service, inventory))
        .collect();
    for claim in &mut claims {
        claim.keep(&mut ledger);
    }
    for asking in [true, false] {
        for claim in claims.iter_mut().filter(|claim| claim.asks() == asking) {
            claim.fill(&mut ledger);
        }
    }
    for claim in &mut claims {
        claim.explain(&mut ledger);
    }
    claims.into_iter().map(Claim::into_decision).collect()
}

/// Tells how many of a pool's addresses of a family are in use, by whomever, and how many there are.
pub(super) fn usage(blocks: &[Block], family: Family, taken: &BTreeSet<IpAddr>) -> (u128, u128) {
    let of_family = |block: &&Block| block.family() == family;
    let blocks: Vec<Block> = blocks.iter().filter(of_family).copied().collect();
    let used: BTreeSet<&IpAddr> = blocks
        .iter()
        .flat_map(|block| taken.range(block.first()..=block.last()))
        .collect();
    (used.len() as u128, block::size(&blocks))
}

/// One Service on its way to its addresses.
struct Claim<'a> {
    service: &'a Service,
    wish: Result<Wish<'a>, AllocationError>,
    /// The pools that admit the Service, by name; if it names some, only those.
    pools: Vec<(&'a str, &'a Pool)>,
    got: BTreeMap<Family, IpAddr>,
    problem: Option<AllocationError>,
    lost: Vec<(IpAddr, AllocationError)>,
}

impl<'a> Claim<'a> {
    fn new(service: &'a Service, inventory: &'a Inventory) -> Self {
        let wish = Wish::of(service, inventory);
        let namespace = inventory.namespaces.get(service.name.namespace.as_str());
        let named = wish.as_ref().map_or(&[][..], |wish| &wish.pools[..]);
        let pools = inventory
            .pools
            .iter()
            .filter(|(name, pool)| {
                let named = named.is_empty() || named.contains(&name.as_str());
                named && pool.admits(&service.labels, namespace)
            })
            .map(|(name, pool)| (name.as_str(), pool))
            .collect();
        Self {
            service,
            wish,
            pools,
            got: BTreeMap::new(),
            problem: None,
            lost: Vec::new(),
        }
    }

    /// Tells whether certain addresses are asked for.
    fn asks(&self) -> bool {
        self.wish
            .as_ref()
            .is_ok_and(|wish| !wish.addresses.is_empty())
    }

    fn keep(&mut self, ledger: &mut Ledger<'a>) {
        for address in &self.service.held {
            let family = Family::of(*address);
            if self.got.contains_key(&family) {
                self.lost
                    .push((*address, AllocationError::OnePerFamily(family)));
                continue;
            }
            match self.may_keep(*address, ledger) {
                Ok(()) => {
                    ledger.take(*address, self.service);
                    self.got.insert(family, *address);
                }
                Err(problem) => self.lost.push((*address, problem)),
            }
        }
    }

    fn may_keep(&self, address: IpAddr, ledger: &Ledger<'_>) -> Result<(), AllocationError> {
        let family = Family::of(address);
        if !self.service.families.contains(&family) {
            return Err(AllocationError::FamilyNotWanted(family));
        }
        // A request that cannot be read takes nothing away.
        let asked = self.wish.as_ref().ok();
        match asked.and_then(|wish| wish.addresses.get(&family)) {
            Some(asked) if *asked != address => Err(AllocationError::Asked(*asked)),
            _ if self.having(address).next().is_none() => Err(AllocationError::NotInPools(address)),
            _ => ledger.may_join(address, self.service, true),
        }
    }

    /// Tells whether the Service may get an address that it does not have.
    fn may_get(&self, address: IpAddr, ledger: &Ledger<'_>) -> Result<(), AllocationError> {
        let having: Vec<(&str, &Pool)> = self.having(address).collect();
        let (first, pool) = having.first().ok_or(AllocationError::NotInPools(address))?;
        if having.iter().all(|(_, pool)| pool.is_closed()) {
            return Err(AllocationError::of_closed(first, pool));
        }
        ledger.may_join(address, self.service, false)
    }

    /// Lists the pools that have an address and admit the Service.
    fn having(&self, address: IpAddr) -> impl Iterator<Item = (&'a str, &'a Pool)> {
        let pools = self.pools.iter().copied();
        pools.filter(move |(_, pool)| pool.contains(address))
    }

    fn fill(&mut self, ledger: &mut Ledger<'a>) {
        let missing: Vec<Family> = self.missing().collect();
        let mut found = Vec::new();
        for family in &missing {
            found.extend(self.find(*family, ledger));
        }
        // A Service that serves by one family goes on to while it waits for the other.
        let is_whole = found.len() == missing.len() || !self.got.is_empty();
        if self.service.dual_stack_required && !is_whole {
            return;
        }
        for address in found {
            ledger.take(address, self.service);
            self.got.insert(Family::of(address), address);
        }
    }

    /// Says why an address is missing, when all addresses are given: so it is the same after a restart.
    fn explain(&mut self, ledger: &mut Ledger<'_>) {
        let missing = self
            .missing()
            .find_map(|family| self.find(family, ledger).err());
        self.problem = self.wish.as_ref().err().cloned().or(missing);
    }

    fn missing(&self) -> impl Iterator<Item = Family> {
        let families = self.service.families.iter().copied();
        families.filter(|family| !self.got.contains_key(family))
    }

    fn find(&self, family: Family, ledger: &mut Ledger<'_>) -> Result<IpAddr, AllocationError> {
        let wish = self.wish.as_ref().map_err(Clone::clone)?;
        if let Some(address) = wish.addresses.get(&family) {
            return self.may_get(*address, ledger).map(|()| *address);
        }
        let pools = self.pools.iter().copied();
        let open = pools.filter(|(_, pool)| pool.auto_assign || !wish.pools.is_empty());
        let (closed, pools): (Vec<_>, Vec<_>) = open.partition(|(_, pool)| pool.is_closed());
        let shared = ledger.shared(self.service).find(|address| {
            Family::of(*address) == family
                && pools.iter().any(|(_, pool)| pool.contains(*address))
                && ledger.may_join(*address, self.service, false).is_ok()
        });
        if let Some(address) = shared {
            return Ok(address);
        }
        let of_family = |block: &&Block| block.family() == family;
        let blocks = pools.iter().flat_map(|(_, pool)| &pool.blocks);
        let blocks: Vec<Block> = blocks.filter(of_family).copied().collect();
        if blocks.is_empty() {
            let mut closed = closed.into_iter();
            let had = closed.find(|(_, pool)| pool.blocks.iter().any(|block| of_family(&block)));
            return Err(had.map_or(AllocationError::NoPool(family), |(name, pool)| {
                AllocationError::of_closed(name, pool)
            }));
        }
        let mut ways = [Search::Unnamed, Search::All].into_iter();
        let free = ways.find_map(|search| {
            let mut blocks = blocks.iter();
            blocks.find_map(|block| ledger.first_free(*block, search))
        });
        free.ok_or(AllocationError::Exhausted(family))
    }

    fn into_decision(self) -> (ObjectName, Decision) {
        let families = self.service.families.iter();
        let addresses = families.filter_map(|family| self.got.get(family).copied());
        let decision = Decision {
            addresses: addresses.collect(),
            problem: self.problem,
            lost: self.lost,
        };
        (self.service.name.clone(), decision)
    }
}

/// What a Service asks for, read.
struct Wish<'a> {
    addresses: BTreeMap<Family, IpAddr>,
    pools: Vec<&'a str>,
}

impl<'a> Wish<'a> {
    fn of(service: &'a Service, inventory: &Inventory) -> Result<Self, AllocationError> {
        let Request {
            addresses,
            load_balancer_ip,
            pools,
            ..
        } = &service.request;
        let pools = pools.as_deref().map(listed).unwrap_or_default();
        let exists = |name: &&&str| inventory.pools.contains_key(**name);
        if let Some(unknown) = pools.iter().find(|name| !exists(name)) {
            return Err(AllocationError::NoSuchPool((*unknown).to_owned()));
        }
        let addresses = match (addresses.as_deref(), load_balancer_ip.as_deref()) {
            (Some(annotation), Some(field)) => {
                let asked = asked(annotation, &service.families)?;
                match field.parse::<IpAddr>() {
                    Ok(address) if asked.values().any(|asked| *asked == address) => asked,
                    _ => return Err(AllocationError::Contradiction),
                }
            }
            (Some(text), None) | (None, Some(text)) => asked(text, &service.families)?,
            (None, None) => BTreeMap::new(),
        };
        Ok(Self { addresses, pools })
    }
}

/// Reads the addresses that are asked for.
fn asked(text: &str, families: &[Family]) -> Result<BTreeMap<Family, IpAddr>, AllocationError> {
    let mut addresses = BTreeMap::new();
    for text in listed(text) {
        let address: IpAddr = text
            .parse()
            .map_err(|_| AllocationError::NoAddress(text.to_owned()))?;
        let family = Family::of(address);
        if !families.contains(&family) {
            return Err(AllocationError::FamilyNotWanted(family));
        }
        if addresses.insert(family, address).is_some() {
            return Err(AllocationError::OnePerFamily(family));
        }
    }
    Ok(addresses)
}

/// Splits a list as annotations have it.
fn listed(text: &str) -> Vec<&str> {
    let parts = text.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Who has which address.
struct Ledger<'a> {
    inventory: &'a Inventory,
    holders: BTreeMap<IpAddr, Holders<'a>>,
    /// Addresses by the key that their Services share them under.
    shared: BTreeMap<&'a str, BTreeSet<IpAddr>>,
    /// How far each block is known to be taken: nothing is given back while services are filled.
    searched: BTreeMap<(Block, Search), IpAddr>,
}

/// Which addresses are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Search {
    /// Those that no Service names as an external one.
    Unnamed,
    /// Those too.
    All,
}

enum Holders<'a> {
    /// Nobody, though a Service names it as an external address.
    Named,
    /// Somebody who does not get it from here.
    Other(Holder),
    /// Services that get it from here.
    Services(Vec<&'a Service>),
}

impl<'a> Ledger<'a> {
    fn new(inventory: &'a Inventory) -> Self {
        let named = inventory.external.iter();
        let named = named.map(|address| (*address, Holders::Named));
        let foreign = inventory.foreign.iter();
        let foreign = foreign
            .map(|(address, name)| (*address, Holders::Other(Holder::Foreign(name.clone()))));
        // Of two holders of an address the later one counts.
        let machines = inventory.machines().into_iter().rev();
        let machines = machines.flat_map(|(addresses, holder)| {
            let addresses = addresses.iter();
            addresses.map(move |address| (*address, Holders::Other(holder.clone())))
        });
        Self {
            inventory,
            holders: named.chain(foreign).chain(machines).collect(),
            shared: BTreeMap::new(),
            searched: BTreeMap::new(),
        }
    }

    fn take(&mut self, address: IpAddr, service: &'a Service) {
        if let Some(key) = &service.request.sharing_key {
            self.shared.entry(key).or_default().insert(address);
        }
        let holders = self.holders.entry(address);
        let holders = holders.or_insert_with(|| Holders::Services(Vec::new()));
        match holders {
            Holders::Services(services) => services.push(service),
            // This Service's as well: see `may_join`.
            Holders::Named | Holders::Other(_) => *holders = Holders::Services(vec![service]),
        }
    }

    /// Tells whether a Service may have an address, beside those that have it; whether it is about one that the Service holds.
    fn may_join(
        &self,
        address: IpAddr,
        service: &Service,
        is_held: bool,
    ) -> Result<(), AllocationError> {
        let conflict = |holder| AllocationError::Taken { address, holder };
        // Also if others hold it already.
        if !is_held && let Some(machine) = self.inventory.machine_at(address) {
            return Err(conflict(machine));
        }
        match self.holders.get(&address) {
            None | Some(Holders::Named) => Ok(()),
            // Where both have it, it cannot be known which is wrong, and taking it away breaks one. What a Node says of
            // its addresses anybody may say who has its credentials.
            Some(Holders::Other(holder))
                if is_held || *holder == Holder::Foreign(service.name.clone()) =>
            {
                Ok(())
            }
            Some(Holders::Other(holder)) => Err(conflict(holder.clone())),
            Some(Holders::Services(others)) => {
                let lets_share = |key: &str, namespaces: [&str; 2]| {
                    let pools = self.inventory.pools.values();
                    let mut having = pools.filter(|pool| pool.contains(address));
                    having.any(|pool| pool.lets_share(key, namespaces))
                };
                let against = |other: &&Service| {
                    let holder = may_share(service, other, lets_share).err()?;
                    Some((other.name.clone(), holder))
                };
                let first = others
                    .iter()
                    .filter_map(against)
                    .min_by(|(one, _), (other, _)| one.cmp(other));
                first.map_or(Ok(()), |(_, holder)| Err(conflict(holder)))
            }
        }
    }

    fn shared(&self, service: &Service) -> impl Iterator<Item = IpAddr> {
        let key = service.request.sharing_key.as_deref();
        let addresses = key.and_then(|key| self.shared.get(key));
        addresses.into_iter().flatten().copied()
    }

    fn first_free(&mut self, block: Block, search: Search) -> Option<IpAddr> {
        let searched = self.searched.get(&(block, search));
        let from = *searched.unwrap_or(&block.first());
        let mut free = Some(from);
        let is_taken =
            |holders: &Holders<'_>| search == Search::Unnamed || !matches!(holders, Holders::Named);
        let holders = self.holders.range(from..=block.last());
        for taken in holders.filter_map(|(taken, by)| is_taken(by).then_some(*taken)) {
            if Some(taken) != free {
                break;
            }
            free = block::next(taken);
        }
        let free = free.filter(|free| *free <= block.last());
        let from = free.unwrap_or(block.last());
        self.searched.insert((block, search), from);
        free
    }
}

/// Tells whether two Services may have one address together, else what is against it.
///
/// `lets_share` tells whether a pool lets Services of two namespaces share the address by a key: who may write Services
/// in one namespace might guess or read the key of another one.
fn may_share(
    service: &Service,
    other: &Service,
    lets_share: impl Fn(&str, [&str; 2]) -> bool,
) -> Result<(), Holder> {
    let name = || other.name.clone();
    let keys = [service, other].map(|service| service.request.sharing_key.as_deref());
    let Some(key) = keys[0].filter(|_| keys[0] == keys[1]) else {
        return Err(Holder::Service(name()));
    };
    let namespaces = [service, other].map(|service| service.name.namespace.as_str());
    if namespaces[0] != namespaces[1] && !lets_share(key, namespaces) {
        return Err(Holder::OtherNamespace(name()));
    }
    if let Some((protocol, port)) = service.ports.intersection(&other.ports).next() {
        return Err(Holder::Port(name(), *protocol, *port));
    }
    // Machines announce the address of a Local service where it has pods: that must be the same machines.
    let same_pods = service.local
        && other.local
        && service.name.namespace == other.name.namespace
        && !service.selector.is_empty()
        && service.selector == other.selector;
    if (service.local || other.local) && !same_pods {
        return Err(Holder::OtherPods(name()));
    }
    Ok(())
}
