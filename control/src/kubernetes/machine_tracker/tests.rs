//! Slices as they come and go, and who counts as present then.

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

fn expire(tracker: &mut MachineTracker, now: Instant) -> Option<Instant> {
    tracker.expire(now);
    tracker.expiry()
}

fn names(tracker: &MachineTracker) -> Vec<String> {
    tracker.nodes().into_iter().collect()
}

#[test]
fn machine_stays_known_for_ten_minutes() {
    let start = Instant::now();
    let mut tracker = MachineTracker::default();
    tracker.apply(&slice("a", &["n1", "n2"]), start);
    assert_eq!(expire(&mut tracker, start), None);
    tracker.apply(&slice("a", &["n2"]), start + MINUTE);
    assert_eq!(names(&tracker), ["n1", "n2"]);
    assert_eq!(
        expire(&mut tracker, start + 10 * MINUTE),
        Some(start + 11 * MINUTE)
    );
    assert_eq!(names(&tracker), ["n1", "n2"]);
    assert_eq!(expire(&mut tracker, start + 11 * MINUTE), None);
    assert_eq!(names(&tracker), ["n2"]);
}

#[test]
fn clock_that_leaps_takes_along_only_who_was_gone() {
    let start = Instant::now();
    let mut tracker = MachineTracker::default();
    tracker.apply(&slice("a", &["n1", "n2"]), start);
    tracker.apply(&slice("a", &["n2"]), start);
    let later = start + 1000 * MINUTE;
    assert_eq!(expire(&mut tracker, later), None);
    assert_eq!(names(&tracker), ["n2"]);
    // The list after that is the one before.
    tracker.apply(&slice("a", &["n2"]), later);
    tracker.retain(&[slice("a", &[]).name].into(), later);
    assert_eq!(names(&tracker), ["n2"]);
}

#[test]
fn machine_that_comes_back_is_not_forgotten() {
    let start = Instant::now();
    let mut tracker = MachineTracker::default();
    tracker.apply(&slice("a", &["n1"]), start);
    tracker.apply(&slice("a", &[]), start);
    tracker.apply(&slice("a", &["n1"]), start + MINUTE);
    assert_eq!(expire(&mut tracker, start + 20 * MINUTE), None);
    assert_eq!(names(&tracker), ["n1"]);
}

#[test]
fn time_runs_from_the_last_presence_in_any_slice() {
    let start = Instant::now();
    let mut tracker = MachineTracker::default();
    tracker.apply(&slice("a", &["n1"]), start);
    tracker.apply(&slice("b", &["n1"]), start);
    tracker.delete(&slice("a", &[]).name, start + MINUTE);
    assert_eq!(expire(&mut tracker, start + 20 * MINUTE), None);
    tracker.delete(&slice("b", &[]).name, start + 20 * MINUTE);
    assert_eq!(
        expire(&mut tracker, start + 29 * MINUTE),
        Some(start + 30 * MINUTE)
    );
    assert_eq!(names(&tracker), ["n1"]);
}

#[test]
fn machine_without_a_node_is_forgotten_at_once() {
    let start = Instant::now();
    let mut tracker = MachineTracker::default();
    tracker.apply(&slice("a", &["n1"]), start);
    tracker.apply(&slice("a", &[]), start);
    tracker.delete_node("n1");
    assert!(names(&tracker).is_empty());
    tracker.apply(&slice("a", &["n1"]), start);
    tracker.apply(&slice("a", &[]), start);
    tracker.retain_nodes(|node| node != "n1");
    assert!(names(&tracker).is_empty());
}

#[test]
fn machine_that_an_earlier_agent_knew_is_kept_like_one_that_just_went() {
    let start = Instant::now();
    let mut tracker = MachineTracker::new("guideway");
    let mut detached = slice("b", &["n3"]);
    let service = (SERVICE_NAME.to_owned(), "guideway-detached".to_owned());
    detached.labels.extend([service]);
    tracker.apply(&slice("a", &["n1"]), start);
    tracker.apply(&detached, start);
    tracker.inherit(["n1", "n2", "n3"].map(str::to_owned).into(), start);
    assert_eq!(names(&tracker), ["n1", "n2"]);
    assert_eq!(expire(&mut tracker, start), Some(start + 10 * MINUTE));
    expire(&mut tracker, start + 10 * MINUTE);
    assert_eq!(names(&tracker), ["n1"]);
}

