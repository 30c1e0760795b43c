//! Services: their lookup tables, their rules, and the keys that lead to them.

use std::{
    collections::BTreeSet,
    mem::offset_of,
    sync::{Arc, atomic::Ordering},
};

use xdp_prog::abi::{Service, ServiceWord, Slot, map};

use super::{
    ArenaFill, Change, InstalledService, Run, ServiceKey, ServiceSpec, TableError, Tables,
    encode::{KeyOf, key_check, key_of, service_rules},
    error::write_failed,
    layout::{Layout, LocalTable, layout},
    lut::Lut,
    policy::{Pods, ranges_of},
};

/// The runs of a service: the one for all its backends, and the one for this machine's pods.
#[derive(Clone, Copy, Debug)]
struct Runs {
    table: Run,
    local: Option<Run>,
}

impl Runs {
    /// Lists each run once.
    fn each(self) -> impl Iterator<Item = Run> {
        [
            Some(self.table),
            self.local.filter(|run| *run != self.table),
        ]
        .into_iter()
        .flatten()
    }
}

impl Tables {
    /// Adds a service or changes it to the specification.
    ///
    /// A table of the same length is changed slot by slot; otherwise a new one
    /// is built and the service turned to it with one store.
    ///
    /// # Errors
    ///
    /// When the specification cannot be met or a table is full; the service is then as before. When the kernel
    /// refuses to end what programs have noted of it; it has changed then.
    pub fn put_service(
        &mut self,
        key: ServiceKey,
        spec: &ServiceSpec,
    ) -> Result<Change, TableError> {
        self.put_shared_service(key, Arc::new(spec.clone()))
    }

    /// Does the same with a specification that the caller keeps too.
    ///
    /// # Errors
    ///
    /// As for [`Tables::put_service`].
    pub fn put_shared_service(
        &mut self,
        key: ServiceKey,
        spec: Arc<ServiceSpec>,
    ) -> Result<Change, TableError> {
        let outcome = self.replace_service(key, spec);
        self.begin_epoch()?;
        self.reclaim_if_worth_it();
        outcome
    }

    fn replace_service(
        &mut self,
        key: ServiceKey,
        spec: Arc<ServiceSpec>,
    ) -> Result<Change, TableError> {
        let layout = layout(&key, &spec, self.settings.hash_seed, |node| {
            self.ways.get(&node).is_some_and(|way| way.local)
        })?;
        let ids = self.take_backends(&layout.backends)?;
        let (service, change) = match self.install(&key, &spec, &layout, &ids) {
            Ok(done) => done,
            Err(error) => {
                self.drop_backends(ids);
                return Err(error);
            }
        };
        self.specs.insert(key, spec);
        if let Some(old) = self.installed.insert(key, Box::new(service)) {
            self.drop_backends(old.backends);
        }
        Ok(change)
    }

    /// Removes a service; returns whether it was there.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the write; the service is then as before.
    pub fn remove_service(&mut self, key: &ServiceKey) -> Result<bool, TableError> {
        if !self.installed.contains_key(key) {
            return Ok(false);
        }
        self.remove_key(key)?;
        self.specs.remove(key);
        if let Some(service) = self.installed.remove(key) {
            self.store_words(service.id, ServiceWord::default(), ServiceWord::default());
            self.remove_pods(service.id, &Pods::new(), &service.pods);
            self.retired.runs.extend(service.runs().each());
            self.retired
                .services
                .push((service.id, service.source_ranges));
            self.drop_backends(service.backends);
        }
        self.begin_epoch()?;
        self.reclaim_if_worth_it();
        Ok(true)
    }

    /// Puts services again whose local pods are not what they were when they were put.
    pub(super) fn put_again(&mut self, services: Vec<(ServiceKey, Arc<ServiceSpec>)>) {
        for (key, spec) in services {
            // A service that does not fit stays as it was; whoever compares what is installed with what is
            // wanted finds it to be something else.
            if self.put_shared_service(key, spec).is_err() {
                self.specs.remove(&key);
            }
        }
    }

