//! A cluster: the real control plane, a node's Kubernetes objects, and agents that follow them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use lab::kubernetes::ControlPlane;
use lab::{Guideway, Machine, Namespace, Process, Signal, Topology, vip_v4, vip_v6, wait_for};
use serde_json::{Value, json};

use crate::objects::{self, SYSTEM, TARGET_PORT};
use crate::outcome::{self, Outcome};
use crate::support::{Echo, Flow, Mode, Protocol, Service, guideway};

/// Longer than agents take to begin, ten of them at once on a busy machine, and than a watch takes to begin anew after an
/// outage.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
/// How long a flow waits for its answer before it is opened again.
const FLOW_PATIENCE: Duration = Duration::from_millis(500);

/// The machines of a topology as a cluster.
pub(crate) struct World<'net> {
    net: &'net Topology,
    pub(crate) control: ControlPlane,
    pub(crate) agents: Vec<Agent<'net>>,
    /// By which the API server reaches each machine.
    pub(crate) reached_at: BTreeMap<&'net str, IpAddr>,
    _echoes: Vec<Echo>,
}

/// An agent that follows the API. When a test panics, its log is shown.
pub(crate) struct Agent<'net> {
    machine: &'net Machine,
    process: Process,
}

impl<'net> World<'net> {
    /// Starts a control plane with the Nodes of a network, and servers on all pods; no agents yet.
    pub(crate) fn new(net: &'net Topology) -> Self {
        Self {
            _echoes: serve_on_pods(net),
            ..Self::without_servers(net)
        }
    }

    /// Starts a control plane with the Nodes of a network; no agents yet.
    pub(crate) fn without_servers(net: &'net Topology) -> Self {
        let control = ControlPlane::start().unwrap();
        let mut reached_at = BTreeMap::new();
        for machine in net.nodes().iter().chain(net.edges()) {
            let address = control.connect(machine.namespace()).unwrap();
            reached_at.insert(machine.label(), address);
            let token = ControlPlane::ADMIN;
            control
                .write_kubeconfig(machine.namespace(), token)
                .unwrap();
        }
        for node in net.nodes() {
            control.add_node(node).unwrap();
        }
        for name in [SYSTEM, "guideway-edges"] {
            let namespace =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            control.apply(&namespace.to_string()).unwrap();
        }
        Self {
            _echoes: Vec::new(),
            net,
            control,
            reached_at,
            agents: Vec::new(),
        }
    }

    /// Starts agents on all machines and waits until they serve.
    pub(crate) fn start(net: &'net Topology) -> Self {
        let mut world = Self::new(net);
        world.write_seed();
        world.show_presence();
        world.launch();
        for agent in &mut world.agents {
            agent.wait_until_in_step();
        }
        world
    }

    /// Starts agents on these machines that may announce addresses, but on no node, and waits until they serve.
    pub(crate) fn announced_by_edges(
        net: &'net Topology,
        machines: impl IntoIterator<Item = &'net Machine>,
    ) -> Self {
        let mut world = Self::new(net);
        world.write_seed();
        world.show_presence();
        let excluded = "node.kubernetes.io/exclude-from-external-load-balancers=";
        for node in net.nodes() {
            let label = ["label", "node", node.label(), excluded];
            world.control.kubectl(&label).unwrap();
        }
        world.launch_on(machines, "announce: { interfaces: [eth0] }\n");
        for agent in &mut world.agents {
            agent.wait_until_in_step();
        }
        world
    }

    /// Starts agents on all machines.
    pub(crate) fn launch(&mut self) {
        self.launch_with("");
    }

    /// Starts agents on all machines, with more in their configuration.
    pub(crate) fn launch_with(&mut self, more: &str) {
        let machines = self.net.edges().iter().chain(self.net.nodes());
        self.launch_on(machines, more);
    }

    /// Starts agents on these machines, with more in their configuration.
    pub(crate) fn launch_on(
        &mut self,
        machines: impl IntoIterator<Item = &'net Machine>,
        more: &str,
    ) {
        let agents = machines.into_iter();
        let agents = agents.map(|machine| Agent::launch(machine, more));
        self.agents.extend(agents);
    }

    /// Writes the Secret with the seed, as the controller would.
    pub(crate) fn write_seed(&self) {
        self.apply(&objects::seed());
    }

    /// Writes the slices of Guideway's own Service: its pods on the nodes, and the edges.
    pub(crate) fn show_presence(&self) {
        self.show_presence_of(self.net.nodes());
    }

    /// Writes the slices of Guideway's own Service: its pods on these nodes, and the edges.
    pub(crate) fn show_presence_of(&self, nodes: &[Machine]) {
        for slice in objects::presence(nodes, self.net.edges()) {
            self.apply(&slice);
        }
    }

