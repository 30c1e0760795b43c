use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kube::core::Expression;
use proptest::prelude::*;

use super::*;
use crate::controller::objects::{Request, Service};
use crate::desired::Protocol;

#[test]
fn a_service_gets_the_first_free_address_of_each_family() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/30"), ("b", "2001:db8::10-2001:db8::1f")]);
    cluster.add("one", |_| {});
    cluster.add("two", |service| {
        service.families = [Family::V4, Family::V6].to_vec()
    });
    assert_eq!(cluster.addresses("one"), ["192.0.2.0"]);
    assert_eq!(cluster.addresses("two"), ["192.0.2.1", "2001:db8::10"]);
}

#[test]
fn pools_are_used_in_the_order_of_their_names_and_blocks_as_listed() {
    let mut cluster = Cluster::new(&[("b", "192.0.2.0/32"), ("a", "198.51.100.7,198.51.100.1")]);
    for name in ["1", "2", "3"] {
        cluster.add(name, |_| {});
    }
    assert_eq!(cluster.addresses("1"), ["198.51.100.7"]);
    assert_eq!(cluster.addresses("2"), ["198.51.100.1"]);
    assert_eq!(cluster.addresses("3"), ["192.0.2.0"]);
}

#[test]
fn an_exhausted_pool_leaves_the_youngest_without_until_one_is_freed() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.1")]);
    cluster.add("z-old", |service| service.created = 1);
    cluster.add("a-young", |service| service.created = 2);
    assert_eq!(cluster.addresses("z-old"), ["192.0.2.1"]);
    assert_eq!(cluster.problem("a-young"), "PoolExhausted");
    cluster.0.services.remove(&name("z-old"));
    assert_eq!(cluster.addresses("a-young"), ["192.0.2.1"]);
}

#[test]
fn selectors_decide_which_services_get_addresses_of_a_pool() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28"), ("b", "198.51.100.0/28")]);
    let pool = cluster.pool("a");
    pool.services = [Expression::Equal("tier".into(), "gold".into())]
        .into_iter()
        .collect();
    pool.namespaces = [Expression::DoesNotExist("inside".into())]
        .into_iter()
        .collect();
    let labels = |key: &str, value: &str| Labels::from([(key.to_owned(), value.to_owned())]);
    cluster.0.namespaces = [
        ("open".to_owned(), Labels::new()),
        ("shut".to_owned(), labels("inside", "")),
    ]
    .into();

    cluster.add("open/gold", |service| {
        service.labels = labels("tier", "gold")
    });
    cluster.add("open/iron", |service| {
        service.labels = labels("tier", "iron")
    });
    cluster.add("shut/gold", |service| {
        service.labels = labels("tier", "gold")
    });
    assert_eq!(cluster.addresses("open/gold"), ["192.0.2.0"]);
    assert_eq!(cluster.addresses("open/iron"), ["198.51.100.0"]);
    assert_eq!(cluster.addresses("shut/gold"), ["198.51.100.1"]);
    cluster.0.namespaces.remove("shut");
    assert_eq!(
        cluster.addresses("shut/gold"),
        ["198.51.100.1"],
        "not known yet"
    );

    cluster.pool("b").auto_assign = false;
    assert_eq!(cluster.problem("open/iron"), "NoPool");
}

#[test]
fn a_pool_without_auto_assign_serves_those_that_ask() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28")]);
    cluster.pool("a").auto_assign = false;
    cluster.add("nothing", |_| {});
    cluster.add("pool", |service| service.request.pools = Some("a".into()));
    cluster.add("address", |service| {
        service.request.addresses = Some("192.0.2.9".into())
    });
    assert_eq!(cluster.problem("nothing"), "NoPool");
    assert_eq!(cluster.addresses("pool"), ["192.0.2.0"]);
    assert_eq!(cluster.addresses("address"), ["192.0.2.9"]);
}

