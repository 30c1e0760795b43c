//! The health of backends and nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use imbl::OrdSet;

use super::Observation;
use crate::api::{Backend, Health};
use crate::desired::ServiceKey;
use crate::health::monitor::HealthState;
use crate::health::selection::Member;
use crate::metrics::{CheckedBackend, HealthValues};
use crate::target_state::{name_of, title};

/// The health of all backends and nodes at one time.
pub(super) struct HealthStates {
    backends: BTreeMap<Member, HealthState>,
    nodes: BTreeMap<IpAddr, HealthState>,
}

impl Observation<'_> {
    pub(super) fn health_states(&self) -> &HealthStates {
        self.health_states.get_or_init(|| HealthStates {
            backends: self.inputs.health.backends(),
            nodes: self.inputs.health.nodes(),
        })
    }

    pub(super) fn health_status(&self) -> Health {
        let HealthStates { backends, nodes } = self.health_states();
        let failing = |state: &&HealthState| !state.healthy;
        let view = &self.view;
        let all_fail = view.all_fail.iter();
        Health {
            unhealthy: backends.values().filter(failing).count(),
            backends: backends.len(),
            unreachable: nodes.values().filter(failing).count(),
            unknown: nodes.values().filter(|node| !node.checked).count(),
            nodes: nodes.len(),
            unchecked: view.not_made.sum(),
            all_fail: all_fail.map(|key| title(&view.services, key)).collect(),
        }
    }

    /// Returns the values for the metrics.
    pub(super) fn health_values(&self) -> HealthValues {
        let HealthStates { backends, nodes } = self.health_states();
        let view = &self.view;
        HealthValues {
            backends: backends
                .iter()
                .map(|(member, state)| CheckedBackend {
                    name: name_of(&view.services, &member.service).unwrap_or_default(),
                    service: member.service,
                    backend: member.backend.to_string(),
                    healthy: state.healthy,
                })
                .collect(),
            nodes: nodes
                .iter()
                .filter(|(_, state)| state.checked)
                .map(|(node, state)| (node.to_string(), state.healthy))
                .collect(),
            not_made: [
                ("no_way", view.not_made.no_way),
                ("too_many", view.not_made.too_many),
            ],
            durations: self.inputs.health.durations(),
        }
    }
}

impl HealthStates {
    /// Adds the health of a backend to its row.
    pub(super) fn describe(
        &self,
        all_fail: &OrdSet<ServiceKey>,
        member: &Member,
        row: &mut Backend,
    ) {
        let own = self.backends.get(member);
        let node = self.nodes.get(&member.backend.address);
        // The node comes first: if it is unreachable, the backend's own check says nothing new.
        let (health, state) = match (node, own) {
            (Some(node), _) if !node.healthy => ("unreachable", node),
            (_, Some(own)) if !own.healthy => ("unhealthy", own),
            (_, Some(own)) if !own.checked => ("new", own),
            (_, Some(own)) => ("healthy", own),
            (Some(node), None) if !node.checked => ("new", node),
            (Some(node), None) => ("healthy", node),
            (None, None) => return,
        };
        row.health = Some(health.to_owned());
        row.since_seconds = Some(state.since.as_secs());
        row.reason.clone_from(&state.note);
        row.all_fail = !state.healthy && all_fail.contains(&member.service);
    }
}
