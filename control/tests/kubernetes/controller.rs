//! `guideway controller`: addresses from pools to Services.

mod announced;
pub(crate) mod cluster;
mod pools;

use std::process::Command;

use k8s_openapi::jiff::Timestamp;
use lab::kubernetes::ControlPlane;
use lab::{Namespace, Signal};
use serde_json::{Value, json};

use self::cluster::{Cluster, PATIENCE, annotated, condition, expect, pool, service};

/// Where controllers of tests serve their metrics.
const METRICS: &str = "127.0.0.1:10792";

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
    let mut first = cluster.controller(&["--lease-duration", "15"]);
    first.wait_for_line("leads=true", PATIENCE).unwrap();
    let mut second = cluster.controller(&["--lease-duration", "15"]);
    // What others put on the Lease stays, whoever writes it.
    let lease = ["lease", "guideway-controller"];
    cluster.kubectl(&[&["annotate"], &lease[..], &["example.com/of=others"]].concat());
    cluster.kubectl(&[&["label"], &lease[..], &["team=network"]].concat());
    cluster.apply(&pool("public", &["192.0.2.0/29"]));
    cluster.apply(&service("a", ""));
    assert_eq!(cluster.addresses("a", 1), ["192.0.2.0"]);
    cluster.apply(&service("b", ""));
    assert_eq!(cluster.addresses("b", 1), ["192.0.2.1"]);
    let secrets = ["guideway-seed", "guideway-peers"];
    let made = secrets.map(|name| cluster.get("secret", name));
    for secret in &made {
        assert_eq!(secret["immutable"], true);
    }
    let before = cluster.get("service", "b");

    // Killed: the other takes over when the Lease has run out. What is freed meanwhile moves nobody.
    let time_of = |name: &str| -> Timestamp {
        let lease = cluster.get("lease", "guideway-controller");
        lease["spec"][name].as_str().unwrap().parse().unwrap()
    };
    first.signal(Signal::SIGKILL).unwrap();
    first.wait(PATIENCE).unwrap();
    let renewed = time_of("renewTime");
    cluster.kubectl(&["delete", "service", "a"]);
    second.wait_for_line("leads=true", PATIENCE).unwrap();
    let taken = time_of("acquireTime");
    assert!(
        taken.duration_since(renewed).as_secs() >= 15,
        "two led at a time: {renewed}, {taken}"
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
    let metadata = &lease["metadata"];
    assert_eq!(metadata["annotations"]["example.com/of"], "others");
    assert_eq!(metadata["labels"]["team"], "network");
    let mut third = cluster.controller(&[]);
    third.wait_for_line("leads=true", PATIENCE).unwrap();
    cluster.apply(&service("d", ""));
    assert_eq!(cluster.addresses("d", 1), ["192.0.2.2"]);
    let after = secrets.map(|name| cluster.get("secret", name));
    assert_eq!(after, made);
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

    // An address that a Node comes to claim stays where it is.
    cluster.apply(
        "{apiVersion: v1, kind: Node, metadata: {name: node9}, status: {addresses: [{type: InternalIP, address: 192.0.2.5}]}}",
    );
    assert_eq!(cluster.events("same", "AddressClaimed"), 1);
    assert_eq!(cluster.addresses("same", 1), ["192.0.2.5"]);
    cluster.apply(&annotated("late", "guideway.dev/addresses: 192.0.2.5", ""));
    cluster.told("late", "AddressIsNode", "192.0.2.5");
    cluster.events("late", "AddressIsNode");

    // Nor is one that API servers listen at.
    cluster.apply(
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}, addressType: IPv4, ports: [{name: https, port: 6443}], endpoints: [{addresses: [192.0.2.6]}]}",
    );
    cluster.apply(&annotated("api", "guideway.dev/addresses: 192.0.2.6", ""));
    cluster.told("api", "AddressIsApiServer", "192.0.2.6");
    cluster.events("api", "AddressIsApiServer");
}

