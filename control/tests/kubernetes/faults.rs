//! Agents and an API server that does what a real one cannot be made to do.

use std::thread;
use std::time::Duration;

use lab::kubernetes::{FakeApiServer, Fault, OneTimeFault, Verb, node};
use lab::{Guideway, Machine, Topology, wait_for, wait_until};
use serde_json::{Value, json};

use crate::objects;
use crate::support::{Echo, Flow, Traffic, guideway};
use crate::world::{Agent, PATIENCE, addresses, serve_on_pods, vips, wait_for_pods, ways};

/// Everything that agents watch.
const WATCHED: [&str; 3] = ["services", "endpointslices", "nodes"];
/// Longer than an agent starts and then waits for a list.
const SILENCE: Duration = Duration::from_secs(180);
/// Objects that kube asks for at a time.
const PAGE: u64 = 500;
/// Questions on every flow before and after the events.
const ROUNDS: u64 = 20;

/// They mostly wait, so side by side.
#[test]
fn server_with_faults_is_followed_and_what_it_does_not_change_is_left_alone() {
    thread::scope(|scope| {
        let scenarios = [
            broken_watches_are_caught_up_with,
            server_that_refuses_is_asked_ever_more_rarely,
            server_that_falls_silent_is_noticed,
            objects_that_cannot_be_read_are_named_and_the_others_count,
            full_tables_refuse_the_youngest_services_whatever_came_first,
        ];
        let networks = scenarios.map(|scenario| (scenario, network()));
        for (scenario, net) in networks {
            scope.spawn(move || scenario(&net));
        }
    });
}

fn broken_watches_are_caught_up_with(net: &Topology) {
    let mut cluster = Cluster::start(net);
    let pods: Vec<&Machine> = net.pods().collect();
    cluster.serve("steady", 1, &pods);
    cluster.serve("web", 2, &pods[..1]);
    let steady = cluster.steady(&pods);

    // Too old within the stream, and nothing has changed: the new list is a difference of nothing.
    let updates = cluster.updates();
    let lists = WATCHED.map(|resource| cluster.api.asked(resource, Verb::List).len());
    for resource in WATCHED {
        cluster.api.strike(resource, OneTimeFault::Gone);
    }
    for (resource, before) in WATCHED.into_iter().zip(lists) {
        cluster.wait_for_requests(resource, Verb::List, before + cluster.agents.len());
    }
    cluster.serve("mark", 3, &pods[..1]);
    cluster.wait_for_table("mark", &pods[..1]);
    for (agent, before) in cluster.agents.iter().zip(updates) {
        let more = updates_of(agent) - before;
        // The new Service and its slices, and nothing for the lists.
        assert!(more <= 3.0, "{more} updates on {}", agent.machine().label());
    }

    let turns = [&pods[1..], &pods[..2], &pods[2..], &pods[..1], &pods[1..]];
    let one_time_faults = [
        OneTimeFault::Gone,
        OneTimeFault::Cut,
        OneTimeFault::Torn,
        OneTimeFault::Garbled,
        OneTimeFault::Reset,
    ];
    for (fault, pods) in one_time_faults.into_iter().zip(turns) {
        cluster.api.strike("endpointslices", fault);
        cluster.endpoints("web", pods);
        cluster.wait_for_table("web", pods);
    }

    // Watches that begin are told that their version is gone.
    cluster.api.set_fault("nodes", Fault::Expired);
    cluster.api.strike("nodes", OneTimeFault::Reset);
    let mut late = node(&net.nodes()[0]);
    late["metadata"]["name"] = json!("late");
    late["status"]["addresses"] = json!([{"type": "InternalIP", "address": "10.0.1.250"}]);
    cluster.put(late);
    cluster.wait_for_objects("nodes", 2);
    cluster.api.lift("nodes");

    cluster.api.set_fault("endpointslices", Fault::Doubled);
    cluster.endpoints("web", &pods[..2]);
    cluster.wait_for_table("web", &pods[..2]);
    cluster.api.lift("endpointslices");

    // Newest first: what is told last is not the truth, until the watch begins anew from there.
    for resource in ["services", "endpointslices"] {
        cluster.api.set_fault(resource, Fault::Reversed);
    }
    cluster.serve("brief", 4, &pods);
    cluster.endpoints("web", &pods[2..]);
    cluster.remove("brief");
    cluster.endpoints("web", &pods[1..]);
    for resource in ["services", "endpointslices"] {
        cluster.api.lift(resource);
    }
    cluster.wait_for_table("web", &pods[2..]);
    cluster.wait_for_table("brief", &pods);
    for resource in ["services", "endpointslices"] {
        cluster.api.strike(resource, OneTimeFault::Reset);
    }
    cluster.wait_for_table("web", &pods[1..]);
    cluster.wait_for_table("brief", &[]);

    // More than one page of a list, with the served ones on the second.
    for number in 0..PAGE {
        cluster.put(unserved(&format!("a-{number}")));
    }
    let before = cluster.api.asked("services", Verb::List).len();
    cluster.api.strike("services", OneTimeFault::Gone);
    let pages = 2 * cluster.agents.len();
    cluster.wait_for_requests("services", Verb::List, before + pages);
    cluster.serve("late", 5, &pods[..1]);
    cluster.wait_for_table("late", &pods[..1]);
    cluster.wait_for_objects("services", PAGE + 4);

    steady.expect_untouched(&cluster);
    wait_for_pods(net, &ways(2), &pods[1..]);
}

