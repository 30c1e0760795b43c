//! Objects that nobody should write: none makes the index panic, serve what it must not, or lose what is good,
//! and what is wrong is named.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::words::*;
use crate::desired::{ForwardMode, Protocol, ServiceKey, TrafficPolicy, unusable};
use crate::index::objects::{
    HEADLESS, MODE, ObjectName, SERVICE_NAME, SERVICE_PROXY_NAME, TABLE_SIZE, ZONE,
};
use crate::index::{BrokenRule, GuidewayMachines, Index, Object, Options, Reserved, State};
use crate::kubernetes::schema;

const API_SERVER: &str = "192.0.2.6:6443";
/// A Service that no other object touches.
const GOOD: &str = "192.0.2.200:80/tcp";
/// Services and EndpointSlices that are written at least.
const OBJECTS: u32 = 10_000;

/// One step of whoever writes objects.
#[derive(Clone, Debug)]
enum Step {
    Service(Box<schema::Service>),
    Slice(Box<schema::EndpointSlice>),
    Node(Box<schema::Node>),
    DeleteService(ObjectName),
    DeleteSlice(ObjectName),
    DeleteNode(String),
    GuidewayMachines(GuidewayMachines),
    Update,
}

#[test]
fn hostile_objects_break_nothing_are_named_and_leave_the_good_ones_served() {
    // Two of three steps write a Service or a slice.
    let config = ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let (written, named) = (Cell::new(0_u32), Cell::new(0_u32));
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&(vec(step(), 40), any::<bool>()), |(steps, is_node)| {
        let options = options(is_node);
        let mut index = start(&options);
        let mut last = Last::default();
        for step in steps {
            let is_counted = matches!(step, Step::Service(_) | Step::Slice(_));
            written.set(written.get() + u32::from(is_counted));
            last.note(&step);
            take(&mut index, step);
        }
        index.update();
        check(index.state(), &last, is_node);
        named.set(named.get() + last.check_named(index.state()));
        // The way there does not matter.
        let mut anew = start(&options);
        last.replay(&mut anew);
        anew.update();
        prop_assert_eq!(index.state(), anew.state());
        // Everything that comes can go.
        last.clear(&mut index);
        index.delete_service(&ObjectName::new("good", "good"));
        index.delete_slice(&ObjectName::new("good", "good-1"));
        index.update();
        let state = index.state();
        prop_assert!(
            state.services.is_empty() && state.vips.is_empty() && state.problems.is_empty()
        );
        prop_assert!(
            index.entries.is_empty() && index.claims.is_empty() && index.captured.is_empty()
        );
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    assert!(written.get() >= OBJECTS, "{}", written.get());
    assert!(named.get() >= 500, "{}", named.get());
}

fn options(is_node: bool) -> Options {
    Options {
        node_name: is_node.then(|| "node-1".to_owned()),
        serve_unset_class: true,
        external_ips: ["192.0.2.0/24".parse().unwrap()].into(),
        ..Options::default()
    }
}

fn start(options: &Options) -> Index {
    let mut index = Index::new(options.clone());
    index.set_reserved(Reserved {
        machine: addresses(&["192.0.2.5"]),
        api_servers: [API_SERVER.parse().unwrap()].into(),
    });
    let mut good = load_balancer("good", "192.0.2.200");
    good.name = ObjectName::new("good", "good");
    let mut pods = slice_of("good", "good-1", &["10.244.200.1"]).port("", 8080, "TCP");
    pods.name = ObjectName::new("good", "good-1");
    index.apply_service(good);
    index.apply_slice(pods);
    index
}

fn take(index: &mut Index, step: Step) {
    match step {
        Step::Service(service) => index.apply_service((*service).into()),
        Step::Slice(slice) => index.apply_slice((*slice).into()),
        Step::Node(node) => {
            index.apply_node((*node).into());
        }
        Step::DeleteService(name) => index.delete_service(&name),
        Step::DeleteSlice(name) => index.delete_slice(&name),
        Step::DeleteNode(name) => index.delete_node(&name),
        Step::GuidewayMachines(guideway_machines) => index.set_guideway_machines(guideway_machines),
        Step::Update => drop(index.update()),
    }
}

/// Asserts what holds whatever the objects say.
fn check(state: &State, last: &Last, is_node: bool) {
    let good = &state.services[&GOOD.parse::<ServiceKey>().unwrap()].spec;
    assert_eq!(good.backends[0].pod, "10.244.200.1:8080".parse().ok());
    assert!(
        state
            .vips
            .contains(&"192.0.2.200".parse::<IpAddr>().unwrap())
    );

    assert!(state.assigned.is_subset(&state.vips));
    assert!(
        state
            .assigned
            .iter()
            .all(|address| !state.shared.contains(address))
    );
    for key in state
        .services
        .keys()
        .filter(|key| !key.address.is_unspecified())
    {
        let sets = [&state.assigned, &state.shared];
        assert!(
            sets.iter().any(|set| set.contains(&key.address)),
            "{key} is in neither"
        );
    }
    let withheld = last.machine_addresses(|name| is_node && name == "node-1");
    let machines = last.machine_addresses(|_| true);
    for vip in &state.vips {
        assert!(!withheld.contains(vip), "{vip} is this machine's");
        let is_others = machines.contains(vip) && !state.assigned.contains(vip);
        assert!(!is_others, "{vip} is a machine's");
        assert_eq!(unusable(*vip), None);
    }
    for (key, service) in &state.services {
        let spec = &service.spec;
        assert_ne!(key.to_string(), format!("{API_SERVER}/tcp"));
        assert_ne!(key.port, 0);
        let is_machine = key.address.is_unspecified() || withheld.contains(&key.address);
        assert_eq!(spec.node_port, is_machine, "{key}");
        assert!(is_machine || state.vips.contains(&key.address), "{key}");
        assert!(!is_machine || spec.mode != ForwardMode::L2dsr, "{key}");
        assert!(spec.backends.is_sorted());
        let pods: Vec<_> = spec
            .backends
            .iter()
            .map(|backend| backend.pod.unwrap())
            .collect();
        let distinct: BTreeSet<_> = pods.iter().collect();
        assert_eq!(pods.len(), distinct.len(), "{key} has an endpoint twice");
        for (pod, backend) in pods.iter().zip(&spec.backends) {
            assert_eq!(pod.is_ipv4(), key.address.is_ipv4(), "{key}");
            assert_eq!(unusable(pod.ip()), None, "{key}");
            assert!(pod.port() != 0 && (key.protocol != Protocol::Sctp || pod.port() == key.port));
            let is_local = spec.traffic_policy == TrafficPolicy::Local;
            assert!(is_node || is_local || backend.weight == 1, "{key}");
            assert!(is_node || !backend.address.is_unspecified(), "{key}");
            let comes_back = (pod.ip(), pod.port()) == (key.address, key.port);
            assert!(is_machine || !comes_back, "{key}");
            assert!(
                spec.mode != ForwardMode::Nat || backend.address == pod.ip(),
                "{key}"
            );
        }
        let slots = spec.log2_slots_for(pods.len()).unwrap();
        assert!(spec.sharing().count() <= 1 << slots);
    }
    for (object, problems) in &state.problems {
        assert!(!problems.is_empty() && problems.is_sorted());
        assert!(problems.iter().all(|problem| problem.object == *object));
    }
}

/// The objects as they are at the end.
#[derive(Debug, Default)]
struct Last {
    services: BTreeMap<ObjectName, schema::Service>,
    slices: BTreeMap<ObjectName, schema::EndpointSlice>,
    nodes: BTreeMap<String, schema::Node>,
    guideway_machines: GuidewayMachines,
}

impl Last {
    fn note(&mut self, step: &Step) {
        match step.clone() {
            Step::Service(service) => {
                let name = schema::name(&service.metadata);
                self.services.insert(name, *service);
            }
            Step::Slice(slice) => {
                let name = schema::name(&slice.metadata);
                self.slices.insert(name, *slice);
            }
            Step::Node(node) => {
                let name = node.metadata.name.clone().unwrap();
                self.nodes.insert(name, *node);
            }
            Step::DeleteService(name) => drop(self.services.remove(&name)),
            Step::DeleteSlice(name) => drop(self.slices.remove(&name)),
            Step::DeleteNode(name) => drop(self.nodes.remove(&name)),
            Step::GuidewayMachines(guideway_machines) => self.guideway_machines = guideway_machines,
            Step::Update => {}
        }
    }

    fn replay(&self, index: &mut Index) {
        index.set_guideway_machines(self.guideway_machines.clone());
        for slice in self.slices.values().rev() {
            index.apply_slice(slice.clone().into());
        }
        for service in self.services.values().rev() {
            index.apply_service(service.clone().into());
        }
        for node in self.nodes.values() {
            index.apply_node(node.clone().into());
        }
    }

    fn clear(&self, index: &mut Index) {
        for name in self.services.keys() {
            index.delete_service(name);
        }
        for name in self.slices.keys() {
            index.delete_slice(name);
        }
        for name in self.nodes.keys() {
            index.delete_node(name);
        }
    }

    /// Lists the addresses of these Nodes, of this machine, the API servers and edges.
    fn machine_addresses(&self, of: impl Fn(&str) -> bool) -> BTreeSet<IpAddr> {
        let nodes = self.nodes.iter().filter(|(name, _)| of(name));
        let nodes = nodes.filter_map(|(_, node)| node.status.as_ref());
        let entries = nodes.flat_map(|status| status.addresses.iter().flatten());
        let texts = entries.map(|entry| entry.address.replace("192.000.2.01", "192.0.2.1"));
        let mut all: BTreeSet<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
        all.extend(&self.guideway_machines.edges);
        all.extend(addresses::<Vec<_>>(&["192.0.2.5", "192.0.2.6"]));
        all
    }

    /// Asserts that ports and protocols that are none are told of each Service and slice that is served, and
    /// counts these objects.
    fn check_named(&self, state: &State) -> u32 {
        let services = self.services.iter().filter(|(_, one)| is_captured(one));
        let services = services.map(|(name, service)| {
            let ports = service
                .spec
                .iter()
                .flat_map(|spec| spec.ports.iter().flatten());
            let ports = ports.map(|port| (port.protocol.as_deref(), Some(port.port)));
            (Object::Service(name.clone()), ports.collect::<Vec<_>>())
        });
        let slices = self.slices.iter().filter(|(_, one)| is_balanced(one));
        let slices = slices.map(|(name, slice)| {
            let ports = slice.ports.iter().flatten();
            let ports = ports.map(|port| {
                let number = port.port.filter(|_| port.name.is_some());
                (port.protocol.as_deref(), number)
            });
            (Object::Slice(name.clone()), ports.collect())
        });
        let mut named = 0;
        for (object, ports) in services.chain(slices) {
            let is_bad = |number: &Option<i32>| number.is_none_or(|port| !is_port(port));
            let is_known = |text: &Option<&str>| *text != Some("QUIC");
            // Of one that is wrong in both ways either suffices.
            let only_port = ports
                .iter()
                .any(|(text, port)| is_known(text) && is_bad(port));
            let only_protocol = ports
                .iter()
                .any(|(text, port)| !is_known(text) && !is_bad(port));
            let problems = state
                .problems
                .get(&object)
                .map_or(&[][..], |problems| problems);
            for (rule, is_expected) in [
                (BrokenRule::InvalidPort, only_port),
                (BrokenRule::InvalidProtocol, only_protocol),
            ] {
                let is_told = problems.iter().any(|problem| problem.rule == rule);
                assert!(
                    is_told || !is_expected,
                    "{object}: no {rule:?} in {problems:?}"
                );
            }
            named += u32::from(only_port || only_protocol);
        }
        named
    }
}

fn is_port(number: i32) -> bool {
    (1..=65_535).contains(&number)
}

/// Tells whether a Service is surely read, for it has a node port.
fn is_captured(service: &schema::Service) -> bool {
    let spec = service.spec.as_ref().unwrap();
    let labels = service.metadata.labels.iter().flatten();
    let first = spec.cluster_ips.iter().flatten().next();
    labels.count() == 0
        && spec.type_.as_deref() != Some("ExternalName")
        && first.is_some_and(|first| !matches!(first.as_str(), "" | "None"))
        && spec
            .ports
            .iter()
            .flatten()
            .any(|port| port.node_port.is_some_and(|port| port != 0))
}

/// Tells whether a slice belongs to a Service that this proxy takes care of.
fn is_balanced(slice: &schema::EndpointSlice) -> bool {
    let labels = slice.metadata.labels.iter().flatten();
    let mut labels = labels.map(|(key, value)| key == SERVICE_NAME && !value.is_empty());
    let is_ours = labels.next().unwrap_or(false) && labels.next().is_none();
    is_ours && matches!(slice.address_type.as_deref(), Some("IPv4" | "IPv6"))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => a_service().prop_map(|service| Step::Service(Box::new(service))),
        8 => a_slice().prop_map(|slice| Step::Slice(Box::new(slice))),
        2 => a_node().prop_map(|node| Step::Node(Box::new(node))),
        1 => a_name().prop_map(Step::DeleteService),
        1 => a_name().prop_map(Step::DeleteSlice),
        1 => a_node_name().prop_map(Step::DeleteNode),
        1 => a_presence().prop_map(Step::GuidewayMachines),
        2 => Just(Step::Update),
    ]
}

