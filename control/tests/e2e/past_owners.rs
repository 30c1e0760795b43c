//! Connections, and flows of datagrams, stay at their pods while the pods of a service change, although other pods own
//! their slots by then. The edge is a machine of its own, or a node with pods.

use lab::{Cidr, Machine, Route, Topology, output};

use crate::path_mtu::learnt_mtu;
use crate::support::{
    Agent, Cluster, Echo, Flow, Mode, PodService, Protocol, Service, Traffic, cluster_config,
    serve_on_pods, without,
};

/// Held connections to each service that are in use during the change, and as many that are idle.
const FLOWS: usize = 24;
const ROUNDS: u64 = 5;

/// Changes a configuration file in what it says of one pod.
type Edit = fn(&str, &Machine) -> String;

fn unchanged(config: &str, _: &Machine) -> String {
    config.to_owned()
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

/// An edge of its own before two nodes with two pods each.
fn edge_apart() -> Topology {
    Topology::builder().pods(2).build().unwrap()
}

/// Two nodes with two pods each, of which the first is the edge.
fn edge_with_pods() -> Topology {
    let net = Topology::builder().edges(0).pods(2).build().unwrap();
    let edge = &net.nodes()[0];
    for (vips, edge) in Topology::vips().into_iter().zip([edge.v4(), edge.v6()]) {
        let route = Route::to(vips).via(edge);
        net.router().replace_route(&route).unwrap();
    }
    net
}

/// The agents of a network, with services of one protocol over all pods.
struct Agents<'net> {
    net: &'net Topology,
    services: Vec<Service>,
    config: String,
    /// The edge's is the first; behind it are the nodes', of which one may be the edge's.
    agents: Vec<Agent<'net>>,
    _echoes: Vec<Echo>,
}

impl<'net> Agents<'net> {
    fn start(net: &'net Topology, protocol: Protocol, pod: &Machine, before: Edit) -> Self {
        Self::start_by(&[Mode::IpipV4, Mode::IpipV6], net, protocol, pod, before)
    }

    fn start_by(
        modes: &[Mode],
        net: &'net Topology,
        protocol: Protocol,
        pod: &Machine,
        before: Edit,
    ) -> Self {
        let services: Vec<PodService<'_>> = Service::all(modes)
            .into_iter()
            .filter(|service| service.protocol == protocol)
            .map(PodService::over_all)
            .collect();
        let echoes = serve_on_pods(net, &services);
        let config = cluster_config(net, &services);
        let machines = net.edges().iter().chain(net.nodes());
        Self {
            net,
            services: services.iter().map(|service| service.service).collect(),
            agents: Agent::start_all(machines, &before(&config, pod)),
            config,
            _echoes: echoes,
        }
    }

    fn edge(&self) -> &Agent<'net> {
        &self.agents[0]
    }

    fn nodes(&self) -> &[Agent<'net>] {
        &self.agents[self.net.edges().len()..]
    }

    fn change(&self, pod: &Machine, after: Edit) {
        self.change_for(2, pod, after);
    }

    /// Changes the file a second time.
    fn change_again(&self, pod: &Machine, after: Edit) {
        self.change_for(3, pod, after);
    }

    fn change_for(&self, reloads: u64, pod: &Machine, after: Edit) {
        for agent in &self.agents {
            agent.write_config(&after(&self.config, pod));
        }
        for agent in &self.agents {
            agent.wait_for_reloads(reloads);
        }
    }

    /// The label of the pod that owns the slot of a flow.
    fn owner(&self, flow: &Flow) -> String {
        owner(self.edge(), self.net, flow)
    }

    /// Tells whether this is a pod of the edge's own machine.
    fn is_at_edge(&self, label: &str) -> bool {
        let pods = self.edge().machine().pods();
        pods.iter().any(|pod| pod.label() == label)
    }

    fn retried(&self) -> u64 {
        Cluster::packets(self.edge(), "to_node", "retried")
    }

    fn returned(&self) -> u64 {
        let nodes = self.nodes().iter();
        nodes
            .map(|node| Cluster::packets(node, "reply", "returned"))
            .sum()
    }
}

/// A connection whose slot has another owner by now.
struct Moved<'a> {
    flow: &'a Flow,
    owner: String,
}