#[test]
fn a_named_pool_is_the_only_one() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28"), ("b", "198.51.100.0/32")]);
    cluster.add("one", |service| service.request.pools = Some("b".into()));
    cluster.add("two", |service| service.request.pools = Some(" b ,".into()));
    cluster.add("none", |service| service.request.pools = Some("c".into()));
    assert_eq!(cluster.addresses("one"), ["198.51.100.0"]);
    assert_eq!(cluster.problem("two"), "PoolExhausted");
    assert_eq!(cluster.problem("none"), "NoSuchPool");
}

#[test]
fn requests_go_before_what_is_given_freely() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28")]);
    cluster.add("any", |service| service.created = 1);
    cluster.add("asks", |service| {
        service.created = 2;
        service.request.addresses = Some("192.0.2.0".into());
    });
    assert_eq!(cluster.addresses("asks"), ["192.0.2.0"]);
    assert_eq!(cluster.addresses("any"), ["192.0.2.1"]);
}

#[test]
fn a_request_for_what_is_in_use_waits() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28")]);
    cluster.add("first", |service| service.held = vec![ip("192.0.2.3")]);
    cluster.add("asks", |service| {
        service.request.addresses = Some("192.0.2.3".into())
    });
    assert_eq!(cluster.addresses("first"), ["192.0.2.3"]);
    assert_eq!(cluster.problem("asks"), "AddressInUse");
    cluster.0.services.remove(&name("first"));
    assert_eq!(cluster.addresses("asks"), ["192.0.2.3"]);
}

#[test]
fn requests_are_judged() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28,2001:db8::/120")]);
    for (text, reason) in [
        ("192.0.2.", "InvalidRequest"),
        ("192.0.2.1,192.0.2.2", "InvalidRequest"),
        ("2001:db8::1", "InvalidRequest"),
        ("198.51.100.1", "NotInPools"),
    ] {
        cluster.add("web", |service| {
            service.request.addresses = Some(text.into())
        });
        assert_eq!(cluster.problem("web"), reason, "{text}");
        assert_eq!(cluster.addresses("web"), [""; 0], "{text}");
    }
    cluster.add("web", |service| {
        service.families = [Family::V4, Family::V6].to_vec();
        service.request.addresses = Some("2001:db8::7, 192.0.2.7".into());
    });
    assert_eq!(cluster.addresses("web"), ["192.0.2.7", "2001:db8::7"]);
}

#[test]
fn a_request_for_one_family_leaves_the_other_free() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28,2001:db8::/120")]);
    cluster.add("web", |service| {
        service.families = vec![Family::V6, Family::V4];
        service.request.addresses = Some("192.0.2.7".into());
    });
    assert_eq!(cluster.addresses("web"), ["2001:db8::", "192.0.2.7"]);
}

#[test]
fn the_deprecated_field_counts_where_the_annotation_does_not_contradict() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28")]);
    cluster.add("web", |service| {
        service.request.load_balancer_ip = Some("192.0.2.5".into())
    });
    assert_eq!(cluster.addresses("web"), ["192.0.2.5"]);
    cluster.add("web", |service| {
        service.request.load_balancer_ip = Some("192.0.2.5".into());
        service.request.addresses = Some("192.0.2.5".into());
    });
    assert_eq!(cluster.addresses("web"), ["192.0.2.5"]);
    cluster.add("web", |service| {
        service.request.load_balancer_ip = Some("192.0.2.5".into());
        service.request.addresses = Some("192.0.2.6".into());
    });
    assert_eq!(cluster.problem("web"), "InvalidRequest");
    assert_eq!(cluster.addresses("web"), [""; 0]);
}