fn server_that_refuses_is_asked_ever_more_rarely(net: &Topology) {
    let mut cluster = Cluster::start(net);
    let pods: Vec<&Machine> = net.pods().collect();
    cluster.serve("steady", 1, &pods);
    let steady = cluster.steady(&pods);

    let before = WATCHED.map(|resource| cluster.watches(resource));
    for resource in WATCHED {
        cluster.api.set_fault(resource, Fault::Refused(429));
        cluster.api.strike(resource, OneTimeFault::Reset);
    }
    cluster.serve("web", 2, &pods[..1]);
    for agent in &mut cluster.agents {
        agent.wait_for_status("the watches are broken", |status| {
            let broken = status["kubernetes"]["broken"].as_array();
            broken.is_some_and(|broken| {
                broken.len() == 4
                    && broken
                        .iter()
                        .all(|one| one.to_string().contains("Too many requests"))
            })
        });
    }
    let agents = cluster.agents.len();
    cluster.wait_for_requests("services", Verb::Watch, before[0] + 4 * agents);
    let asked = cluster.api.asked("services", Verb::Watch);
    let storm = &asked[before[0]..];
    // The first one follows the cut; the pauses of two agents are 0.8 s, 1.6 s, 3.2 s at least.
    let lasted = storm[storm.len() - 1] - storm[0];
    assert!(lasted >= Duration::from_secs(5), "{lasted:?}");
    for (resource, before) in WATCHED.into_iter().zip(before) {
        let watches = if resource == "endpointslices" { 2 } else { 1 };
        let asked = cluster.watches(resource) - before;
        assert!(
            asked <= 7 * watches * agents,
            "{asked} requests for {resource}"
        );
        cluster.api.lift(resource);
    }
    cluster.wait_for_table("web", &pods[..1]);
    // A watch is whole once the server has taken it, though it has nothing to tell.
    for agent in &mut cluster.agents {
        agent.wait_for_status("the watches are whole", |status| {
            status["kubernetes"]["broken"] == json!([])
        });
    }
    steady.expect_untouched(&cluster);
}

