//! The past owners of slots: who owned a slot within the last day, in whatever condition they are.
//!
//! A change of a service's backends leaves connections at the former owners of the slots that move. Each such slot has a
//! list of them, the newest first. Equal lists are stored once, in runs of an arena, and never change: a slot gets
//! another list. A backend keeps its id while a list names it.

mod adopt;
mod list;
mod room;
mod store;

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
    ops::Range,
    sync::Arc,
};

use xdp_prog::abi::{
    BACKEND_NAT, MAX_PAST_OWNERS, OLDER_CONNECTION_SECONDS, OLDER_FLOW_SECONDS, Past, PastOwner,
    Slot,
};

pub use self::list::{ended, former_slots, live_past_owners, newest_owners, past_owners};
pub(super) use self::store::Pasts;
use self::store::{List, log2_of};
use super::{
    BackendKey, DroppedOwners, ForwardMode, Protocol, Run, ServiceKey, ServiceSpec, Tables,
    encode::{backend_key, owned_backend},
    lut::{Lut, NOBODY},
};
use crate::clock::monotonic_ns;

/// The change of a service's owners.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerChange<'a> {
    /// The run whose slots change.
    pub(super) run: Run,
    /// Whether no service has the run yet.
    pub(super) is_new: bool,
    /// The run that the service had in its place.
    pub(super) former: Option<Run>,
    /// The ids of all backends that the service has from now on, with and without a share.
    pub(super) listed: &'a HashSet<u32>,
    /// The second in which it changes.
    pub(super) second: u32,
    /// How long after a change all connections that begin have pins, in seconds.
    pub(super) pinned_for: u16,
}

/// Returns the second of the monotonic clock.
pub(super) fn second_now() -> u32 {
    // 68 years after the machine was booted, this begins anew.
    let second = u32::try_from((monotonic_ns() / 1_000_000_000) & 0x7fff_ffff);
    let second = second.unwrap_or_default();
    #[cfg(test)]
    let second = second + tests::ahead();
    second
}

/// Tells whether the slots of a service have lists of past owners. In NAT mode, the edge remembers each flow.
pub(super) fn keeps_past(spec: &ServiceSpec) -> bool {
    spec.mode != ForwardMode::Nat
}

/// Tells whether the slots of this machine's own pods have lists, too. By L2 DSR, the node chooses the pod.
pub(super) fn keeps_past_of_own_pods(spec: &ServiceSpec) -> bool {
    spec.mode == ForwardMode::L2dsr
}

/// Tells whether nodes return what they do not know: those of pods, of what comes in an outer header.
pub(super) fn has_returns(spec: &ServiceSpec) -> bool {
    let mut backends = spec.backends.iter();
    spec.mode == ForwardMode::Ipip && backends.all(|backend| backend.pod.is_some())
}

/// Returns how long after a change all connections to a service that begin have pins, in seconds.
pub(super) fn pinned_for(key: &ServiceKey, spec: &ServiceSpec) -> u16 {
    match key.protocol {
        _ if has_returns(spec) => 0,
        Protocol::Tcp => OLDER_CONNECTION_SECONDS,
        Protocol::Udp | Protocol::Sctp => OLDER_FLOW_SECONDS,
    }
}

impl Tables {
    /// Lists this machine's pods that packets of a service are delivered to.
    pub fn own_pods(&self, service: &ServiceKey) -> Vec<BackendKey> {
        let pods = self.service(service).map(|service| &service.pods);
        let ids = pods.into_iter().flat_map(|pods| pods.values());
        let entries = ids.filter_map(|id| self.backends.read(*id));
        entries.map(|entry| backend_key(&entry)).collect()
    }

    /// Lists the nodes of past owners.
    pub fn nodes_of_past_owners(&self) -> BTreeSet<IpAddr> {
        if self.pasts.is_empty() {
            return BTreeSet::new();
        }
        let backends = self.contents.backend_by_key.iter();
        let listed = backends.filter(|(_, backend)| backend.lists != 0);
        listed.map(|(owned, _)| owned.key.address).collect()
    }

