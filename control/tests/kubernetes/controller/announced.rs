//! The condition of a Service that says who announces its addresses, from Leases as edges write them.

use serde_json::{Value, json};

use super::cluster::{Cluster, condition, condition_of, expect, pool, service};
use super::{METRICS, get};

const ANNOUNCED: &str = "guideway.dev/Announced";
const EDGES: &str = "guideway-edges";

/// Writes the Lease by which an edge tells what it announces. `second` is the time of the renewal.
fn tell(cluster: &Cluster, edge: &str, second: u32, addresses: &str) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "namespace": EDGES, "name": format!("guideway-announced-{edge}"),
            "labels": {"guideway.dev/lease": "announced"},
            "annotations": {"guideway.dev/announced": addresses},
        },
        "spec": {
            "holderIdentity": edge, "leaseDurationSeconds": 30,
            "renewTime": format!("2026-11-21T12:00:{second:02}.000000Z"),
        },
    });
    cluster.apply(&lease.to_string());
}

/// Waits until the condition is as it should be; `None` if it should be gone.
fn wait_for(cluster: &Cluster, expected: Option<(&str, &str)>) {
    cluster.eventually(&format!("{expected:?}"), || {
        let web = cluster.get("service", "web");
        let told = condition_of(ANNOUNCED, &web);
        let told = told.map(|told| [&told["status"], &told["message"]].map(Value::as_str));
        let is = told == expected.map(|(status, message)| [Some(status), Some(message)]);
        expect(is, &web["status"])
    });
}

/// Waits until the controller has counted so many writes of Services.
fn expect_writes(cluster: &Cluster, number: u32) {
    let line = format!(
        "guideway_controller_writes_total{{object=\"service\",result=\"success\"}} {number}"
    );
    cluster.eventually(&line, || {
        let metrics = get(cluster.0.machine(), "/metrics");
        expect(metrics.lines().any(|other| other == line), &metrics)
    });
}

#[test]
fn condition_follows_what_edges_tell_with_a_write_for_each_change() {
    let cluster = Cluster::start();
    cluster.kubectl(&["create", "namespace", EDGES]);
    let _controller = cluster.controller(&["--metrics", METRICS]);
    cluster.apply(&pool("public", &["192.0.2.0/29", "2001:db8::/120"]));
    cluster.apply(&service("web", "ipFamilyPolicy: RequireDualStack"));
    assert_eq!(cluster.addresses("web", 2), ["192.0.2.0", "2001:db8::"]);
    let theirs = json!({"status": {"conditions": [{
        "type": "example.com/Theirs", "status": "True", "reason": "Any", "message": "",
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }]}});
    let patch = ["patch", "service", "web", "--subresource=status"];
    let theirs = ["--type=strategic", "-p", &theirs.to_string()];
    cluster.kubectl(&[&patch[..], &theirs].concat());

    tell(&cluster, "n1", 1, "192.0.2.0");
    let half = "192.0.2.0 by n1, 2001:db8:: by nobody";
    wait_for(&cluster, Some(("False", half)));
    tell(&cluster, "n2", 1, "2001:db8::");
    let both = "192.0.2.0 by n1, 2001:db8:: by n2";
    wait_for(&cluster, Some(("True", both)));

    // Renewals are no change, and an address that moves is one, though two edges tell of it.
    expect_writes(&cluster, 3);
    tell(&cluster, "n1", 2, "192.0.2.0");
    tell(&cluster, "n2", 2, "192.0.2.0,2001:db8::");
    tell(&cluster, "n1", 3, "");
    let moved = "192.0.2.0 by n2, 2001:db8:: by n2";
    wait_for(&cluster, Some(("True", moved)));
    expect_writes(&cluster, 4);

    // Without any edge that announces, it says nothing.
    cluster.kubectl(&["-n", EDGES, "delete", "leases", "--all"]);
    wait_for(&cluster, None);
    assert!(condition(&cluster.get("service", "web")).is_some());
    tell(&cluster, "n1", 4, "192.0.2.0,2001:db8::");
    wait_for(&cluster, Some(("True", &both.replace("n2", "n1"))));

    cluster.patch("service", "web", &json!({"spec": {"type": "ClusterIP"}}));
    wait_for(&cluster, None);
    let web = cluster.get("service", "web");
    assert!(condition(&web).is_none(), "{web}");
    assert!(condition_of("example.com/Theirs", &web).is_some(), "{web}");
}