fn server_that_falls_silent_is_noticed(net: &Topology) {
    let mut cluster = Cluster::start(net);
    let pods: Vec<&Machine> = net.pods().collect();
    cluster.serve("steady", 1, &pods);
    cluster.serve("web", 2, &pods[..1]);
    let steady = cluster.steady(&pods);

    // One agent is watching, the other one is about to list.
    for resource in WATCHED {
        cluster.api.set_fault(resource, Fault::Silent);
    }
    let watches = cluster.watches("services");
    let [watching, listing] = &mut cluster.agents[..] else {
        panic!("two agents");
    };
    listing.restart();
    for object in objects::slices(net, "web", &[(pods[1], true)]) {
        cluster.api.put(newer(in_default(object)));
    }
    wait_for("the lists are given up", SILENCE, || {
        let answer = guideway().ask(listing.machine().namespace(), &["status"]);
        let status = answer.map_err(|error| error.to_string())?;
        let broken = status["kubernetes"]["broken"].as_array();
        let is_right = broken.is_some_and(|broken| broken.len() == 4)
            && status["kubernetes"]["synced_seconds"].is_null();
        if is_right {
            Ok(())
        } else {
            Err(status.to_string())
        }
    })
    .unwrap();
    // The other one has asked again by itself.
    wait_until("the watch is asked for again", PATIENCE, || {
        cluster.api.asked("services", Verb::Watch).len() > watches
    })
    .unwrap();
    assert!(watching.status()["kubernetes"]["synced_seconds"].is_u64());
    // Services alone would be Services without pods: nothing is programmed before all is listed.
    for resource in ["services", "nodes"] {
        cluster.api.lift(resource);
    }
    let missing = json!(["the list of endpointslices", "the list of presence"]);
    listing.wait_for_status("the slices are missing", |status| {
        status["kubernetes"]["missing"] == missing
    });
    steady.traffic.wait_for_rounds(ROUNDS);
    assert!(listing.status()["kubernetes"]["synced_seconds"].is_null());
    cluster.api.lift("endpointslices");
    listing.wait_until_in_step();
    cluster.wait_for_table("web", &pods[1..2]);
    steady.expect_untouched(&cluster);
}

fn objects_that_cannot_be_read_are_named_and_the_others_count(net: &Topology) {
    let mut cluster = Cluster::start(net);
    let pods: Vec<&Machine> = net.pods().collect();
    cluster.serve("steady", 1, &pods);
    let steady = cluster.steady(&pods);

    // The API server stores it, and who decodes all fields cannot read it.
    let of_year_zero = |mut object: Value| {
        let time = "-001-12-31T23:00:00Z";
        object["metadata"]["managedFields"] =
            json!([{"manager": "x", "operation": "Update", "time": time}]);
        object
    };
    cluster.put(of_year_zero(service_at("web", 2)));
    for slice in cluster.slices_of("web", &pods[..1]) {
        cluster.put(of_year_zero(slice));
    }
    cluster.wait_for_table("web", &pods[..1]);

    // What cannot be read is named, and takes nothing away that it had.
    cluster.serve("kept", 3, &pods[..2]);
    cluster.wait_for_table("kept", &pods[..2]);
    for name in ["kept", "torn"] {
        let mut object = service_at(name, 3);
        object["spec"]["ports"] = json!("x");
        cluster.put(of_year_zero(object));
    }
    let torn = "Service default/torn: it cannot be read: spec.ports";
    let is_named = |status: &Value| status["problems"].to_string().contains(torn);
    for agent in &mut cluster.agents {
        agent.wait_for_status("the bad one is named", is_named);
    }
    cluster.wait_for_table("kept", &pods[..2]);

    // In lists too.
    let lists = cluster.api.asked("services", Verb::List).len();
    cluster.api.strike("services", OneTimeFault::Gone);
    let agents = cluster.agents.len();
    cluster.wait_for_requests("services", Verb::List, lists + agents);
    cluster.endpoints("web", &pods[1..]);
    cluster.wait_for_table("web", &pods[1..]);
    cluster.wait_for_table("kept", &pods[..2]);
    let restarted = &mut cluster.agents[0];
    restarted.restart();
    restarted.wait_until_in_step();
    restarted.wait_for_status("the bad one is named", is_named);
    cluster.wait_for_table("web", &pods[1..]);

    // The log is changed while the agent runs, and none of it is kube's.
    let agent = &cluster.agents[0];
    for (level, filter) in [("debug", "control=debug"), ("default", "kube=info")] {
        let mut command = agent
            .machine()
            .namespace()
            .command(env!("CARGO_BIN_EXE_guideway"));
        command
            .args(["log", level, "--socket"])
            .arg(Guideway::socket());
        lab::output(&mut command).unwrap();
        wait_until("another log", PATIENCE, || {
            let log = agent.log();
            let mut lines = log.lines().filter(|line| line.contains("another log"));
            lines.any(|line| line.contains(filter))
        })
        .unwrap();
    }

    for name in ["kept", "torn", "web"] {
        cluster.remove(name);
        cluster.wait_for_table(name, &[]);
    }
    for agent in &mut cluster.agents {
        agent.wait_for_status("nothing is wrong", |status| !is_named(status));
    }
    steady.expect_untouched(&cluster);
}