fn a_service() -> impl Strategy<Value = schema::Service> {
    let front = (
        a_name(),
        option::of(0..3_u8),
        option::weighted(
            0.9,
            words(&[
                "ClusterIP",
                "NodePort",
                "LoadBalancer",
                "LoadBalancer",
                "ExternalName",
                "?",
            ]),
        ),
        a_list(
            words(&["10.96.0.1", "fd00:96::1", "10.96.0.1", "None", "", "x"]),
            3,
        ),
        a_list(a_service_port(), 5),
        a_list(an_address(), 3),
        a_list(
            (
                option::weighted(0.9, an_address()),
                option::weighted(0.2, words(&["VIP", "Proxy", "?"])),
            )
                .prop_map(|(ip, mode)| json!({"ip": ip, "ipMode": mode})),
            4,
        ),
        a_list(
            words(&[
                "10.0.0.0/8",
                " 010.0.0.0/08 ",
                "fd00::/8",
                "0.0.0.0/0",
                "10.0.0.1",
                "",
                "/",
                "x/9",
            ]),
            3,
        ),
    );
    let labels = prop_oneof![
        7 => Just(BTreeMap::new()),
        1 => btree_map(words(&[SERVICE_PROXY_NAME, HEADLESS]), a_text(), 0..=1),
    ];
    let annotations = prop_oneof![
        4 => Just(BTreeMap::new()),
        1 => btree_map(
            words(&[MODE, TABLE_SIZE]),
            words(&["ipip", "l2dsr", "nat", "1", "256", "1048576", "?", ""]),
            1..=2,
        ),
    ];
    let rules = (
        option::of(words(&[Options::DEFAULT_CLASS, "other"])),
        option::of(words(&["Cluster", "Local", "?"])),
        option::of(words(&["None", "ClientIP", "?"])),
        option::of(a_number()),
        labels,
        annotations,
    );
    (front, rules, a_surprise()).prop_map(|(front, rules, surprise)| {
        let (name, created, kind, cluster_ips, ports, external_ips, ingress, source_ranges) = front;
        let (class, policy, affinity, health_check, labels, annotations) = rules;
        object(json!({
            "apiVersion": "v1", "kind": "Service", "surprise": surprise,
            "metadata": {
                "namespace": name.namespace, "name": name.name, "surprise": surprise,
                "creationTimestamp": created.map(|second| format!("1970-01-01T00:00:0{second}Z")),
                "labels": labels, "annotations": annotations,
            },
            "spec": {
                "type": kind, "clusterIPs": cluster_ips, "ports": ports,
                "externalIPs": external_ips, "loadBalancerSourceRanges": source_ranges,
                "loadBalancerClass": class, "externalTrafficPolicy": policy,
                "sessionAffinity": affinity, "healthCheckNodePort": health_check,
                "surprise": surprise,
            },
            "status": {"loadBalancer": {"ingress": ingress, "surprise": surprise}},
        }))
    })
}

