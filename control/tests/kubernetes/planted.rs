//! Faults that an operator makes in a cluster are found by `guideway check`, `status` and `drops`, by the agent's log,
//! or by Events, and end by the remedy that these name. Those of one machine are planted in `tests/e2e`.

use std::path::Path;
use std::time::Duration;

use lab::kubernetes::{ControlPlane, ProxyMode};
use lab::{Guideway, Machine, Namespace, Topology, wait_for};

use crate::controller::cluster::{Cluster, pool, service};
use crate::objects;
use crate::support::Flow;
use crate::support::faults::{
    EMPTY_POOL, Fault, MISSING_RIGHTS, TAKEN_PORT, TWO_SEEDS, UNLISTED_EDGE, WRONG_CLASS,
};
use crate::world::{PATIENCE, World, vips, ways};

/// How long to wait for answers that must not come.
const SHORT: Duration = Duration::from_millis(500);

/// Runs a command on a machine, as the agent would run there. Returns what it prints, and whether it succeeds.
fn run(machine: &Machine, arguments: &[&str]) -> (String, bool) {
    let files = Path::new(Namespace::FILES);
    let mut command = machine.namespace().command(env!("CARGO_BIN_EXE_guideway"));
    command.env("KUBECONFIG", files.join("kubeconfig"));
    command.args(arguments);
    match arguments {
        ["check" | "run", ..] => command.arg("--config").arg(files.join("guideway.yaml")),
        _ => command.arg("--socket").arg(Guideway::socket()),
    };
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        String::from_utf8_lossy(&said).into_owned(),
        output.status.success(),
    )
}

/// Waits until the fault is found by a command on a machine.
fn wait_until_said(fault: &Fault, by: &str, machine: &Machine) {
    let arguments = [by.strip_prefix("guideway ").unwrap()];
    let awaited = format!("{}: {by} says it", fault.name);
    wait_for(&awaited, PATIENCE, || {
        let page = run(machine, &arguments).0;
        fault.is_said(by, &page).then_some(()).ok_or(page)
    })
    .unwrap();
}

#[test]
fn port_of_kube_proxy_and_seed_of_ones_own() {
    let net = Topology::builder().edges(0).nodes(1).build().unwrap();
    let node = &net.nodes()[0];
    let world = World::without_servers(&net);
    world.write_seed();
    world.show_presence();
    let (machine, name) = (node.namespace(), node.label());
    let proxy = world
        .control
        .run_kube_proxy(machine, name, ProxyMode::Nftables);
    let _proxy = proxy.unwrap();
    let configure = |port: u16, more: &str| {
        let file = format!(
            "interfaces: [{{name: eth0}}]\nkubernetes: {{node_name: {name}, healthz: \"0.0.0.0:{port}\"}}\n\
             api: {{socket: {}}}\n{more}",
            Guideway::socket().display()
        );
        machine.write_file("guideway.yaml", file).unwrap();
    };
    configure(10_256, "");
    let (log, started) = run(node, &["run", "--kubernetes"]);
    assert!(!started, "{log}");
    TAKEN_PORT.assert_said("log", &log);
    let (page, passes) = run(node, &["check"]);
    assert!(!passes, "{page}");
    TAKEN_PORT.assert_said("guideway check", &page);

    configure(10_791, "hash_seed: 7\n");
    let (page, _) = run(node, &["check"]);
    assert!(
        page.contains("kubernetes.healthz 0.0.0.0:10791: free"),
        "{page}"
    );
    TWO_SEEDS.assert_said("guideway check", &page);
    configure(10_791, "");
    let (page, _) = run(node, &["check"]);
    assert!(!page.contains("hash_seed of the file"), "{page}");
}

#[test]
fn missing_rights() {
    let net = Topology::builder().edges(0).nodes(1).build().unwrap();
    let node = &net.nodes()[0];
    let mut world = World::without_servers(&net);
    world.write_seed();
    world.show_presence();
    let allow = |resources: &str| {
        let rules = format!(
            "- {{apiGroups: ['', discovery.k8s.io], resources: [{resources}], verbs: [get, list, watch]}}\n\
             - {{apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}}"
        );
        world.control.make_service_account("agent", &rules).unwrap();
    };
    allow("services, secrets");
    let control: &ControlPlane = &world.control;
    let token = control.service_account_token("default", "agent").unwrap();
    control.write_kubeconfig(node.namespace(), &token).unwrap();
    let allow_all = || allow("services, secrets, nodes, endpointslices");
    let mut agent = crate::world::Agent::launch(node, "");
    wait_until_said(&MISSING_RIGHTS, "guideway status", node);
    let (page, passes) = run(node, &["check"]);
    assert!(!passes, "{page}");
    MISSING_RIGHTS.assert_said("guideway check", &page);

    allow_all();
    agent.wait_until_in_step();
    world.agents.push(agent);
}

#[test]
fn edge_that_no_slice_lists() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let mut world = World::new(&net);
    world.write_seed();
    for slice in objects::presence(net.nodes(), &[]) {
        world.apply(&slice);
    }
    let pods: Vec<&Machine> = net.pods().collect();
    world.balance(&vips(1));
    world.endpoints(&[(pods[0], true)]);
    world.launch();
    for agent in &mut world.agents {
        agent.wait_for_status("it has the services", |status| status["services"] != 0);
    }
    wait_until_said(&UNLISTED_EDGE, "guideway status", edge);
    let service = ways(1)[0];
    let flow = Flow::open_within(&net.clients()[0], &service, SHORT);
    assert!(flow.is_err(), "{flow:?}");
    wait_until_said(&UNLISTED_EDGE, "guideway drops", node);
    UNLISTED_EDGE.assert_said("guideway check", &run(edge, &["check"]).0);

    world.show_presence();
    world.wait_for_pods(&ways(1)[..1], &pods);
}

#[test]
fn wrong_class_and_empty_pool() {
    let cluster = Cluster::start();
    let _controller = cluster.controller(&[]);
    cluster.apply(&service("other", "").replace("guideway.dev/guideway", "example.com/other"));
    cluster.apply(&pool("public", &["192.0.2.1-192.0.2.1"]));
    cluster.apply(&service("first", ""));
    assert_eq!(cluster.addresses("first", 1), ["192.0.2.1"]);
    cluster.apply(&service("second", ""));
    let events_about = |name: &str| {
        let about = format!("involvedObject.name={name}");
        cluster.kubectl(&["get", "events", "--field-selector", &about])
    };
    for (fault, name) in [(&EMPTY_POOL, "second"), (&WRONG_CLASS, "other")] {
        let reason = fault.said[0].1[0];
        let awaited = format!("{}: Event {reason}", fault.name);
        let events = wait_for(&awaited, PATIENCE, || {
            let events = events_about(name);
            if events.contains(reason) {
                Ok(events)
            } else {
                Err(events)
            }
        });
        fault.assert_said("Event", &events.unwrap());
    }

    cluster.apply(&pool("more", &["192.0.2.2-192.0.2.2"]));
    assert_eq!(cluster.addresses("second", 1), ["192.0.2.2"]);
    cluster.kubectl(&["delete", "service", "other"]);
    cluster.kubectl(&["delete", "service", "first"]);
    cluster.apply(&service("other", ""));
    assert_eq!(cluster.addresses("other", 1), ["192.0.2.1"]);
}
