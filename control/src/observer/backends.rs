//! The backends with their counters.

use std::collections::{BTreeMap, BTreeSet};

use fastpath::tables::{BackendKey, OwnedBackend, ServiceKey};
use xdp_prog::abi::Traffic;

use super::Observation;
use crate::api::{Backend, ServiceFilter};
use crate::desired::BackendSpec;
use crate::health::selection::Member;
use crate::next_hop::{DeviceNames, mac, state};
use crate::target_state::{name_of, service_at};

impl Observation<'_> {
    /// Lists each backend of each installed service that the filter selects.
    pub(super) fn backends(&self, of: &ServiceFilter) -> Result<Vec<Backend>, String> {
        self.go_on()?;
        let view = &self.view;
        let tables = &view.tables;
        let traffic = self.inputs.reader.backend_traffic(tables);
        let health_states = self.health_states();
        let connections = of.connections.then(|| self.connections()).transpose()?;
        let devices = DeviceNames::read();
        let mut rows = Vec::new();
        for (key, service) in tables.services() {
            self.go_on()?;
            let name = name_of(&view.services, key).unwrap_or_else(|| key.to_string());
            if !of.includes(&name, key) {
                continue;
            }
            let slots = self.inputs.reader.slots_by_id(service);
            let installed = tables.specs().get(key);
            let installed = installed.map(|spec| spec.backends.as_slice());
            let (configured_key, configured) = service_at(&view.services, key).unzip();
            let configured_key = configured_key.unwrap_or(*key);
            let left_out: BTreeSet<&BackendKey> = service.left_out().iter().collect();
            let draining = view.draining.get(&configured_key);
            let draining = draining.map_or(&[][..], |draining| draining);
            let configured = configured.map(|service| service.spec.backends.as_slice());
            // Pods that are left out are configured but not installed; backends about to be removed are
            // installed but not configured.
            let backends: BTreeMap<Member, &BackendSpec> = [Some(draining), configured, installed]
                .into_iter()
                .flatten()
                .flatten()
                .map(|backend| (Member::new(&configured_key, service.mode, backend), backend))
                .collect();
            for (member, backend) in backends {
                let next_hop = tables.next_hop(backend.address);
                let own = OwnedBackend {
                    key: member.backend,
                    owner: service.owner,
                };
                let traffic = traffic.get(&own).copied().unwrap_or_default();
                let mut row = Backend {
                    name: name.clone(),
                    service: key.to_string(),
                    backend: backend_text(&member.backend),
                    node: member.backend.address.to_string(),
                    left_out: left_out.contains(&member.backend),
                    draining: draining
                        .iter()
                        .any(|one| (one.address, one.pod) == (backend.address, backend.pod)),
                    weight: backend.weight,
                    slots: tables
                        .backend(&own)
                        .and_then(|backend| slots.get(&backend.id).copied())
                        .unwrap_or(0),
                    table_size: service.run.length(),
                    state: state(next_hop).to_owned(),
                    next_hop: devices.describe(next_hop),
                    mac: mac(next_hop),
                    path_mtu: tables.path_mtu(backend.address),
                    packets: traffic.packets,
                    bytes: traffic.bytes,
                    connections: connections.as_ref().map(|counted| {
                        let pod = member.backend.pod;
                        let flows = pod.and_then(|pod| counted.backends.get(&(*key, pod)));
                        flows.copied().unwrap_or(0)
                    }),
                    ..Backend::default()
                };
                health_states.describe(&view.all_fail, &member, &mut row);
                rows.push(row);
            }
        }
        Ok(rows)
    }

    /// Lists each backend once for every service that has it, with the traffic at all addresses of the service. The
    /// address in the row is one of them: a virtual one if there is one, whose port is the Service's, else a NodePort.
    pub(super) fn each_backend(&self) -> Result<Vec<Backend>, String> {
        self.go_on()?;
        let view = &self.view;
        let traffic = self.inputs.reader.backend_traffic(&view.tables);
        let mut keys: BTreeMap<u32, (bool, &ServiceKey)> = BTreeMap::new();
        for (key, service) in view.tables.services() {
            let configured = service_at(&view.services, key);
            let of_node_port = configured.is_none_or(|(key, _)| key.address.is_unspecified());
            let first = keys.entry(service.owner).or_insert((of_node_port, key));
            *first = (*first).min((of_node_port, key));
        }
        let row = |(backend, traffic): (OwnedBackend, Traffic)| {
            let key = keys.get(&backend.owner).map(|(_, key)| *key);
            let name =
                key.map(|key| name_of(&view.services, key).unwrap_or_else(|| key.to_string()));
            Backend {
                name: name.unwrap_or_default(),
                service: key.map(ServiceKey::to_string).unwrap_or_default(),
                backend: backend.key.to_string(),
                packets: traffic.packets,
                bytes: traffic.bytes,
                ..Backend::default()
            }
        };
        Ok(traffic.into_iter().map(row).collect())
    }
}

/// Returns the address that packets are delivered to: the pod's if there is one, else the node's.
fn backend_text(backend: &BackendKey) -> String {
    backend
        .pod
        .map_or_else(|| backend.address.to_string(), |pod| pod.to_string())
}