fn a_service_port() -> impl Strategy<Value = Value> {
    (
        a_port_name(),
        a_protocol(),
        a_number(),
        option::of(a_number()),
        a_surprise(),
    )
        .prop_map(|(name, protocol, port, node_port, surprise)| {
            json!({
                "name": name, "protocol": protocol, "port": port, "nodePort": node_port,
                "surprise": surprise,
            })
        })
}

fn a_slice() -> impl Strategy<Value = schema::EndpointSlice> {
    let labels = prop_oneof![
        8 => a_name().prop_map(|name| BTreeMap::from([(SERVICE_NAME.to_owned(), name.name.to_string())])),
        1 => btree_map(words(&[SERVICE_NAME, SERVICE_PROXY_NAME, HEADLESS]), a_text(), 0..=2),
    ];
    let port = (a_port_name(), a_protocol(), option::of(a_number()));
    let port = port.prop_map(
        |(name, protocol, port)| json!({"name": name, "protocol": protocol, "port": port}),
    );
    let kind = words(&["IPv4", "IPv4", "IPv6", "FQDN", "", "?"]);
    let lists = (a_list(an_endpoint(), 6), a_list(port, 4));
    (a_name(), labels, kind, lists, a_surprise()).prop_map(
        |(name, labels, address_type, (endpoints, ports), surprise)| {
            object(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "surprise": surprise,
                "metadata": {"namespace": name.namespace, "name": name.name, "labels": labels},
                "addressType": address_type, "endpoints": endpoints, "ports": ports,
            }))
        },
    )
}