    /// Writes everything of a service whose backends are written; all that can fail comes before the
    /// first change that packets see.
    fn install(
        &mut self,
        key: &ServiceKey,
        spec: &ServiceSpec,
        layout: &Layout,
        ids: &[u32],
    ) -> Result<(InstalledService, Change), TableError> {
        let old = self.service(key);
        let old_runs = old.map(InstalledService::runs);
        let old_pods = old.map(|old| old.pods.clone()).unwrap_or_default();
        let old_ranges = old.map(|old| old.source_ranges.clone()).unwrap_or_default();
        let old_id = old.map(|old| old.id);

        let pods: Pods = layout
            .pods
            .iter()
            .map(|(tag, index)| (*tag, ids[*index]))
            .collect();
        let ranges = ranges_of(key, &spec.source_ranges);

        let runs = self.take_runs(key, layout, old_runs)?;
        let give_back = |tables: &mut Self| {
            for run in new_runs(runs, old_runs) {
                tables.arena.release(run);
            }
        };
        let id = match old_id {
            Some(id) => id,
            None => match self.allocate_service() {
                Ok(id) => id,
                Err(error) => {
                    give_back(self);
                    return Err(error);
                }
            },
        };
        let written = self.write_under(id, &pods, &old_pods, &ranges, &old_ranges);
        if let Err(error) = written {
            give_back(self);
            if old_id.is_none() {
                self.service_ids.release(id);
            }
            return Err(error);
        }

        let is_new = |run: Run| new_runs(runs, old_runs).any(|new| new == run);
        let slots = self.store_slots(runs.table, is_new(runs.table), &layout.table, ids);
        if let (Some(LocalTable::Own(local)), Some(run)) = (&layout.local, runs.local) {
            self.store_slots(run, is_new(run), local, ids);
        }
        let word = |run: Run| ServiceWord::new(run.base, run.log2, key_check(key));
        let local_word = runs.local.map_or(ServiceWord::default(), word);
        if old_id.is_some() {
            self.store_words(id, word(runs.table), local_word);
            self.set_rules(id, spec);
        } else {
            self.counters.clear_service(id);
            let entry = Service {
                word: word(runs.table),
                local: local_word,
                ..service_rules(spec)
            };
            self.service.write(id, entry);
            if let Err(error) = self.insert_key(key, id) {
                self.service.write(id, Service::default());
                self.remove_pods(id, &Pods::new(), &pods);
                self.remove_source_ranges(id, &ranges);
                give_back(self);
                self.service_ids.release(id);
                return Err(error);
            }
        }

        self.remove_pods(id, &pods, &old_pods);
        self.remove_source_ranges(id, old_ranges.difference(&ranges));
        let outgoing = old_runs.into_iter().flat_map(Runs::each);
        let outgoing = outgoing.filter(|run| runs.each().all(|kept| kept != *run));
        self.retired.runs.extend(outgoing);
        let change = Change {
            slots,
            new_table: old_runs.is_none_or(|old| old.table != runs.table),
        };
        let service = InstalledService {
            id,
            run: runs.table,
            local: runs.local,
            mode: spec.mode,
            backends: ids.into(),
            pods,
            source_ranges: ranges,
            left_out: layout.left_out.as_slice().into(),
        };
        Ok((service, change))
    }

