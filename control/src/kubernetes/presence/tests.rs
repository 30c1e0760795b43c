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
