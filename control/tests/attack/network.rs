//! A client, an edge, a node with a pod, and a host without an agent; what they serve.

use std::{
    fmt,
    net::{IpAddr, SocketAddr, TcpListener},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use lab::{
    Cidr, DelayedCable, Machine, Namespace, Route, Topology, Veth, output, vip_v4, wait_for,
};

use crate::{
    flood::end,
    frames::End,
    held::connect,
    support::{Agent, Echo, Mode, Protocol, Service, TIMEOUT},
};

/// Ports of the client that held connections come from; others are below.
pub(crate) const HELD_PORTS: u16 = 40_000;
/// Ports of the client that new connections take in turn: none is used again before a minute has passed, so that no
/// earlier connection of a port is still closing.
const FRESH_PORTS: Range<u16> = 10_000..HELD_PORTS;

/// Where the pod and the host hold connections, and where they answer questions.
const HOLDS: u16 = 8080;
const ANSWERS: u16 = 8081;
const DATAGRAMS: u16 = 5353;
/// VIPs that lead to the pod, besides the first.
pub(crate) const OTHER_VIPS: [u8; 5] = [2, 3, 4, 5, 6];
/// Of NAT mode.
const NAT_VIP: u8 = 7;
const OTHER_NAT_VIP: u8 = 8;

/// How a client's packets come to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// An edge, IP-in-IP, a node.
    Node,
    /// Straight to a node that has the pod.
    NodePort,
    /// An edge in NAT mode, a host that knows nothing of it.
    Nat,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Node, Self::NodePort, Self::Nat];
}

pub(crate) fn topology() -> Topology {
    let net = Topology::builder().nodes(2).pods(1).build().unwrap();
    // The kernel's own connection tracking, full after a moment of any flood, is not what is tested here.
    for node in net.nodes() {
        node.namespace().nft("flush ruleset\n").unwrap();
    }
    // Strangers are nowhere: errors about replies to them would be a flood of their own, and so would the way of these
    // through the router, which is no part of what is tested.
    let nodes = net.nodes().iter().map(Machine::namespace);
    for namespace in nodes.chain([net.router()]) {
        let mut ip = namespace.command("ip");
        output(ip.args(["route", "add", "blackhole", "198.18.0.0/15"])).unwrap();
    }
    net
}

/// The agents and servers.
#[derive(Debug)]
pub(crate) struct Network<'net> {
    net: &'net Topology,
    _agents: [Agent<'net>; 2],
    _echoes: [Echo; 2],
    /// New connections begun so far.
    begun: Arc<AtomicU32>,
}

impl<'net> Network<'net> {
    pub(crate) fn start(net: &'net Topology) -> Self {
        let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
        let config = config(net);
        let mut agents = [node, edge].map(|machine| Agent::launch(machine, &config));
        for agent in &mut agents {
            agent.wait_until_ready();
        }
        // Otherwise one core does all the work for the frames that a thread sends, and the other rests.
        for machine in [edge, node] {
            machine.link().unwrap().receive_in_threads().unwrap();
        }
        let echoes = [pod(net), host(net)].map(|machine| {
            let at = SocketAddr::new(machine.v4(), ANSWERS);
            Echo::serve(machine, [(at, Protocol::Tcp)])
        });
        Self {
            net,
            _agents: agents,
            _echoes: echoes,
            begun: Arc::default(),
        }
    }

