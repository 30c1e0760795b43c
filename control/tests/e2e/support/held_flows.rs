//! Flows that are held while the pods of their services change: the agents that learn of it, and what must stay.

use std::{cell::Cell, collections::BTreeSet};

use lab::{Builder, Machine, Route, Topology, output};

use super::{
    Agent, Cluster, Echo, Flow, Mode, PodKind, PodService, Protocol, Service, Sidecar, Traffic,
    cluster_config, serve_on_pods, without,
};

/// Held connections to each service that are in use during the change, and as many that are idle.
const FLOWS: usize = 24;
const ROUNDS: u64 = 5;

/// Changes a configuration file in what it says of one pod.
pub(crate) type Edit = fn(&str, &Machine) -> String;

pub(crate) fn unchanged(config: &str, _: &Machine) -> String {
    config.to_owned()
}

/// An edge of its own before two nodes with two pods each.
pub(crate) fn edge_apart() -> Topology {
    Topology::builder().pods(2).build().unwrap()
}

/// Two nodes with two pods each, of which the first is the edge.
pub(crate) fn edge_with_pods() -> Topology {
    first_node_is_edge(Topology::builder().pods(2))
}

/// A network whose first node is the edge.
pub(crate) fn first_node_is_edge(builder: Builder) -> Topology {
    let net = builder.edges(0).build().unwrap();
    let edge = &net.nodes()[0];
    for (vips, edge) in Topology::vips().into_iter().zip([edge.v4(), edge.v6()]) {
        let route = Route::to(vips).via(edge);
        net.router().replace_route(&route).unwrap();
    }
    net
}

/// Services of one protocol over all pods.
pub(crate) fn pod_services(
    modes: &[Mode],
    protocol: Protocol,
    kind: PodKind,
) -> Vec<PodService<'static>> {
    let services = Service::all(modes).into_iter();
    services
        .filter(|service| service.protocol == protocol)
        .map(|service| PodService {
            kind,
            ..PodService::over_all(service)
        })
        .collect()
}

/// The agents of a network whose file changes in what it says of one pod.
#[derive(Debug)]
pub(crate) struct Agents<'net> {
    net: &'net Topology,
    pod: &'net Machine,
    client: &'net Machine,
    services: Vec<Service>,
    config: String,
    before: Edit,
    reloads: Cell<u64>,
    /// The edge's is the first; behind it are the nodes', of which one may be the edge's.
    agents: Vec<Agent<'net>>,
    _echoes: Vec<Echo>,
    _sidecars: Vec<Sidecar>,
}

impl<'net> Agents<'net> {
    /// Starts them with services by IP-in-IP over all pods.
    pub(crate) fn start(
        net: &'net Topology,
        protocol: Protocol,
        pod: &'net Machine,
        before: Edit,
    ) -> Self {
        let services = pod_services(&[Mode::IpipV4, Mode::IpipV6], protocol, PodKind::Plain);
        Self::start_over(net, &services, pod, before)
    }

    pub(crate) fn start_over(
        net: &'net Topology,
        services: &[PodService<'_>],
        pod: &'net Machine,
        before: Edit,
    ) -> Self {
        let echoes = serve_on_pods(net, services);
        let redirected = services.iter();
        let redirected = redirected.filter(|service| service.kind == PodKind::WithSidecar);
        let ports: BTreeSet<u16> = redirected.map(|service| service.target_port).collect();
        let sidecars = ports.iter();
        let sidecars = sidecars.flat_map(|port| net.pods().map(|pod| Sidecar::start(pod, *port)));
        let config = cluster_config(net, services);
        let machines = net.edges().iter().chain(net.nodes());
        Self {
            net,
            pod,
            client: &net.clients()[0],
            services: services.iter().map(|service| service.service).collect(),
            _sidecars: sidecars.collect(),
            agents: Agent::start_all(machines, &before(&config, pod)),
            config,
            before,
            reloads: Cell::new(1),
            _echoes: echoes,
        }
    }

    /// Has flows come from this machine, in place of the first client.
    pub(crate) fn from(self, client: &'net Machine) -> Self {
        Self { client, ..self }
    }

    /// Has flows go to these addresses, in place of the VIPs.
    pub(crate) fn to(self, services: Vec<Service>) -> Self {
        Self { services, ..self }
    }

    pub(crate) fn edge(&self) -> &Agent<'net> {
        &self.agents[0]
    }

