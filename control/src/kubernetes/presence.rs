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
    /// When the watch failed last.
    failed: Option<Instant>,
}

/// The machines of a slice.
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

    /// Takes a slice as it is now.
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

    /// Forgets a slice.
    pub(super) fn delete(&mut self, name: &ObjectName, now: Instant) {
        let before = self.slices.remove(name);
        self.note_gone(before, now);
    }

    /// Forgets all slices but these.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::objects::Endpoint;

    const MINUTE: Duration = Duration::from_secs(60);

    fn slice(name: &str, nodes: &[&str]) -> EndpointSlice {
        EndpointSlice {
            name: ObjectName::new("guideway-system", name),
            endpoints: nodes
                .iter()
                .map(|node| Endpoint {
                    addresses: vec!["10.0.0.1".to_owned()],
                    ready: Some(false),
                    node_name: Some((*node).to_owned()),
                    ..Endpoint::default()
                })
                .collect(),
            ..EndpointSlice::default()
        }
    }

    fn expire(presence: &mut Presence, now: Instant) -> Option<Instant> {
        presence.expire(now);
        presence.expiry()
    }

    fn names(presence: &Presence) -> Vec<String> {
        presence.nodes().into_iter().collect()
    }

    #[test]
    fn machine_stays_known_for_ten_minutes() {
        let start = Instant::now();
        let mut presence = Presence::default();
        presence.apply(&slice("a", &["n1", "n2"]), start);
        assert_eq!(expire(&mut presence, start), None);
        presence.apply(&slice("a", &["n2"]), start + MINUTE);
        assert_eq!(names(&presence), ["n1", "n2"]);
        assert_eq!(
            expire(&mut presence, start + 10 * MINUTE),
            Some(start + 11 * MINUTE)
        );
        assert_eq!(names(&presence), ["n1", "n2"]);
        assert_eq!(expire(&mut presence, start + 11 * MINUTE), None);
        assert_eq!(names(&presence), ["n2"]);
    }

    #[test]
    fn clock_that_leaps_takes_along_only_who_was_gone() {
        let start = Instant::now();
        let mut presence = Presence::default();
        presence.apply(&slice("a", &["n1", "n2"]), start);
        presence.apply(&slice("a", &["n2"]), start);
        let later = start + 1000 * MINUTE;
        assert_eq!(expire(&mut presence, later), None);
        assert_eq!(names(&presence), ["n2"]);
        // The list after that is the one before.
        presence.apply(&slice("a", &["n2"]), later);
        presence.retain(&[slice("a", &[]).name].into(), later);
        assert_eq!(names(&presence), ["n2"]);
    }

    #[test]
    fn machine_that_comes_back_is_not_forgotten() {
        let start = Instant::now();
        let mut presence = Presence::default();
        presence.apply(&slice("a", &["n1"]), start);
        presence.apply(&slice("a", &[]), start);
        presence.apply(&slice("a", &["n1"]), start + MINUTE);
        assert_eq!(expire(&mut presence, start + 20 * MINUTE), None);
        assert_eq!(names(&presence), ["n1"]);
    }

    #[test]
    fn time_runs_from_the_last_presence_in_any_slice() {
        let start = Instant::now();
        let mut presence = Presence::default();
        presence.apply(&slice("a", &["n1"]), start);
        presence.apply(&slice("b", &["n1"]), start);
        presence.delete(&slice("a", &[]).name, start + MINUTE);
        assert_eq!(expire(&mut presence, start + 20 * MINUTE), None);
        presence.delete(&slice("b", &[]).name, start + 20 * MINUTE);
        assert_eq!(
            expire(&mut presence, start + 29 * MINUTE),
            Some(start + 30 * MINUTE)
        );
        assert_eq!(names(&presence), ["n1"]);
    }

    #[test]
    fn machine_without_a_node_is_forgotten_at_once() {
        let start = Instant::now();
        let mut presence = Presence::default();
        presence.apply(&slice("a", &["n1"]), start);
        presence.apply(&slice("a", &[]), start);
        presence.delete_node("n1");
        assert!(names(&presence).is_empty());
        presence.apply(&slice("a", &["n1"]), start);
        presence.apply(&slice("a", &[]), start);
        presence.retain_nodes(|node| node != "n1");
        assert!(names(&presence).is_empty());
    }

    #[test]
    fn machine_that_an_earlier_agent_knew_is_kept_like_one_that_just_went() {
        let start = Instant::now();
        let mut presence = Presence::new("guideway");
        let mut detached = slice("b", &["n3"]);
        let service = (SERVICE_NAME.to_owned(), "guideway-detached".to_owned());
        detached.labels.extend([service]);
        presence.apply(&slice("a", &["n1"]), start);
        presence.apply(&detached, start);
        presence.inherit(["n1", "n2", "n3"].map(str::to_owned).into(), start);
        assert_eq!(names(&presence), ["n1", "n2"]);
        assert_eq!(expire(&mut presence, start), Some(start + 10 * MINUTE));
        expire(&mut presence, start + 10 * MINUTE);
        assert_eq!(names(&presence), ["n1"]);
    }

    #[test]
    fn time_stands_still_while_the_watch_fails() {
        let start = Instant::now();
        let mut presence = Presence::default();
        presence.apply(&slice("a", &["n1", "n2"]), start);
        presence.apply(&slice("a", &["n2"]), start);
        for minute in 2..=5 {
            presence.fail(start + minute * MINUTE);
        }
        presence.apply(&slice("a", &[]), start + 6 * MINUTE);
        // Another time, with nothing in between that was missed.
        presence.fail(start + 9 * MINUTE);
        assert_eq!(
            expire(&mut presence, start + 12 * MINUTE),
            Some(start + 13 * MINUTE)
        );
        assert_eq!(names(&presence), ["n1", "n2"]);
        let next = Some(start + 16 * MINUTE);
        assert_eq!(expire(&mut presence, start + 13 * MINUTE), next);
        assert_eq!(names(&presence), ["n2"]);
    }

    #[test]
    fn nobody_is_forgotten_while_the_watch_may_be_broken() {
        let start = Instant::now();
        let mut presence = Presence::default();
        presence.apply(&slice("a", &["n1"]), start);
        presence.apply(&slice("a", &[]), start);
        let failed = start + 9 * MINUTE;
        presence.fail(failed);
        let end = failed + FAILURE_LASTS;
        assert_eq!(expire(&mut presence, start + 10 * MINUTE), Some(end));
        assert_eq!(names(&presence), ["n1"]);
        assert_eq!(expire(&mut presence, end), None);
        assert!(names(&presence).is_empty());
    }

    #[test]
    fn machine_that_has_detached_is_forgotten_at_once() {
        let start = Instant::now();
        let mut presence = Presence::new("guideway");
        presence.apply(&slice("a", &["n1", "n2"]), start);
        presence.apply(&slice("a", &["n2"]), start);
        assert_eq!(names(&presence), ["n1", "n2"]);
        let mut detached = slice("b", &["n1"]);
        let service = (SERVICE_NAME.to_owned(), "guideway-detached".to_owned());
        detached.labels.extend([service]);
        presence.apply(&detached, start);
        assert_eq!(names(&presence), ["n2"]);
        // Uninstalled: the pods go, and nothing of before comes back.
        presence.delete(&detached.name, start + MINUTE);
        assert_eq!(names(&presence), ["n2"]);
    }

    #[test]
    fn machine_is_detached_while_either_slice_is_late() {
        let start = Instant::now();
        let mut presence = Presence::new("guideway");
        let mut detached = slice("b", &["n1"]);
        let service = (SERVICE_NAME.to_owned(), "guideway-detached".to_owned());
        detached.labels.extend([service]);
        presence.apply(&slice("a", &["n1"]), start);
        presence.apply(&detached, start);
        assert!(names(&presence).is_empty());
        presence.apply(&slice("a", &[]), start);
        assert!(names(&presence).is_empty());
        presence.apply(&slice("a", &["n1"]), start);
        presence.delete(&detached.name, start);
        assert_eq!(names(&presence), ["n1"]);
    }

    #[test]
    fn endpoint_without_a_node_is_an_edge_while_it_is_written() {
        let start = Instant::now();
        let mut presence = Presence::default();
        let mut edges = slice("edges", &["x"]);
        edges.endpoints[0].node_name = None;
        // As a Node's address would be read.
        edges.endpoints[0].addresses = vec!["010.0.0.01".to_owned()];
        presence.apply(&edges, start);
        let edge: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(presence.edges(), [edge].into());
        assert!(names(&presence).is_empty());
        edges.endpoints[0].addresses = vec!["10.0.0.256".to_owned()];
        presence.apply(&edges, start);
        assert!(presence.edges().is_empty());
        let unreadable = ["10.0.0.256".to_owned()].into();
        assert_eq!(
            presence.unreadable(),
            [(edges.name.clone(), unreadable)].into()
        );
        edges.endpoints.clear();
        presence.apply(&edges, start);
        assert!(presence.edges().is_empty() && presence.unreadable().is_empty());
    }
}