    /// Notes that slots of a service got other lists.
    pub(super) fn note_changed_past(&mut self, key: &ServiceKey) {
        self.pasts.last_change += 1;
        if let Some(service) = self.contents.installed.get_mut(key) {
            Arc::make_mut(service).last_change = self.pasts.last_change;
        }
    }

    /// Gives a slot in use another list.
    pub(super) fn change_past(&mut self, index: u32, list: &[PastOwner]) {
        let owner = self.lut.get(index).unwrap_or_default().owner();
        let has_past = self.replace_past(index, list, false);
        self.lut.set(index, Slot::new(owner, has_past));
    }

    /// Gives a table without members the length of the service's present one, whose slots have pasts: a shorter one has
    /// no room for the past owners of all slots.
    pub(super) fn keep_length(&self, key: &ServiceKey, spec: &ServiceSpec, table: &mut Lut) {
        let is_empty = table.owners.iter().all(|owner| *owner == NOBODY);
        if let Some(old) = self.service(key)
            && is_empty
            && keeps_past(spec)
            && old.run.log2 > table.log2
        {
            table.log2 = old.run.log2;
            table.owners = vec![NOBODY; 1 << table.log2];
        }
    }

    /// Gives a slot the list that it has once `owner` owns it. Returns whether it has any past owners.
    pub(super) fn store_past(&mut self, index: u32, owner: u32, change: &OwnerChange<'_>) -> bool {
        let (run, is_new) = (change.run, change.is_new);
        let Some(former) = change.former else {
            return self.replace_past(index, &[], is_new);
        };
        let places = former_slots(index - run.base, run.log2, former.log2);
        let former = former.base + places.start..former.base + places.end;
        let list = self.past_for(former.clone(), owner, change);
        let has_past = self.replace_past(index, &list, is_new);
        // A slot that has a list keeps its mark by itself.
        if is_new && has_past && former.into_iter().any(|former| self.is_pinned(former)) {
            self.pasts.mark_pinned(index);
        }
        has_past
    }

    /// Notes that a slot of a run that no service has yet is written.
    pub(super) fn finish_slot(&mut self, index: u32, change: &OwnerChange<'_>) {
        if !change.is_new {
            return;
        }
        match self.pasts.unfinished.last_mut() {
            Some(slots) if slots.start == change.run.base => slots.end = index + 1,
            _ => self.pasts.unfinished.push(change.run.base..index + 1),
        }
    }

    /// Returns what was dropped of the service that is being put, and begins to count anew.
    pub(super) fn take_dropped(&mut self) -> DroppedOwners {
        self.pasts.unfinished.clear();
        std::mem::take(&mut self.pasts.dropped_now)
    }

    /// Counts past owners that are dropped of the service that is being put.
    fn count_dropped(&mut self, dropped: DroppedOwners) {
        self.pasts.dropped += dropped;
        self.pasts.dropped_now += dropped;
    }

    /// Counts past owners that are dropped of a service.
    fn count_dropped_of(&mut self, key: &ServiceKey, dropped: DroppedOwners) {
        if dropped == DroppedOwners::default() {
            return;
        }
        self.pasts.dropped += dropped;
        if let Some(service) = self.contents.installed.get_mut(key) {
            Arc::make_mut(service).dropped_owners += dropped;
        }
    }

    /// Tells whether flows of a slot may have pins.
    fn is_pinned(&self, index: u32) -> bool {
        self.lut.get(index).is_some_and(Slot::has_past) && self.pasts.word(index).is_pinned()
    }

    /// Returns the list of a slot from those of the slots that its flows had.
    fn past_for(
        &mut self,
        former: Range<u32>,
        owner: u32,
        change: &OwnerChange<'_>,
    ) -> Vec<PastOwner> {
        let former = former.map(|index| {
            let owner = self.lut.get(index).unwrap_or_default().owner();
            let list = self.list_of(index).map_or(&[][..], |list| &list[..]);
            (ended(owner, list, change.second, change.pinned_for), list)
        });
        let key = |id| Some(backend_key(self.backends.get(id)?));
        let present = key(owner).filter(|_| owner != 0);
        let may_keep = |id: u32| {
            let backend = self.backends.get(id).filter(|_| id != 0);
            // The same pod may be another service's backend, too: it knows its flows in either case.
            backend.is_some_and(|backend| backend.flags & BACKEND_NAT == 0) && key(id) != present
        };
        let all = past_owners(former, owner, may_keep);
        let count = all.len();
        // Who has just left the service may have all of its connections.
        let is_listed = |past: &PastOwner| {
            past.second() == change.second || change.listed.contains(&past.backend())
        };
        let list = newest_owners(all, MAX_PAST_OWNERS as usize, is_listed);
        self.count_dropped(DroppedOwners {
            list_full: (count - list.len()) as u64,
            table_full: 0,
        });
        list
    }