/// Each has a quarter of the room, the most that one may have.
fn full_tables_refuse_the_youngest_services_whatever_came_first(net: &Topology) {
    let mut cluster = Cluster::start(net);
    let pods: Vec<&Machine> = net.pods().collect();
    // Created in the order of their numbers.
    let all = [1, 2, 3, 4, 5, 6];
    let serve = |cluster: &Cluster<'_>, number: u8| {
        let name = format!("room-{number}");
        let mut service = service_at(&name, number);
        service["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:0{number}Z"));
        service["metadata"]["annotations"] = json!({"guideway.dev/table-size": "16384"});
        service["status"] = objects::status(&[vips(number), vips(number + 10)].concat());
        for port in service["spec"]["ports"].as_array_mut().unwrap() {
            // A NodePort would take room too.
            port.as_object_mut().unwrap().remove("nodePort");
        }
        service["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
        cluster.put(service);
        cluster.endpoints(&name, &pods);
    };
    let have_room = |cluster: &Cluster<'_>, numbers: &[u8]| {
        for number in all {
            let pods = if numbers.contains(&number) {
                &pods[..]
            } else {
                &[]
            };
            cluster.wait_for_table(&format!("room-{number}"), pods);
        }
    };
    for number in [2, 3, 4, 5] {
        serve(&cluster, number);
    }
    have_room(&cluster, &[2, 3, 4, 5]);
    serve(&cluster, 6);
    let is_refused = |status: &Value| status["unapplied"] != 0;
    for agent in &mut cluster.agents {
        agent.wait_for_status("the youngest is refused", is_refused);
    }
    have_room(&cluster, &[2, 3, 4, 5]);
    // An older one that comes late takes the room of the youngest that has some.
    serve(&cluster, 1);
    have_room(&cluster, &[1, 2, 3, 4]);

    for start in [Agent::restart, Agent::start_over] {
        for agent in &mut cluster.agents {
            start(agent);
            agent.wait_for_status("served as far as there is room", |status| {
                status["kubernetes"]["synced_seconds"].is_u64() && is_refused(status)
            });
        }
        have_room(&cluster, &[1, 2, 3, 4]);
    }
    cluster.remove("room-2");
    have_room(&cluster, &[1, 3, 4, 5]);
}

fn network() -> Topology {
    Topology::builder().nodes(1).pods(3).build().unwrap()
}

/// An edge and a node whose agents follow a server of ours.
struct Cluster<'net> {
    net: &'net Topology,
    api: FakeApiServer,
    agents: Vec<Agent<'net>>,
    _echoes: Vec<Echo>,
}

impl<'net> Cluster<'net> {
    fn start(net: &'net Topology) -> Self {
        let mut cluster = Self {
            net,
            api: FakeApiServer::new(),
            agents: Vec::new(),
            _echoes: serve_on_pods(net),
        };
        cluster.put(objects::seed());
        cluster.put_machines();
        for machine in net.edges().iter().chain(net.nodes()) {
            cluster.api.serve(machine.namespace()).unwrap();
            cluster.agents.push(Agent::launch(machine, ""));
        }
        for agent in &mut cluster.agents {
            agent.wait_until_in_step();
        }
        cluster
    }

    /// Writes the Nodes, and who runs Guideway.
    fn put_machines(&self) {
        for slice in objects::presence(self.net.nodes(), self.net.edges()) {
            self.put(slice);
        }
        for machine in self.net.nodes() {
            self.put(node(machine));
        }
    }

    fn put(&self, object: Value) {
        self.api.put(newer(object));
    }

    /// Adds a Service with addresses of this number, served by these pods.
    fn serve(&self, name: &str, number: u8, pods: &[&Machine]) {
        self.put(service_at(name, number));
        self.endpoints(name, pods);
    }

    fn endpoints(&self, service: &str, pods: &[&Machine]) {
        for slice in self.slices_of(service, pods) {
            self.put(slice);
        }
    }

    fn slices_of(&self, service: &str, pods: &[&Machine]) -> [Value; 2] {
        let pods: Vec<(&Machine, bool)> = pods.iter().map(|pod| (*pod, true)).collect();
        objects::slices(self.net, service, &pods).map(in_default)
    }

