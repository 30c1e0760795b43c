//! Recomputes the Services that objects have touched, then gives each key to the first Service that claims it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;

use super::objects::{self, ObjectName};
use super::outcome::{AddressOrigin, Outcome, created, outcome};
use super::problem::{BrokenRule, Object, Problem, more};
use super::slice::Slices;
use super::{Changes, Index};
use crate::desired::{Service, ServiceKey};

/// A Service with its slices, and the result computed from them.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) service: Option<Box<objects::Service>>,
    pub(super) slices: Slices,
    outcome: Outcome,
    /// For each key that this Service claims and lost, the Service that has it.
    conflicts: BTreeMap<ServiceKey, ObjectName>,
}

/// One Service's claim to a key. The least claim by `(is_external, created, name)` is served.
#[derive(Debug)]
pub(super) struct ServiceClaim {
    is_external: bool,
    created: i64,
    name: ObjectName,
    service: Arc<Service>,
}

impl Index {
    /// Recomputes the Services that an object touched. Returns what changed since the last update.
    pub fn update(&mut self) -> Changes {
        let mut touched = Touched::default();
        for name in std::mem::take(&mut self.dirty) {
            self.compute(&name, &mut touched);
        }
        // A namespace's room is shared out among all its Services, so others may become refused or admitted.
        for name in self.quotas.settle() {
            self.compute(&name, &mut touched);
        }
        for key in touched.keys {
            self.serve(key, &mut touched.names);
        }
        for address in touched.addresses {
            self.capture(address);
        }
        for name in touched.names {
            self.finish(name);
        }
        std::mem::take(&mut self.changes)
    }

    /// Recomputes one Service and replaces its claims.
    fn compute(&mut self, name: &ObjectName, touched: &mut Touched) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        self.changes.computed += 1;
        let mut new = match &entry.service {
            Some(service) => outcome(&self.options, &self.machines, service, &entry.slices),
            None => Outcome::default(),
        };
        let created = entry.service.as_deref().map_or(i64::MAX, created);
        self.quotas.note(name, created, new.takes);
        if let Some(most) = self.quotas.refusal(name) {
            new = new.refuse(&Object::Service(name.clone()), most);
        }
        let old = std::mem::take(&mut entry.outcome);
        for (key, service) in new.services.values_mut() {
            // Equal services keep their pointer: comparing two states compares pointers first.
            if let Some(old) = old.services.get(key).filter(|old| *old == service) {
                *service = Arc::clone(old);
            }
        }
        for key in old.services.keys() {
            release(&mut self.claims, key, |claim| claim.name != *name);
        }
        for (key, service) in new.services.iter() {
            let claims = self.claims.entry(*key).or_default();
            claims.reserve_exact(1);
            claims.push(ServiceClaim {
                is_external: new.captured.get(&key.address) == Some(&AddressOrigin::External),
                created,
                name: name.clone(),
                service: Arc::clone(service),
            });
        }
        for address in old.captured.keys() {
            release(&mut self.captured, address, |(holder, _)| holder != name);
        }
        for (address, how) in new.captured.iter() {
            let holders = self.captured.entry(*address).or_default();
            holders.reserve_exact(1);
            holders.push((name.clone(), *how));
        }
        touched.keys.extend(old.services.keys());
        touched.keys.extend(new.services.keys());
        touched.addresses.extend(old.captured.keys());
        touched.addresses.extend(new.captured.keys());
        touched.names.insert(name.clone());
        entry.outcome = new;
    }

    /// Gives a key to the first Service that claims it.
    fn serve(&mut self, key: ServiceKey, touched: &mut BTreeSet<ObjectName>) {
        let claims = self.claims.get(&key).map_or(&[][..], Vec::as_slice);
        let winner = claims
            .iter()
            .min_by_key(|claim| (claim.is_external, claim.created, &claim.name));
        let service = winner.map(|winner| &winner.service);
        let same = match (self.state.services.get(&key), service) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !same {
            put(&mut self.state.services, key, service.map(Arc::clone));
            self.changes.services.insert(key);
        }
        let winner = winner.map(|winner| winner.name.clone());
        let entry = winner.as_ref().and_then(|name| self.entries.get(name));
        let outcome = entry.map(|entry| &entry.outcome);
        let draining = outcome.and_then(|outcome| outcome.draining.get(&key));
        self.changes.draining |= put_new(&mut self.state.draining, key, draining);
        let announcers = outcome.and_then(|outcome| outcome.announcers.get(&key));
        self.changes.addresses |= put_new(&mut self.state.announcers, key, announcers);
        for claim in self.claims.get(&key).into_iter().flatten() {
            let Some(entry) = self.entries.get_mut(&claim.name) else {
                continue;
            };
            let lost_to = winner.clone().filter(|winner| *winner != claim.name);
            if entry.conflicts.get(&key) != lost_to.as_ref() {
                match lost_to {
                    Some(winner) => drop(entry.conflicts.insert(key, winner)),
                    None => drop(entry.conflicts.remove(&key)),
                }
                touched.insert(claim.name.clone());
            }
        }
    }

    /// Decides whether an address is virtual, assigned or shared.
    fn capture(&mut self, address: IpAddr) {
        let holders = self.captured.get(&address).map_or(&[][..], Vec::as_slice);
        let has = |wanted: AddressOrigin| holders.iter().any(|(_, how)| *how == wanted);
        let is_served = has(AddressOrigin::Assigned) || has(AddressOrigin::External);
        let is_vip = is_served && !self.machines.withholds(address);
        let is_assigned = is_vip && has(AddressOrigin::Assigned);
        let state = &mut self.state;
        for (is_member, set) in [
            (is_vip, &mut state.vips),
            (is_assigned, &mut state.assigned),
            (is_served && !is_assigned, &mut state.shared),
        ] {
            if is_member == set.contains(&address) {
                continue;
            }
            if is_member {
                set.insert(address);
            } else {
                set.remove(&address);
            }
            self.changes.addresses = true;
        }
    }

    /// Publishes the problems and health check of a Service. Removes the entry if it has neither Service nor slices.
    fn finish(&mut self, name: ObjectName) {
        let Some(entry) = self.entries.get_mut(&name) else {
            return;
        };
        let claimed = &entry.outcome.services;
        entry.conflicts.retain(|key, _| claimed.get(key).is_some());
        let mut problems = entry.outcome.problems.clone();
        let object = Object::Service(name.clone());
        problems.extend(conflict(&object, &entry.conflicts));
        problems.sort_unstable();
        let health_check = entry.outcome.health_check;
        if entry.service.is_none() && entry.slices.is_empty() {
            self.entries.remove(&name);
        }
        self.changes.health_checks |=
            put_new(&mut self.state.health_checks, name, health_check.as_ref());
        self.set_problems(object, problems);
    }
}

