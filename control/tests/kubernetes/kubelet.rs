//! What a scheduler and kubelets do for Pods: a node, an address, readiness, an end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lab::Machine;
use lab::kubernetes::ControlPlane;
use serde_json::{Value, json};

use crate::leases::on;
use crate::support::{Echo, Protocol};

/// How often Pods are looked at.
const PAUSE: Duration = Duration::from_millis(50);
/// How long after its address a Pod is told to be ready: the shortest period of a readiness probe.
const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// Where pods listen.
const TARGET_PORT: u16 = 8080;

/// What the kubelets are told, and what they tell.
pub(crate) struct Orders {
    is_over: AtomicBool,
    /// In how many looks at Pods one serves after it was told to end. A machine that stops does not make it shorter.
    grace: u128,
    /// Machines of the Pods that were ready once and were not told to end, by name of the Pod.
    running: Mutex<BTreeMap<String, String>>,
    /// How many Pods were told to end, and have not.
    ending: AtomicUsize,
    /// Pods whose servers end, while nobody else knows.
    crashed: Mutex<BTreeSet<String>>,
}

/// Tells what runs beside a test that it is over, also when the test panics.
pub(crate) struct EndOnDrop<'a>(pub(crate) &'a AtomicBool);

/// A Pod on its machine.
struct Running<'net> {
    place: Place<'net>,
    server: Option<Echo>,
    started: Instant,
    is_ready: bool,
    /// Looks that are left, once it was told to end.
    left: Option<u128>,
}

/// A node, and one of its machines for pods.
type Place<'net> = (&'net Machine, &'net Machine);

impl Orders {
    /// Pods serve for so long after they were told to end.
    pub(crate) fn new(grace: Duration) -> Self {
        Self {
            is_over: AtomicBool::default(),
            grace: grace.as_nanos().div_ceil(PAUSE.as_nanos()),
            running: Mutex::default(),
            ending: AtomicUsize::default(),
            crashed: Mutex::default(),
        }
    }

    pub(crate) fn end_on_drop(&self) -> EndOnDrop<'_> {
        EndOnDrop(&self.is_over)
    }

    /// Ends the server of a Pod, without a word to anybody.
    pub(crate) fn crash(&self, pod: &str) {
        self.crashed.lock().unwrap().insert(pod.to_owned());
    }

    /// Machines of the Pods that were ready once and were not told to end, by name of the Pod.
    pub(crate) fn running(&self) -> BTreeMap<String, String> {
        self.running.lock().unwrap().clone()
    }

    /// How many Pods were told to end, and have not.
    pub(crate) fn ending(&self) -> usize {
        self.ending.load(Ordering::Relaxed)
    }
}

impl<'net> Running<'net> {
    /// Starts the server.
    fn at(place: Place<'net>) -> Self {
        Self {
            place,
            server: Some(serve(place.1)),
            started: Instant::now(),
            is_ready: false,
            left: None,
        }
    }
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the Pods of the namespace `default` on the pods of these nodes.
pub(crate) fn run_pods(control: &ControlPlane, nodes: &[&Machine], orders: &Orders) {
    // In turns, so that Pods that come together are on different nodes.
    let mut free: VecDeque<Place<'_>> = VecDeque::new();
    for number in 0..nodes[0].pods().len() {
        free.extend(nodes.iter().map(|node| (*node, &node.pods()[number])));
    }
    on(control.machine(), async |client: kube::Client| {
        let pods: Api<Pod> = Api::default_namespaced(client);
        let mut running: BTreeMap<String, Running<'_>> = BTreeMap::new();
        while !orders.is_over.load(Ordering::Relaxed) {
            let listed = pods.list(&ListParams::default()).await.unwrap().items;
            let names: BTreeSet<&str> = listed.iter().filter_map(name).collect();
            let gone = running.extract_if(.., |pod, _| !names.contains(pod.as_str()));
            free.extend(gone.map(|(_, pod)| pod.place));
            for pod in &listed {
                let Some(name) = name(pod) else { continue };
                let is_ending = pod.metadata.deletion_timestamp.is_some();
                match running.get_mut(name) {
                    Some(pod) if is_ending => {
                        let left = pod.left.get_or_insert(orders.grace);
                        if *left == 0 {
                            pod.server = None;
                            let now = DeleteParams::default().grace_period(0);
                            pods.delete(name, &now).await.unwrap();
                        }
                        *left = left.saturating_sub(1);
                    }
                    Some(pod) => {
                        if !pod.is_ready && pod.started.elapsed() >= PROBE_PERIOD {
                            patch(&pods, name, &json!({"conditions": [ready(true)]})).await;
                            pod.is_ready = true;
                        }
                        if orders.crashed.lock().unwrap().contains(name) {
                            pod.server = None;
                        }
                    }
                    None if is_ending => {}
                    None => {
                        // It waits until another one has ended.
                        let Some(place) = free.pop_front() else {
                            continue;
                        };
                        let started = Running::at(place);
                        start(&pods, name, place).await;
                        running.insert(name.to_owned(), started);
                    }
                }
            }
            let ending = running.values().filter(|pod| pod.left.is_some());
            orders.ending.store(ending.count(), Ordering::Relaxed);
            let alive = running.iter();
            let alive = alive.filter(|(_, pod)| pod.is_ready && pod.left.is_none());
            let alive = alive.map(|(name, pod)| (name.clone(), pod.place.1.label().to_owned()));
            *orders.running.lock().unwrap() = alive.collect();
            tokio::time::sleep(PAUSE).await;
        }
    });
}

/// Binds a Pod to its node and tells that it runs, and is not ready.
async fn start(pods: &Api<Pod>, name: &str, (node, machine): Place<'_>) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node.label()},
    });
    let created = PostParams::default();
    let bound = pods.create_subresource::<_, Value>("binding", name, &created, &binding);
    bound.await.unwrap();
    let status = json!({
        "phase": "Running",
        "podIP": machine.v4().to_string(),
        "podIPs": [{"ip": machine.v4().to_string()}, {"ip": machine.v6().to_string()}],
        "conditions": [ready(false)],
    });
    patch(pods, name, &status).await;
}

async fn patch(pods: &Api<Pod>, name: &str, status: &Value) {
    let status = Patch::Merge(json!({"status": status}));
    let patched = PatchParams::default();
    pods.patch_status(name, &patched, &status).await.unwrap();
}

pub(crate) fn ready(is_ready: bool) -> Value {
    let status = if is_ready { "True" } else { "False" };
    let now = Timestamp::now().to_string();
    json!({"type": "Ready", "status": status, "lastTransitionTime": now})
}

fn serve(machine: &Machine) -> Echo {
    let sockets = [machine.v4(), machine.v6()].map(|own| SocketAddr::new(own, TARGET_PORT));
    let protocols = [Protocol::Tcp, Protocol::Udp];
    let both = sockets.map(|socket| protocols.map(|protocol| (socket, protocol)));
    Echo::serve(machine, both.into_iter().flatten())
}

fn name(pod: &Pod) -> Option<&str> {
    pod.metadata.name.as_deref()
}
