//! Deployments that grow, shrink, roll and flap, by agents and by kube-proxy at the same time.
//!
//! The slices are kube-controller-manager's. One node of the cluster has
//! kube-proxy alone, and no pods: a client that asks its node port is told what
//! kube-proxy makes of the same steps.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::kubernetes::ProxyMode;
use lab::{Machine, Stopwatch, Topology, output, vip_v4, vip_v6, wait_for, wait_until};
use serde_json::json;

use crate::kubelet::{EndOnDrop, Orders, ready, run_pods};
use crate::outcome::{Outcome, expect};
use crate::scenario::both_protocols;
use crate::support::{Flow, Protocol, Service, guideway};
use crate::world::{Agent, PATIENCE, World};

const NODE_PORT: u16 = 30_080;
/// What a Pod that ends is given to serve on, as a `preStop` hook would.
const GRACE: Duration = Duration::from_secs(5);
/// How long a new flow may take on a busy machine; a TCP connection's first packet is sent again after 1 s.
const FLOW_PATIENCE: Duration = Duration::from_secs(30);
/// Connections by each way that are open before a step.
const HELD: usize = 4;
/// From one new flow to the next.
const PAUSE: Duration = Duration::from_millis(100);
/// kube-proxy's `minSyncPeriod`: so late may it follow a change.
const SYNC_PERIOD: Duration = Duration::from_secs(1);

/// A cluster with Pods that run, and a client outside of it.
struct Rollout<'net> {
    world: &'net World<'net>,
    orders: &'net Orders,
    client: &'net Machine,
    nodes: &'net [Machine],
    /// Has kube-proxy and no agent.
    other: &'net Machine,
}

/// Ways to a Service.
struct Ways {
    agents: Vec<Service>,
    kube_proxy: Vec<Service>,
}

/// What became of flows.
#[derive(Debug, Default)]
struct Probed {
    /// New ones.
    flows: usize,
    /// Connections that were open before, to Pods that run on.
    held: usize,
    /// When some failed, and how.
    failures: Vec<(Instant, String)>,
}

