//! Two edges that exchange owners, behind a router that spreads flows over them, and two nodes with pods.

use lab::{Signal, Topology};
use serde_json::Value;

use crate::peers::{KEY, begin_from_peer, wait_until_agreed, with_peers};
use crate::support::{
    Agent, Cluster, Echo, Mode, PodService, Protocol, Service, cluster_config, serve_on_pods,
};

use super::change::{Change, Pods, SHORT_TABLE};

/// Pods of each node, of which half is listed at first. All of the two nodes together are fewer than the past owners that a
/// slot remembers.
const PODS: u8 = 6;

pub(super) fn topology() -> Topology {
    let net = Topology::builder().edges(2).pods(PODS).build().unwrap();
    net.route_vips(&[0, 1]).unwrap();
    net
}

/// The machines and their agents.
#[derive(Debug)]
pub(super) struct World<'net> {
    net: &'net Topology,
    services: Vec<Service>,
    /// A file that lists all pods.
    whole: String,
    edges: [Member<'net>; 2],
    nodes: Vec<Member<'net>>,
    pods: Pods,
    /// The edges that are there; first the one that has been there for longest.
    present: Vec<usize>,
    /// Whether the router gives each edge what is the other one's at first.
    is_reshuffled: bool,
    _echoes: Vec<Echo>,
}

/// Packets that have been on their way back, as the machines count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    /// By nodes, to an edge.
    pub(super) returned: u64,
    /// By edges, to another owner.
    pub(super) retried: u64,
}

/// A machine with an agent.
#[derive(Debug)]
struct Member<'net> {
    agent: Agent<'net>,
    is_running: bool,
    file: String,
    reloads: u64,
    /// Whether it may not have noticed its file yet.
    is_behind: bool,
}

impl<'net> World<'net> {
    pub(super) fn start(net: &'net Topology) -> Self {
        let services = Service::all(&[Mode::IpipV4, Mode::IpipV6]).into_iter();
        let services: Vec<_> = services
            .map(|service| PodService {
                settings: SHORT_TABLE,
                ..PodService::over_all(service)
            })
            .collect();
        let echoes = serve_on_pods(net, &services);
        let whole = cluster_config(net, &services);
        let pods = Pods::default();
        let file = pods.file(net, &whole);
        let [one, other] = [0, 1].map(|index| {
            let machine = &net.edges()[index];
            with_peers(&file, machine, net, KEY)
        });
        let nodes = Agent::start_all(net.nodes(), &file).into_iter();
        let nodes = nodes.map(|agent| Member::of(agent, file.clone())).collect();
        let mut edges = [(0, one), (1, other)].map(|(index, file)| {
            let machine = &net.edges()[index];
            Member::of(Agent::start(machine, &file), file)
        });
        begin_from_peer(&mut edges[1].agent);
        Self {
            net,
            services: services.iter().map(|service| service.service).collect(),
            whole,
            edges,
            nodes,
            pods,
            present: vec![0, 1],
            is_reshuffled: false,
            _echoes: echoes,
        }
    }

