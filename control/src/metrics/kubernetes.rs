//! Metrics of following the Kubernetes API.

use std::fmt;

use super::Metrics;
use crate::durations::Durations;
use crate::kubernetes::WatcherStatus;

/// Values about following the Kubernetes API.
#[derive(Clone, Debug, PartialEq)]
pub struct KubernetesValues {
    /// Status of the watchers.
    pub watchers: WatcherStatus,
    /// Whether the first state is in the tables.
    pub synced: bool,
    /// Number of problems of objects.
    pub problems: usize,
    /// Times from a change's arrival to the tables.
    pub sync: Durations,
    /// Times from a change in the cluster to the tables.
    pub programming: Durations,
}

impl KubernetesValues {
    pub(super) fn encode(&self, metrics: &mut Metrics<'_>) -> fmt::Result {
        let watchers = &self.watchers;
        metrics.gauge(
            "kubernetes_synced",
            "1 once all objects were listed and their state was taken over, 0 before",
            u64::from(self.synced),
        )?;
        let objects = watchers.objects.iter();
        metrics.gauges(
            "kubernetes_objects",
            "Objects that are known, by kind; machines that run Guideway under presence",
            objects.map(|(kind, number)| ([("kind", *kind)], *number)),
        )?;
        let events = watchers.watches.events.iter();
        metrics.counters(
            "kubernetes_events",
            "Events from the API server, those of lists included, by kind",
            events.map(|(kind, number)| ([("kind", *kind)], *number)),
        )?;
        let errors = watchers.watches.errors.iter();
        metrics.counters(
            "kubernetes_watch_errors",
            "Lists and watches that failed, by kind",
            errors.map(|(kind, number)| ([("kind", *kind)], *number)),
        )?;
        let failed = watchers.failed_requests.iter();
        metrics.counters(
            "kubernetes_request_errors",
            "Other requests that failed, by what they are for",
            failed.map(|(request, number)| ([("request", *request)], *number)),
        )?;
        let kinds = watchers.watches.errors.keys();
        metrics.gauges(
            "kubernetes_watch_broken",
            "1 while the last list or watch of the kind failed",
            kinds.map(|kind| {
                let is_broken = watchers.watches.broken.contains_key(kind);
                ([("kind", *kind)], u64::from(is_broken))
            }),
        )?;
        metrics.gauge(
            "kubernetes_last_event_timestamp_seconds",
            "When the last event arrived, since 1970; 0 before the first one",
            watchers.last_event.unwrap_or(0),
        )?;
        metrics.gauge(
            "kubernetes_pending_changes",
            "Services that an event touched and that are not computed anew yet",
            watchers.pending,
        )?;
        metrics.gauge(
            "kubernetes_problems",
            "Rules that objects break; `guideway status` names them",
            self.problems,
        )?;
        metrics.histogram(
            "kubernetes_sync_duration_seconds",
            "From the arrival of the first change of a batch until the tables have it",
            &self.sync,
        )?;
        metrics.histogram(
            "network_programming_duration_seconds",
            "From a change of a Service's pods until the tables have it; kube-proxy has the same buckets",
            &self.programming,
        )
    }
}