/// Holds connections while what the file says of a pod changes; calls `check` with the agents, those among the
/// connections whose slots have another owner by then, and new ones.
fn connections_stay(
    net: &Topology,
    pod: &Machine,
    (before, after): (Edit, Edit),
    check: impl Fn(&Agents<'_>, &[Moved<'_>], &[Flow]),
) {
    let agents = Agents::start(net, Protocol::Tcp, pod, before);
    let client = &net.clients()[0];
    let mut idle = Flow::open_many(client, &agents.services, FLOWS);
    let traffic = Traffic::over(Flow::open_many(client, &agents.services, FLOWS));
    traffic.wait_for_rounds(ROUNDS);
    for flow in &idle {
        assert_eq!(agents.owner(flow), flow.node, "before the change");
    }

    agents.change(pod, after);
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

    let moved = idle.iter().map(|flow| Moved {
        flow,
        owner: agents.owner(flow),
    });
    let moved: Vec<Moved<'_>> = moved
        .filter(|moved| moved.owner != moved.flow.node)
        .collect();
    assert!(
        !moved.is_empty(),
        "no slot of a connection has another owner"
    );
    // What is returned within the edge's machine takes no frame.
    let apart = moved
        .iter()
        .filter(|moved| !agents.is_at_edge(&moved.owner));
    let apart = apart.count() as u64;
    assert!(agents.returned() >= apart);
    // A pin spares the second packet the way back.
    let before = agents.retried();
    let fresh = Flow::open_many(client, &agents.services, FLOWS);
    for flow in &fresh {
        assert_eq!(agents.owner(flow), flow.node, "a new connection");
    }
    check(&agents, &moved, &fresh);
    drop(moved);
    for flow in &mut idle {
        assert_eq!(flow.ask().unwrap(), flow.node);
    }
    assert_eq!(
        agents.retried(),
        before,
        "what is pinned, or new, is not looked for"
    );
}

/// Holds flows of UDP while what the file says of a pod changes; returns those of before and new ones.
fn datagrams_stay(
    net: &Topology,
    pod: &Machine,
    (before, after): (Edit, Edit),
) -> (Vec<Flow>, Vec<Flow>) {
    let agents = Agents::start(net, Protocol::Udp, pod, before);
    let client = &net.clients()[0];
    let mut idle = Flow::open_many(client, &agents.services, FLOWS);
    let traffic = Traffic::over(Flow::open_many(client, &agents.services, FLOWS));
    traffic.wait_for_rounds(ROUNDS);
    assert_eq!(agents.returned(), 0, "nothing has changed");

    agents.change(pod, after);
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
    Flow::all_stay(&mut idle, "after the change");
    let mut fresh = Flow::open_many(client, &agents.services, FLOWS);
    Flow::all_stay(&mut fresh, "which is new");
    // What is returned within the edge's machine takes no frame.
    assert!(net.edges().is_empty() || agents.returned() > 0);
    // A pin spares the second packet the way back.
    let returned = agents.returned();
    Flow::all_stay(&mut idle, "which is pinned");
    Flow::all_stay(&mut fresh, "which is new and pinned");
    assert_eq!(
        agents.returned(),
        returned,
        "what is pinned is not looked for"
    );

    // Back again: what came meanwhile stays too.
    agents.change_again(pod, before);
    Flow::all_stay(&mut idle, "after the way back");
    Flow::all_stay(&mut fresh, "which came in between");
    (idle, fresh)
}

fn datagrams_of_a_leaving_pod_go_on(net: &Topology, pod: &Machine, leaves: Edit) {
    let (held, fresh) = datagrams_stay(net, pod, (unchanged, leaves));
    assert!(Flow::nodes(&held).contains(pod.label()));
    assert!(
        !Flow::nodes(&fresh).contains(pod.label()),
        "it gets no new ones"
    );
}

fn datagrams_stay_beside_an_added_pod(net: &Topology, pod: &Machine) {
    let (held, fresh) = datagrams_stay(net, pod, (without, unchanged));
    assert!(!Flow::nodes(&held).contains(pod.label()));
    assert!(
        Flow::nodes(&fresh).contains(pod.label()),
        "it gets new ones"
    );
}

#[test]
fn datagrams_of_a_pod_of_the_edge_go_on() {
    let net = edge_with_pods();
    let pod = net.nodes()[0].pods().first().unwrap();
    datagrams_of_a_leaving_pod_go_on(&net, pod, without);
}

#[test]
fn datagrams_stay_when_a_pod_of_the_edge_is_added() {
    let net = edge_with_pods();
    let pod = net.nodes()[0].pods().first().unwrap();
    datagrams_stay_beside_an_added_pod(&net, pod);
}

