//! The election of edges over a real API server: Leases renewed, watched and lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use control::announce::{Candidates, LoopHeartbeat, Mac};
use control::kubernetes::RequestErrors;
use control::kubernetes::leases::{AgentSignals, Announceable, Candidate, Claims, follow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use lab::{
    Cidr, Machine, Namespace, Route, Stopwatch, Topology, kubernetes::ControlPlane, output, vip_v4,
    vip_v6, wait_for,
};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::support::{Flow, Protocol, Service, Traffic, guideway};
use crate::world::{self, World, at};

const TIMEOUT: Duration = Duration::from_secs(300);
/// From the loss of an edge to the announcements of the others.
const FAILOVER: Duration = Duration::from_secs(3);
/// How often an agent's loop runs.
const BEAT: Duration = Duration::from_millis(50);
const EDGES: [&str; 3] = ["edge0", "edge1", "edge2"];

fn addresses() -> BTreeSet<IpAddr> {
    let numbers = 0..30;
    numbers
        .map(|number| Ipv4Addr::new(203, 0, 113, number).into())
        .collect()
}

/// What one edge announces, and the ends that its agent would hold.
struct Member {
    holds: Arc<Mutex<BTreeSet<IpAddr>>>,
    task: JoinHandle<()>,
    /// Its agent's loop.
    beating: JoinHandle<()>,
    mac: Mac,
    shown: watch::Sender<Option<Announceable>>,
    claims: mpsc::UnboundedSender<Claims>,
    _services: watch::Sender<BTreeMap<String, BTreeSet<IpAddr>>>,
}

impl Member {
    fn start(client: kube::Client, name: &str) -> Self {
        let wanted = addresses().into_iter();
        let mac = Mac([2, 0, 0, 0, 0, *name.as_bytes().last().unwrap()]);
        let shown = Announceable {
            macs: [mac].into(),
            wanted: wanted.map(|one| (one, Candidates::Every)).collect(),
            node_addresses: BTreeSet::new(),
            node_selector: Some(BTreeMap::new()),
        };
        let (shown, to_show) = watch::channel(Some(shown));
        let (claims, to_claim) = mpsc::unbounded_channel();
        let candidate = Candidate {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            shared_namespace: "kube-system".to_owned(),
        };
        let heartbeat = LoopHeartbeat::new(Instant::now());
        let heard = AgentSignals {
            shown: to_show,
            claims: to_claim,
            heartbeat: heartbeat.clone(),
            drains: mpsc::unbounded_channel().1,
        };
        let beating = tokio::spawn(async move {
            loop {
                heartbeat.beat(Instant::now());
                tokio::time::sleep(BEAT).await;
            }
        });
        let holds: Arc<Mutex<BTreeSet<IpAddr>>> = Arc::default();
        let told = Arc::clone(&holds);
        let (announced, request_errors) = (BTreeSet::new(), RequestErrors::of_agent());
        let (services, answered) = watch::channel(BTreeMap::new());
        let task = tokio::spawn(follow(
            client,
            candidate,
            announced,
            heard,
            answered,
            request_errors,
            move |result| *told.lock().unwrap() = result.addresses,
        ));
        Self {
            holds,
            task,
            beating,
            mac,
            shown,
            claims,
            _services: services,
        }
    }

    fn holds(&self) -> BTreeSet<IpAddr> {
        self.holds.lock().unwrap().clone()
    }
}

/// Hands announcements on as the segment would, and waits until every address is one edge's.
async fn until_spread(members: &[Member]) {
    let deadline = Instant::now() + TIMEOUT;
    let mut before: Vec<BTreeSet<IpAddr>> = members.iter().map(Member::holds).collect();
    loop {
        let held: Vec<_> = members.iter().map(Member::holds).collect();
        for (place, now) in held.iter().enumerate() {
            let new = now.difference(&before[place]);
            let new: Vec<_> = new.map(|one| (*one, members[place].mac)).collect();
            for (_, other) in members
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != place)
            {
                let _ = other.claims.send(Claims::Heard(new.clone()));
            }
        }
        before.clone_from(&held);
        let together: usize = held.iter().map(BTreeSet::len).sum();
        let all: BTreeSet<_> = held.iter().flatten().copied().collect();
        if together == all.len() && all == addresses() {
            return;
        }
        assert!(Instant::now() < deadline, "{held:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs a test with a client of the API server.
pub(crate) fn on<T: Send>(
    machine: &Namespace,
    work: impl AsyncFnOnce(kube::Client) -> T + Send,
) -> T {
    machine.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async { work(config().await.try_into().unwrap()).await })
    })
}

