//! Services: their lookup tables, their rules, and the keys that lead to them.

use std::{
    collections::{BTreeSet, HashSet},
    mem::offset_of,
    sync::Arc,
};

use xdp_prog::abi::{IndexEntry, Service, ServiceWord, Slot, map};

use super::{
    Change, InstalledService, Run, ServiceKey, ServiceSpec, TableError, Tables,
    encode::{key_check, service_entry, service_rules},
    layout::{Layout, LocalTable, layout},
    lut::Lut,
    past::{OwnerChange, keeps_past, keeps_past_of_own_pods, pinned_for, second_now},
    policy::{Pods, ranges_of},
    retired::RetiredService,
    runs::{id_of, runs_not_in},
    slot_owners::is_shared,
    whole_edge::Hash,
};

impl Tables {
    /// Adds a service, or changes it to the specification.
    ///
    /// A table of the same length is changed slot by slot. For another length, a new table is built, and one store
    /// turns the service to it. Other rules, such as the mode, are in other words than the tables' places. To change
    /// them, the service is built anew under another id, and its key is turned to that id.
    ///
    /// # Errors
    ///
    /// Fails if the specification cannot be met or a table is full; the service is then as before. Fails too if the
    /// kernel refuses to invalidate the programs' notes; the service has changed then.
    pub fn put_service(
        &mut self,
        key: ServiceKey,
        spec: &ServiceSpec,
    ) -> Result<Change, TableError> {
        self.put_shared_service(key, Arc::new(spec.clone()))
    }

    /// As [`Tables::put_service`], with a specification that the caller shares.
    ///
    /// # Errors
    ///
    /// As [`Tables::put_service`].
    pub fn put_shared_service(
        &mut self,
        key: ServiceKey,
        spec: Arc<ServiceSpec>,
    ) -> Result<Change, TableError> {
        let outcome = self.replace_service(key, spec);
        self.invalidate_notes()?;
        self.reclaim_if_worth_it();
        outcome
    }

    fn replace_service(
        &mut self,
        key: ServiceKey,
        spec: Arc<ServiceSpec>,
    ) -> Result<Change, TableError> {
        let old = self.service(&key);
        let renamed = old.filter(|old| old.owner != spec.owner);
        let renamed = renamed.map(|old| (old.backends.clone(), old.owner));
        if let Some((backends, _)) = &renamed {
            self.hand_over(backends, spec.owner);
        }
        let outcome = self.replace_tables(key, spec);
        if let (Some((backends, owner)), Err(_)) = (&renamed, &outcome) {
            self.hand_over(backends, *owner);
        }
        outcome
    }

    fn replace_tables(
        &mut self,
        key: ServiceKey,
        spec: Arc<ServiceSpec>,
    ) -> Result<Change, TableError> {
        let least = self.follow_need(&key, &spec);
        let mut layout = layout(&key, &spec, least, self.settings.hash_seed, |node| {
            self.contents
                .node_routes
                .get(&node)
                .is_some_and(|route| route.local)
        })?;
        self.keep_length(&key, &spec, &mut layout.table);
        let ids = self.take_backends(&layout.backends, spec.owner)?;
        let (service, change) = match self.install(&key, &spec, &layout, &ids) {
            Ok(done) => done,
            Err(error) => {
                self.drop_backends(ids);
                return Err(error);
            }
        };
        self.contents.specs.insert(key, spec);
        self.share(&service.sharing);
        if let Some(old) = self.contents.installed.insert(key, Arc::new(service)) {
            self.unshare(&old.sharing);
            self.drop_backends(old.backends.iter().copied());
        }
        Ok(change)
    }

    /// Removes a service; returns whether it was there.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the write; the service is then as before.
    pub fn remove_service(&mut self, key: &ServiceKey) -> Result<bool, TableError> {
        if !self.contents.installed.contains_key(key) {
            return Ok(false);
        }
        let index_key = self.index.key(key);
        let is_aside = self.index.is_aside(index_key);
        self.index.remove(index_key)?;
        if is_aside {
            self.show_hash(Hash::Overflow);
        }
        self.contents.specs.remove(key);
        self.needs.remove(key);
        if let Some(service) = self.contents.installed.remove(key) {
            self.remove_pods(service.id, &Pods::new(), &service.pods);
            for run in service.runs().each() {
                self.clear_pasts(run);
            }
            self.retired.runs.extend(service.runs().each());
            self.freed.runs += 1;
            self.freed.entries += 1;
            self.retired.services.push(RetiredService {
                id: service.id,
                pods: Pods::new(),
                source_ranges: service.source_ranges.clone(),
            });
            self.unshare(&service.sharing);
            self.drop_backends(service.backends.iter().copied());
        }
        self.invalidate_notes()?;
        self.reclaim_if_worth_it();
        Ok(true)
    }