    fn client(&self) -> &'net Machine {
        &self.net.clients()[0]
    }

    /// The machine that a client's packets go to first.
    pub(crate) fn entry(&self, way: Way) -> &'net Machine {
        match way {
            Way::Node | Way::Nat => &self.net.edges()[0],
            Way::NodePort => &self.net.nodes()[0],
        }
    }

    /// Where connections are held.
    pub(crate) fn held(&self, way: Way) -> SocketAddr {
        let port = match way {
            Way::Node | Way::Nat => 80,
            Way::NodePort => 30_080,
        };
        SocketAddr::new(self.address(way), port)
    }

    /// Where questions are answered.
    pub(crate) fn asked(&self, way: Way) -> Service {
        let port = match way {
            Way::Node | Way::Nat => 81,
            Way::NodePort => 30_081,
        };
        Service {
            address: SocketAddr::new(self.address(way), port),
            protocol: Protocol::Tcp,
            mode: Mode::IpipV4,
        }
    }

    /// Where datagrams are taken.
    pub(crate) fn datagrams(&self, way: Way) -> End {
        let port = match way {
            Way::Node | Way::Nat => 53,
            Way::NodePort => 30_053,
        };
        end(self.address(way), port)
    }

    /// Other addresses and ports of where connections are held.
    pub(crate) fn others(&self, way: Way) -> Vec<End> {
        let vips = |numbers: &[u8]| numbers.iter().map(|&number| (vip_v4(number), 80)).collect();
        match way {
            Way::Node => vips(&OTHER_VIPS),
            // By the edge; the node has no addresses but its own.
            Way::NodePort => vec![end(self.net.nodes()[0].v4(), 30_082)],
            Way::Nat => vips(&[OTHER_NAT_VIP]),
        }
    }

    fn address(&self, way: Way) -> IpAddr {
        match way {
            Way::Node => vip_v4(1).into(),
            Way::NodePort => self.net.nodes()[0].v4(),
            Way::Nat => vip_v4(NAT_VIP).into(),
        }
    }

    /// Listens where the pod holds connections.
    pub(crate) fn listen_in_pod(&self) -> TcpListener {
        listen(pod(self.net))
    }

    /// Listens where the host without an agent holds connections.
    pub(crate) fn listen_on_host(&self) -> TcpListener {
        listen(host(self.net))
    }

    /// Counts, from now on, replies of so many held connections that reach the client from an address or port that none
    /// of them talks to.
    ///
    /// Where a flood forges handshakes in the client's name, servers answer by right, and a node that has had to forget
    /// such a handshake lets the answer go as it is. Forged handshakes offer no timestamps and held connections do (RFC
    /// 7323 section 3.2), so a segment with them is a held connection's. Without them, a held connection's server sends
    /// nothing but the reset of one that it has lost, and such a one is broken.
    pub(crate) fn count_replies_astray(&self, held: usize) -> Astray<'net> {
        let ends = Way::ALL.map(|way| {
            let end = self.held(way);
            format!("{} . {}", end.ip(), end.port())
        });
        let last = usize::from(HELD_PORTS) + held - 1;
        let rules = format!(
            "table ip watch {{
  counter astray {{ }}
  chain input {{
    type filter hook input priority 0;
    iifname != \"{}\" accept
    tcp dport != {HELD_PORTS}-{last} accept
    tcp option timestamp missing accept
    ip saddr . tcp sport {{ {} }} accept
    counter name astray
  }}
}}
",
            Machine::INTERFACE,
            ends.join(", ")
        );
        let client = self.client();
        client.namespace().nft(&rules).unwrap();
        Astray { client }
    }

    /// Waits until a new connection of the client has its answer.
    pub(crate) fn wait_until_served(&self, way: Way) {
        let (client, to) = (self.client(), self.asked(way).address);
        let served = || {
            let from = SocketAddr::new(client.v4(), fresh_port(&self.begun));
            let asked = client.namespace().run(|| ask(from, to));
            asked.map_err(|error| error.to_string())
        };
        wait_for("a new connection after the flood", TIMEOUT, served).unwrap();
    }

    /// A client behind a cable that takes so long each way.
    pub(crate) fn far_client(&self, one_way: Duration) -> FarClient {
        let [far, near] = [2, 1].map(|host| Cidr {
            address: [10, 0, 200, host].into(),
            length: 24,
        });
        let (client, between) = (
            Namespace::new("far").unwrap(),
            Namespace::new("between").unwrap(),
        );
        let (link, a) = Veth::between((&client, "eth0"), (&between, "a"))
            .create()
            .unwrap();
        let (b, router) = Veth::between((&between, "b"), (self.net.router(), "far"))
            .create()
            .unwrap();
        for end in [&link, &router] {
            end.disable_tx_offloads().unwrap();
        }
        link.add_address(far).unwrap();
        router.add_address(near).unwrap();
        let any = Route::to(Cidr::ANY_V4).via(near.address);
        client.add_route(&any).unwrap();
        for end in [&link, &a, &b, &router] {
            end.wait_until_ready().unwrap();
        }
        let cable = DelayedCable::between(&a, &b, one_way).unwrap();
        FarClient {
            _cable: cable,
            _between: between,
            client,
            address: far.address,
        }
    }
}

