//! Connections, and flows of datagrams, stay at their pods while the pods of a service change, although other pods own
//! their slots by then. The edge is a machine of its own, or a node with pods.

use lab::{Cidr, Machine, Route, Topology};

use crate::path_mtu::learnt_mtu;
use crate::support::{
    Agents, Edit, Flow, Mode, Moved, PodKind, Protocol, Traffic,
    connections_of_a_removed_pod_go_on, connections_stay, datagrams_of_a_removed_pod_go_on,
    datagrams_stay, edge_apart, edge_with_pods, kernel_counter, pod_services,
    ports_used_again_after_a_reset_keep_their_pods, unchanged, without,
};

const ROUNDS: u64 = 5;

/// The first pod of a node.
fn first_pod(node: &Machine) -> &Machine {
    node.pods().first().unwrap()
}

#[test]
fn datagrams_of_a_pod_of_the_edge_go_on() {
    let net = edge_with_pods();
    let pod = first_pod(&net.nodes()[0]);
    let agents = Agents::start(&net, Protocol::Udp, pod, unchanged);
    datagrams_of_a_removed_pod_go_on(&agents);
}

#[test]
fn datagrams_stay_when_a_pod_of_the_edge_is_added() {
    let net = edge_with_pods();
    let pod = first_pod(&net.nodes()[0]);
    let agents = Agents::start(&net, Protocol::Udp, pod, without);
    let (held, fresh) = datagrams_stay(&agents, unchanged);
    assert!(!Flow::nodes(&held).contains(pod.label()));
    assert!(
        Flow::nodes(&fresh).contains(pod.label()),
        "it gets new ones"
    );
}

#[test]
fn ports_used_again_after_a_reset_keep_their_pods_at_nodes() {
    let net = edge_apart();
    let pod = first_pod(&net.nodes()[0]);
    let agents = Agents::start(&net, Protocol::Tcp, pod, unchanged);
    ports_used_again_after_a_reset_keep_their_pods(&agents);
}

#[test]
fn ports_used_again_after_a_reset_keep_their_pods_at_the_edge() {
    let net = edge_with_pods();
    let pod = first_pod(&net.nodes()[0]);
    let agents = Agents::start(&net, Protocol::Tcp, pod, unchanged);
    ports_used_again_after_a_reset_keep_their_pods(&agents);
}

#[test]
fn connections_of_a_pod_of_the_edge_go_on() {
    let net = edge_with_pods();
    let pod = first_pod(&net.nodes()[0]);
    let agents = Agents::start(&net, Protocol::Tcp, pod, unchanged);
    connections_of_a_removed_pod_go_on(&agents, |moved| {
        for is_at_edge in [false, true] {
            let mut moved = moved.iter().filter(|moved| moved.flow.node == pod.label());
            let found = moved.any(|moved| agents.is_at_edge(&moved.owner) == is_at_edge);
            assert!(found, "owner at the edge: {is_at_edge}");
        }
    });
}

#[test]
fn connections_of_another_node_go_on_where_pods_of_the_edge_own_their_slots() {
    let net = edge_with_pods();
    let pod = first_pod(&net.nodes()[1]);
    let agents = Agents::start(&net, Protocol::Tcp, pod, unchanged);
    connections_of_a_removed_pod_go_on(&agents, |moved| {
        let mut moved = moved.iter();
        let is_elsewhere = |moved: &Moved<'_>| !agents.is_at_edge(&moved.flow.node);
        assert!(moved.any(|moved| is_elsewhere(moved) && agents.is_at_edge(&moved.owner)));
    });
}

#[test]
fn connections_stay_when_a_pod_of_the_edge_is_added() {
    let net = edge_with_pods();
    let pod = first_pod(&net.nodes()[0]);
    let agents = Agents::start(&net, Protocol::Tcp, pod, without);
    connections_stay(&agents, unchanged, |moved, fresh| {
        assert!(moved.iter().all(|moved| moved.flow.node != pod.label()));
        assert!(Flow::nodes(fresh).contains(pod.label()), "it gets new ones");
        for is_at_edge in [false, true] {
            let mut moved = moved.iter();
            let found = moved.any(|moved| agents.is_at_edge(&moved.flow.node) == is_at_edge);
            assert!(found, "past owner at the edge: {is_at_edge}");
        }
    });
}

