//! From the plan to the dataplane: what each operation does to tables and interfaces.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use fastpath::attach::{AttachError, Attachment, Mode, Options};
use fastpath::tables::{BackendKey, Change, TableError};

use super::problems::Item;
use super::{Agent, cluster, room};
use crate::chain::chain;
use crate::desired::{AttachMode, ServiceKey, ServiceSpec};
use crate::first_few::first_few;
use crate::plan::{Installed, Operation, hold, oldest_first, plan};
use crate::target::{Machine, title};

/// Where the program is, and how it was asked to be there.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) allowed: AttachMode,
    pub(super) attachment: Attachment,
}

impl Agent {
    /// Brings the dataplane to the desired state as far as possible; returns how many steps
    /// changed something.
    pub(super) fn apply(&mut self) -> usize {
        let mut attempt = self.attempt();
        let mut done = attempt.done;
        // What was removed may have made room for what did not fit.
        if attempt.removed && attempt.outcomes.iter().any(|(_, outcome)| outcome.is_err()) {
            self.refused.take_crowded();
            attempt = self.attempt();
            done += attempt.done;
        }
        attempt.outcomes.extend(self.make_room());
        let wanted = &self.wanted;
        self.refused.retain(|key| wanted.contains_key(key));
        self.programmed = Instant::now();
        self.tables.reclaim();
        if let Err(error) = self.pins.remove_other_versions() {
            tracing::warn!(
                error = chain(&error),
                "tables of another layout version stay in memory"
            );
        }
        self.problems.replace(Instant::now(), attempt.outcomes);
        done
    }

    /// Keeps in force what an earlier agent left, while it is not known what is desired.
    pub(super) fn hold(&mut self) {
        let mut operations = vec![cluster::in_tables(&self.tables)];
        if !self.is_held_back() {
            operations.extend(hold(&self.installed(), &self.config.desired.interfaces));
        }
        let outcomes = operations.into_iter();
        let outcomes = outcomes.map(|operation| self.execute(operation)).collect();
        self.problems.replace(Instant::now(), outcomes);
    }

    /// Tells whether our programs, over tables that nobody has filled, would replace those of an earlier
    /// agent that serve.
    pub(super) fn is_held_back(&self) -> bool {
        self.other_layout && self.waits_for_state()
    }

    /// Does every step of the plan, whatever becomes of the others.
    fn attempt(&mut self) -> Attempt {
        if self.pods.as_ref() != Some(&self.census.own_pods()) {
            self.look_for_pod_devices();
        }
        let machine = Machine {
            pod_devices: self.pod_devices.clone(),
            ..self.machine.clone()
        };
        let target = self
            .shapes
            .target(&self.selection.desired, &self.census, &machine);
        let mut operations = plan(&self.installed(), &target);
        let services = &self.selection.desired.services;
        oldest_first(&mut operations, |key| room::age(services, key));
        self.wanted = target.services;
        let mut attempt = Attempt::default();
        for operation in operations {
            // Thousands of them take seconds.
            self.show_life();
            let changes = !matches!(operation, Operation::Resolve { .. });
            attempt.removed |= matches!(operation, Operation::Remove(_));
            let (item, outcome) = self.execute(operation);
            attempt.done += usize::from(changes && outcome.is_ok());
            attempt.outcomes.push((item, outcome));
        }
        // What is announced is served by then.
        attempt.outcomes.extend(self.announce());
        attempt
    }

    fn installed(&self) -> Installed {
        let specs = self.tables.specs();
        let services = self.tables.services().map(|(key, _)| *key);
        let mut unknown = BTreeSet::new();
        if services.len() != specs.len() {
            unknown.extend(services.filter(|key| !specs.contains_key(key)));
        }
        let inherited = self.inherited.iter().map(|name| (name.clone(), None));
        let attached = self.attached.iter();
        let attached = attached.map(|(name, attached)| (name.clone(), Some(attached.allowed)));
        Installed {
            settings: self.settings,
            addresses: self.tables.addresses(),
            trusted_edges: self.tables.trusted_edges(),
            services: specs.clone(),
            unknown,
            interfaces: inherited.chain(attached).collect(),
            egress: self.egress_in_force(),
        }
    }

