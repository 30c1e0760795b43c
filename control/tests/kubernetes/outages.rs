//! Agents while the control plane fails, and while they are replaced themselves.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::kubernetes::ControlPlane;
use lab::{Machine, Topology, wait_for, wait_until};
use serde_json::{Value, json};

use crate::healthz::ask;
use crate::objects;
use crate::support::{Flow, Service, Traffic, guideway, number};
use crate::world::{Agent, PATIENCE, World, addresses, vips, ways};

/// How long the API server is away, in seconds, unless this variable says otherwise.
const AWAY: (&str, u64) = ("GUIDEWAY_OUTAGE_SECONDS", 60);
/// How often each agent's watch of slices is broken by cuts, one a second: with the pauses before it begins anew,
/// not every second finds it open.
const CUTS: f64 = 3.0;
/// How long changes take to be written while nothing is wrong, at most.
const PAUSE: Duration = Duration::from_secs(1);
/// Counts what agents were told of who runs Guideway.
const PRESENCE: &str = "guideway_kubernetes_events_total{kind=\"presence\"}";
/// Counts watches of slices that were broken.
const BROKEN: &str = "guideway_kubernetes_watch_errors_total{kind=\"endpointslices\"}";
/// Questions on every flow before and after the events.
const ROUNDS: u64 = 20;

#[test]
fn control_plane_fails_and_agents_are_rolled_while_services_go_on() {
    let net = Topology::builder().nodes(2).pods(2).build().unwrap();
    let mut world = World::start(&net);
    let mut agents = mem::take(&mut world.agents);
    let pods: Vec<&Machine> = net.pods().collect();
    let all: Vec<(&Machine, bool)> = pods.iter().map(|pod| (*pod, true)).collect();
    world.balance_at("steady", 30_081, &vips(1));
    world.endpoints_of("steady", &all);
    world.balance(&vips(2));
    world.endpoints(&all[..1]);
    world.wait_for_pods(&ways(1), &pods);
    world.wait_for_pods(&ways(2), &pods[..1]);
    // Traffic proves one edge's tables; the other agents' may come later.
    wait_for_tables(&agents, &pods[..1]);

    let client = &net.clients()[0];
    thread::scope(|scope| {
        let traffic = Traffic::over(Flow::open_many(client, &ways(1), 2));
        let newcomers = Newcomers::over(scope, client, ways(1));
        traffic.wait_for_rounds(ROUNDS);

        etcd_is_restarted(&mut world, &agents);
        world.endpoints(&all[..2]);
        wait_for_tables(&agents, &pods[..2]);
        newcomers.expect_more();

        watches_are_cut_every_second(&world, &agents, &all);
        world.endpoints(&all[..1]);
        wait_for_tables(&agents, &pods[..1]);
        newcomers.expect_more();

        // The longest pauses between attempts are what comes after this.
        api_server_is_away(&mut world, &agents, &all);
        wait_for_tables(&agents, &pods[2..]);
        newcomers.expect_more();

        agents_are_rolled(&world, &net, &mut agents);
        world.wait_for_pods(&ways(2), &pods[2..]);
        newcomers.expect_more();

        newcomers.stop_unharmed();
        traffic.wait_for_rounds(ROUNDS);
        traffic.stop_unharmed();
    });
    world.agents = agents;
}

/// Waits until these agents have exactly these pods for `web`.
pub(crate) fn wait_for_tables(agents: &[Agent<'_>], pods: &[&Machine]) {
    let expected = addresses(pods);
    for agent in agents {
        let awaited = format!("{} has {expected:?}", agent.machine().label());
        wait_for(&awaited, PATIENCE, || {
            let pods = agent.pods_of("web");
            if pods == expected {
                Ok(())
            } else {
                Err(format!("{pods:?}"))
            }
        })
        .unwrap();
    }
}

/// Changes the endpoints of `web` by another API server while the one that agents know is away.
fn api_server_is_away(world: &mut World<'_>, agents: &[Agent<'_>], pods: &[(&Machine, bool)]) {
    let away = Duration::from_secs(number(AWAY.0).unwrap_or(AWAY.1));
    let other = world.control.start_other_api_server().unwrap();
    world.control.kill_api_server().unwrap();
    let killed = Instant::now();
    let mut turns = pods.windows(2).cycle();
    while killed.elapsed() < away {
        world.endpoints(turns.next().unwrap());
        thread::sleep(PAUSE);
    }
    world.endpoints(&pods[2..]);
    for agent in agents {
        wait_for("every watch is broken", PATIENCE, || {
            let status = agent.status();
            let broken = status["kubernetes"]["broken"].as_array().unwrap();
            (broken.len() == 4).then_some(()).ok_or(status.to_string())
        })
        .unwrap();
        assert_eq!(agent.pods_of("web"), addresses(&[pods[0].0]));
        assert!(agent.metric("guideway_kubernetes_watch_broken{kind=\"services\"}") > 0.0);
        let (healthy, _) = ask(agent.machine(), "http://127.0.0.1:9751/healthz").unwrap();
        assert_eq!(healthy, 200, "the last state stands");
    }
    world.control.start_api_server().unwrap();
    world.control.wait_until_ready().unwrap();
    drop(other);
}