#[test]
fn time_stands_still_while_the_watch_fails() {
    let start = Instant::now();
    let mut tracker = MachineTracker::default();
    tracker.apply(&slice("a", &["n1", "n2"]), start);
    tracker.apply(&slice("a", &["n2"]), start);
    for minute in 2..=5 {
        tracker.fail(start + minute * MINUTE);
    }
    tracker.apply(&slice("a", &[]), start + 6 * MINUTE);
    // Another time, with nothing in between that was missed.
    tracker.fail(start + 9 * MINUTE);
    assert_eq!(
        expire(&mut tracker, start + 12 * MINUTE),
        Some(start + 13 * MINUTE)
    );
    assert_eq!(names(&tracker), ["n1", "n2"]);
    let next = Some(start + 16 * MINUTE);
    assert_eq!(expire(&mut tracker, start + 13 * MINUTE), next);
    assert_eq!(names(&tracker), ["n2"]);
}

#[test]
fn nobody_is_forgotten_while_the_watch_may_be_broken() {
    let start = Instant::now();
    let mut tracker = MachineTracker::default();
    tracker.apply(&slice("a", &["n1"]), start);
    tracker.apply(&slice("a", &[]), start);
    let failed = start + 9 * MINUTE;
    tracker.fail(failed);
    let end = failed + FAILURE_INTERVAL;
    assert_eq!(expire(&mut tracker, start + 10 * MINUTE), Some(end));
    assert_eq!(names(&tracker), ["n1"]);
    assert_eq!(expire(&mut tracker, end), None);
    assert!(names(&tracker).is_empty());
}

#[test]
fn machine_that_has_detached_is_forgotten_at_once() {
    let start = Instant::now();
    let mut tracker = MachineTracker::new("guideway");
    tracker.apply(&slice("a", &["n1", "n2"]), start);
    tracker.apply(&slice("a", &["n2"]), start);
    assert_eq!(names(&tracker), ["n1", "n2"]);
    let mut detached = slice("b", &["n1"]);
    let service = (SERVICE_NAME.to_owned(), "guideway-detached".to_owned());
    detached.labels.extend([service]);
    tracker.apply(&detached, start);
    assert_eq!(names(&tracker), ["n2"]);
    // Uninstalled: the pods go, and nothing of before comes back.
    tracker.delete(&detached.name, start + MINUTE);
    assert_eq!(names(&tracker), ["n2"]);
}

#[test]
fn machine_is_detached_while_either_slice_is_late() {
    let start = Instant::now();
    let mut tracker = MachineTracker::new("guideway");
    let mut detached = slice("b", &["n1"]);
    let service = (SERVICE_NAME.to_owned(), "guideway-detached".to_owned());
    detached.labels.extend([service]);
    tracker.apply(&slice("a", &["n1"]), start);
    tracker.apply(&detached, start);
    assert!(names(&tracker).is_empty());
    tracker.apply(&slice("a", &[]), start);
    assert!(names(&tracker).is_empty());
    tracker.apply(&slice("a", &["n1"]), start);
    tracker.delete(&detached.name, start);
    assert_eq!(names(&tracker), ["n1"]);
}

#[test]
fn endpoint_without_a_node_is_an_edge_while_it_is_written() {
    let start = Instant::now();
    let mut tracker = MachineTracker::default();
    let mut edges = slice("edges", &["x"]);
    edges.endpoints[0].node_name = None;
    // As a Node's address would be read.
    edges.endpoints[0].addresses = vec!["010.0.0.01".to_owned()];
    tracker.apply(&edges, start);
    let edge: IpAddr = "10.0.0.1".parse().unwrap();
    assert_eq!(tracker.edges(), [edge].into());
    assert!(names(&tracker).is_empty());
    edges.endpoints[0].addresses = vec!["10.0.0.256".to_owned()];
    tracker.apply(&edges, start);
    assert!(tracker.edges().is_empty());
    let unreadable = ["10.0.0.256".to_owned()].into();
    assert_eq!(
        tracker.unreadable(),
        [(edges.name.clone(), unreadable)].into()
    );
    edges.endpoints.clear();
    tracker.apply(&edges, start);
    assert!(tracker.edges().is_empty() && tracker.unreadable().is_empty());
}
