//! One case per rule, the examples that we ship, and mutated files.

use std::net::SocketAddr;
use std::time::Duration;

use super::host::{self, HostFacts};
use super::*;
use crate::desired::{
    AttachMode, BackendSpec, ForwardMode, NatSettings, NodePortAddresses, Protocol, Role,
    ServiceKey, TrafficPolicy,
};
use crate::desired::{Check, CheckKind, HttpGet};

const EDGE: &str = include_str!("../../../deploy/examples/edge.yaml");
const NODE: &str = include_str!("../../../deploy/examples/node.yaml");
const CLUSTER: &str = include_str!("../../../deploy/examples/cluster.yaml");
const KUBERNETES: &str = include_str!("../../../deploy/examples/kubernetes.yaml");
const EVERY_FIELD: &str = include_str!("tests/every_field.yaml");
const EVERY_KUBERNETES_FIELD: &str = include_str!("tests/kubernetes.yaml");

/// A file that is in order; each case breaks one rule of it.
const GOOD: &str = "\
interfaces:
  - name: eth0
vips: [10.99.0.1, '2001:db8::1']
services:
  - name: web
    address: 10.99.0.1
    port: 80
    protocol: tcp
    backends:
      - address: 10.0.0.1
      - {address: 10.0.0.2, weight: 3}
";

#[test]
fn backend_that_drains_gets_no_new_connections_and_is_kept() {
    let text = GOOD.replace("weight: 3", "weight: 3, drain: true");
    let desired = parse(&text).unwrap().desired;
    let (key, service) = desired.services.iter().next().unwrap();
    let weights = service.spec.backends.iter().map(|one| one.weight);
    assert_eq!(weights.collect::<Vec<_>>(), [1, 0]);
    let drains = &desired.draining[key];
    assert_eq!(**drains, service.spec.backends[1..]);
    let again = parse(&text.replace("drain: true", "drain: false")).unwrap();
    assert_eq!(again.desired, parse(GOOD).unwrap().desired);
}

#[test]
fn good_file_becomes_the_desired_state() {
    let config = parse(GOOD).unwrap();
    assert_eq!(
        config.desired.interfaces["eth0"],
        AttachMode::NativeOrGeneric
    );
    assert_eq!(
        (config.desired.edge, config.desired.node),
        (true, Role::IfListed)
    );
    assert_eq!(config.desired.hash_seed, DEFAULT_HASH_SEED);
    let key = ServiceKey {
        address: "10.99.0.1".parse().unwrap(),
        port: 80,
        protocol: Protocol::Tcp,
    };
    let service = &config.desired.services[&key];
    assert_eq!(service.name, "web");
    assert_eq!(service.spec.mode, ForwardMode::Ipip);
    assert_eq!(service.spec.log2_slots, None);
    let weights: Vec<u32> = service.spec.backends.iter().map(|b| b.weight).collect();
    assert_eq!(weights, [1, 3]);
    assert_eq!(config.socket, Path::new(DEFAULT_SOCKET));
    assert_eq!(config.pin_dir, Path::new(DEFAULT_PIN_DIR));
    assert_eq!(config.metrics, None);
    assert_eq!(config.tables, TableSizes::default());
}

#[test]
fn threads_refuse_by_name_what_they_do_not_do() {
    let afxdp = format!("datapath: afxdp\n{GOOD}");
    let config = parse(&afxdp).unwrap();
    assert_eq!(config.datapath, Datapath::Afxdp);
    assert_eq!(parse(GOOD).unwrap().datapath, Datapath::Xdp);
    for (change, refused) in [
        (
            "roles: [node]\nnodes: [{address: 10.0.0.1}]\n",
            "a machine that is no edge",
        ),
        ("announce: {interfaces: [eth0]}\n", "announce"),
        ("mend: on\n", "mend: on"),
        ("default_mode: nat\n", "service web by nat"),
    ] {
        let problems = parse(&format!("{change}{afxdp}")).unwrap_err();
        let problem = problems.iter().find(|problem| problem.field == "datapath");
        let problem = problem.unwrap_or_else(|| panic!("{change}: {problems:?}"));
        assert_eq!(problem.value, "afxdp");
        assert!(
            problem.reason.starts_with(&format!("not with {refused}")),
            "{problem:?}"
        );
        assert!(
            problem.remedy.ends_with("or leave datapath out"),
            "{problem:?}"
        );
    }
    let other = parse(&GOOD.replace("interfaces", "datapath: dpdk\ninterfaces")).unwrap_err();
    assert!(
        other[0].to_string().contains("use xdp or afxdp"),
        "{other:?}"
    );
}

#[test]
fn reload_keeps_the_datapath() {
    let path = Path::new("edge.yaml");
    let afxdp = format!("datapath: afxdp\n{GOOD}");
    for (text, running, refused) in [
        (GOOD, Datapath::Xdp, None),
        (afxdp.as_str(), Datapath::Afxdp, None),
        (GOOD, Datapath::Afxdp, Some(["xdp", "afxdp"])),
        (afxdp.as_str(), Datapath::Xdp, Some(["afxdp", "xdp"])),
    ] {
        let kept = host::keep_datapath(path, &parse(text).unwrap(), running);
        let Some([asked, running]) = refused else {
            kept.unwrap();
            continue;
        };
        let problem = kept.unwrap_err().to_string();
        for part in [
            format!("datapath \"{asked}\": the agent has begun with {running}"),
            format!("restart the agent, or set datapath: {running}"),
        ] {
            assert!(problem.contains(&part), "{problem}");
        }
    }
}

#[test]
fn threads_take_no_machine_with_pods_and_no_bond() {
    let text = format!("datapath: afxdp\nnodes: [{{address: 10.0.0.9}}]\n{GOOD}");
    let facts = HostFacts {
        mtus: [("eth0".to_owned(), 1500)].into(),
        addresses: [("10.0.0.9".parse().unwrap(), "eth0".to_owned())].into(),
        above: [("eth0".to_owned(), "enp1s0, enp2s0".to_owned())].into(),
        ..HostFacts::default()
    };
    let reasons = |text: &str| -> Vec<String> {
        let problems = host::problems(&parse(text).unwrap(), &facts).into_iter();
        let of_datapath = problems.filter(|problem| problem.field == "datapath");
        of_datapath
            .map(|problem| format!("{}; {}", problem.reason, problem.remedy))
            .collect()
    };
    let found = reasons(&text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains("role node") && found[1].contains("(enp1s0, enp2s0)"),
        "{found:?}"
    );
    assert_eq!(reasons(&text.replace("afxdp", "xdp")), [""; 0]);
}

#[test]
fn threads_take_no_packets_without_buffers() {
    let config = parse(&format!("datapath: afxdp\n{GOOD}")).unwrap();
    let found = |mtu| {
        let facts = HostFacts {
            mtus: [("eth0".to_owned(), mtu)].into(),
            ..HostFacts::default()
        };
        let mut problems = host::problems(&config, &facts);
        problems.retain(|problem| problem.field == "datapath");
        problems
    };
    assert_eq!(found(3754), []);
    let [problem] = &found(9000)[..] else {
        panic!("not one problem");
    };
    assert_eq!(problem.value, "afxdp");
    assert!(
        problem.reason.contains("interface eth0 has MTU 9000"),
        "{problem:?}"
    );
    assert!(problem.remedy.contains("MTU to 3754"), "{problem:?}");
}

#[test]
fn threads_lock_no_more_memory_than_the_limit() {
    let config = parse(&format!("datapath: afxdp\n{GOOD}")).unwrap();
    let queues = [(2, 1500), (1, 3000)];
    let problem = |lockable| host::locked_memory(&config, lockable, &queues);
    assert_eq!(problem(None), None);
    assert_eq!(problem(Some(64 << 20)), None);
    let refused = problem(Some(8 << 20)).unwrap();
    assert_eq!(
        refused.without_remedy(),
        "datapath \"afxdp\": 3 receive queues lock 64 MiB of memory, and the limit of locked memory is 8192 KiB"
    );
    assert!(
        refused.remedy.contains("raise the limit to 64 MiB"),
        "{refused:?}"
    );
}

#[test]
fn every_field_is_taken_over() {
    let config = parse(EVERY_FIELD).unwrap();
    let desired = &config.desired;
    assert_eq!(desired.interfaces["a"], AttachMode::Native);
    assert_eq!(desired.interfaces["b"], AttachMode::Generic);
    assert_eq!((desired.edge, desired.node), (true, Role::Yes));
    assert_eq!(desired.hash_seed, 255);
    assert_eq!(desired.sources.ipv4, Some("10.0.0.9".parse().unwrap()));
    assert_eq!(desired.sources.ipv6, Some("2001:db8::9".parse().unwrap()));
    let prefixes: Vec<String> = desired
        .sources
        .prefixes()
        .map(|one| one.to_string())
        .collect();
    assert_eq!(prefixes, ["10.7.0.0/24", "2001:db8:7::/112"]);
    let nat = NatSettings {
        v4: Some("10.0.0.8".parse().unwrap()),
        v6: Some("2001:db8::8".parse().unwrap()),
        first_port: 50_000,
        ports: 1_000,
    };
    assert_eq!(desired.nat, nat);
    let modes: Vec<_> = desired
        .services
        .values()
        .map(|s| (s.spec.mode, s.spec.log2_slots))
        .collect();
    assert_eq!(
        modes,
        [(ForwardMode::L2dsr, None), (ForwardMode::Ipip, Some(8))]
    );
    let edges: Vec<String> = desired
        .trusted_edges
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(edges, ["10.0.0.1/32", "10.1.0.0/16", "2001:db8::/32"]);
    let announce = desired.announce.as_ref().unwrap();
    assert_eq!(
        announce.interfaces,
        ["a".to_owned(), "a.7".to_owned()].into()
    );
    let includes = |text: &str| announce.includes(&text.parse().unwrap());
    assert!(includes("10.99.0.1") && !includes("2001:db8:99::1"));
    let sizes = TableSizes {
        lut_slots: 2 << 18,
        services: 3,
        backends: 4,
        next_hops: 5,
        vips: 6,
        trusted_edges: 7,
        pods: 8,
        source_ranges: 9,
        flows: 10,
        nat_flows: 11,
    };
    assert_eq!(config.tables, sizes);
    assert_eq!(config.socket, Path::new("/run/x.sock"));
    let metrics = "[::1]:9750".parse().unwrap();
    assert_eq!(config.metrics, Some(Listen::At(metrics)));
    assert_eq!(config.pin_dir, Path::new("/sys/fs/bpf/x"));
    let peers = config.peers.unwrap();
    let edges = ["10.0.0.9:9754", "[2001:db8::8]:9754"].map(|text| text.parse().unwrap());
    assert_eq!(peers.listen, Some(Listen::At(edges[0])));
    let expected = PeersFound::InFile {
        addresses: edges.into(),
        key_file: "/etc/guideway/peers.key".into(),
    };
    assert_eq!(peers.found, expected);
}