fn etcd_is_restarted(world: &mut World<'_>, agents: &[Agent<'_>]) {
    let before: Vec<_> = agents.iter().map(|agent| agent.pods_of("web")).collect();
    world.control.kill_etcd().unwrap();
    wait_until("the API server misses etcd", PATIENCE, || {
        let ready = ["get", "--raw", "/readyz", "--request-timeout=5s"];
        world.control.kubectl(&ready).is_err()
    })
    .unwrap();
    for (agent, before) in agents.iter().zip(before) {
        assert_eq!(agent.pods_of("web"), before);
    }
    world.control.start_etcd().unwrap();
    wait_for("the API server has etcd again", PATIENCE, || {
        world.control.kubectl(&["get", "--raw", "/readyz"])
    })
    .unwrap();
}

fn watches_are_cut_every_second(
    world: &World<'_>,
    agents: &[Agent<'_>],
    pods: &[(&Machine, bool)],
) {
    let broken = |agent: &Agent<'_>| agent.metric(BROKEN);
    let before: Vec<_> = agents.iter().map(broken).collect();
    let mut turns = pods.windows(2).cycle();
    wait_for("the watches were broken often enough", PATIENCE, || {
        for agent in agents {
            let mut cut = agent.machine().namespace().command("ss");
            lab::output(cut.args(["-tK", "dst", &ControlPlane::ADDRESS.to_string()])).unwrap();
        }
        world.endpoints(turns.next().unwrap());
        thread::sleep(PAUSE);
        let cuts = agents.iter().zip(&before);
        let cuts: Vec<_> = cuts.map(|(agent, before)| broken(agent) - before).collect();
        if cuts.iter().all(|cuts| *cuts >= CUTS) {
            Ok(())
        } else {
            Err(format!("{cuts:?}"))
        }
    })
    .unwrap();
}

/// Replaces the agents as a DaemonSet does: each one's pod goes, and another one comes.
fn agents_are_rolled(world: &World<'_>, net: &Topology, agents: &mut [Agent<'_>]) {
    let modes_of = |agents: &[Agent<'_>]| -> Vec<Value> { agents.iter().map(modes).collect() };
    let before = modes_of(agents);
    for number in 0..agents.len() {
        let rolled = agents[number].machine().label().to_owned();
        let is_other = |node: &&Machine| node.label() != rolled;
        let others: Vec<&Machine> = net.nodes().iter().filter(is_other).collect();
        let is_node = others.len() < net.nodes().len();
        if is_node {
            tell_presence(world, net, others, agents);
            assert_eq!(modes_of(agents), before, "{rolled} goes");
        }
        agents[number].restart();
        agents[number].wait_until_in_step();
        // Of a node, nothing tells that it is back.
        assert_eq!(modes_of(agents), before, "{rolled} has begun anew");
        if is_node {
            tell_presence(world, net, net.nodes(), agents);
            assert_eq!(modes_of(agents), before, "{rolled} is back");
        }
    }
}

/// Writes that Guideway runs on these nodes, and waits until all agents have heard of it.
fn tell_presence<'net>(
    world: &World<'_>,
    net: &Topology,
    nodes: impl IntoIterator<Item = &'net Machine>,
    agents: &[Agent<'_>],
) {
    let heard = |agent: &Agent<'_>| agent.metric(PRESENCE);
    let before: Vec<_> = agents.iter().map(heard).collect();
    for slice in objects::presence(nodes, net.edges()) {
        world.apply(&slice);
    }
    wait_until("all agents are told", PATIENCE, || {
        let mut agents = agents.iter().zip(&before);
        agents.all(|(agent, before)| heard(agent) > *before)
    })
    .unwrap();
}

/// Returns how an agent reaches each backend, and the modes of its services.
fn modes(agent: &Agent<'_>) -> Value {
    let ask = |what| {
        guideway()
            .ask(agent.machine().namespace(), &[what])
            .unwrap()
    };
    let columns = |rows: Value, names: &[&str]| -> Vec<Value> {
        let row = |row: &Value| names.iter().map(|name| row[name].clone()).collect();
        rows.as_array().unwrap().iter().map(row).collect()
    };
    json!([
        columns(ask("services"), &["name", "service", "mode"]),
        columns(
            ask("backends"),
            &["service", "backend", "node", "slots", "next_hop"]
        ),
        agent.status()["interfaces"],
    ])
}

/// A thread that opens one flow after the other.
struct Newcomers<'scope> {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    thread: Option<thread::ScopedJoinHandle<'scope, Vec<String>>>,
}

impl Drop for Newcomers<'_> {
    /// Lets a test that panics end.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl<'scope> Newcomers<'scope> {
    fn over<'env>(
        scope: &'scope thread::Scope<'scope, 'env>,
        client: &'env Machine,
        services: Vec<Service>,
    ) -> Self {
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&served));
        let thread = scope.spawn(move || {
            let mut failed = Vec::new();
            for service in services.iter().cycle() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                match Flow::open(client, service) {
                    Ok(_) => _ = counted.fetch_add(1, Ordering::Relaxed),
                    Err(error) => failed.push(format!("{service}: {error}")),
                }
                // Each leaves a port behind.
                thread::sleep(Duration::from_millis(20));
            }
            failed
        });
        Self {
            stop,
            served,
            thread: Some(thread),
        }
    }

    fn expect_more(&self) {
        let before = self.served.load(Ordering::Relaxed);
        wait_until("new flows are served", PATIENCE, || {
            self.served.load(Ordering::Relaxed) > before + ROUNDS
        })
        .unwrap();
    }

    fn stop_unharmed(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self.thread.take().unwrap().join().unwrap();
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
