//! Counts flows in the tables whose oldest entries make room for new ones.
//!
//! Such a table (an LRU hash) is full sooner or later, mostly of flows that are long over. How much of it is needed, the
//! flows tell that have neither ended nor idled for too long: where they fill it, the kernel removes live ones.
//!
//! Entries are what counts: a flow to a pod by another client port than the client's own has two.

use xdp_prog::{
    abi::{Datagram, LocalFlow, PodFlow, Tuple, map},
    decide::node::deliver::is_live,
    world::FlowTable,
};

use super::{TableError, Tables, Usage, walk::Walk};
use crate::{clock::monotonic_ns, load::Loaded};

/// The tables, which are walked through one after the other.
pub(super) struct Live {
    tables: Vec<Box<dyn Table>>,
    /// Which one goes on.
    turn: usize,
}

impl Live {
    pub(super) fn of(loaded: &Loaded) -> Result<Self, TableError> {
        let answered = |name| {
            Counted::of(loaded, name, |key, flow: &PodFlow, now| {
                is_live(FlowTable::Established, key.protocol(), flow, now)
            })
        };
        Ok(Self {
            tables: vec![
                answered(map::FLOWS)?,
                answered(map::FLOWS_DATAGRAM)?,
                Counted::of(loaded, map::FLOWS_EMBRYONIC, |key, flow, now| {
                    is_live(FlowTable::Embryonic, key.protocol(), flow, now)
                })?,
                Counted::of(loaded, map::LOCAL_FLOWS, |_, flow: &LocalFlow, now| {
                    flow.is_alive(now)
                })?,
                Counted::of(loaded, map::FRAGMENTS, |_, first: &Datagram, now| {
                    first.is_awaited(now)
                })?,
            ],
            turn: 0,
        })
    }
}

impl Tables {
    /// Looks at about `budget` entries, for [`Self::live_fill`]; the next call goes on from there. Returns whether it has
    /// come to the end of the last table.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn count_live(&mut self, budget: usize) -> Result<bool, TableError> {
        let now = monotonic_ns();
        let Live { tables, turn } = &mut self.live;
        let mut passed = 0;
        while passed < budget {
            let table = &mut tables[*turn];
            passed += table.go(budget - passed, now)?;
            if table.is_whole() {
                *turn = (*turn + 1) % tables.len();
                if *turn == 0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Reports, by the table's name, how many flows live, as the last whole walk found them.
    pub fn live_fill(&self) -> impl Iterator<Item = (&'static str, Usage)> {
        self.live.tables.iter().map(|table| table.usage())
    }
}

/// A table of any kind of entries.
trait Table: Send + Sync {
    /// Passes about `budget` entries, or those up to the end; returns how many.
    fn go(&mut self, budget: usize, now: u64) -> Result<usize, TableError>;

    fn is_whole(&self) -> bool;

    fn usage(&self) -> (&'static str, Usage);
}

struct Counted<V> {
    walk: Walk<V>,
    is_live: fn(&Tuple, &V, u64) -> bool,
}

impl<V: aya::Pod + Default + Send + Sync> Counted<V> {
    fn of(
        loaded: &Loaded,
        name: &'static str,
        is_live: fn(&Tuple, &V, u64) -> bool,
    ) -> Result<Box<dyn Table>, TableError> {
        let walk = Walk::through(loaded, name)?;
        Ok(Box::new(Self { walk, is_live }))
    }
}

impl<V: aya::Pod + Default + Send + Sync> Table for Counted<V> {
    fn go(&mut self, budget: usize, now: u64) -> Result<usize, TableError> {
        let is_live = self.is_live;
        self.walk
            .go(budget, |key, entry| Ok(is_live(key, entry, now)))
    }

    fn is_whole(&self) -> bool {
        self.walk.is_whole()
    }

    fn usage(&self) -> (&'static str, Usage) {
        (self.walk.name(), self.walk.usage())
    }
}