#[test]
fn what_is_held_is_kept_while_pools_and_requests_allow_it() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28")]);
    let hold = |service: &mut Service| service.held = vec![ip("192.0.2.9")];
    cluster.add("web", hold);
    assert_eq!(cluster.addresses("web"), ["192.0.2.9"]);
    // A request that cannot be read takes nothing away.
    cluster.add("web", |service| {
        hold(service);
        service.request.addresses = Some("192.0.2.x".into());
    });
    assert_eq!(cluster.addresses("web"), ["192.0.2.9"]);
    assert_eq!(cluster.problem("web"), "InvalidRequest");
    cluster.add("web", |service| {
        hold(service);
        service.request.addresses = Some("192.0.2.4".into());
    });
    assert_eq!(cluster.addresses("web"), ["192.0.2.4"]);
    assert_eq!(cluster.lost("web"), ["192.0.2.9"]);

    cluster.add("web", hold);
    cluster.pool("a").ranges = vec!["192.0.2.0/29".parse().unwrap()];
    assert_eq!(cluster.addresses("web"), ["192.0.2.0"]);
    assert_eq!(cluster.lost("web"), ["192.0.2.9"]);
}

#[test]
fn a_pool_that_is_being_deleted_keeps_its_services_and_gets_no_more() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28,2001:db8::/120")]);
    let key = |service: &mut Service| service.request.sharing_key = Some("k".into());
    cluster.add("web", |service| {
        key(service);
        service.families = [Family::V4, Family::V6].to_vec();
        service.held = vec![ip("192.0.2.9")];
    });
    cluster.add("any", |_| {});
    cluster.add("pool", |service| service.request.pools = Some("a".into()));
    cluster.add("address", |service| {
        service.request.addresses = Some("192.0.2.3".into())
    });
    cluster.add("shares", |service| {
        key(service);
        service.ports = [(Protocol::Udp, 80)].into();
    });
    cluster.pool("a").terminating = true;
    assert_eq!(cluster.addresses("web"), ["192.0.2.9"]);
    assert_eq!(cluster.lost("web"), [""; 0]);
    for name in ["web", "any", "pool", "address", "shares"] {
        assert_eq!(cluster.problem(name), "PoolTerminating", "{name}");
    }
    for name in ["any", "pool", "address", "shares"] {
        assert_eq!(cluster.addresses(name), [""; 0], "{name}");
    }

    // Another pool gives, also the same addresses.
    let mut other = Cluster::new(&[("b", "192.0.2.0/30")]);
    cluster.0.pools.append(&mut other.0.pools);
    assert_eq!(cluster.addresses("address"), ["192.0.2.3"]);
    assert_eq!(cluster.addresses("any"), ["192.0.2.0"]);
    assert_eq!(cluster.problem("pool"), "PoolTerminating");
    assert_eq!(cluster.addresses("web"), ["192.0.2.9"]);

    // Who names it leaves the old one.
    cluster.add("web", |service| {
        service.request.pools = Some("b".into());
        service.held = vec![ip("192.0.2.9")];
    });
    assert_eq!(cluster.lost("web"), ["192.0.2.9"]);
}

#[test]
fn a_pool_whose_selectors_cannot_be_read_keeps_its_services_and_gets_no_more() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28")]);
    cluster.add("web", |service| service.held = vec![ip("192.0.2.9")]);
    cluster.add("any", |_| {});
    cluster.add("address", |service| {
        service.request.addresses = Some("192.0.2.3".into())
    });
    cluster.pool("a").unreadable = true;
    assert_eq!(cluster.addresses("web"), ["192.0.2.9"]);
    assert_eq!(cluster.lost("web"), [""; 0]);
    for name in ["any", "address"] {
        assert_eq!(cluster.addresses(name), [""; 0], "{name}");
        assert_eq!(cluster.problem(name), "PoolUnreadable", "{name}");
    }
}