    /// Adds or changes a service, unless it is known not to fit.
    fn put(&mut self, key: ServiceKey, spec: &Arc<ServiceSpec>) -> Result<(), String> {
        if let Some(reason) = self.refused.reason(&key, spec, self.tables.freed()) {
            return Err(reason.to_owned());
        }
        self.put_now(key, spec).map(drop).map_err(|error| {
            let reason = chain(&error);
            if error.is_full() {
                self.refused.crowd(key, error);
            }
            reason
        })
    }

    fn put_now(&mut self, key: ServiceKey, spec: &Arc<ServiceSpec>) -> Result<Change, TableError> {
        let left_out = self.left_out(&key).to_vec();
        let outcome = self.tables.put_shared_service(key, Arc::clone(spec));
        if let Ok(change) = &outcome {
            self.warn_of_left_out(&key, &left_out);
            tracing::debug!(service = %key, slots = change.slots, new_table = change.new_table, "service programmed");
        }
        let freed = self.tables.freed();
        self.refused.note(key, spec, &outcome, freed);
        outcome
    }

    /// Gives services that did not fit, the oldest first, the room of younger ones; returns what became of all of them.
    fn make_room(&mut self) -> Vec<(Item, Result<(), String>)> {
        let crowded = self.refused.take_crowded();
        let mut outcomes = Vec::new();
        if crowded.is_empty() {
            return outcomes;
        }
        let services = self.selection.desired.services.clone();
        let installed = self.tables.services();
        let mut installed: Vec<_> = installed
            .map(|(key, service)| (room::age(&services, key), room::taken_by(service)))
            .collect();
        installed.sort_unstable_by_key(|(age, _)| *age);
        let mut evicted = Vec::new();
        for (key, error) in crowded {
            let Some(spec) = self.wanted.get(&key).cloned() else {
                continue;
            };
            let own = room::age(&services, &key);
            let mut outcome = Err(error);
            while let Err(error) = &outcome {
                let count = room::to_make_room(&installed, &own, &spec, error);
                if count == 0 {
                    break;
                }
                for (younger, _) in installed.split_off(installed.len() - count) {
                    let (.., younger_key) = younger;
                    let removed = self.tables.remove_service(&younger_key);
                    outcomes.push((Item::Service(younger_key), table(removed.map(drop))));
                    evicted.push(younger);
                }
                outcome = self.put_now(key, &spec);
            }
            outcomes.push((Item::Service(key), table(outcome.map(drop))));
        }
        if !evicted.is_empty() {
            let younger = evicted.iter().map(|(.., key)| title(&services, key));
            tracing::warn!(
                count = evicted.len(),
                services = first_few(younger),
                "the tables are full: older services get the room of these"
            );
        }
        // Of these, some may be small enough.
        evicted.sort_unstable();
        for (.., key) in evicted {
            if let Some(spec) = self.wanted.get(&key).cloned() {
                let outcome = self.put_now(key, &spec);
                outcomes.push((Item::Service(key), table(outcome.map(drop))));
            }
        }
        outcomes
    }

