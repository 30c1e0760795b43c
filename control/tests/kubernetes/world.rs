//! A cluster: the real control plane, a node's Kubernetes objects, and agents that follow them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use lab::kubernetes::ControlPlane;
use lab::{Guideway, Machine, Namespace, Process, Signal, Topology, wait_for};
use serde_json::{Value, json};

use crate::support::{Echo, Flow, Mode, Protocol, Service, guideway};

/// Longer than a watch that failed takes to begin anew: 30 s, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// How long a flow waits for its answer before it is opened again.
const FLOW_PATIENCE: Duration = Duration::from_millis(500);
/// Namespace of Guideway's own objects.
const SYSTEM: &str = "guideway-system";
/// Where pods listen.
const TARGET_PORT: u16 = 8080;

/// The machines of a topology as a cluster.
pub(crate) struct World<'net> {
    net: &'net Topology,
    pub(crate) control: ControlPlane,
    pub(crate) agents: Vec<Agent<'net>>,
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
        let control = ControlPlane::start().unwrap();
        for machine in net.nodes().iter().chain(net.edges()) {
            control.connect(machine.namespace()).unwrap();
            let token = ControlPlane::ADMIN;
            control
                .write_kubeconfig(machine.namespace(), token)
                .unwrap();
        }
        for node in net.nodes() {
            control.add_node(node).unwrap();
        }
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}});
        control.apply(&namespace.to_string()).unwrap();
        let echoes = net.pods().map(|pod| {
            let at = |address| SocketAddr::new(address, TARGET_PORT);
            let protocols = [Protocol::Tcp, Protocol::Udp];
            let served =
                protocols.map(|protocol| [(at(pod.v4()), protocol), (at(pod.v6()), protocol)]);
            Echo::serve(pod, served.into_iter().flatten())
        });
        Self {
            _echoes: echoes.collect(),
            net,
            control,
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

    /// Starts agents on all machines.
    pub(crate) fn launch(&mut self) {
        self.launch_with("");
    }

    /// Starts agents on all machines, with more in their configuration.
    pub(crate) fn launch_with(&mut self, more: &str) {
        let machines = self.net.edges().iter().chain(self.net.nodes());
        let agents = machines.map(|machine| Agent::launch(machine, more));
        self.agents.extend(agents);
    }

    /// Writes the Secret with the seed, as the controller would.
    pub(crate) fn write_seed(&self) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": SYSTEM, "name": "guideway-seed"},
            "stringData": {"seed": "0x1234567890abcdef"},
        });
        self.control.apply(&secret.to_string()).unwrap();
    }

    /// Writes the slices of Guideway's own Service: its pods on the nodes, and the edges.
    pub(crate) fn show_presence(&self) {
        let pod = |node: &Machine| {
            json!({
                "addresses": [node.v4().to_string()], "nodeName": node.label(),
                "conditions": {"ready": true},
            })
        };
        let edge = |edge: &Machine| json!({"addresses": [edge.v4().to_string()]});
        let nodes: Vec<Value> = self.net.nodes().iter().map(pod).collect();
        let edges: Vec<Value> = self.net.edges().iter().map(edge).collect();
        for (name, endpoints) in [("guideway-1", nodes), ("edges", edges)] {
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"namespace": SYSTEM, "name": name, "labels": {
                    "kubernetes.io/service-name": "guideway", "service.kubernetes.io/headless": "",
                }},
                "addressType": "IPv4", "ports": [], "endpoints": endpoints,
            });
            self.control.apply(&slice.to_string()).unwrap();
        }
    }

    /// Applies a Service `web` of type LoadBalancer, TCP and UDP at one port, and gives it addresses.
    pub(crate) fn balance(&self, addresses: &[IpAddr]) {
        let port = |protocol: &str| {
            json!({
                "name": protocol.to_lowercase(), "protocol": protocol, "port": 80, "nodePort": 30_080,
            })
        };
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "guideway.dev/guideway",
                "ipFamilyPolicy": "RequireDualStack", "ports": [port("TCP"), port("UDP")],
            },
        });
        self.control.apply(&service.to_string()).unwrap();
        let ingress = addresses
            .iter()
            .map(|address| json!({"ip": address.to_string()}));
        let ingress: Vec<Value> = ingress.collect();
        let status = json!({"status": {"loadBalancer": {"ingress": ingress}}}).to_string();
        self.control
            .kubectl(&[
                "patch",
                "service",
                "web",
                "--subresource=status",
                "--type=merge",
                "-p",
                &status,
            ])
            .unwrap();
    }

    /// Writes the slices of `web`: these pods, each ready or not.
    pub(crate) fn endpoints(&self, pods: &[(&Machine, bool)]) {
        for (kind, is_v4) in [("IPv4", true), ("IPv6", false)] {
            let endpoint = |(pod, ready): &(&Machine, bool)| {
                let address = if is_v4 { pod.v4() } else { pod.v6() };
                json!({
                    "addresses": [address.to_string()], "nodeName": self.node_of(pod).label(),
                    "conditions": {"ready": ready},
                })
            };
            let endpoints: Vec<Value> = pods.iter().map(endpoint).collect();
            let port = |protocol: &str| {
                json!({
                    "name": protocol.to_lowercase(), "protocol": protocol, "port": TARGET_PORT,
                })
            };
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("web-{}", kind.to_lowercase()),
                    "labels": {"kubernetes.io/service-name": "web"},
                },
                "addressType": kind, "ports": [port("TCP"), port("UDP")], "endpoints": endpoints,
            });
            self.control.apply(&slice.to_string()).unwrap();
        }
    }

    fn node_of(&self, pod: &Machine) -> &'net Machine {
        let mut nodes = self.net.nodes().iter();
        let is_here =
            |node: &&Machine| node.pods().iter().any(|other| other.label() == pod.label());
        nodes.find(is_here).unwrap()
    }

    /// Waits until new flows from the client to each service are answered by exactly these pods.
    pub(crate) fn wait_for_pods(&self, services: &[Service], pods: &[&Machine]) {
        const FLOWS: usize = 24;
        let client = &self.net.clients()[0];
        let expected: BTreeSet<&str> = pods.iter().map(|pod| pod.label()).collect();
        for service in services {
            let awaited = format!("{service} is answered by {expected:?}");
            wait_for(&awaited, PATIENCE, || {
                let mut answered = BTreeSet::new();
                for _ in 0..FLOWS {
                    match Flow::open_within(client, service, FLOW_PATIENCE) {
                        Ok(flow) => drop(answered.insert(flow.node)),
                        Err(error) => return Err(format!("{error}, after {answered:?}")),
                    }
                }
                let is_right = answered
                    .iter()
                    .map(String::as_str)
                    .eq(expected.iter().copied());
                if is_right {
                    Ok(())
                } else {
                    Err(format!("{answered:?}"))
                }
            })
            .unwrap();
        }
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
    fn launch(machine: &'net Machine, more: &str) -> Self {
        let config = format!(
            "interfaces: [{{ name: {}, mode: native }}]
tables: {{ lut_arena_mib: 1, services: 64, backends: 256, next_hops: 256, vips: 256, pods: 256 }}
api: {{ socket: {} }}
metrics: {{ listen: \"127.0.0.1:9750\" }}
kubernetes: {{ node_name: {}, healthz: \"127.0.0.1:9751\" }}
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
            status["kubernetes"]["synced_seconds"].is_u64() && status["problems"] == json!([])
        });
    }

    /// Reads one value of the metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let mut curl = self.machine.namespace().command("curl");
        curl.args(["-sS", "--fail", "http://127.0.0.1:9750/metrics"]);
        let text = lab::output(&mut curl).unwrap();
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

/// Names a service as flows need it.
pub(crate) fn at(address: IpAddr, port: u16, protocol: Protocol) -> Service {
    Service {
        address: SocketAddr::new(address, port),
        protocol,
        mode: Mode::IpipV4,
    }
}
