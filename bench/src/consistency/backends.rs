//! The backends: which serve, which only keep their connections, and which have ended.

use std::{collections::VecDeque, rc::Rc};

use xdp_prog::maglev;

use super::{
    Scenario,
    addresses::{self, BackendId},
};
use crate::stats::SplitMix64;

/// Backends that a node has when all serve.
const BACKENDS_OF_NODE: u32 = 10;

/// A lookup table by the product's own population. All edges that know a set have the same.
#[derive(Clone, Debug)]
pub(super) struct Table {
    log2: u8,
    owners: Rc<[BackendId]>,
}

impl Table {
    /// Makes a table of 2^`log2` slots with these owners.
    pub(super) fn new(log2: u8, owners: impl Into<Rc<[BackendId]>>) -> Self {
        Self {
            log2,
            owners: owners.into(),
        }
    }

    /// Makes a table that nobody has an entry in.
    pub(super) fn empty() -> Self {
        Self::new(0, [0])
    }

    pub(super) const fn log2(&self) -> u8 {
        self.log2
    }

    pub(super) fn owners(&self) -> &[BackendId] {
        &self.owners
    }

    /// Returns the slot of a connection with this hash.
    pub(super) const fn slot(&self, hash: u32) -> u32 {
        maglev::slot(hash, self.log2)
    }

    /// Returns the owner of the connection's slot.
    pub(super) fn owner(&self, hash: u32) -> BackendId {
        self.owners[self.slot(hash) as usize]
    }

    /// Returns the slots that have another owner than in a former table; all of them where its length was another one.
    pub(super) fn changed_since(&self, former: &Self) -> Rc<[u32]> {
        if self.log2 != former.log2 {
            return (0..1 << self.log2).collect();
        }
        let slots = (0..).zip(former.owners.iter().zip(self.owners.iter()));
        let changed = slots.filter(|(_, (old, new))| old != new);
        changed.map(|(slot, _)| slot).collect()
    }
}

/// A life of a backend: its address, hence its id, is given to another one once it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) id: BackendId,
    pub(super) life: u32,
}

#[derive(Debug)]
pub(super) struct Backends {
    random: SplitMix64,
    serving: Vec<BackendId>,
    /// Those that have begun and that nobody has been told of.
    started: Vec<BackendId>,
    /// Those that the running update has yet to replace.
    rolling: VecDeque<BackendId>,
    lives: Vec<u32>,
    is_alive: Vec<bool>,
    /// The place of each node's next address.
    places: Vec<u32>,
    node: usize,
}

