//! What the tables were last asked to contain, and the services that did not fit.

use std::sync::Arc;
use std::time::Instant;

use fastpath::tables::{BackendKey, Change, Settings, Specs, TableError, Tables};

use super::apply::in_words;
use super::full_tables::{self, RefusedServices};
use super::problems::Item;
use crate::chain::chain;
use crate::desired::{ServiceKey, ServiceSpec, Services};
use crate::first_few::first_few;
use crate::target_state::title;

/// What the tables were asked to contain.
#[derive(Debug)]
pub(super) struct Programmed {
    /// When the tables were last brought to the desired state.
    pub(super) at: Instant,
    pub(super) settings: Option<Settings>,
    /// Services that the tables should contain.
    pub(super) wanted: Specs,
    /// Services that did not fit.
    pub(super) refused: RefusedServices,
}

impl Programmed {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            at: now,
            settings: None,
            wanted: Specs::new(),
            refused: RefusedServices::default(),
        }
    }

    /// Records that the tables were brought to the desired state.
    pub(super) fn finish(&mut self) {
        let wanted = &self.wanted;
        self.refused.retain(|key| wanted.contains_key(key));
        self.at = Instant::now();
    }

    /// Adds or changes a service, unless it is known not to fit.
    pub(super) fn put(
        &mut self,
        tables: &mut Tables,
        services: &Services,
        key: ServiceKey,
        spec: &Arc<ServiceSpec>,
    ) -> Result<(), String> {
        if let Some(reason) = self.refused.reason(&key, spec, tables.freed()) {
            return Err(reason.to_owned());
        }
        self.put_now(tables, services, key, spec)
            .map(drop)
            .map_err(|error| {
                let reason = chain(&error);
                if error.is_full() {
                    self.refused.crowd(key, error);
                }
                reason
            })
    }

    fn put_now(
        &mut self,
        tables: &mut Tables,
        services: &Services,
        key: ServiceKey,
        spec: &Arc<ServiceSpec>,
    ) -> Result<Change, TableError> {
        let before = left_out(tables, &key).to_vec();
        let outcome = tables.put_shared_service(key, Arc::clone(spec));
        if let Ok(change) = &outcome {
            warn_of_left_out(tables, services, &key, &before);
            tracing::debug!(service = %key, slots = change.slots, new_table = change.new_table, "service programmed");
        }
        let freed = tables.freed();
        self.refused.note(key, spec, &outcome, freed);
        outcome
    }

    /// Gives services that did not fit, the oldest first, the room of younger ones. Returns the outcomes for
    /// all of them.
    pub(super) fn make_room(
        &mut self,
        tables: &mut Tables,
        services: &Services,
    ) -> Vec<(Item, Result<(), String>)> {
        let crowded = self.refused.take_crowded();
        let mut outcomes = Vec::new();
        if crowded.is_empty() {
            return outcomes;
        }
        let installed = tables.services();
        let mut installed: Vec<_> = installed
            .map(|(key, service)| {
                (
                    full_tables::age(services, key),
                    full_tables::taken_by(service),
                )
            })
            .collect();
        installed.sort_unstable_by_key(|(age, _)| *age);
        let mut evicted = Vec::new();
        for (key, error) in crowded {
            let Some(spec) = self.wanted.get(&key).cloned() else {
                continue;
            };
            let own = full_tables::age(services, &key);
            let mut outcome = Err(error);
            while let Err(error) = &outcome {
                let count = full_tables::to_make_room(&installed, &own, &spec, error);
                if count == 0 {
                    break;
                }
                for (younger, _) in installed.split_off(installed.len() - count) {
                    let (.., younger_key) = younger;
                    let removed = tables.remove_service(&younger_key);
                    outcomes.push((Item::Service(younger_key), in_words(removed.map(drop))));
                    evicted.push(younger);
                }
                outcome = self.put_now(tables, services, key, &spec);
            }
            outcomes.push((Item::Service(key), in_words(outcome.map(drop))));
        }
        if !evicted.is_empty() {
            let younger = evicted.iter().map(|(.., key)| title(services, key));
            tracing::warn!(
                count = evicted.len(),
                services = first_few(younger),
                "the tables are full: older services get the room of these"
            );
        }
        // Some of the evicted services may be small enough to fit again.
        evicted.sort_unstable();
        for (.., key) in evicted {
            if let Some(spec) = self.wanted.get(&key).cloned() {
                let outcome = self.put_now(tables, services, key, &spec);
                outcomes.push((Item::Service(key), in_words(outcome.map(drop))));
            }
        }
        outcomes
    }
}

/// Lists the pods of a service that get no traffic because their node could not tell them from another pod.
fn left_out<'t>(tables: &'t Tables, key: &ServiceKey) -> &'t [BackendKey] {
    let service = tables.service(key);
    service.map_or(&[], |service| service.left_out())
}

/// Warns of pods of a service that get no traffic, if they changed.
fn warn_of_left_out(tables: &Tables, services: &Services, key: &ServiceKey, before: &[BackendKey]) {
    let left_out = left_out(tables, key);
    if left_out.is_empty() || left_out == before {
        return;
    }
    tracing::warn!(
        service = %title(services, key),
        count = left_out.len(),
        pods = first_few(left_out),
        "left out: each shares its node and the low 11 bits of its address with another pod"
    );
}