#[test]
fn in_a_cluster_peers_and_their_key_come_from_the_api() {
    let text = "interfaces: [{name: eth0}]\nkubernetes: {}\npeers: {listen: 'node:10793'}\n";
    let expected = Peers {
        listen: Some(Listen::Node(10793)),
        found: PeersFound::InCluster { port: 10793 },
    };
    assert_eq!(parse(text).unwrap().peers, Some(expected));
    let more = text.replace("'}", "', addresses: ['10.0.0.2:9'], key_file: /k}");
    for (text, expected) in [
        (
            more,
            &[
                "peers.addresses: the Kubernetes API says this; remove it; edges are the machines of \
                 kubernetes.service",
                "peers.key_file: the Kubernetes API says this; remove it; the key is in the Secret guideway-peers",
            ][..],
        ),
        (
            text.replace("'node:10793'", "off"),
            &[
                "peers.listen \"off\": other edges are asked at its port; give an address and port of this machine, or \
               remove peers",
            ],
        ),
        (
            text.replace("listen: 'node:10793'", ""),
            &[
                "peers.listen: missing; give an address and port of this machine that other edges reach",
            ],
        ),
    ] {
        let problems = parse(&text).unwrap_err().into_iter();
        let problems: Vec<String> = problems.map(|problem| problem.to_string()).collect();
        assert_eq!(problems, expected);
    }
}

#[test]
fn key_of_peers_is_read_on_edges() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    let text = format!(
        "peers: {{listen: '10.0.0.1:9754', addresses: ['10.0.0.2:9754'], key_file: {}}}\n{GOOD}",
        path.display()
    );
    let facts = HostFacts {
        mtus: [("eth0".to_owned(), 1500)].into(),
        ..HostFacts::default()
    };
    let problems = |text: &str| {
        let problems = host::problems(&parse(text).unwrap(), &facts).into_iter();
        problems
            .map(|problem| problem.to_string())
            .collect::<Vec<_>>()
    };
    let [missing] = &problems(&text)[..] else {
        panic!("not one problem");
    };
    let begin = format!("peers.key_file {path:?}: cannot read the key ");
    assert!(missing.starts_with(&begin), "{missing}");
    std::fs::write(&path, "short\n").unwrap();
    let expected = format!(
        "peers.key_file {path:?}: the key has 5 bytes, which is fewer than 32; give every edge the same file with 32 \
         random bytes or more, such as by `openssl rand -base64 48`"
    );
    assert_eq!(problems(&text), [expected]);
    std::fs::write(&path, [7; 32]).unwrap();
    assert_eq!(problems(&text), [""; 0]);
    std::fs::remove_file(&path).unwrap();
    let node = format!("roles: [node]\ntrusted_edges: [10.0.0.1]\n{text}");
    assert_eq!(problems(&node), [""; 0], "nodes exchange nothing");
}

#[test]
fn pods_nodeports_and_policies_are_taken_over() {
    let text = "\
interfaces: [{name: eth0}]
vips: [10.99.0.1]
nodes: [{address: 10.0.0.1}, {address: 10.0.0.2, guideway: false}, {address: '2001:db8::3', guideway: true}]
node_port_addresses: [10.0.0.0/8]
node_port_range: 20000-20010
clamp_mss: off
services:
  - name: web
    address: 10.99.0.1
    port: 80
    node_port: 20001
    protocol: tcp
    mode: l2dsr
    traffic_policy: local
    source_ranges: [192.0.2.0/24]
    session_affinity: client-ip
    backends:
      - {address: 10.244.0.5, port: 8080, node: '2001:db8::3', weight: 2}
      - {address: 10.244.0.5, node: 10.0.0.1}
  - {name: dual, node_port: 20002, protocol: udp, mode: nat, session_affinity: none, backends: [{address: 10.0.0.7, port: 53}, {address: '2001:db8::7', port: 53}]}
  - {name: six, node_port: 20003, protocol: sctp, mode: nat, backends: [{address: '2001:db8::7', port: 20003}]}
  - {name: none, node_port: 20004, protocol: tcp, backends: []}
";
    let desired = parse(text).unwrap().desired;
    let nodes: Vec<String> = desired.nodes.iter().map(ToString::to_string).collect();
    assert_eq!(nodes, ["10.0.0.1", "2001:db8::3"]);
    let within = NodePortAddresses::Within(["10.0.0.0/8".parse().unwrap()].into());
    assert_eq!(desired.node_port_addresses, within);
    assert!(!desired.clamp_mss);

    let keys: Vec<String> = desired.services.keys().map(ToString::to_string).collect();
    assert_eq!(
        keys,
        [
            "0.0.0.0:20001/tcp",
            "0.0.0.0:20002/udp",
            "0.0.0.0:20004/tcp",
            "10.99.0.1:80/tcp",
            "[::]:20002/udp",
            "[::]:20003/sctp",
            "[::]:20004/tcp",
        ]
    );
    let spec = |key: &str| &desired.services[&key.parse::<ServiceKey>().unwrap()].spec;
    let web = spec("10.99.0.1:80/tcp");
    let backend = |node: &str, port, weight| {
        let pod = SocketAddr::new("10.244.0.5".parse().unwrap(), port);
        BackendSpec::pod(node.parse().unwrap(), pod, weight)
    };
    assert_eq!(
        web.backends,
        [backend("10.0.0.1", 80, 1), backend("2001:db8::3", 8080, 2)]
    );
    assert_eq!(web.traffic_policy, TrafficPolicy::Local);
    assert_eq!(web.source_ranges, ["192.0.2.0/24".parse().unwrap()].into());
    assert!(web.affinity.is_some() && !web.node_port);
    let node_port = spec("0.0.0.0:20001/tcp");
    assert_eq!(
        node_port.affinity, web.affinity,
        "one seed for all addresses"
    );
    assert_eq!(
        (node_port.mode, node_port.node_port),
        (ForwardMode::Ipip, true)
    );
    assert_eq!(node_port.backends, web.backends);
    let dual = spec("[::]:20002/udp");
    assert_eq!(node_port.owner, web.owner);
    assert_ne!(dual.owner, web.owner);
    assert_eq!(
        dual.backends,
        [BackendSpec::nat("[2001:db8::7]:53".parse().unwrap(), 1)]
    );
    assert_eq!((dual.mode, dual.affinity), (ForwardMode::Nat, None));
}

#[test]
fn affinity_differs_between_services_and_seeds() {
    let text = GOOD.replace(
        "    port: 80",
        "    session_affinity: client-ip\n    port: 80",
    );
    let affinity = |text: &str| {
        let desired = parse(text).unwrap().desired;
        desired.services.values().next().unwrap().spec.affinity
    };
    let one = affinity(&text);
    assert!(one.is_some());
    assert_eq!(one, affinity(&text));
    assert_ne!(one, affinity(&text.replace("name: web", "name: wed")));
    assert_ne!(one, affinity(&format!("hash_seed: 5\n{text}")));
}

#[test]
fn pod_of_this_machine_needs_the_node_role() {
    let text = GOOD.replace(
        "- address: 10.0.0.1",
        "- {address: 10.244.0.1, node: 10.0.0.9}",
    );
    let text = format!("nodes: [{{address: 10.0.0.9}}]\n{text}");
    let lines = |text: &str| host_lines(text, &host_facts());
    assert_eq!(lines(&text), [""; 0]);
    let edge_only = format!("roles: [edge]\n{text}");
    assert_eq!(
        lines(&edge_only),
        [
            "2:19: nodes \"10.0.0.9\": this machine is the node of pods, and roles has no node; add node to roles, or leave roles out"
        ]
    );
}

#[test]
fn health_fields_that_a_service_leaves_out_come_from_the_defaults() {
    let config = parse(EVERY_FIELD).unwrap();
    assert!(!config.desired.node_health);
    let health: Vec<_> = config
        .desired
        .services
        .values()
        .map(|s| s.health.clone())
        .collect();
    let get = HttpGet {
        path: "/a?b".to_owned(),
        host: Some("x.org:8".to_owned()),
        status: vec![200..=200, 300..=399],
        body: Some("ok".to_owned()),
    };
    let expected = Check {
        kind: CheckKind::Http { tls: true, get },
        port: Some(81),
        interval: Duration::from_secs(60),
        timeout: Duration::from_millis(20),
        rise: 5,
        fall: 4,
    };
    assert_eq!(health, [Some(expected), None]);
}

