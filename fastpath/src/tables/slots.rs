//! The slots of all lookup tables. Programs read them at any time.

use xdp_prog::abi::{Slot, SlotPair, map};

use super::{TableError, arena::Run, mapped::Mapped};
use crate::load::Loaded;

/// The arena's memory, as slots.
#[derive(Debug)]
pub(super) struct Slots(Mapped<SlotPair>);

impl Slots {
    /// Maps the arena into memory.
    ///
    /// # Errors
    ///
    /// Fails if the map cannot be opened or mapped.
    pub(super) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        Mapped::open(loaded, map::LUT).map(Self)
    }

    /// Returns the same slots for a reader.
    pub(super) fn shared(&self) -> Self {
        Self(self.0.shared())
    }

    pub(super) fn length(&self) -> u32 {
        self.0.length() * 2
    }

    pub(super) fn get(&self, index: u32) -> Option<Slot> {
        let (pair, offset) = place(index);
        self.0.load_u32(pair, offset).map(Slot)
    }

    pub(super) fn of(&self, run: Run) -> impl Iterator<Item = Slot> {
        let slots = run.slots();
        slots.filter_map(|index| self.get(index))
    }

    /// Writes a slot with one store.
    pub(super) fn set(&mut self, index: u32, slot: Slot) {
        let (pair, offset) = place(index);
        self.0.store_u32(pair, offset, slot.0);
    }
}

/// Returns the index of the entry that holds a slot, and the slot's offset in the entry in bytes.
const fn place(index: u32) -> (u32, usize) {
    (index / 2, (index % 2) as usize * size_of::<Slot>())
}
