//! Flows stay at their pods while a pod leaves and comes back, in whatever network the pods are, and by whatever way the flows
//! come: pods with a sidecar, behind a bridge, of the host's network; NodePorts, and clients that are nodes of the pods.

use lab::{Builder, Machine, Topology};

use crate::support::{
    Agents, Mode, PodKind, PodService, Protocol, connections_of_a_removed_pod_go_on,
    datagrams_of_a_removed_pod_go_on, edge_apart, edge_with_pods, first_node_is_edge, pod_services,
    ports_used_again_after_a_reset_keep_their_pods, unchanged, use_ports_again_after_a_reset,
};

const MODES: [Mode; 2] = [Mode::IpipV4, Mode::IpipV6];

/// Nodes with pods behind a bridge.
fn bridged() -> Builder {
    Topology::builder().pods(2).pods_behind_bridges()
}

/// Nodes that are pods, and have no others.
fn of_host_network() -> Builder {
    Topology::builder().nodes(3)
}

/// Agents for services over all pods of a kind; the first one leaves.
fn start(net: &Topology, protocol: Protocol, kind: PodKind) -> Agents<'_> {
    let pod = match kind {
        PodKind::Plain | PodKind::WithSidecar => net.pods().next().unwrap(),
        PodKind::OfHostNetwork => &net.nodes()[0],
    };
    Agents::start_over(net, &pod_services(&MODES, protocol, kind), pod, unchanged)
}

fn connections_go_on(net: &Topology, kind: PodKind) {
    connections_of_a_removed_pod_go_on(&start(net, Protocol::Tcp, kind), |_| {});
}

fn ports_are_used_again(net: &Topology, kind: PodKind) {
    ports_used_again_after_a_reset_keep_their_pods(&start(net, Protocol::Tcp, kind));
}

fn datagrams_go_on(net: &Topology, kind: PodKind) {
    datagrams_of_a_removed_pod_go_on(&start(net, Protocol::Udp, kind));
}

#[test]
fn connections_to_a_pod_with_a_sidecar_go_on() {
    connections_go_on(&edge_apart(), PodKind::WithSidecar);
}

#[test]
fn connections_to_a_pod_of_the_edge_with_a_sidecar_go_on() {
    connections_go_on(&edge_with_pods(), PodKind::WithSidecar);
}

/// Until the former pod is back: its node cannot see the sockets of the proxy, as `deploy/docs/limits.md` says.
#[test]
fn ports_used_again_after_a_reset_keep_their_pods_with_sidecars() {
    for net in [edge_apart(), edge_with_pods()] {
        use_ports_again_after_a_reset(&start(&net, Protocol::Tcp, PodKind::WithSidecar));
    }
}

#[test]
fn connections_to_a_pod_behind_a_bridge_go_on() {
    connections_go_on(&bridged().build().unwrap(), PodKind::Plain);
}

#[test]
fn connections_to_a_pod_behind_a_bridge_of_the_edge_go_on() {
    connections_go_on(&first_node_is_edge(bridged()), PodKind::Plain);
}

#[test]
fn ports_used_again_after_a_reset_keep_their_pods_behind_a_bridge() {
    ports_are_used_again(&bridged().build().unwrap(), PodKind::Plain);
}

#[test]
fn ports_used_again_after_a_reset_keep_their_pods_behind_a_bridge_of_the_edge() {
    ports_are_used_again(&first_node_is_edge(bridged()), PodKind::Plain);
}

#[test]
fn datagrams_to_a_pod_behind_a_bridge_go_on() {
    datagrams_go_on(&bridged().build().unwrap(), PodKind::Plain);
}

#[test]
fn connections_to_a_pod_of_the_hosts_network_go_on() {
    connections_go_on(&of_host_network().build().unwrap(), PodKind::OfHostNetwork);
}

#[test]
fn connections_to_a_pod_of_the_edges_own_network_go_on() {
    connections_go_on(
        &first_node_is_edge(of_host_network()),
        PodKind::OfHostNetwork,
    );
}

#[test]
fn ports_used_again_after_a_reset_keep_their_pods_of_the_hosts_network() {
    ports_are_used_again(&of_host_network().build().unwrap(), PodKind::OfHostNetwork);
}

#[test]
fn ports_used_again_after_a_reset_keep_their_pods_of_the_edges_own_network() {
    ports_are_used_again(
        &first_node_is_edge(of_host_network()),
        PodKind::OfHostNetwork,
    );
}

#[test]
fn datagrams_to_a_pod_of_the_hosts_network_go_on() {
    datagrams_go_on(&of_host_network().build().unwrap(), PodKind::OfHostNetwork);
}

/// Flows go to NodePorts of the edge, of whose pods one leaves.
fn at_node_ports(net: &Topology, protocol: Protocol) -> Agents<'_> {
    const NODE_PORT: u16 = 30_080;
    let edge = &net.nodes()[0];
    // Both families have the same ports, but no two modes.
    let of = |(service, number): (PodService<'static>, u16)| PodService {
        node_port: Some(NODE_PORT + number / 2),
        ..service
    };
    let services = pod_services(&MODES, protocol, PodKind::Plain);
    let services: Vec<PodService<'_>> = services.into_iter().zip(0..).map(of).collect();
    let at_edge = services.iter().map(|service| service.at_node(edge));
    Agents::start_over(net, &services, &edge.pods()[0], unchanged).to(at_edge.collect())
}

#[test]
fn connections_to_a_node_port_go_on() {
    connections_of_a_removed_pod_go_on(&at_node_ports(&edge_with_pods(), Protocol::Tcp), |_| {});
}

#[test]
fn ports_used_again_after_a_reset_keep_their_pods_at_a_node_port() {
    ports_used_again_after_a_reset_keep_their_pods(&at_node_ports(
        &edge_with_pods(),
        Protocol::Tcp,
    ));
}

#[test]
fn datagrams_to_a_node_port_go_on() {
    datagrams_of_a_removed_pod_go_on(&at_node_ports(&edge_with_pods(), Protocol::Udp));
}

/// Flows come from the machine of the pod that leaves.
fn from_node_of_pod(net: &Topology, protocol: Protocol) -> Agents<'_> {
    let node: &Machine = &net.nodes()[0];
    start(net, protocol, PodKind::Plain).from(node)
}

#[test]
fn connections_from_the_node_of_a_pod_go_on() {
    connections_of_a_removed_pod_go_on(&from_node_of_pod(&edge_apart(), Protocol::Tcp), |_| {});
}

#[test]
fn ports_used_again_after_a_reset_keep_their_pods_for_the_node_of_a_pod() {
    ports_used_again_after_a_reset_keep_their_pods(&from_node_of_pod(&edge_apart(), Protocol::Tcp));
}

#[test]
fn datagrams_from_the_node_of_a_pod_go_on() {
    datagrams_of_a_removed_pod_go_on(&from_node_of_pod(&edge_apart(), Protocol::Udp));
}