/// Holds flows by L2 DSR, where a node chooses among its own pods, while what the file says of one of them changes there and
/// back. Idle ones are held as well if `holds_idle`. Returns the pods of flows from before the change, and of those that came
/// after it.
fn flows_by_l2dsr_stay(
    protocol: Protocol,
    (before, after): (Edit, Edit),
    holds_idle: bool,
) -> (String, Vec<Flow>, Vec<Flow>) {
    let net = edge_apart();
    let pod = net.nodes()[0].pods().first().unwrap();
    let services = pod_services(&[Mode::L2dsr], protocol, PodKind::Plain);
    let agents = Agents::start_over(&net, &services, pod, before);
    let mut first = agents.open();
    let traffic = Traffic::over(agents.open());
    traffic.wait_for_rounds(ROUNDS);

    agents.change(after);
    traffic.wait_for_rounds(ROUNDS);
    if holds_idle {
        Flow::all_stay(&mut first, "after the change");
    }
    let mut between = agents.open();
    agents.change_back();
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
    if holds_idle {
        Flow::all_stay(&mut first, "after the way back");
        Flow::all_stay(&mut between, "which came in between");
    }
    (pod.label().to_owned(), first, between)
}

#[test]
fn connections_by_l2dsr_of_a_pod_that_is_removed_beside_others_go_on() {
    let (pod, first, between) = flows_by_l2dsr_stay(Protocol::Tcp, (unchanged, without), true);
    assert!(Flow::nodes(&first).contains(pod.as_str()));
    assert!(
        !Flow::nodes(&between).contains(pod.as_str()),
        "it gets no new ones"
    );
}

#[test]
fn connections_by_l2dsr_stay_when_a_pod_is_added_beside_others() {
    let (pod, first, between) = flows_by_l2dsr_stay(Protocol::Tcp, (without, unchanged), true);
    assert!(!Flow::nodes(&first).contains(pod.as_str()));
    assert!(
        Flow::nodes(&between).contains(pod.as_str()),
        "it gets new ones"
    );
}

#[test]
fn datagrams_by_l2dsr_in_use_stay_when_a_pod_is_added_beside_others() {
    let (pod, first, _) = flows_by_l2dsr_stay(Protocol::Udp, (without, unchanged), false);
    assert!(!Flow::nodes(&first).contains(pod.as_str()));
}

/// A connection at a past owner learns the MTU of the way to its client, and its segments arrive in fragments.
fn large_messages_pass(net: &Topology) {
    const TO_CLIENT_MTU: u32 = 1400;
    const TO_VIP_MTU: u32 = 1000;
    const LARGE: usize = 100_000;
    let pod = net.pods().next().unwrap();
    let agents = Agents::start(net, Protocol::Tcp, pod, unchanged);
    let client = &net.clients()[0];
    // Routers may cut what it sends.
    let namespace = client.namespace();
    namespace
        .set_sysctl("net/ipv4/ip_no_pmtu_disc", "1")
        .unwrap();
    let mut flows = agents.open();
    agents.change(without);
    flows.retain(|flow| flow.node == pod.label());
    let narrow = net.far_end(client).unwrap();
    for address in [client.v4(), client.v6()] {
        let route = Route::to(Cidr::host(address)).through(&narrow);
        net.router().add_route(&route.mtu(TO_CLIENT_MTU)).unwrap();
    }
    let [vips, _] = Topology::vips();
    let route = Route::to(vips).via(agents.edge().machine().v4());
    net.router().replace_route(&route.mtu(TO_VIP_MTU)).unwrap();
    // The node's connection tracking puts fragments together for its pods.
    let reassembled = || kernel_counter(&net.nodes()[0], "IpReasmOKs");
    let before = reassembled();
    for flow in &mut flows {
        let of = format!("{} to {}", flow.client, flow.service);
        let answered = flow.ask_with(&"x".repeat(LARGE));
        let answered = answered.unwrap_or_else(|error| panic!("{of}: {error}"));
        assert_eq!(answered, flow.node, "{of}");
    }
    for address in [client.v4(), client.v6()] {
        let mut flows = flows.iter();
        assert!(flows.any(|flow| flow.client.ip() == address));
        assert_eq!(learnt_mtu(pod, address), Some(TO_CLIENT_MTU), "{address}");
    }
    assert!(reassembled() > before, "no segment came in fragments");
}

#[test]
fn errors_and_fragments_of_connections_reach_past_owners() {
    large_messages_pass(&edge_apart());
}

#[test]
fn errors_and_fragments_of_connections_reach_past_owners_of_the_edge() {
    large_messages_pass(&edge_with_pods());
}
