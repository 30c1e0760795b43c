//! The owners of slots in terms that mean the same on every edge: what this edge tells others of its tables, and what it
//! takes of what they tell.
//!
//! A backend that owns a slot on another edge may have connections that routers move to this one. So it is a past owner
//! of the slot here, unless it is the owner here too. What an edge has as a past owner lives as long there as here: it
//! is told with the seconds since it ceased to own, which are rounded up. So nothing lives longer for being told, however
//! often it goes to and fro.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use xdp_prog::{
    abi::{BACKEND_POD, MAX_PAST_OWNERS, PAST_OWNER_SECONDS, PastOwner, Slot},
    maglev::MAX_LOG2_LEN,
};

use super::{
    BackendKey, InstalledBackend, OwnedBackend, Run, ServiceKey, ServiceSpec, Tables,
    TrafficPolicy,
    encode::backend_key,
    need::LAST_SECONDS,
    past::{former_slots, keeps_past, second_now},
};

/// By how much another edge's moment of a past owner must be newer to replace the moment here, in seconds. To follow each
/// difference would change lists for nothing.
const REFRESH_SECONDS: u32 = 600;

/// The owners of the slots of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotOwners {
    /// Base-2 logarithm of the number of slots.
    pub log2: u8,
    /// The lengths that sets of the last day needed, as base-2 logarithms, each with the seconds since it was needed last,
    /// rounded up.
    pub needs: Vec<(u8, u32)>,
    /// The backends that own slots, or have owned some, in order.
    pub backends: Vec<BackendKey>,
    /// The different lists of past owners, the newest owner first.
    pub lists: Vec<Vec<FormerOwner>>,
    /// The slots.
    pub slots: Vec<OwnedSlot>,
}

/// A past owner of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FormerOwner {
    /// Its index among the backends.
    pub backend: u32,
    /// Seconds since it ceased to own the slot, rounded up.
    pub seconds_ago: u32,
}

/// A slot's owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnedSlot {
    /// Index of the owner among the backends; `None` if nobody owns the slot.
    pub owner: Option<u32>,
    /// Index of the list of its past owners; `None` if it has none.
    pub past: Option<u32>,
}

/// What was taken of another edge's owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOwners {
    /// Slots that have another list.
    pub slots: u32,
    /// Backends for which there was no room, or whose nodes are not known.
    pub left_out: u32,
}

impl SlotOwners {
    /// Tells whether the parts fit together: a length that a table can have, an entry for each slot, indices of backends
    /// and lists that there are, lists as long as they can be, and no backend twice.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let is_backend = |index: u32| (index as usize) < self.backends.len();
        let is_list = |index: u32| (index as usize) < self.lists.len();
        let lists = &mut self.lists.iter();
        let fits = |list: &Vec<FormerOwner>| {
            let mut owners = list.iter();
            (1..=MAX_PAST_OWNERS as usize).contains(&list.len())
                && owners.all(|owner| is_backend(owner.backend))
        };
        self.log2 <= MAX_LOG2_LEN
            && self.needs.iter().all(|(length, _)| *length <= MAX_LOG2_LEN)
            && self.slots.len() == 1 << self.log2
            && self.backends.is_sorted_by(|one, next| one < next)
            && lists.all(fits)
            && self
                .slots
                .iter()
                .all(|slot| slot.owner.is_none_or(is_backend) && slot.past.is_none_or(is_list))
    }

    /// Returns the owners and past owners of some slots, as past owners of another edge whose monotonic clock shows
    /// `second`. `id` gives the ids that the backends have there.
    fn as_past(
        &self,
        slots: Range<u32>,
        second: u32,
        id: impl Fn(u32) -> Option<u32>,
    ) -> Vec<PastOwner> {
        let mut told = Vec::new();
        for slot in slots.filter_map(|slot| self.slots.get(slot as usize)) {
            let owner = slot.owner.and_then(&id);
            told.extend(owner.map(|owner| PastOwner::new(owner, second)));
            let list = slot.past.and_then(|list| self.lists.get(list as usize));
            for former in list.into_iter().flatten() {
                let moment = second.checked_sub(former.seconds_ago);
                let is_live = former.seconds_ago < PAST_OWNER_SECONDS - LAST_SECONDS;
                if let (true, Some(moment), Some(id)) = (is_live, moment, id(former.backend)) {
                    told.push(PastOwner::new(id, moment));
                }
            }
        }
        told
    }
}

