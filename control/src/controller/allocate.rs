//! Decides which Service gets which address. A pure function of pools and Services.
//!
//! Everything is decided again each time from the current objects, including the addresses that Services hold.
//! So the order of events does not matter. After a restart only the status of Services is known, and the
//! decisions are the same:
//!
//! 1. A Service keeps its addresses if its pools and its own request still allow them. It also keeps those of a
//!    pool that is being deleted or has unreadable selectors (such a pool gives no new addresses), and those
//!    that a machine has claimed. If two Services may not share an address, the older one keeps it.
//! 2. Services that request an address get it, the oldest first.
//! 3. The others get an address that they may share, else the first free one, from the pools in the order of
//!    their names. Addresses that some Service lists as external come last. Listing an address gives no right
//!    to it, and one Service that lists a whole pool must not block the others.

mod address_owners;
mod address_request;
mod error;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use self::address_owners::{AddressOwners, Search};
use self::address_request::AddressRequest;
use super::address_range::{self, AddressRange, Family};
use super::objects::{Labels, Pool, Service};
use crate::index::objects::ObjectName;

pub(super) use error::{AllocationError, Holder};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    pub(super) pools: BTreeMap<String, Pool>,
    pub(super) namespaces: BTreeMap<String, Labels>,
    pub(super) nodes: BTreeSet<IpAddr>,
    pub(super) api_servers: BTreeSet<IpAddr>,
    /// Addresses of edges outside the cluster.
    pub(super) edges: BTreeSet<IpAddr>,
    /// Addresses that another implementation assigned to Services.
    pub(super) foreign: BTreeMap<IpAddr, ObjectName>,
    /// External addresses of Services. Anyone who may write a Service can list any address there.
    pub(super) external: BTreeSet<IpAddr>,
    /// The Services that this controller assigns addresses to.
    pub(super) services: BTreeMap<ObjectName, Service>,
}

impl Inventory {
    /// Returns the addresses of machines, by kind of machine.
    pub(super) const fn machines(&self) -> [(&BTreeSet<IpAddr>, Holder); 3] {
        [
            (&self.nodes, Holder::Node),
            (&self.edges, Holder::Edge),
            (&self.api_servers, Holder::ApiServer),
        ]
    }

    pub(super) fn is_machine(&self, address: IpAddr) -> bool {
        self.machine_at(address).is_some()
    }

    fn machine_at(&self, address: IpAddr) -> Option<Holder> {
        let mut machines = self.machines().into_iter();
        let having = machines.find(|(addresses, _)| addresses.contains(&address));
        having.map(|(_, holder)| holder)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// Addresses that the Service gets, in the order of its families.
    pub(super) addresses: Vec<IpAddr>,
    /// Why the Service lacks an address of some family.
    pub(super) problem: Option<AllocationError>,
    /// Addresses that the Service held and must give up, and why.
    pub(super) lost: Vec<(IpAddr, AllocationError)>,
}

/// Decides the addresses of every Service.
pub(super) fn allocate(inventory: &Inventory) -> BTreeMap<ObjectName, Decision> {
    let mut services: Vec<&Service> = inventory.services.values().collect();
    services.sort_by_key(|service| (service.created, &service.name));

    let mut owners = AddressOwners::new(inventory);
    let mut claims: Vec<Claim<'_>> = services
        .into_iter()
        .map(|service| Claim::new(service, inventory))
        .collect();
    for claim in &mut claims {
        claim.keep(&mut owners);
    }
    for asking in [true, false] {
        for claim in claims.iter_mut().filter(|claim| claim.asks() == asking) {
            claim.fill(&mut owners);
        }
    }
    for claim in &mut claims {
        claim.explain(&mut owners);
    }
    claims.into_iter().map(Claim::into_decision).collect()
}

/// Returns how many addresses of a family in `ranges` are taken by anyone, and how many there are in all.
pub(super) fn usage(
    ranges: &[AddressRange],
    family: Family,
    taken: &BTreeSet<IpAddr>,
) -> (u128, u128) {
    let of_family = |range: &&AddressRange| range.family() == family;
    let ranges: Vec<AddressRange> = ranges.iter().filter(of_family).copied().collect();
    let used: BTreeSet<&IpAddr> = ranges
        .iter()
        .flat_map(|range| taken.range(range.first()..=range.last()))
        .collect();
    (used.len() as u128, address_range::size(&ranges))
}

/// A Service while its addresses are being decided.
struct Claim<'a> {
    service: &'a Service,
    asked: Result<AddressRequest<'a>, AllocationError>,
    /// The pools that admit the Service, by name. If the Service names pools, only those.
    pools: Vec<(&'a str, &'a Pool)>,
    got: BTreeMap<Family, IpAddr>,
    problem: Option<AllocationError>,
    lost: Vec<(IpAddr, AllocationError)>,
}

