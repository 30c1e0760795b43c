//! `guideway controller`: addresses from pools to Services.

use std::process::Command;
use std::time::{Duration, Instant};

use lab::kubernetes::ControlPlane;
use lab::{Namespace, Process, Signal, wait_for};
use serde_json::{Value, json};

/// Far more than a decision and a write take, also beside other tests.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_service_gets_an_address_that_goes_with_its_type() {
    let cluster = Cluster::start();
    let _controller = cluster.controller(&[]);
    cluster.apply(&pool("public", &["192.0.2.0/29", "2001:db8::/120"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    let web = cluster.get("service", "web");
    assert_eq!(web["status"]["loadBalancer"]["ingress"][0]["ipMode"], "VIP");
    let told = condition(&web).unwrap();
    assert_eq!(told["status"], "True");
    assert_eq!(told["reason"], "Assigned");
    assert_eq!(told["message"], "192.0.2.0");
    assert_eq!(web["metadata"]["finalizers"], Value::Null);

    cluster.apply(&service("dual", "ipFamilyPolicy: RequireDualStack"));
    assert_eq!(cluster.addresses("dual", 2), ["192.0.2.1", "2001:db8::"]);

    // A second family comes beside the first.
    cluster.patch(
        "service",
        "web",
        &json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}}),
    );
    assert_eq!(cluster.addresses("web", 2), ["192.0.2.0", "2001:db8::1"]);

    cluster.patch("service", "web", &json!({"spec": {"type": "ClusterIP"}}));
    cluster.eventually("nothing of it is left", || {
        let web = cluster.get("service", "web");
        let ingress = &web["status"]["loadBalancer"]["ingress"];
        expect(
            ingress.is_null() && condition(&web).is_none(),
            &web["status"],
        )
    });
    // The address is free again.
    cluster.apply(&annotated("other", "guideway.dev/addresses: 192.0.2.0", ""));
    assert_eq!(cluster.addresses("other", 1), ["192.0.2.0"]);
}