    fn execute(&mut self, operation: Operation) -> (Item, Result<(), String>) {
        match operation {
            Operation::Settings(settings) => {
                let outcome = self.tables.set_settings(settings);
                if outcome.is_ok() {
                    self.settings = Some(settings);
                }
                (Item::Table("settings"), table(outcome))
            }
            Operation::Trust(prefixes) => (
                Item::Table("trusted_edges"),
                table(self.tables.set_trusted_edges(&prefixes)),
            ),
            Operation::Addresses(addresses) => (
                Item::Table("vips"),
                table(self.tables.set_addresses(addresses)),
            ),
            Operation::Resolve {
                nodes,
                by_nat,
                edges,
            } => {
                let changed = self.next_hops.set_targets(nodes, by_nat, edges);
                let failed = self.problems.of(&Item::NextHops).is_some();
                // What the kernel changes has an event of its own.
                if !changed && !failed {
                    return (Item::NextHops, Ok(()));
                }
                let outcome = self.next_hops.refresh(&mut self.tables);
                (Item::NextHops, outcome.map_err(|error| chain(&error)))
            }
            Operation::Put(key, spec) => {
                let outcome = self.put(key, &spec);
                (Item::Service(key), outcome)
            }
            Operation::Remove(key) => {
                let outcome = self.tables.remove_service(&key);
                if let Ok(true) = outcome {
                    tracing::debug!(service = %key, "service removed");
                }
                (Item::Service(key), table(outcome.map(drop)))
            }
            Operation::Attach(name, mode) => {
                let outcome = self.attach(&name, mode).map_err(|error| chain(&error));
                (Item::Interface(name), outcome)
            }
            Operation::Detach(name) => {
                let outcome = self.pins.detach(&name).map_err(|error| chain(&error));
                if outcome.is_ok() {
                    tracing::info!(interface = name, "detached");
                    self.inherited.remove(&name);
                    self.attached.remove(&name);
                }
                (Item::Interface(name), outcome.map(drop))
            }
            Operation::AttachEgress(device) => {
                let outcome = self.attach_egress(&device).map_err(|error| chain(&error));
                (Item::Egress(device), outcome)
            }
            Operation::DetachEgress(device) => {
                let outcome = self.detach_egress(&device).map_err(|error| chain(&error));
                (Item::Egress(device), outcome)
            }
        }
    }

    /// Lists the pods of a service that get no traffic.
    fn left_out(&self, key: &ServiceKey) -> &[BackendKey] {
        let service = self.tables.service(key);
        service.map_or(&[], |service| service.left_out())
    }

    /// Says which pods of a service get no traffic, if they are others than before.
    fn warn_of_left_out(&self, key: &ServiceKey, before: &[BackendKey]) {
        let left_out = self.left_out(key);
        if left_out.is_empty() || left_out == before {
            return;
        }
        tracing::warn!(
            service = %title(&self.config.desired.services, key),
            count = left_out.len(),
            pods = first_few(left_out),
            "left out: each shares its node and the low 11 bits of its address with another pod"
        );
    }

    /// Sees to it that what XDP fails to send is counted; serves without where that cannot be.
    fn count_failures(&mut self) {
        let uncounted = self.loaded.count_failures().err().map(|error| {
            let reason = chain(&error);
            format!("frames that XDP fails to send are not counted: {reason}")
        });
        if let Some(warning) = &uncounted
            && uncounted != self.uncounted
        {
            tracing::warn!("{warning}");
        }
        self.uncounted = uncounted;
    }

    fn attach(&mut self, name: &str, allowed: AttachMode) -> Result<(), AttachError> {
        let options = Options {
            mode: match allowed {
                AttachMode::Native => Mode::Native,
                AttachMode::NativeOrGeneric => Mode::NativeOrGeneric,
                AttachMode::Generic => Mode::Generic,
            },
            ..Options::default()
        };
        self.count_failures();
        let attachment = self.loaded.attach(name, &options)?;
        tracing::info!(
            interface = name,
            mode = %attachment.mode,
            adopted = attachment.replaced.is_some(),
            "attached"
        );
        if let Some(obstacle) = &attachment.fallback {
            tracing::warn!(
                interface = name,
                reason = chain(obstacle.as_ref()),
                "native mode is not possible, generic mode is several times slower"
            );
        }
        if !attachment.switched_off.is_empty() {
            tracing::warn!(interface = name, offloads = ?attachment.switched_off, "switched off: generic mode needs single packets");
        }
        self.inherited.remove(name);
        self.attached.insert(
            name.to_owned(),
            Attached {
                allowed,
                attachment,
            },
        );
        Ok(())
    }
}

/// What one go through the plan brought.
#[derive(Debug, Default)]
struct Attempt {
    done: usize,
    removed: bool,
    outcomes: Vec<(Item, Result<(), String>)>,
}

/// Words the outcome of writing a table.
pub(super) fn table(outcome: Result<(), TableError>) -> Result<(), String> {
    outcome.map_err(|error| chain(&error))
}
