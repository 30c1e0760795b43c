//! Services with affinity: a client keeps its pod when others are added, and new clients reach these at once.

use std::collections::BTreeSet;

use lab::{Machine, Topology};

use crate::support::{
    Agent, Flow, Mode, PodService, Service, cluster_config, serve_on_pods, without,
};

/// Connections of a client to one service.
const FLOWS: usize = 4;

/// The pod that a client has at each service.
fn pods_of(client: &Machine, services: &[PodService<'_>]) -> Vec<String> {
    let pod_at = |service: &PodService<'_>| {
        let flows = Flow::open_many(client, &[service.service], FLOWS);
        let pods: BTreeSet<String> = flows.into_iter().map(|flow| flow.node).collect();
        assert_eq!(pods.len(), 1, "{} to {}", client.label(), service.service);
        pods.into_iter().collect::<String>()
    };
    services.iter().map(pod_at).collect()
}

#[test]
fn client_keeps_its_pod_when_others_are_added() {
    let net = Topology::builder().clients(8).pods(2).build().unwrap();
    let services = Service::all(&[Mode::IpipV4, Mode::IpipV6]).into_iter();
    let services: Vec<PodService<'_>> = services
        .map(|service| PodService {
            settings: "session_affinity: client-ip",
            ..PodService::over_all(service)
        })
        .collect();
    let _echoes = serve_on_pods(&net, &services);
    let added: Vec<&Machine> = net.nodes().iter().map(|node| &node.pods()[1]).collect();
    let all = cluster_config(&net, &services);
    let few = added
        .iter()
        .fold(all.clone(), |config, pod| without(&config, pod));
    let machines = net.edges().iter().chain(net.nodes());
    let agents = Agent::start_all(machines, &few);

    let (known, new) = net.clients().split_at(4);
    let before: Vec<Vec<String>> = known
        .iter()
        .map(|client| pods_of(client, &services))
        .collect();
    for agent in &agents {
        agent.write_config(&all);
    }
    for agent in &agents {
        agent.wait_for_reloads(2);
    }
    for (client, before) in known.iter().zip(&before) {
        assert_eq!(&pods_of(client, &services), before, "{}", client.label());
    }
    let reached: BTreeSet<String> = new
        .iter()
        .flat_map(|client| pods_of(client, &services))
        .collect();
    for pod in added {
        assert!(
            reached.contains(pod.label()),
            "{} in {reached:?}",
            pod.label()
        );
    }
}