    /// Puts services again whose local pods have changed since they were put.
    pub(super) fn put_again(&mut self, services: Vec<(ServiceKey, Arc<ServiceSpec>)>) {
        for (key, spec) in services {
            // A service that does not fit stays as it was. Callers that compare the installed services with the
            // wanted ones see the difference.
            if self.put_shared_service(key, spec).is_err() {
                self.contents.specs.remove(&key);
            }
        }
    }

    /// Writes a service whose backends are written already. Every step that can fail comes before the first change
    /// that packets see.
    fn install(
        &mut self,
        key: &ServiceKey,
        spec: &ServiceSpec,
        layout: &Layout,
        ids: &[u32],
    ) -> Result<(InstalledService, Change), TableError> {
        let old = self.service(key);
        let old_runs = old.map(InstalledService::runs);
        let replaced = old
            .filter(|old| !self.has_rules(old.id, spec))
            .map(|old| RetiredService {
                id: old.id,
                pods: old.pods.clone(),
                source_ranges: old.source_ranges.clone(),
            });
        // If the service keeps its id, the entries under the id change step by step.
        let kept = old.filter(|_| replaced.is_none());
        let old_pods = kept.map(|old| old.pods.clone()).unwrap_or_default();
        let old_ranges = kept
            .map(|old| old.source_ranges.clone())
            .unwrap_or_default();
        let old_id = kept.map(|old| old.id);

        let pods: Pods = layout
            .pods
            .iter()
            .map(|(tag, index)| (*tag, ids[*index]))
            .collect();
        let ranges = ranges_of(key, &spec.source_ranges);

        let runs = self.take_runs(key, layout, ids, old_runs, old_id.is_some())?;
        let give_back = |tables: &mut Self| {
            for run in runs_not_in(runs, old_runs) {
                tables.arena.release(run);
            }
        };
        let id = match old_id {
            Some(id) => id,
            None => match self.allocate(map::SERVICE, |tables| &mut tables.service_ids) {
                Ok(id) => id,
                Err(error) => {
                    give_back(self);
                    return Err(error);
                }
            },
        };
        self.add_egress_ports(key, spec, layout);
        let mut written = self.write_under(id, &pods, &old_pods, &ranges, &old_ranges);
        if matches!(written, Err(TableError::TableFull { .. })) && self.retired.count() > 0 {
            self.free_retired();
            written = self.write_under(id, &pods, &old_pods, &ranges, &old_ranges);
        }
        if let Err(error) = written {
            give_back(self);
            if old_id.is_none() {
                self.service_ids.release(id);
            }
            return Err(error);
        }

        let is_new = |run: Run| runs_not_in(runs, old_runs).any(|new| new == run);
        let listed: HashSet<u32> = ids.iter().copied().collect();
        let change = OwnerChange {
            run: runs.table,
            is_new: is_new(runs.table),
            former: old_runs.map(|old| old.table),
            listed: &listed,
            second: second_now(),
            pinned_for: pinned_for(key, spec),
        };
        // This comes first: what was one table for both may become two, and the former owners are read where they stand.
        if let (Some(LocalTable::Own(local)), Some(run)) = (&layout.local, runs.local) {
            let change = OwnerChange {
                run,
                is_new: is_new(run),
                former: old_runs.and_then(|old| old.local),
                // Pods of this machine tell which connections they know.
                pinned_for: 0,
                ..change
            };
            self.store_slots(&change, keeps_past_of_own_pods(spec), local, ids);
        }
        let slots = self.store_slots(&change, keeps_past(spec), &layout.table, ids);
        let word = |run: Run| ServiceWord::new(run.base, run.log2, key_check(key));
        let local_word = runs.local.map_or(ServiceWord::default(), word);
        let entry = Service {
            word: word(runs.table),
            local: local_word,
            ..service_entry(key, spec)
        };
        if old_id.is_some() {
            self.store_words(key, id, &entry);
        } else {
            match &replaced {
                Some(replaced) => self.counters.services.copy(replaced.id, id),
                None => self.counters.services.clear(id),
            }
            self.service.write(id, entry);
            if let Err(error) = self.insert_key(key, id, &entry) {
                self.service.write(id, Service::default());
                self.remove_pods(id, &Pods::new(), &pods);
                self.remove_source_ranges(id, &ranges);
                for run in runs_not_in(runs, old_runs) {
                    self.clear_pasts(run);
                }
                self.take_dropped();
                give_back(self);
                self.service_ids.release(id);
                return Err(error);
            }
        }
        let outgoing = old_runs.into_iter();
        let outgoing: Vec<Run> = outgoing
            .flat_map(|old| runs_not_in(old, Some(runs)))
            .collect();
        for run in &outgoing {
            self.clear_pasts(*run);
        }

        self.remove_pods(id, &pods, &old_pods);
        self.remove_source_ranges(id, old_ranges.difference(&ranges));
        self.freed.entries += u64::from(replaced.is_some());
        self.retired.services.extend(replaced);
        self.freed.runs += u64::from(!outgoing.is_empty());
        self.retired.runs.extend(outgoing);
        self.freed.entries += u64::from(old_ranges.difference(&ranges).next().is_some());
        let (last_change, mut dropped_owners) = self
            .service(key)
            .map(|old| (old.last_change, old.dropped_owners))
            .unwrap_or_default();
        dropped_owners += self.take_dropped();
        let change = Change {
            slots,
            new_table: old_runs.is_none_or(|old| old.table != runs.table),
        };
        let is_changed = change.new_table || slots > 0;
        self.pasts.last_change += u64::from(is_changed);
        let service = InstalledService {
            id,
            run: runs.table,
            local: runs.local,
            mode: spec.mode,
            backends: ids.into(),
            sharing: ids.iter().copied().take(layout.sharing).collect(),
            pods,
            source_ranges: ranges,
            owner: spec.owner,
            left_out: layout.left_out.as_slice().into(),
            is_shared: is_shared(key, spec),
            last_change: if is_changed {
                self.pasts.last_change
            } else {
                last_change
            },
            dropped_owners,
        };
        Ok((service, change))
    }

