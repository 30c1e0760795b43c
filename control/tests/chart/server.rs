//! The chart's objects on a real API server, and what its service accounts may do there.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use lab::kubernetes::ControlPlane;
use serde_json::{Value, json};

use super::chart::{DETACH, NAMESPACE, Objects, deploy, manifest, text};

/// Stands for the definitions of Prometheus Operator, which keep unknown fields out of what is asserted here.
const MONITORING: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: ServiceMonitor, listKind: ServiceMonitorList, plural: servicemonitors, singular: servicemonitor}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: prometheusrules.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: PrometheusRule, listKind: PrometheusRuleList, plural: prometheusrules, singular: prometheusrule}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
";

const EVERYTHING: &[&str] = &[
    "namespace.create=true",
    "metrics.serviceMonitor.enabled=true",
    "metrics.prometheusRule.enabled=true",
    "metrics.dashboard.enabled=true",
    "networkPolicy.enabled=true",
    "networkPolicy.peersFrom[0].ipBlock.cidr=198.51.100.0/29",
    "agent.seLinuxOptions.type=spc_t",
    "apiServer.host=198.51.100.10",
    "agent.extraConfig.announce.interfaces[0]=eth0",
];

/// How long the API server may take until an object that it has written is in force.
const TIMEOUT: Duration = Duration::from_secs(60);
const LEASES: &str = "leases.coordination.k8s.io";
/// The namespace of the edges' Leases.
const LEASE_NAMESPACE: &str = "guideway-edges";
const FOLLOWS: [&str; 2] = ["list", "watch"];
const READS: [&str; 3] = ["get", "list", "watch"];
const WRITES: [&str; 4] = ["create", "update", "patch", "delete"];

#[test]
fn api_server_takes_every_object_and_enforces_what_each_may_do() {
    let server = ControlPlane::start().unwrap();
    server.apply(MONITORING).unwrap();
    for crd in ["servicemonitors", "prometheusrules"] {
        let kind = format!("{crd}.monitoring.coreos.com");
        server.wait_for_kind(&kind).unwrap();
    }

    for values in [&[DETACH, "namespace.create=true"][..], &[], EVERYTHING] {
        strictly(&server, &manifest(values));
    }
    strictly(&server, &text("examples/outside-edge.yaml"));
    strictly(&server, &text("examples/outside-edge-announcing.yaml"));
    let documents = super::pages::documents();
    assert!(documents.len() > 2, "{documents:?}");
    for (page, objects) in documents {
        println!("{page}");
        strictly(&server, &objects);
    }
    pods_are_admitted_where_the_namespace_is_labelled(&server);
    agents_may_do_what_they_need(&server);
    edges_outside_write_their_leases_at_most(&server);
    each_agent_writes_the_lease_of_its_node_alone(&server);
    controller_may_do_what_it_needs(&server);
    cluster_roles_have_the_rights_on_pools(&server);
    edge_outside_gets_no_token_that_outlives_its_secret(&server);
}

/// Applies objects; unknown fields and the server's warnings are errors.
fn strictly(server: &ControlPlane, objects: &str) {
    let path = server.machine().write_file("chart.yaml", objects).unwrap();
    let path = path.to_str().unwrap();
    let apply = [
        "apply",
        "--validate=strict",
        "--warnings-as-errors",
        "-f",
        path,
    ];
    server.kubectl(&apply).unwrap();
}

/// The namespace's label admits agents; a namespace for unprivileged pods would admit the controller.
fn pods_are_admitted_where_the_namespace_is_labelled(server: &ControlPlane) {
    let objects = Objects::render(&[]);
    let restricted = "
apiVersion: v1
kind: Namespace
metadata: {name: restricted, labels: {pod-security.kubernetes.io/enforce: restricted}}
";
    server.apply(restricted).unwrap();
    let admits = |pod: &Value, namespace: &str| {
        let mut pod = pod.clone();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!("probe");
        let path = server.machine().write_file("pod.json", pod.to_string());
        let path = path.unwrap();
        let path = path.to_str().unwrap();
        server.kubectl(&["create", "--dry-run=server", "-n", namespace, "-f", path])
    };
    admits(objects.agent_pod(), NAMESPACE).unwrap();
    admits(objects.controller_pod(), NAMESPACE).unwrap();
    admits(objects.controller_pod(), "restricted").unwrap();
    let refused = admits(objects.agent_pod(), "restricted").unwrap_err();
    assert!(refused.to_string().contains("PodSecurity"), "{refused}");
}