#[test]
fn no_new_flow_fails_while_pods_come_and_go() {
    let net = Topology::builder().nodes(3).pods(4).build().unwrap();
    let (nodes, other) = (&net.nodes()[..2], &net.nodes()[2]);
    let mut world = World::without_servers(&net);
    world.write_seed();
    world.show_presence_of(nodes);
    let controllers = [
        "deployment-controller",
        "endpointslice-controller",
        "replicaset-controller",
    ];
    let _controllers = world.control.run_controllers(&controllers).unwrap();
    let _proxy = world
        .control
        .run_kube_proxy(other.namespace(), other.label(), ProxyMode::Nftables)
        .unwrap();
    world.launch_on(net.edges().iter().chain(nodes), "");
    for agent in &mut world.agents {
        agent.wait_until_in_step();
    }
    let orders = Orders::new(GRACE);
    let rollout = Rollout {
        world: &world,
        orders: &orders,
        client: &net.clients()[0],
        nodes,
        other,
    };
    thread::scope(|scope| {
        let _end = orders.end_on_drop();
        let places: Vec<&Machine> = nodes.iter().collect();
        scope.spawn(|| {
            let places = places;
            run_pods(&world.control, &places, &orders);
        });
        world.control.apply(&deployment()).unwrap();
        world.give("web", &vips());
        rollout.expect_pods(3);
        let steps: [fn(&Rollout<'_>, &Ways); 3] = [grow_and_shrink, roll, flap];
        for step in steps {
            let ways = rollout.ways();
            let [agents, kube_proxy] = rollout.probe_while(&ways, || step(&rollout, &ways));
            agents.assert_that_none_failed(&kube_proxy, || rollout.drops());
        }
        roll_with_the_local_policy(&rollout);
        crashed_pod_is_left_out_in_time(&rollout);
        nobody_is_left_and_somebody_comes_back(&rollout);
        for agent in &world.agents {
            let measured = agent.metric("guideway_network_programming_duration_seconds_count");
            assert!(measured > 0.0, "changes of Pods took no time");
        }
        agents_have_the_buckets_of_kube_proxy(&rollout);
    });
}

fn grow_and_shrink(rollout: &Rollout<'_>, ways: &Ways) {
    for replicas in [5, 2, 3] {
        rollout.scale(replicas);
        rollout.expect_pods_at(ways, replicas);
        rollout.wait_until_others_have_ended();
    }
}

fn roll(rollout: &Rollout<'_>, ways: &Ways) {
    let before = rollout.orders.running();
    rollout.kubectl(&["rollout", "restart", "deployment/web"]);
    rollout.kubectl(&["rollout", "status", "deployment/web", "--timeout=600s"]);
    rollout.expect_pods_at(ways, 3);
    rollout.wait_until_others_have_ended();
    let now = rollout.orders.running();
    assert!(now.keys().all(|pod| !before.contains_key(pod)));
}

/// kube-proxy's node has no pods, and would drop everything.
fn roll_with_the_local_policy(rollout: &Rollout<'_>) {
    let ways = Ways {
        agents: both_protocols(vips(), 80),
        kube_proxy: Vec::new(),
    };
    rollout.set_policy("Local");
    // The nodes know of the policy once that of kube-proxy does.
    let silent = rollout.node_ports(NODE_PORT).kube_proxy;
    expect(rollout.client, &silent, &Outcome::SILENCE);
    rollout.expect_pods_at(&ways, 3);
    let [agents, kube_proxy] = rollout.probe_while(&ways, || roll(rollout, &ways));
    agents.assert_that_none_failed(&kube_proxy, || rollout.drops());
    rollout.set_policy("Cluster");
    rollout.expect_pods(3);
}

fn flap(rollout: &Rollout<'_>, ways: &Ways) {
    let mut running = rollout.orders.running();
    let all: BTreeSet<String> = running.values().cloned().collect();
    let (pod, _) = running.pop_first().unwrap();
    let others: BTreeSet<String> = running.into_values().collect();
    for _ in 0..2 {
        for (is_ready, answering) in [(false, &others), (true, &all)] {
            rollout.set_ready(&pod, is_ready);
            rollout.expect_at(ways, &Outcome::Answers(answering.clone()));
        }
    }
}

/// Flows to a server that ended without a word fail by both, until its Pod is known not to be ready.
fn crashed_pod_is_left_out_in_time(rollout: &Rollout<'_>) {
    let mut running = rollout.orders.running();
    let (pod, _) = running.pop_first().unwrap();
    let others: BTreeSet<String> = running.into_values().collect();
    let mut told = None;
    let since = Stopwatch::start();
    let probed = rollout.open_while(&rollout.ways(), || {
        rollout.orders.crash(&pod);
        rollout.set_ready(&pod, false);
        told = Some(Instant::now());
        rollout.expect(&Outcome::Answers(others));
    });
    let last = probed.map(|probed| {
        let after = |(at, _): &(Instant, String)| at.saturating_duration_since(told.unwrap());
        probed.failures.iter().map(after).max().unwrap_or_default()
    });
    eprintln!("flows fail so long after a crash by agents and by kube-proxy: {last:?}");
    let late = last[0].saturating_sub(last[1].max(SYNC_PERIOD));
    let excused = || since.waited().min(SYNC_PERIOD * 10);
    assert!(late.is_zero() || late <= excused(), "{last:?}");
    rollout.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0"]);
    let is_gone = || !rollout.orders.running().contains_key(&pod);
    wait_until("the Pod is gone", PATIENCE, is_gone).unwrap();
    rollout.expect_pods(3);
}

fn nobody_is_left_and_somebody_comes_back(rollout: &Rollout<'_>) {
    rollout.scale(0);
    rollout.expect(&Outcome::REFUSED);
    rollout.scale(2);
    rollout.expect_pods(2);
    rollout.kubectl(&["delete", "service", "web"]);
    let ways = rollout.node_ports(NODE_PORT);
    let connections = |ways: &[Service]| -> Vec<Service> {
        let ways = ways.iter().copied();
        ways.filter(|way| way.protocol == Protocol::Tcp).collect()
    };
    expect(
        rollout.client,
        &connections(&ways.agents),
        &Outcome::REFUSED,
    );
    expect(
        rollout.client,
        &connections(&ways.kube_proxy),
        &Outcome::REFUSED,
    );
}

fn agents_have_the_buckets_of_kube_proxy(rollout: &Rollout<'_>) {
    const PROGRAMMING: &str = "network_programming_duration_seconds";
    let mut curl = rollout.other.namespace().command("curl");
    curl.args(["-sS", "--fail", "http://127.0.0.1:10249/metrics"]);
    let theirs = bounds(
        &output(&mut curl).unwrap(),
        &format!("kubeproxy_{PROGRAMMING}"),
    );
    assert!(theirs.len() > 2, "{theirs:?}");
    let agent = &rollout.world.agents[0];
    let ours = bounds(&agent.metrics(), &format!("guideway_{PROGRAMMING}"));
    assert_eq!(ours, theirs);
}

/// The bounds of a histogram's buckets.
fn bounds(metrics: &str, histogram: &str) -> Vec<f64> {
    let series = format!("{histogram}_bucket{{");
    let bound = |line: &str| {
        let (_, bound) = line.strip_prefix(&series)?.split_once("le=\"")?;
        bound.split('"').next()?.parse().ok()
    };
    let mut bounds: Vec<f64> = metrics.lines().filter_map(bound).collect();
    bounds.sort_by(f64::total_cmp);
    // One histogram for each family.
    bounds.dedup();
    bounds
}

impl Rollout<'_> {
    /// Opens flows by these ways during some work, and holds connections through it; returns what became of them by agents,
    /// and by kube-proxy.
    fn probe_while(&self, ways: &Ways, work: impl FnOnce()) -> [Probed; 2] {
        let running = self.orders.running();
        let held = [&ways.agents, &ways.kube_proxy].map(|ways| self.hold(ways));
        let mut probed = self.open_while(ways, work);
        let now = self.orders.running();
        let same = running
            .iter()
            .filter(|(pod, machine)| now.get(*pod) == Some(*machine));
        let stays: BTreeSet<&str> = same.map(|(_, machine)| machine.as_str()).collect();
        for (probed, held) in probed.iter_mut().zip(held) {
            let mut held = held;
            held.retain(|flow| stays.contains(flow.node.as_str()));
            probed.held += held.len();
            probed.failures.extend(held.iter_mut().filter_map(failure));
        }
        probed
    }

    /// Opens connections by each of these ways.
    fn hold(&self, ways: &[Service]) -> Vec<Flow> {
        let ways = ways.iter().copied();
        let connections = ways.filter(|way| way.protocol == Protocol::Tcp);
        let connections: Vec<Service> = connections.collect();
        Flow::open_many_within(self.client, &connections, HELD, FLOW_PATIENCE)
    }

    /// Opens flows by these ways during some work; returns what became of them by agents, and by kube-proxy.
    fn open_while(&self, ways: &Ways, work: impl FnOnce()) -> [Probed; 2] {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let probes = [&ways.agents, &ways.kube_proxy].map(|ways| {
                let is_over = &is_over;
                let probe = |way| scope.spawn(move || probe(self.client, way, is_over));
                ways.iter().map(probe).collect::<Vec<_>>()
            });
            let end = EndOnDrop(&is_over);
            work();
            drop(end);
            probes.map(|probes| {
                let probed = probes.into_iter().map(|probe| probe.join().unwrap());
                probed.fold(Probed::default(), Probed::and)
            })
        })
    }

    /// All ways to `web`.
    fn ways(&self) -> Ways {
        let mut ways = self.node_ports(NODE_PORT);
        ways.agents.extend(both_protocols(vips(), 80));
        ways
    }

    fn node_ports(&self, port: u16) -> Ways {
        let of = |node: &Machine| both_protocols([node.v4(), node.v6()], port);
        Ways {
            agents: self.nodes.iter().flat_map(of).collect(),
            kube_proxy: of(self.other),
        }
    }

    /// Waits until new flows to `web` come out like this by all ways.
    fn expect(&self, outcome: &Outcome) {
        self.expect_at(&self.ways(), outcome);
    }

    fn expect_at(&self, ways: &Ways, outcome: &Outcome) {
        thread::scope(|scope| {
            for way in ways.agents.iter().chain(&ways.kube_proxy) {
                scope.spawn(|| expect(self.client, &[*way], outcome));
            }
        });
    }

    /// Waits until `web` is answered by so many Pods, and by all that run.
    fn expect_pods(&self, number: usize) {
        self.expect_pods_at(&self.ways(), number);
    }

    fn expect_pods_at(&self, ways: &Ways, number: usize) {
        self.expect_at(ways, &Outcome::Answers(self.wait_for_pods(number)));
    }

    /// Waits until so many Pods run, and returns their machines.
    fn wait_for_pods(&self, number: usize) -> BTreeSet<String> {
        wait_for(&format!("{number} Pods run"), PATIENCE, || {
            let running = self.orders.running();
            if running.len() == number {
                Ok(running.into_values().collect())
            } else {
                Err(format!("{running:?}"))
            }
        })
        .unwrap()
    }

    fn wait_until_others_have_ended(&self) {
        wait_for("Pods have ended", PATIENCE, || match self.orders.ending() {
            0 => Ok(()),
            ending => Err(format!("{ending} have not")),
        })
        .unwrap();
    }

    fn scale(&self, replicas: usize) {
        let replicas = format!("--replicas={replicas}");
        self.kubectl(&["scale", "deployment/web", &replicas]);
    }

    /// What the agents dropped, and why.
    fn drops(&self) -> String {
        let of = |agent: &Agent<'_>| {
            let reasons = guideway().ask(agent.machine().namespace(), &["drops"]);
            let reasons = reasons.unwrap();
            let dropped = reasons.as_array().unwrap().iter();
            let dropped = dropped.filter(|one| one["action"] == "drop" && one["packets"] != 0);
            let dropped = dropped.map(|one| format!("{} {}", one["reason"], one["packets"]));
            let dropped: Vec<String> = dropped.collect();
            format!("{}: {dropped:?}", agent.machine().label())
        };
        let agents: Vec<String> = self.world.agents.iter().map(of).collect();
        agents.join(", ")
    }

    fn set_policy(&self, policy: &str) {
        let patch = json!({"spec": {"externalTrafficPolicy": policy}}).to_string();
        self.kubectl(&["patch", "service", "web", "-p", &patch]);
    }

    fn set_ready(&self, pod: &str, is_ready: bool) {
        let ready = json!({"status": {"conditions": [ready(is_ready)]}}).to_string();
        self.kubectl(&["patch", "pod", pod, "--subresource=status", "-p", &ready]);
    }

    fn kubectl(&self, arguments: &[&str]) {
        self.world.control.kubectl(arguments).unwrap();
    }
}

