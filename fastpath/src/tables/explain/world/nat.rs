//! The flows of NAT mode for one packet: those of the live tables, and the changes that the packet would make.

use std::{
    cell::{OnceCell, RefCell},
    collections::HashMap,
};

use xdp_prog::{
    abi::{NatBegun, NatCount, NatForward, NatMark, NatReverse, Tuple},
    world::{Inserted, NatFlows, NatState, Origin, Taken, Translation},
};

use super::{super::super::syscall_map::SyscallMap, ReadOnly};
use crate::facts;

/// What one packet would change in NAT mode.
#[derive(Debug, Default)]
pub(super) struct NatChanges {
    taken: Taken,
    pub(super) translation: OnceCell<Translation>,
    forward: Overlay<NatForward>,
    reverse: Overlay<NatReverse>,
}

impl NatFlows for ReadOnly<'_> {
    fn see_nat_forward(
        &self,
        key: &Tuple,
        renew: impl FnOnce(&NatForward) -> Option<NatMark>,
    ) -> Option<NatForward> {
        let seen = self
            .nat
            .forward
            .get(&self.tables.nat.entries.forward, key)?;
        if let Some(mark) = renew(&seen) {
            self.replace_nat_mark(key, seen.mark, mark);
        }
        Some(seen)
    }

    fn replace_nat_mark(&self, key: &Tuple, expected: NatMark, mark: NatMark) -> bool {
        let entry = self.nat.forward.get(&self.tables.nat.entries.forward, key);
        let Some(mut entry) = entry.filter(|entry| entry.mark == expected) else {
            return false;
        };
        entry.mark = mark;
        self.nat.forward.set(key, Some(entry));
        true
    }

    fn see_nat_reverse(&self, key: &Tuple) -> Option<NatReverse> {
        self.nat.reverse.get(&self.tables.nat.entries.reverse, key)
    }

    fn note_nat_reverse(&self, key: &Tuple, state: NatState) {
        if let Some(mut entry) = self.see_nat_reverse(key) {
            state.store(&mut entry);
            self.nat.reverse.set(key, Some(entry));
        }
    }

    fn insert_nat_forward(&self, key: &Tuple, entry: &NatForward) -> Inserted {
        self.nat
            .forward
            .insert(&self.tables.nat.entries.forward, key, *entry)
    }

    fn insert_nat_reverse(
        &self,
        key: &Tuple,
        forward: &Tuple,
        client: &Origin,
        mark: NatMark,
    ) -> Inserted {
        let entry = NatReverse::new(key, forward, client.ifindex, client.link, mark);
        self.nat
            .reverse
            .insert(&self.tables.nat.entries.reverse, key, entry)
    }

    fn remove_nat_forward(&self, key: &Tuple) {
        self.nat.forward.set(key, None);
    }

    fn remove_nat_reverse(&self, key: &Tuple) {
        self.nat.reverse.set(key, None);
    }

    fn move_nat_client(&self, _: &Tuple, _: &Tuple, _: &Origin) {}

    fn claim_nat(&self, _: &Tuple) -> bool {
        true
    }

    fn release_nat(&self, _: &Tuple) {}

    fn nat_count(&self, service: u32) -> NatCount {
        self.tables.nat.counts.get(&service).unwrap_or_default()
    }

    fn count_nat(&self, _: u32, _: i64, _: i64) {}

    fn nat_begun(&self, index: u32) -> NatBegun {
        self.tables.nat.begun.get(&index).unwrap_or_default()
    }

    fn note_nat_begun(&self, _: u32, _: NatBegun) {}

    fn taken(&self) -> Option<&Taken> {
        Some(&self.nat.taken)
    }

    fn device_mtu(&self, ifindex: u32) -> Option<u16> {
        let mtu = *facts::mtus().ok()?.get(&facts::device_name(ifindex)?)?;
        Some(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    fn device_word(&self, ifindex: u32) -> u32 {
        let link = self.tables.vlans.held().get(&ifindex);
        link.map_or(ifindex, |link| link.device_word(ifindex))
    }

    fn keep(&self, translation: Translation) -> Option<&Translation> {
        Some(self.nat.translation.get_or_init(|| translation))
    }
}

/// The changes that the packet would make to one map; `None` for a removed key.
#[derive(Debug)]
struct Overlay<V>(RefCell<HashMap<Tuple, Option<V>>>);

impl<V> Default for Overlay<V> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<V: aya::Pod> Overlay<V> {
    fn get(&self, map: &SyscallMap<Tuple, V>, key: &Tuple) -> Option<V> {
        match self.0.borrow().get(key) {
            Some(changed) => *changed,
            None => map.get(key),
        }
    }

    fn set(&self, key: &Tuple, value: Option<V>) {
        self.0.borrow_mut().insert(*key, value);
    }

    fn insert(&self, map: &SyscallMap<Tuple, V>, key: &Tuple, value: V) -> Inserted {
        if self.get(map, key).is_some() {
            return Inserted::Exists;
        }
        self.set(key, Some(value));
        Inserted::Done
    }
}