/// Reads an administrator's configuration.
async fn config() -> kube::Config {
    let path = std::path::Path::new(Namespace::FILES).join("kubeconfig");
    let kubeconfig = Kubeconfig::read_from(path).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options);
    config.await.unwrap()
}

#[test]
fn addresses_of_an_edge_that_is_lost_or_hangs_are_announced_by_others_within_three_seconds() {
    let control_plane = ControlPlane::start().unwrap();
    on(control_plane.machine(), async |client: kube::Client| {
        let start = |name: &&str| Member::start(client.clone(), name);
        let mut members: Vec<Member> = EDGES.iter().map(start).collect();
        until_spread(&members).await;
        for member in &members {
            assert!(member.holds().len() > 2, "each has its share");
        }
        let lost = members.remove(1);
        let kept: Vec<_> = members.iter().map(Member::holds).collect();
        let since = Stopwatch::start();
        lost.task.abort();
        until_spread(&members).await;
        eprintln!("announced by others after {:?}", since.elapsed());
        for (member, kept) in members.iter().zip(kept) {
            assert!(member.holds().is_superset(&kept), "no other address moves");
        }
        assert!(since.is_within(FAILOVER));

        let since = Stopwatch::start();
        members[0].beating.abort();
        until_spread(&members[1..]).await;
        eprintln!("announced by another after {:?}", since.elapsed());
        assert!(since.is_within(FAILOVER));
    });
}

