//! TCP connections stay at their pods while the pods of a service change, although other pods own their slots by then.

use std::collections::BTreeSet;

use lab::{Machine, Topology};

use crate::support::{
    Agent, Cluster, Flow, Mode, PodService, Protocol, Service, Traffic, cluster_config,
    serve_on_pods,
};

/// Held connections to each service that are in use during the change, and as many that are idle.
const FLOWS: usize = 24;
const ROUNDS: u64 = 5;

/// Changes a configuration file in what it says of one pod.
type Edit = fn(&str, &Machine) -> String;

/// Lines about a pod as a backend.
fn is_about(line: &str, pod: &Machine) -> bool {
    let addresses = [pod.v4(), pod.v6()];
    let mut names = addresses
        .iter()
        .map(|address| format!("- {{ address: \"{address}\""));
    names.any(|name| line.contains(&name))
}

fn unchanged(config: &str, _: &Machine) -> String {
    config.to_owned()
}

fn without(config: &str, pod: &Machine) -> String {
    let lines = config.lines().filter(|line| !is_about(line, pod));
    lines.map(|line| format!("{line}\n")).collect()
}

fn heavier(config: &str, pod: &Machine) -> String {
    with(config, pod, "weight: 6")
}

fn drained(config: &str, pod: &Machine) -> String {
    with(config, pod, "drain: true")
}

fn with(config: &str, pod: &Machine, field: &str) -> String {
    let lines = config.lines().map(|line| {
        if is_about(line, pod) {
            format!("{}\n", line.replace(" }", &format!(", {field} }}")))
        } else {
            format!("{line}\n")
        }
    });
    lines.collect()
}

/// The pod that owns the slot of a flow, as the edge tells it.
fn owner(edge: &Agent<'_>, net: &Topology, flow: &Flow) -> String {
    let (service, from) = (flow.service.to_string(), flow.client.to_string());
    let which = edge.json(&["which", "--service", &service, "--from", &from]);
    let backend = which["choice"]["backend"].as_str().unwrap().to_owned();
    let is_owner = |pod: &&Machine| {
        let pod = pod.address_like(flow.service.address.ip());
        let ends = [format!("{pod}:"), format!("[{pod}]:")];
        ends.iter().any(|end| backend.starts_with(end))
    };
    net.pods().find(is_owner).unwrap().label().to_owned()
}

/// Holds connections while what the file says of a pod changes; calls `check` with the pod and those among them whose
/// slots have another owner by then.
fn connections_stay(before: Edit, after: Edit, check: impl Fn(&str, &[&Flow], &[Flow])) {
    let net = Topology::builder().pods(2).build().unwrap();
    let services: Vec<PodService<'_>> = Service::all(&[Mode::IpipV4, Mode::IpipV6])
        .into_iter()
        .filter(|service| service.protocol == Protocol::Tcp)
        .map(PodService::over_all)
        .collect();
    let plain: Vec<Service> = services.iter().map(|service| service.service).collect();
    let _echoes = serve_on_pods(&net, &services);
    let pod = net.pods().next().unwrap();
    let config = cluster_config(&net, &services);
    let launch = |machine| Agent::launch(machine, &before(&config, pod));
    let mut nodes: Vec<Agent<'_>> = net.nodes().iter().map(launch).collect();
    let mut edge = launch(&net.edges()[0]);
    edge.wait_until_ready();
    nodes.iter_mut().for_each(Agent::wait_until_ready);

    let client = &net.clients()[0];
    let mut idle = Flow::open_many(client, &plain, FLOWS);
    let traffic = Traffic::over(Flow::open_many(client, &plain, FLOWS));
    traffic.wait_for_rounds(ROUNDS);
    for flow in &idle {
        assert_eq!(owner(&edge, &net, flow), flow.node, "before the change");
    }

    for agent in nodes.iter().chain([&edge]) {
        agent.write_config(&after(&config, pod));
    }
    for agent in nodes.iter().chain([&edge]) {
        agent.wait_for_reloads(2);
    }
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
    for flow in &mut idle {
        for _ in 0..ROUNDS {
            let answered = flow.ask();
            let of = format!("{} to {} on {}", flow.client, flow.service, flow.node);
            assert_eq!(
                answered.unwrap_or_else(|error| panic!("{of}: {error}")),
                flow.node
            );
        }
    }

    let elsewhere = |flow: &&Flow| owner(&edge, &net, flow) != flow.node;
    let moved: Vec<&Flow> = idle.iter().filter(elsewhere).collect();
    assert!(
        !moved.is_empty(),
        "no slot of a connection has another owner"
    );
    assert!(Cluster::packets(&edge, "to_node", "retried") >= moved.len() as u64);
    let returned = nodes
        .iter()
        .map(|node| Cluster::packets(node, "reply", "returned"));
    assert!(returned.sum::<u64>() >= moved.len() as u64);
    // A pin spares the second packet the way back.
    let retried = || Cluster::packets(&edge, "to_node", "retried");
    let before = retried();
    let fresh = Flow::open_many(client, &plain, FLOWS);
    for flow in &fresh {
        assert_eq!(owner(&edge, &net, flow), flow.node, "a new connection");
    }
    check(pod.label(), &moved, &fresh);
    drop(moved);
    for flow in &mut idle {
        assert_eq!(flow.ask().unwrap(), flow.node);
    }
    assert_eq!(
        retried(),
        before,
        "what is pinned, or new, is not looked for"
    );
}

fn pods_of(flows: &[Flow]) -> BTreeSet<&str> {
    flows.iter().map(|flow| flow.node.as_str()).collect()
}

#[test]
fn connections_of_a_pod_that_is_removed_go_on() {
    connections_stay(unchanged, without, |pod, moved, fresh| {
        assert!(moved.iter().any(|flow| flow.node == pod));
        assert!(!pods_of(fresh).contains(pod), "it gets no new ones");
    });
}

#[test]
fn connections_stay_where_they_are_when_a_pod_is_added() {
    connections_stay(without, unchanged, |pod, moved, fresh| {
        assert!(moved.iter().all(|flow| flow.node != pod));
        assert!(pods_of(fresh).contains(pod), "it gets new ones");
    });
}

#[test]
fn connections_stay_where_they_are_when_a_pod_gets_another_weight() {
    connections_stay(unchanged, heavier, |pod, moved, fresh| {
        assert!(moved.iter().all(|flow| flow.node != pod));
        assert!(pods_of(fresh).contains(pod));
    });
}

#[test]
fn connections_of_a_pod_that_drains_go_on() {
    connections_stay(unchanged, drained, |pod, moved, fresh| {
        assert!(moved.iter().any(|flow| flow.node == pod));
        assert!(!pods_of(fresh).contains(pod), "it gets no new ones");
    });
}

#[test]
fn a_pod_gets_new_connections_when_its_drain_ends() {
    connections_stay(drained, unchanged, |pod, moved, fresh| {
        assert!(moved.iter().all(|flow| flow.node != pod));
        assert!(pods_of(fresh).contains(pod), "it gets new ones");
    });
}
