//! What is written where several objects meet.

use serde_json::json;

use super::*;
use crate::controller::address_range::Family;
use crate::controller::convert::{self, Classes};
use crate::controller::deletion::FINALIZER;
use crate::controller::object_cache::Event;
use crate::index::{BrokenRule, Object};
use crate::kubernetes::list_watch;
use crate::kubernetes::schema::{self, name as name_of};

const NOW: &str = "2026-11-21T12:00:00Z";

/// A Service, older the smaller the number.
fn service(name: &str, created: u8) -> (ObjectName, ObservedService) {
    let service: schema::Service = serde_json::from_value(json!({
        "metadata": {
            "namespace": "test",
            "name": name,
            "uid": format!("uid-{name}"),
            "creationTimestamp": format!("2026-11-21T12:00:{created:02}Z"),
        },
        "spec": {
            "type": "LoadBalancer",
            "loadBalancerClass": "a/b",
            "ipFamilies": ["IPv4"],
            "ports": [{"port": 80}],
        },
    }))
    .unwrap();
    (name_of(&service.metadata), classes().service(&service))
}

fn classes() -> Classes {
    Classes {
        class: "a/b".to_owned(),
        default: false,
        external_ips: ["203.0.113.0/24".parse().unwrap()].into(),
    }
}

fn cluster() -> Planner {
    let mut cluster = Planner::default();
    put_pool(&mut cluster, "a", &[], false);
    cluster
}

fn put_pool(cluster: &mut Planner, name: &str, finalizers: &[&str], terminating: bool) {
    put_pool_of(cluster, name, "192.0.2.0/30", finalizers, terminating);
}

fn put_pool_of(
    cluster: &mut Planner,
    name: &str,
    addresses: &str,
    finalizers: &[&str],
    terminating: bool,
) {
    let pool = serde_json::from_value(json!({
        "apiVersion": "guideway.dev/v1alpha1",
        "kind": "LoadBalancerPool",
        "metadata": {
            "name": name,
            "resourceVersion": "7",
            "finalizers": finalizers,
            "deletionTimestamp": terminating.then_some(NOW),
        },
        "spec": {"addresses": [addresses]},
    }));
    let name = ObjectName::new("", name);
    cluster.pools.put(name, convert::pool(&pool.unwrap()));
}

fn addresses(plan: &Plan) -> Vec<(&str, String)> {
    let writes = plan.services.iter();
    writes
        .map(|(name, write)| (name.name.as_str(), write.given[0].to_string()))
        .collect()
}

#[test]
fn a_pool_counts_what_is_decided_and_what_is_not_taken_back_yet() {
    let mut cluster = cluster();
    let (name, mut seen) = service("web", 1);
    cluster.services.put(name.clone(), seen.clone());
    let plan = cluster.plan(NOW);
    let (_, write) = &plan.pools[0];
    let patch = write.status.as_ref().unwrap();
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    assert_eq!(patch["status"]["used"], 1);

    // It holds one address, and asks for another one.
    seen.observed.ingress = vec![service_status::Ingress {
        ip: Some("192.0.2.0".to_owned()),
        ..service_status::Ingress::default()
    }];
    seen.ours.as_mut().unwrap().request.addresses = Some("192.0.2.3".to_owned());
    cluster.services.put(name, seen);
    let plan = cluster.plan(NOW);
    assert_eq!(addresses(&plan), [("web", "192.0.2.3".to_owned())]);
    let (_, write) = &plan.pools[0];
    assert_eq!(write.status.as_ref().unwrap()["status"]["used"], 2);
}

#[test]
fn a_pool_has_the_finalizer_while_one_of_its_addresses_is_in_use() {
    let mut cluster = cluster();
    assert_eq!(finalizers(&mut cluster, "a"), None);
    let (name, seen) = service("web", 1);
    cluster.services.put(name.clone(), seen);
    assert_eq!(
        finalizers(&mut cluster, "a"),
        Some(vec![FINALIZER.to_owned()])
    );
    put_pool(&mut cluster, "a", &[FINALIZER], false);
    assert_eq!(finalizers(&mut cluster, "a"), None);
    cluster.services.follow(Event::Delete(name));
    assert_eq!(finalizers(&mut cluster, "a"), Some(vec![]));
}