#[test]
fn addresses_outlive_the_controller_and_a_leader_is_followed() {
    let cluster = Cluster::start();
    let mut first = cluster.controller(&["--lease-duration", "4"]);
    first.wait_for_line("leads=true", PATIENCE).unwrap();
    let mut second = cluster.controller(&["--lease-duration", "4"]);
    cluster.apply(&pool("public", &["192.0.2.0/29"]));
    cluster.apply(&service("a", ""));
    assert_eq!(cluster.addresses("a", 1), ["192.0.2.0"]);
    cluster.apply(&service("b", ""));
    assert_eq!(cluster.addresses("b", 1), ["192.0.2.1"]);
    let seed = cluster.get("secret", "guideway-seed");
    assert_eq!(seed["immutable"], true);
    let before = cluster.get("service", "b");

    // Killed: the other takes over when the Lease has run out. What is freed meanwhile moves nobody.
    let killed = Instant::now();
    first.signal(Signal::SIGKILL).unwrap();
    first.wait(PATIENCE).unwrap();
    cluster.kubectl(&["delete", "service", "a"]);
    second.wait_for_line("leads=true", PATIENCE).unwrap();
    assert!(
        killed.elapsed() >= Duration::from_secs(1),
        "two led at a time"
    );
    cluster.apply(&service("c", ""));
    assert_eq!(cluster.addresses("c", 1), ["192.0.2.0"]);
    let after = cluster.get("service", "b");
    assert_eq!(
        after["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );

    // Ended in order: it gives the Lease back, and the next one need not wait.
    second.signal(Signal::SIGTERM).unwrap();
    assert!(
        second.wait(PATIENCE).unwrap().success(),
        "{}",
        second.stderr()
    );
    let lease = cluster.get("lease", "guideway-controller");
    assert_eq!(
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default(),
        ""
    );
    let mut third = cluster.controller(&[]);
    third.wait_for_line("leads=true", PATIENCE).unwrap();
    cluster.apply(&service("d", ""));
    assert_eq!(cluster.addresses("d", 1), ["192.0.2.2"]);
    assert_eq!(cluster.get("secret", "guideway-seed")["data"], seed["data"]);
}

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
    let mut first = cluster.controller(&["--lease-duration", "4"]);
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
    let mut second = cluster.controller(&["--lease-duration", "4"]);
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
    let controller = cluster.controller(&["--lease-duration", "4"]);
    cluster.apply(&pool("public", &["192.0.2.0/28"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    drop(controller);
    cluster.delete_pool("public");
    cluster.kubectl(&["delete", "service", "web"]);
    let terminating = cluster.get("lbpool", "public");
    assert!(terminating["metadata"]["deletionTimestamp"].is_string());
    let controller = cluster.controller(&["--lease-duration", "4"]);
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
fn what_is_wrong_with_a_service_is_told_once() {
    let cluster = Cluster::start();
    let _controller = cluster.controller(&[]);
    cluster.apply(&pool("public", &["192.0.2.0/28"]));
    let wrong = annotated("web", "guideway.dev/mode: tunnel", "");
    cluster.apply(&wrong);
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    assert_eq!(cluster.events("web", "InvalidAnnotation"), 1);
    // What else changes about it says nothing new.
    cluster.apply(&wrong.replace("port: 80", "port: 8080"));
    cluster.apply(&annotated("other", "guideway.dev/table-size: '7'", ""));
    assert_eq!(cluster.events("other", "InvalidAnnotation"), 1);
    let about = "involvedObject.name=web,reason=InvalidAnnotation";
    let events = cluster
        .0
        .get(&["events", "--field-selector", about])
        .unwrap();
    let [event] = &events["items"].as_array().unwrap()[..] else {
        panic!("{events}");
    };
    let note = event["message"].as_str().unwrap();
    assert!(
        note.contains("\"tunnel\" is no mode") && note.contains("use ipip"),
        "{note}"
    );
    assert_eq!(
        (&event["type"], &event["series"]),
        (&json!("Warning"), &Value::Null)
    );
    let web = cluster.get("service", "web");
    assert_eq!(event["involvedObject"]["uid"], web["metadata"]["uid"]);

    // Something else of the same kind gets a text of its own.
    cluster.apply(&annotated("web", "guideway.dev/table-size: '13'", ""));
    cluster.eventually("both are told", || {
        let events = cluster.0.get(&["events", "--field-selector", about]);
        let texts = events.map_err(|error| error.to_string())?.to_string();
        let told = ["is no mode", "\\\"13\\\""]
            .iter()
            .all(|text| texts.contains(text));
        expect(told, texts)
    });
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
    let begun = Instant::now();
    let mut stripped = 0;
    while begun.elapsed() < Duration::from_secs(12) {
        if cluster.finalizers("public") == ours {
            cluster.patch("lbpool", "public", &strip);
            stripped += 1;
        }
    }
    // What was there, twice at once, the first time as something new, and after 1, 2 and 4 seconds.
    assert!((3..=6).contains(&stripped), "{stripped} times");
    // Meanwhile others get what they ask for: that is something else to be written.
    cluster.patch("lbpool", "public", &strip);
    cluster.apply(&service("other", ""));
    assert_eq!(cluster.addresses("other", 1), ["192.0.2.1"]);
    // With nobody against it, it stays.
    cluster.eventually("the finalizer is back", || {
        let left = cluster.finalizers("public");
        expect(left == ours, &left)
    });
}

#[test]
fn services_say_that_the_controller_may_not_write_their_pool() {
    let cluster = Cluster::start();
    // Rights as they were before pools had finalizers.
    cluster.apply(&account("get"));
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

    cluster.apply(&account("patch"));
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

    // What only the controller can tell, it tells.
    let _controller = cluster.controller(&[]);
    cluster.apply(&pool("late", &["192.0.2.9-192.0.2.1", "198.51.100.1"]));
    cluster.eventually("the pool is not ready", || {
        let late = cluster.get("lbpool", "late");
        let ready = &late["status"]["conditions"][0];
        let text = ready["message"].as_str().unwrap_or_default();
        expect(
            ready["reason"] == "InvalidAddresses" && text.contains("192.0.2.9-192.0.2.1"),
            &late["status"],
        )
    });
    cluster.apply(&annotated("web", "guideway.dev/pool: late", ""));
    assert_eq!(cluster.addresses("web", 1), ["198.51.100.1"]);
}

#[test]
fn services_of_other_classes_are_left_alone() {
    let cluster = Cluster::start();
    cluster.apply(&pool("public", &["192.0.2.0/29"]));
    let none = service("none", "").replace("loadBalancerClass: guideway.dev/guideway", "");
    let other = service("other", "").replace("guideway.dev/guideway", "example.com/other");
    cluster.apply(&none);
    cluster.apply(&other);
    // Another one of ours may serve that class.
    let condition_of_theirs = json!({
        "type": "guideway.dev/AddressAssigned",
        "status": "True",
        "reason": "Assigned",
        "message": "192.0.2.0",
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    });
    let theirs = json!({"status": {
        "loadBalancer": {"ingress": [{"ip": "192.0.2.0"}]},
        "conditions": [condition_of_theirs],
    }});
    cluster.kubectl(&[
        "patch",
        "service",
        "other",
        "--subresource=status",
        "--type=merge",
        "-p",
        &theirs.to_string(),
    ]);
    let before = ["none", "other"].map(|name| cluster.get("service", name));

    let controller = cluster.controller(&[]);
    cluster.apply(&service("ours", ""));
    // Theirs is not given to ours.
    assert_eq!(cluster.addresses("ours", 1), ["192.0.2.1"]);
    let after = ["none", "other"].map(|name| cluster.get("service", name));
    assert_eq!(before, after);
    drop(controller);

    let controller = cluster.controller(&["--default-class"]);
    assert_eq!(cluster.addresses("none", 1), ["192.0.2.2"]);
    assert_eq!(cluster.get("service", "other"), before[1]);
    drop(controller);

    // No longer ours: what was said of it is taken back.
    let _controller = cluster.controller(&[]);
    cluster.eventually("it is taken back", || {
        let none = cluster.get("service", "none");
        let ingress = &none["status"]["loadBalancer"]["ingress"];
        expect(
            ingress.is_null() && condition(&none).is_none(),
            &none["status"],
        )
    });
}

#[test]
fn requests_and_conflicts_are_told_by_conditions_and_events() {
    let cluster = Cluster::start();
    let _controller = cluster.controller(&[]);
    cluster.apply(&pool("public", &["192.0.2.0/29"]));
    cluster.apply(&service("old", "loadBalancerIP: 192.0.2.5"));
    assert_eq!(cluster.addresses("old", 1), ["192.0.2.5"]);
    assert_eq!(cluster.events("old", "IPAllocated"), 1);

    cluster.apply(&annotated("same", "guideway.dev/addresses: 192.0.2.5", ""));
    cluster.told("same", "AddressInUse", "default/old");
    assert_eq!(cluster.events("same", "AllocationFailed"), 1);
    cluster.apply(&annotated(
        "two",
        "guideway.dev/addresses: 192.0.2.3",
        "loadBalancerIP: 192.0.2.4",
    ));
    cluster.told("two", "InvalidRequest", "spec.loadBalancerIP");
    cluster.apply(&annotated("out", "guideway.dev/addresses: 203.0.113.1", ""));
    cluster.told("out", "NotInPools", "203.0.113.1");

    // Sharing, and what is against it.
    let tcp = annotated("dns-tcp", "guideway.dev/sharing-key: dns", "");
    cluster.apply(&tcp);
    assert_eq!(cluster.addresses("dns-tcp", 1), ["192.0.2.0"]);
    cluster.apply(
        &tcp.replace("dns-tcp", "dns-udp")
            .replace("port: 80", "protocol: UDP, port: 80"),
    );
    assert_eq!(cluster.addresses("dns-udp", 1), ["192.0.2.0"]);
    let clash = "guideway.dev/sharing-key: dns, guideway.dev/addresses: 192.0.2.0";
    cluster.apply(&annotated("clash", clash, ""));
    cluster.told("clash", "AddressInUse", "80/tcp");

    // What is freed goes to who waits.
    cluster.kubectl(&["delete", "service", "old"]);
    assert_eq!(cluster.addresses("same", 1), ["192.0.2.5"]);

    // An address that becomes a Node's is taken back.
    cluster.apply(
        "{apiVersion: v1, kind: Node, metadata: {name: node9}, status: {addresses: [{type: InternalIP, address: 192.0.2.5}]}}",
    );
    cluster.told("same", "AddressIsNode", "192.0.2.5");
    assert_eq!(cluster.addresses("same", 0), [""; 0]);
    cluster.events("same", "AddressIsNode");

    // Nor is one that API servers listen at.
    cluster.apply(
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}, addressType: IPv4, ports: [{name: https, port: 6443}], endpoints: [{addresses: [192.0.2.6]}]}",
    );
    cluster.apply(&annotated("api", "guideway.dev/addresses: 192.0.2.6", ""));
    cluster.told("api", "AddressIsApiServer", "192.0.2.6");
    cluster.events("api", "AddressIsApiServer");
}

#[test]
fn probes_and_metrics_tell_how_it_is() {
    let cluster = Cluster::start();
    cluster.kubectl(&["delete", "crd", "loadbalancerpools.guideway.dev"]);
    let _controller = cluster.controller(&["--metrics", "127.0.0.1:10792"]);
    let get = |path: &str| {
        let mut curl = cluster.0.machine().command("curl");
        curl.args([
            "-sS",
            "-w",
            "%{http_code}",
            &format!("http://127.0.0.1:10792{path}"),
        ]);
        lab::output(&mut curl).unwrap_or_default()
    };
    cluster.eventually("three lists have arrived", || {
        let answer = get("/readyz");
        expect(
            answer == "waiting for the list of loadbalancerpools\n503",
            &answer,
        )
    });
    assert_eq!(get("/livez"), "ok\n200");
    cluster.install_crd();
    cluster.apply(&pool("public", &["192.0.2.0/30"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    assert_eq!(get("/readyz"), "ok\n200");
    cluster.eventually("the metrics tell", || {
        let metrics = get("/metrics");
        let lines = [
            "guideway_controller_leader 1",
            "guideway_controller_services{state=\"assigned\"} 1",
            "guideway_controller_pool_used_addresses{pool=\"public\"} 1",
            "guideway_controller_pool_free_addresses{pool=\"public\",family=\"ipv4\"} 3",
        ];
        let all = lines
            .iter()
            .all(|line| metrics.lines().any(|other| other == *line));
        expect(all, &metrics)
    });
}

#[test]
fn the_chart_installs_a_controller_that_may_do_its_work() {
    let control_plane = ControlPlane::start().unwrap();
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/guideway");
    let values = "image.repository=example/guideway,agent.interfaces[0].name=eth0";
    let namespaced = ["--namespace", "guideway-system"];
    let template = [
        "template",
        "guideway",
        chart,
        "--include-crds",
        "--set",
        values,
    ];
    let objects = control_plane
        .helm(&[&template[..], &namespaced].concat())
        .unwrap();
    control_plane
        .kubectl(&["create", "namespace", "guideway-system"])
        .unwrap();
    control_plane.apply(&objects).unwrap();
    let cluster = Cluster(control_plane);

    // As its pod would run it: with its arguments, as its service account, on a machine of its own.
    let deployment = [&["deployment", "guideway-controller"][..], &namespaced].concat();
    let deployment = cluster.0.get(&deployment).unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"].as_array().unwrap().iter();
    let arguments = arguments.map(|argument| argument.as_str().unwrap());
    let account = pod["serviceAccountName"].as_str().unwrap();
    let (_machine, mut controller) = cluster.controller_as("guideway-system", account, arguments);

    cluster.apply(&pool("public", &["192.0.2.0/29"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    assert_eq!(cluster.events("web", "IPAllocated"), 1);
    assert_eq!(cluster.finalizers("public"), json!(["guideway.dev/in-use"]));
    cluster.delete_pool("public");
    assert_eq!(cluster.events("public", "PoolInUse"), 1);
    cluster.kubectl(&["delete", "service", "web"]);
    cluster.is_gone("lbpool/public");
    let seed = [&["secret", "guideway-seed"][..], &namespaced].concat();
    assert_eq!(cluster.0.get(&seed).unwrap()["immutable"], true);
    controller.signal(Signal::SIGTERM).unwrap();
    assert!(controller.wait(PATIENCE).unwrap().success());
    let log = controller.stderr();
    assert!(
        log.contains("gave the Lease back") && !log.contains("orbidden"),
        "{log}"
    );
}

#[test]
fn the_chart_has_the_definition_that_the_binary_prints() {
    let printed = lab::output(
        Command::new(env!("CARGO_BIN_EXE_guideway")).args(["controller", "--print-crds"]),
    );
    let chart = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/helm/guideway/crds/loadbalancerpools.yaml"
    );
    let chart = std::fs::read_to_string(chart).unwrap();
    assert!(
        chart == printed.unwrap(),
        "run: guideway controller --print-crds > deploy/helm/guideway/crds/loadbalancerpools.yaml"
    );
}

struct Cluster(ControlPlane);

impl Cluster {
    fn start() -> Self {
        let cluster = Self(ControlPlane::start().unwrap());
        cluster.install_crd();
        cluster
    }

    fn install_crd(&self) {
        let printed = lab::output(
            Command::new(env!("CARGO_BIN_EXE_guideway")).args(["controller", "--print-crds"]),
        );
        self.apply(&printed.unwrap());
        self.kubectl(&[
            "wait",
            "--for=condition=Established",
            "crd/loadbalancerpools.guideway.dev",
        ]);
    }

    /// Starts a controller on the control plane's machine.
    fn controller(&self, arguments: &[&str]) -> Process {
        let machine = self.0.machine();
        let mut command = machine.command(env!("CARGO_BIN_EXE_guideway"));
        command
            .args(["controller", "--namespace", "default"])
            .args(arguments)
            .env(
                "KUBECONFIG",
                std::path::Path::new(Namespace::FILES).join("kubeconfig"),
            );
        Process::spawn(&mut command).unwrap()
    }

    /// Starts one with the rights of a service account, on a machine of its own.
    fn controller_as<'a>(
        &self,
        namespace: &str,
        account: &str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> (Namespace, Process) {
        let token = self.0.service_account_token(namespace, account).unwrap();
        let machine = Namespace::new("controller").unwrap();
        self.0.connect(&machine).unwrap();
        let kubeconfig = self.0.write_kubeconfig(&machine, &token).unwrap();
        let mut command = machine.command(env!("CARGO_BIN_EXE_guideway"));
        command
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .env("POD_NAMESPACE", namespace);
        let controller = Process::spawn(&mut command).unwrap();
        (machine, controller)
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.0.kubectl(arguments).unwrap()
    }

    fn apply(&self, objects: &str) {
        self.0.apply(objects).unwrap();
    }

    fn try_apply(&self, objects: &str) -> Result<String, String> {
        self.0.apply(objects).map_err(|error| error.to_string())
    }

    fn patch(&self, kind: &str, name: &str, patch: &Value) {
        self.kubectl(&[
            "patch",
            kind,
            name,
            "--type=merge",
            "-p",
            &patch.to_string(),
        ]);
    }

    fn get(&self, kind: &str, name: &str) -> Value {
        self.0.get(&[kind, name]).unwrap()
    }

    fn eventually(&self, awaited: &str, attempt: impl FnMut() -> Result<(), String>) {
        wait_for(awaited, PATIENCE, attempt).unwrap();
    }

    fn finalizers(&self, pool: &str) -> Value {
        self.get("lbpool", pool)["metadata"]["finalizers"].clone()
    }

    fn delete_pool(&self, name: &str) {
        self.kubectl(&["delete", "lbpool", name, "--wait=false"]);
    }

    fn is_gone(&self, object: &str) {
        self.kubectl(&["wait", "--for=delete", object, "--timeout=60s"]);
    }

    /// Waits until a pool that is being deleted says which Service it is kept for.
    fn waits_for(&self, pool: &str, service: &str) {
        self.eventually(&format!("{pool} waits for {service}"), || {
            let pool = self.get("lbpool", pool);
            let ready = &pool["status"]["conditions"][0];
            let text = ready["message"].as_str().unwrap_or_default();
            let is = ready["reason"] == "Terminating" && text.contains(service);
            expect(is && ready["status"] == "False", &pool["status"])
        });
    }

    /// Waits until a Service has so many addresses, and returns them.
    fn addresses(&self, name: &str, number: usize) -> Vec<String> {
        let awaited = format!("{name} has {number} addresses");
        wait_for(&awaited, PATIENCE, || {
            let service = self.get("service", name);
            let ingress = service["status"]["loadBalancer"]["ingress"].as_array();
            let addresses = ingress.into_iter().flatten();
            let addresses: Vec<String> = addresses
                .map(|ingress| ingress["ip"].as_str().unwrap_or_default().to_owned())
                .collect();
            match addresses.len() == number {
                true => Ok(addresses),
                false => Err(service["status"].to_string()),
            }
        })
        .unwrap()
    }

    /// Waits until a Service's condition has a reason and a message with a text.
    fn told(&self, name: &str, reason: &str, text: &str) {
        self.eventually(&format!("{name}: {reason}"), || {
            let service = self.get("service", name);
            let told = condition(&service);
            let is = told.is_some_and(|told| {
                let message = told["message"].as_str().unwrap_or_default();
                told["reason"] == reason && message.contains(text) && told["status"] == "False"
            });
            expect(is, &service["status"])
        });
    }

    /// Waits until there are Events for a reason about a Service, and counts them.
    fn events(&self, name: &str, reason: &str) -> usize {
        let about = format!("involvedObject.name={name},reason={reason}");
        let arguments = ["events", "--field-selector", &about];
        wait_for(&format!("Event {reason} about {name}"), PATIENCE, || {
            let events = self.0.get(&arguments).map_err(|error| error.to_string())?;
            match events["items"].as_array().map_or(0, Vec::len) {
                0 => Err("none".to_owned()),
                number => Ok(number),
            }
        })
        .unwrap()
    }
}

fn condition(service: &Value) -> Option<&Value> {
    let conditions = service["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == "guideway.dev/AddressAssigned")
}

fn expect(is: bool, otherwise: impl ToString) -> Result<(), String> {
    is.then_some(()).ok_or_else(|| otherwise.to_string())
}

fn pool(name: &str, addresses: &[&str]) -> String {
    json!({
        "apiVersion": "guideway.dev/v1alpha1",
        "kind": "LoadBalancerPool",
        "metadata": {"name": name},
        "spec": {"addresses": addresses},
    })
    .to_string()
}

/// A service account `controller` with the rights that one needs, of those on pools only to read and `on_pools`.
fn account(on_pools: &str) -> String {
    format!(
        "
apiVersion: v1
kind: ServiceAccount
metadata: {{name: controller, namespace: default}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: controller}}
rules:
- {{apiGroups: ['', discovery.k8s.io], resources: [services, nodes, namespaces, endpointslices], verbs: [get, list, watch]}}
- {{apiGroups: [guideway.dev], resources: [loadbalancerpools], verbs: [get, list, watch, {on_pools}]}}
- {{apiGroups: ['', guideway.dev], resources: [services/status, loadbalancerpools/status], verbs: [patch]}}
- {{apiGroups: ['', events.k8s.io, coordination.k8s.io], resources: [events, leases, secrets], verbs: [get, create, update, patch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: controller}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: controller}}
subjects: [{{kind: ServiceAccount, name: controller, namespace: default}}]
"
    )
}

fn service(name: &str, spec: &str) -> String {
    annotated(name, "", spec)
}

/// A Service of our class, with annotations and a line of its specification.
fn annotated(name: &str, annotations: &str, spec: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: {name}, annotations: {{{annotations}}}}}
spec:
  type: LoadBalancer
  loadBalancerClass: guideway.dev/guideway
  allocateLoadBalancerNodePorts: false
  selector: {{app: web}}
  ports: [{{name: http, port: 80}}]
  {spec}
"
    )
}
