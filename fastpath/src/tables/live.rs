//! Counts live flows in the tables whose oldest entries make room for new ones.
//!
//! Such a table (an LRU hash) is full sooner or later, mostly of flows that are long over. The flows that have
//! neither ended nor idled for too long show how much of it is needed. If they fill it, the kernel evicts live flows.
//!
//! Entries are counted, not flows: a flow with another client port at the pod has two.

use xdp_prog::{
    abi::{Datagram, LocalFlow, PodFlow, Tuple, map},
    flow_state::is_live,
    world::FlowTable,
};

use super::{TableError, Tables, Usage, walk::Walk};
use crate::{clock::monotonic_ns, load::Loaded};

/// The tables; they are walked through one after the other.
pub(super) struct Live {
    tables: Vec<Table>,
    /// Index of the table that the next call continues with.
    turn: usize,
}

impl Live {
    pub(super) fn of(loaded: &Loaded) -> Result<Self, TableError> {
        let answered = |name| {
            Table::of(loaded, name, |key, flow: &PodFlow, now| {
                is_live(FlowTable::Established, key.protocol(), flow, now)
            })
        };
        Ok(Self {
            tables: vec![
                answered(map::FLOWS)?,
                answered(map::FLOWS_DATAGRAM)?,
                Table::of(loaded, map::FLOWS_EMBRYONIC, |key, flow, now| {
                    is_live(FlowTable::Embryonic, key.protocol(), flow, now)
                })?,
                Table::of(loaded, map::LOCAL_FLOWS, |_, flow: &LocalFlow, now| {
                    flow.is_alive(now)
                })?,
                Table::of(loaded, map::FRAGMENTS, |_, first: &Datagram, now| {
                    first.is_awaited(now)
                })?,
            ],
            turn: 0,
        })
    }
}

/// A table with any type of entries.
struct Table {
    name: &'static str,
    usage: Usage,
    walk: Box<GoOn>,
}

/// Walks over about this many entries, or to the end, at this time in ns. Returns the number of entries, and the
/// table's usage at the end.
type GoOn = dyn FnMut(usize, u64) -> Result<(usize, Option<Usage>), TableError> + Send + Sync;

impl Table {
    fn of<V: aya::Pod + Default + Send + Sync>(
        loaded: &Loaded,
        name: &'static str,
        is_live: fn(&Tuple, &V, u64) -> bool,
    ) -> Result<Self, TableError> {
        let mut walk = Walk::through(loaded, name)?;
        Ok(Self {
            name,
            usage: walk.usage(),
            walk: Box::new(move |budget, now| {
                let passed = walk.go(budget, |key, entry| Ok(is_live(key, entry, now)))?;
                Ok((passed, walk.is_whole().then(|| walk.usage())))
            }),
        })
    }
}

impl Tables {
    /// Looks at about `budget` entries for [`Self::live_fill`]; the next call continues there. Returns whether it has
    /// reached the end of the last table.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be read.
    pub fn count_live(&mut self, budget: usize) -> Result<bool, TableError> {
        let now = monotonic_ns();
        let Live { tables, turn } = &mut self.live;
        let mut passed = 0;
        while passed < budget {
            let table = &mut tables[*turn];
            let (more, usage) = (table.walk)(budget - passed, now)?;
            passed += more;
            if let Some(usage) = usage {
                table.usage = usage;
                *turn = (*turn + 1) % tables.len();
                if *turn == 0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns the number of live entries of each table, by its name, as the last complete walk found them.
    pub fn live_fill(&self) -> impl Iterator<Item = (&'static str, Usage)> {
        let tables = self.live.tables.iter();
        tables.map(|table| (table.name, table.usage))
    }
}
