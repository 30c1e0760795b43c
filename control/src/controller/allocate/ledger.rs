//! Who has which address, and who may have it too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{AllocationError, Holder, Inventory};
use crate::controller::block::{self, Block};
use crate::controller::objects::Service;

pub(super) struct Ledger<'a> {
    inventory: &'a Inventory,
    holders: BTreeMap<IpAddr, Holders<'a>>,
    /// Addresses by the key that their Services share them under.
    shared: BTreeMap<&'a str, BTreeSet<IpAddr>>,
    /// How far each block is known to be taken: nothing is given back while services are filled.
    searched: BTreeMap<(Block, Search), IpAddr>,
}

/// Which addresses are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Search {
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
    pub(super) fn new(inventory: &'a Inventory) -> Self {
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

    pub(super) fn take(&mut self, address: IpAddr, service: &'a Service) {
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
    pub(super) fn may_join(
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

    pub(super) fn shared(&self, service: &Service) -> impl Iterator<Item = IpAddr> {
        let key = service.request.sharing_key.as_deref();
        let addresses = key.and_then(|key| self.shared.get(key));
        addresses.into_iter().flatten().copied()
    }

    pub(super) fn first_free(&mut self, block: Block, search: Search) -> Option<IpAddr> {
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