/// What an update must recompute.
#[derive(Debug, Default)]
struct Touched {
    keys: BTreeSet<ServiceKey>,
    addresses: BTreeSet<IpAddr>,
    names: BTreeSet<ObjectName>,
}

/// Removes from a list the values that `keep` rejects, and removes the list if it is empty.
fn release<K: std::hash::Hash + Eq, V>(
    map: &mut HashMap<K, Vec<V>>,
    key: &K,
    keep: impl Fn(&V) -> bool,
) {
    if let Some(list) = map.get_mut(key) {
        list.retain(keep);
        if list.is_empty() {
            map.remove(key);
        }
    }
}

/// Sets an entry; removes it for `None`.
pub(super) fn put<K: Ord + Clone, V: Clone>(map: &mut OrdMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// Sets an entry, or removes it for `None`. Returns whether that changes the map.
fn put_new<K, V>(map: &mut OrdMap<K, V>, key: K, value: Option<&V>) -> bool
where
    K: Ord + Clone,
    V: Clone + PartialEq,
{
    let is_new = map.get(&key) != value;
    if is_new {
        put(map, key, value.cloned());
    }
    is_new
}

/// Returns what the owner of a Service calls this key.
pub(super) fn served_at_name(key: &ServiceKey) -> String {
    if key.address.is_unspecified() {
        format!("node port {}/{}", key.port, key.protocol)
    } else {
        key.to_string()
    }
}

/// Returns the problem of a Service that lost claims to others; `None` if it lost none.
fn conflict(object: &Object, conflicts: &BTreeMap<ServiceKey, ObjectName>) -> Option<Problem> {
    let (key, winner) = conflicts.first_key_value()?;
    let more = more(conflicts.len(), " of this kind");
    let at = served_at_name(key);
    Some(Problem {
        object: object.clone(),
        rule: BrokenRule::Conflict,
        text: format!("{at} is served for Service {winner}, which goes first{more}"),
        remedy: "give one of the two another address or port".to_owned(),
        only_here: false,
    })
}
