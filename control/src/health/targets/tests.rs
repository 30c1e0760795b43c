use super::*;
use crate::config;

const EDGE: &str = "\
interfaces: [{name: eth0}]
vips: [10.99.0.1]
services:
  - name: a
    address: 10.99.0.1
    port: 80
    protocol: tcp
    health: {fall: 7}
    backends: [{address: 10.0.0.1}, {address: 10.0.0.2}]
  - {name: b, address: 10.99.0.1, port: 81, protocol: tcp, backends: [{address: 10.0.0.2}, {address: 10.0.0.3}]}
";

#[test]
fn backends_of_services_with_checks_and_all_nodes_but_this_one_are_checked() {
    let targets = targets(EDGE, true);
    assert_eq!(peers(&targets), ["10.0.0.1:80", "10.0.0.2:80"]);
    let checks = targets.backends.values();
    assert!(
        checks
            .clone()
            .all(|(name, one)| name == "a" && one.check.fall == 7)
    );
    let nodes: Vec<String> = targets.nodes.keys().map(ToString::to_string).collect();
    assert_eq!(nodes, ["10.0.0.1", "10.0.0.2"]);
}

#[test]
fn check_takes_the_way_of_a_clients_packet() {
    let targets = targets(EDGE, true);
    let (_, check) = targets.backends.values().next().unwrap();
    let index = targets
        .probes
        .keys()
        .copied()
        .find(|index| probe_mark(*index) == check.route.mark);
    let node = Some(address("10.0.0.1"));
    let way = ProbeSpec {
        peer: address("10.0.0.1"),
        destination: address("10.99.0.1"),
        outer: node,
        source: None,
        pod: None,
    };
    assert_eq!(targets.probes[&index.unwrap()], way);
    assert_eq!(targets.probes.len(), 4, "two backends, two nodes");
}

#[test]
fn l2dsr_has_no_outer_header_and_its_nodes_are_asked_straight() {
    let targets = targets(&EDGE.replace("vips:", "default_mode: l2dsr\nvips:"), true);
    assert!(targets.probes.values().all(|way| way.outer.is_none()));
    assert_eq!(targets.probes.len(), 2);
    assert!(targets.nodes.values().all(|node| node.mark == 0));
}

#[test]
fn node_of_another_family_is_reached_by_the_service_and_an_outer_source() {
    let targets = targets(&EDGE.replace("10.0.0.2", "'2001:db8::2'"), true);
    assert_eq!(peers(&targets), ["10.0.0.1:80", "10.99.0.1:80"]);
    let mixed = targets
        .probes
        .values()
        .find(|way| way.source.is_some())
        .unwrap();
    assert_eq!(mixed.outer, Some(address("2001:db8::2")));
    assert_eq!(mixed.source, Some(address("2001:db8::9")));
}

#[test]
fn another_port_is_asked_instead_and_straight() {
    let targets = targets(&EDGE.replace("fall: 7", "port: 8080"), true);
    assert_eq!(peers(&targets), ["10.0.0.1:8080", "10.0.0.2:8080"]);
    assert!(
        targets
            .backends
            .values()
            .all(|(_, check)| check.route.mark == 0)
    );
}

#[test]
fn without_the_egress_program_only_what_goes_straight_is_checked() {
    let targets = targets(EDGE, false);
    let no_way = NotMade {
        no_way: 2,
        too_many: 0,
    };
    assert_eq!((targets.backends.len(), targets.not_made), (0, no_way));
    assert_eq!(targets.nodes.len(), 2);
    assert!(targets.nodes.values().all(|node| node.mark == 0));
}

#[test]
fn backends_by_nat_are_no_nodes() {
    let by_nat = EDGE.replace("vips:", "default_mode: nat\nvips:");
    let targets = targets(&by_nat, true);
    assert_eq!(targets.nodes, BTreeMap::new());
    assert_eq!(targets.backends.len(), 2, "their own checks are made");

    let both = EDGE.replace("name: b,", "name: b, mode: nat,");
    let nodes = self::targets(&both, true).nodes;
    let nodes: Vec<String> = nodes.keys().map(ToString::to_string).collect();
    assert_eq!(
        nodes,
        ["10.0.0.1", "10.0.0.2"],
        "those of the other service"
    );
}

#[test]
fn targets_are_as_many_as_there_are_indices_and_nodes_come_first() {
    for text in [EDGE, &EDGE.replace("vips:", "default_mode: l2dsr\nvips:")] {
        let targets = bounded(text, true, 3);
        assert_eq!((targets.nodes.len(), targets.backends.len()), (2, 1));
        let one = NotMade {
            no_way: 0,
            too_many: 1,
        };
        assert_eq!(targets.not_made, one);
    }
}

#[test]
fn nodes_are_left_alone_where_that_is_asked_for() {
    let targets = targets(&(EDGE.to_owned() + "node_health: off\n"), true);
    assert!(targets.nodes.is_empty() && !targets.backends.is_empty());
}

#[test]
fn machine_that_balances_nothing_checks_nothing() {
    let node = "interfaces: [{name: eth0}]\nroles: [node]\ntrusted_edges: [10.0.0.8]\n";
    assert_eq!(targets(node, true), Targets::default());
}

fn targets(text: &str, diverts: bool) -> Targets {
    bounded(text, diverts, 8)
}

/// Has `10.0.0.3` for the machine's own address.
fn bounded(text: &str, diverts: bool, capacity: u32) -> Targets {
    let own = BTreeSet::from([address("10.0.0.3")]);
    let around = Surroundings {
        own: &own,
        diverts,
        source_towards: |_| Some(address("2001:db8::9")),
    };
    let desired = config::parse(text).unwrap().desired;
    let mut totals = ServiceTotals::default();
    totals.follow(&desired, &own);
    Targets::of(&desired, &totals, &around, &mut ProbeIndices::new(capacity))
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn peers(targets: &Targets) -> Vec<String> {
    let backends = targets.backends.values();
    backends
        .map(|(_, one)| one.route.peer.to_string())
        .collect()
}