#[test]
fn a_key_holds_within_one_namespace_unless_the_pool_names_more() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28"), ("b", "198.51.100.0/28")]);
    let shared = |port| {
        move |service: &mut Service| {
            service.request.sharing_key = Some("web".into());
            service.ports = [(Protocol::Tcp, port)].into();
        }
    };
    cluster.add("a/1", shared(1));
    cluster.add("a/2", shared(2));
    cluster.add("b/3", shared(3));
    cluster.add("c/4", shared(4));
    assert_eq!(cluster.addresses("a/2"), ["192.0.2.0"]);
    assert_eq!(cluster.addresses("b/3"), ["192.0.2.1"]);
    assert_eq!(cluster.addresses("c/4"), ["192.0.2.2"]);
    cluster.settle();
    cluster.add("b/asks", |service| {
        shared(5)(service);
        service.request.addresses = Some("192.0.2.0".into());
    });
    assert_eq!(cluster.problem("b/asks"), "AddressInUse");
    let told = cluster.decide()[&name("b/asks")].problem.clone().unwrap();
    assert!(told.to_string().contains("spec.sharing"), "{told}");

    // Another pool, or another key, says nothing about this one.
    let both = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    cluster.pool("b").sharing = [("web".to_owned(), both.clone())].into();
    cluster.pool("a").sharing = [("other".to_owned(), both.clone())].into();
    assert_eq!(cluster.problem("b/asks"), "AddressInUse");
    cluster.pool("a").sharing = [("web".to_owned(), both)].into();
    assert_eq!(cluster.addresses("b/asks"), ["192.0.2.0"]);
    assert_eq!(cluster.addresses("b/3"), ["192.0.2.1"], "has it");
    cluster.add("b/new", shared(6));
    cluster.add("c/new", shared(7));
    assert_eq!(cluster.addresses("b/new"), ["192.0.2.0"]);
    assert_eq!(cluster.addresses("c/new"), ["192.0.2.2"], "is not named");
}

#[test]
fn of_two_that_hold_one_address_the_older_keeps_it() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28")]);
    cluster.add("a-young", |service| {
        service.created = 2;
        service.held = vec![ip("192.0.2.9")];
    });
    cluster.add("z-old", |service| {
        service.created = 1;
        service.held = vec![ip("192.0.2.9")];
    });
    assert_eq!(cluster.addresses("z-old"), ["192.0.2.9"]);
    assert_eq!(cluster.addresses("a-young"), ["192.0.2.0"]);
    let decision = &cluster.decide()[&name("a-young")];
    assert!(decision.lost[0].1.is_conflict());
}

#[test]
fn addresses_of_nodes_are_never_given_and_never_taken_back() {
    never_given_and_never_taken_back("AddressIsNode", |inventory| &mut inventory.nodes);
}

#[test]
fn addresses_of_api_servers_are_never_given_and_never_taken_back() {
    never_given_and_never_taken_back("AddressIsApiServer", |inventory| &mut inventory.api_servers);
}

#[test]
fn addresses_of_edges_outside_the_cluster_are_never_given_and_never_taken_back() {
    never_given_and_never_taken_back("AddressIsNode", |inventory| &mut inventory.edges);
}

fn never_given_and_never_taken_back(
    problem: &str,
    own: fn(&mut Inventory) -> &mut BTreeSet<IpAddr>,
) {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/30")]);
    *own(&mut cluster.0) = [ip("192.0.2.0"), ip("192.0.2.2")].into();
    cluster.add("free", |_| {});
    let share = |service: &mut Service| {
        service.request.sharing_key = Some("key".into());
        service.ports = [(Protocol::Tcp, 443)].into();
    };
    cluster.add("held", |service| {
        service.request.sharing_key = Some("key".into());
        service.held = vec![ip("192.0.2.2")];
    });
    cluster.add("asks", |service| {
        service.request.addresses = Some("192.0.2.0".into())
    });
    assert_eq!(cluster.addresses("free"), ["192.0.2.1"]);
    assert_eq!(cluster.problem("asks"), problem);
    // A machine came to have it later.
    assert_eq!(cluster.addresses("held"), ["192.0.2.2"]);
    assert_eq!(cluster.lost("held"), [""; 0]);
    assert_eq!(cluster.problem("held"), "none");
    // Nobody else gets it, not by the key either.
    cluster.add("shares", share);
    assert_eq!(cluster.addresses("shares"), ["192.0.2.3"]);
    // Who has lost it does not get it again.
    cluster.add("held", |_| {});
    assert_eq!(cluster.addresses("held"), ["192.0.2.3"]);
    own(&mut cluster.0).clear();
    assert_eq!(cluster.addresses("asks"), ["192.0.2.0"]);
}