#[test]
fn a_deleted_pool_stays_until_nobody_would_lose_an_address_by_it() {
    let mut cluster = Planner::default();
    let (name, mut seen) = service("web", 1);
    seen.ours.as_mut().unwrap().held = vec!["192.0.2.0".parse().unwrap()];
    cluster.services.put(name, seen);
    put_pool(&mut cluster, "a", &[FINALIZER], true);
    let plan = cluster.plan(NOW);
    let (_, write) = &plan.pools[0];
    assert_eq!(write.finalizers, None);
    let ready = &write.status.as_ref().unwrap()["status"]["conditions"][0];
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("Terminating"))
    );
    assert!(
        ready["message"].as_str().unwrap().contains("test/web"),
        "{ready}"
    );
    assert_eq!(write.event.as_ref().unwrap().reason, "PoolInUse");

    // One that might vanish at once, or is deleted as well, cannot take over.
    for (present, terminating) in [(&[][..], false), (&[FINALIZER], true)] {
        put_pool(&mut cluster, "b", present, terminating);
        assert_eq!(finalizers(&mut cluster, "a"), None);
    }
    put_pool(&mut cluster, "b", &[FINALIZER], false);
    assert_eq!(finalizers(&mut cluster, "a"), Some(vec![]));
    assert_eq!(finalizers(&mut cluster, "b"), None);
}

#[test]
fn an_address_of_two_pools_is_counted_by_one_and_the_other_is_not_ready() {
    let mut cluster = Planner::default();
    put_pool_of(&mut cluster, "a", "192.0.2.0/30", &[], false);
    put_pool_of(&mut cluster, "b", "192.0.2.2-192.0.2.9", &[], false);
    let (name, mut seen) = service("web", 1);
    seen.ours.as_mut().unwrap().held = vec!["192.0.2.3".parse().unwrap()];
    cluster.services.put(name, seen);
    let told = |cluster: &mut Planner| -> Vec<_> {
        let plan = cluster.plan(NOW);
        let pools = plan.pools.iter().map(|(name, write)| {
            let status = &write.status.as_ref().unwrap()["status"];
            let ready = &status["conditions"][0];
            let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
            let values = plan.usage[name.name.as_str()];
            assert_eq!(status["used"], values.used);
            let about_a = text(&ready["message"]).contains("LoadBalancerPool a has too");
            (
                values.used,
                values.free_ipv4,
                text(&ready["reason"]),
                about_a,
            )
        });
        pools.collect()
    };
    let overlapping = [
        (1, 3, "Valid".to_owned(), false),
        (0, 6, "Overlap".to_owned(), true),
    ];
    assert_eq!(told(&mut cluster), overlapping);

    // One that is about to go leaves them to the other.
    put_pool_of(&mut cluster, "a", "192.0.2.0/30", &[FINALIZER], true);
    let (used, free, ..) = &told(&mut cluster)[0];
    assert_eq!((*used, *free), (0, 2));
    let (used, free, reason, _) = &told(&mut cluster)[1];
    assert_eq!((*used, *free, reason.as_str()), (1, 7, "Valid"));
}

#[test]
fn a_selector_that_cannot_be_read_takes_no_address_away() {
    let mut cluster = cluster();
    for (name, number) in [("held", 1), ("new", 2)] {
        let (name, seen) = service(name, number);
        cluster.services.put(name, seen);
    }
    let held = ObjectName::new("test", "held");
    let mut seen = cluster.services.objects()[&held].clone();
    seen.ours.as_mut().unwrap().held = vec!["192.0.2.3".parse().unwrap()];
    seen.observed.ingress = vec![service_status::Ingress {
        ip: Some("192.0.2.3".to_owned()),
        ..service_status::Ingress::default()
    }];
    cluster.services.put(held, seen);
    for typo in [
        json!([{"key": "app", "operator": "In"}]),
        json!([{"key": "app", "operator": "In", "values": []}]),
        json!([{"key": "a pp", "operator": "Exists"}]),
    ] {
        cluster.forget();
        let pool = serde_json::from_value(json!({
            "apiVersion": "guideway.dev/v1alpha1",
            "kind": "LoadBalancerPool",
            "metadata": {"name": "a", "resourceVersion": "8"},
            "spec": {
                "addresses": ["192.0.2.0/30"],
                "serviceSelector": {"matchExpressions": typo},
            },
        }));
        cluster
            .pools
            .put(ObjectName::new("", "a"), convert::pool(&pool.unwrap()));
        let plan = cluster.plan(NOW);
        assert_eq!(told(&plan, "held").unwrap().2, ["192.0.2.3"], "{typo}");
        let (reason, _, addresses) = told(&plan, "new").unwrap();
        assert_eq!((reason.as_str(), addresses), ("PoolUnreadable", vec![]));
        let ready = &plan.pools[0].1.status.as_ref().unwrap()["status"]["conditions"][0];
        assert_eq!(ready["reason"], "InvalidSelector");
        assert_eq!(plan.usage["a"].used, 1);
    }
}

