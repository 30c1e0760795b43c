//! Executes the plan: does each operation on the tables and interfaces.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Instant;

use xdp_prog::stage::Duties;

use super::problems::Item;
use super::{Agent, cluster, full_tables};
use crate::chain::chain;
use crate::desired::Desired;
use crate::plan::{Installed, Operation, hold, oldest_first, plan};
use crate::target_state::Machine;

impl Agent {
    /// Brings the dataplane to the desired state as far as possible. Returns the number of operations that
    /// changed something.
    pub(super) fn apply(&mut self) -> usize {
        let mut attempt = self.attempt();
        let mut done = attempt.done;
        // Removals may have made room for what did not fit.
        if attempt.removed && attempt.outcomes.iter().any(|(_, outcome)| outcome.is_err()) {
            self.programmed.refused.take_crowded();
            attempt = self.attempt();
            done += attempt.done;
        }
        let services = &self.health_checks.selection.desired.services;
        let evicted_and_older = self.programmed.make_room(&mut self.tables, services);
        attempt.outcomes.extend(evicted_and_older);
        self.programmed.finish();
        self.tables.reclaim();
        if let Err(error) = self.attachments.pins.remove_other_versions() {
            tracing::warn!(error = chain(&error), "former tables stay in memory");
        }
        self.problems.replace(Instant::now(), attempt.outcomes);
        done
    }

    /// Keeps what an earlier agent left in force while the desired state is unknown.
    pub(super) fn hold(&mut self) {
        let mut operations = vec![cluster::in_tables(&self.tables)];
        if !self.is_held_back() {
            operations.extend(hold(&self.installed(), &self.config.desired.interfaces));
        }
        let outcomes = operations.into_iter();
        let mut outcomes: Vec<_> = outcomes.map(|operation| self.execute(operation)).collect();
        outcomes.extend(self.missing_interfaces());
        self.problems.replace(Instant::now(), outcomes);
    }

    /// Returns whether our programs would replace serving ones of an earlier agent although our tables are
    /// still empty.
    pub(super) fn is_held_back(&self) -> bool {
        self.attachments.has_former_tables && self.waits_for_state()
    }

    /// Executes every operation of the plan, whatever the outcome of the others.
    fn attempt(&mut self) -> Attempt {
        let pods = self.totals.own_pods();
        self.pod_devices.follow(pods, &mut self.next_hops);
        let machine = Machine {
            pod_devices: self.pod_devices.devices.clone(),
            ..self.machine.clone()
        };
        let selected = &self.health_checks.selection.desired;
        let services = &selected.services;
        let kept =
            self.departed_pods
                .keep(services, &self.tables, &machine.addresses, Instant::now());
        let desired = Desired {
            services: kept,
            ..selected.clone()
        };
        let unreachable = self.health_checks.monitor.left_out().nodes;
        self.tables.set_unreachable_nodes(&unreachable);
        let mut target = self.services_here.target(&desired, &self.totals, &machine);
        if self.is_whole_edge() {
            // Its program is not loaded. Checks of backends go by the kernel's own way.
            target.egress.clear();
        }
        let nodes = std::mem::take(&mut target.nodes);
        let past = self.tables.nodes_of_past_owners();
        target.nodes = &nodes | &past;
        let (by_nat, edges) = (target.by_nat.clone(), target.l2dsr_edges());
        let mut operations = plan(&self.installed(), &target);
        let services = &self.health_checks.selection.desired.services;
        oldest_first(&mut operations, |key| full_tables::age(services, key));
        self.programmed.wanted = target.services;
        let mut attempt = Attempt::default();
        let mut attaches = false;
        for operation in operations {
            // Thousands of operations take seconds, and the datapath needs a sign of life meanwhile.
            self.show_life();
            // The services are in the tables by now, and the next packet may meet our programs.
            if !attaches && operation.attaches() {
                attaches = true;
                self.attachments.inherit(&mut self.tables);
            }
            let changes = !matches!(operation, Operation::Resolve { .. });
            attempt.removed |= matches!(operation, Operation::Remove(_));
            let (item, outcome) = self.execute(operation);
            attempt.done += usize::from(changes && outcome.is_ok());
            attempt.outcomes.push((item, outcome));
        }
        // Next hops to the nodes of past owners are followed as those of others are.
        let now_past = self.tables.nodes_of_past_owners();
        if now_past != past {
            attempt.outcomes.push(self.execute(Operation::Resolve {
                nodes: &nodes | &now_past,
                by_nat,
                edges,
            }));
        }
        self.attachments.finish_inheritance(&mut self.tables);
        // Only now, when the services at these addresses are in the tables.
        attempt.outcomes.extend(self.announce());
        attempt.outcomes.extend(self.mend());
        attempt.outcomes.extend(self.missing_interfaces());
        attempt
    }