#[test]
fn addresses_that_others_gave_are_left_to_them() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/30")]);
    cluster.0.foreign = [
        (ip("192.0.2.0"), name("theirs")),
        (ip("192.0.2.3"), name("theirs")),
    ]
    .into();
    cluster.add("free", |_| {});
    cluster.add("held", |service| service.held = vec![ip("192.0.2.3")]);
    cluster.add("asks", |service| {
        service.request.addresses = Some("192.0.2.0".into())
    });
    assert_eq!(cluster.addresses("free"), ["192.0.2.1"]);
    // Both have it already: which of the two is wrong cannot be known, and taking it away breaks one.
    assert_eq!(cluster.addresses("held"), ["192.0.2.3"]);
    assert_eq!(cluster.problem("asks"), "AddressInUse");
}

#[test]
fn addresses_that_services_name_as_external_come_last_and_are_not_reserved() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/31"), ("b", "198.51.100.1")]);
    cluster.0.external = ["192.0.2.0", "198.51.100.1"].map(ip).into();
    cluster.add("1", |_| {});
    cluster.add("2", |_| {});
    cluster.add("3", |_| {});
    assert_eq!(cluster.addresses("1"), ["192.0.2.1"]);
    assert_eq!(cluster.addresses("2"), ["192.0.2.0"]);
    assert_eq!(cluster.addresses("3"), ["198.51.100.1"]);
    cluster.add("asks", |service| {
        service.created = 1;
        service.request.addresses = Some("198.51.100.1".into());
    });
    assert_eq!(cluster.addresses("asks"), ["198.51.100.1"]);
    assert_eq!(cluster.problem("3"), "PoolExhausted");
}

#[test]
fn long_requests_are_told_in_short() {
    // The API server takes no Event whose note is longer.
    const LONGEST_NOTE: usize = 1024;
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/31")]);
    let long = "\u{1b}".repeat(100_000);
    cluster.add("address", |service| {
        service.request.addresses = Some(long.clone());
    });
    cluster.add("pool", |service| service.request.pools = Some(long.clone()));
    for (_, decision) in allocate(&cluster.0) {
        assert!(decision.problem.unwrap().to_string().len() <= LONGEST_NOTE);
    }
}

#[test]
fn services_with_one_key_share_an_address_unless_ports_clash() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28")]);
    let shared = |protocol, port| {
        move |service: &mut Service| {
            service.request.sharing_key = Some("dns".into());
            service.ports = [(protocol, port)].into();
        }
    };
    cluster.add("1-udp", shared(Protocol::Udp, 53));
    cluster.add("2-plain", |_| {});
    cluster.add("3-tcp", shared(Protocol::Tcp, 53));
    cluster.add("4-clash", shared(Protocol::Udp, 53));
    cluster.add("5-other", |service| {
        shared(Protocol::Tcp, 99)(service);
        service.request.sharing_key = Some("other".into());
    });
    assert_eq!(cluster.addresses("1-udp"), ["192.0.2.0"]);
    assert_eq!(cluster.addresses("2-plain"), ["192.0.2.1"]);
    assert_eq!(cluster.addresses("3-tcp"), ["192.0.2.0"]);
    assert_eq!(cluster.addresses("4-clash"), ["192.0.2.2"]);
    assert_eq!(cluster.addresses("5-other"), ["192.0.2.3"]);
}

