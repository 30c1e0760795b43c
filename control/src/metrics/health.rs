//! Metrics of the checks of backends and nodes.

use std::collections::BTreeMap;
use std::fmt;

use super::Metrics;
use super::encoder::{key_labels, series, service_labels};
use crate::api::Service;
use crate::desired::ServiceKey;
use crate::durations::Durations;

/// Results of the checks of backends and nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HealthValues {
    /// Checked backends.
    pub backends: Vec<CheckedBackend>,
    /// Nodes with a result: the address, and whether the node answers.
    pub nodes: Vec<(String, bool)>,
    /// Number of checks that are not made, by reason.
    pub not_made: [(&'static str, usize); 2],
    /// Durations of checks, by kind.
    pub durations: BTreeMap<&'static str, Durations>,
}

/// A checked backend.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedBackend {
    /// Name of the service.
    pub name: String,
    /// The service.
    pub service: ServiceKey,
    /// The backend.
    pub backend: String,
    /// Whether it passes its checks.
    pub healthy: bool,
}

impl HealthValues {
    pub(super) fn encode(&self, services: &[Service], metrics: &mut Metrics<'_>) -> fmt::Result {
        let healthy = self
            .backends
            .iter()
            .filter(|checked| checked.healthy)
            .count();
        let unhealthy = self.backends.len() - healthy;
        metrics.gauges(
            "checked_backends",
            "Backends whose checks have a result, each once for every service that has it, by state",
            [("healthy", healthy), ("unhealthy", unhealthy)]
                .map(|(state, number)| ([("state", state)], number)),
        )?;
        let backends = series(&self.backends, |checked| !checked.healthy);
        metrics.gauges(
            "backend_healthy",
            "1 if the backend passes its service's checks, 0 if it fails them; of more than 5000 those that fail come first",
            backends.map(|checked| {
                let [service, namespace, name, address, port, protocol] =
                    key_labels(&checked.name, Some(checked.service));
                let backend = ("backend", checked.backend.clone());
                let labels = [service, namespace, name, address, port, protocol, backend];
                (labels, u64::from(checked.healthy))
            }),
        )?;
        metrics.gauges(
            "service_all_backends_fail",
            "1 if no backend of the service should serve, so that all do; of more than 5000 services those with a 1 come first",
            series(services, |service| service.all_fail)
                .map(|service| (service_labels(service), u64::from(service.all_fail))),
        )?;
        let nodes = self.nodes.iter();
        metrics.gauges(
            "node_reachable",
            "1 if the node answers echoes, 0 if it missed three in a row",
            nodes.map(|(node, answers)| ([("node", node.as_str())], u64::from(*answers))),
        )?;
        metrics.gauges(
            "health_checks_not_made",
            "Checks of backends and nodes that are asked for and not made, by reason",
            (self.not_made).map(|(reason, checks)| ([("reason", reason)], checks)),
        )?;
        let durations = self.durations.iter();
        metrics.histograms(
            "health_check_duration_seconds",
            "How long checks took, failed ones included, by type",
            durations.map(|(kind, taken)| ([("type", *kind)], taken)),
        )
    }
}
