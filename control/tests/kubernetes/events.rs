//! What one machine tells of a Service by Events, and how requests that fail are counted.

use lab::kubernetes::ControlPlane;
use lab::{Machine, Topology, wait_for};
use serde_json::json;

use crate::objects::{self, SYSTEM};
use crate::world::{PATIENCE, World};

#[test]
fn virtual_address_that_only_an_interface_of_one_machine_has_is_an_event_of_that_machine() {
    let net = Topology::builder().nodes(2).pods(1).build().unwrap();
    let [node, other] = net.nodes() else {
        panic!("two nodes");
    };
    let own = ["10.99.0.77", "10.99.0.78"];
    for (machine, own) in [node, other].into_iter().zip(own) {
        let mut ip = machine.namespace().command("ip");
        let address = format!("{own}/32");
        lab::output(ip.args(["address", "add", &address, "dev", Machine::INTERFACE])).unwrap();
    }
    let world = World::start(&net);
    // A Node's address everybody sees: that is the controller's to tell. An agent would tell of it first, as it tells
    // in the order of the texts.
    let [first, second] = own.map(|own| own.parse().unwrap());
    world.balance(&[first, second, other.v4()]);
    let told = |reason: &str| {
        let about = format!("involvedObject.name=web,reason={reason}");
        let events = world.control.get(&["events", "--field-selector", &about]);
        let events = events.unwrap();
        events["items"].as_array().unwrap().clone()
    };
    wait_for("an Event of each machine", PATIENCE, || {
        let events = told("AddressIsNode");
        let by = |node: &str| {
            events
                .iter()
                .any(|event| event["reportingInstance"] == node)
        };
        (by("node0") && by("node1"))
            .then_some(())
            .ok_or(events.len())
    })
    .unwrap();
    let mut events = told("AddressIsNode");
    events.sort_by_key(|event| event["message"].to_string());
    assert_eq!(events.len(), 2, "{events:?}");
    let web = world.control.get(&["service", "web"]).unwrap();
    for ((event, own), node) in events.iter().zip(own).zip(["node0", "node1"]) {
        let note = event["message"].as_str().unwrap();
        let expected = format!("node {node}: {own} belongs to an interface of this machine: ");
        assert!(note.starts_with(&expected), "{note}");
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["reportingInstance"], node);
        assert_eq!(event["involvedObject"]["uid"], web["metadata"]["uid"]);
    }
}

#[test]
fn lease_that_cannot_be_renewed_is_counted() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let mut world = World::without_servers(&net);
    world.write_seed();
    world.show_presence();
    let rules = "
- {apiGroups: ['', discovery.k8s.io], resources: [services, nodes, endpointslices, secrets], verbs: [get, list, watch]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create]}";
    world.control.make_service_account("reader", rules).unwrap();
    let token = world.control.service_account_token("default", "reader");
    let machine = net.nodes()[0].namespace();
    let control: &ControlPlane = &world.control;
    control.write_kubeconfig(machine, &token.unwrap()).unwrap();
    let announce = format!("announce: {{ interfaces: [{}] }}", Machine::INTERFACE);
    world.launch_on(net.nodes(), &announce);
    let agent = &mut world.agents[0];
    agent.wait_until_in_step();
    let failed = |request: &str| {
        agent.metric(&format!(
            "guideway_kubernetes_request_errors_total{{request=\"{request}\"}}"
        ))
    };
    for request in ["lease", "lease_watch"] {
        wait_for(&format!("{request} is counted"), PATIENCE, || {
            let number = failed(request);
            (number >= 2.0).then_some(()).ok_or(number)
        })
        .unwrap();
    }
    for request in ["node_watch", "event", "seed"] {
        assert_eq!(failed(request), 0.0, "{request}");
    }
    let leases = world.control.get(&["leases", "-n", SYSTEM]).unwrap();
    assert_eq!(leases["items"], json!([]));
}

#[test]
fn nodes_slices_and_services_are_told_what_is_not_in_force() {
    let net = Topology::builder().nodes(2).pods(1).build().unwrap();
    let mut world = World::without_servers(&net);
    world.write_seed();
    world.show_presence();
    let [sound, degraded] = net.nodes() else {
        panic!("two nodes");
    };
    world.launch_on([sound], "");
    world.launch_on([degraded], "announce: { interfaces: [nosuch0] }\n");
    slice_and_service_are_told_once_by_all_agents_together(&net, &world);
    for (node, kind, reason, expected) in [
        (
            sound,
            "Normal",
            "Attached",
            "the XDP program is on eth0 (native)",
        ),
        (degraded, "Warning", "Degraded", "interface nosuch0: "),
    ] {
        let about = format!(
            "involvedObject.kind=Node,involvedObject.name={},reason={reason}",
            node.label()
        );
        let awaited = format!("{} has an Event {reason}", node.label());
        let event = wait_for(&awaited, PATIENCE, || {
            let events = world.control.get(&["events", "--field-selector", &about]);
            let events = events.map_err(|error| error.to_string())?;
            let event = events["items"][0].clone();
            (!event.is_null())
                .then_some(event)
                .ok_or(events.to_string())
        })
        .unwrap();
        assert_eq!(event["type"], kind);
        assert_eq!(event["reportingInstance"], node.label());
        let note = event["message"].as_str().unwrap();
        assert!(note.starts_with(expected), "{note}");
        // As `kubectl describe` looks for it.
        let seen = world.control.get(&["node", node.label()]).unwrap();
        assert_eq!(event["involvedObject"]["uid"], seen["metadata"]["uid"]);
    }
}

fn slice_and_service_are_told_once_by_all_agents_together(net: &Topology, world: &World<'_>) {
    let [mut nameless, _] = objects::slices(net, "web", &[]);
    nameless["metadata"] = json!({"name": "nameless"});
    world.apply(&nameless);
    // The younger one is in the way of the older one's address.
    for (name, node_port) in [("older", 30_081), ("younger", 30_082)] {
        let mut service = objects::service(name, node_port);
        service["spec"]["externalIPs"] = json!(["10.99.0.200"]);
        world.apply(&service);
    }
    let told = |kind: &str, reason: &str| {
        let about = format!("involvedObject.kind={kind},reason={reason}");
        let events = world.control.get(&["events", "--field-selector", &about]);
        events.unwrap()["items"].as_array().unwrap().clone()
    };
    for (kind, reason) in [("EndpointSlice", "NoServiceName"), ("Service", "Conflict")] {
        let told = wait_for(&format!("an Event {reason}"), PATIENCE, || {
            told(kind, reason).pop().ok_or("none")
        });
        let told = told.unwrap();
        let object = told["involvedObject"]["name"].as_str().unwrap();
        let seen = world.control.get(&[&kind.to_lowercase(), object]).unwrap();
        assert_eq!(told["involvedObject"]["uid"], seen["metadata"]["uid"]);
        assert_eq!(told["type"], "Warning");
    }
    // Both agents have told both, and there is one Event of each.
    for (kind, reason) in [("EndpointSlice", "NoServiceName"), ("Service", "Conflict")] {
        wait_for(&format!("both agents have told {reason}"), PATIENCE, || {
            let has_told = |log: String| {
                let mut lines = log.lines();
                lines.any(|line| line.contains("told by an Event") && line.contains(reason))
            };
            let mut agents = world.agents.iter();
            let silent = agents.find(|agent| !has_told(agent.log()));
            silent.map_or(Ok(()), |agent| Err(agent.machine().label()))
        })
        .unwrap();
        assert_eq!(told(kind, reason).len(), 1);
    }
}
