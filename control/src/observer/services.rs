//! The services with their counters.

use std::collections::BTreeSet;

use fastpath::tables::{InstalledService, ServiceKey};

use super::Observation;
use crate::agent::Item;
use crate::api::{Service, ServiceFilter};
use crate::target_state::service_at;

impl Observation<'_> {
    /// Lists the selected services that are configured or still installed.
    pub(super) fn services(&self, of: &ServiceFilter) -> Result<Vec<Service>, String> {
        self.go_on()?;
        let view = &self.view;
        let traffic = self.inputs.reader.service_traffic(&view.tables);
        let installed = view.tables.services().map(|(key, _)| key);
        let keys: BTreeSet<&ServiceKey> = view.wanted.keys().chain(installed).collect();
        let connections = of.connections.then(|| self.connections()).transpose()?;
        let row = |key: &ServiceKey| {
            self.go_on()?;
            let (configured, wanted) = service_at(&view.services, key).unzip();
            let name = wanted.map_or_else(|| key.to_string(), |service| service.name.clone());
            if !of.includes(&name, key) {
                return Ok(None);
            }
            let present = view.tables.service(key);
            let traffic = traffic.get(key).copied().unwrap_or_default();
            let mode = present
                .map(|service| service.mode)
                .or(wanted.map(|service| service.spec.mode));
            Ok(Some(Service {
                name,
                service: key.to_string(),
                node_port: configured.is_some_and(|key| key.address.is_unspecified()),
                mode: mode.map(|mode| mode.to_string()).unwrap_or_default(),
                traffic_policy: wanted
                    .map(|service| service.spec.traffic_policy.to_string())
                    .unwrap_or_default(),
                session_affinity: wanted.is_some_and(|service| service.spec.affinity.is_some()),
                source_ranges: wanted.map_or(0, |service| service.spec.source_ranges.len()),
                local_pods: present.map_or(0, InstalledService::local_pods),
                left_out: present.map_or(0, |service| service.left_out().len()),
                backends: wanted.map_or(0, |service| service.spec.sharing().count()),
                slots: present.map_or(0, |service| service.run.length()),
                past_owners_dropped: present.map_or(0, |service| service.dropped_owners().all()),
                owners: view.owners.fingerprint(key),
                packets: traffic.packets,
                bytes: traffic.bytes,
                connections: connections
                    .as_ref()
                    .map(|counted| counted.services.get(key).copied().unwrap_or(0)),
                rates: None,
                problem: view.problems.of(&Item::Service(*key)).cloned(),
                all_fail: view.all_fail.contains(&configured.unwrap_or(*key)),
            }))
        };
        keys.into_iter()
            .map(row)
            .filter_map(Result::transpose)
            .collect()
    }
}