#[test]
fn local_services_share_with_the_same_pods_only() {
    let selector = |app: &str| Labels::from([("app".to_owned(), app.to_owned())]);
    let share = |with: fn(&mut Service)| {
        let mut cluster = Cluster::new(&[("a", "192.0.2.0")]);
        let base = |port| {
            move |service: &mut Service| {
                service.request.sharing_key = Some("key".into());
                service.ports = [(Protocol::Tcp, port)].into();
                service.selector = selector("web");
                service.local = true;
            }
        };
        cluster.add("test/1", base(80));
        cluster.add("test/2", base(443));
        let mut second = cluster.0.services.remove(&name("test/2")).unwrap();
        with(&mut second);
        let key = second.name.clone();
        cluster.0.services.insert(key.clone(), second);
        cluster.decide()[&key].problem.is_none()
    };
    assert!(share(|_| {}));
    assert!(!share(|service| service.local = false));
    assert!(!share(
        |service| service.selector = Labels::from([("app".into(), "x".into())])
    ));
    assert!(!share(|service| service.name = ObjectName::new("z", "2")));
    assert!(share(|service| service.ports = [(Protocol::Udp, 80)].into()));
}

#[test]
fn dual_stack_is_both_or_nothing_only_where_it_is_required() {
    let mut cluster = Cluster::new(&[("a", "192.0.2.0/28")]);
    cluster.add("prefers", |service| {
        service.families = [Family::V4, Family::V6].to_vec()
    });
    cluster.add("requires", |service| {
        service.families = [Family::V4, Family::V6].to_vec();
        service.dual_stack_required = true;
    });
    cluster.add("had-one", |service| {
        service.families = [Family::V4, Family::V6].to_vec();
        service.dual_stack_required = true;
        service.held = vec![ip("192.0.2.5")];
    });
    assert_eq!(cluster.addresses("prefers"), ["192.0.2.0"]);
    assert_eq!(cluster.problem("prefers"), "NoPool");
    assert_eq!(cluster.addresses("requires"), [""; 0]);
    assert_eq!(cluster.problem("requires"), "NoPool");
    assert_eq!(cluster.addresses("had-one"), ["192.0.2.5"]);

    // The second family comes later, beside the first.
    cluster.settle();
    let pool = Cluster::new(&[("b", "2001:db8::1-2001:db8::9")]).0.pools;
    cluster.0.pools.extend(pool);
    for service in ["prefers", "requires", "had-one"] {
        assert_eq!(cluster.addresses(service).len(), 2, "{service}");
    }
    assert_eq!(cluster.addresses("prefers")[0], "192.0.2.0");
}

#[test]
fn usage_counts_each_address_once() {
    let ranges: Vec<AddressRange> = ["192.0.2.0/29", "192.0.2.4-192.0.2.11", "2001:db8::/126"]
        .map(|text| text.parse().unwrap())
        .into();
    let taken = ["192.0.2.5", "192.0.2.11", "192.0.2.12", "2001:db8::3"];
    let taken: BTreeSet<IpAddr> = taken.map(ip).into();
    assert_eq!(usage(&ranges, Family::V4, &taken), (2, 12));
    assert_eq!(usage(&ranges, Family::V6, &taken), (1, 4));
}