    /// Gives a slot another list; returns whether it has any entries. A list for which there is no room is shortened, or
    /// left out.
    fn replace_past(&mut self, index: u32, list: &[PastOwner], is_new: bool) -> bool {
        // What a slot of a new run holds is of no matter.
        let old_list = |tables: &Self| tables.list_of(index).filter(|_| !is_new).cloned();
        if old_list(self).is_some_and(|old| old[..] == *list) {
            return true;
        }
        let word = self.stored_list(list).unwrap_or_default();
        // To make room, the old list may have been shortened or moved.
        let has_old = !is_new && self.lut.get(index).is_some_and(Slot::has_past);
        let old = old_list(self);
        // Packets read the word of a slot that has a past alone. The memory of the others is not touched.
        if has_old || word != Past::default() {
            self.pasts.store_word(index, word, has_old);
        }
        if let Some(old) = old {
            self.drop_list(&old);
        }
        word != Past::default()
    }

    /// Returns the list that a slot has.
    pub(super) fn list_of(&self, index: u32) -> Option<&List> {
        self.lut.get(index).filter(|slot| slot.has_past())?;
        self.pasts.list(index)
    }

    /// Stores a list, or finds it. If the table is full, its oldest owners are left out; `None` if none is left.
    fn stored_list(&mut self, list: &[PastOwner]) -> Option<Past> {
        if list.is_empty() {
            return None;
        }
        if let Some(word) = self.pasts.find(list) {
            return Some(word);
        }
        let mut kept = list.to_vec();
        if self.pasts.arena.fill().largest_free < 1 << log2_of(list) {
            self.make_room_for_lists();
            // An id that no list names any more may be another backend's.
            kept.retain(|owner| self.is_installed(owner.backend()));
        }
        let word = self.store_longest(&mut kept);
        self.count_dropped(DroppedOwners {
            table_full: (list.len() - kept.len()) as u64,
            list_full: 0,
        });
        word
    }

    /// Stores as much of a list as there is room for, and shortens it to that.
    fn store_longest(&mut self, list: &mut Vec<PastOwner>) -> Option<Past> {
        while !list.is_empty() {
            if let Some(word) = self.pasts.find(list) {
                return Some(word);
            }
            if let Some(run) = self.pasts.arena.allocate(log2_of(list)) {
                self.list_backends(list.iter().map(|owner| owner.backend()));
                return Some(self.pasts.insert(list.as_slice().into(), run));
            }
            list.truncate(list.len().next_power_of_two() / 2);
        }
        None
    }

    fn is_installed(&self, id: u32) -> bool {
        let owned = self.backends.get(id).map(owned_backend);
        let backend = owned.and_then(|owned| self.contents.backend_by_key.get(&owned));
        backend.is_some_and(|backend| backend.id == id)
    }

    fn drop_list(&mut self, list: &List) {
        if let Some(run) = self.pasts.drop_slot(list) {
            self.retired.lists.push(run);
            self.unlist_backends(list.iter().map(|owner| owner.backend()));
        }
    }

    /// Takes the list of a slot away. The slot then has no past.
    pub(super) fn clear_past(&mut self, index: u32) -> bool {
        let has_past = self.lut.get(index).is_some_and(Slot::has_past);
        has_past && self.replace_past(index, &[], false)
    }

    /// Takes the lists of a run away that goes out of use. Packets in flight that still look at it find no list.
    pub(super) fn clear_pasts(&mut self, run: Run) {
        for index in run.slots() {
            self.clear_past(index);
        }
    }
}

#[cfg(test)]
mod tests;