    /// Applies a Service `web` of type LoadBalancer, TCP and UDP at one port, and gives it addresses.
    pub(crate) fn balance(&self, addresses: &[IpAddr]) {
        self.balance_at("web", 30_080, addresses);
    }

    /// Applies such a Service by another name.
    pub(crate) fn balance_at(&self, name: &str, node_port: u16, addresses: &[IpAddr]) {
        self.apply(&objects::service(name, node_port));
        self.give(name, addresses);
    }

    /// Gives a Service of the namespace `default` these addresses, as the controller would.
    pub(crate) fn give(&self, name: &str, addresses: &[IpAddr]) {
        let status = json!({"status": objects::status(addresses)}).to_string();
        let patch = ["patch", "service", name, "--subresource=status"];
        self.control
            .kubectl(&[&patch[..], &["--type=merge", "-p", &status]].concat())
            .unwrap();
    }

    /// Writes the slices of `web`: these pods, each ready or not.
    pub(crate) fn endpoints(&self, pods: &[(&Machine, bool)]) {
        self.endpoints_of("web", pods);
    }

    /// Writes the slices of a Service.
    pub(crate) fn endpoints_of(&self, service: &str, pods: &[(&Machine, bool)]) {
        for slice in objects::slices(self.net, service, pods) {
            self.apply(&slice);
        }
    }

    pub(crate) fn apply(&self, object: &Value) {
        self.control.apply(&object.to_string()).unwrap();
    }

    /// Waits until new flows from the client to each service are answered by exactly these pods.
    pub(crate) fn wait_for_pods(&self, services: &[Service], pods: &[&Machine]) {
        wait_for_pods(self.net, services, pods);
    }

    /// Waits until each service answers nobody.
    pub(crate) fn wait_until_nobody_answers(&self, services: &[Service]) {
        let client = &self.net.clients()[0];
        for service in services {
            wait_for(
                &format!("nobody answers {service}"),
                PATIENCE,
                || match Flow::open_within(client, service, FLOW_PATIENCE) {
                    Ok(flow) => Err(format!("{} answers", flow.node)),
                    Err(_) => Ok(()),
                },
            )
            .unwrap();
        }
    }
}

