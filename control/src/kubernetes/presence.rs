//! Which machines run Guideway, as the EndpointSlices of its headless Service show them.
//!
//! A pod of ours that is there, ready or not, makes its Node one that understands what edges send.
//! It stays one for a while after the pod has gone, so that rolling the agents changes nobody's mode:
//! programs and tables stay in place without an agent. An endpoint without a Node is an edge outside
//! the cluster, written by the operator, and counts for exactly as long as it is written.
//!
//! What an earlier agent sent to counts as gone just now: agents that are rolled begin anew one after the
//! other, and to each of them the pods of the others may be missing at that moment. The time stands still
//! while the watch is broken: a machine may have come back unseen.
//!
//! A pod that has detached its node is shown by another Service, and there is nothing to wait for: what
//! edges send would find no program.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::desired::unusable;
use crate::index;
use crate::index::objects::{EndpointSlice, ObjectName, SERVICE_NAME};

/// How long a machine is known after its last presence.
const KEPT: Duration = Duration::from_secs(600);
/// How long the watch may have been broken after its last failure: one that is broken fails again after the longest
/// pause, connecting, and being cut off.
const FAILURE_LASTS: Duration = Duration::from_secs(135);

/// What the slices show, and for how long a machine is still known that they no longer show.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The Service that shows the nodes that have detached.
    detached: String,
    slices: BTreeMap<ObjectName, OfSlice>,
    /// When machines went that no slice shows.
    gone: BTreeMap<String, Instant>,
    failed: Option<Instant>,
}

#[derive(Debug, Default)]
struct OfSlice {
    nodes: BTreeSet<String>,
    detached: BTreeSet<String>,
    edges: BTreeSet<IpAddr>,
    /// What stands in the place of edges' addresses and is none.
    unreadable: BTreeSet<String>,
}

/// Reads the address of an edge outside the cluster.
pub(crate) fn edge(text: &str) -> Option<IpAddr> {
    index::address(text).filter(|edge| unusable(*edge).is_none())
}

/// Names the Service that shows the nodes that have detached, beside the one that shows who runs Guideway.
pub(super) fn detached(service: &str) -> String {
    format!("{service}-detached")
}

impl Presence {
    /// Begins with nothing; `service` shows who runs Guideway.
    pub(super) fn new(service: &str) -> Self {
        Self {
            detached: detached(service),
            ..Self::default()
        }
    }

    pub(super) fn apply(&mut self, slice: &EndpointSlice, now: Instant) {
        let mut shown = OfSlice::default();
        let is_detached = slice.labels.get(SERVICE_NAME) == Some(&self.detached);
        for endpoint in &slice.endpoints {
            match &endpoint.node_name {
                Some(node) if is_detached => drop(shown.detached.insert(node.clone())),
                Some(node) => drop(shown.nodes.insert(node.clone())),
                None => {
                    let text = endpoint.addresses.first().map_or("", String::as_str);
                    match edge(text) {
                        Some(edge) => drop(shown.edges.insert(edge)),
                        None => drop(shown.unreadable.insert(text.to_owned())),
                    }
                }
            }
        }
        let before = self.slices.insert(slice.name.clone(), shown);
        self.note_gone(before, now);
    }

    pub(super) fn delete(&mut self, name: &ObjectName, now: Instant) {
        let before = self.slices.remove(name);
        self.note_gone(before, now);
    }

    pub(super) fn retain(&mut self, listed: &BTreeSet<ObjectName>, now: Instant) {
        let gone = self.slices.keys().filter(|name| !listed.contains(name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.delete(&name, now);
        }
    }

    fn note_gone(&mut self, before: Option<OfSlice>, now: Instant) {
        let was = before.into_iter().flat_map(|before| before.nodes);
        self.gone.extend(was.map(|node| (node, now)));
        let shown = shown(&self.slices);
        let detached = all(&self.slices, |shown| &shown.detached);
        self.gone
            .retain(|node, _| !shown.contains(node.as_str()) && !detached.contains(node.as_str()));
    }

    /// Forgets a machine whose Node is gone.
    pub(super) fn delete_node(&mut self, node: &str) {
        self.gone.remove(node);
    }

    /// Forgets the machines whose Node does not exist.
    pub(super) fn retain_nodes(&mut self, exists: impl Fn(&str) -> bool) {
        self.gone.retain(|node, _| exists(node));
    }

    /// Takes machines that no slice shows for gone just now.
    pub(super) fn inherit(&mut self, nodes: Vec<String>, now: Instant) {
        let detached = all(&self.slices, |shown| &shown.detached);
        let shown = shown(&self.slices);
        let missing = nodes.into_iter().filter(|node| {
            let node = node.as_str();
            !shown.contains(node) && !detached.contains(node)
        });
        let missing: Vec<String> = missing.collect();
        self.gone
            .extend(missing.into_iter().map(|node| (node, now)));
    }

    /// Notes that the watch has failed; the time from one failure to the next counts for nobody.
    pub(super) fn fail(&mut self, now: Instant) {
        let before = self.failed.replace(now);
        if let Some(before) = before.filter(|before| now < *before + FAILURE_LASTS) {
            for since in self.gone.values_mut() {
                *since += now - before.max(*since);
            }
        }
    }

    /// Forgets machines that are gone for too long; tells whether there were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let failed = self.failed;
        let before = self.gone.len();
        self.gone.retain(|_, since| now < end(*since, failed));
        self.gone.len() != before
    }

    /// Returns when the next machine is gone for too long.
    pub(super) fn expiry(&self) -> Option<Instant> {
        let ends = self.gone.values().map(|since| end(*since, self.failed));
        ends.min()
    }

    /// Lists the names of the Nodes that run Guideway.
    pub(super) fn nodes(&self) -> BTreeSet<String> {
        let shown = shown(&self.slices).into_iter().map(str::to_owned);
        shown.chain(self.gone.keys().cloned()).collect()
    }

    /// Lists the addresses of the edges outside the cluster.
    pub(super) fn edges(&self) -> BTreeSet<IpAddr> {
        let edges = self.slices.values().flat_map(|shown| &shown.edges);
        edges.copied().collect()
    }

    /// Lists what stands in the place of their addresses and is none.
    pub(super) fn unreadable(&self) -> BTreeMap<ObjectName, BTreeSet<String>> {
        let slices = self.slices.iter();
        let slices = slices.filter(|(_, shown)| !shown.unreadable.is_empty());
        slices
            .map(|(name, shown)| (name.clone(), shown.unreadable.clone()))
            .collect()
    }
}

/// Returns when a machine is gone for too long.
fn end(since: Instant, failed: Option<Instant>) -> Instant {
    let end = since + KEPT;
    failed.map_or(end, |failed| end.max(failed + FAILURE_LASTS))
}

/// The nodes that are present and have not detached: where one pod follows the other, either slice may be late,
/// and backends behind a node that is taken for one without Guideway are reached all the same.
fn shown(slices: &BTreeMap<ObjectName, OfSlice>) -> BTreeSet<&str> {
    let detached = all(slices, |shown| &shown.detached);
    let mut nodes = all(slices, |shown| &shown.nodes);
    nodes.retain(|node| !detached.contains(node));
    nodes
}

fn all(
    slices: &BTreeMap<ObjectName, OfSlice>,
    nodes: fn(&OfSlice) -> &BTreeSet<String>,
) -> BTreeSet<&str> {
    let nodes = slices.values().flat_map(nodes);
    nodes.map(String::as_str).collect()
}
