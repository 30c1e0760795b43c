//! Connections stay at their nodes while the backends of a service change, where nodes return nothing: they get packets
//! by L2 DSR, or have the VIP themselves behind IP-in-IP.

use lab::{Machine, Topology};

use crate::support::{
    Agent, Echo, Flow, Mode, Protocol, Service, Traffic, edge_config, node_config,
};

/// Held connections to each service that are in use during the changes, and as many that are idle.
const FLOWS: usize = 24;
const ROUNDS: u64 = 5;

/// What the edge's configuration says of a service's backends.
type Backends = fn(&[Service], &[Machine]) -> String;

fn all(services: &[Service], nodes: &[Machine]) -> String {
    edge_config(services, nodes)
}

fn without_the_first(services: &[Service], nodes: &[Machine]) -> String {
    edge_config(services, &nodes[1..])
}

fn first_is_heavier(services: &[Service], nodes: &[Machine]) -> String {
    first_with(services, nodes, "weight: 6")
}

fn first_drains(services: &[Service], nodes: &[Machine]) -> String {
    first_with(services, nodes, "drain: true")
}

fn first_with(services: &[Service], nodes: &[Machine], field: &str) -> String {
    let mut config = edge_config(services, nodes);
    for address in [nodes[0].v4(), nodes[0].v6()] {
        let backend = format!("{{ address: \"{address}\" }}");
        config = config.replace(&backend, &format!("{{ address: \"{address}\", {field} }}"));
    }
    config
}

/// An edge before nodes that have the VIPs themselves.
struct Nodes<'net> {
    net: &'net Topology,
    services: Vec<Service>,
    edge: Agent<'net>,
    reloads: u64,
    _nodes: Vec<Agent<'net>>,
    _echoes: Vec<Echo>,
}

impl<'net> Nodes<'net> {
    fn start(net: &'net Topology, protocol: Protocol, backends: Backends) -> Self {
        let mut services = Service::all(&[Mode::L2dsr, Mode::IpipV4, Mode::IpipV6]);
        services.retain(|service| service.protocol == protocol);
        let nodes = net.nodes();
        let echoes = nodes.iter().map(|node| Echo::start(node, &services));
        let echoes = echoes.collect();
        let edge = &net.edges()[0];
        Self {
            net,
            edge: Agent::start(edge, &backends(&services, nodes)),
            services,
            reloads: 1,
            _nodes: Agent::start_all(nodes, &node_config([edge])),
            _echoes: echoes,
        }
    }

    fn open(&self) -> Vec<Flow> {
        Flow::open_many(&self.net.clients()[0], &self.services, FLOWS)
    }

    fn change(&mut self, backends: Backends) {
        let config = backends(&self.services, self.net.nodes());
        self.edge.write_config(&config);
        self.reloads += 1;
        self.edge.wait_for_reloads(self.reloads);
    }

    /// The label of the node that owns the slot of a flow.
    fn owner(&self, flow: &Flow) -> &str {
        let (service, from) = (flow.service.to_string(), flow.client.to_string());
        let which = (self.edge).json(&["which", "--service", &service, "--from", &from]);
        let backend = which["choice"]["backend"].as_str().unwrap();
        let mut nodes = self.net.nodes().iter();
        let owner = nodes.find(|node| flow.service.backend(node).to_string() == backend);
        owner.unwrap_or_else(|| panic!("{backend}")).label()
    }
}

/// Holds connections while the backends change there and back. Returns the label of the first node, connections of before,
/// and those that were opened in between.
fn connections_stay(before: Backends, after: Backends) -> (String, Vec<Flow>, Vec<Flow>) {
    let net = Topology::builder().nodes(3).build().unwrap();
    let mut nodes = Nodes::start(&net, Protocol::Tcp, before);
    let mut idle = nodes.open();
    let traffic = Traffic::over(nodes.open());
    traffic.wait_for_rounds(ROUNDS);

    nodes.change(after);
    // A pin would be told in place of the slot's owner.
    let has_moved = idle.iter().any(|flow| nodes.owner(flow) != flow.node);
    assert!(has_moved, "no slot has another owner");
    traffic.wait_for_rounds(ROUNDS);
    Flow::all_stay(&mut idle, "after the change");
    let mut fresh = nodes.open();
    for flow in &fresh {
        assert_eq!(nodes.owner(flow), flow.node, "a new connection");
    }
    Flow::all_stay(&mut fresh, "which is new");

    nodes.change(before);
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
    Flow::all_stay(&mut idle, "after the way back");
    Flow::all_stay(&mut fresh, "which came in between");
    (net.nodes()[0].label().to_owned(), idle, fresh)
}

#[test]
fn connections_of_a_node_that_is_removed_go_on() {
    let (first, held, fresh) = connections_stay(all, without_the_first);
    assert!(Flow::nodes(&held).contains(first.as_str()));
    assert!(
        !Flow::nodes(&fresh).contains(first.as_str()),
        "it gets no new ones"
    );
}

#[test]
fn connections_stay_where_they_are_when_a_node_is_added() {
    let (first, held, fresh) = connections_stay(without_the_first, all);
    assert!(!Flow::nodes(&held).contains(first.as_str()));
    assert!(
        Flow::nodes(&fresh).contains(first.as_str()),
        "it gets new ones"
    );
}

#[test]
fn connections_stay_when_a_node_gets_another_weight() {
    let (first, held, fresh) = connections_stay(all, first_is_heavier);
    let at_first = |flows: &[Flow]| flows.iter().filter(|flow| flow.node == first).count();
    assert!(at_first(&fresh) > at_first(&held), "it gets more new ones");
}

#[test]
fn connections_of_a_node_that_drains_go_on() {
    let (first, held, fresh) = connections_stay(all, first_drains);
    assert!(Flow::nodes(&held).contains(first.as_str()));
    assert!(
        !Flow::nodes(&fresh).contains(first.as_str()),
        "it gets no new ones"
    );
}

#[test]
fn connections_that_are_silent_while_a_node_leaves_and_comes_back_go_on() {
    let net = Topology::builder().nodes(3).build().unwrap();
    let mut nodes = Nodes::start(&net, Protocol::Tcp, all);
    let mut idle = nodes.open();
    nodes.change(without_the_first);
    let mut between = nodes.open();
    nodes.change(all);
    Flow::all_stay(&mut idle, "which was silent meanwhile");
    Flow::all_stay(&mut between, "which came in between");
    assert!(Flow::nodes(&idle).contains(net.nodes()[0].label()));
}

#[test]
fn datagrams_in_use_stay_where_they_are_when_a_node_is_added() {
    let net = Topology::builder().nodes(3).build().unwrap();
    let mut nodes = Nodes::start(&net, Protocol::Udp, without_the_first);
    let traffic = Traffic::over(nodes.open());
    traffic.wait_for_rounds(ROUNDS);
    nodes.change(all);
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
    let backends = nodes.edge.json(&["backends"]);
    let first = net.nodes()[0].v4().to_string();
    let mut rows = backends.as_array().unwrap().iter();
    let owns = |row: &serde_json::Value| row["backend"] == first && row["slots"].as_u64() > Some(0);
    assert!(rows.any(owns), "no slot has another owner: {backends}");
}