impl<'net> Agent<'net> {
    /// Starts an agent without waiting for it.
    pub(crate) fn launch(machine: &'net Machine, more: &str) -> Self {
        let config = format!(
            "interfaces: [{{ name: {}, mode: native }}]
tables: {{ lut_arena_mib: 2, services: 512, backends: 256, next_hops: 256, vips: 256, pods: 2048 }}
api: {{ socket: {} }}
metrics: {{ listen: \"0.0.0.0:9750\" }}
kubernetes: {{ node_name: {}, healthz: \"127.0.0.1:9751\", external_ips: [10.99.0.200/29, \"fd00:99::c8/125\"] }}
{more}",
            Machine::INTERFACE,
            Guideway::socket().display(),
            machine.label(),
        );
        guideway().configure(machine.namespace(), &config).unwrap();
        Self {
            machine,
            process: Self::run(machine),
        }
    }

    fn run(machine: &Machine) -> Process {
        let files = Path::new(Namespace::FILES);
        let mut command = machine.namespace().command(env!("CARGO_BIN_EXE_guideway"));
        command
            .env("GUIDEWAY_LOG", "debug,kube=info,hyper=info,rustls=info")
            .env("KUBECONFIG", files.join("kubeconfig"))
            .args(["run", "--kubernetes", "--config"])
            .arg(files.join("guideway.yaml"));
        Process::spawn(&mut command).unwrap()
    }

    /// Ends the agent without a word to anybody.
    pub(crate) fn kill(&mut self) {
        self.process.signal(Signal::SIGKILL).unwrap();
        self.process.wait(PATIENCE).unwrap();
    }

    /// Sends the agent a signal.
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.process.signal(signal).unwrap();
    }

    /// Starts another agent, whose configuration is not good enough, and waits for its end.
    pub(crate) fn fail_to_start(&self) {
        let mut command = self
            .machine
            .namespace()
            .command(env!("CARGO_BIN_EXE_guideway"));
        command.args(["run", "--kubernetes", "--config", "/dev/null"]);
        let mut process = Process::spawn(&mut command).unwrap();
        assert!(!process.wait(PATIENCE).unwrap().success());
    }

    pub(crate) fn machine(&self) -> &'net Machine {
        self.machine
    }

    /// Ends the agent and starts it again; what it had attached stays in between.
    pub(crate) fn restart(&mut self) {
        self.process.signal(Signal::SIGTERM).unwrap();
        let code = self.process.wait(PATIENCE).unwrap().code();
        assert_eq!(code, Some(0));
        self.process = Self::run(self.machine);
    }

    /// Has the agent detach, which ends it, and starts another one, without tables to take over.
    pub(crate) fn start_over(&mut self) {
        guideway()
            .ask(self.machine.namespace(), &["detach"])
            .unwrap();
        assert_eq!(self.process.wait(PATIENCE).unwrap().code(), Some(0));
        self.process = Self::run(self.machine);
    }

    /// Returns what the agent has logged since it was started.
    pub(crate) fn log(&self) -> String {
        self.process.stderr()
    }

    pub(crate) fn status(&self) -> Value {
        guideway()
            .ask(self.machine.namespace(), &["status"])
            .unwrap()
    }

    /// Waits until the agent's status is as it should be.
    pub(crate) fn wait_for_status(&mut self, awaited: &str, is_right: impl Fn(&Value) -> bool) {
        let awaited = format!("{}: {awaited}", self.machine.label());
        wait_for(&awaited, PATIENCE, || {
            assert!(self.process.is_running(), "the agent has ended");
            let answer = guideway().ask(self.machine.namespace(), &["status"]);
            let status = answer.map_err(|error| error.to_string())?;
            if is_right(&status) {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .unwrap();
    }

    /// Waits until the agent has taken over the first state and has no problem.
    pub(crate) fn wait_until_in_step(&mut self) {
        self.wait_for_status("in step with the API", |status| {
            status["kubernetes"]["synced_seconds"].is_u64() && status["unapplied"] == 0
        });
    }

    /// Returns the rows of `guideway backends` about a Service.
    pub(crate) fn backends_of(&self, service: &str) -> Vec<Value> {
        let rows = guideway().ask(self.machine.namespace(), &["backends"]);
        let mut rows = rows.unwrap().as_array().unwrap().clone();
        rows.retain(|row| row["name"].as_str().unwrap().contains(service));
        rows
    }

    /// Returns the addresses of the pods that get new connections to a Service. The node of a pod that left it still
    /// delivers to it.
    pub(crate) fn pods_of(&self, service: &str) -> BTreeSet<IpAddr> {
        let address = |row: &Value| {
            let backend = row["backend"].as_str().unwrap();
            backend.parse::<SocketAddr>().unwrap().ip()
        };
        let rows = self.backends_of(service);
        let chosen = rows.iter().filter(|row| row["weight"] != 0);
        chosen.map(address).collect()
    }

    /// Reads the metrics.
    pub(crate) fn metrics(&self) -> String {
        let mut curl = self.machine.namespace().command("curl");
        curl.args(["-sS", "--fail", "http://127.0.0.1:9750/metrics"]);
        lab::output(&mut curl).unwrap()
    }

    /// Reads one value of the metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.metrics();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("{name} is not in {text}"))
            .parse()
            .unwrap()
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.process.stdout() + &self.process.stderr();
            eprintln!("--- agent of {}\n{log}", self.machine.label());
        }
    }
}

/// Two edges, so that one can take over from the other, and a node with a pod.
pub(crate) fn two_edges() -> Topology {
    let net = Topology::builder().edges(2).nodes(1).pods(1);
    net.build().unwrap()
}

/// Serves on all pods.
pub(crate) fn serve_on_pods(net: &Topology) -> Vec<Echo> {
    let echoes = net.pods().map(|pod| {
        let at = |address| SocketAddr::new(address, TARGET_PORT);
        let protocols = [Protocol::Tcp, Protocol::Udp];
        let served = protocols.map(|protocol| [(at(pod.v4()), protocol), (at(pod.v6()), protocol)]);
        Echo::serve(pod, served.into_iter().flatten())
    });
    echoes.collect()
}

/// Waits until new flows from the client to each service are answered by exactly these pods.
pub(crate) fn wait_for_pods(net: &Topology, services: &[Service], pods: &[&Machine]) {
    let expected = Outcome::by(pods.iter().copied());
    outcome::expect(&net.clients()[0], services, &expected);
}

/// Returns the addresses of pods.
pub(crate) fn addresses(pods: &[&Machine]) -> BTreeSet<IpAddr> {
    pods.iter().flat_map(|pod| [pod.v4(), pod.v6()]).collect()
}

/// Returns the load-balancer addresses of a number.
pub(crate) fn vips(number: u8) -> [IpAddr; 2] {
    [vip_v4(number).into(), vip_v6(number).into()]
}

/// Names the services at these addresses.
pub(crate) fn ways(number: u8) -> Vec<Service> {
    let ways = |vip| [Protocol::Tcp, Protocol::Udp].map(|protocol| at(vip, 80, protocol));
    vips(number).into_iter().flat_map(ways).collect()
}

/// Names a service as flows need it.
pub(crate) fn at(address: IpAddr, port: u16, protocol: Protocol) -> Service {
    Service {
        address: SocketAddr::new(address, port),
        protocol,
        mode: Mode::IpipV4,
    }
}