#[test]
fn health_without_fields_is_a_tcp_check_and_none_is_none() {
    let health = |text: &str| {
        let config = parse(text).unwrap();
        let service = config.desired.services.values().next().unwrap();
        assert!(config.desired.node_health);
        service.health.clone()
    };
    assert_eq!(health(GOOD), None);
    let checked = GOOD.replace("    backends:\n", "    health: {}\n    backends:\n");
    assert_eq!(health(&checked), Some(Check::default()));
}

#[test]
fn shipped_examples_are_in_order() {
    let edge = parse(EDGE).unwrap();
    assert_eq!(edge.desired.services.len(), 3);
    assert_eq!(edge.desired.vips.len(), 2);
    let cluster = parse(CLUSTER).unwrap();
    assert_eq!(cluster.desired.services.len(), 4);
    assert_eq!(cluster.desired.nodes.len(), 2);
    let node = parse(NODE).unwrap();
    assert_eq!((node.desired.edge, node.desired.node), (false, Role::Yes));
    assert_eq!(node.desired.trusted_edges.len(), 3);
    let kubernetes = parse(KUBERNETES).unwrap().kubernetes.unwrap();
    assert_eq!(kubernetes.external_ips.len(), 1);
}

#[test]
fn every_field_of_the_kubernetes_section_is_taken_over() {
    let config = parse(EVERY_KUBERNETES_FIELD).unwrap();
    assert_eq!(config.desired.node, Role::Yes);
    let expected = Kubernetes {
        node_name: Some("worker-1.example".to_owned()),
        namespace: Some("lb".to_owned()),
        lease_namespace: Some("lb-leases".to_owned()),
        service: "edges".to_owned(),
        load_balancer_class: "example.org/lb".to_owned(),
        default_class: true,
        external_ips: ["192.0.2.0/24", "2001:db8::1/128"]
            .map(|net| net.parse().unwrap())
            .into(),
        honour_hints: false,
        health_check_node_port: HealthCheckNodePorts::On,
        healthz: Some(Listen::At(([0, 0, 0, 0], 10791).into())),
        room: TableEntries::DEFAULT,
        table_share: 10,
        namespace_table_share: Some(50),
        default_mode: ForwardMode::L2dsr,
        hash_seed: Some(9),
    };
    assert_eq!(config.kubernetes, Some(expected));
}

#[test]
fn kubernetes_section_has_defaults() {
    let config = parse_for("interfaces: [{name: eth0}]", Source::Kubernetes).unwrap();
    let expected = Kubernetes {
        node_name: None,
        namespace: None,
        lease_namespace: None,
        service: "guideway".to_owned(),
        load_balancer_class: "guideway.dev/guideway".to_owned(),
        default_class: false,
        external_ips: BTreeSet::new(),
        honour_hints: true,
        health_check_node_port: HealthCheckNodePorts::Auto,
        healthz: None,
        room: TableEntries::DEFAULT,
        table_share: 25,
        namespace_table_share: None,
        default_mode: ForwardMode::Ipip,
        hash_seed: None,
    };
    assert_eq!(config.kubernetes, Some(expected));
    assert_eq!(parse(GOOD).unwrap().kubernetes, None);
}

#[test]
fn what_the_api_says_is_refused_in_the_file() {
    let text = format!("{GOOD}nodes: []\ntrusted_edges: [10.0.0.1]\n");
    assert_eq!(
        lines(parse_for(&text, Source::Kubernetes)),
        [
            "3:7: vips: the Kubernetes API says this; remove it; addresses are those in the status of Services",
            "5:3: services: the Kubernetes API says this; remove it; services are those of the API",
            "12:8: nodes: the Kubernetes API says this; remove it; nodes are those on which the pods of kubernetes.service run",
            "13:16: trusted_edges: the Kubernetes API says this; remove it; give edges outside the cluster an EndpointSlice of kubernetes.service",
        ]
    );
}

#[test]
fn kubernetes_section_needs_the_flag() {
    assert_eq!(
        lines(parse_for(EVERY_KUBERNETES_FIELD, Source::File)),
        [
            "2:8: trusted_edges: missing; a node accepts IP-in-IP from listed edges only: list their outer source addresses",
            "6:3: kubernetes: this section is for services that come from the API; start the agent with `guideway run --kubernetes`, or remove it",
            "21:47: announce.node_selector: labels of Nodes are the API's; start the agent with `guideway run --kubernetes`, or remove it",
        ]
    );
}

#[test]
fn kubernetes_values_are_checked() {
    let text = "\
interfaces: [{name: eth0}]
kubernetes:
  node_name: Worker
  namespace: -x
  service: a/b
  load_balancer_class: a/b/c
  default_class: maybe
  external_ips: [192.0.2.1/24]
  topology_hints: off
  health_check_node_port: never
  healthz: localhost
  lease_namespace: a_b
";
    let name = "not the name of an object; use lower-case letters, digits, - and ., as `kubectl get` shows it";
    let expected = [
        format!("3:14: kubernetes.node_name \"Worker\": {name}"),
        format!("4:14: kubernetes.namespace \"-x\": {name}"),
        format!("5:12: kubernetes.service \"a/b\": {name}"),
        "6:24: kubernetes.load_balancer_class \"a/b/c\": not a load balancer class; write it as spec.loadBalancerClass has it, such as guideway.dev/guideway".to_owned(),
        "7:18: kubernetes.default_class \"maybe\": not a switch; use on or off".to_owned(),
        "8:18: kubernetes.external_ips[0] \"192.0.2.1/24\": the prefix has bits set beyond its length; did you mean 192.0.2.0/24 or 192.0.2.1?".to_owned(),
        "9:19: kubernetes.topology_hints \"off\": not a way to treat hints; use honour or ignore".to_owned(),
        "10:27: kubernetes.health_check_node_port \"never\": not a way to serve health check ports; use auto, on or off".to_owned(),
        "11:12: kubernetes.healthz \"localhost\": not an address and port; write it like 127.0.0.1:9750 or [::1]:9750, node:9750 for the addresses of a pod's node, or off".to_owned(),
        format!("12:20: kubernetes.lease_namespace \"a_b\": {name}"),
    ];
    assert_eq!(lines(parse(text)), expected);
}

/// One rule: what to change in [`GOOD`], and the only line that must come back.
struct Case {
    rule: &'static str,
    replace: &'static str,
    with: &'static str,
    problem: &'static str,
}

macro_rules! cases {
    ($($rule:literal: $replace:literal => $with:literal, $problem:literal;)*) => {
        &[$(Case { rule: $rule, replace: $replace, with: $with, problem: $problem },)*]
    };
}