fn agents_may_do_what_they_need(server: &ControlPlane) {
    let mut agent = Account::new("guideway-agent");
    agent.may(&["get"], "services", "default");
    agent.may_not(&["get"], "nodes", "default");
    agent.may_not(&["get"], "endpointslices.discovery.k8s.io", "default");
    for resource in ["services", "nodes", "endpointslices.discovery.k8s.io"] {
        agent.may(&FOLLOWS, resource, "default");
        agent.may_not(&WRITES, resource, "default");
    }
    let events = "events.events.k8s.io";
    agent.may(&["create", "patch"], events, "default");
    agent.may_not(&["delete", "list"], events, "default");
    agent.may_not(&["patch", "update"], "services/status", "default");
    agent.may(&["get"], "secrets:guideway-seed", NAMESPACE);
    agent.may(&["get"], "secrets:guideway-peers", NAMESPACE);
    agent.may_not(&WRITES, "secrets:guideway-peers", NAMESPACE);
    agent.may_not(&["get"], "secrets:another", NAMESPACE);
    agent.may_not(&["list", "watch", "create", "update"], "secrets", NAMESPACE);
    agent.may_not(&WRITES, "events", "default");
    agent.may(&FOLLOWS, LEASES, LEASE_NAMESPACE);
    agent.may(&["create", "patch"], LEASES, LEASE_NAMESPACE);
    agent.may_not(&["get", "update", "delete"], LEASES, LEASE_NAMESPACE);
    // Of the version before; the controller's is among them.
    agent.may(&FOLLOWS, LEASES, NAMESPACE);
    agent.may_not(&WRITES, LEASES, NAMESPACE);
    let of_the_controller = format!("{LEASES}:guideway-controller");
    agent.may_not(&WRITES, &of_the_controller, NAMESPACE);
    agent.may_not(&READS, LEASES, "kube-system");
    agent.may_not(&WRITES, LEASES, "kube-system");
    agent.ask(server);
}

fn edges_outside_write_their_leases_at_most(server: &ControlPlane) {
    for announces in [false, true] {
        let mut edge = Account::new(if announces {
            "guideway-outside-announcing"
        } else {
            "guideway-outside"
        });
        for resource in ["services", "nodes", "endpointslices.discovery.k8s.io"] {
            edge.may(&FOLLOWS, resource, "default");
            edge.may_not(&WRITES, resource, "default");
        }
        edge.may(&["get"], "secrets:guideway-seed", NAMESPACE);
        edge.may(&["get"], "secrets:guideway-peers", NAMESPACE);
        edge.may_not(&WRITES, "secrets", NAMESPACE);
        edge.may_not(&WRITES, "events.events.k8s.io", "default");
        edge.may_not(&WRITES, LEASES, NAMESPACE);
        if announces {
            edge.may(&FOLLOWS, LEASES, NAMESPACE);
            edge.may(&FOLLOWS, LEASES, LEASE_NAMESPACE);
            edge.may(&["create", "patch"], LEASES, LEASE_NAMESPACE);
        } else {
            edge.may_not(&READS, LEASES, NAMESPACE);
            edge.may_not(&READS, LEASES, LEASE_NAMESPACE);
            edge.may_not(&WRITES, LEASES, LEASE_NAMESPACE);
        }
        edge.ask(server);
    }
}