fn an_endpoint() -> impl Strategy<Value = Value> {
    let condition = || option::of(any::<bool>());
    let name = |name: String| json!({"name": name});
    (
        vec(an_address(), 0..3),
        (condition(), condition(), condition()),
        option::weighted(0.8, a_node_name()),
        a_list(a_node_name().prop_map(name), 2),
        a_list(words(&["a", "b", ""]).prop_map(name), 2),
        a_surprise(),
    )
        .prop_map(
            |(addresses, conditions, node_name, nodes, zones, surprise)| {
                let (ready, serving, terminating) = conditions;
                json!({
                    "addresses": addresses, "nodeName": node_name, "surprise": surprise,
                    "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
                    "hints": {"forNodes": nodes, "forZones": zones},
                })
            },
        )
}

fn a_node() -> impl Strategy<Value = schema::Node> {
    let kind = words(&["InternalIP", "InternalIP", "ExternalIP", "Hostname", "?"]);
    let labels = btree_map(words(&[ZONE]), words(&["a", "b", ""]), 0..=1);
    let address = (kind, an_address());
    let address = address.prop_map(|(kind, text)| json!({"type": kind, "address": text}));
    (
        a_node_name(),
        labels,
        a_list(address, 3),
        any::<bool>(),
        a_surprise(),
    )
        .prop_map(|(name, labels, addresses, deleting, surprise)| {
            object(json!({
                "apiVersion": "v1", "kind": "Node", "surprise": surprise,
                "metadata": {
                    "name": name, "labels": labels,
                    "deletionTimestamp": deleting.then_some("1970-01-01T00:00:00Z"),
                },
                "status": {"addresses": addresses, "surprise": surprise},
            }))
        })
}