/// Tells which finalizers a pool is to get.
fn finalizers(cluster: &mut Planner, name: &str) -> Option<Vec<String>> {
    let pools = cluster.plan(NOW).pools;
    let mut writes = pools.into_iter().filter(|(pool, _)| pool.name == *name);
    writes.next()?.1.finalizers
}

/// Returns the condition that a Service is to get, and its addresses.
fn told(plan: &Plan, name: &str) -> Option<(String, String, Vec<String>)> {
    let mut writes = plan.services.iter();
    let (_, write) = writes.find(|(service, _)| service.name == *name)?;
    let status = &write.patch["status"];
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let ingress = status["loadBalancer"]["ingress"].as_array().unwrap();
    let condition = &status["conditions"][0];
    Some((
        text(&condition["reason"]),
        text(&condition["message"]),
        ingress.iter().map(|entry| text(&entry["ip"])).collect(),
    ))
}

#[test]
fn a_pool_that_cannot_be_written_gives_nothing_and_the_services_say_why() {
    let mut cluster = cluster();
    let (old, mut seen) = service("old", 1);
    seen.ours.as_mut().unwrap().held = vec!["192.0.2.0".parse().unwrap()];
    seen.observed.ingress = vec![service_status::Ingress {
        ip: Some("192.0.2.0".to_owned()),
        ..service_status::Ingress::default()
    }];
    cluster.services.put(old, seen);
    let (new, seen) = service("new", 2);
    cluster.services.put(new, seen);
    assert_eq!(told(&cluster.plan(NOW), "new").unwrap().2, ["192.0.2.1"]);

    let pool = ObjectName::new("", "a");
    assert!(cluster.refusals.note(pool.clone(), "no right".to_owned()));
    assert!(!cluster.refusals.note(pool.clone(), "no right".to_owned()));
    let plan = cluster.plan(NOW);
    let (reason, message, addresses) = told(&plan, "new").unwrap();
    assert_eq!((reason.as_str(), addresses), ("PoolNotWritable", vec![]));
    let expected = "LoadBalancerPool a cannot be written";
    assert!(
        message.starts_with(expected) && message.contains("no right; see"),
        "{message}"
    );
    assert_eq!((plan.assigned, plan.waiting), (1, 1));
    // Who has an address has it, and its status can be repaired.
    let kept = vec!["192.0.2.0".to_owned()];
    let of_old = told(&plan, "old").unwrap();
    assert_eq!(of_old, ("Assigned".to_owned(), kept[0].clone(), kept));
    // The pool is tried on, with the address that waits.
    let (_, write) = &plan.pools[0];
    assert_eq!(write.status.as_ref().unwrap()["status"]["used"], 2);
    assert!(write.finalizers.is_some());

    // Once nothing is left to be written to it, it was written: in the same plan.
    let status = write.status.as_ref().unwrap()["status"].clone();
    put_pool(&mut cluster, "a", &[FINALIZER], false);
    let mut counted = cluster.pools.objects()[&pool].clone();
    counted.status = serde_json::from_value(status).unwrap();
    cluster.pools.put(pool, counted);
    assert_eq!(told(&cluster.plan(NOW), "new").unwrap().2, ["192.0.2.1"]);
}

#[test]
fn a_service_that_requires_both_families_gets_no_half_from_a_pool_that_can_be_written() {
    for (required, has_one, expected) in [
        (true, false, vec![]),
        (false, false, vec!["192.0.2.0".to_owned()]),
        (true, true, vec!["192.0.2.0".to_owned()]),
    ] {
        let mut cluster = cluster();
        put_pool_of(&mut cluster, "b", "2001:db8::/126", &[], false);
        let (name, mut seen) = service("web", 1);
        let ours = seen.ours.as_mut().unwrap();
        ours.families = [Family::V4, Family::V6].to_vec();
        ours.dual_stack_required = required;
        if has_one {
            seen.observed.ingress = vec![service_status::Ingress {
                ip: Some("192.0.2.0".to_owned()),
                ..service_status::Ingress::default()
            }];
        }
        cluster.services.put(name, seen);
        cluster
            .refusals
            .note(ObjectName::new("", "b"), String::new());
        let (reason, _, addresses) = told(&cluster.plan(NOW), "web").unwrap();
        assert_eq!((reason.as_str(), addresses), ("PoolNotWritable", expected));
    }
}

