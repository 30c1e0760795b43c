//! How the Kubernetes API is followed, and the problems of its objects.

use k8s_openapi::jiff::Timestamp;

use super::Observation;
use crate::api;
use crate::metrics::KubernetesValues;

impl Observation<'_> {
    pub(super) fn kubernetes_status(&self) -> Option<api::Kubernetes> {
        let cluster = self.view.cluster.as_ref()?;
        let watchers = self.inputs.feed.as_ref()?.watchers();
        let now = Timestamp::now().as_second();
        let text = |(kind, reason): (&'static str, String)| format!("{kind}: {reason}");
        Some(api::Kubernetes {
            node_name: watchers.node_name,
            server: watchers.server,
            synced_seconds: cluster.synced.map(|since| since.elapsed().as_secs()),
            last_event_seconds: watchers
                .last_event
                .map(|at| u64::try_from(now - at).unwrap_or(0)),
            missing: watchers.missing,
            objects: watchers
                .objects
                .into_iter()
                .map(|(kind, number)| (kind.to_owned(), number))
                .collect(),
            broken: watchers.watches.broken.into_iter().map(text).collect(),
        })
    }

    /// Lists the problems of objects, one line each.
    pub(super) fn object_problems(&self) -> Vec<String> {
        let (Some(cluster), Some(feed)) = (&self.view.cluster, &self.inputs.feed) else {
            return Vec::new();
        };
        let of_index = cluster.problems.values();
        let of_index = of_index.flat_map(|problems| problems.iter());
        of_index
            .chain(&feed.reports().problems())
            .map(ToString::to_string)
            .collect()
    }

    pub(super) fn kubernetes_values(&self) -> Option<KubernetesValues> {
        let cluster = self.view.cluster.as_ref()?;
        let feed = self.inputs.feed.as_ref()?;
        Some(KubernetesValues {
            watchers: feed.watchers(),
            synced: cluster.synced.is_some(),
            problems: cluster
                .problems
                .values()
                .map(|problems| problems.len())
                .chain([feed.reports().problems().len()])
                .sum(),
            sync: cluster.sync.clone(),
            programming: cluster.programming.clone(),
        })
    }
}