impl Probed {
    fn and(mut self, other: Self) -> Self {
        self.flows += other.flows;
        self.held += other.held;
        self.failures.extend(other.failures);
        self
    }

    /// By the agents; kube-proxy's are shown beside it.
    fn assert_that_none_failed(&self, kube_proxy: &Self, drops: impl FnOnce() -> String) {
        let (flows, held) = (self.flows, self.held);
        eprintln!(
            "{flows} flows by agents, and {held} that were open; by kube-proxy: {kube_proxy:?}"
        );
        assert!(flows > 0, "{self:?}");
        assert!(self.failures.is_empty(), "{self:#?}, {}", drops());
    }
}

/// Asks on a connection; returns when and how it fails.
fn failure(held: &mut Flow) -> Option<(Instant, String)> {
    let why = match held.ask() {
        Ok(pod) if pod == held.node => return None,
        Ok(pod) => format!("{pod} answered"),
        Err(error) => error.to_string(),
    };
    let Flow { service, node, .. } = held;
    Some((Instant::now(), format!("{service}, open to {node}: {why}")))
}

/// Opens one flow after the other until it is told to end.
fn probe(client: &Machine, way: &Service, is_over: &AtomicBool) -> Probed {
    let mut probed = Probed::default();
    while !is_over.load(Ordering::Relaxed) {
        let at = Instant::now();
        probed.flows += 1;
        match Flow::open_within(client, way, FLOW_PATIENCE) {
            Ok(_) => {}
            Err(error) => probed.failures.push((at, format!("{way}: {error}"))),
        }
        thread::sleep(PAUSE);
    }
    probed
}

fn vips() -> [IpAddr; 2] {
    [vip_v4(1).into(), vip_v6(1).into()]
}

/// The Deployment `web` with its Service, TCP and UDP.
fn deployment() -> String {
    let port = |protocol: &str| {
        json!({
            "name": protocol.to_lowercase(), "protocol": protocol, "port": 80,
            "targetPort": 8080, "nodePort": NODE_PORT,
        })
    };
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "guideway.dev/guideway",
            "ipFamilyPolicy": "RequireDualStack", "selector": {"app": "web"},
            "ports": [port("TCP"), port("UDP")],
        },
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web:1"}]},
            },
        },
    });
    format!("{service}\n---\n{deployment}")
}