/// Few names, ports and addresses, so that they meet.
fn service() -> impl Strategy<Value = Service> {
    let address = || (0..6_u8).prop_map(|last| ip(&format!("192.0.2.{last}")));
    let families = prop_oneof![
        3 => Just(vec![Family::V4]),
        1 => Just(vec![Family::V6]),
        2 => Just([Family::V4, Family::V6].to_vec()),
        1 => Just(vec![Family::V6, Family::V4]),
    ];
    let asked = proptest::option::weighted(
        0.3,
        prop_oneof![
            address().prop_map(|ip| ip.to_string()),
            Just("x".to_owned())
        ],
    );
    let pools = proptest::option::weighted(0.2, prop_oneof!["a", "b", "none"]);
    let key = proptest::option::weighted(0.5, prop_oneof!["k", "l"]);
    let ports = proptest::collection::btree_set(
        (
            prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)],
            1..4_u16,
        ),
        1..3,
    );
    let held = proptest::collection::vec(address(), 0..3);
    (
        (
            "[a-h]",
            0..3_i64,
            families,
            any::<bool>(),
            ports,
            any::<bool>(),
        ),
        (asked, pools, key, held),
    )
        .prop_map(
            |((text, created, families, required, ports, local), (asked, pools, key, held))| {
                Service {
                    name: name(&text),
                    uid: String::new(),
                    created,
                    labels: Labels::new(),
                    families,
                    dual_stack_required: required,
                    ports,
                    local,
                    selector: Labels::from([("app".into(), "web".into())]),
                    request: Request {
                        addresses: asked,
                        load_balancer_ip: None,
                        pools,
                        sharing_key: key,
                    },
                    held,
                }
            },
        )
}