#[test]
fn edges_keep_what_they_have_while_the_api_server_does_not_answer() {
    const AWAY: Duration = Duration::from_secs(6);
    const AFTER: Duration = Duration::from_secs(8);
    let mut control_plane = ControlPlane::start().unwrap();
    let api_server = control_plane.api_server().id().to_string();
    let signal = |name: &str| {
        let mut command = std::process::Command::new("kill");
        assert!(
            command
                .args([name, &api_server])
                .status()
                .unwrap()
                .success()
        );
    };
    on(control_plane.machine(), async |client: kube::Client| {
        let start = |name: &&str| Member::start(client.clone(), name);
        let members: Vec<Member> = EDGES.iter().map(start).collect();
        until_spread(&members).await;
        let held: Vec<_> = members.iter().map(Member::holds).collect();
        let unchanged_for = async |time| {
            let end = Instant::now() + time;
            while Instant::now() < end {
                assert!(members.iter().map(Member::holds).eq(held.clone()));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        signal("-STOP");
        unchanged_for(AWAY).await;
        signal("-CONT");
        unchanged_for(AFTER).await;
    });
}

#[test]
fn edge_that_may_not_announce_leaves_its_share_to_the_others() {
    let control_plane = ControlPlane::start().unwrap();
    let node = "{apiVersion: v1, kind: Node, metadata: {name: edge1, labels: {zone: a}}}";
    control_plane.apply(node).unwrap();
    on(control_plane.machine(), async |client: kube::Client| {
        let start = |name: &&str| Member::start(client.clone(), name);
        let mut members: Vec<Member> = EDGES.iter().map(start).collect();
        until_spread(&members).await;
        assert!(!members[1].holds().is_empty());
        let label = "node.kubernetes.io/exclude-from-external-load-balancers=";
        control_plane
            .kubectl(&["label", "node", "edge1", label])
            .unwrap();
        until_without(&members[1]).await;
        until_spread(&members).await;
        // As by a reload of a file that has no section `announce` any more.
        members[2].shown.send_modify(|shown| {
            shown.as_mut().unwrap().node_selector = None;
        });
        until_without(&members[2]).await;
        members.truncate(1);
        until_spread(&members).await;
    });
}

/// What an agent that announces reads beside Leases.
const OF_AGENT: &str = "- {apiGroups: [''], resources: [nodes], verbs: [list, watch]}";
/// The chart's rights of an agent on Leases.
const ON_LEASES: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: agent, namespace: default}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [list, watch, create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: agent, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: agent}
subjects: [{kind: ServiceAccount, name: agent, namespace: default}]
";

#[test]
fn lease_that_is_older_than_the_node_of_its_edge_is_renewed_without_the_right_to_delete() {
    let control_plane = ControlPlane::start().unwrap();
    control_plane
        .make_service_account("agent", OF_AGENT)
        .unwrap();
    control_plane.apply(ON_LEASES).unwrap();
    let token = control_plane.service_account_token("default", "agent");
    let token = token.unwrap();
    on(control_plane.machine(), async |_| {
        let mut config = config().await;
        config.auth_info.token = Some(token.into());
        let member = Member::start(config.try_into().unwrap(), "edge1");
        until_spread(std::slice::from_ref(&member)).await;
        let version = || {
            let lease = control_plane.get(&["lease", "guideway-edge-edge1"]);
            lease.unwrap()["metadata"]["resourceVersion"].clone()
        };
        // The label tells when the Node is known.
        let label = "node.kubernetes.io/exclude-from-external-load-balancers";
        let node = format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: edge1, labels: {{{label}: ''}}}}}}"
        );
        control_plane.apply(&node).unwrap();
        until_without(&member).await;
        let before = version();
        let unlabel = ["label", "node", "edge1", &format!("{label}-")];
        control_plane.kubectl(&unlabel).unwrap();
        let deadline = Instant::now() + TIMEOUT;
        while version() == before {
            assert!(Instant::now() < deadline, "it is not renewed");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

async fn until_without(member: &Member) {
    let deadline = Instant::now() + TIMEOUT;
    while !member.holds().is_empty() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Makes the router, which is on the segment of the edges, ask for the addresses there.
fn expect_on_link(net: &Topology, addresses: &[IpAddr]) {
    let link = net.router().link("fabric").unwrap();
    for address in addresses {
        let route = Route::to(Cidr::host(*address)).through(&link);
        net.router().replace_route(&route).unwrap();
    }
}

/// Returns the MAC that the router knows of an address.
fn known_mac(net: &Topology, address: IpAddr) -> String {
    let mut command = net.router().command("ip");
    output(command.args(["neighbour", "show", "to", &address.to_string()])).unwrap()
}

fn is_at(net: &Topology, address: IpAddr, machine: &Machine) -> bool {
    let [a, b, c, d, e, f] = machine.mac();
    known_mac(net, address).contains(&format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"))
}

/// Waits for an Event of the Service that says that this edge announces the address.
fn wait_for_event(control: &ControlPlane, edge: &Machine, address: IpAddr) {
    let about = "involvedObject.name=web,reason=Announced";
    let begin = format!("announced by {}: ", edge.label());
    let is_of_edge = |event: &serde_json::Value| {
        let note = event["message"].as_str().unwrap();
        let named = note.strip_prefix(&begin).unwrap_or_default();
        let names_address = named.split(", ").any(|one| one == address.to_string());
        names_address && event["reportingInstance"] == edge.label()
    };
    wait_for(&format!("an Event {begin}{address}"), TIMEOUT, || {
        let events = control.get(&["events", "--field-selector", about]);
        let events = events.map_err(|error| error.to_string())?;
        let mut listed = events["items"].as_array().unwrap().iter();
        let is_there = listed.any(is_of_edge);
        is_there.then_some(()).ok_or(events.to_string())
    })
    .unwrap();
}

#[test]
fn clients_reach_another_edge_within_three_seconds_of_the_loss_of_one() {
    let net = world::two_edges();
    let addresses: [IpAddr; 2] = [vip_v4(1).into(), vip_v6(1).into()];
    // What is lost must be an edge, not the only pod.
    let mut world = World::announced_by_edges(&net, net.edges().iter().chain(net.nodes()));
    expect_on_link(&net, &addresses);
    world.balance(&addresses);
    let pods: Vec<&Machine> = net.pods().collect();
    world.endpoints(&[(pods[0], true)]);
    let ways = addresses.map(|address| at(address, 80, Protocol::Udp));
    world.wait_for_pods(&ways, &pods);

    for way in &ways {
        assert!(
            !is_at(&net, way.address.ip(), &net.nodes()[0]),
            "it is excluded"
        );
    }
    let mut edges = world.agents.iter_mut().take(net.edges().len());
    let lost = edges.find(|agent| is_at(&net, addresses[0], agent.machine()));
    let lost = lost.expect("one of the edges has the address");
    wait_for_event(&world.control, lost.machine(), addresses[0]);
    lost.kill();
    lost.machine().link().unwrap().set_down().unwrap();
    let since = Stopwatch::start();
    let client = &net.clients()[0];
    for way in &ways {
        wait_for(&format!("{way} is answered"), TIMEOUT, || {
            Flow::open_within(client, way, Duration::from_millis(100))
        })
        .unwrap();
    }
    // Not by chance: a switch floods what is for a machine that is gone.
    let lost = lost.machine().label();
    let others: Vec<&Machine> = net
        .edges()
        .iter()
        .filter(|edge| edge.label() != lost)
        .collect();
    for address in addresses {
        wait_for(&format!("{address} is at another edge"), TIMEOUT, || {
            let is_elsewhere = others.iter().any(|edge| is_at(&net, address, edge));
            is_elsewhere.then_some(()).ok_or(known_mac(&net, address))
        })
        .unwrap();
    }
    eprintln!("answered by another edge after {:?}", since.elapsed());
    assert!(since.is_within(FAILOVER));
    wait_for_event(&world.control, others[0], addresses[0]);
}

#[test]
fn edge_that_is_drained_before_it_goes_loses_no_request() {
    const ROUNDS: u64 = 20;
    let net = world::two_edges();
    let addresses: Vec<IpAddr> = (1..=4)
        .flat_map(|number| [vip_v4(number).into(), vip_v6(number).into()])
        .collect();
    let mut world = World::announced_by_edges(&net, net.edges().iter().chain(net.nodes()));
    expect_on_link(&net, &addresses);
    world.balance(&addresses);
    let pods: Vec<&Machine> = net.pods().collect();
    world.endpoints(&[(pods[0], true)]);
    let ways: Vec<Service> = addresses
        .iter()
        .map(|address| at(*address, 80, Protocol::Udp))
        .collect();
    world.wait_for_pods(&ways, &pods);

    let mut edges = world.agents.iter_mut().take(net.edges().len());
    let leaving = edges.find(|agent| is_at(&net, addresses[0], agent.machine()));
    let leaving = leaving.expect("one of the edges has the address");
    let traffic = Traffic::over(Flow::open_many(&net.clients()[0], &ways, 2));
    traffic.wait_for_rounds(ROUNDS);
    let tell = |machine: &Machine, what: &str| {
        output(&mut guideway().command(machine.namespace(), &[what])).unwrap()
    };
    let told = tell(leaving.machine(), "drain-edge");
    assert!(
        told.starts_with("drained: other edges announce the "),
        "{told}"
    );
    traffic.wait_for_rounds(ROUNDS);

    // It stays drained when its agent starts again.
    leaving.restart();
    leaving.wait_until_in_step();
    leaving.wait_for_status("drained", |status| status["announced"]["drained"] == true);
    tell(leaving.machine(), "undrain-edge");
    leaving.wait_for_status("has addresses again", |status| {
        status["announced"]["drained"] == false && status["announced"]["addresses"] != json!([])
    });
    wait_for("the router knows", TIMEOUT, || {
        let is_back = addresses
            .iter()
            .any(|one| is_at(&net, *one, leaving.machine()));
        is_back.then_some(()).ok_or("not yet")
    })
    .unwrap();

    tell(leaving.machine(), "drain-edge");
    leaving.kill();
    leaving.machine().link().unwrap().set_down().unwrap();
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
}

#[test]
fn local_service_is_announced_by_edges_outside_and_by_the_node_of_its_pod() {
    let net = Topology::builder().nodes(2).pods(1).build().unwrap();
    let numbers = 1..=4;
    let addresses: Vec<IpAddr> = numbers
        .flat_map(|number| [vip_v4(number).into(), vip_v6(number).into()])
        .collect();
    let mut world = World::new(&net);
    world.write_seed();
    world.show_presence();
    world.launch_with("announce: { interfaces: [eth0] }\n");
    for agent in &mut world.agents {
        agent.wait_until_in_step();
    }
    expect_on_link(&net, &addresses);
    world.balance(&addresses);
    let local = r#"{"spec": {"externalTrafficPolicy": "Local"}}"#;
    world
        .control
        .kubectl(&["patch", "service", "web", "-p", local])
        .unwrap();

    let ways = addresses.iter();
    let ways: Vec<Service> = ways.map(|one| at(*one, 80, Protocol::Udp)).collect();
    let [first, second] = net.nodes() else {
        panic!("two nodes");
    };
    for (with, without) in [(first, second), (second, first)] {
        let pod = &with.pods()[0];
        world.endpoints(&[(pod, true)]);
        // Whom the router has not asked for, it does not know.
        world.wait_for_pods(&ways, &[pod]);
        let announced_by = |machine: &Machine| {
            let there = addresses.iter().filter(|one| is_at(&net, **one, machine));
            there.count()
        };
        let awaited = format!("{} and the edge share the addresses", with.label());
        wait_for(&awaited, TIMEOUT, || {
            let shares = [with, without, &net.edges()[0]].map(announced_by);
            let [here, elsewhere, outside] = shares;
            let is_right = here > 0 && outside > 0 && here + outside == addresses.len();
            (is_right && elsewhere == 0)
                .then_some(())
                .ok_or(format!("{shares:?}"))
        })
        .unwrap();
        world.wait_for_pods(&ways, &[pod]);
    }
}
