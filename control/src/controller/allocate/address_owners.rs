//! Keeps who has which address, and decides who may share it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{AllocationError, Holder, Inventory};
use crate::controller::address_range::{self, AddressRange};
use crate::controller::objects::Service;

pub(super) struct AddressOwners<'a> {
    inventory: &'a Inventory,
    holders: BTreeMap<IpAddr, Holders<'a>>,
    /// Addresses of the Services with each sharing key.
    shared: BTreeMap<&'a str, BTreeSet<IpAddr>>,
    /// For each range, the address up to which all are known to be taken. Valid because no address is released
    /// while Services are being filled.
    searched: BTreeMap<(AddressRange, Search), IpAddr>,
}

/// Which addresses count as free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Search {
    /// Only those that no Service lists as external.
    Unnamed,
    /// Also those that a Service lists as external.
    All,
}

enum Holders<'a> {
    /// Nobody has it, but a Service lists it as external.
    Named,
    /// A machine, or a Service with another implementation.
    Other(Holder),
    /// Services that this controller assigned it to.
    Services(Vec<&'a Service>),
}

impl<'a> AddressOwners<'a> {
    pub(super) fn new(inventory: &'a Inventory) -> Self {
        let named = inventory.external.iter();
        let named = named.map(|address| (*address, Holders::Named));
        let foreign = inventory.foreign.iter();
        let foreign = foreign
            .map(|(address, name)| (*address, Holders::Other(Holder::Foreign(name.clone()))));
        // Reversed, because the last holder of an address replaces the earlier ones.
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
            // `may_join` has allowed the Service this address although somebody else has it.
            Holders::Named | Holders::Other(_) => *holders = Holders::Services(vec![service]),
        }
    }

    /// Checks whether a Service may have an address beside its other holders. `is_held` says whether the
    /// Service already holds it.
    pub(super) fn may_join(
        &self,
        address: IpAddr,
        service: &Service,
        is_held: bool,
    ) -> Result<(), AllocationError> {
        let conflict = |holder| AllocationError::Taken { address, holder };
        // A machine's address is refused even if other Services hold it already.
        if !is_held && let Some(machine) = self.inventory.machine_at(address) {
            return Err(conflict(machine));
        }
        match self.holders.get(&address) {
            None | Some(Holders::Named) => Ok(()),
            // Both have the address, and nobody knows which is wrong: taking it away would break one of them.
            // Anyone with a kubelet's credentials can claim any address for its Node.
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

    pub(super) fn first_free(&mut self, range: AddressRange, search: Search) -> Option<IpAddr> {
        let searched = self.searched.get(&(range, search));
        let from = *searched.unwrap_or(&range.first());
        let mut free = Some(from);
        let is_taken =
            |holders: &Holders<'_>| search == Search::Unnamed || !matches!(holders, Holders::Named);
        let holders = self.holders.range(from..=range.last());
        for taken in holders.filter_map(|(taken, by)| is_taken(by).then_some(*taken)) {
            if Some(taken) != free {
                break;
            }
            free = address_range::next(taken);
        }
        let free = free.filter(|free| *free <= range.last());
        let from = free.unwrap_or(range.last());
        self.searched.insert((range, search), from);
        free
    }
}

/// Checks whether two Services may share one address. The error says what prevents it.
///
/// `lets_share` returns whether a pool allows two namespaces to share an address by a key. Without that check,
/// a writer of Services in one namespace could guess or read the key of another.
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
    // Machines announce the address of a Local service only where it has pods. Both Services must have the same
    // pods, or packets of one arrive at machines without any of its pods.
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