impl Backends {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let nodes = scenario.most_backends().div_ceil(BACKENDS_OF_NODE).max(2);
        let ids = addresses::backend_ids(nodes) as usize;
        let mut backends = Self {
            random: SplitMix64::new(scenario.seed),
            serving: Vec::new(),
            started: Vec::new(),
            rolling: VecDeque::new(),
            lives: vec![0; ids],
            is_alive: vec![false; ids],
            places: vec![0; nodes as usize],
            node: 0,
        };
        backends.resize(scenario.backends as usize);
        backends
    }

    /// Returns the number of ids.
    pub(super) const fn ids(&self) -> usize {
        self.lives.len()
    }

    pub(super) fn pod(&self, id: BackendId) -> Pod {
        Pod {
            id,
            life: self.lives[id as usize],
        }
    }

    pub(super) fn is_alive(&self, pod: Pod) -> bool {
        pod.id != 0 && self.is_alive[pod.id as usize] && self.pod(pod.id) == pod
    }

    /// Starts a backend on the next node that has an address left.
    fn start(&mut self) -> BackendId {
        loop {
            self.node = (self.node + 1) % self.places.len();
            let place = self.places[self.node];
            self.places[self.node] += 1;
            let node = u32::try_from(self.node).unwrap_or_default();
            let id = addresses::backend_id(node, place);
            if !self.is_alive[id as usize] {
                self.is_alive[id as usize] = true;
                self.lives[id as usize] += 1;
                self.started.push(id);
                return id;
            }
        }
    }

    /// Returns the backends that have begun since the last call.
    pub(super) fn take_started(&mut self) -> Vec<BackendId> {
        std::mem::take(&mut self.started)
    }

    /// Ends a backend that drains.
    pub(super) fn end(&mut self, id: BackendId) {
        self.is_alive[id as usize] = false;
    }

    /// Replaces so many backends, drawn by chance; returns those that serve no more.
    pub(super) fn churn(&mut self, count: usize) -> Vec<BackendId> {
        let mut left = Vec::new();
        for _ in 0..count.min(self.serving.len()) {
            let place = self.random.below(self.serving.len());
            left.push(self.replace(place));
        }
        left
    }

    /// Returns how many serve.
    pub(super) const fn serving(&self) -> usize {
        self.serving.len()
    }

    /// Has so many backends serve; returns those that serve no more, drawn by chance.
    pub(super) fn resize(&mut self, count: usize) -> Vec<BackendId> {
        let mut left = Vec::new();
        while self.serving.len() > count {
            let place = self.random.below(self.serving.len());
            left.push(self.serving.swap_remove(place));
        }
        while self.serving.len() < count {
            let id = self.start();
            self.serving.push(id);
        }
        left
    }

    /// Begins a rolling update of all that serve.
    pub(super) fn begin_to_roll(&mut self) {
        self.rolling = self.serving.iter().copied().collect();
    }

    /// Takes the next step of a rolling update; returns the backends that serve no more: none at its end.
    pub(super) fn roll(&mut self, count: usize) -> Vec<BackendId> {
        let mut left = Vec::new();
        while left.len() < count
            && let Some(old) = self.rolling.pop_front()
        {
            let place = self.serving.iter().position(|id| *id == old);
            left.extend(place.map(|place| self.replace(place)));
        }
        left
    }

    fn replace(&mut self, place: usize) -> BackendId {
        let new = self.start();
        std::mem::replace(&mut self.serving[place], new)
    }

    /// Returns the lookup table of those that serve, of the length that the product gives so many.
    pub(super) fn table(&self) -> Table {
        let serving = self.serving.iter().copied();
        let members: Vec<maglev::Member> = serving.map(addresses::member).collect();
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let log2 = log2_slots(count);
        let owners = maglev::table(addresses::HASH_SEED, &members, log2);
        let owners = owners.expect("there are members, fewer than slots, of one weight");
        let owners = owners.into_iter().map(|owner| self.serving[owner as usize]);
        Table::new(log2, owners.collect::<Rc<[BackendId]>>())
    }
}

/// Returns the length of the lookup table that the product gives so many backends, as a power of two.
pub(super) fn log2_slots(backends: u32) -> u8 {
    let class = maglev::class_for(backends, maglev::SLOTS_PER_BACKEND);
    class.unwrap_or(maglev::MAX_LOG2_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolling_update_replaces_each_backend_once() {
        let scenario = Scenario {
            backends: 25,
            ..Scenario::default()
        };
        let mut backends = Backends::new(&scenario);
        let before = backends.serving.clone();
        backends.begin_to_roll();
        let mut left = Vec::new();
        let mut steps = 0;
        loop {
            let step = backends.roll(10);
            if step.is_empty() {
                break;
            }
            steps += 1;
            left.extend(step);
        }
        assert_eq!((steps, &left), (3, &before));
        assert!(backends.serving.iter().all(|id| !before.contains(id)));
        let table = backends.table();
        assert!(
            backends
                .serving
                .iter()
                .all(|id| table.owners().contains(id))
        );
    }

    #[test]
    fn table_of_another_length_differs_in_all_slots() {
        let mut backends = Backends::new(&Scenario {
            backends: 7,
            ..Scenario::default()
        });
        let before = backends.table();
        assert_eq!(before.changed_since(&before).len(), 0);
        assert_eq!(backends.resize(6).len(), 1);
        let after = backends.table();
        assert_eq!((before.log2(), after.log2()), (11, 8));
        assert_eq!(after.changed_since(&before).len(), 256);
    }

    #[test]
    fn address_of_an_ended_backend_is_another_life() {
        let scenario = Scenario {
            backends: 2,
            ..Scenario::default()
        };
        let mut backends = Backends::new(&scenario);
        let first = backends.pod(backends.serving[0]);
        let left = backends.churn(1);
        for id in left {
            backends.end(id);
        }
        for _ in 0..1000 {
            for id in backends.churn(2) {
                backends.end(id);
            }
        }
        assert!(backends.pod(first.id).life > first.life);
        assert!(!backends.is_alive(first));
    }
}