impl<'a> Claim<'a> {
    fn new(service: &'a Service, inventory: &'a Inventory) -> Self {
        let asked = AddressRequest::of(service, inventory);
        let namespace = inventory.namespaces.get(service.name.namespace.as_str());
        let named = asked.as_ref().map_or(&[][..], |asked| &asked.pools[..]);
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
            asked,
            pools,
            got: BTreeMap::new(),
            problem: None,
            lost: Vec::new(),
        }
    }

    /// Returns whether the Service requests certain addresses.
    fn asks(&self) -> bool {
        self.asked
            .as_ref()
            .is_ok_and(|asked| !asked.addresses.is_empty())
    }

    fn keep(&mut self, owners: &mut AddressOwners<'a>) {
        for address in &self.service.held {
            let family = Family::of(*address);
            if self.got.contains_key(&family) {
                self.lost
                    .push((*address, AllocationError::OnePerFamily(family)));
                continue;
            }
            match self.may_keep(*address, owners) {
                Ok(()) => {
                    owners.take(*address, self.service);
                    self.got.insert(family, *address);
                }
                Err(problem) => self.lost.push((*address, problem)),
            }
        }
    }

    fn may_keep(&self, address: IpAddr, owners: &AddressOwners<'_>) -> Result<(), AllocationError> {
        let family = Family::of(address);
        if !self.service.families.contains(&family) {
            return Err(AllocationError::FamilyNotWanted(family));
        }
        // An unreadable request does not take held addresses away.
        let asked = self.asked.as_ref().ok();
        match asked.and_then(|asked| asked.addresses.get(&family)) {
            Some(asked) if *asked != address => Err(AllocationError::Asked(*asked)),
            _ if self.having(address).next().is_none() => Err(AllocationError::NotInPools(address)),
            _ => owners.may_join(address, self.service, true),
        }
    }

    /// Checks whether the Service may get an address that it does not hold.
    fn may_get(&self, address: IpAddr, owners: &AddressOwners<'_>) -> Result<(), AllocationError> {
        let having: Vec<(&str, &Pool)> = self.having(address).collect();
        let (first, pool) = having.first().ok_or(AllocationError::NotInPools(address))?;
        if having.iter().all(|(_, pool)| pool.is_closed()) {
            return Err(AllocationError::of_closed(first, pool));
        }
        owners.may_join(address, self.service, false)
    }

    /// Iterates over the pools that contain an address and admit the Service.
    fn having(&self, address: IpAddr) -> impl Iterator<Item = (&'a str, &'a Pool)> {
        let pools = self.pools.iter().copied();
        pools.filter(move |(_, pool)| pool.contains(address))
    }

    fn fill(&mut self, owners: &mut AddressOwners<'a>) {
        let missing: Vec<Family> = self.missing().collect();
        let mut found = Vec::new();
        for family in &missing {
            found.extend(self.find(*family, owners));
        }
        // A Service that is already served by one family keeps it while it waits for the other.
        let is_whole = found.len() == missing.len() || !self.got.is_empty();
        if self.service.dual_stack_required && !is_whole {
            return;
        }
        for address in found {
            owners.take(address, self.service);
            self.got.insert(Family::of(address), address);
        }
    }

    /// Sets the reason why an address is missing. Runs after all addresses are assigned, so that the reason is
    /// the same after a restart.
    fn explain(&mut self, owners: &mut AddressOwners<'_>) {
        let missing = self
            .missing()
            .find_map(|family| self.find(family, owners).err());
        self.problem = self.asked.as_ref().err().cloned().or(missing);
    }

    fn missing(&self) -> impl Iterator<Item = Family> {
        let families = self.service.families.iter().copied();
        families.filter(|family| !self.got.contains_key(family))
    }

    fn find(
        &self,
        family: Family,
        owners: &mut AddressOwners<'_>,
    ) -> Result<IpAddr, AllocationError> {
        let asked = self.asked.as_ref().map_err(Clone::clone)?;
        if let Some(address) = asked.addresses.get(&family) {
            return self.may_get(*address, owners).map(|()| *address);
        }
        let pools = self.pools.iter().copied();
        let open = pools.filter(|(_, pool)| pool.auto_assign || !asked.pools.is_empty());
        let (closed, pools): (Vec<_>, Vec<_>) = open.partition(|(_, pool)| pool.is_closed());
        let shared = owners.shared(self.service).find(|address| {
            Family::of(*address) == family
                && pools.iter().any(|(_, pool)| pool.contains(*address))
                && owners.may_join(*address, self.service, false).is_ok()
        });
        if let Some(address) = shared {
            return Ok(address);
        }
        let of_family = |range: &&AddressRange| range.family() == family;
        let ranges = pools.iter().flat_map(|(_, pool)| &pool.ranges);
        let ranges: Vec<AddressRange> = ranges.filter(of_family).copied().collect();
        if ranges.is_empty() {
            let mut closed = closed.into_iter();
            let had = closed.find(|(_, pool)| pool.ranges.iter().any(|range| of_family(&range)));
            return Err(had.map_or(AllocationError::NoPool(family), |(name, pool)| {
                AllocationError::of_closed(name, pool)
            }));
        }
        let mut ways = [Search::Unnamed, Search::All].into_iter();
        let free = ways.find_map(|search| {
            let mut ranges = ranges.iter();
            ranges.find_map(|range| owners.first_free(*range, search))
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