    fn remove(&self, service: &str) {
        self.api.delete("services", "default", service);
        for family in ["ipv4", "ipv6"] {
            let slice = format!("{service}-{family}");
            self.api.delete("endpointslices", "default", &slice);
        }
    }

    fn watches(&self, resource: &str) -> usize {
        self.api.asked(resource, Verb::Watch).len()
    }

    fn wait_for_requests(&self, resource: &str, verb: Verb, number: usize) {
        let awaited = format!("{resource} are asked for {number} times by {verb:?}");
        wait_for(&awaited, PATIENCE, || {
            let asked = self.api.asked(resource, verb).len();
            if asked >= number { Ok(()) } else { Err(asked) }
        })
        .unwrap();
    }

    /// Waits until all agents know of so many objects.
    fn wait_for_objects(&mut self, kind: &str, number: u64) {
        for agent in &mut self.agents {
            agent.wait_for_status(&format!("{number} {kind}"), |status| {
                status["kubernetes"]["objects"][kind] == number
            });
        }
    }

    /// Waits until the tables of all agents have exactly these pods for a Service.
    fn wait_for_table(&self, service: &str, pods: &[&Machine]) {
        let expected = addresses(pods);
        for agent in &self.agents {
            let awaited = format!("{service} on {} has {expected:?}", agent.machine().label());
            wait_for(&awaited, PATIENCE, || {
                let pods = agent.pods_of(service);
                if pods == expected {
                    Ok(())
                } else {
                    Err(format!("{pods:?}"))
                }
            })
            .unwrap();
        }
    }

    /// Begins to watch over the Service `steady`.
    fn steady(&self, pods: &[&Machine]) -> Steady {
        self.wait_for_table("steady", pods);
        wait_for_pods(self.net, &ways(1), pods);
        let traffic = Traffic::over(Flow::open_many(&self.net.clients()[0], &ways(1), 3));
        traffic.wait_for_rounds(ROUNDS);
        Steady {
            tables: self
                .agents
                .iter()
                .map(|agent| table(agent, "steady"))
                .collect(),
            traffic,
        }
    }

    fn updates(&self) -> Vec<f64> {
        self.agents.iter().map(updates_of).collect()
    }
}

/// A Service that nothing happens to.
struct Steady {
    tables: Vec<Vec<Value>>,
    traffic: Traffic,
}

impl Steady {
    fn expect_untouched(self, cluster: &Cluster<'_>) {
        self.traffic.wait_for_rounds(ROUNDS);
        self.traffic.stop_unharmed();
        for (agent, before) in cluster.agents.iter().zip(self.tables) {
            assert_eq!(table(agent, "steady"), before);
        }
    }
}

/// Returns what an agent's tables have for a Service, without counters.
fn table(agent: &Agent<'_>, service: &str) -> Vec<Value> {
    let shown = ["service", "backend", "node", "slots", "table_size"];
    let rows = agent.backends_of(service);
    let row = |row: &Value| shown.iter().map(|name| row[name].clone()).collect();
    rows.iter().map(row).collect()
}

fn updates_of(agent: &Agent<'_>) -> f64 {
    agent.metric("guideway_kubernetes_sync_duration_seconds_count")
}

/// A Service with addresses of this number.
fn service_at(name: &str, number: u8) -> Value {
    let mut service = in_default(objects::service(name, 30_080 + u16::from(number)));
    service["spec"]["clusterIPs"] =
        json!([format!("10.96.0.{number}"), format!("fd00:96::{number}")]);
    service["status"] = objects::status(&vips(number));
    service
}

/// A Service that has nothing to be served at.
fn unserved(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": "ExternalName", "externalName": "example.com"},
    })
}

fn in_default(mut object: Value) -> Value {
    object["metadata"]["namespace"] = json!("default");
    object
}

/// Adds fields to an object as a newer API may have them.
fn newer(mut object: Value) -> Value {
    fn add(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    // Names there are the user's.
                    if !["labels", "annotations", "data"].contains(&name.as_str()) {
                        add(field);
                    }
                }
                fields.insert("newer".to_owned(), json!({"field": [1, null]}));
            }
            Value::Array(items) => items.iter_mut().for_each(add),
            _ => {}
        }
    }
    add(&mut object);
    object
}