    pub(super) fn net(&self) -> &'net Topology {
        self.net
    }

    pub(super) fn services(&self, protocol: Protocol) -> Vec<Service> {
        let services = self.services.iter().copied();
        services
            .filter(|service| service.protocol == protocol)
            .collect()
    }

    pub(super) fn pods(&self) -> &Pods {
        &self.pods
    }

    pub(super) fn counted(&self) -> Counted {
        let nodes = self.nodes.iter();
        let returned = nodes.map(|node| Cluster::packets(&node.agent, "reply", "returned"));
        let edges = self.present.iter().map(|index| &self.edges[*index]);
        let retried = edges.map(|edge| Cluster::packets(&edge.agent, "to_node", "retried"));
        Counted {
            returned: returned.sum(),
            retried: retried.sum(),
        }
    }

    /// Makes what has to be there before some changes.
    pub(super) fn prepare(&mut self, changes: &[Change]) {
        let of_edges = [Change::EdgeLost, Change::EdgeAdded];
        let first = changes.iter().find(|change| of_edges.contains(change));
        if first == Some(&Change::EdgeAdded) {
            self.lose_edge();
        }
        self.write(Pods::before(changes));
        self.wait();
    }

    /// Makes a change of the file that one of the edges does not hear of.
    pub(super) fn change_for_one_edge(&mut self, change: Change) {
        let file = self.pods.clone().with(change).file(self.net, &self.whole);
        let index = self.present[0];
        self.write_edge(index, &file);
        self.write_nodes(&file);
        self.wait();
    }

    /// Makes changes at once. Where agents are killed, something is done before they start again.
    pub(super) fn change(&mut self, changes: &[Change], while_killed: impl FnOnce()) {
        let mut killed: Vec<usize> = Vec::new();
        if changes.contains(&Change::EdgeAgentKilled) {
            killed.extend(self.present.last());
        }
        if changes.contains(&Change::NodeAgentKilled) {
            killed.push(self.edges.len());
        }
        for index in &killed {
            self.member(*index).kill();
        }
        let pods = changes
            .iter()
            .fold(self.pods.clone(), |pods, change| pods.with(*change));
        self.write(pods);
        for change in changes {
            match change {
                Change::EdgeLost => self.lose_edge(),
                Change::EdgeAdded => {
                    // Its peer has to tell the past.
                    for index in killed.drain(..) {
                        self.member(index).start();
                    }
                    self.add_edge();
                }
                Change::Reshuffled => self.reshuffle(true),
                _ => {}
            }
        }
        if !killed.is_empty() {
            while_killed();
        }
        for index in killed {
            self.member(index).start();
        }
        self.wait();
    }

    /// Makes everything as it was at first.
    pub(super) fn go_back(&mut self) {
        self.write(Pods::default());
        if self.present.len() < self.edges.len() {
            self.add_edge();
        }
        self.reshuffle(false);
        self.wait();
    }

    /// Waits until both edges have the same past.
    pub(super) fn wait_until_agreed(&self) {
        wait_until_agreed(self.edges.each_ref().map(|edge| &edge.agent));
    }

    /// No agent may have a problem, or have had no room for a past owner.
    pub(super) fn assert_whole(&self) {
        for member in self.edges.iter().chain(&self.nodes) {
            let agent = &member.agent;
            let status = agent.json(&["status"]);
            assert_eq!(status["problems"], Value::Array(Vec::new()));
            let services = agent.json(&["services"]);
            for service in services.as_array().unwrap() {
                assert_eq!(service["past_owners_dropped"], 0, "{service}");
            }
        }
    }

    fn member(&mut self, index: usize) -> &mut Member<'net> {
        match self.edges.len() {
            edges if index < edges => &mut self.edges[index],
            edges => &mut self.nodes[index - edges],
        }
    }

    /// Writes a file to all machines but an edge that is lost.
    fn write(&mut self, pods: Pods) {
        let file = pods.file(self.net, &self.whole);
        self.pods = pods;
        self.write_nodes(&file);
        for index in self.present.clone() {
            self.write_edge(index, &file);
        }
    }

    fn write_edge(&mut self, index: usize, file: &str) {
        let edge = &mut self.edges[index];
        let file = with_peers(file, edge.agent.machine(), self.net, KEY);
        edge.write(file);
    }

    fn write_nodes(&mut self, file: &str) {
        for node in &mut self.nodes {
            node.write(file.to_owned());
        }
    }

    /// Waits until all agents that run have their files.
    fn wait(&mut self) {
        let members = self.edges.iter_mut().chain(&mut self.nodes);
        for member in members.filter(|member| member.is_behind) {
            member.agent.wait_for_reloads(member.reloads);
            member.is_behind = false;
        }
    }

    fn lose_edge(&mut self) {
        let lost = self.present.remove(0);
        let edge = &mut self.edges[lost];
        // From here on, nobody forwards what the router sends there.
        edge.agent.json(&["detach"]);
        self.route();
        self.edges[lost].end();
    }

    fn add_edge(&mut self) {
        let file = self.pods.file(self.net, &self.whole);
        let mut all = 0..self.edges.len();
        let added = all.find(|index| !self.present.contains(index)).unwrap();
        self.write_edge(added, &file);
        let edge = &mut self.edges[added];
        edge.start();
        begin_from_peer(&mut edge.agent);
        self.present.push(added);
        self.route();
    }

    fn reshuffle(&mut self, is_reshuffled: bool) {
        self.is_reshuffled = is_reshuffled;
        self.route();
    }

    fn route(&self) {
        let mut edges = self.present.clone();
        edges.sort_unstable();
        if self.is_reshuffled {
            edges.reverse();
        }
        self.net.route_vips(&edges).unwrap();
    }
}

impl<'net> Member<'net> {
    fn of(agent: Agent<'net>, file: String) -> Self {
        Self {
            agent,
            is_running: true,
            file,
            reloads: 1,
            is_behind: false,
        }
    }

    /// Writes a file, unless it is the same. An agent that runs has to notice it.
    fn write(&mut self, file: String) {
        if file == self.file {
            return;
        }
        self.agent.write_config(&file);
        self.file = file;
        self.is_behind = self.is_running;
        self.reloads += u64::from(self.is_running);
    }

    fn kill(&mut self) {
        self.agent.signal(Signal::SIGKILL);
        self.end();
    }

    /// Waits until the agent has ended.
    fn end(&mut self) {
        self.agent.wait_for_end();
        self.is_running = false;
        self.is_behind = false;
    }

    fn start(&mut self) {
        self.agent.start_again();
        self.is_running = true;
        self.reloads = 1;
    }
}
