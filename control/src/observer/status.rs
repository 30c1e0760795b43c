//! The status of the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Observation;
use crate::agent::reasons;
use crate::api::{Announced, Status, Table};
use crate::next_hop::state;
use crate::peers::PeerStates;

impl Observation<'_> {
    pub(super) fn status(&self) -> Status {
        let view = &self.view;
        let mut next_hops: BTreeMap<String, u64> = ["resolved", "local", "unresolved"]
            .map(|state| (state.to_owned(), 0))
            .into();
        for node in self.nodes_in_use() {
            *next_hops
                .entry(state(view.tables.next_hop(node)).to_owned())
                .or_default() += 1;
        }
        let roles = view.roles.iter();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.inputs.started.elapsed().as_secs(),
            roles: roles.map(|role| (*role).to_owned()).collect(),
            config: view.config.clone(),
            hash_seed: view.hash_seed.clone(),
            kubernetes: self.kubernetes_status(),
            interfaces: view.interfaces.clone(),
            egress: view.egress.clone(),
            announced: Announced {
                interfaces: view.announce_links.clone(),
                addresses: view.announced.iter().copied().collect(),
                drained: view.is_drained,
            },
            tables: self.fill(),
            past_owners_dropped: self.past_owners_dropped(),
            next_hops,
            services: view.tables.services().len(),
            health: self.health_status(),
            mend: self.mend_status(),
            peers: self.inputs.peers.as_ref().map(PeerStates::status),
            problems: view
                .problems
                .texts()
                .chain(reasons(&view.not_made))
                .chain(self.object_problems())
                .collect(),
            unapplied: view.problems.len(),
            warnings: view.warnings.clone(),
            untrusted: self.last_untrusted(),
        }
    }

    pub(super) fn nodes_in_use(&self) -> BTreeSet<IpAddr> {
        let backends = self.view.tables.backends();
        backends.map(|(backend, _)| backend.key.address).collect()
    }

    fn past_owners_dropped(&self) -> BTreeMap<String, u64> {
        let dropped = self.view.tables.dropped_owners();
        let by_cause = [
            ("list_full", dropped.list_full),
            ("table_full", dropped.table_full),
        ];
        by_cause
            .map(|(cause, count)| (cause.to_owned(), count))
            .into()
    }

    fn fill(&self) -> Vec<Table> {
        let tables = &self.view.tables;
        let fill = tables.fill();
        let usage = |name: &str, usage: fastpath::tables::Usage| Table {
            name: name.to_owned(),
            used: usage.used as u64,
            capacity: usage.capacity as u64,
            largest_free_run: None,
        };
        let live = tables.live_fill().iter();
        let live = live.map(|(name, live)| usage(&name.to_lowercase(), *live));
        let own = [
            Table {
                name: "lut_slots".to_owned(),
                used: (fill.arena.slots - fill.arena.free).into(),
                capacity: fill.arena.slots.into(),
                largest_free_run: Some(fill.arena.largest_free.into()),
            },
            usage("services", fill.services),
            usage("service_overflow", fill.service_overflow),
            usage("past_owners", fill.past_owners),
            usage("backends", fill.backends),
            usage("next_hops", fill.next_hops),
            usage("pods", fill.pods),
            usage("source_ranges", fill.source_ranges),
            usage("nat_flows", tables.nat_fill()),
        ];
        own.into_iter().chain(live).collect()
    }
}
