//! Tracks which machines run Guideway, from the EndpointSlices of its headless Services.
//!
//! A pod of ours, ready or not, shows that its Node understands what edges send. The Node counts for some time
//! after the pod has gone, because programs and tables stay in place without an agent: so rolling the agents
//! changes no forwarding mode. An endpoint without a Node is an edge outside the cluster. The operator writes
//! it, and it counts exactly as long as it is listed.
//!
//! Nodes that an earlier agent sent packets to count as gone just now: while agents are rolled one by one, a
//! starting agent may find the pods of others missing. The time stops while the watch is broken, because a
//! machine may have come back unseen.
//!
//! A pod that has detached its node is listed by a second Service. Such a Node is forgotten at once: packets
//! from edges would find no program there.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::desired::unusable;
use crate::index;
use crate::index::objects::{EndpointSlice, ObjectName, SERVICE_NAME};

/// How long a machine counts after its pod has gone.
const ABSENCE_TIMEOUT: Duration = Duration::from_secs(600);
/// Longest time between two failures of a broken watch: the longest pause, connecting, and being cut off.
const FAILURE_INTERVAL: Duration = Duration::from_secs(135);

/// The listed machines, and those that still count although they are no longer listed.
#[derive(Debug, Default)]
pub(super) struct MachineTracker {
    /// Name of the Service that lists detached nodes.
    detached: String,
    slices: BTreeMap<ObjectName, SliceMachines>,
    /// When each machine that is no longer listed went.
    gone: BTreeMap<String, Instant>,
    failed: Option<Instant>,
}

#[derive(Debug, Default)]
struct SliceMachines {
    nodes: BTreeSet<String>,
    detached: BTreeSet<String>,
    edges: BTreeSet<IpAddr>,
    /// Texts that should be addresses of edges but are not.
    unreadable: BTreeSet<String>,
}

/// Reads the address of an edge outside the cluster. Returns `None` if packets cannot come from it.
pub(crate) fn edge(text: &str) -> Option<IpAddr> {
    index::address(text).filter(|edge| unusable(*edge).is_none())
}

/// Returns the name of the Service that lists detached nodes, beside `service`, which lists those that run Guideway.
pub(super) fn detached(service: &str) -> String {
    format!("{service}-detached")
}

impl MachineTracker {
    /// Creates a tracker of no machines. `service` lists the machines that run Guideway.
    pub(super) fn new(service: &str) -> Self {
        Self {
            detached: detached(service),
            ..Self::default()
        }
    }

    pub(super) fn apply(&mut self, slice: &EndpointSlice, now: Instant) {
        let mut listed = SliceMachines::default();
        let is_detached = slice.labels.get(SERVICE_NAME) == Some(&self.detached);
        for endpoint in &slice.endpoints {
            match &endpoint.node_name {
                Some(node) if is_detached => drop(listed.detached.insert(node.clone())),
                Some(node) => drop(listed.nodes.insert(node.clone())),
                None => {
                    let text = endpoint.addresses.first().map_or("", String::as_str);
                    match edge(text) {
                        Some(edge) => drop(listed.edges.insert(edge)),
                        None => drop(listed.unreadable.insert(text.to_owned())),
                    }
                }
            }
        }
        let before = self.slices.insert(slice.name.clone(), listed);
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

    fn note_gone(&mut self, before: Option<SliceMachines>, now: Instant) {
        let was = before.into_iter().flat_map(|before| before.nodes);
        self.gone.extend(was.map(|node| (node, now)));
        let listed = listed_nodes(&self.slices);
        let detached = all(&self.slices, |listed| &listed.detached);
        self.gone
            .retain(|node, _| !listed.contains(node.as_str()) && !detached.contains(node.as_str()));
    }

    /// Forgets a machine whose Node was deleted.
    pub(super) fn delete_node(&mut self, node: &str) {
        self.gone.remove(node);
    }

    /// Forgets the machines whose Node does not exist.
    pub(super) fn retain_nodes(&mut self, exists: impl Fn(&str) -> bool) {
        self.gone.retain(|node, _| exists(node));
    }

    /// Treats Nodes that no slice lists as gone just now.
    pub(super) fn inherit(&mut self, nodes: Vec<String>, now: Instant) {
        let detached = all(&self.slices, |listed| &listed.detached);
        let listed = listed_nodes(&self.slices);
        let missing = nodes.into_iter().filter(|node| {
            let node = node.as_str();
            !listed.contains(node) && !detached.contains(node)
        });
        let missing: Vec<String> = missing.collect();
        self.gone
            .extend(missing.into_iter().map(|node| (node, now)));
    }

    /// Records a failure of the watch. The time between two failures does not count as absence.
    pub(super) fn fail(&mut self, now: Instant) {
        let before = self.failed.replace(now);
        if let Some(before) = before.filter(|before| now < *before + FAILURE_INTERVAL) {
            for since in self.gone.values_mut() {
                *since += now - before.max(*since);
            }
        }
    }

    /// Forgets machines that have been gone for too long. Returns whether there were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let failed = self.failed;
        let before = self.gone.len();
        self.gone.retain(|_, since| now < end(*since, failed));
        self.gone.len() != before
    }

    /// Returns when the next machine will have been gone for too long.
    pub(super) fn expiry(&self) -> Option<Instant> {
        let ends = self.gone.values().map(|since| end(*since, self.failed));
        ends.min()
    }

    /// Lists the names of the Nodes that run Guideway.
    pub(super) fn nodes(&self) -> BTreeSet<String> {
        let listed = listed_nodes(&self.slices).into_iter().map(str::to_owned);
        listed.chain(self.gone.keys().cloned()).collect()
    }

    /// Lists the addresses of the edges outside the cluster.
    pub(super) fn edges(&self) -> BTreeSet<IpAddr> {
        let edges = self.slices.values().flat_map(|listed| &listed.edges);
        edges.copied().collect()
    }

    /// Lists, by slice, the texts that should be addresses of edges but are not.
    pub(super) fn unreadable(&self) -> BTreeMap<ObjectName, BTreeSet<String>> {
        let slices = self.slices.iter();
        let slices = slices.filter(|(_, listed)| !listed.unreadable.is_empty());
        slices
            .map(|(name, listed)| (name.clone(), listed.unreadable.clone()))
            .collect()
    }
}

/// Returns when a machine that went at `since` is forgotten.
fn end(since: Instant, failed: Option<Instant>) -> Instant {
    let end = since + ABSENCE_TIMEOUT;
    failed.map_or(end, |failed| end.max(failed + FAILURE_INTERVAL))
}

/// Returns the Nodes that are listed and have not detached. When one pod follows another, either slice may be
/// late. A Node that is wrongly taken for one without Guideway does no harm: its backends are still reached.
fn listed_nodes(slices: &BTreeMap<ObjectName, SliceMachines>) -> BTreeSet<&str> {
    let detached = all(slices, |listed| &listed.detached);
    let mut nodes = all(slices, |listed| &listed.nodes);
    nodes.retain(|node| !detached.contains(node));
    nodes
}

fn all(
    slices: &BTreeMap<ObjectName, SliceMachines>,
    nodes: fn(&SliceMachines) -> &BTreeSet<String>,
) -> BTreeSet<&str> {
    let nodes = slices.values().flat_map(nodes);
    nodes.map(String::as_str).collect()
}