    fn installed(&self) -> Installed {
        let specs = self.tables.specs();
        let services = self.tables.services().map(|(key, _)| *key);
        let mut unknown = BTreeSet::new();
        if services.len() != specs.len() {
            unknown.extend(services.filter(|key| !specs.contains_key(key)));
        }
        Installed {
            settings: self.programmed.settings,
            addresses: self.tables.addresses(),
            trusted_edges: self.tables.trusted_edges(),
            services: specs.clone(),
            unknown,
            interfaces: self.attachments.interfaces_in_force(),
            egress: self.attachments.egress_in_force(),
        }
    }

    fn execute(&mut self, operation: Operation) -> (Item, Result<(), String>) {
        let tables = &mut self.tables;
        match operation {
            Operation::Settings(settings) => {
                let duties = Duties {
                    node: settings.node,
                    nat: settings.nat.is_some(),
                };
                let outcome = in_words(self.attachments.loaded.take_on(duties));
                let outcome = outcome.and_then(|()| in_words(tables.set_settings(settings)));
                if outcome.is_ok() {
                    self.programmed.settings = Some(settings);
                }
                (Item::Table("settings"), outcome)
            }
            Operation::Trust(prefixes) => {
                let outcome = tables.set_trusted_edges(&prefixes);
                (Item::Table("trusted_edges"), in_words(outcome))
            }
            Operation::Addresses(addresses) => {
                let outcome = tables.set_addresses(addresses);
                (Item::Table("vips"), in_words(outcome))
            }
            Operation::Resolve {
                nodes,
                by_nat,
                edges,
            } => {
                let changed = self.next_hops.set_targets(nodes, by_nat, edges);
                let failed = self.problems.of(&Item::NextHops).is_some();
                // Changes by the kernel have events of their own.
                let outcome = if changed || failed {
                    self.next_hops.refresh(tables)
                } else {
                    Ok(())
                };
                (Item::NextHops, in_words(outcome))
            }
            Operation::Put(key, spec) => {
                let services = &self.config.desired.services;
                let outcome = self.programmed.put(tables, services, key, &spec);
                (Item::Service(key), outcome)
            }
            Operation::Remove(key) => {
                let outcome = tables.remove_service(&key);
                if let Ok(true) = outcome {
                    tracing::debug!(service = %key, "service removed");
                }
                (Item::Service(key), in_words(outcome.map(drop)))
            }
            Operation::Attach(name, mode) => {
                let outcome = self.attachments.attach(&name, mode);
                (Item::Interface(name), in_words(outcome))
            }
            Operation::Detach(name) => {
                let outcome = self.attachments.detach(&name);
                (Item::Interface(name), in_words(outcome))
            }
            Operation::AttachEgress(device) => {
                let outcome = self.attachments.attach_egress(&device);
                (Item::Egress(device), in_words(outcome))
            }
            Operation::DetachEgress(device) => {
                let outcome = self.attachments.detach_egress(&device);
                (Item::Egress(device), in_words(outcome))
            }
        }
    }
}

/// The result of executing the plan once.
#[derive(Debug, Default)]
struct Attempt {
    done: usize,
    removed: bool,
    outcomes: Vec<(Item, Result<(), String>)>,
}

/// Converts an error into its text.
pub(super) fn in_words<E: Error + 'static>(outcome: Result<(), E>) -> Result<(), String> {
    outcome.map_err(|error| chain(&error))
}