fn pod(net: &Topology) -> &Machine {
    &net.nodes()[0].pods()[0]
}

/// It has no agent.
fn host(net: &Topology) -> &Machine {
    &net.nodes()[1]
}

fn listen(machine: &Machine) -> TcpListener {
    let at = SocketAddr::new(machine.v4(), HOLDS);
    let listener = machine.namespace().run(|| TcpListener::bind(at));
    listener.unwrap()
}

/// The file of edge and node.
fn config(net: &Topology) -> String {
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let mut services = Vec::new();
    let mut add = |name: &str, protocol: &str, at: String, to: String| {
        services.push(format!(
            "  - {{ name: {name}, protocol: {protocol}, {at}, {to} }}\n"
        ));
    };
    let at = |number: u8, port: u16| format!("address: {}, port: {port}", vip_v4(number));
    let to_pod = |port: u16| {
        format!(
            "mode: ipip, backends: [{{ address: {}, port: {port}, node: {} }}]",
            pod(net).v4(),
            node.v4()
        )
    };
    let to_host = |port: u16| {
        let address = host(net).v4();
        format!("mode: nat, backends: [{{ address: {address}, port: {port} }}]")
    };
    let and_node_port = |at: String, port: u16| format!("{at}, node_port: {port}");
    add(
        "held",
        "tcp",
        and_node_port(at(1, 80), 30_080),
        to_pod(HOLDS),
    );
    add(
        "asked",
        "tcp",
        and_node_port(at(1, 81), 30_081),
        to_pod(ANSWERS),
    );
    add(
        "datagrams",
        "udp",
        and_node_port(at(1, 53), 30_053),
        to_pod(DATAGRAMS),
    );
    for number in OTHER_VIPS {
        let (held, asked) = (format!("held-{number}"), format!("asked-{number}"));
        let at_other = match number {
            2 => and_node_port(at(2, 80), 30_082),
            _ => at(number, 80),
        };
        add(&held, "tcp", at_other, to_pod(HOLDS));
        add(&asked, "tcp", at(number, 81), to_pod(ANSWERS));
    }
    add("nat-held", "tcp", at(NAT_VIP, 80), to_host(HOLDS));
    add("nat-asked", "tcp", at(NAT_VIP, 81), to_host(ANSWERS));
    add("nat-datagrams", "udp", at(NAT_VIP, 53), to_host(DATAGRAMS));
    add("nat-other", "tcp", at(OTHER_NAT_VIP, 80), to_host(HOLDS));

    let vips: Vec<String> = (1..=OTHER_NAT_VIP)
        .map(|number| vip_v4(number).to_string())
        .collect();
    format!(
        "interfaces: [{{ name: {}, mode: native }}]
tables: {{ lut_arena_mib: 1, services: 256, backends: 256, next_hops: 256, vips: 256 }}
api: {{ socket: {} }}
nodes: [{{ address: {} }}]
trusted_edges: [{}]
vips: [{}]
services:
{}",
        Machine::INTERFACE,
        lab::Guideway::socket().display(),
        node.v4(),
        edge.v4(),
        vips.join(", "),
        services.concat()
    )
}

/// A counter of the client's.
#[derive(Debug)]
pub(crate) struct Astray<'net> {
    client: &'net Machine,
}

impl Astray<'_> {
    pub(crate) fn packets(&self) -> u64 {
        let mut nft = self.client.namespace().command("nft");
        let text = output(nft.args(["-j", "list", "counter", "ip", "watch", "astray"])).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let listed = json["nftables"].as_array().unwrap();
        let counter = listed.iter().find_map(|entry| entry.get("counter"));
        counter.unwrap()["packets"].as_u64().unwrap()
    }
}