/// Reads an object as the API server's answers are read.
fn object<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// A list, which is absent in part of the cases.
fn a_list<T>(one: T, longest: usize) -> impl Strategy<Value = Option<Vec<T::Value>>>
where
    T: Strategy,
    T::Value: Clone,
{
    option::weighted(0.9, vec(one, 0..longest))
}

/// What stands in a field that nobody knows.
fn a_surprise() -> impl Strategy<Value = Value> {
    select(vec![
        Value::Null,
        json!(-1),
        json!("x"),
        json!([{"surprise": {}}]),
    ])
}

fn a_presence() -> impl Strategy<Value = GuidewayMachines> {
    let edges = select(vec!["192.0.2.1", "192.0.2.2", "fd00::9"]);
    (vec(a_node_name(), 0..4), vec(edges, 0..2)).prop_map(|(nodes, edges)| GuidewayMachines {
        nodes: nodes.into_iter().collect(),
        edges: addresses(&edges),
        ..GuidewayMachines::default()
    })
}

fn a_name() -> impl Strategy<Value = ObjectName> {
    (
        words(&["default", "default", "other"]),
        words(&["a", "b", "c", "d", ""]),
    )
        .prop_map(|(namespace, name)| ObjectName::new(namespace, name))
}

fn a_node_name() -> impl Strategy<Value = String> {
    words(&["node-1", "node-2", "node-3", ""])
}

fn a_port_name() -> impl Strategy<Value = Option<String>> {
    option::of(words(&["", "", "a", "b"]))
}

fn a_protocol() -> impl Strategy<Value = Option<String>> {
    option::of(words(&["TCP", "TCP", "UDP", "SCTP", "", "QUIC"]))
}

fn a_number() -> impl Strategy<Value = i32> {
    prop_oneof![
        6 => select(vec![80, 81, 6443, 30080, 65_535]),
        1 => select(vec![0, -1, 65_536, i32::MIN, i32::MAX]),
    ]
}

fn an_address() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (1..9_u8).prop_map(|last| format!("192.0.2.{last}")),
        3 => (1..5_u8).prop_map(|last| format!("fd00::{last}")),
        2 => words(&["192.000.2.01", "127.0.0.1", "0.0.0.0", "::", "::ffff:192.0.2.1", "fe80::1", "ff02::1", "255.255.255.255"]),
        1 => a_text(),
    ]
}

fn a_text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), any::<String>(), Just("x".repeat(5000))]
}

fn words(all: &[&str]) -> impl Strategy<Value = String> + use<> {
    select(strings(all))
}