#[test]
fn what_is_wrong_with_a_service_is_told_once() {
    let mut cluster = cluster();
    let (name, mut seen) = service("web", 1);
    let problem = |name: &ObjectName, rule: BrokenRule| Problem {
        object: Object::Service(name.clone()),
        rule,
        text: "x is no mode".to_owned(),
        remedy: "use another".to_owned(),
        only_here: false,
    };
    seen.problems = vec![problem(&name, BrokenRule::InvalidAnnotation)];
    cluster.services.put(name.clone(), seen.clone());
    let plan = cluster.plan(NOW);
    let expected = PendingEvent {
        warning: true,
        reason: "InvalidAnnotation",
        text: "x is no mode; use another".to_owned(),
    };
    assert_eq!(plan.events, [(name.clone(), seen.uid.clone(), expected)]);
    assert_eq!(cluster.plan(NOW).events, []);

    // Another problem is news, and one that comes back.
    let both = [BrokenRule::InvalidAnnotation, BrokenRule::InvalidPolicy];
    seen.problems = both.map(|rule| problem(&name, rule)).into();
    cluster.services.put(name.clone(), seen.clone());
    assert_eq!(reasons(&mut cluster), ["InvalidPolicy"]);
    seen.problems.remove(0);
    cluster.services.put(name.clone(), seen.clone());
    assert_eq!(reasons(&mut cluster), [""; 0]);
    seen.problems
        .insert(0, problem(&name, BrokenRule::InvalidAnnotation));
    cluster.services.put(name.clone(), seen.clone());
    assert_eq!(reasons(&mut cluster), ["InvalidAnnotation"]);

    // So is all of another Service of the name, and for another leader.
    seen.uid = "another".to_owned();
    cluster.services.put(name, seen);
    assert_eq!(reasons(&mut cluster).len(), 2);
    cluster.forget();
    assert_eq!(reasons(&mut cluster).len(), 2);

    // Many are told bit by bit.
    for number in 0..MOST_EVENTS * 2 {
        let (name, mut seen) = service(&format!("web{number}"), 1);
        seen.problems = vec![problem(&name, BrokenRule::InvalidPort)];
        cluster.services.put(name, seen);
    }
    for has_more in [true, false] {
        let plan = cluster.plan(NOW);
        assert_eq!((plan.events.len(), plan.has_more), (MOST_EVENTS, has_more));
    }
    assert_eq!(reasons(&mut cluster), [""; 0]);
}

#[test]
fn an_external_address_that_agents_serve_and_a_machine_has_is_told() {
    let address = |last: u8| IpAddr::from([203, 0, 113, last]);
    let mut cluster = Planner::new([address(1)].into());
    let own = |name: &str| ObjectName::new("", name);
    cluster.nodes.put(own("node1"), vec![address(2)]);
    cluster.api_servers.put(own("slice"), vec![address(3)]);
    cluster.edges.put(own("edges"), vec![address(4)]);
    let put = |cluster: &mut Planner, external: &[&str]| {
        let service: schema::Service = serde_json::from_value(json!({
            "metadata": {"namespace": "test", "name": "web", "uid": "7"},
            "spec": {
                "clusterIPs": ["10.96.0.1"], "externalIPs": external,
                "ports": [{"port": 80}],
            },
        }))
        .unwrap();
        let seen = classes().service(&service);
        cluster.services.put(name_of(&service.metadata), seen);
    };
    for last in 1..5 {
        put(&mut cluster, &[&address(last).to_string()]);
        let events = cluster.plan(NOW).events;
        let [(_, uid, event)] = &events[..] else {
            panic!("{last}: {events:?}");
        };
        assert_eq!((uid.as_str(), event.reason), ("7", "AddressIsNode"));
        let text = format!("203.0.113.{last} belongs to a machine: ");
        assert!(event.text.starts_with(&text), "{}", event.text);
        assert_eq!(cluster.plan(NOW).events, [], "told once");
    }
    // Nobody's, and one that no agent serves.
    put(&mut cluster, &["203.0.113.9"]);
    assert_eq!(reasons(&mut cluster), [""; 0]);
    cluster.nodes.put(own("node1"), vec![[192, 0, 2, 1].into()]);
    put(&mut cluster, &["192.0.2.1"]);
    assert_eq!(reasons(&mut cluster), ["ExternalAddressNotAllowed"]);
    // A Node comes to have it.
    put(&mut cluster, &["203.0.113.9"]);
    assert_eq!(reasons(&mut cluster), [""; 0]);
    cluster.nodes.put(own("node2"), vec![address(9)]);
    assert_eq!(reasons(&mut cluster), ["AddressIsNode"]);
}