    fn nodes(&self) -> &[Agent<'net>] {
        &self.agents[self.net.edges().len()..]
    }

    /// Opens some flows to each service.
    pub(crate) fn open(&self) -> Vec<Flow> {
        Flow::open_many(self.client, &self.services, FLOWS)
    }

    pub(crate) fn change(&self, edit: Edit) {
        self.reloads.set(self.reloads.get() + 1);
        for agent in &self.agents {
            agent.write_config(&edit(&self.config, self.pod));
        }
        for agent in &self.agents {
            agent.wait_for_reloads(self.reloads.get());
        }
    }

    /// Makes the file what it was at first.
    pub(crate) fn change_back(&self) {
        self.change(self.before);
    }

    /// The label of the pod that owns the slot of a flow, as the edge tells it.
    pub(crate) fn owner(&self, flow: &Flow) -> String {
        let (service, from) = (flow.service.to_string(), flow.client.to_string());
        let which = (self.edge()).json(&["which", "--service", &service, "--from", &from]);
        let backend = which["choice"]["backend"].as_str().unwrap().to_owned();
        let is_owner = |pod: &&Machine| {
            let pod = pod.address_like(flow.service.address.ip());
            let ends = [format!("{pod}:"), format!("[{pod}]:")];
            ends.iter().any(|end| backend.starts_with(end))
        };
        let mut pods = self.net.pods().chain(self.net.nodes());
        pods.find(is_owner).unwrap().label().to_owned()
    }

    fn is_moved(&self, flow: &Flow) -> bool {
        self.owner(flow) != flow.node
    }

    /// Tells whether this is a pod of the edge's own machine.
    pub(crate) fn is_at_edge(&self, label: &str) -> bool {
        let edge = self.edge().machine();
        let mut pods = edge.pods().iter().chain([edge]);
        pods.any(|pod| pod.label() == label)
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

    /// How many resets nodes and pods have sent.
    fn resets(&self) -> u64 {
        let machines = self.net.nodes().iter().chain(self.net.pods());
        machines
            .map(|machine| kernel_counter(machine, "TcpOutRsts"))
            .sum()
    }
}

/// A counter of a machine's kernel, by the name that nstat(8) has for it.
pub(crate) fn kernel_counter(machine: &Machine, name: &str) -> u64 {
    let mut nstat = machine.namespace().command("nstat");
    let table = output(nstat.args(["-a", "-s", "-z", name])).unwrap();
    let line = table.lines().find(|line| line.starts_with(name));
    let count = line.unwrap().split_whitespace().nth(1).unwrap();
    count.parse().unwrap()
}

/// A connection whose slot has another owner by now.
#[derive(Debug)]
pub(crate) struct Moved<'a> {
    pub(crate) flow: &'a Flow,
    pub(crate) owner: String,
}