/// By the tokens that the kubelet gives to pods.
fn each_agent_writes_the_lease_of_its_node_alone(server: &ControlPlane) {
    let token = |node: &str| {
        let object = format!("{{apiVersion: v1, kind: Node, metadata: {{name: {node}}}}}");
        server.apply(&object).unwrap();
        server.pod_token(NAMESPACE, "guideway-agent", node).unwrap()
    };
    let (first, second) = (token("node1"), token("node2"));
    let write = |token: &str, name: &str, holder: &str| {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
            "spec": {"holderIdentity": holder},
        });
        let path = server.machine().write_file("lease.json", lease.to_string());
        let path = path.unwrap();
        let apply = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--validate=false",
        ];
        let token = format!("--token={token}");
        server.kubectl(&[&apply[..], &[&token, "-f", path.to_str().unwrap()]].concat())
    };
    let is_refused = |outcome: Result<String, lab::Error>| match outcome {
        Ok(_) => false,
        Err(error) => error.to_string().contains("its own node and no other"),
    };
    // The API server takes note of a policy a moment after it is written.
    lab::wait_until("the policy is in force", TIMEOUT, || {
        is_refused(write(&first, "guideway-edge-probe", "probe"))
    })
    .unwrap();
    for kind in ["edge", "announced"] {
        write(&first, &format!("guideway-{kind}-node1"), "node1").unwrap();
        let of_another = write(&first, &format!("guideway-{kind}-node2"), "node2");
        assert!(is_refused(of_another), "created");
    }
    assert!(
        is_refused(write(&second, "guideway-edge-node1", "node1")),
        "changed"
    );
    assert!(is_refused(write(&first, "guideway-edge-node1", "node2")));
    assert!(is_refused(write(
        &first,
        "guideway-edge-node1-too",
        "node1"
    )));
    let of_no_pod = server.service_account_token(NAMESPACE, "guideway-agent");
    let of_no_pod = of_no_pod.unwrap();
    assert!(is_refused(write(
        &of_no_pod,
        "guideway-edge-node1",
        "node1"
    )));
    let outside = server.service_account_token(NAMESPACE, "guideway-outside-announcing");
    write(&outside.unwrap(), "guideway-edge-outside", "outside").unwrap();
}

fn controller_may_do_what_it_needs(server: &ControlPlane) {
    let mut controller = Account::new("guideway-controller");
    let pools = "loadbalancerpools.guideway.dev";
    let slices = "endpointslices.discovery.k8s.io";
    for resource in ["services", "nodes", "namespaces", slices, pools] {
        controller.may(&FOLLOWS, resource, "default");
        controller.may_not(&["create", "update", "delete"], resource, "default");
    }
    for resource in ["services", "nodes", "namespaces", slices] {
        controller.may_not(&["get", "patch"], resource, "default");
    }
    controller.may(&["get", "patch"], pools, "default");
    controller.may(&["create", "patch"], "events.events.k8s.io", "default");
    controller.may_not(&WRITES, "events", "default");
    for status in ["services/status", "loadbalancerpools/status.guideway.dev"] {
        controller.may(&["patch"], status, "default");
        controller.may_not(&["get", "update"], status, "default");
    }
    controller.may(&["create"], "secrets", NAMESPACE);
    controller.may_not(&["create"], "secrets", "default");
    for secret in ["secrets:guideway-seed", "secrets:guideway-peers"] {
        controller.may(&["get"], secret, NAMESPACE);
        controller.may_not(&["update", "patch", "delete"], secret, NAMESPACE);
    }
    let leases = "leases.coordination.k8s.io";
    controller.may(&["create"], leases, NAMESPACE);
    controller.may_not(&["create"], leases, "default");
    let own = "leases.coordination.k8s.io:guideway-controller";
    controller.may(&["get", "patch"], own, NAMESPACE);
    controller.may(&FOLLOWS, leases, LEASE_NAMESPACE);
    controller.may_not(&WRITES, leases, LEASE_NAMESPACE);
    controller.may_not(&["update", "delete"], own, NAMESPACE);
    controller.may_not(
        &["get", "patch"],
        "leases.coordination.k8s.io:another",
        NAMESPACE,
    );
    controller.ask(server);
}

/// The controller manager, which does not run here, adds the rules of what these labels select.
fn cluster_roles_have_the_rights_on_pools(server: &ControlPlane) {
    for (role, verbs) in [
        ("view", json!(["get", "list", "watch"])),
        ("edit", json!(["create", "update", "patch", "delete"])),
    ] {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{role}=true");
        let added = server.get(&["clusterroles", "-l", &label]).unwrap();
        let added = added["items"].as_array().unwrap().iter();
        let mut ours =
            added.filter(|role| role["rules"][0]["apiGroups"] == json!(["guideway.dev"]));
        let rules = &ours.next().unwrap()["rules"];
        assert_eq!(rules[0]["resources"], json!(["loadbalancerpools"]));
        assert_eq!(rules[0]["verbs"], verbs, "{role}");
        assert_eq!(ours.next(), None);
    }
}