/// Tells whether all edges have the same backends for a service: none uses its own pods alone.
fn is_shared(key: &ServiceKey, spec: &ServiceSpec) -> bool {
    keeps_past(key, spec)
        && spec.traffic_policy == TrafficPolicy::Cluster
        && !spec.node_port
        && !key.address.is_unspecified()
}

/// Returns a slot's list with what another edge has told; `None` if it stays as it is.
fn merged(list: &[PastOwner], told: Vec<PastOwner>, owner: u32) -> Option<Vec<PastOwner>> {
    let mut all = list.to_vec();
    for past in told.into_iter().filter(|past| past.backend() != owner) {
        let mut known = all.iter_mut();
        match known.find(|known| known.backend() == past.backend()) {
            Some(known) if past.second() >= known.second() + REFRESH_SECONDS => *known = past,
            Some(_) => {}
            None => all.push(past),
        }
    }
    // Stable: of the same second, the order stays.
    all.sort_by_key(|past| Reverse(past.second()));
    all.truncate(MAX_PAST_OWNERS as usize);
    (all != list).then_some(all)
}

impl Tables {
    /// Lists the services whose owners are to be the same on all edges.
    pub fn shared_services(&self) -> impl Iterator<Item = &ServiceKey> {
        let specs = self.contents.specs.iter();
        specs.filter_map(|(key, spec)| is_shared(key, spec).then_some(key))
    }

    /// Returns the owners of a service's slots; `None` if the service is not there, or edges do not have the same owners.
    pub fn slot_owners(&self, key: &ServiceKey) -> Option<SlotOwners> {
        self.slot_owners_at(key, second_now())
    }

    pub(super) fn slot_owners_at(&self, key: &ServiceKey, second: u32) -> Option<SlotOwners> {
        let spec = self.contents.specs.get(key)?;
        let service = self.service(key).filter(|_| is_shared(key, spec))?;
        let run = service.run;
        let mut ids = BTreeMap::new();
        let mut name = |id: u32| {
            let backend = self.backends.get(id).filter(|backend| backend.flags != 0);
            if let (true, Some(backend)) = (id != 0, backend) {
                ids.entry(backend_key(backend)).or_insert(id);
            }
        };
        let (mut lists, mut by_offset) = (Vec::new(), HashMap::new());
        for index in run.base..run.base + run.length() {
            let slot = self.lut.get(index).unwrap_or_default();
            name(slot.owner());
            if let Some((offset, list)) = self.past_at(index, slot) {
                by_offset.entry(offset).or_insert_with(|| {
                    list.iter().for_each(|past| name(past.backend()));
                    lists.push(list.to_vec());
                    lists.len() - 1
                });
            }
        }
        let backends: Vec<BackendKey> = ids.keys().copied().collect();
        let places: HashMap<u32, u32> = ids.into_values().zip(0..).collect();
        let former = |past: &PastOwner| {
            let backend = *places.get(&past.backend())?;
            let seconds_ago = second.saturating_sub(past.second()) + 1;
            Some(FormerOwner {
                backend,
                seconds_ago,
            })
        };
        let lists = lists.iter();
        let lists = lists.map(|list| list.iter().filter_map(former).collect());
        let slots = (run.base..run.base + run.length()).map(|index| {
            let slot = self.lut.get(index).unwrap_or_default();
            let list = self.past_at(index, slot);
            OwnedSlot {
                owner: places.get(&slot.owner()).copied(),
                past: list.and_then(|(offset, _)| u32::try_from(*by_offset.get(&offset)?).ok()),
            }
        });
        Some(SlotOwners {
            log2: run.log2,
            needs: self.told_needs(key, second),
            backends,
            lists: lists.collect(),
            slots: slots.collect(),
        })
    }

    /// Takes the owners that another edge has told: they become past owners of the slots here, `told_ago` seconds ago.
    /// Only pods count, and only those on nodes that `is_node` knows. A service that is not there, or that edges do not
    /// share, stays as it is.
    pub fn take_slot_owners(
        &mut self,
        key: &ServiceKey,
        told: &SlotOwners,
        told_ago: u32,
        is_node: impl Fn(&BackendKey) -> bool,
    ) -> TakenOwners {
        let second = second_now().saturating_sub(told_ago);
        self.take_slot_owners_at(key, told, second, is_node)
    }

