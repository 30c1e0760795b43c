//! The pins of a flow: which owner of its slot has kept it.

use super::{Ignorant, Walk};
use crate::{
    abi::{Backend, Pin, Tuple},
    world::{PinTable, World},
};

impl Walk {
    /// Returns the pin of a flow, if the backend is still the one that it was made for, and may get the packet.
    #[inline(always)]
    pub(in super::super) fn valid_pin<T: World>(
        &self,
        tables: &T,
        table: PinTable,
        flow: &Tuple,
    ) -> Option<Pin> {
        let (pin, backend) = self.find_pin(tables, table, flow)?;
        (backend.may_be_pinned() && pin.is_of(flow, backend)).then_some(pin)
    }

    /// Returns the pin of a flow, and its backend, if that one may get the packet: where edge and node are one machine, the
    /// flow may have come by this edge before, and its pin is the edge's to judge.
    #[inline(always)]
    fn find_pin<'t, T: World>(
        &self,
        tables: &'t T,
        table: PinTable,
        flow: &Tuple,
    ) -> Option<(Pin, &'t Backend)> {
        let pin = tables.pin(table, flow)?;
        let backend = tables.backend(pin.backend())?;
        self.may_reach(backend).then_some((pin, backend))
    }

    /// Takes a pin of a flow away.
    #[inline(always)]
    pub(super) fn remove_pin<T: World>(&self, tables: &T, table: PinTable, flow: &Tuple) {
        if self.find_pin(tables, table, flow).is_some() {
            tables.remove_pin(table, flow);
        }
    }

    /// Pins a flow to an owner that is tried at another machine; takes its young pin away if no try is left. A flow of
    /// datagrams is pinned to any owner.
    #[inline(always)]
    pub(in super::super) fn expect<T: World>(&self, tables: &T, flow: &Tuple, id: u32, tries: u32) {
        if self.is_reset != 0 {
            return;
        }
        if self.is_of_datagrams() {
            self.pin(tables, flow, id);
        } else if tries == 0 {
            self.remove_pin(tables, PinTable::Young, flow);
        } else if tries < self.all_tries()
            && let Some(backend) = tables.backend(id)
            && !backend.is_own_pod()
        {
            self.pin(tables, flow, id);
        }
    }

    /// Pins a flow that a pod of this machine knows, after so many tries were left. What is at the current owner, or at its
    /// pin, and datagrams need none: [`Self::expect`] has pinned these.
    #[inline(always)]
    pub(in super::super) fn found<T: World>(&self, tables: &T, flow: &Tuple, id: u32, tries: u32) {
        if id != self.current && tries < self.all_tries() && !self.is_of_datagrams() {
            self.pin(tables, flow, id);
        }
    }

    /// Pins a flow to an owner, which may turn out not to know it.
    #[inline(always)]
    pub(in super::super) fn pin<T: World>(&self, tables: &T, flow: &Tuple, id: u32) {
        if let Some(backend) = tables.backend(id) {
            let pin = Pin::new(flow, id, backend, tables.now());
            tables.set_pin(PinTable::Young, flow, pin);
            tables.mark_pinned(self.index);
        }
    }

    /// Marks the pins of a flow of which a SYN goes to this owner, unless that is the pinned one.
    #[inline(always)]
    pub(in super::super) fn mark_pins<T: World>(&self, tables: &T, flow: &Tuple, owner: u32) {
        for table in [PinTable::Kept, PinTable::Young] {
            if let Some((pin, _)) = self.find_pin(tables, table, flow)
                && pin.backend() != owner
            {
                tables.set_pin(table, flow, pin.marked(owner));
            }
        }
    }

    /// Returns the owner that a flow is pinned to, if it is not the one that did not know it. A mark is taken off, unless the
    /// SYN went to another owner than the current one, which may have the connection.
    #[inline(always)]
    pub(super) fn pinned_elsewhere<T: World, I: Ignorant>(
        &self,
        tables: &T,
        flow: &Tuple,
        ignorant: &I,
    ) -> Option<u32> {
        if !self.past.is_pinned() {
            return None;
        }
        for table in [PinTable::Kept, PinTable::Young] {
            if let Some(pin) = self.valid_pin(tables, table, flow)
                && (!pin.is_marked() || pin.is_marked_for(self.current))
                && !ignorant.is(tables, pin.backend())
            {
                if pin.is_marked() && self.is_reset == 0 {
                    tables.set_pin(table, flow, pin.unmarked(tables.now()));
                }
                return Some(pin.backend());
            }
        }
        None
    }

    /// Takes the pin to the backend away, if there is one.
    #[inline(always)]
    pub(super) fn unpin<T: World, I: Ignorant>(
        &self,
        tables: &T,
        flow: &Tuple,
        ignorant: &I,
    ) -> bool {
        if !self.past.is_pinned() {
            return false;
        }
        for table in [PinTable::Kept, PinTable::Young] {
            if let Some(pin) = self.valid_pin(tables, table, flow)
                && ignorant.is(tables, pin.backend())
            {
                tables.remove_pin(table, flow);
                return true;
            }
        }
        false
    }
}