    /// Writes the entries under a service's id. Packets find new entries only when the service names them.
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

    /// Tells whether the service with this id has the rules of a specification.
    fn has_rules(&self, id: u32, spec: &ServiceSpec) -> bool {
        let rules = service_rules(spec);
        self.service.read(id).is_some_and(|entry| {
            let rules_of = |entry: &Service| {
                let affinity = (entry.affinity, entry.affinity_seconds);
                (entry.mode, entry.flags, affinity)
            };
            rules_of(&entry) == rules_of(&rules)
        })
    }

    /// Stores the owners of a table in a run; returns how many slots have changed. With `keeps_past`, the slots have lists
    /// of past owners.
    fn store_slots(
        &mut self,
        change: &OwnerChange<'_>,
        keeps_past: bool,
        table: &Lut,
        ids: &[u32],
    ) -> u32 {
        let is_new = change.is_new;
        let mut changed = 0;
        for (index, owner) in (change.run.base..).zip(&table.owners) {
            let owner = id_of(ids, *owner);
            let old = self.lut.get(index).filter(|_| !is_new);
            let is_same = old.map(Slot::owner) == Some(owner);
            // The list comes before the owner: packets that find the two of different times lose a try at most.
            let has_past = if keeps_past {
                if is_same {
                    continue;
                }
                self.store_past(index, owner, change)
            } else {
                !is_new && self.clear_past(index)
            };
            let slot = Slot::new(owner, has_past);
            if old != Some(slot) {
                self.lut.set(index, slot);
                changed += u32::from(!is_same);
            }
            self.finish_slot(index, change);
        }
        changed
    }

    /// Turns a service to the tables of an entry, at its id and in the index.
    fn store_words(&mut self, key: &ServiceKey, id: u32, entry: &Service) {
        for (offset, word) in [
            (offset_of!(Service, word), entry.word),
            (offset_of!(Service, local), entry.local),
        ] {
            self.service.store_u64(id, offset, word.0);
        }
        self.index
            .update(self.index.key(key), IndexEntry::new(id, entry));
    }

    /// Makes a key lead to the service with this id and entry.
    fn insert_key(&mut self, key: &ServiceKey, id: u32, entry: &Service) -> Result<(), TableError> {
        self.ask_about_nat_port(key.port)?;
        let key = self.index.key(key);
        if !self.index.is_aside(key)
            && let Some(place) = self.or_reclaim(|tables| tables.index.place_for(key))
        {
            self.index.store(place, key, IndexEntry::new(id, entry));
            return Ok(());
        }
        self.ask_overflow()?;
        self.index.store_aside(key, id)?;
        self.show_hash(Hash::Overflow);
        Ok(())
    }
}