#[test]
fn external_addresses_of_machines_are_told_and_those_of_outside_edges_never_given() {
    let cluster = Cluster::start();
    cluster.apply(
        "
apiVersion: v1
kind: Node
metadata: {name: node9}
status: {addresses: [{type: InternalIP, address: 192.0.2.65}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: edges, labels: {kubernetes.io/service-name: guideway}}
addressType: IPv4
ports: []
endpoints: [{addresses: [192.0.2.0]}, {addresses: [192.0.2.66]}]
",
    );
    let _controller = cluster.controller(&["--external-ips", "192.0.2.64/28"]);
    cluster.apply(&pool("public", &["192.0.2.0/29"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.1"]);
    cluster.apply(&annotated("asks", "guideway.dev/addresses: 192.0.2.0", ""));
    cluster.told("asks", "AddressIsNode", "outside the cluster");
    for (name, address) in [("node", "192.0.2.65"), ("edge", "192.0.2.66")] {
        cluster.apply(&service(name, &format!("externalIPs: [{address}]")));
        assert_eq!(cluster.events(name, "AddressIsNode"), 1);
    }
    cluster.apply(&service("other", "externalIPs: [192.0.2.80]"));
    assert_eq!(cluster.events("other", "ExternalAddressNotAllowed"), 1);

    // Nobody has the address any more.
    cluster.kubectl(&["delete", "endpointslice", "edges"]);
    assert_eq!(cluster.addresses("asks", 1), ["192.0.2.0"]);
}

#[test]
fn probes_and_metrics_tell_how_it_is() {
    let cluster = Cluster::start();
    cluster.kubectl(&["delete", "crd", "loadbalancerpools.guideway.dev"]);
    let _controller = cluster.controller(&["--metrics", METRICS]);
    let get = |path: &str| get(cluster.0.machine(), path);
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
fn requests_that_fail_are_counted_by_what_they_are_for() {
    let cluster = Cluster::start();
    cluster.allow_to_write("leases, secrets");
    let arguments = ["controller", "--metrics", METRICS];
    let (machine, _controller) = cluster.controller_as("default", "controller", arguments);
    cluster.apply(&pool("public", &["192.0.2.0/30"]));
    cluster.apply(&service("web", ""));
    assert_eq!(cluster.addresses("web", 1), ["192.0.2.0"]);
    let failed = |request: &str| {
        let metrics = get(&machine, "/metrics");
        let name = format!("guideway_controller_request_errors_total{{request=\"{request}\"}} ");
        let mut values = metrics.lines().filter_map(|line| line.strip_prefix(&name));
        values.next().map(|value| value.parse::<u64>().unwrap())
    };
    let is_counted = |request: &str| {
        cluster.eventually(&format!("{request} is counted"), || {
            let number = failed(request);
            expect(number > Some(0), format!("{number:?}"))
        });
    };
    is_counted("event");
    for request in ["lease", "pool", "seed"] {
        assert_eq!(failed(request), Some(0), "{request}");
    }

    cluster.allow_to_write("secrets");
    is_counted("lease");
    assert_eq!(failed("seed"), Some(0));
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
    control_plane
        .wait_for_kind("loadbalancerpools.guideway.dev")
        .unwrap();
    let cluster = Cluster(control_plane);

    // As its pod would run it: with its arguments, as its service account, on a machine of its own.
    let deployment = [&["deployment", "guideway-controller"][..], &namespaced].concat();
    let deployment = cluster.0.get(&deployment).unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"].as_array().unwrap().iter();
    let arguments = arguments.map(|argument| argument.as_str().unwrap());
    let account = pod["serviceAccountName"].as_str().unwrap();
    let cluster_wide = "patch loadbalancerpools.guideway.dev --subresource=status";
    for right in [cluster_wide, "create leases.coordination.k8s.io"] {
        let in_force = cluster.0.wait_for_right("guideway-system", account, right);
        in_force.unwrap();
    }
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
    for name in ["guideway-seed", "guideway-peers"] {
        let secret = [&["secret", name][..], &namespaced].concat();
        assert_eq!(cluster.0.get(&secret).unwrap()["immutable"], true);
    }
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

/// Asks a controller of this machine; returns the body and the status code behind it.
fn get(machine: &Namespace, path: &str) -> String {
    let mut curl = machine.command("curl");
    let url = format!("http://{METRICS}{path}");
    curl.args(["-sS", "-w", "%{http_code}", &url]);
    lab::output(&mut curl).unwrap_or_default()
}