/// Holds connections while what the file says of a pod changes there and back. Calls `check` between the two, with those among
/// the connections whose slots have another owner by then, and new ones.
pub(crate) fn connections_stay(
    agents: &Agents<'_>,
    after: Edit,
    check: impl Fn(&[Moved<'_>], &[Flow]),
) {
    let resets = agents.resets();
    let mut idle = agents.open();
    let traffic = Traffic::over(agents.open());
    traffic.wait_for_rounds(ROUNDS);
    for flow in &idle {
        assert_eq!(agents.owner(flow), flow.node, "before the change");
    }

    agents.change(after);
    traffic.wait_for_rounds(ROUNDS);
    let busy = traffic.stop_unharmed();
    for _ in 0..ROUNDS {
        Flow::all_stay(&mut idle, "after the change");
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
    let mut fresh = agents.open();
    for flow in &fresh {
        assert!(!agents.is_moved(flow), "a new connection");
    }
    check(&moved, &fresh);
    drop(moved);
    Flow::all_stay(&mut idle, "which is pinned");
    assert_eq!(
        agents.retried(),
        before,
        "what is pinned, or new, is not looked for"
    );

    // Back again: what came meanwhile stays too.
    let traffic = Traffic::over(busy);
    agents.change_back();
    traffic.wait_for_rounds(ROUNDS);
    // Open until resets are counted: on a busy machine, the end of a connection may come twice, and be answered by one.
    let _busy = traffic.stop_unharmed();
    Flow::all_stay(&mut idle, "after the way back");
    Flow::all_stay(&mut fresh, "which came in between");
    assert!(
        fresh.iter().any(|flow| agents.is_moved(flow)),
        "no slot of a connection from in between has another owner"
    );
    assert_eq!(agents.resets(), resets, "nodes and pods reset nothing");
}

pub(crate) fn connections_of_a_removed_pod_go_on(
    agents: &Agents<'_>,
    check: impl Fn(&[Moved<'_>]),
) {
    let pod = agents.pod.label();
    connections_stay(agents, without, |moved, fresh| {
        assert!(moved.iter().any(|moved| moved.flow.node == pod));
        assert!(!Flow::nodes(fresh).contains(pod), "it gets no new ones");
        check(moved);
    });
}

/// Clients reset connections of a pod that has left, and use their ports again. Returns the new connections, which must stay.
pub(crate) fn use_ports_again_after_a_reset(agents: &Agents<'_>) -> Vec<Flow> {
    let pod = agents.pod.label();
    let mut flows = agents.open();
    Flow::all_stay(&mut flows, "before the change");
    agents.change(without);
    // The sockets of the others are seen when the client proves its address, or never.
    Flow::all_stay(flows.iter_mut().step_by(2), "after the change");

    let of_pod = flows.into_iter().filter(|flow| flow.node == pod);
    let open_anew = |flow: Flow| {
        let of = format!("{} to {} again", flow.client, flow.service);
        let opened = flow.open_anew(agents.client);
        opened.unwrap_or_else(|error| panic!("{of}: {error}"))
    };
    let mut again: Vec<Flow> = of_pod.map(open_anew).collect();
    assert!(!again.is_empty());
    assert!(!Flow::nodes(&again).contains(pod), "it has left");
    Flow::all_stay(&mut again, "by ports used again");
    again
}

/// Clients do so, and the pod comes back: it still has the former connections in its node's tables, but in none of its sockets.
pub(crate) fn ports_used_again_after_a_reset_keep_their_pods(agents: &Agents<'_>) {
    let mut again = use_ports_again_after_a_reset(agents);
    let pod = agents.pod.label();
    agents.change_back();
    for flow in &again {
        assert_eq!(agents.owner(flow), pod, "it is back");
    }
    Flow::all_stay(&mut again, "once the former pod is back");
}

/// Holds flows of UDP while what the file says of a pod changes; returns those of before and new ones.
pub(crate) fn datagrams_stay(agents: &Agents<'_>, after: Edit) -> (Vec<Flow>, Vec<Flow>) {
    let mut idle = agents.open();
    let traffic = Traffic::over(agents.open());
    traffic.wait_for_rounds(ROUNDS);
    assert_eq!(agents.returned(), 0, "nothing has changed");

    agents.change(after);
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
    Flow::all_stay(&mut idle, "after the change");
    let mut fresh = agents.open();
    Flow::all_stay(&mut fresh, "which is new");
    // What is returned within the edge's machine takes no frame.
    assert!(agents.net.edges().is_empty() || agents.returned() > 0);
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
    agents.change_back();
    Flow::all_stay(&mut idle, "after the way back");
    Flow::all_stay(&mut fresh, "which came in between");
    (idle, fresh)
}

pub(crate) fn datagrams_of_a_removed_pod_go_on(agents: &Agents<'_>) {
    let pod = agents.pod.label();
    let (held, fresh) = datagrams_stay(agents, without);
    assert!(Flow::nodes(&held).contains(pod));
    assert!(!Flow::nodes(&fresh).contains(pod), "it gets no new ones");
}
