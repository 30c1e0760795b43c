//! The walk of a packet over the owners of its slot.
//!
//! The owners are tried one after the other. The tries are counted from the end of the list, so a list that grows meanwhile
//! shifts nothing:
//!
//! ```text
//! tries left    count + 1   count       ...   1           0
//! tried         current     newest past ...   oldest past current, which delivers whatever it is
//!               or the pin
//! ```
//!
//! Each try at another machine is pinned, and the last one takes the pin away. So the pin that stays is that of the owner
//! which kept the connection. What this machine's own pods know shows at once, and is pinned then.

use crate::{
    abi::{Backend, MAX_PAST_OWNERS, Past, Pin, Tuple},
    decide::allowance::take_return,
    reason::DropReason,
    world::{PinTable, World},
};

/// The backend that did not know a packet's connection.
pub(super) trait Ignorant {
    /// Tells whether this backend is the one.
    fn is<T: World>(&self, tables: &T, id: u32) -> bool;
}

/// Why a packet is not tried again.
pub(super) enum Refusal {
    /// Another owner's turn it was, the one with this id.
    OutOfTurn(u32),
    Dropped(DropReason),
}

/// The owners of a slot.
pub(super) struct Walk {
    /// Index of the slot.
    index: u32,
    past: Past,
    /// Id of the current owner; 0 for none.
    current: u32,
}

impl Walk {
    /// Finds the owners of a slot.
    #[inline(always)]
    pub(super) fn of<T: World>(tables: &T, index: u32) -> Self {
        Self {
            index,
            past: tables.past(index),
            current: tables.slot(index).unwrap_or_default().owner(),
        }
    }

    /// Returns the id of the current owner; 0 for none.
    #[inline(always)]
    pub(super) const fn current(&self) -> u32 {
        self.current
    }

    /// Tells whether flows of the slot may have pins.
    #[inline(always)]
    pub(super) const fn is_pinned(&self) -> bool {
        self.past.is_pinned()
    }

    /// Tells whether the slot has past owners.
    #[inline(always)]
    pub(super) const fn has_past(&self) -> bool {
        self.past.count() != 0
    }

    /// Returns the tries of a packet that goes to the current owner first: one for each past owner, and one for the
    /// current owner again.
    #[inline(always)]
    pub(super) const fn all_tries(&self) -> u32 {
        match self.past.count() {
            0 => 0,
            count => count + 1,
        }
    }

    /// Returns the owner that follows one which did not know the flow, and the tries that are left after it; id 0 if
    /// there is none.
    #[inline(always)]
    pub(super) fn step<T: World, I: Ignorant>(
        &self,
        tables: &T,
        flow: &Tuple,
        ignorant: &I,
        tries: u32,
    ) -> Result<(u32, u32), Refusal> {
        let count = self.past.count();
        if tries == 0 || tries > self.all_tries() {
            return Err(Refusal::Dropped(DropReason::ReturnUnexpected));
        }
        let is_first = tries == count + 1;
        let tried = if is_first {
            self.current
        } else {
            self.past_owner(tables, count - tries)
        };
        if !ignorant.is(tables, tried) {
            // Of the segments under way when a pinned connection ends, the first takes the pin away.
            if !is_first || !(self.unpin(tables, flow, ignorant) || self.lists(tables, ignorant)) {
                return Err(Refusal::OutOfTurn(tried));
            }
            if self.current != 0 {
                return Ok((self.current, tries));
            }
        } else if is_first || self.begins_with_past(tables, tries) {
            if !take_return(tables) {
                return Err(Refusal::Dropped(DropReason::ReturnLimited));
            }
            // The owner that did not know the flow may be the one that it is pinned to.
            if self.past.is_pinned() {
                tables.remove_pin(PinTable::Kept, flow);
            }
        }
        Ok(self.first_from(tables, count + 1 - tries))
    }

    /// Returns the newest past owner that may be tried, and the tries that are left after it.
    #[inline(always)]
    pub(super) fn newest<T: World>(&self, tables: &T) -> Option<(u32, u32)> {
        match self.first_from(tables, 0) {
            (_, 0) => None,
            found => Some(found),
        }
    }

    /// Pins a flow to an owner that is tried at another machine; takes its young pin away if no try is left.
    #[inline(always)]
    pub(super) fn expect<T: World>(&self, tables: &T, flow: &Tuple, id: u32, tries: u32) {
        if tries == 0 {
            tables.remove_pin(PinTable::Young, flow);
        } else if tries < self.all_tries()
            && let Some(backend) = tables.backend(id)
            && !backend.is_own_pod()
        {
            self.pin(tables, flow, id, backend);
        }
    }

    /// Pins a flow to an owner, which may turn out not to know it.
    #[inline(always)]
    pub(super) fn pin<T: World>(&self, tables: &T, flow: &Tuple, id: u32, backend: &Backend) {
        let pin = Pin::new(flow, id, backend, tables.now());
        tables.set_pin(PinTable::Young, flow, pin);
        tables.mark_pinned(self.index);
    }

    /// Returns the id of the owner at a place of the list.
    #[inline(always)]
    fn past_owner<T: World>(&self, tables: &T, place: u32) -> u32 {
        tables.past_owner(self.past.offset() + place).backend()
    }

    /// Tells whether so many tries are those of the first one, where the slot has no current owner.
    #[inline(always)]
    fn begins_with_past<T: World>(&self, tables: &T, tries: u32) -> bool {
        self.current == 0 && self.newest(tables).is_some_and(|(_, first)| first == tries)
    }

    /// Tells whether the list has the backend.
    #[inline(always)]
    fn lists<T: World, I: Ignorant>(&self, tables: &T, ignorant: &I) -> bool {
        for place in 0..MAX_PAST_OWNERS {
            if place >= self.past.count() {
                break;
            }
            if ignorant.is(tables, self.past_owner(tables, place)) {
                return true;
            }
        }
        false
    }

    /// Takes the pin to the backend away, if there is one.
    #[inline(always)]
    fn unpin<T: World, I: Ignorant>(&self, tables: &T, flow: &Tuple, ignorant: &I) -> bool {
        if !self.past.is_pinned() {
            return false;
        }
        for table in [PinTable::Kept, PinTable::Young] {
            if let Some(pin) = valid_pin(tables, table, flow)
                && ignorant.is(tables, pin.backend())
            {
                tables.remove_pin(table, flow);
                return true;
            }
        }
        false
    }

    /// Returns the first owner from this place of the list that may be tried, else the current one, after which no try
    /// is left.
    #[inline(always)]
    fn first_from<T: World>(&self, tables: &T, from: u32) -> (u32, u32) {
        let count = self.past.count();
        for step in 0..MAX_PAST_OWNERS {
            let place = from + step;
            if place >= count {
                break;
            }
            let id = self.past_owner(tables, place);
            if let Some(backend) = tables.backend(id)
                && backend.may_be_tried()
            {
                return (id, count - place);
            }
        }
        (self.current, 0)
    }
}

/// Returns the pin of a flow, if the backend is still the one that it was made for, and may be tried.
#[inline(always)]
pub(super) fn valid_pin<T: World>(tables: &T, table: PinTable, flow: &Tuple) -> Option<Pin> {
    let pin = tables.pin(table, flow)?;
    let backend = tables.backend(pin.backend())?;
    (backend.may_be_tried() && pin.is_of(flow, backend)).then_some(pin)
}