/// Each replacement changes the first occurrence.
const CASES: &[Case] = cases! {
    "unknown field at the top": "vips:" => "vpis:",
        "3:1: vpis: unknown field; the fields here are interfaces, roles, datapath, nodes, hash_seed, sources, nat, default_mode, vips, node_port_addresses, node_port_range, clamp_mss, services, health, node_health, trusted_edges, kubernetes, announce, peers, mend, mend_limits, tables, api, metrics, pin_dir, node_config";
    "unknown field of an interface": "  - name: eth0" => "  - name: eth0\n    speed: 10",
        "3:5: speed: unknown field; the fields here are name, pattern, default_route, mode";
    "unknown field of a service": "    port: 80" => "    prot: 80",
        "7:5: prot: unknown field; the fields here are name, address, port, node_port, protocol, mode, table_size, traffic_policy, source_ranges, session_affinity, session_affinity_seconds, health, backends";
    "unknown field of a backend": "weight" => "wieght",
        "11:29: wieght: unknown field; the fields here are address, port, node, weight, drain";
    "unknown field of sources": "interfaces:" => "sources: {ipv5: 1}\ninterfaces:",
        "1:11: ipv5: unknown field; the fields here are ipv4, ipv6, ipv4_prefix, ipv6_prefix";
    "unknown field of tables": "interfaces:" => "tables: {lut: 1}\ninterfaces:",
        "1:10: lut: unknown field; the fields here are lut_arena_mib, services, backends, next_hops, vips, trusted_edges, pods, source_ranges, flows, nat_flows";
    "unknown field of api": "interfaces:" => "api: {sock: 1}\ninterfaces:",
        "1:7: sock: unknown field; the fields here are socket";
    "unknown field of metrics": "interfaces:" => "metrics: {port: 1}\ninterfaces:",
        "1:11: port: unknown field; the fields here are listen";
    "field given twice": "    port: 80" => "    port: 80\n    port: 81",
        "8:5: port: this field is given twice; keep one of the two";
    "list where a value belongs": "port: 80" => "port: [80]",
        "7:11: found \"[80]\" where a single value belongs; deploy/docs/configuration.md shows the form of every field";
    "value where a list belongs": "[10.99.0.1, '2001:db8::1']" => "10.99.0.1",
        "3:7: found \"10.99.0.1\" where a list belongs; deploy/docs/configuration.md shows the form of every field";
    "value where fields belong": "- address: 10.0.0.1" => "- 10.0.0.1",
        "10:9: found \"10.0.0.1\" where fields (name: value) belongs; deploy/docs/configuration.md shows the form of every field";

    "no interfaces": "interfaces:\n  - name: eth0\n" => "",
        "interfaces: missing; name the interfaces that service traffic enters by, such as `- name: eth0`";
    "empty interfaces": "interfaces:\n  - name: eth0" => "interfaces: []",
        "1:13: interfaces: missing; name the interfaces that service traffic enters by, such as `- name: eth0`";
    "interface without a name": "  - name: eth0" => "  - mode: native",
        "2:5: interfaces[0].name: missing; give the interface's name, such as eth0, or pattern, or default_route";
    "interface by two means": "  - name: eth0" => "  - name: eth0\n    pattern: eth*",
        "3:14: interfaces[0].pattern \"eth*\": name is given too; make two entries of them, or keep one";
    "pattern without a wildcard": "name: eth0" => "pattern: eth0",
        "2:14: interfaces[0].pattern \"eth0\": not a pattern of interface names; write it like enp*s0f?: * stands for any characters, ? for one; or use name";
    "pattern with a set": "name: eth0" => "pattern: 'eth*[01]'",
        "2:14: interfaces[0].pattern \"eth*[01]\": not a pattern of interface names; write it like enp*s0f?: * stands for any characters, ? for one; or use name";
    "pattern twice": "  - name: eth0" => "  - pattern: eth*\n  - pattern: eth*",
        "3:14: interfaces[1].pattern \"eth*\": this interface is already listed at 2:14; list each interface once";
    "default route switched off": "name: eth0" => "default_route: false",
        "2:20: interfaces[0].default_route \"false\": not true; use true, or leave it out";
    "interface name too long": "eth0" => "a2345678901234567",
        "2:11: interfaces[0].name \"a2345678901234567\": not an interface name; use 1 to 15 characters without spaces, slashes or colons, as `ip link` shows it";
    "interface name is a path": "eth0" => "../eth0",
        "2:11: interfaces[0].name \"../eth0\": not an interface name; use 1 to 15 characters without spaces, slashes or colons, as `ip link` shows it";
    "interface twice": "  - name: eth0" => "  - name: eth0\n  - name: eth0",
        "3:11: interfaces[1].name \"eth0\": this interface is already listed at 2:11; list each interface once";
    "attach mode": "  - name: eth0" => "  - name: eth0\n    mode: offload",
        "3:11: interfaces[0].mode \"offload\": not an attach mode; use native, native-or-generic or generic";

    "role unknown": "interfaces:" => "roles: [router]\ninterfaces:",
        "1:9: roles[0] \"router\": not a role; use edge (balances services), node (decapsulates), or both";
    "role twice": "interfaces:" => "roles: [edge, edge]\ninterfaces:",
        "1:15: roles[1] \"edge\": this role is given twice; keep one of the two";
    "no role": "interfaces:" => "roles: []\ninterfaces:",
        "1:8: roles: missing; use edge (balances services), node (decapsulates), or both";
    "node that trusts nobody": "interfaces:" => "roles: [edge, node]\ninterfaces:",
        "1:8: trusted_edges: missing; a node accepts IP-in-IP from listed edges only: list their outer source addresses";

    "hash seed is a word": "interfaces:" => "hash_seed: abc\ninterfaces:",
        "1:12: hash_seed: not a 64-bit number; use a number from 0 to 18446744073709551615 or 0x followed by up to 16 digits, the same on every edge";
    "hash seed of 65 bits": "interfaces:" => "hash_seed: 0x10000000000000000\ninterfaces:",
        "1:12: hash_seed: not a 64-bit number; use a number from 0 to 18446744073709551615 or 0x followed by up to 16 digits, the same on every edge";
    "hash seed negative": "interfaces:" => "hash_seed: -1\ninterfaces:",
        "1:12: hash_seed: not a 64-bit number; use a number from 0 to 18446744073709551615 or 0x followed by up to 16 digits, the same on every edge";

    "source of the other family": "interfaces:" => "sources: {ipv4: '2001:db8::2'}\ninterfaces:",
        "1:17: sources.ipv4 \"2001:db8::2\": an IPv6 address where IPv4 belongs; give an IPv4 address of this machine or leave the field out";
    "source of the other family, v6": "interfaces:" => "sources: {ipv6: 10.0.0.9}\ninterfaces:",
        "1:17: sources.ipv6 \"10.0.0.9\": an IPv4 address where IPv6 belongs; give an IPv6 address of this machine or leave the field out";
    "prefix of the other family": "interfaces:" => "sources: {ipv4_prefix: '2001:db8::/64'}\ninterfaces:",
        "1:24: sources.ipv4_prefix \"2001:db8::/64\": an IPv6 prefix where IPv4 belongs; give an IPv4 prefix or leave the field out";
    "prefix of one address": "interfaces:" => "sources: {ipv6_prefix: '2001:db8::9/128'}\ninterfaces:",
        "1:24: sources.ipv6_prefix \"2001:db8::9/128\": this prefix has one address for all flows; give a shorter prefix, such as a /24 or /112, or the address as the source";
    "prefix with bits beyond": "interfaces:" => "sources: {ipv4_prefix: 10.7.0.1/24}\ninterfaces:",
        "1:24: sources.ipv4_prefix \"10.7.0.1/24\": the prefix has bits set beyond its length; did you mean 10.7.0.0/24 or 10.7.0.1?";
    "prefix with a VIP": "interfaces:" => "sources: {ipv4_prefix: 10.99.0.0/24}\ninterfaces:",
        "4:8: vips[0] \"10.99.0.1\": this VIP is in 10.99.0.0/24, the prefix of outer sources; nodes would take packets for it to be an edge's: use another prefix";
    "source is a VIP": "interfaces:" => "sources: {ipv4: 10.99.0.1}\ninterfaces:",
        "4:8: vips[0] \"10.99.0.1\": this VIP is also an outer source address at 1:17; a VIP belongs to the edges together, a source to one machine: use another address for one of them";

    "unknown field of nat": "interfaces:" => "nat: {ipv5: 1}\ninterfaces:",
        "1:7: ipv5: unknown field; the fields here are ipv4, ipv6, ports";
    "NAT address of the other family": "interfaces:" => "nat: {ipv4: '2001:db8::2'}\ninterfaces:",
        "1:13: nat.ipv4 \"2001:db8::2\": an IPv6 address where IPv4 belongs; give an IPv4 address of this machine or leave the field out";
    "NAT address of the other family, v6": "interfaces:" => "nat: {ipv6: 10.0.0.9}\ninterfaces:",
        "1:13: nat.ipv6 \"10.0.0.9\": an IPv4 address where IPv6 belongs; give an IPv6 address of this machine or leave the field out";
    "NAT address is a VIP": "interfaces:" => "nat: {ipv6: '2001:db8::1'}\ninterfaces:",
        "4:19: vips[1] \"2001:db8::1\": this VIP is also the address of NAT mode at 1:13; clients send to a VIP, backends reply to an address of the machine: use another address for one of them";
    "NAT ports from zero": "interfaces:" => "nat: {ports: 0-9}\ninterfaces:",
        "1:14: nat.ports \"0-9\": not a range of ports; write it like 61001-65535";
    "NAT ports backwards": "interfaces:" => "nat: {ports: 50001-50000}\ninterfaces:",
        "1:14: nat.ports \"50001-50000\": not a range of ports; write it like 61001-65535";

    "mend is no switch": "interfaces:" => "mend: true\ninterfaces:",
        "1:7: mend \"true\": not a switch; use on or off";
    "mend without memory": "interfaces:" => "mend_limits: {memory_kib: 0}\ninterfaces:",
        "1:27: mend_limits.memory_kib \"0\": not a size; give a number from 4 to 1048576";
    "mend beyond memory": "interfaces:" => "mend_limits: {memory_kib: 1048577}\ninterfaces:",
        "1:27: mend_limits.memory_kib \"1048577\": not a size; give a number from 4 to 1048576";
    "mend's share of a source": "interfaces:" => "mend_limits: {memory_kib: 16, source_kib: 17}\ninterfaces:",
        "1:43: mend_limits.source_kib \"17\": more than mend_limits.memory_kib, which is for all sources; give less, or raise memory_kib";
    "mend waits for nothing": "interfaces:" => "mend_limits: {wait: 0ms}\ninterfaces:",
        "1:21: mend_limits.wait \"0ms\": not a time to wait; give one from 1ms to 30s";
    "mend waits too long": "interfaces:" => "mend_limits: {wait: 31s}\ninterfaces:",
        "1:21: mend_limits.wait \"31s\": not a time to wait; give one from 1ms to 30s";
    "mend waits for next hops too long": "interfaces:" => "mend_limits: {next_hop_wait: 31s}\ninterfaces:",
        "1:30: mend_limits.next_hop_wait \"31s\": not a time to wait; give one from 1ms to 30s";
    "mend holds nothing for next hops": "interfaces:" => "mend_limits: {next_hop_packets: 0}\ninterfaces:",
        "1:33: mend_limits.next_hop_packets \"0\": not a number of packets; give a number from 1 to 4096";

    "default mode": "interfaces:" => "default_mode: dsr\ninterfaces:",
        "1:15: default_mode \"dsr\": not a forwarding mode; use ipip, l2dsr or nat";

    "VIP is a name": "'2001:db8::1'" => "web.example",
        "3:19: vips[1] \"web.example\": not an IP address; write it like 192.0.2.1 or 2001:db8::1";
    "VIP with a prefix": "'2001:db8::1'" => "10.9.0.0/24",
        "3:19: vips[1] \"10.9.0.0/24\": not an IP address; give the address alone, without a prefix length";
    "VIP twice": "'2001:db8::1'" => "10.99.0.1",
        "3:19: vips[1] \"10.99.0.1\": this VIP is already listed at 3:8; list each VIP once";
    "VIP twice in two spellings": "'2001:db8::1'" => "'2001:db8::1', '2001:DB8:0:0::1'",
        "3:34: vips[2] \"2001:DB8:0:0::1\": this VIP is already listed at 3:19; list each VIP once";
    "VIP unspecified": "'2001:db8::1'" => "0.0.0.0",
        "3:19: vips[1] \"0.0.0.0\": the unspecified address names no machine; give a unicast address";
    "VIP in 0.0.0.0/8": "'2001:db8::1'" => "0.1.2.3",
        "3:19: vips[1] \"0.1.2.3\": 0.0.0.0/8 names no machine; give a unicast address";
    "VIP loopback": "'2001:db8::1'" => "127.0.0.5",
        "3:19: vips[1] \"127.0.0.5\": a loopback address never leaves the machine; give a unicast address";
    "VIP loopback, v6": "'2001:db8::1'" => "'::1'",
        "3:19: vips[1] \"::1\": a loopback address never leaves the machine; give a unicast address";
    "VIP multicast": "'2001:db8::1'" => "224.0.0.1",
        "3:19: vips[1] \"224.0.0.1\": a multicast address is not balanced; give a unicast address";
    "VIP multicast, v6": "'2001:db8::1'" => "'ff02::1'",
        "3:19: vips[1] \"ff02::1\": a multicast address is not balanced; give a unicast address";
    "VIP broadcast": "'2001:db8::1'" => "255.255.255.255",
        "3:19: vips[1] \"255.255.255.255\": the broadcast address names no machine; give a unicast address";
    "VIP link-local": "'2001:db8::1'" => "'fe80::1'",
        "3:19: vips[1] \"fe80::1\": a link-local address is not routed; give a unicast address";
    "VIP IPv4-mapped": "'2001:db8::1'" => "'::ffff:10.0.0.1'",
        "3:19: vips[1] \"::ffff:10.0.0.1\": an IPv4-mapped IPv6 address never stands in a packet; write it as 10.0.0.1";

    "service without a name": "name: web\n    address: 10.99.0.1" => "address: 10.99.0.1",
        "5:5: services[0].name: missing; give the service a name";
    "service name with spaces": "name: web" => "name: my web",
        "5:11: services[0].name \"my web\": not a service name; use 1 to 253 letters, digits, '-', '_', '.' or '/'";
    "service without an address": "    address: 10.99.0.1\n" => "",
        "5:5: services[0].address: missing; give one of the addresses under vips, or a node_port";
    "service address is no VIP": "    address: 10.99.0.1" => "    address: 10.99.0.2",
        "6:14: services[0].address \"10.99.0.2\": this address is not among vips; add 10.99.0.2 to vips or use one of them";
    "service address is no address": "    address: 10.99.0.1" => "    address: 10.99.0",
        "6:14: services[0].address \"10.99.0\": not an IP address; write it like 192.0.2.1 or 2001:db8::1";
    "service without a port": "    port: 80\n" => "",
        "5:5: services[0].port: missing; give a port from 1 to 65535";
    "port left empty": "port: 80" => "port:",
        "5:5: services[0].port: missing; give a port from 1 to 65535";
    "port 0": "port: 80" => "port: 0",
        "7:11: services[0].port \"0\": port 0 is reserved; give a port from 1 to 65535";
    "port 65536": "port: 80" => "port: 65536",
        "7:11: services[0].port \"65536\": not a port; give a port from 1 to 65535";
    "port negative": "port: 80" => "port: -80",
        "7:11: services[0].port \"-80\": not a port; give a port from 1 to 65535";
    "port with a sign": "port: 80" => "port: +80",
        "7:11: services[0].port \"+80\": not a port; give a port from 1 to 65535";
    "port is a word": "port: 80" => "port: http",
        "7:11: services[0].port \"http\": not a port; give a port from 1 to 65535";
    "service without a protocol": "    protocol: tcp\n" => "",
        "5:5: services[0].protocol: missing; use tcp, udp or sctp";
    "protocol": "tcp" => "icmp",
        "8:15: services[0].protocol \"icmp\": not a protocol that is balanced; use tcp, udp or sctp";
    "mode": "    port: 80" => "    port: 80\n    mode: dsr",
        "8:11: services[0].mode \"dsr\": not a forwarding mode; use ipip, l2dsr or nat";
    "unknown field of health": "    port: 80" => "    port: 80\n    health: {url: x}",
        "8:14: url: unknown field; the fields here are type, port, path, host, status, body, interval, timeout, rise, fall";
    "type of check": "    port: 80" => "    port: 80\n    health: {type: ping}",
        "8:20: services[0].health.type \"ping\": not a type of check; use tcp, http or https";
    "port of a check": "    port: 80" => "    port: 80\n    health: {port: 0}",
        "8:20: services[0].health.port \"0\": not a port; use a number from 1 to 65535";
    "path of a check": "    port: 80" => "    port: 80\n    health: {type: http, path: healthz}",
        "8:32: services[0].health.path \"healthz\": not a path; begin it with / and write it as in a URL, such as /healthz?full=1";
    "host of a check": "    port: 80" => "    port: 80\n    health: {type: http, host: a b}",
        "8:32: services[0].health.host \"a b\": not a host; write it as in a URL, such as www.example.com or www.example.com:8080";
    "status of a check": "    port: 80" => "    port: 80\n    health: {type: http, status: [200-99]}",
        "8:35: services[0].health.status[0] \"200-99\": not a status or a range of them; list statuses from 100 to 599 and ranges of them, such as [200-299, 404]";
    "no status": "    port: 80" => "    port: 80\n    health: {type: http, status: []}",
        "8:34: services[0].health.status: missing; list statuses from 100 to 599 and ranges of them, such as [200-299, 404]";
    "empty body": "    port: 80" => "    port: 80\n    health: {type: http, body: ''}",
        "8:32: services[0].health.body: nothing to look for, or too much; give 1 to 1024 bytes that the body must have";
    "path without a request": "    port: 80" => "    port: 80\n    health: {path: /x}",
        "8:20: services[0].health.path \"/x\": a tcp check has no request; add type: http or https, or leave it out";
    "status without an answer": "    port: 80" => "    port: 80\n    health: {status: [200]}",
        "8:23: services[0].health.status \"200\": a tcp check has no answer; add type: http or https, or leave it out";
    "interval without a unit": "    port: 80" => "    port: 80\n    health: {interval: 5}",
        "8:24: services[0].health.interval \"5\": not a time span that fits here; use 100ms to 3600s, written like 5s, 500ms or 1m";
    "timeout too long": "    port: 80" => "    port: 80\n    health: {timeout: 61s}",
        "8:23: services[0].health.timeout \"61s\": not a time span that fits here; use 10ms to 60s, written like 5s, 500ms or 1m";
    "rise of a check": "    port: 80" => "    port: 80\n    health: {rise: 0}",
        "8:20: services[0].health.rise \"0\": not a number of checks; use a number from 1 to 100";
    "udp service without a port for its check": "    protocol: tcp" => "    protocol: udp\n    health: {}",
        "9:13: services[0].health.port: missing; checks speak TCP and the service 10.99.0.1:80/udp does not: name a TCP port of the backend";
    "default of the checks": "services:\n" => "health: {fall: x}\nservices:\n",
        "4:16: health.fall \"x\": not a number of checks; use a number from 1 to 100";
    "switch of the node checks": "services:\n" => "node_health: yes\nservices:\n",
        "4:14: node_health \"yes\": not a switch; use on or off";
    "table size": "    port: 80" => "    port: 80\n    table_size: 65537",
        "8:17: services[0].table_size \"65537\": not a table size; use one of 1, 256, 2048, 16384, 131072, 1048576, or leave the field out to have it chosen";
    "more backends than slots": "    port: 80" => "    port: 80\n    table_size: 1",
        "8:17: services[0].table_size \"1\": 2 backends need a slot each and the table has 1; leave table_size out, choose a larger one, or split the service";
    "weight too small for a slot": "weight: 3}" => "weight: 65535}",
        "5:5: services[0].backends \"10.0.0.1\": weight 1 of a total of 65536 is too small for one of 256 slots; raise it, lower the others, or choose a larger table_size";
    "service name twice": "services:\n" => "services:\n  - {name: web, address: 10.99.0.1, port: 1, protocol: tcp, backends: []}\n",
        "6:11: services[1].name \"web\": a service of this name already stands at 5:12; give every service its own name";
    "service twice": "services:\n" => "services:\n  - {name: a, address: 10.99.0.1, port: 80, protocol: tcp, backends: []}\n",
        "6:5: services[1] \"10.99.0.1:80/tcp\": a service with this address, port and protocol already stands at 5:5; merge the two or change one of them";

    "service without backends": "services:\n" => "services:\n  - {name: a, address: 10.99.0.1, port: 1, protocol: tcp}\n",
        "5:5: services[0].backends: missing; list the pods, nodes or NAT backends that serve it; an empty list [] rejects its traffic";
    "backend without an address": "{address: 10.0.0.2, weight: 3}" => "{weight: 3}",
        "11:9: services[0].backends[1].address: missing; give the address of the pod, or of the node that has the VIP on lo";
    "backend is no address": "10.0.0.2" => "node-2",
        "11:19: services[0].backends[1].address \"node-2\": not an IP address; write it like 192.0.2.1 or 2001:db8::1";
    "backend multicast": "10.0.0.2" => "239.1.1.1",
        "11:19: services[0].backends[1].address \"239.1.1.1\": a multicast address is not balanced; give a unicast address";
    "backend twice": "10.0.0.2" => "10.0.0.1",
        "11:19: services[0].backends[1].address \"10.0.0.1\": this service already has this backend at 10:18; list each backend once and use weight for a larger share";
    "backend is a VIP": "10.0.0.2" => "10.99.0.1",
        "11:19: services[0].backends[1].address \"10.99.0.1\": this address is the VIP at 3:8; a backend is a node's own address; the VIP goes on the node's lo";
    "l2dsr backend of the other family": "    port: 80\n    protocol: tcp\n    backends:\n" => "    port: 80\n    protocol: tcp\n    mode: l2dsr\n    backends:\n      - address: '2001:db8::5'\n",
        "11:18: services[0].backends[0].address \"2001:db8::5\": an IPv6 backend cannot serve the IPv4 VIP 10.99.0.1 by l2dsr, which keeps the packet; give the node's IPv4 address or set mode: ipip";
    "nodes without an address": "services:\n" => "nodes: [{guideway: true}]\nservices:\n",
        "4:9: nodes[0].address: missing; give the address by which edges reach the node";
    "node that may run Guideway": "services:\n" => "nodes: [{address: 10.0.0.5, guideway: maybe}]\nservices:\n",
        "4:39: nodes[0].guideway \"maybe\": not a truth value; use true or false";
    "node twice": "services:\n" => "nodes: [{address: 10.0.0.5}, {address: 10.0.0.5}]\nservices:\n",
        "4:40: nodes[1].address \"10.0.0.5\": this node is already listed at 4:19; list each node once";
    "node is a VIP": "services:\n" => "nodes: [{address: 10.99.0.1}]\nservices:\n",
        "4:19: nodes[0].address \"10.99.0.1\": this address is the VIP at 3:8; give the node's own address, which no other machine has";
    "pod of an unlisted node": "- address: 10.0.0.1" => "- {address: 10.0.0.1, node: 10.0.0.5}",
        "10:35: services[0].backends[0].node \"10.0.0.5\": this address is not among nodes; add 10.0.0.5 to nodes or use one of them";
    "pod of a node without Guideway": "services:\n" => "nodes: [{address: 10.0.0.5, guideway: false}]\nservices:\n  - {name: a, address: 10.99.0.1, port: 1, protocol: tcp, backends: [{address: 10.244.0.1, node: 10.0.0.5}]}\n",
        "6:98: services[0].backends[0].node \"10.0.0.5\": the node at 4:19 does not run Guideway, which hands packets to pods; set mode: nat and leave node out";
    "pod of the other family": "services:\n" => "nodes: [{address: 10.0.0.5}]\nservices:\n  - {name: a, address: 10.99.0.1, port: 1, protocol: tcp, backends: [{address: '2001:db8::5', node: 10.0.0.5}]}\n",
        "6:80: services[0].backends[0].address \"2001:db8::5\": an IPv6 backend cannot serve the IPv4 VIP 10.99.0.1: addresses are translated within a family; give its IPv4 address";
    "node of a nat backend": "services:\n" => "services:\n  - {name: a, address: 10.99.0.1, port: 1, protocol: tcp, mode: nat, backends: [{address: 10.0.0.7, node: 10.0.0.5}]}\n",
        "5:107: services[0].backends[0].node \"10.0.0.5\": nat sends to the backend's own address; leave node out, or use mode ipip or l2dsr";
    "port of a backend that has the VIP": "weight: 3" => "port: 8080",
        "11:35: services[0].backends[1].port \"8080\": a backend that has the VIP on lo takes packets as they are, on the service's port; give the node that the backend is a pod of, or set mode: nat";
    "port of a backend": "weight: 3" => "port: 0",
        "11:35: services[0].backends[1].port \"0\": port 0 is reserved; give a port from 1 to 65535";
    "NodePort without pods": "services:\n" => "services:\n  - {name: a, node_port: 30080, protocol: tcp, backends: [{address: 10.0.0.7}]}\n",
        "5:69: services[0].backends[0].address \"10.0.0.7\": no other machine can take packets to a NodePort as they are; give the node that the backend is a pod of, or set mode: nat";
    "NodePort out of range": "    port: 80" => "    mode: nat\n    node_port: 80\n    port: 80",
        "8:16: services[0].node_port \"80\": outside the range of NodePorts; use a port from 30000 to 32767, or widen node_port_range";
    "NodePort is a word": "    port: 80" => "    mode: nat\n    node_port: any\n    port: 80",
        "8:16: services[0].node_port \"any\": not a port; use a port from 30000 to 32767";
    "range of NodePorts": "services:\n" => "node_port_range: 32767-30000\nservices:\n",
        "4:18: node_port_range \"32767-30000\": not a range of ports; write it like 30000-32767";
    "NodePort twice": "services:\n" => "services:\n  - {name: a, node_port: 30080, protocol: tcp, backends: []}\n  - {name: b, address: 10.99.0.1, port: 1, node_port: 30080, protocol: tcp, backends: []}\n",
        "6:5: services[1] \"30080/tcp\": a service with this NodePort and protocol already stands at 5:5; merge the two or change one of them";
    "backend of a NodePort without a port": "services:\n" => "services:\n  - {name: a, node_port: 30080, protocol: tcp, mode: nat, backends: [{address: 10.0.0.7}]}\n",
        "5:70: services[0].backends[0].port: missing; give the port that the backend listens on";
    "NodePorts on loopback": "services:\n" => "node_port_addresses: [localhost]\nservices:\n",
        "4:23: node_port_addresses[0] \"localhost\": no packet enters the machine by its loopback addresses; use primary, all, or networks of the machine's addresses";
    "NodePort addresses left empty": "services:\n" => "node_port_addresses: []\nservices:\n",
        "4:22: node_port_addresses: missing; use primary, all, or networks of the machine's addresses";
    "keyword beside a network": "services:\n" => "node_port_addresses: [primary, 10.0.0.0/8]\nservices:\n",
        "4:23: node_port_addresses \"primary\": a keyword stands for all addresses that it means and takes none beside it; use primary or all alone, or networks only";
    "NodePort network twice": "services:\n" => "node_port_addresses: [10.0.0.0/8, 10.0.0.0/8]\nservices:\n",
        "4:35: node_port_addresses[1] \"10.0.0.0/8\": this network is already listed at 4:23; list each network once";
    "interfaces to announce on": "services:\n" => "announce: {}\nservices:\n",
        "4:11: announce.interfaces: missing; name the interfaces whose neighbours should learn the virtual addresses, such as [eth0]";
    "name of an interface to announce on": "services:\n" => "announce: {interfaces: [eth/0]}\nservices:\n",
        "4:25: announce.interfaces[0] \"eth/0\": not an interface name; use 1 to 15 characters without spaces, slashes or colons, as `ip link` shows it";
    "interface to announce on given twice": "services:\n" => "announce: {interfaces: [eth0, eth0]}\nservices:\n",
        "4:31: announce.interfaces[1] \"eth0\": this interface is given twice; keep one of the two";
    "switch of MSS clamping": "services:\n" => "clamp_mss: yes\nservices:\n",
        "4:12: clamp_mss \"yes\": not a switch; use on or off";
    "sctp with another target port": "    protocol: tcp\n    backends:\n" => "    protocol: sctp\n    mode: nat\n    backends:\n      - {address: 10.0.0.7, port: 81}\n",
        "11:35: services[0].backends[0].port \"81\": SCTP's ports are never translated and the service's is 80; use one port for the service, its node_port and its backends";
    "traffic policy": "    port: 80" => "    traffic_policy: Local\n    port: 80",
        "7:21: services[0].traffic_policy \"Local\": not a traffic policy; use cluster or local";
    "local policy by nat": "    port: 80" => "    traffic_policy: local\n    mode: nat\n    port: 80",
        "7:21: services[0].traffic_policy \"local\": nat has no pods of this machine; use traffic_policy: cluster, or mode ipip or l2dsr";
    "local policy without pods": "      - {address: 10.0.0.2, weight: 3}\n" => "    traffic_policy: local\n",
        "10:18: services[0].backends[0].address \"10.0.0.1\": with traffic_policy: local every backend is a pod; give the node that the backend is a pod of, or use traffic_policy: cluster";
    "seconds without affinity": "    port: 80" => "    session_affinity_seconds: 60\n    port: 80",
        "7:31: services[0].session_affinity_seconds \"60\": of a service without affinity; write session_affinity: client-ip, or leave the field out";
    "seconds of affinity": "    port: 80" => "    session_affinity: client-ip\n    session_affinity_seconds: 0\n    port: 80",
        "8:31: services[0].session_affinity_seconds \"0\": not a number of seconds; use 1 to 86400, or leave the field out for 10800";
    "session affinity": "    port: 80" => "    session_affinity: ClientIP\n    port: 80",
        "7:23: services[0].session_affinity \"ClientIP\": not a session affinity; use none or client-ip";
    "source range": "    port: 80" => "    source_ranges: [office]\n    port: 80",
        "7:21: services[0].source_ranges[0] \"office\": not an address or prefix; write it like 192.0.2.0/24 or 2001:db8::/64";
    "source range with host bits": "    port: 80" => "    source_ranges: [192.0.2.1/24]\n    port: 80",
        "7:21: services[0].source_ranges[0] \"192.0.2.1/24\": the prefix has bits set beyond its length; did you mean 192.0.2.0/24 or 192.0.2.1?";
    "source range of the other family": "    port: 80" => "    source_ranges: ['2001:db8::/32']\n    port: 80",
        "7:21: services[0].source_ranges[0] \"2001:db8::/32\": no client of the other family reaches 10.99.0.1; list networks of the address's own family";
    "source range twice": "    port: 80" => "    source_ranges: [192.0.2.1, 192.0.2.1/32]\n    port: 80",
        "7:32: services[0].source_ranges[1] \"192.0.2.1/32\": this range is already listed at 7:21; list each range once";
    "weight 0": "weight: 3" => "weight: 0",
        "11:37: services[0].backends[1].weight \"0\": weight 0 gives the backend no slot; use a weight from 1 to 65535; to stop its traffic, set drain: true or remove the backend";
    "drain by another word": "weight: 3" => "drain: on",
        "11:36: services[0].backends[1].drain \"on\": neither true nor false; use true or false";
    "weight of a backend that drains": "weight: 3" => "drain: true, weight: 0",
        "11:50: services[0].backends[1].weight \"0\": weight 0 gives the backend no slot; use a weight from 1 to 65535; to stop its traffic, set drain: true or remove the backend";
    "last backend drains": "      - address: 10.0.0.1\n      - {address: 10.0.0.2, weight: 3}" => "      - {address: 10.0.0.2, drain: true}",
        "5:5: services[0].backends: all backends drain, so nobody takes new connections; leave one without drain; to reject new connections, list no backends: []";
    "weight 65536": "weight: 3" => "weight: 65536",
        "11:37: services[0].backends[1].weight \"65536\": the weight is too large; use a weight from 1 to 65535";
    "weight of 40 digits": "weight: 3" => "weight: 1234567890123456789012345678901234567890",
        "11:37: services[0].backends[1].weight \"1234567890123456789012345678901234567890\": not a weight; use a weight from 1 to 65535";
    "weight negative": "weight: 3" => "weight: -1",
        "11:37: services[0].backends[1].weight \"-1\": not a weight; use a weight from 1 to 65535";
    "weight with a fraction": "weight: 3" => "weight: 1.5",
        "11:37: services[0].backends[1].weight \"1.5\": not a weight; use a weight from 1 to 65535";

    "edge is no prefix": "interfaces:" => "trusted_edges: [edge-1]\ninterfaces:",
        "1:17: trusted_edges[0] \"edge-1\": not an address or prefix; write it like 192.0.2.0/24 or 2001:db8::/64";
    "edge prefix too long": "interfaces:" => "trusted_edges: [10.0.0.0/33]\ninterfaces:",
        "1:17: trusted_edges[0] \"10.0.0.0/33\": not an address or prefix; write it like 192.0.2.0/24 or 2001:db8::/64";
    "edge prefix with host bits": "interfaces:" => "trusted_edges: [10.0.0.1/24]\ninterfaces:",
        "1:17: trusted_edges[0] \"10.0.0.1/24\": the prefix has bits set beyond its length; did you mean 10.0.0.0/24 or 10.0.0.1?";
    "edge is everyone": "interfaces:" => "trusted_edges: [0.0.0.0/0]\ninterfaces:",
        "1:17: trusted_edges[0] \"0.0.0.0/0\": this prefix trusts every sender, who could then forge any source; list the outer source addresses of the edges";
    "edge is multicast": "interfaces:" => "trusted_edges: ['ff00::/8']\ninterfaces:",
        "1:17: trusted_edges[0] \"ff00::/8\": a multicast address is not balanced; list the outer source addresses of the edges";
    "edge twice": "interfaces:" => "trusted_edges: [10.0.0.1, 10.0.0.1/32]\ninterfaces:",
        "1:27: trusted_edges[1] \"10.0.0.1/32\": this prefix is already listed at 1:17; list each prefix once";

    "arena of nothing": "interfaces:" => "tables: {lut_arena_mib: 0}\ninterfaces:",
        "1:25: tables.lut_arena_mib \"0\": not a table size; give a number from 1 to 1024";
    "arena beyond the slot word": "interfaces:" => "tables: {lut_arena_mib: 1025}\ninterfaces:",
        "1:25: tables.lut_arena_mib \"1025\": not a table size; give a number from 1 to 1024";
    "tables do not fit the arena": "services:\n" => "tables: {lut_arena_mib: 1}\nservices:\n  - {name: a, address: 10.99.0.1, port: 1, protocol: tcp, table_size: 131072, backends: [{address: 10.0.0.1}]}\n  - {name: b, address: 10.99.0.1, port: 2, protocol: tcp, table_size: 131072, backends: [{address: 10.0.0.1}]}\n",
        "6:3: tables.lut_arena_mib \"1\": the lookup tables need 262401 slots, the arena has 262144; raise tables.lut_arena_mib to 2 or more, or ask for smaller tables";
    "backends count for each service": "services:\n" => "tables: {backends: 2}\nservices:\n  - {name: a, address: 10.99.0.1, port: 1, protocol: tcp, backends: [{address: 10.0.0.1}]}\n",
        "6:3: tables.backends \"2\": 3 entries do not fit a table with room for 2; raise tables.backends";
    "backends do not fit": "interfaces:" => "tables: {backends: 1}\ninterfaces:",
        "6:3: tables.backends \"1\": 2 entries do not fit a table with room for 1; raise tables.backends";
    "VIPs do not fit": "interfaces:" => "tables: {vips: 1}\ninterfaces:",
        "4:7: tables.vips \"1\": 2 entries do not fit a table with room for 1; raise tables.vips";
    "socket relative": "interfaces:" => "api: {socket: run/x.sock}\ninterfaces:",
        "1:15: api.socket \"run/x.sock\": not an absolute path; begin it with / and name a file or directory";
    "metrics without a port": "interfaces:" => "metrics: {listen: 127.0.0.1}\ninterfaces:",
        "1:19: metrics.listen \"127.0.0.1\": not an address and port; write it like 127.0.0.1:9750 or [::1]:9750, node:9750 for the addresses of a pod's node, or off";
    "metrics port 0": "interfaces:" => "metrics: {listen: '127.0.0.1:0'}\ninterfaces:",
        "1:19: metrics.listen \"127.0.0.1:0\": not an address and port; write it like 127.0.0.1:9750 or [::1]:9750, node:9750 for the addresses of a pod's node, or off";
    "unknown field of peers": "interfaces:" => "peers: {key: 1}\ninterfaces:",
        "1:9: key: unknown field; the fields here are listen, addresses, key_file";
    "peers without a key": "interfaces:" => "peers: {listen: '10.0.0.1:9754', addresses: ['10.0.0.2:9754']}\ninterfaces:",
        "1:8: peers.key_file: missing; make a file with 32 random bytes or more, the same for all edges, such as by `openssl rand -base64 48`, and name it here";
    "key of peers by a relative path": "interfaces:" => "peers: {listen: '10.0.0.1:9754', addresses: ['10.0.0.2:9754'], key_file: key}\ninterfaces:",
        "1:74: peers.key_file \"key\": not an absolute path; begin it with / and name a file or directory";
    "peers without listen": "interfaces:" => "peers: {addresses: ['10.0.0.2:9754'], key_file: /k}\ninterfaces:",
        "1:8: peers.listen: missing; give an address and port of this machine that other edges reach";
    "peers without a port to listen at": "interfaces:" => "peers: {listen: 10.0.0.1, addresses: ['10.0.0.2:9754'], key_file: /k}\ninterfaces:",
        "1:17: peers.listen \"10.0.0.1\": not an address and port; write it like 127.0.0.1:9750 or [::1]:9750, node:9750 for the addresses of a pod's node, or off";
    "peers without addresses": "interfaces:" => "peers: {listen: '10.0.0.1:9754', addresses: [], key_file: /k}\ninterfaces:",
        "1:45: peers.addresses: missing; list address and port of every edge; this one's may be among them";
    "peer without a port": "interfaces:" => "peers: {listen: off, addresses: [10.0.0.2], key_file: /k}\ninterfaces:",
        "1:34: peers.addresses[0] \"10.0.0.2\": not an address and port; write it like 192.0.2.1:9754 or [2001:db8::1]:9754";
    "peer at a loopback address": "interfaces:" => "peers: {listen: off, addresses: ['127.0.0.1:9754'], key_file: /k}\ninterfaces:",
        "1:34: peers.addresses[0] \"127.0.0.1:9754\": a loopback address never leaves the machine; give an address of the edge that other edges reach";
    "peer twice": "interfaces:" => "peers: {listen: off, addresses: ['10.0.0.2:9', '10.0.0.2:9'], key_file: /k}\ninterfaces:",
        "1:48: peers.addresses[1] \"10.0.0.2:9\": this edge is already listed at 1:34; list each edge once";
    "pin directory relative": "interfaces:" => "pin_dir: bpf\ninterfaces:",
        "1:10: pin_dir \"bpf\": not an absolute path; begin it with / and name a file or directory";
};

