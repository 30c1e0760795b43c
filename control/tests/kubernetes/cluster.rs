//! `guideway cluster`, run by an operator who may read pods through the API server's proxy and write nothing.

use std::path::Path;
use std::process::Command;

use lab::{Machine, Namespace, Process, Topology, wait_for};
use serde_json::{Value, json};

use crate::objects::SYSTEM;
use crate::world::{Agent, PATIENCE, World};

/// The chart's rights for who looks.
pub(crate) const RIGHTS: &str = "
- {apiGroups: [''], resources: [pods], verbs: [list]}
- {apiGroups: [''], resources: [pods/proxy], verbs: [get]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [list]}
";
pub(crate) const METRICS: u16 = 9750;
pub(crate) const OF_CONTROLLER: u16 = 9752;

/// An operator on the router, who reaches the API server and edges outside the cluster.
pub(crate) struct Operator<'net> {
    pub(crate) machine: &'net Namespace,
}

impl<'net> Operator<'net> {
    pub(crate) fn of(world: &World<'_>, net: &'net Topology) -> Self {
        Self::at(world, net.router())
    }

    pub(crate) fn at(world: &World<'_>, machine: &'net Namespace) -> Self {
        world.control.connect(machine).unwrap();
        world
            .control
            .make_service_account("operator", RIGHTS)
            .unwrap();
        let token = world.control.service_account_token("default", "operator");
        world
            .control
            .write_kubeconfig(machine, &token.unwrap())
            .unwrap();
        Self { machine }
    }

    /// Prepares a command.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let kubeconfig = Path::new(Namespace::FILES).join("kubeconfig");
        let mut command = self.machine.command(env!("CARGO_BIN_EXE_guideway"));
        let port = METRICS.to_string();
        command.env("KUBECONFIG", kubeconfig).args(["cluster"]);
        command.args(arguments).args(["--edge-port", &port]);
        command
    }

    /// Runs a command; returns its exit code and what it prints.
    pub(crate) fn run(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.command(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let printed = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), printed + &errors)
    }

    fn status(&self) -> (i32, Value) {
        let (code, printed) = self.run(&["status", "--json"]);
        let status = serde_json::from_str(&printed);
        (code, status.unwrap_or_else(|_| panic!("{printed}")))
    }

    /// Waits until exactly these findings are there, each given by its parts.
    fn wait_for_findings(&self, expected: &[&[&str]]) -> Value {
        let mut last = Value::Null;
        wait_for(&format!("findings {expected:?}"), PATIENCE, || {
            let (code, status) = self.status();
            let findings = status["findings"].as_array().unwrap();
            let is_one = |finding: &Value, parts: &[&str]| {
                let text = finding.as_str().unwrap();
                parts.iter().all(|part| text.contains(part))
            };
            let are_right = findings.len() == expected.len()
                && expected
                    .iter()
                    .all(|parts| findings.iter().any(|finding| is_one(finding, parts)));
            if !are_right {
                return Err(status.to_string());
            }
            assert_eq!(code, i32::from(!expected.is_empty()));
            last = status;
            Ok(())
        })
        .unwrap();
        last
    }
}

/// Writes a pod as the chart and a kubelet would.
pub(crate) fn show_pod(world: &World<'_>, component: &str, machine: &Machine, port: u16) {
    let name = format!("guideway-{component}-{}", machine.label());
    let labels = json!({
        "app.kubernetes.io/part-of": "guideway", "app.kubernetes.io/component": component,
    });
    let ports = json!([{"name": "metrics", "containerPort": port}]);
    world.apply(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": SYSTEM, "name": name, "labels": labels},
        "spec": {
            "nodeName": machine.label(), "hostNetwork": true,
            "containers": [{"name": component, "image": "guideway", "ports": ports}],
        },
    }));
    let address = world.reached_at[machine.label()];
    let status = json!({"status": {
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
    }})
    .to_string();
    let patch = [
        "-n",
        SYSTEM,
        "patch",
        "pod",
        &name,
        "--subresource=status",
        "--type=merge",
    ];
    let patch = [&patch[..], &["-p", &status]].concat();
    world.control.kubectl(&patch).unwrap();
}

pub(crate) fn run_controller(machine: &Machine) -> Process {
    let mut command = machine.namespace().command(env!("CARGO_BIN_EXE_guideway"));
    command
        .env("KUBECONFIG", Path::new(Namespace::FILES).join("kubeconfig"))
        .args(["controller", "--namespace", SYSTEM, "--metrics"])
        .arg(format!("0.0.0.0:{OF_CONTROLLER}"));
    Process::spawn(&mut command).unwrap()
}

#[test]
fn status_of_a_cluster_names_who_is_silent_and_what_differs() {
    let net = Topology::builder()
        .edges(1)
        .nodes(2)
        .pods(1)
        .build()
        .unwrap();
    let mut world = World::without_servers(&net);
    let operator = Operator::of(&world, &net);
    let (code, told) = operator.run(&["status"]);
    assert_eq!(code, 1);
    assert!(
        told.contains("no agent: the namespace guideway-system"),
        "{told}"
    );

    world.write_seed();
    world.show_presence();
    world.launch();
    for agent in &mut world.agents {
        agent.wait_until_in_step();
    }
    let [first, second] = net.nodes() else {
        panic!("two nodes");
    };
    let _controller = run_controller(first);
    show_pod(&world, "controller", first, OF_CONTROLLER);
    for node in net.nodes() {
        show_pod(&world, "agent", node, METRICS);
    }
    let status = operator.wait_for_findings(&[]);
    let names = |of: &str| {
        let all = status[of].as_array().unwrap().iter();
        all.map(|one| one["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("agents"), ["edge0", "node0", "node1"]);
    assert_eq!(names("controllers"), ["guideway-controller-node0"]);
    for agent in status["agents"].as_array().unwrap() {
        assert_eq!(agent["status"]["version"], env!("CARGO_PKG_VERSION"));
    }
    assert_eq!(status["controllers"][0]["status"]["leads"], true);
    let (_, page) = operator.run(&["status", "-o", "wide"]);
    assert!(page.contains("no findings"), "{page}");
    eprintln!("{page}");

    // The edge comes back with a seed of its own, and the agent of a node is gone.
    let edge = world.agents.remove(0);
    let machine = edge.machine();
    let mut edge = edge;
    edge.kill();
    world.agents.push(Agent::launch(machine, "hash_seed: 5"));
    let gone = world
        .agents
        .iter_mut()
        .find(|agent| agent.machine().label() == second.label());
    gone.unwrap().kill();
    let status = operator.wait_for_findings(&[
        &["hash seeds", "on edge0", "on node0"],
        &["node1: no answer of pod guideway-agent-node1"],
    ]);
    let text = status.to_string();
    assert!(!text.contains("1234567890abcdef"), "the seed is not shown");
    let (_, page) = operator.run(&["status"]);
    eprintln!("{page}");
}