/// A client whose packets take a while.
#[derive(Debug)]
pub(crate) struct FarClient {
    _cable: DelayedCable,
    _between: Namespace,
    client: Namespace,
    address: IpAddr,
}

/// New connections, each with a question, one after the other in each thread.
#[derive(Debug)]
pub(crate) struct Attempts {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Result<Duration, String>>>>,
}

/// How they went.
#[derive(Debug)]
pub(crate) struct Outcome {
    took: Vec<Duration>,
    pub(crate) failed: Vec<String>,
}

impl Attempts {
    /// Begins to connect.
    pub(crate) fn begin(network: &Network<'_>, way: Way) -> Self {
        let client = network.client();
        Self::start(client.namespace(), client.v4(), network, way, 1)
    }

    /// The same from far away, several at a time, because each takes a while.
    pub(crate) fn begin_from(far: &FarClient, network: &Network<'_>, way: Way) -> Self {
        Self::start(&far.client, far.address, network, way, 8)
    }

    fn start(
        client: &Namespace,
        from: IpAddr,
        network: &Network<'_>,
        way: Way,
        at_once: usize,
    ) -> Self {
        const PACE: Duration = Duration::from_millis(10);
        let to = network.asked(way).address;
        let stop = Arc::new(AtomicBool::new(false));
        let begin = || {
            let (until, begun) = (Arc::clone(&stop), Arc::clone(&network.begun));
            thread::spawn(move || {
                let mut outcomes = Vec::new();
                while !until.load(Ordering::Relaxed) {
                    let port = fresh_port(&begun);
                    let began = Instant::now();
                    let asked = ask(SocketAddr::new(from, port), to);
                    let failed = |error| format!("port {port}: {error}");
                    outcomes.push(asked.map(|()| began.elapsed()).map_err(failed));
                    thread::sleep(PACE);
                }
                outcomes
            })
        };
        let threads = client.run(|| (0..at_once).map(|_| begin()).collect());
        Self { stop, threads }
    }

    pub(crate) fn end(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        let mut outcome = Outcome {
            took: Vec::new(),
            failed: Vec::new(),
        };
        let attempts = self.threads.into_iter();
        for attempt in attempts.flat_map(|thread| thread.join().unwrap()) {
            match attempt {
                Ok(took) => outcome.took.push(took),
                Err(error) => outcome.failed.push(error),
            }
        }
        outcome
    }
}

/// Returns the next of [`FRESH_PORTS`].
fn fresh_port(begun: &AtomicU32) -> u16 {
    let turn =
        begun.fetch_add(1, Ordering::Relaxed) % u32::from(FRESH_PORTS.end - FRESH_PORTS.start);
    FRESH_PORTS.start + u16::try_from(turn).unwrap()
}

/// Connects, asks and hears the answer.
fn ask(from: SocketAddr, to: SocketAddr) -> std::io::Result<()> {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = connect(from, to)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"who\n")?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer)?;
    if answer.ends_with(" who\n") {
        Ok(())
    } else {
        Err(std::io::Error::other(format!("{answer:?}")))
    }
}

impl Outcome {
    /// The share of those that had their answer within 3 s.
    fn share_in_time(&self) -> f64 {
        const IN_TIME: Duration = Duration::from_secs(3);
        let in_time = self.took.iter().filter(|took| **took < IN_TIME).count();
        let all = self.took.len() + self.failed.len();
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        let share = in_time as f64 / all as f64;
        share
    }

    /// Returns whether no more than 1 % failed or took longer than that.
    pub(crate) fn is_nearly_all_in_time(&self) -> bool {
        self.share_in_time() >= 0.99
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.took.len() + self.failed.len();
        write!(
            f,
            "{all} new connections, {:.4} of them within 3 s",
            self.share_in_time()
        )?;
        if let Some(failure) = self.failed.first() {
            write!(f, ", {} failed: {failure}", self.failed.len())?;
        }
        Ok(())
    }
}