    /// Keeps the runs that have the right length and takes new ones in place of the others.
    fn take_runs(
        &mut self,
        key: &ServiceKey,
        layout: &Layout,
        old: Option<Runs>,
    ) -> Result<Runs, TableError> {
        let kept = |run: Option<Run>, log2: u8| run.filter(|run| run.log2 == log2);
        let table = match kept(old.map(|old| old.table), layout.table.log2) {
            Some(run) => run,
            None => self.allocate_run(key, layout.table.log2)?,
        };
        let local = match &layout.local {
            None => None,
            Some(LocalTable::Same) => Some(table),
            Some(LocalTable::Own(local)) => {
                let own = old.and_then(|old| old.local.filter(|run| *run != old.table));
                match kept(own, local.log2) {
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

    /// Writes what lies under a service's id; packets do not find new entries before the service names them.
    fn write_under(
        &mut self,
        id: u32,
        pods: &Pods,
        old_pods: &Pods,
        ranges: &BTreeSet<ipnet::IpNet>,
        old_ranges: &BTreeSet<ipnet::IpNet>,
    ) -> Result<(), TableError> {
        self.add_source_ranges(id, ranges, old_ranges)?;
        let added = self.add_pods(id, pods, old_pods);
        if added.is_err() {
            self.remove_source_ranges(id, ranges.difference(old_ranges));
        }
        added
    }

    fn allocate_service(&mut self) -> Result<u32, TableError> {
        self.or_reclaim(|tables| tables.service_ids.allocate())
            .ok_or(TableError::TableFull {
                map: map::SERVICE,
                entries: self.service_ids.capacity(),
            })
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

    /// Stores a table's owners; returns how many slots have another one than before.
    fn store_slots(&mut self, run: Run, is_new: bool, table: &Lut, ids: &[u32]) -> u32 {
        let mut changed = 0;
        for (index, owner) in (run.base..).zip(&table.owners) {
            let Some(slot) = self.lut.atomic_u64(index, 0) else {
                continue;
            };
            let id = ids.get(*owner as usize).copied().unwrap_or(0);
            if is_new {
                // No packet reads the run, and its slots have no past.
                slot.store(Slot::quiet(id).0, Ordering::Release);
                changed += 1;
                continue;
            }
            let update = |old: u64| {
                let old = Slot(old);
                (old.current() != id).then(|| old.with_current(id).0)
            };
            changed += u32::from(
                slot.fetch_update(Ordering::AcqRel, Ordering::Acquire, update)
                    .is_ok(),
            );
        }
        changed
    }

    pub(super) fn run_slots(&self, run: Run) -> impl Iterator<Item = Slot> {
        (run.base..run.base + run.length())
            .filter_map(|index| Some(Slot(self.lut.atomic_u64(index, 0)?.load(Ordering::Acquire))))
    }

    fn store_words(&mut self, id: u32, table: ServiceWord, local: ServiceWord) {
        for (offset, word) in [
            (offset_of!(Service, word), table),
            (offset_of!(Service, local), local),
        ] {
            if let Some(stored) = self.service.atomic_u64(id, offset) {
                stored.store(word.0, Ordering::Release);
            }
        }
    }

    /// Stores everything about a live service but where its tables lie.
    fn set_rules(&mut self, id: u32, spec: &ServiceSpec) {
        let rules = service_rules(spec);
        for (offset, value) in [
            (offset_of!(Service, mode), rules.mode),
            (offset_of!(Service, flags), rules.flags),
        ] {
            if let Some(stored) = self.service.atomic_u32(id, offset) {
                stored.store(value, Ordering::Release);
            }
        }
        if let Some(stored) = self.service.atomic_u64(id, offset_of!(Service, affinity)) {
            stored.store(rules.affinity, Ordering::Release);
        }
    }

    fn insert_key(&mut self, key: &ServiceKey, id: u32) -> Result<(), TableError> {
        match key_of(key) {
            KeyOf::V4(wire) => self
                .services_v4
                .insert(wire, id, 0)
                .map_err(write_failed(map::SERVICES_V4)),
            KeyOf::V6(wire) => self
                .services_v6
                .insert(wire, id, 0)
                .map_err(write_failed(map::SERVICES_V6)),
        }
    }

    pub(super) fn remove_key(&mut self, key: &ServiceKey) -> Result<(), TableError> {
        match key_of(key) {
            KeyOf::V4(wire) => self
                .services_v4
                .remove(&wire)
                .map_err(write_failed(map::SERVICES_V4)),
            KeyOf::V6(wire) => self
                .services_v6
                .remove(&wire)
                .map_err(write_failed(map::SERVICES_V6)),
        }
    }
}

impl InstalledService {
    fn runs(&self) -> Runs {
        Runs {
            table: self.run,
            local: self.local,
        }
    }
}

/// Lists the runs that were taken anew.
fn new_runs(runs: Runs, old: Option<Runs>) -> impl Iterator<Item = Run> {
    runs.each()
        .filter(move |run| old.is_none_or(|old| old.each().all(|old| old != *run)))
}