fn edge_outside_gets_no_token_that_outlives_its_secret(server: &ControlPlane) {
    let account = "guideway-outside";
    let bound = ["--bound-object-kind=Secret", "--bound-object-name", account];
    let create = [
        "create",
        "token",
        "-n",
        NAMESPACE,
        account,
        "--duration=168h",
    ];
    let first = server.kubectl(&[&create[..], &bound].concat()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    std::fs::write(&path, &first).unwrap();
    std::fs::write(directory.path().join("ca.crt"), server.ca()).unwrap();
    let renew = || {
        let mut script = server.machine().command(deploy("examples/renew-token.sh"));
        lab::output(script.arg(directory.path()).arg(server.url()))
    };
    renew().unwrap();
    let second = std::fs::read_to_string(&path).unwrap();
    assert_ne!(first.trim(), second.trim());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o77, 0, "{mode:o}");
    let files = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(files, 2, "token and ca.crt alone are left");
    let list = |token: &str| {
        let token = format!("--token={}", token.trim());
        server.kubectl(&["get", "services", "-A", &token])
    };
    list(&second).unwrap();

    // Whoever steals a token gets none that would stay when the Secret is deleted.
    let create_by = |options: &[&str]| {
        let token = format!("--token={}", second.trim());
        let create = ["create", "token", "-n", NAMESPACE, account, &token];
        server.kubectl(&[&create[..], options].concat())
    };
    let is_refused = |options: &[&str]| match create_by(options) {
        Ok(_) => false,
        Err(error) => error.to_string().contains("bound to the account's Secret"),
    };
    lab::wait_until("the policy is in force", TIMEOUT, || is_refused(&[])).unwrap();
    let other = format!("{account}-announcing");
    let bound_to_another = [&bound[..2], &[&other]].concat();
    assert!(is_refused(&bound_to_another));
    assert!(is_refused(&[&bound[..], &["--duration=8760h"]].concat()));
    create_by(&bound).unwrap();
    renew().unwrap();

    let delete = ["delete", "secret", "-n", NAMESPACE, account];
    server.kubectl(&delete).unwrap();
    // The API server remembers for some seconds that a token was good.
    for token in [&first, &second] {
        lab::wait_until("the token has ended", TIMEOUT, || list(token).is_err()).unwrap();
    }
    let last = std::fs::read_to_string(&path).unwrap();
    renew().unwrap_err();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), last);
}

/// Questions about what a service account may do.
struct Account {
    user: String,
    reviews: Vec<Value>,
    expected: Vec<bool>,
}

impl Account {
    fn new(name: &str) -> Self {
        Self {
            user: format!("system:serviceaccount:{NAMESPACE}:{name}"),
            reviews: Vec::new(),
            expected: Vec::new(),
        }
    }

    fn may(&mut self, verbs: &[&str], resource: &str, namespace: &str) {
        self.expect(verbs, resource, namespace, true);
    }

    fn may_not(&mut self, verbs: &[&str], resource: &str, namespace: &str) {
        self.expect(verbs, resource, namespace, false);
    }

    /// A resource is written as `resource/subresource.group:name`.
    fn expect(&mut self, verbs: &[&str], resource: &str, namespace: &str, allowed: bool) {
        let (resource, name) = resource.split_once(':').unwrap_or((resource, ""));
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        for verb in verbs {
            self.reviews.push(json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": self.user, "resourceAttributes": {
                    "namespace": namespace, "verb": verb, "group": group,
                    "resource": resource, "subresource": subresource, "name": name,
                }},
            }));
            self.expected.push(allowed);
        }
    }

    fn ask(self, server: &ControlPlane) {
        let reviews: String = self.reviews.iter().map(Value::to_string).collect();
        let path = server
            .machine()
            .write_file("reviews.json", reviews)
            .unwrap();
        let create = ["create", "-o", "json", "-f", path.to_str().unwrap()];
        let answers = server.kubectl(&create).unwrap();
        let answers = serde_json::Deserializer::from_str(&answers).into_iter::<Value>();
        let answers: Vec<Value> = answers.map(Result::unwrap).collect();
        assert_eq!(answers.len(), self.expected.len());
        for (answer, expected) in answers.iter().zip(self.expected) {
            assert_eq!(answer["status"]["allowed"], expected, "{}", answer["spec"]);
        }
    }
}