fn reasons(cluster: &mut Planner) -> Vec<&'static str> {
    let events = cluster.plan(NOW).events;
    events.iter().map(|(.., event)| event.reason).collect()
}

#[test]
fn what_was_decided_stands_until_another_controller_may_have_decided() {
    let mut cluster = cluster();
    let (young, seen) = service("young", 9);
    cluster.services.put(young, seen);
    assert_eq!(
        addresses(&cluster.plan(NOW)),
        [("young", "192.0.2.0".to_owned())]
    );
    // The watch shows an older one before it shows what was written.
    let (old, seen) = service("old", 1);
    cluster.services.put(old, seen);
    let both = |old: &str, young: &str| [("old", old.to_owned()), ("young", young.to_owned())];
    assert_eq!(
        addresses(&cluster.plan(NOW)),
        both("192.0.2.1", "192.0.2.0")
    );
    cluster.forget();
    assert_eq!(
        addresses(&cluster.plan(NOW)),
        both("192.0.2.0", "192.0.2.1")
    );
}

#[test]
fn a_service_of_the_same_name_is_another_one() {
    let mut cluster = cluster();
    let (name, mut seen) = service("web", 1);
    cluster.services.put(name.clone(), seen.clone());
    cluster.plan(NOW);
    let (other, first) = service("first", 0);
    cluster.services.put(other, first);
    seen.uid = "another".to_owned();
    cluster.services.put(name, seen);
    let expected = [
        ("first", "192.0.2.0".to_owned()),
        ("web", "192.0.2.1".to_owned()),
    ];
    assert_eq!(addresses(&cluster.plan(NOW)), expected);
}

#[test]
fn who_announces_is_written_beside_the_address_and_after_it_without_an_event() {
    let mut cluster = cluster();
    let (name, seen) = service("web", 1);
    cluster.services.put(name.clone(), seen.clone());
    let lease: schema::Lease = serde_json::from_value(json!({
        "metadata": {
            "name": "guideway-announced-n1", "resourceVersion": "1",
            "annotations": {"guideway.dev/announced": "192.0.2.0"},
        },
        "spec": {"holderIdentity": "n1"},
    }))
    .unwrap();
    let now = tokio::time::Instant::now();
    for event in [
        list_watch::Event::Apply(Ok(lease)),
        list_watch::Event::InitDone([ObjectName::new("edges", "guideway-announced-n1")].into()),
    ] {
        cluster.announcements.take(event, now);
    }
    let status_of = |plan: &Plan| {
        let [(_, write)] = &plan.services[..] else {
            panic!("{:?}", plan.services);
        };
        let observed: schema::Service = serde_json::from_value(json!({
            "metadata": {"namespace": "test", "name": "web", "uid": "uid-web"},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "a/b"},
            "status": write.patch["status"],
        }))
        .unwrap();
        let observed = classes().service(&observed).observed;
        (write.clone(), observed)
    };
    let (first, observed) = status_of(&cluster.plan(NOW));
    assert!(!first.is_about_announcers && observed.announced.is_none());
    cluster.services.put(
        name.clone(),
        ObservedService {
            observed,
            ..seen.clone()
        },
    );
    assert!(cluster.plan(NOW).services.is_empty(), "not known yet");

    assert!(cluster.announcements.settle(now));
    let (second, observed) = status_of(&cluster.plan(NOW));
    assert!(second.is_about_announcers && second.events.is_empty());
    assert_eq!(
        observed.announced.as_ref().unwrap().message,
        "192.0.2.0 by n1"
    );
    let (again, _) = status_of(&cluster.plan("later"));
    assert_eq!(second.digest(), again.digest(), "its times do not count");
    cluster.services.put(
        name.clone(),
        ObservedService {
            observed: observed.clone(),
            ..seen.clone()
        },
    );
    assert!(cluster.plan("later").services.is_empty());

    // The Service is not ours any more.
    let gone = ObservedService {
        observed,
        ours: None,
        ..seen
    };
    cluster.services.put(name, gone);
    let plan = cluster.plan(NOW);
    assert_eq!(plan.services[0].1.patch["status"], json!({}));
}