#[test]
fn each_broken_rule_is_named_with_place_value_and_remedy() {
    let mut wrong = Vec::new();
    for case in CASES {
        assert!(
            GOOD.contains(case.replace),
            "{}: nothing to replace",
            case.rule
        );
        let text = GOOD.replacen(case.replace, case.with, 1);
        let found = match parse(&text) {
            Ok(_) => vec!["accepted".to_owned()],
            Err(problems) => problems.iter().map(line).collect(),
        };
        if found != [case.problem] {
            wrong.push(format!(
                "{}:\n  want {:?}\n  got  {found:?}",
                case.rule, case.problem
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn all_broken_rules_are_reported_in_the_order_of_the_file() {
    let text = GOOD
        .replace("eth0", "eth0/1")
        .replace("port: 80", "port: 0")
        .replace("weight: 3", "weight: 0")
        .replace("protocol: tcp", "protocol: icmp");
    let problems = parse(&text).unwrap_err();
    let fields: Vec<&str> = problems
        .iter()
        .map(|problem| problem.field.as_str())
        .collect();
    assert_eq!(
        fields,
        [
            "interfaces[0].name",
            "services[0].port",
            "services[0].protocol",
            "services[0].backends[1].weight",
        ]
    );
}

#[test]
fn syntax_errors_have_a_position() {
    for text in [
        "vips: [a\nb: 5",
        "vips: *x\n",
        "a:\n\t- b\n",
        "{",
        "vips: 'a\n",
        "- a\n",
        "5",
    ] {
        let problems = parse(text).unwrap_err();
        assert_eq!(problems.len(), 1, "{text:?}: {problems:?}");
        assert!(problems[0].position.is_some(), "{text:?}: {problems:?}");
    }
}

#[test]
fn aliases_cannot_blow_a_file_up() {
    let mut text = "vips: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        let items = vec![below; 10].join(", ");
        text.push_str(&format!("l{level}: &a{level} [{items}]\n"));
    }
    assert!(parse(&text).is_err());
    assert!(parse(&"[".repeat(100_000)).is_err());
    assert!(parse(&format!("vips: [{}]", "10.0.0.1, ".repeat(100_000))).is_err());
}

#[test]
fn bytes_that_are_not_text_are_refused() {
    let problems = parse_bytes(b"vips: []\npin_dir: \xff\n", Source::AsWritten).unwrap_err();
    assert_eq!(
        line(&problems[0]),
        "line 2 is not UTF-8; save the file as UTF-8 text"
    );
}

#[test]
fn long_values_are_shortened_in_messages() {
    let text = GOOD.replace("port: 80", &format!("port: {}", "9".repeat(10_000)));
    let problems = parse(&text).unwrap_err();
    assert!(line(&problems[0]).len() < 300, "{}", problems[0]);
}

#[test]
fn missing_file_is_named() {
    let error = load(Path::new("/nonexistent/edge.yaml"), Source::File).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the configuration /nonexistent/edge.yaml"
    );
}

#[test]
fn listing_names_file_line_and_column() {
    let error = ConfigError::Invalid {
        path: "edge.yaml".into(),
        problems: parse(&GOOD.replace("port: 80", "port: 0")).unwrap_err(),
    };
    assert_eq!(
        error.to_string(),
        "edge.yaml:7:11: services[0].port \"0\": port 0 is reserved; give a port from 1 to 65535"
    );
}

#[test]
fn order_in_the_file_does_not_change_the_state() {
    let swapped = GOOD
        .replace("      - address: 10.0.0.1\n", "")
        .replace("weight: 3}\n", "weight: 3}\n      - address: 10.0.0.1\n");
    assert_eq!(
        parse(&swapped).unwrap().desired,
        parse(GOOD).unwrap().desired
    );
}

fn host_facts() -> HostFacts {
    HostFacts {
        mtus: [("lo", 65_536), ("eth0", 1_500)]
            .map(|(name, mtu)| (name.to_owned(), mtu))
            .into(),
        addresses: [
            ("127.0.0.1", "lo"),
            ("10.0.0.9", "eth0"),
            ("10.99.0.1", "lo"),
        ]
        .map(|(address, name)| (address.parse().unwrap(), name.to_owned()))
        .into(),
        ..HostFacts::default()
    }
}

fn host_lines(text: &str, facts: &HostFacts) -> Vec<String> {
    host::problems(&parse(text).unwrap(), facts)
        .iter()
        .map(line)
        .collect()
}

#[test]
fn nodeport_among_the_nat_ports_is_refused_where_a_service_goes_by_nat() {
    let lines = |text: &str| match parse(text) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(line).collect(),
    };
    let text = GOOD.replace(
        "    port: 80",
        "    mode: nat\n    node_port: 61001\n    port: 80",
    );
    let wide = format!("node_port_range: 61001-61009\n{text}");
    assert_eq!(
        lines(&wide),
        [
            "9:16: services[0].node_port \"61001\": NAT mode sends from this port, one of 61001-65535; use another NodePort, or another range for nat.ports"
        ]
    );
    let elsewhere = format!("nat: {{ports: 61002-61009}}\n{wide}");
    assert_eq!(lines(&elsewhere), [""; 0]);
    let there = format!("nat: {{ports: 61000-61001}}\n{wide}");
    assert_eq!(
        lines(&there),
        [
            "10:16: services[0].node_port \"61001\": NAT mode sends from this port, by nat.ports at 1:14; use another NodePort, or another range for nat.ports"
        ]
    );
}

#[test]
fn nat_mode_sends_from_an_address_of_this_machine() {
    let lines = |text: &str| host_lines(text, &host_facts());
    let by_nat = GOOD.replace("    port: 80", "    mode: nat\n    port: 80");
    assert_eq!(lines(&by_nat), [""; 0]);
    assert_eq!(
        lines(&format!("nat: {{ipv4: 10.0.0.8}}\n{by_nat}")),
        [
            "1:13: nat.ipv4 \"10.0.0.8\": no interface of this machine has this address; give an address of this machine, or leave it out for the route's own source"
        ]
    );
    let v6 = by_nat
        .replace("    address: 10.99.0.1", "    address: '2001:db8::1'")
        .replace("address: 10.0.0.1", "address: '2001:db8::7'")
        .replace("address: 10.0.0.2", "address: '2001:db8::8'");
    let missing = "nat.ipv6: service web has IPv6 backends by nat, and this machine has no IPv6 address to send from; give an interface an IPv6 address that is no VIP";
    assert_eq!(lines(&v6), [missing]);
    let mut facts = host_facts();
    let mut own = |address: &str, name: &str| {
        let address = address.parse().unwrap();
        facts.addresses.insert(address, name.to_owned());
        host_lines(&v6, &facts)
    };
    assert_eq!(own("fe80::9", "eth0"), [missing], "link-local");
    assert_eq!(own("2001:db8::1", "lo"), [missing], "the VIP");
    assert_eq!(own("2001:db8::9", "eth0"), [""; 0]);
}

#[test]
fn vip_on_lo_is_in_order_and_on_a_real_interface_is_not() {
    let mut facts = host_facts();
    assert_eq!(host_lines(GOOD, &facts), [""; 0]);
    facts
        .addresses
        .insert("10.99.0.1".parse().unwrap(), "eth0".to_owned());
    assert_eq!(
        host_lines(GOOD, &facts),
        [
            "3:8: vips \"10.99.0.1\": this address is the machine's own, on interface eth0; remove it from eth0, or give the VIP another address"
        ]
    );
}

#[test]
fn source_must_be_an_address_of_the_machine() {
    let with = |address: &str| format!("sources: {{ipv4: {address}}}\n{GOOD}");
    assert_eq!(host_lines(&with("10.0.0.9"), &host_facts()), [""; 0]);
    assert_eq!(
        host_lines(&with("10.0.0.8"), &host_facts()),
        [
            "1:17: sources.ipv4 \"10.0.0.8\": no interface of this machine has this address; give an address of this machine, or leave it out for the route's own source"
        ]
    );
}

#[test]
fn interface_must_exist() {
    assert_eq!(
        host_lines(&GOOD.replace("eth0", "eth7"), &host_facts()),
        [
            "2:11: interfaces \"eth7\": this machine has no such interface; use a name that `ip link` shows"
        ]
    );
}

#[test]
fn mtu_must_hold_the_outer_header_and_a_minimal_packet() {
    let at = |text: &str, mtu: u32| {
        let mut facts = host_facts();
        facts.mtus.insert("eth0".to_owned(), mtu);
        host_lines(text, &facts)
    };
    assert_eq!(at(GOOD, 596), [""; 0]);
    assert_eq!(
        at(GOOD, 595),
        [
            "2:11: interfaces \"eth0\": MTU 595 is too small: service web adds an outer header of 20 bytes to packets of at least 576; raise the interface's MTU to 596 or more, or use mode l2dsr"
        ]
    );
    let v6 = GOOD
        .replace("    address: 10.99.0.1", "    address: 2001:db8::1")
        .replace("10.0.0.2", "'2001:db8::5'");
    assert_eq!(at(&v6, 1320), [""; 0]);
    assert_eq!(
        at(&v6, 1319),
        [
            "2:11: interfaces \"eth0\": MTU 1319 is too small: service web adds an outer header of 40 bytes to packets of at least 1280; raise the interface's MTU to 1320 or more, or use mode l2dsr"
        ]
    );
    let l2dsr = GOOD.replace("    port: 80", "    port: 80\n    mode: l2dsr");
    assert_eq!(at(&l2dsr, 500), [""; 0]);
}

#[test]
fn facts_of_this_machine_name_lo() {
    let facts = host::facts().unwrap();
    assert!(facts.mtus.contains_key("lo"), "{facts:?}");
    assert_eq!(
        facts
            .addresses
            .get(&"127.0.0.1".parse().unwrap())
            .map(String::as_str),
        Some("lo")
    );
}

/// Every prefix, every byte replaced, and many random edits of files that are in
/// order: each is accepted or refused with a position, and nothing panics.
#[test]
fn mutated_files_never_panic() {
    for seed in [GOOD, EDGE, NODE, EVERY_FIELD] {
        for end in 0..seed.len() {
            let _ = parse_bytes(&seed.as_bytes()[..end], Source::AsWritten);
        }
    }
    let alphabet: &[u8] = b"[]{}:,-&*!|>'\"%@` \n\t#\\~?0aZ\x00\x80\xff\xc3";
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..5_000 {
        let mut bytes = [GOOD, EDGE, NODE, EVERY_FIELD][round % 4]
            .as_bytes()
            .to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = alphabet[random.below(alphabet.len())],
                1 => bytes.insert(at, alphabet[random.below(alphabet.len())]),
                2 => drop(bytes.remove(at)),
                _ => {
                    let end = (at + random.below(40)).min(bytes.len());
                    let piece = bytes[at..end].to_vec();
                    let to = random.below(bytes.len());
                    bytes.splice(to..to, piece);
                }
            }
        }
        if let Err(problems) = parse_bytes(&bytes, Source::AsWritten) {
            assert!(!problems.is_empty());
            for problem in &problems {
                let line = line(problem);
                assert!(!line.contains('\n') && line.len() < 1_000, "{line:?}");
            }
        }
    }
}

/// xorshift64: enough spread for mutations, the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// Writes the problems of a file that is refused.
fn lines(parsed: Result<Config, Vec<Problem>>) -> Vec<String> {
    parsed.unwrap_err().iter().map(line).collect()
}

fn line(problem: &Problem) -> String {
    match problem.position {
        Some(position) => format!("{position}: {problem}"),
        None => problem.to_string(),
    }
}
