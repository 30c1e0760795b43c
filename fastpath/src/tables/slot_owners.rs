//! The owners of slots in terms that mean the same on every edge: what this edge tells others of its tables, and what it
//! takes of what they tell.
//!
//! A backend that owns a slot on another edge may have connections that routers move to this one. So it is a past owner
//! of the slot here, unless it is the owner here too. What an edge has as a past owner lives as long there as here: it
//! is told with the seconds since it ceased to own, which are rounded up. So nothing lives longer for being told, however
//! often it goes to and fro.

use std::{cmp::Reverse, collections::HashMap, net::SocketAddr, ops::Range};

use serde::{Deserialize, Serialize};
use xdp_prog::{
    abi::{MAX_PAST_OWNERS, PAST_OWNER_SECONDS, PastOwner},
    maglev::MAX_LOG2_LEN,
};

use super::{
    BackendKey, OwnedBackend, Run, ServiceKey, ServiceSpec, Tables, TrafficPolicy,
    encode::backend_key,
    need::LAST_SECONDS,
    past::{former_slots, has_returns, second_now},
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FormerOwner {
    /// Its index among the backends.
    pub backend: u32,
    /// Seconds since it ceased to own the slot, rounded up.
    pub seconds_ago: u32,
}

/// A slot's owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// Tells whether edges tell each other the owners of a service: all have the same backends, none uses its own pods alone, or
/// those near it. Where nodes return nothing, a connection would be sent to another edge's owner and end there.
pub(super) fn is_shared(key: &ServiceKey, spec: &ServiceSpec) -> bool {
    has_returns(spec)
        && spec.traffic_policy == TrafficPolicy::Cluster
        && !spec.hinted
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

/// The backends that slots and lists of a service name.
struct NamedBackends {
    /// In order.
    keys: Vec<BackendKey>,
    /// The id of each, and its place among the keys, in order of the ids. Two ids may have one key.
    places: Vec<(u32, u32)>,
}

impl NamedBackends {
    fn of(tables: &Tables, named: impl Iterator<Item = u32>) -> Self {
        let mut ids: Vec<u32> = named.filter(|id| *id != 0).collect();
        ids.sort_unstable();
        ids.dedup();
        let entry = |id: u32| tables.backends.get(id).filter(|entry| entry.flags != 0);
        let known = ids.into_iter();
        let known = known.filter_map(|id| Some((id, backend_key(entry(id)?))));
        let known: Vec<(u32, BackendKey)> = known.collect();
        let mut keys: Vec<BackendKey> = known.iter().map(|(_, key)| *key).collect();
        keys.sort_unstable();
        keys.dedup();
        let place = |key: &BackendKey| keys.partition_point(|other| other < key);
        let places = known.iter().map(|(id, key)| {
            let place = u32::try_from(place(key));
            (*id, place.unwrap_or_default())
        });
        Self {
            places: places.collect(),
            keys,
        }
    }

    fn place(&self, id: u32) -> Option<u32> {
        let found = self.places.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.places.get(found).map(|(_, place)| *place)
    }
}

impl Tables {
    /// Returns the owners of a service's slots; `None` if the service is not there, or edges do not have the same owners.
    pub fn slot_owners(&self, key: &ServiceKey) -> Option<SlotOwners> {
        self.slot_owners_at(key, second_now())
    }

    pub(super) fn slot_owners_at(&self, key: &ServiceKey, second: u32) -> Option<SlotOwners> {
        let run = self.service(key).filter(|service| service.is_shared)?.run;
        // Equal lists are one, and at one place.
        let (mut lists, mut known) = (Vec::new(), HashMap::new());
        let mut past = |offset: u32| {
            *known.entry(offset).or_insert_with(|| {
                lists.push(self.pasts.at(offset)?);
                u32::try_from(lists.len() - 1).ok()
            })
        };
        let slots = run.slots();
        let slots: Vec<(u32, Option<u32>)> = slots
            .map(|index| {
                let slot = self.lut.get(index).unwrap_or_default();
                let offset = slot.has_past().then(|| self.pasts.word(index).offset());
                (slot.owner(), offset.and_then(&mut past))
            })
            .collect();
        let listed = lists.iter().flat_map(|list| list.iter());
        let listed = listed.map(|past| past.backend());
        let named = NamedBackends::of(self, slots.iter().map(|(owner, _)| *owner).chain(listed));
        let former = |past: &PastOwner| {
            let seconds_ago = second.saturating_sub(past.second()) + 1;
            Some(FormerOwner {
                backend: named.place(past.backend())?,
                seconds_ago,
            })
        };
        let lists = lists.iter();
        let lists = lists.map(|list| list.iter().filter_map(former).collect());
        let slots = slots.into_iter().map(|(owner, past)| OwnedSlot {
            owner: named.place(owner),
            past,
        });
        Some(SlotOwners {
            log2: run.log2,
            needs: self.told_needs(key, second),
            lists: lists.collect(),
            slots: slots.collect(),
            backends: named.keys,
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
        let service = self.service(key).filter(|service| service.is_shared);
        let Some((run, owner)) = service.map(|service| (service.run, service.owner)) else {
            return TakenOwners::default();
        };
        let may_be_new = |backend: &BackendKey| {
            let is_of_family = |pod: SocketAddr| pod.is_ipv4() == key.address.is_ipv4();
            backend.pod.is_some_and(is_of_family) && is_node(backend)
        };
        let (ids, left_out) = self.hold_backends(&told.backends, owner, may_be_new);
        let mut slots = 0;
        for index in run.slots() {
            slots += u32::from(self.take_slot(index, run, told, second, &ids));
        }
        self.drop_backends(ids.into_iter().flatten());
        if slots > 0 {
            self.note_changed_past(key);
        }
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
        ids: &[Option<u32>],
    ) -> bool {
        let owner = self.lut.get(index).unwrap_or_default().owner();
        let former = former_slots(index - run.base, run.log2, told.log2);
        let id = |backend: u32| *ids.get(backend as usize)?;
        let told = told.as_past(former, second, id);
        if told.iter().all(|past| past.backend() == owner) {
            return false;
        }
        let list = self.list_of(index).map_or(&[][..], |list| list);
        let Some(list) = merged(list, told, owner) else {
            return false;
        };
        self.change_past(index, &list);
        true
    }

    /// Finds the ids of backends, and counts those that are left out. A pod has an entry made if it has none and may be new.
    ///
    /// To make room for a list, others are shortened. So the entries are held as if a service used them, until
    /// [`Tables::drop_backends`]: none must go that a list to come names.
    fn hold_backends(
        &mut self,
        backends: &[BackendKey],
        owner: u32,
        may_be_new: impl Fn(&BackendKey) -> bool,
    ) -> (Vec<Option<u32>>, u32) {
        let hold = |key: &BackendKey| {
            if key.pod.is_none() || key.nat {
                return None;
            }
            let owned = OwnedBackend { key: *key, owner };
            if let Some(backend) = self.contents.backend_by_key.get_mut(&owned) {
                backend.services += 1;
                return Some(backend.id);
            }
            if !may_be_new(key) {
                return None;
            }
            let id = self.or_reclaim(|tables| tables.backend_ids.allocate())?;
            self.write_backend(id, owned);
            Some(id)
        };
        let ids: Vec<_> = backends.iter().map(hold).collect();
        let left_out = ids.iter().filter(|id| id.is_none()).count();
        (ids, u32::try_from(left_out).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests;
