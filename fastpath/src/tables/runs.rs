//! The runs of the LUT that a service has.

use xdp_prog::abi::Slot;

use super::{
    ArenaFill, InstalledService, Run, ServiceKey, TableError, Tables,
    layout::{Layout, LocalTable},
    lut::Lut,
};

/// The runs of a service: one for all its backends, and one for this machine's pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    pub(super) table: Run,
    pub(super) local: Option<Run>,
}

impl Runs {
    pub(super) fn each(self) -> impl Iterator<Item = Run> {
        [
            Some(self.table),
            self.local.filter(|run| *run != self.table),
        ]
        .into_iter()
        .flatten()
    }
}

impl Tables {
    /// Keeps the runs that have the right length and may change, or that have the wanted owners already; allocates
    /// new runs for the others.
    pub(super) fn take_runs(
        &mut self,
        key: &ServiceKey,
        layout: &Layout,
        ids: &[u32],
        old: Option<Runs>,
        may_change: bool,
    ) -> Result<Runs, TableError> {
        let kept = |tables: &Self, run: Option<Run>, lut: &Lut| {
            run.filter(|run| run.log2 == lut.log2 && (may_change || tables.holds(*run, lut, ids)))
        };
        let table = match kept(self, old.map(|old| old.table), &layout.table) {
            Some(run) => run,
            None => self.allocate_run(key, layout.table.log2)?,
        };
        let local = match &layout.local {
            None => None,
            Some(LocalTable::Same) => Some(table),
            Some(LocalTable::Own(local)) => {
                let own = old.and_then(|old| old.local.filter(|run| *run != old.table));
                match kept(self, own, local) {
                    Some(run) => Some(run),
                    None => match self.allocate_run(key, local.log2) {
                        Ok(run) => Some(run),
                        Err(error) => {
                            if old.is_none_or(|old| old.table != table) {
                                self.arena.release(table);
                            }
                            return Err(error);
                        }
                    },
                }
            }
        };
        Ok(Runs { table, local })
    }

    fn allocate_run(&mut self, key: &ServiceKey, log2: u8) -> Result<Run, TableError> {
        self.or_reclaim(|tables| tables.arena.allocate(log2))
            .ok_or_else(|| {
                let ArenaFill {
                    free,
                    largest_free: largest,
                    ..
                } = self.arena.fill();
                TableError::ArenaFull {
                    service: *key,
                    wanted: 1 << log2,
                    largest,
                    free,
                }
            })
    }

    /// Tells whether a run has the owners of a table.
    fn holds(&self, run: Run, table: &Lut, ids: &[u32]) -> bool {
        let owners = table.owners.iter().map(|owner| id_of(ids, *owner));
        self.lut.of(run).map(Slot::owner).eq(owners)
    }
}

impl InstalledService {
    pub(super) fn runs(&self) -> Runs {
        Runs {
            table: self.run,
            local: self.local,
        }
    }
}

/// Returns the id of a slot's owner; 0 for nobody.
pub(super) fn id_of(ids: &[u32], owner: u32) -> u32 {
    ids.get(owner as usize).copied().unwrap_or(0)
}

/// Lists the runs that are not among the others.
pub(super) fn runs_not_in(runs: Runs, others: Option<Runs>) -> impl Iterator<Item = Run> {
    runs.each()
        .filter(move |run| others.is_none_or(|others| others.each().all(|other| other != *run)))
}
