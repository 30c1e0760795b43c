use super::*;
use crate::config;
use crate::config::host::HostFacts;
use crate::desired::NatSettings;

/// One file for an edge in front of the cluster and for both of its nodes.
const CLUSTER: &str = "\
interfaces: [{name: eth0}]
vips: [10.99.0.1]
nodes: [{address: 10.0.0.1}, {address: 10.0.0.2}]
trusted_edges: [10.0.0.100]
services:
  - name: web
    address: 10.99.0.1
    port: 80
    node_port: 30080
    protocol: tcp
    traffic_policy: local
    backends:
      - {address: 10.244.1.5, port: 8080, node: 10.0.0.1}
      - {address: 10.244.2.5, port: 8080, node: 10.0.0.2}
";

#[test]
fn listed_machine_is_a_node_and_any_other_an_edge_only() {
    let edge = target(CLUSTER, &["10.0.0.100"]);
    assert!(!edge.settings.node);
    assert!(edge.addresses.local.is_empty() && edge.trusted_edges.is_empty());
    assert_eq!(
        keys(&edge),
        ["10.0.0.100:30080/tcp", "10.99.0.1:80/tcp"],
        "none at the unspecified address"
    );

    let node = target(CLUSTER, &["10.0.0.1"]);
    assert!(node.settings.node);
    assert_eq!(node.addresses.local, addresses(&["10.0.0.1"]));
    let trusted: Vec<String> = node.trusted_edges.iter().map(ToString::to_string).collect();
    assert_eq!(trusted, ["10.0.0.2/32", "10.0.0.100/32"]);
    assert_eq!(
        keys(&node),
        [
            "0.0.0.0:30080/tcp",
            "10.0.0.1:30080/tcp",
            "10.99.0.1:80/tcp"
        ]
    );
}

#[test]
fn node_trusts_the_prefix_that_outer_sources_are_of() {
    let file = CLUSTER.replace("vips:", "sources: {ipv4_prefix: 10.7.0.0/24}\nvips:");
    let prefix = "10.7.0.0/24".parse().unwrap();
    let node = target(&file, &["10.0.0.1"]);
    assert!(node.trusted_edges.contains(&IpNet::V4(prefix)));
    let edge = target(&file, &["10.0.0.100"]);
    assert!(edge.trusted_edges.is_empty());
    for machine in [node, edge] {
        assert_eq!(machine.settings.prefix_v4, Some(prefix));
    }
}

