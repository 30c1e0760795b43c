//! Objects that nobody should write: none makes the index panic, serve what it must not, or lose what is good.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::words::*;
use crate::desired::{ForwardMode, Protocol, ServiceKey, TrafficPolicy, unusable};
use crate::index::objects::{
    Endpoint, EndpointPort, EndpointSlice, HEADLESS, Ingress, MODE, Node, NodeAddress, ObjectName,
    SERVICE_NAME, SERVICE_PROXY_NAME, Service, ServicePort, TABLE_SIZE, Text, ZONE,
};
use crate::index::{Index, Options, Presence, Reserved, State};

const API_SERVER: &str = "192.0.2.6:6443";
/// A Service that no other object touches.
const GOOD: &str = "192.0.2.200:80/tcp";

/// One step of whoever writes objects.
#[derive(Clone, Debug)]
enum Step {
    Service(Box<Service>),
    Slice(EndpointSlice),
    Node(Node),
    DeleteService(ObjectName),
    DeleteSlice(ObjectName),
    DeleteNode(String),
    Presence(Presence),
    Update,
}

proptest! {
    // 250 times 40 steps: 10 000 objects.
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_objects_break_nothing_and_leave_the_good_ones_served(
        steps in vec(step(), 40),
        is_node in any::<bool>(),
    ) {
        let options = options(is_node);
        let mut index = start(&options);
        let mut last = Last::default();
        for step in steps {
            last.note(&step);
            take(&mut index, step);
        }
        index.update();
        check(index.state(), &last, is_node);
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
        prop_assert!(state.services.is_empty() && state.vips.is_empty() && state.problems.is_empty());
        prop_assert!(index.entries.is_empty() && index.claims.is_empty() && index.captured.is_empty());
    }
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
        Step::Service(service) => index.apply_service(*service),
        Step::Slice(slice) => index.apply_slice(slice),
        Step::Node(node) => index.apply_node(node),
        Step::DeleteService(name) => index.delete_service(&name),
        Step::DeleteSlice(name) => index.delete_slice(&name),
        Step::DeleteNode(name) => index.delete_node(&name),
        Step::Presence(presence) => index.set_presence(presence),
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
    let machines = last.machine_addresses();
    for vip in &state.vips {
        assert!(!machines.contains(vip), "{vip} is a machine's");
        assert_eq!(unusable(*vip), None);
    }
    for (key, service) in &state.services {
        let spec = &service.spec;
        assert_ne!(key.to_string(), format!("{API_SERVER}/tcp"));
        assert_ne!(key.port, 0);
        let is_machine = key.address.is_unspecified() || machines.contains(&key.address);
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
    services: BTreeMap<ObjectName, Service>,
    slices: BTreeMap<ObjectName, EndpointSlice>,
    nodes: BTreeMap<String, Node>,
    presence: Presence,
}

impl Last {
    fn note(&mut self, step: &Step) {
        match step.clone() {
            Step::Service(service) => drop(self.services.insert(service.name.clone(), *service)),
            Step::Slice(slice) => drop(self.slices.insert(slice.name.clone(), slice)),
            Step::Node(node) => drop(self.nodes.insert(node.name.clone(), node)),
            Step::DeleteService(name) => drop(self.services.remove(&name)),
            Step::DeleteSlice(name) => drop(self.slices.remove(&name)),
            Step::DeleteNode(name) => drop(self.nodes.remove(&name)),
            Step::Presence(presence) => self.presence = presence,
            Step::Update => {}
        }
    }

    fn replay(&self, index: &mut Index) {
        index.set_presence(self.presence.clone());
        for slice in self.slices.values().rev() {
            index.apply_slice(slice.clone());
        }
        for service in self.services.values().rev() {
            index.apply_service(service.clone());
        }
        for node in self.nodes.values() {
            index.apply_node(node.clone());
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

    fn machine_addresses(&self) -> BTreeSet<IpAddr> {
        let nodes = self.nodes.values().flat_map(|node| &node.addresses);
        let texts = nodes.map(|node| node.address.replace("192.000.2.01", "192.0.2.1"));
        let mut all: BTreeSet<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
        all.extend(&self.presence.edges);
        all.extend(addresses::<Vec<_>>(&["192.0.2.5", "192.0.2.6"]));
        all
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => a_service().prop_map(|service| Step::Service(Box::new(service))),
        8 => a_slice().prop_map(Step::Slice),
        2 => a_node().prop_map(Step::Node),
        1 => a_name().prop_map(Step::DeleteService),
        1 => a_name().prop_map(Step::DeleteSlice),
        1 => a_node_name().prop_map(Step::DeleteNode),
        1 => a_presence().prop_map(Step::Presence),
        2 => Just(Step::Update),
    ]
}

fn a_service() -> impl Strategy<Value = Service> {
    let front = (
        a_name(),
        option::of(0..3_i64),
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
        vec(
            words(&["10.96.0.1", "fd00:96::1", "10.96.0.1", "None", "", "x"]),
            0..3,
        ),
        vec(a_service_port(), 0..5),
        vec(an_address(), 0..3),
        vec(
            (
                option::weighted(0.9, an_address()),
                option::weighted(0.2, words(&["VIP", "Proxy", "?"])),
            ),
            0..4,
        ),
        vec(
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
            0..3,
        ),
    );
    let rules = (
        option::of(words(&[Options::DEFAULT_CLASS, "other"])),
        option::of(words(&["Cluster", "Local", "?"])),
        option::of(words(&["None", "ClientIP", "?"])),
        option::of(a_number()),
        btree_map(words(&[SERVICE_PROXY_NAME, HEADLESS]), a_text(), 0..=1),
        prop_oneof![
            4 => Just(BTreeMap::new()),
            1 => btree_map(
                words(&[MODE, TABLE_SIZE]),
                words(&["ipip", "l2dsr", "nat", "1", "256", "1048576", "?", ""]),
                1..=2,
            ),
        ],
    );
    (front, rules, 0..8).prop_map(|(front, rules, labelled)| {
        let (name, created, kind, cluster_ips, ports, external_ips, ingress, source_ranges) = front;
        let (class, policy, affinity, health_check, labels, annotations) = rules;
        let texts = |all: Vec<String>| all.into_iter().map(Text::from).collect();
        Service {
            name,
            created,
            labels: if labelled == 0 {
                labels
            } else {
                BTreeMap::new()
            },
            annotations,
            kind: kind.map(Text::from),
            cluster_ips: texts(cluster_ips),
            ports,
            external_ips: texts(external_ips),
            ingress: ingress
                .into_iter()
                .map(|(ip, ip_mode)| Ingress {
                    ip: ip.map(Text::from),
                    ip_mode: ip_mode.map(Text::from),
                })
                .collect(),
            source_ranges: texts(source_ranges),
            load_balancer_class: class.map(Text::from),
            external_traffic_policy: policy.map(Text::from),
            session_affinity: affinity.map(Text::from),
            health_check_node_port: health_check,
        }
    })
}

fn a_service_port() -> impl Strategy<Value = ServicePort> {
    (
        a_port_name(),
        a_protocol(),
        a_number(),
        option::of(a_number()),
    )
        .prop_map(|(name, protocol, port, node_port)| ServicePort {
            name: name.map(Text::from),
            protocol: protocol.map(Text::from),
            port,
            node_port,
        })
}

fn a_slice() -> impl Strategy<Value = EndpointSlice> {
    let labels = prop_oneof![
        8 => a_name().prop_map(|name| BTreeMap::from([(SERVICE_NAME.to_owned(), name.name.to_string())])),
        1 => btree_map(words(&[SERVICE_NAME, SERVICE_PROXY_NAME, HEADLESS]), a_text(), 0..=2),
    ];
    let ports = vec((a_port_name(), a_protocol(), option::of(a_number())), 0..4);
    let kind = words(&["IPv4", "IPv4", "IPv6", "FQDN", "", "?"]);
    (a_name(), labels, kind, vec(an_endpoint(), 0..6), ports).prop_map(
        |(name, labels, address_type, endpoints, ports)| EndpointSlice {
            name,
            labels,
            address_type,
            endpoints,
            ports: ports
                .into_iter()
                .map(|(name, protocol, port)| EndpointPort {
                    name,
                    protocol,
                    port,
                })
                .collect(),
        },
    )
}

fn an_endpoint() -> impl Strategy<Value = Endpoint> {
    let condition = || option::of(any::<bool>());
    (
        vec(an_address(), 0..3),
        condition(),
        condition(),
        condition(),
        option::weighted(0.8, a_node_name()),
        vec(a_node_name(), 0..2),
        vec(words(&["a", "b", ""]), 0..2),
    )
        .prop_map(
            |(addresses, ready, serving, terminating, node_name, for_nodes, for_zones)| Endpoint {
                addresses,
                ready,
                serving,
                terminating,
                node_name,
                for_nodes,
                for_zones,
            },
        )
}

fn a_node() -> impl Strategy<Value = Node> {
    let kind = words(&["InternalIP", "InternalIP", "ExternalIP", "Hostname", "?"]);
    let labels = btree_map(words(&[ZONE]), words(&["a", "b", ""]), 0..=1);
    let addresses = vec((kind, an_address()), 0..3);
    (a_node_name(), labels, addresses, any::<bool>()).prop_map(
        |(name, labels, addresses, deleting)| Node {
            name,
            labels,
            deleting,
            taints: BTreeSet::new(),
            addresses: addresses
                .into_iter()
                .map(|(kind, address)| NodeAddress { kind, address })
                .collect(),
        },
    )
}

fn a_presence() -> impl Strategy<Value = Presence> {
    let edges = select(vec!["192.0.2.1", "192.0.2.2", "fd00::9"]);
    (vec(a_node_name(), 0..4), vec(edges, 0..2)).prop_map(|(nodes, edges)| Presence {
        nodes: nodes.into_iter().collect(),
        edges: addresses(&edges),
        ..Presence::default()
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