/// Clients reset connections of a pod that has left, use their ports again, and the pod comes back: it still has the former
/// connections in its node's tables, but in none of its sockets.
fn ports_used_again_after_a_reset_keep_their_pods(net: &Topology, pod: &Machine) {
    let agents = Agents::start(net, Protocol::Tcp, pod, unchanged);
    let client = &net.clients()[0];
    let mut flows = Flow::open_many(client, &agents.services, FLOWS);
    Flow::all_stay(&mut flows, "before the change");
    agents.change(pod, without);
    // The sockets of the others are seen when the client proves its address, or never.
    Flow::all_stay(flows.iter_mut().step_by(2), "after the change");

    let of_pod = flows.into_iter().filter(|flow| flow.node == pod.label());
    let mut again: Vec<Flow> = of_pod.map(|flow| flow.open_anew(client).unwrap()).collect();
    assert!(!again.is_empty());
    assert!(!Flow::nodes(&again).contains(pod.label()), "it has left");
    Flow::all_stay(&mut again, "by ports used again");

    agents.change_again(pod, unchanged);
    for flow in &again {
        assert_eq!(agents.owner(flow), pod.label(), "it is back");
    }
    Flow::all_stay(&mut again, "once the former pod is back");
}

#[test]
fn ports_used_again_after_a_reset_keep_their_pods_at_nodes() {
    let net = edge_apart();
    let pod = net.nodes()[0].pods().first().unwrap();
    ports_used_again_after_a_reset_keep_their_pods(&net, pod);
}

#[test]
fn ports_used_again_after_a_reset_keep_their_pods_at_the_edge() {
    let net = edge_with_pods();
    let pod = net.nodes()[0].pods().first().unwrap();
    ports_used_again_after_a_reset_keep_their_pods(&net, pod);
}

fn connections_of_a_removed_pod_go_on(
    net: &Topology,
    pod: &Machine,
    check: impl Fn(&Agents<'_>, &[Moved<'_>]),
) {
    connections_stay(net, pod, (unchanged, without), |agents, moved, fresh| {
        assert!(moved.iter().any(|moved| moved.flow.node == pod.label()));
        assert!(
            !Flow::nodes(fresh).contains(pod.label()),
            "it gets no new ones"
        );
        check(agents, moved);
    });
}

#[test]
fn connections_of_a_pod_of_the_edge_go_on() {
    let net = edge_with_pods();
    let pod = net.nodes()[0].pods().first().unwrap();
    connections_of_a_removed_pod_go_on(&net, pod, |agents, moved| {
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
    let pod = net.nodes()[1].pods().first().unwrap();
    connections_of_a_removed_pod_go_on(&net, pod, |agents, moved| {
        let mut moved = moved.iter();
        let is_elsewhere = |moved: &Moved<'_>| !agents.is_at_edge(&moved.flow.node);
        assert!(moved.any(|moved| is_elsewhere(moved) && agents.is_at_edge(&moved.owner)));
    });
}

#[test]
fn connections_stay_when_a_pod_of_the_edge_is_added() {
    let net = edge_with_pods();
    let pod = net.nodes()[0].pods().first().unwrap();
    connections_stay(&net, pod, (without, unchanged), |agents, moved, fresh| {
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
    let agents = Agents::start_by(&[Mode::L2dsr], &net, protocol, pod, before);
    let client = &net.clients()[0];
    let open = || Flow::open_many(client, &agents.services, FLOWS);
    let mut first = open();
    let traffic = Traffic::over(open());
    traffic.wait_for_rounds(ROUNDS);

    agents.change(pod, after);
    traffic.wait_for_rounds(ROUNDS);
    if holds_idle {
        Flow::all_stay(&mut first, "after the change");
    }
    let mut between = open();
    agents.change_again(pod, before);
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

/// How many packets the first node has put together from fragments, whose connection tracking does that for its pods.
fn reassembled(net: &Topology) -> u64 {
    let mut nstat = net.nodes()[0].namespace().command("nstat");
    let table = output(nstat.args(["-a", "-s", "-z", "IpReasmOKs"])).unwrap();
    let line = table.lines().find(|line| line.starts_with("IpReasmOKs"));
    let count = line.unwrap().split_whitespace().nth(1).unwrap();
    count.parse().unwrap()
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
    let mut flows = Flow::open_many(client, &agents.services, FLOWS);
    agents.change(pod, without);
    flows.retain(|flow| flow.node == pod.label());
    let narrow = net.far_end(client).unwrap();
    for address in [client.v4(), client.v6()] {
        let route = Route::to(Cidr::host(address)).through(&narrow);
        net.router().add_route(&route.mtu(TO_CLIENT_MTU)).unwrap();
    }
    let [vips, _] = Topology::vips();
    let route = Route::to(vips).via(agents.edge().machine().v4());
    net.router().replace_route(&route.mtu(TO_VIP_MTU)).unwrap();
    let before = reassembled(net);
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
    assert!(reassembled(net) > before, "no segment came in fragments");
}

#[test]
fn errors_and_fragments_of_connections_reach_past_owners() {
    large_messages_pass(&edge_apart());
}

#[test]
fn errors_and_fragments_of_connections_reach_past_owners_of_the_edge() {
    large_messages_pass(&edge_with_pods());
}