#[test]
fn local_policy_is_for_machines_with_pods() {
    let policies = |own| {
        let target = target(CLUSTER, &[own]);
        let specs = target.services.values();
        specs
            .map(|spec| spec.traffic_policy)
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(policies("10.0.0.1"), [TrafficPolicy::Local].into());
    assert_eq!(policies("10.0.0.100"), [TrafficPolicy::Cluster].into());
}

#[test]
fn what_edges_send_to_a_nodeport_is_for_pods_here_only() {
    let text = CLUSTER.replace("    traffic_policy: local\n", "");
    let node = target(&text, &["10.0.0.1"]);
    let policy = |key: &str| node.services[&key.parse::<ServiceKey>().unwrap()].traffic_policy;
    assert_eq!(policy("0.0.0.0:30080/tcp"), TrafficPolicy::Local);
    assert_eq!(policy("10.0.0.1:30080/tcp"), TrafficPolicy::Cluster);
    assert_eq!(policy("10.99.0.1:80/tcp"), TrafficPolicy::Cluster);
    assert_eq!(node.nodes, addresses(&["10.0.0.1", "10.0.0.2"]));
    assert!(
        node.services
            .iter()
            .all(|(key, spec)| spec.node_port == (key.port == 30080))
    );
}

#[test]
fn node_without_the_edge_role_serves_its_own_pods_only() {
    let text = format!(
        "roles: [node]\n{}",
        CLUSTER.replace("    traffic_policy: local\n", "")
    );
    let node = target(&text, &["10.0.0.1"]);
    assert_eq!(keys(&node), ["0.0.0.0:30080/tcp", "10.99.0.1:80/tcp"]);
    assert!(
        node.services
            .values()
            .all(|spec| spec.traffic_policy == TrafficPolicy::Local)
    );
    assert_eq!(node.nodes, addresses(&["10.0.0.1"]));
    assert!(node.addresses.vips.is_empty() && node.addresses.node_ports.is_empty());

    let plain = "\
interfaces: [{name: eth0}]
roles: [node]
vips: [10.99.0.1]
services: [{name: a, address: 10.99.0.1, port: 80, protocol: tcp, backends: [{address: 10.0.0.9}]}]
trusted_edges: [10.0.0.8]
";
    let node = target(plain, &["10.0.0.9", "10.99.0.1"]);
    assert!(node.services.is_empty(), "the stack has the VIP");
    assert_eq!(node.addresses.local, addresses(&["10.0.0.9"]));
    assert_eq!(node.addresses.inner, addresses(&["10.99.0.1"]));
}

#[test]
fn stack_gets_from_edges_what_is_for_a_vip_alone() {
    let mut desired = config::parse(CLUSTER).unwrap().desired;
    let vips = BTreeSet::from_iter(desired.vips.iter().copied());
    let inner = |desired: &Desired, own: &[&str]| {
        let target = TargetState::of(desired, &machine(own));
        (
            target.addresses.vips.clone(),
            target.addresses.inner.clone(),
        )
    };
    // An edge that is no node opens nothing; one that is has the VIPs as such.
    assert_eq!(
        inner(&desired, &["10.0.0.100"]),
        (vips.clone(), BTreeSet::new())
    );
    assert_eq!(inner(&desired, &["10.0.0.1"]), (vips, BTreeSet::new()));
    // A shared one is a VIP to edges; one that is a machine's own is none.
    desired.shared = addresses(&["10.99.0.1", "10.0.0.1"]).into();
    let shared = addresses(&["10.99.0.1"]);
    assert_eq!(inner(&desired, &["10.0.0.1"]).1, shared);
    desired.edge = false;
    assert_eq!(inner(&desired, &["10.0.0.1"]).1, shared);
}

#[test]
fn stack_gets_from_edges_what_is_for_an_address_on_loopback_too() {
    let text = "\
interfaces: [{name: eth0}]
roles: [node]
trusted_edges: [10.0.0.8]
nodes: [{address: 10.0.0.9}, {address: 10.0.0.10}]
";
    let desired = config::parse(text).unwrap().desired;
    let facts = HostFacts {
        addresses: [
            ("127.0.0.1", "lo"),
            ("10.0.0.9", "lo"),
            ("10.99.0.1", "lo"),
            ("10.0.1.9", "eth0"),
        ]
        .map(|(address, interface)| (address.parse().unwrap(), interface.to_owned()))
        .into(),
        ..HostFacts::default()
    };
    let target = TargetState::of(&desired, &Machine::of(&desired, &facts));
    assert_eq!(target.addresses.inner, addresses(&["10.99.0.1"]));
}

#[test]
fn nodeports_are_at_the_primary_addresses_unless_told_otherwise() {
    let own = ["10.0.0.1", "10.0.0.7", "192.168.0.1"];
    let at = |text: &str| target(text, &own).addresses.node_ports.clone();
    assert_eq!(at(CLUSTER), addresses(&["10.0.0.1"]));
    let told = |how: &str| at(&format!("node_port_addresses: {how}\n{CLUSTER}"));
    assert_eq!(told("[primary]"), addresses(&["10.0.0.1"]));
    assert_eq!(told("[all]"), addresses(&own));
    assert_eq!(
        told("[192.168.0.0/16, 10.0.0.7]"),
        addresses(&["10.0.0.7", "192.168.0.1"])
    );
    assert_eq!(told("['2001:db8::/32']"), addresses(&[]));
}

#[test]
fn a_vip_is_never_a_nodeports_address() {
    let own = ["10.0.0.1", "10.99.0.1"];
    let target = target(&format!("node_port_addresses: [all]\n{CLUSTER}"), &own);
    assert_eq!(target.addresses.node_ports, addresses(&["10.0.0.1"]));
}

#[test]
fn primary_is_the_listed_address_else_the_first() {
    let desired = config::parse(CLUSTER).unwrap().desired;
    let facts = |order: &[&str]| HostFacts {
        in_order: order.iter().map(|text| text.parse().unwrap()).collect(),
        addresses: order
            .iter()
            .map(|text| (text.parse().unwrap(), "eth0".to_owned()))
            .collect(),
        mtus: [("eth0".to_owned(), 1400), ("eth1".to_owned(), 1300)].into(),
        ..HostFacts::default()
    };
    let listed = Machine::of(
        &desired,
        &facts(&["127.0.0.1", "10.0.0.9", "10.0.0.2", "fe80::1", "fd00::9"]),
    );
    assert_eq!(listed.primary, addresses(&["10.0.0.2", "fd00::9"]));
    assert_eq!(listed.mtu, Some(1400));
    let other = Machine::of(&desired, &facts(&["10.0.0.9", "10.0.0.8"]));
    assert_eq!(other.primary, addresses(&["10.0.0.9"]));
    assert_eq!(other.addresses, addresses(&["10.0.0.8", "10.0.0.9"]));
    let mut above = facts(&["10.0.0.9", "10.0.0.2"]);
    for name in above.addresses.values_mut() {
        *name = "eth0.100".to_owned();
    }
    let above = Machine::of(&desired, &above);
    assert_eq!(above.primary, addresses(&["10.0.0.2"]));
}

#[test]
fn mss_is_clamped_on_nodes_unless_switched_off() {
    let machine = Machine {
        mtu: Some(1500),
        ..machine(&["10.0.0.1"])
    };
    let mtu = |text: &str| {
        TargetState::of(&config::parse(text).unwrap().desired, &machine)
            .settings
            .mtu
    };
    assert_eq!(mtu(CLUSTER), Some(1500));
    assert_eq!(mtu(&format!("clamp_mss: off\n{CLUSTER}")), None);
    assert_eq!(mtu(&format!("roles: [edge]\n{CLUSTER}")), None);
}

#[test]
fn l2dsr_asks_for_the_macs_of_single_edges() {
    let text = format!(
        "default_mode: l2dsr\n{}",
        CLUSTER.replace("10.0.0.100]", "10.0.0.100, 10.1.0.0/24]")
    );
    let edges = |text: &str, own| target(text, &[own]).l2dsr_edges();
    assert_eq!(
        edges(&text, "10.0.0.1"),
        addresses(&["10.0.0.2", "10.0.0.100"])
    );
    assert_eq!(edges(&text, "10.0.0.100"), addresses(&[]));
    assert_eq!(edges(CLUSTER, "10.0.0.1"), addresses(&[]));
    let modes: BTreeSet<(u16, ForwardMode)> = target(&text, &["10.0.0.1"])
        .services
        .iter()
        .map(|(key, spec)| (key.port, spec.mode))
        .collect();
    assert_eq!(
        modes,
        [(80, ForwardMode::L2dsr), (30080, ForwardMode::Ipip)].into()
    );
}

#[test]
fn nat_mode_has_ports_and_addresses_where_a_service_goes_by_it() {
    let own = ["10.0.0.100", "10.0.0.101", "10.99.0.1", "2001:db8::100"];
    let plain = target(CLUSTER, &own);
    assert_eq!(plain.settings.nat, None);
    assert_eq!(plain.addresses.nat, addresses(&[]));

    let by_nat = CLUSTER.replace("    traffic_policy: local\n", "    mode: nat\n");
    let by_nat = by_nat
        .replace(", node: 10.0.0.1", "")
        .replace(", node: 10.0.0.2", "");
    let any = target(&by_nat, &own);
    assert_eq!(any.settings.nat, Some(NatSettings::default()));
    assert_eq!(
        any.addresses.nat,
        addresses(&["10.0.0.100", "10.0.0.101"]),
        "of the backends' family, and no VIP"
    );
    let one = target(
        &format!("nat: {{ipv4: 10.0.0.101, ports: 50000-50009}}\n{by_nat}"),
        &own,
    );
    let nat = one.settings.nat.unwrap();
    assert_eq!((nat.first_port, nat.ports), (50_000, 10));
    assert_eq!(one.addresses.nat, addresses(&["10.0.0.101"]));

    let node = target(&format!("roles: [node]\n{by_nat}"), &own);
    assert_eq!(node.settings.nat, None);
    assert_eq!(node.addresses.nat, addresses(&[]));
}

#[test]
fn backends_that_are_reached_by_nat_alone_and_are_no_nodes_are_told_apart() {
    const SERVICES: &str = "\
interfaces: [{name: eth0}]
vips: [10.99.0.1, 10.99.0.2]
nodes: [{address: 10.0.0.2}]
services:
  - {name: a, address: 10.99.0.1, port: 80, protocol: tcp, backends: [{address: 10.0.0.1}]}
  - name: b
    address: 10.99.0.2
    port: 80
    protocol: tcp
    mode: nat
    backends: [{address: 10.0.0.1}, {address: 10.0.0.2}, {address: 10.0.0.3}]
";
    let target = target(SERVICES, &["10.0.0.100"]);
    let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    assert_eq!(target.nodes, addresses(&all));
    assert_eq!(target.by_nat, addresses(&["10.0.0.3"]));
}

#[test]
fn pods_here_are_those_on_an_address_of_this_machine() {
    let pods = |text: &str, own| {
        let mut totals = ServiceTotals::default();
        totals.follow(&config::parse(text).unwrap().desired, &addresses(&[own]));
        totals.own_pods()
    };
    assert_eq!(pods(CLUSTER, "10.0.0.1"), addresses(&["10.244.1.5"]));
    assert_eq!(pods(CLUSTER, "10.0.0.100"), addresses(&[]));
    let edge = format!("roles: [edge]\n{CLUSTER}");
    assert_eq!(pods(&edge, "10.0.0.1"), addresses(&[]));
    let by_nat = CLUSTER
        .replace("    traffic_policy: local\n", "    mode: nat\n")
        .replace(", node: 10.0.0.1", "")
        .replace(", node: 10.0.0.2", "");
    assert_eq!(pods(&by_nat, "10.244.1.5"), addresses(&[]));
}

#[test]
fn service_that_is_the_same_object_keeps_its_shape() {
    let machine = machine(&["10.0.0.1"]);
    let mut desired = config::parse(CLUSTER).unwrap().desired;
    let mut totals = ServiceTotals::default();
    let mut services_here = MachineServices::default();
    totals.follow(&desired, &machine.addresses);
    let before = services_here.target(&desired, &totals, &machine);
    let changed = *desired.services.keys().next_back().unwrap();
    let service = Arc::make_mut(desired.services.get_mut(&changed).unwrap());
    Arc::make_mut(&mut service.spec).backends.pop();
    totals.follow(&desired, &machine.addresses);
    let after = services_here.target(&desired, &totals, &machine);
    assert_eq!(after, TargetState::of(&desired, &machine));
    assert_ne!(after, before);
    for (key, spec) in &after.services {
        assert_eq!(
            Arc::ptr_eq(spec, &before.services[key]),
            *key != changed,
            "{key}"
        );
    }
}

#[test]
fn shapes_follow_services_and_the_machine() {
    let full = config::parse(CLUSTER).unwrap().desired;
    let mut totals = ServiceTotals::default();
    let mut services_here = MachineServices::default();
    let none = Desired {
        services: Services::new(),
        ..full.clone()
    };
    let edge = Desired {
        node: crate::desired::Role::No,
        ..full.clone()
    };
    let mut one = full.clone();
    one.services
        .remove(&"0.0.0.0:30080/tcp".parse::<ServiceKey>().unwrap());
    // The NodePort of one service is the port of another one at the machine's own address.
    let [web, of_machine]: [ServiceKey; 2] =
        ["10.99.0.1:80/tcp", "10.0.0.1:30080/tcp"].map(|key| key.parse().unwrap());
    let mut both = full.clone();
    both.services
        .insert(of_machine, Arc::clone(&full.services[&web]));
    for own in ["10.0.0.1", "10.0.0.2", "10.0.0.100"] {
        for desired in [
            &full, &one, &full, &both, &full, &both, &edge, &none, &one, &both,
        ] {
            let machine = machine(&[own]);
            totals.follow(desired, &machine.addresses);
            assert_eq!(
                services_here.target(desired, &totals, &machine),
                TargetState::of(desired, &machine)
            );
        }
    }
}

#[test]
fn keys_in_the_tables_lead_back_to_their_service() {
    let desired = config::parse(CLUSTER).unwrap().desired;
    for (key, configured) in [
        ("10.0.0.1:30080/tcp", Some("0.0.0.0:30080/tcp")),
        ("10.99.0.1:80/tcp", Some("10.99.0.1:80/tcp")),
        ("10.99.0.2:80/tcp", None),
    ] {
        let found = service_at(&desired.services, &key.parse().unwrap());
        assert_eq!(found.map(|(key, _)| key.to_string()).as_deref(), configured);
    }
}

#[test]
fn only_what_is_served_is_ours_at_an_address_that_others_may_have() {
    let mut desired = config::parse(CLUSTER).unwrap().desired;
    let shared = addresses(&["10.99.0.1", "10.0.0.2"]);
    desired.shared = shared.clone().into();
    let edge = TargetState::of(&desired, &machine(&["10.0.0.100"]));
    assert!(edge.addresses.vips.is_empty());
    assert_eq!(edge.addresses.shared, shared);
    desired.edge = false;
    let node = TargetState::of(&desired, &machine(&["10.0.0.2"]));
    assert_eq!(node.addresses.shared, shared);
    assert_eq!(
        node.addresses.local,
        desired
            .nodes
            .intersection(&addresses(&["10.0.0.2"]))
            .copied()
            .collect()
    );
}

fn target(text: &str, own: &[&str]) -> TargetState {
    TargetState::of(&config::parse(text).unwrap().desired, &machine(own))
}

/// A machine whose first address is its primary one.
fn machine(own: &[&str]) -> Machine {
    Machine {
        addresses: addresses(own),
        primary: addresses(&own[..1]),
        ..Machine::default()
    }
}

fn keys(target: &TargetState) -> Vec<String> {
    target.services.keys().map(ToString::to_string).collect()
}

fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}
