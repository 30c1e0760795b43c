//! The tables of an edge: one service, its slots' lists of past owners, and pins.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    ops::Range,
};

use fastpath::tables::{ended, former_slots, newest_owners, past_owners};
use xdp_prog::{
    abi::{
        AddressKey, Config, MAX_PAST_OWNERS, MODE_IPIP, PastOwner, Pin, SERVICE_PODS, Service,
        ServiceKeyV4, ServiceWord, Tuple,
    },
    wire::protocol,
};

use crate::consistency::{
    addresses::{self, BackendId, HASH_SEED, PORT, VIP},
    backends::Table,
};

/// Places in `HISTORY` for each slot's list.
pub(super) const PLACES: u32 = MAX_PAST_OWNERS + 2;

/// The tables of an edge.
#[derive(Debug)]
pub(super) struct Edge {
    table: Table,
    pub(super) look_ups: Cell<u64>,
    pub(super) config: Config,
    /// The service, with the place of the table.
    pub(super) service: Service,
    /// The lists, each in the places of its slot.
    pub(super) history: Vec<PastOwner>,
    /// The lengths of the lists.
    pub(super) lengths: Vec<u8>,
    pub(super) is_pinned: Vec<Cell<bool>>,
    pub(super) pins: RefCell<[HashMap<Tuple, Pin>; 2]>,
    pub(super) returns_full_at: Cell<u64>,
}

impl Edge {
    pub(super) fn new(number: u32, slots: usize) -> Self {
        let [a, b, c, d] = addresses::edge_address(number);
        Self {
            table: Table::empty(),
            look_ups: Cell::new(0),
            service: service(&Table::empty()),
            config: Config {
                hash_seed: HASH_SEED,
                source_v4: [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                ..Config::default()
            },
            history: vec![PastOwner::default(); slots * PLACES as usize],
            lengths: vec![0; slots],
            is_pinned: vec![Cell::new(false); slots],
            pins: RefCell::default(),
            returns_full_at: Cell::new(0),
        }
    }

    /// Has the edge begin with a table, without a past.
    pub(super) fn begin_anew(&mut self, table: &Table) {
        self.set_table(table);
        self.lengths.fill(0);
        self.is_pinned.fill(Cell::new(false));
        self.pins = RefCell::default();
    }

    /// Turns to a table, in whose changed slots lists of at most `longest` past owners follow. Edges list the backends that
    /// are alive, as those that drain are.
    pub(super) fn change(
        &mut self,
        table: &Table,
        changed: &[u32],
        second: u32,
        (longest, is_alive): (usize, &[bool]),
        pinned_for: u16,
    ) {
        let former = |slot: u32| former_slots(slot, table.log2(), self.table.log2());
        let lists = changed.iter().map(|slot| {
            let former = former(*slot).map(|slot| {
                let list = self.list(slot);
                (ended(self.owner(slot), list, second, pinned_for), list)
            });
            let owner = table.owners()[*slot as usize];
            // All backends are pods.
            let all = past_owners(former, owner, |id| id != 0);
            newest_owners(all, longest, |past| is_alive[past.backend() as usize])
        });
        let lists: Vec<Vec<PastOwner>> = lists.collect();
        let is_pinned = |slot: u32| self.is_pinned[slot as usize].get();
        let marks: Vec<bool> = changed
            .iter()
            .map(|slot| former(*slot).any(is_pinned))
            .collect();
        if table.log2() != self.table.log2() {
            // Another run: its lists are new, and its marks come from the slots that its flows had.
            self.lengths.fill(0);
        }
        for ((slot, list), mark) in changed.iter().zip(&lists).zip(marks) {
            self.set_list(*slot, list);
            self.is_pinned[*slot as usize].set(mark && !list.is_empty());
        }
        self.set_table(table);
    }

    fn set_table(&mut self, table: &Table) {
        self.table = table.clone();
        self.service = service(table);
    }

    pub(super) fn slots(&self) -> Range<u32> {
        0..1 << self.table.log2()
    }

    pub(super) fn owner(&self, slot: u32) -> BackendId {
        let owner = self.table.owners().get(slot as usize);
        owner.copied().unwrap_or_default()
    }

    pub(super) fn list(&self, slot: u32) -> &[PastOwner] {
        let length = self.lengths[slot as usize];
        &self.history[(slot * PLACES) as usize..][..length.into()]
    }

    pub(super) fn set_list(&mut self, slot: u32, list: &[PastOwner]) {
        self.history[(slot * PLACES) as usize..][..list.len()].copy_from_slice(list);
        if list.is_empty() {
            // The mark goes with the last list.
            self.is_pinned[slot as usize].set(false);
        }
        // Lists have at most `MAX_PAST_OWNERS` entries.
        self.lengths[slot as usize] = u8::try_from(list.len()).unwrap_or_default();
    }

    /// Returns how many entries its lists have, equal ones counted once.
    pub(super) fn history(&self) -> usize {
        let lists: HashSet<&[PastOwner]> = self.slots().map(|slot| self.list(slot)).collect();
        lists.iter().map(|list| list.len()).sum()
    }

    /// Returns how many pins it has.
    pub(super) fn pins(&self) -> usize {
        self.pins.borrow().iter().map(HashMap::len).sum()
    }

    pub(super) fn note_look_up(&self) {
        self.look_ups.set(self.look_ups.get() + 1);
    }
}

/// Returns the service with the place of a table.
pub(super) fn service(table: &Table) -> Service {
    let key = ServiceKeyV4::new(VIP, PORT, protocol::TCP);
    Service {
        // As runs of the arena, it begins at a multiple of its length.
        word: ServiceWord::new(1 << table.log2(), table.log2(), key.check()),
        mode: MODE_IPIP,
        flags: SERVICE_PODS,
        address: AddressKey::v4(VIP),
        port: PORT,
        protocol: protocol::TCP,
        ..Service::default()
    }
}
