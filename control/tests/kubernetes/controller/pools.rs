//! What pools say and refuse, and how long they stay.

use std::time::{Duration, Instant};

use lab::Signal;
use serde_json::{Value, json};

use super::cluster::{Cluster, PATIENCE, annotated, condition, expect, pool, service};

#[test]
fn a_pool_is_not_made_smaller_than_its_use() {
    let cluster = Cluster::start();
    let controller = cluster.controller(&[]);
    cluster.apply(&pool("public", &["192.0.2.0/28", "198.51.100.0/28"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    cluster.eventually("the columns tell", || {
        let table = cluster.kubectl(&["get", "lbpool"]);
        let mut lines = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let header = lines.next().unwrap_or_default();
        let row = lines.next().unwrap_or_default();
        let told = row.starts_with(&["public", "1", "31", "0", "true", "True"]);
        expect(
            header
                .join(" ")
                .starts_with("NAME USED FREE IPV4 FREE IPV6")
                && told,
            &table,
        )
    });

    // Refused by the API server, also while no controller runs.
    drop(controller);
    for addresses in [
        &["192.0.2.8/29"][..],
        &["192.0.2.0-192.0.2.15"],
        &["198.51.100.0/28"],
    ] {
        let refused = cluster.try_apply(&pool("public", addresses)).unwrap_err();
        assert!(refused.contains("addresses in use"), "{refused}");
    }
    // What is not in use may go, and what is may become wider.
    cluster.apply(&pool("public", &["192.0.2.0/27"]));
    let _controller = cluster.controller(&[]);
    // The smaller one first, which then counts it.
    cluster.apply(&pool("public", &["192.0.2.0/27", "192.0.2.0/30"]));
    cluster.eventually("the smaller entry counts the address", || {
        let public = cluster.get("lbpool", "public");
        let blocks = &public["status"]["blocks"];
        let expected = json!([
            {"addresses": "192.0.2.0/27", "used": 0}, {"addresses": "192.0.2.0/30", "used": 1},
        ]);
        expect(*blocks == expected, blocks)
    });
    cluster.apply(&pool("public", &["192.0.2.0/30"]));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
}

#[test]
fn a_deleted_pool_stays_while_its_addresses_are_in_use() {
    let cluster = Cluster::start();
    let mut first = cluster.controller(&["--lease-duration", "15"]);
    cluster.apply(&pool("public", &["192.0.2.0/28"]));
    cluster.patch(
        "lbpool",
        "public",
        &json!({"metadata": {"finalizers": ["example.com/other"]}}),
    );
    cluster.apply(&pool("unused", &["198.51.100.0/28"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    let both = json!(["example.com/other", "guideway.dev/in-use"]);
    assert_eq!(cluster.finalizers("public"), both, "before web has it");
    assert_eq!(cluster.finalizers("unused"), Value::Null);
    cluster.kubectl(&["delete", "lbpool", "unused", "--timeout=60s"]);

    cluster.delete_pool("public");
    cluster.waits_for("public", "default/web");
    assert_eq!(cluster.events("public", "PoolInUse"), 1);
    let asking = annotated("late", "guideway.dev/addresses: 192.0.2.7", "");
    cluster.apply(&asking);
    cluster.told("late", "PoolTerminating", "LoadBalancerPool public");
    assert_eq!(cluster.events("late", "AllocationFailed"), 1);
    let before = cluster.get("service", "web");

    // The next controller goes on as this one.
    first.signal(Signal::SIGKILL).unwrap();
    first.wait(PATIENCE).unwrap();
    let mut second = cluster.controller(&["--lease-duration", "15"]);
    second.wait_for_line("leads=true", PATIENCE).unwrap();
    cluster.apply(&pool("next", &["203.0.113.0/28"]));
    cluster.apply(&service("other", ""));
    assert_eq!(cluster.addresses("other", 1), ["203.0.113.0"]);
    assert_eq!(cluster.get("service", "web"), before);
    assert_eq!(cluster.finalizers("public"), both);
    cluster.told("late", "PoolTerminating", "LoadBalancerPool public");

    // The last one moves away.
    cluster.kubectl(&["annotate", "service", "web", "guideway.dev/pool=next"]);
    cluster.eventually("the finalizer of the other is left", || {
        let left = cluster.finalizers("public");
        expect(left == json!(["example.com/other"]), &left)
    });
    assert_eq!(cluster.addresses("web", 1), ["203.0.113.1"]);
    cluster.patch(
        "lbpool",
        "public",
        &json!({"metadata": {"finalizers": null}}),
    );
    cluster.is_gone("lbpool/public");

    // One of the same name is another one.
    cluster.apply(&pool("public", &["192.0.2.0/28"]));
    assert_eq!(cluster.addresses("late", 1), ["192.0.2.7"]);
}

#[test]
fn a_pool_with_the_same_addresses_takes_over_from_a_deleted_one() {
    let cluster = Cluster::start();
    let _controller = cluster.controller(&[]);
    cluster.apply(&pool("public", &["192.0.2.0/28"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    let before = cluster.get("service", "web");
    cluster.delete_pool("public");
    cluster.waits_for("public", "default/web");
    cluster.apply(&pool("rescue", &["192.0.2.0/24"]));
    cluster.is_gone("lbpool/public");
    assert_eq!(cluster.finalizers("rescue"), json!(["guideway.dev/in-use"]));
    assert_eq!(cluster.get("service", "web"), before);
}

#[test]
fn a_pool_deleted_while_no_controller_runs_waits_for_one() {
    let cluster = Cluster::start();
    let controller = cluster.controller(&["--lease-duration", "15"]);
    cluster.apply(&pool("public", &["192.0.2.0/28"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    drop(controller);
    cluster.delete_pool("public");
    cluster.kubectl(&["delete", "service", "web"]);
    let terminating = cluster.get("lbpool", "public");
    assert!(terminating["metadata"]["deletionTimestamp"].is_string());
    let controller = cluster.controller(&["--lease-duration", "15"]);
    cluster.is_gone("lbpool/public");

    // With the definition it goes as the documentation says.
    cluster.apply(&pool("public", &["192.0.2.0/28"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    drop(controller);
    let definition = "crd/loadbalancerpools.guideway.dev";
    cluster.kubectl(&["delete", definition, "--wait=false"]);
    cluster.patch(
        "lbpool",
        "public",
        &json!({"metadata": {"finalizers": null}}),
    );
    cluster.is_gone(definition);
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
}

#[test]
fn a_deleted_pool_goes_with_the_namespaces_of_its_services() {
    let cluster = Cluster::start();
    let _namespaces = cluster
        .0
        .run_controllers(&["namespace-controller"])
        .unwrap();
    let _controller = cluster.controller(&[]);
    cluster.apply(&pool("public", &["192.0.2.0/28"]));
    let tenants = ["one", "two"];
    for tenant in tenants {
        cluster.kubectl(&["create", "namespace", tenant]);
        let web =
            service("web", "").replace("name: web,", &format!("name: web, namespace: {tenant},"));
        cluster.apply(&web);
    }
    // One goes before the pool is deleted, the other while it waits.
    cluster.eventually("both have an address", || {
        let public = cluster.get("lbpool", "public");
        let has_address = |tenant: &&str| {
            let web = cluster.0.get(&["service", "web", "-n", tenant]).unwrap();
            !web["status"]["loadBalancer"]["ingress"].is_null()
        };
        expect(tenants.iter().all(has_address), &public)
    });
    cluster.kubectl(&["delete", "namespace", "one", "--wait=false"]);
    cluster.delete_pool("public");
    cluster.waits_for("public", "two/web");
    cluster.kubectl(&["delete", "namespace", "two", "--wait=false"]);
    cluster.is_gone("lbpool/public");
    for tenant in tenants {
        cluster.is_gone(&format!("namespace/{tenant}"));
    }
}

#[test]
fn a_finalizer_that_somebody_strips_comes_back_less_and_less_often() {
    let cluster = Cluster::start();
    let _controller = cluster.controller(&[]);
    cluster.apply(&pool("public", &["192.0.2.0/28"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    let ours = json!(["guideway.dev/in-use"]);
    let strip = json!({"metadata": {"finalizers": null}});
    let is_back = || {
        let left = cluster.finalizers("public");
        expect(left == ours, &left)
    };
    let begun = Instant::now();
    for _ in 0..6 {
        cluster.eventually("the finalizer is back", is_back);
        cluster.patch("lbpool", "public", &strip);
    }
    // What was there, twice at once, the first time as something new, and after 1, 2 and 4 seconds.
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(7), "{took:?}");
    // Meanwhile others get what they ask for: that is something else to be written.
    cluster.patch("lbpool", "public", &strip);
    cluster.apply(&service("other", ""));
    assert_eq!(cluster.addresses("other", 1), ["192.0.2.1"]);
    // With nobody against it, it stays.
    cluster.eventually("the finalizer is back", is_back);
}

#[test]
fn services_say_that_the_controller_may_not_write_their_pool() {
    let cluster = Cluster::start();
    // Rights as they were before pools had finalizers.
    cluster.allow("get");
    cluster.apply(&pool("guarded", &["198.51.100.0/28"]));
    let guarded = json!({"metadata": {"finalizers": ["guideway.dev/in-use"]}});
    cluster.patch("lbpool", "guarded", &guarded);
    cluster.apply(&pool("public", &["192.0.2.0/28"]));
    let arguments = ["controller", "--namespace", "default"];
    let (_machine, _controller) = cluster.controller_as("default", "controller", arguments);
    cluster.apply(&annotated("web", "guideway.dev/pool: public", ""));
    cluster.told("web", "PoolNotWritable", "cannot patch resource");
    assert_eq!(cluster.addresses("web", 0), [""; 0]);
    assert_eq!(cluster.events("web", "AllocationFailed"), 1);
    assert_eq!(cluster.finalizers("public"), Value::Null);
    // Where nothing is to be written but use, nobody waits.
    cluster.apply(&annotated("other", "guideway.dev/pool: guarded", ""));
    assert_eq!(cluster.addresses("other", 1), ["198.51.100.0"]);

    cluster.allow("patch");
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    let web = cluster.get("service", "web");
    assert_eq!(condition(&web).unwrap()["status"], "True");
    assert_eq!(
        cluster.finalizers("public"),
        guarded["metadata"]["finalizers"]
    );
}

#[test]
fn what_a_pool_may_say_is_checked_by_the_api_server() {
    let cluster = Cluster::start();
    for wrong in [
        "192.0.2.1/24",
        "192.0.2.0/33",
        "192.0.2.1-",
        "web",
        "1.2.3.4-1.2.3.5-1.2.3.6",
    ] {
        let refused = cluster.try_apply(&pool("wrong", &[wrong])).unwrap_err();
        assert!(refused.contains("without host bits"), "{wrong}: {refused}");
    }
    cluster.try_apply(&pool("wrong", &[])).unwrap_err();
    for right in [
        "192.0.2.7",
        "192.0.2.1 - 192.0.2.9",
        "2001:db8::/64",
        "2001:db8::1-2001:db8::2",
    ] {
        cluster.apply(&pool("right", &[right]));
    }

    for range in [
        "192.0.2.9-192.0.2.1",
        "128.0.0.0 - 127.255.255.255",
        "2001:db8::2-2001:db8::1",
        "2001:db8:8000::-2001:db8:7fff::",
        "192.0.2.1-2001:db8::1",
    ] {
        let refused = cluster
            .try_apply(&pool("right", &["192.0.2.7", range]))
            .unwrap_err();
        assert!(
            refused.contains("not behind the last"),
            "{range}: {refused}"
        );
    }
    for range in [
        "192.0.2.9-192.0.2.9",
        "127.255.255.255-128.0.0.0",
        "1.0.0.0-254.255.255.254",
        "2001:db8:7fff::-2001:db8:8000::",
        "2001:db8::-2001:db8::ffff:ffff",
    ] {
        cluster.apply(&pool("right", &[range]));
    }

    // Selectors.
    let selecting = |selector: Value| {
        let mut pool: Value = serde_json::from_str(&pool("selects", &["192.0.2.7"])).unwrap();
        pool["spec"]["serviceSelector"] = selector.clone();
        pool["spec"]["namespaceSelector"] = selector;
        cluster.try_apply(&pool.to_string())
    };
    let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "example.com/app", "operator": operator, "values": values}]});
    for right in [
        json!({}),
        json!({"matchLabels": {"example.com/tier": "gold", "app": ""}}),
        expression("In", json!(["a", "b.c-d"])),
        expression("Exists", json!([])),
        json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}),
    ] {
        selecting(right).unwrap();
    }
    for (wrong, told) in [
        (expression("In", json!([])), "In and NotIn need values"),
        (
            expression("Exists", json!(["x"])),
            "In and NotIn need values",
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "NotIn"}]}),
            "In and NotIn need values",
        ),
        (
            json!({"matchExpressions": [{"key": "a b", "operator": "Exists"}]}),
            "key",
        ),
        (expression("In", json!(["x y"])), "values"),
        (
            json!({"matchLabels": {"a b": "x"}}),
            "each key is one that a label can have",
        ),
        (json!({"matchLabels": {"a": "x y"}}), "matchLabels"),
    ] {
        let refused = selecting(wrong.clone()).unwrap_err();
        assert!(refused.contains(told), "{wrong}: {refused}");
    }

    // What only the controller can tell, it tells.
    let _controller = cluster.controller(&[]);
    cluster.apply(&pool("late", &["127.0.0.1", "198.51.100.1"]));
    cluster.eventually("the pool is not ready", || {
        let late = cluster.get("lbpool", "late");
        let ready = &late["status"]["conditions"][0];
        let text = ready["message"].as_str().unwrap_or_default();
        expect(
            ready["reason"] == "InvalidAddresses" && text.contains("127.0.0.1"),
            &late["status"],
        )
    });
    cluster.apply(&annotated("web", "guideway.dev/pool: late", ""));
    assert_eq!(cluster.addresses("web", 1), ["198.51.100.1"]);
}
