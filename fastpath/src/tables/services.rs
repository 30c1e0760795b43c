//! Services and their lookup tables.

use std::{mem::offset_of, sync::atomic::Ordering};

use xdp_prog::abi::{Service, ServiceWord, Slot, map};

use super::{
    ArenaFill, BackendKey, Change, InstalledService, Run, ServiceKey, ServiceSpec, TableError,
    Tables,
    encode::{KeyOf, key_check, key_of, service_rules},
    error::write_failed,
    lut::{self, Lut},
};

impl Tables {
    /// Adds a service or changes it to the specification.
    ///
    /// A table of the same length is changed slot by slot; otherwise a new one
    /// is built and the service turned to it with one store.
    ///
    /// # Errors
    ///
    /// When the specification cannot be met or a table is full; the service is then as before.
    pub fn put_service(
        &mut self,
        key: ServiceKey,
        spec: &ServiceSpec,
    ) -> Result<Change, TableError> {
        let Lut { log2, owners } = lut::build(&key, spec, self.settings.hash_seed)?;
        let present = self
            .installed
            .get(&key)
            .map(|service| (service.id, service.run));
        let backends: Vec<BackendKey> = spec.backends.iter().map(|b| b.key(spec.mode)).collect();
        let ids = self.take_backends(&backends)?;
        let outcome = match present {
            Some((id, run)) if run.log2 == log2 => {
                let changed = self.replace_slots(run, &owners, &ids);
                self.set_rules(id, spec);
                Ok((
                    id,
                    run,
                    Change {
                        slots: changed,
                        new_table: false,
                    },
                ))
            }
            _ => self.new_table(key, spec, log2, &owners, &ids, present),
        };
        let (id, run, change) = match outcome {
            Ok(done) => done,
            Err(error) => {
                self.drop_backends(ids.iter().copied());
                return Err(error);
            }
        };
        let service = InstalledService {
            id,
            run,
            mode: spec.mode,
            backends: ids.into_iter().collect(),
            spec: Some(spec.clone()),
        };
        if let Some(old) = self.installed.insert(key, service) {
            self.drop_backends(old.backends);
        }
        self.reclaim_if_worth_it();
        Ok(change)
    }

    /// Removes a service; returns whether it was there.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the write; the service is then as before.
    pub fn remove_service(&mut self, key: &ServiceKey) -> Result<bool, TableError> {
        let Some(id) = self.installed.get(key).map(|service| service.id) else {
            return Ok(false);
        };
        self.remove_key(key)?;
        self.store_word(id, ServiceWord::default());
        if let Some(service) = self.installed.remove(key) {
            self.retired.services.push(id);
            self.retired.runs.push(service.run);
            self.drop_backends(service.backends);
        }
        self.reclaim_if_worth_it();
        Ok(true)
    }

    /// Turns a service to a new run: fills it, then publishes it with one store.
    fn new_table(
        &mut self,
        key: ServiceKey,
        spec: &ServiceSpec,
        log2: u8,
        owners: &[u32],
        ids: &[u32],
        present: Option<(u32, Run)>,
    ) -> Result<(u32, Run, Change), TableError> {
        let run = self
            .or_reclaim(|tables| tables.arena.allocate(log2))
            .ok_or_else(|| {
                let ArenaFill {
                    free,
                    largest_free: largest,
                    ..
                } = self.arena.fill();
                TableError::ArenaFull {
                    service: key,
                    wanted: 1 << log2,
                    largest,
                    free,
                }
            })?;
        self.replace_slots(run, owners, ids);
        let word = ServiceWord::new(run.base, log2, key_check(&key));
        let id = match present {
            Some((id, old)) => {
                self.store_word(id, word);
                self.set_rules(id, spec);
                self.retired.runs.push(old);
                id
            }
            None => match self.publish(key, spec, word) {
                Ok(id) => id,
                Err(error) => {
                    self.arena.release(run);
                    return Err(error);
                }
            },
        };
        Ok((
            id,
            run,
            Change {
                slots: run.length(),
                new_table: true,
            },
        ))
    }

    /// Writes the entry of a new service, then the key that leads to it.
    fn publish(
        &mut self,
        key: ServiceKey,
        spec: &ServiceSpec,
        word: ServiceWord,
    ) -> Result<u32, TableError> {
        let id = self
            .or_reclaim(|tables| tables.service_ids.allocate())
            .ok_or(TableError::TableFull {
                map: map::SERVICE,
                entries: self.service_ids.capacity(),
            })?;
        self.counters.clear_service(id);
        self.service.write(
            id,
            Service {
                word,
                ..service_rules(spec)
            },
        );
        if let Err(error) = self.insert_key(&key, id) {
            self.service.write(id, Service::default());
            self.service_ids.release(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Stores the owners that differ, each with compare-exchange; returns how many did.
    fn replace_slots(&mut self, run: Run, owners: &[u32], ids: &[u32]) -> u32 {
        let mut changed = 0;
        for (index, owner) in (run.base..).zip(owners) {
            let Some(slot) = self.lut.atomic_u64(index, 0) else {
                continue;
            };
            let id = ids.get(*owner as usize).copied().unwrap_or(0);
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

    fn store_word(&mut self, id: u32, word: ServiceWord) {
        if let Some(stored) = self.service.atomic_u64(id, offset_of!(Service, word)) {
            stored.store(word.0, Ordering::Release);
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