    pub(super) fn take_slot_owners_at(
        &mut self,
        key: &ServiceKey,
        told: &SlotOwners,
        second: u32,
        is_node: impl Fn(&BackendKey) -> bool,
    ) -> TakenOwners {
        self.take_needs(key, &told.needs, second);
        let spec = self.contents.specs.get(key);
        let service = self.service(key);
        let Some((run, owner)) = spec
            .filter(|spec| is_shared(key, spec))
            .and(service)
            .map(|service| (service.run, service.owner))
        else {
            return TakenOwners::default();
        };
        let is_pod = |backend: &BackendKey| {
            let pod = backend.pod.filter(|_| !backend.nat);
            pod.is_some_and(|pod| pod.is_ipv4() == key.address.is_ipv4()) && is_node(backend)
        };
        let (ids, left_out) = self.ids_of(&told.backends, owner, is_pod);
        // To make room for a list, others are shortened: an entry must not go that lists to come name.
        self.hold_backends(&ids);
        let mut slots = 0;
        for index in run.base..run.base + run.length() {
            slots += u32::from(self.take_slot(index, run, told, second, &ids));
        }
        self.drop_backends(ids.iter().flatten().map(|(id, _)| *id));
        self.reclaim_if_worth_it();
        TakenOwners { slots, left_out }
    }

    /// Gives a slot the owners that another edge has told; returns whether that changes its list.
    fn take_slot(
        &mut self,
        index: u32,
        run: Run,
        told: &SlotOwners,
        second: u32,
        ids: &[Option<(u32, OwnedBackend)>],
    ) -> bool {
        let slot = self.lut.get(index).unwrap_or_default();
        let former = former_slots(index - run.base, run.log2, told.log2);
        let id = |backend: u32| ids.get(backend as usize)?.map(|(id, _)| id);
        let told = told.as_past(former, second, id);
        let list = self.past_at(index, slot).map_or(&[][..], |(_, list)| list);
        let Some(list) = merged(list, told, slot.owner()) else {
            return false;
        };
        self.change_past(index, &list);
        true
    }

    /// Returns the place of a slot's list, and the list.
    fn past_at(&self, index: u32, slot: Slot) -> Option<(u32, &[PastOwner])> {
        let list = self.pasts.list(index).filter(|_| slot.has_past())?;
        Some((self.pasts.word(index).offset(), list))
    }

    /// Returns the ids of backends, which get entries if they have none; and counts those that are left out.
    fn ids_of(
        &mut self,
        backends: &[BackendKey],
        owner: u32,
        may_be_new: impl Fn(&BackendKey) -> bool,
    ) -> (Vec<Option<(u32, OwnedBackend)>>, u32) {
        let mut left_out = 0;
        let mut ids = Vec::with_capacity(backends.len());
        for key in backends {
            let owned = OwnedBackend { key: *key, owner };
            let known = self.contents.backend_by_key.get(&owned);
            let id = match known.map(|backend| backend.id) {
                Some(id) => Some(id),
                None if may_be_new(key) => self.write_unused_backend(owned),
                None => None,
            };
            let is_pod = |id: &u32| {
                let backend = self.backends.get(*id);
                backend.is_some_and(|backend| backend.flags & BACKEND_POD != 0)
            };
            let id = id.filter(is_pod);
            left_out += u32::from(id.is_none());
            ids.push(id.map(|id| (id, owned)));
        }
        (ids, left_out)
    }

    fn hold_backends(&mut self, ids: &[Option<(u32, OwnedBackend)>]) {
        for (_, owned) in ids.iter().flatten() {
            if let Some(backend) = self.contents.backend_by_key.get_mut(owned) {
                backend.services += 1;
            }
        }
    }

    /// Writes a backend that nothing names yet; `None` if the table is full.
    fn write_unused_backend(&mut self, owned: OwnedBackend) -> Option<u32> {
        let id = self.or_reclaim(|tables| tables.backend_ids.allocate())?;
        self.write_backend(id, owned, InstalledBackend::unused(id));
        Some(id)
    }
}

#[cfg(test)]
mod tests;