fn cluster() -> impl Strategy<Value = Cluster> {
    let services = proptest::collection::vec(service(), 0..12);
    let nodes = proptest::collection::btree_set(
        (0..6_u8).prop_map(|last| ip(&format!("192.0.2.{last}"))),
        0..2,
    );
    (services, nodes).prop_map(|(services, nodes)| {
        let mut cluster = Cluster::new(&[
            ("a", "192.0.2.0/30,2001:db8::/126"),
            ("b", "192.0.2.2-192.0.2.5"),
        ]);
        cluster.0.nodes = nodes;
        cluster.0.services = services
            .into_iter()
            .map(|service| (service.name.clone(), service))
            .collect();
        cluster
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_address_is_given_twice_and_ports_never_clash(cluster in cluster()) {
        let mut holders: BTreeMap<IpAddr, Vec<&Service>> = BTreeMap::new();
        let decisions = cluster.decide();
        for (name, decision) in &decisions {
            let service = &cluster.0.services[name];
            let mut families: Vec<Family> = decision.addresses.iter().copied().map(Family::of).collect();
            prop_assert!(families.iter().all(|family| service.families.contains(family)));
            families.dedup();
            prop_assert_eq!(families.len(), decision.addresses.len());
            let is_unreadable = service.request.addresses.as_deref() == Some("x")
                || service.request.pools.as_deref() == Some("none");
            let is_whole = families.len() == service.families.len();
            prop_assert_eq!(decision.problem.is_none(), is_whole && !is_unreadable);
            for address in &decision.addresses {
                prop_assert!(!cluster.0.nodes.contains(address) || service.held.contains(address));
                prop_assert!(cluster.0.pools.values().any(|pool| pool.contains(*address)));
                holders.entry(*address).or_default().push(service);
            }
        }
        for sharing in holders.values().filter(|services| services.len() > 1) {
            let ports: Vec<_> = sharing.iter().flat_map(|service| &service.ports).collect();
            let distinct: BTreeSet<_> = ports.iter().collect();
            prop_assert_eq!(ports.len(), distinct.len());
            let keys: BTreeSet<_> = sharing.iter().map(|service| &service.request.sharing_key).collect();
            prop_assert!(keys.len() == 1 && !keys.contains(&None));
            prop_assert!(sharing.iter().all(|service| service.local == sharing[0].local));
        }
    }

    #[test]
    fn a_restart_changes_nothing(mut cluster in cluster()) {
        let before = cluster.settle();
        let after = cluster.decide();
        for (name, decision) in &after {
            prop_assert_eq!(&decision.addresses, &before[name].addresses);
            prop_assert_eq!(&decision.problem, &before[name].problem);
            prop_assert_eq!(&decision.lost, &vec![]);
        }
    }

    #[test]
    fn a_pool_that_is_being_deleted_moves_nobody_and_gives_nothing(
        mut cluster in cluster(), newcomer in service(),
    ) {
        let before = cluster.settle();
        cluster.pool("a").terminating = true;
        let newcomer = Service { name: name("newcomer"), created: 9, held: Vec::new(), ..newcomer };
        cluster.0.services.insert(newcomer.name.clone(), newcomer);
        let remaining = cluster.0.pools["b"].clone();
        for (name, decision) in cluster.decide() {
            let had = before.get(&name).map(|before| &before.addresses[..]).unwrap_or_default();
            prop_assert!(had.iter().all(|address| decision.addresses.contains(address)));
            let mut new = decision.addresses.iter().filter(|address| !had.contains(address));
            prop_assert!(new.all(|address| remaining.contains(*address)));
        }
    }

    #[test]
    fn those_that_have_addresses_keep_them_when_others_come_and_go(
        mut cluster in cluster(), newcomer in service(), leaver in "[a-h]",
    ) {
        let before = cluster.settle();
        cluster.0.services.remove(&name(&leaver));
        let newcomer = Service { name: name("newcomer"), created: 9, held: Vec::new(), ..newcomer };
        cluster.0.services.insert(newcomer.name.clone(), newcomer);
        for (name, decision) in cluster.decide() {
            let had = before.get(&name).map(|before| &before.addresses[..]).unwrap_or_default();
            prop_assert!(had.iter().all(|address| decision.addresses.contains(address)));
        }
    }
}

#[derive(Clone, Debug)]
struct Cluster(Inventory);

impl Cluster {
    fn new(pools: &[(&str, &str)]) -> Self {
        let pools = pools.iter().map(|(name, ranges)| {
            let ranges = ranges.split(',').map(|range| range.parse().unwrap());
            let pool = Pool {
                ranges: ranges.collect(),
                auto_assign: true,
                ..Pool::default()
            };
            ((*name).to_owned(), pool)
        });
        Self(Inventory {
            pools: pools.collect(),
            ..Inventory::default()
        })
    }

    fn pool(&mut self, name: &str) -> &mut Pool {
        self.0.pools.get_mut(name).unwrap()
    }

    /// Adds or replaces an IPv4 Service with port 80/tcp that asks for nothing.
    fn add(&mut self, named: &str, with: impl FnOnce(&mut Service)) {
        let mut service = Service {
            name: name(named),
            uid: String::new(),
            created: 0,
            labels: Labels::new(),
            families: vec![Family::V4],
            dual_stack_required: false,
            ports: [(Protocol::Tcp, 80)].into(),
            local: false,
            selector: Labels::new(),
            request: Request::default(),
            held: Vec::new(),
        };
        with(&mut service);
        self.0.services.insert(service.name.clone(), service);
    }

    fn decide(&self) -> BTreeMap<ObjectName, Decision> {
        allocate(&self.0)
    }

    /// Decides, and writes it to the status of the Services.
    fn settle(&mut self) -> BTreeMap<ObjectName, Decision> {
        let decisions = self.decide();
        for (name, decision) in &decisions {
            self.0.services.get_mut(name).unwrap().held = decision.addresses.clone();
        }
        decisions
    }

    fn addresses(&self, named: &str) -> Vec<String> {
        let decisions = self.decide();
        let addresses = decisions[&name(named)].addresses.iter();
        addresses.map(IpAddr::to_string).collect()
    }

    fn lost(&self, named: &str) -> Vec<String> {
        let decisions = self.decide();
        let lost = decisions[&name(named)].lost.iter();
        lost.map(|(address, _)| address.to_string()).collect()
    }

    fn problem(&self, named: &str) -> &'static str {
        let decisions = self.decide();
        decisions[&name(named)]
            .problem
            .as_ref()
            .map_or("none", AllocationError::reason)
    }
}

/// Names a Service, of namespace `test` if the text names none.
fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap_or(("test", text));
    ObjectName::new(namespace, name)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
