//! The flows of NAT mode, as plain maps.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet, hash_map::Entry},
    hash::Hash,
};

use xdp_prog::{
    abi::{NatForward, NatMark, NatReverse, Tuple},
    decide::nat::{Inserted, NatFlows, Origin, Translation},
};

use super::{ModelTables, size};

/// Contents of the two tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nat {
    pub(crate) forward: HashMap<Tuple, NatForward>,
    pub(crate) reverse: HashMap<Tuple, NatReverse>,
}

/// The tables while frames go through them.
#[derive(Debug)]
pub(super) struct LiveNat {
    flows: RefCell<Nat>,
    claims: RefCell<HashSet<Tuple>>,
    service: Cell<u32>,
}

impl LiveNat {
    pub(super) fn new(flows: Nat) -> Self {
        Self {
            flows: RefCell::new(flows),
            claims: RefCell::default(),
            service: Cell::default(),
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

    fn see_nat_reverse(
        &self,
        key: &Tuple,
        renew: impl FnOnce(&NatReverse) -> Option<NatMark>,
    ) -> Option<NatReverse> {
        let mut flows = self.nat.flows.borrow_mut();
        let entry = flows.reverse.get_mut(key)?;
        let seen = *entry;
        if let Some(mark) = renew(&seen) {
            entry.mark = mark;
        }
        Some(seen)
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
        if let Some(entry) = flows.reverse.get_mut(reverse) {
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

    fn device_mtu(&self, _: u32) -> Option<u16> {
        Some(DEVICE_MTU)
    }

    fn keep(&self, translation: Translation) -> Option<&Translation> {
        // One small leak per packet of a test.
        Some(Box::leak(Box::new(translation)))
    }

    fn note_nat_service(&self, service: u32) {
        self.nat.service.set(service);
    }

    fn nat_service(&self) -> u32 {
        self.nat.service.get()
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
