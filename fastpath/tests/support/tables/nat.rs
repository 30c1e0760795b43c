//! The flows of NAT mode, as plain maps.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet, hash_map::Entry},
    hash::Hash,
};

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{HOP_CARRIED, NatBegun, NatCount, NatForward, NatMark, NatReverse, Tuple},
    wire::protocol::TCP,
    world::{Inserted, NatFlows, NatState, Origin, Taken, Translation},
};

use super::{super::routes, ModelTables, size};

/// Contents of the two tables, and the flows that each service is said to have.
#[derive(Clone, Debug)]
pub(crate) struct Nat {
    pub(crate) forward: HashMap<Tuple, NatForward>,
    pub(crate) reverse: HashMap<Tuple, NatReverse>,
    pub(crate) counts: Vec<NatCount>,
    pub(crate) begun: Vec<NatBegun>,
    /// When the marks were made: what is idle by them then, is so when a case runs.
    made: u64,
}

impl Nat {
    /// Returns the flows as if they had been made just now.
    pub(crate) fn fresh(&self) -> Self {
        let now = coarse_ns();
        let passed = now - self.made;
        let renewed = |mark: NatMark| NatMark::new(mark.time().wrapping_add(passed), mark.flags());
        let mut fresh = self.clone();
        fresh.made = now;
        for entry in fresh.forward.values_mut() {
            entry.mark = renewed(entry.mark);
        }
        for (key, entry) in &mut fresh.reverse {
            entry.mark = renewed(entry.mark);
            if key.protocol() != TCP {
                let passed = NatReverse::began_at(passed);
                entry.began_with = entry.began_with.wrapping_add(passed);
            }
        }
        fresh
    }
}

impl Default for Nat {
    fn default() -> Self {
        let mut counts = vec![NatCount::default(); size::SERVICES as usize];
        counts[0].flows = size::NAT.into();
        Self {
            forward: HashMap::new(),
            reverse: HashMap::new(),
            counts,
            begun: vec![NatBegun::default(); size::NAT_BEGUN as usize],
            made: coarse_ns(),
        }
    }
}

/// The tables while frames go through them.
#[derive(Debug)]
pub(super) struct LiveNat {
    flows: RefCell<Nat>,
    claims: RefCell<HashSet<Tuple>>,
    taken: Taken,
}

impl LiveNat {
    pub(super) fn new(flows: Nat) -> Self {
        Self {
            flows: RefCell::new(flows),
            claims: RefCell::default(),
            taken: Taken::default(),
        }
    }
}

/// MTU of every device, which is that of a namespace's loopback device as far as it can be stored.
const DEVICE_MTU: u16 = 65_535;

impl NatFlows for ModelTables<'_> {
    fn see_nat_forward(
        &self,
        key: &Tuple,
        renew: impl FnOnce(&NatForward) -> Option<NatMark>,
    ) -> Option<NatForward> {
        let mut flows = self.nat.flows.borrow_mut();
        let entry = flows.forward.get_mut(key)?;
        let seen = *entry;
        if let Some(mark) = renew(&seen) {
            entry.mark = mark;
        }
        Some(seen)
    }

    fn replace_nat_mark(&self, key: &Tuple, expected: NatMark, mark: NatMark) -> bool {
        let mut flows = self.nat.flows.borrow_mut();
        let entry = flows.forward.get_mut(key);
        let Some(entry) = entry.filter(|entry| entry.mark == expected) else {
            return false;
        };
        entry.mark = mark;
        true
    }

    fn see_nat_reverse(&self, key: &Tuple) -> Option<NatReverse> {
        self.nat.flows.borrow().reverse.get(key).copied()
    }

    fn note_nat_reverse(&self, key: &Tuple, state: NatState) {
        if let Some(entry) = self.nat.flows.borrow_mut().reverse.get_mut(key) {
            state.store(entry);
        }
    }

    fn insert_nat_forward(&self, key: &Tuple, entry: &NatForward) -> Inserted {
        insert(&mut self.nat.flows.borrow_mut().forward, *key, *entry)
    }

    fn insert_nat_reverse(
        &self,
        key: &Tuple,
        forward: &Tuple,
        client: &Origin,
        mark: NatMark,
    ) -> Inserted {
        let entry = NatReverse::new(key, forward, client.ifindex, client.link, mark);
        insert(&mut self.nat.flows.borrow_mut().reverse, *key, entry)
    }

    fn remove_nat_forward(&self, key: &Tuple) {
        assert!(self.nat.flows.borrow_mut().forward.remove(key).is_some());
    }

    fn remove_nat_reverse(&self, key: &Tuple) {
        assert!(self.nat.flows.borrow_mut().reverse.remove(key).is_some());
    }

    fn move_nat_client(&self, forward: &Tuple, reverse: &Tuple, client: &Origin) {
        let mut flows = self.nat.flows.borrow_mut();
        let entry = flows.reverse.get_mut(reverse);
        let is_same = |entry: &NatReverse| entry.forward_key(reverse.protocol()) == *forward;
        if let Some(entry) = entry.filter(|entry| is_same(entry)) {
            entry.link = client.link;
            entry.ifindex = client.ifindex;
        }
        if let Some(entry) = flows.forward.get_mut(forward) {
            entry.set_fingerprint(client.fingerprint());
        }
    }

    fn claim_nat(&self, forward: &Tuple) -> bool {
        self.nat.claims.borrow_mut().insert(*forward)
    }

    fn release_nat(&self, forward: &Tuple) {
        assert!(self.nat.claims.borrow_mut().remove(forward));
    }

    fn nat_count(&self, service: u32) -> NatCount {
        self.nat.flows.borrow().counts[service as usize]
    }

    fn count_nat(&self, service: u32, flows: i64, half_open: i64) {
        let counts = &mut self.nat.flows.borrow_mut().counts;
        counts[service as usize].flows += flows;
        counts[service as usize].half_open += half_open;
        counts[0].flows -= flows;
    }

    fn nat_begun(&self, index: u32) -> NatBegun {
        let begun = &self.nat.flows.borrow().begun;
        begun.get(index as usize).copied().unwrap_or_default()
    }

    fn note_nat_begun(&self, index: u32, flow: NatBegun) {
        if let Some(place) = self.nat.flows.borrow_mut().begun.get_mut(index as usize) {
            *place = flow;
        }
    }

    fn taken(&self) -> Option<&Taken> {
        Some(&self.nat.taken)
    }

    fn device_mtu(&self, _: u32) -> Option<u16> {
        Some(DEVICE_MTU)
    }

    fn device_word(&self, ifindex: u32) -> u32 {
        let words = routes::VLANS.map(|(_, below, _)| below);
        let word = words
            .into_iter()
            .find(|below| below & !HOP_CARRIED == ifindex);
        word.unwrap_or(ifindex)
    }

    fn keep(&self, translation: Translation) -> Option<&Translation> {
        // One small leak per packet of a test.
        Some(Box::leak(Box::new(translation)))
    }
}

fn insert<K: Eq + Hash, V>(map: &mut HashMap<K, V>, key: K, value: V) -> Inserted {
    let is_full = map.len() >= size::NAT as usize;
    match map.entry(key) {
        Entry::Occupied(_) => Inserted::Exists,
        Entry::Vacant(_) if is_full => Inserted::Full,
        Entry::Vacant(entry) => {
            entry.insert(value);
            Inserted::Done
        }
    }
}
