use super::*;
use crate::config;
use crate::target_state::Machine;

const EDGE_AND_NODE: &str = "\
interfaces: [{name: eth0}]
roles: [edge, node]
hash_seed: 7
vips: [10.99.0.1, 10.99.0.2]
services:
  - {name: a, address: 10.99.0.1, port: 80, protocol: tcp, backends: [{address: 10.0.0.1}]}
  - {name: b, address: 10.99.0.2, port: 80, protocol: tcp, backends: [{address: 10.0.0.2}]}
trusted_edges: [10.0.0.8/29]
";

fn target(text: &str) -> TargetState {
    let machine = Machine {
        addresses: ["10.0.0.9", "10.99.0.1"]
            .map(|text| text.parse().unwrap())
            .into(),
        pod_devices: ["pod0".to_owned()].into(),
        ..Machine::default()
    };
    TargetState::of(&config::parse(text).unwrap().desired, &machine)
}

/// The state after everything in a plan for `target` was done.
fn installed(target: &TargetState) -> Installed {
    let interfaces = target.interfaces.iter();
    Installed {
        settings: Some(target.settings),
        addresses: target.addresses.clone(),
        trusted_edges: target.trusted_edges.clone(),
        services: target.services.clone(),
        unknown: BTreeSet::new(),
        interfaces: interfaces
            .map(|(name, mode)| (name.clone(), Some(*mode)))
            .collect(),
        egress: target
            .egress
            .iter()
            .map(|device| (device.clone(), true))
            .collect(),
    }
}

/// Names the steps, for their order.
fn names(operations: &[Operation]) -> Vec<String> {
    let name = |operation: &Operation| match operation {
        Operation::Settings(_) => "settings".to_owned(),
        Operation::Trust(prefixes) => format!("trust {}", prefixes.len()),
        Operation::Addresses(addresses) => {
            format!(
                "addresses {} {}",
                addresses.vips.len(),
                addresses.local.len()
            )
        }
        Operation::Resolve { nodes, .. } => format!("resolve {}", nodes.len()),
        Operation::Put(key, _) => format!("put {}", key.address),
        Operation::Remove(key) => format!("remove {}", key.address),
        Operation::Attach(name, _) => format!("attach {name}"),
        Operation::Detach(name) => format!("detach {name}"),
        Operation::AttachEgress(device) => format!("attach egress {device}"),
        Operation::DetachEgress(device) => format!("detach egress {device}"),
    };
    operations.iter().map(name).collect()
}

#[test]
fn first_start_fills_the_tables_and_attaches_last() {
    let wanted = target(EDGE_AND_NODE);
    let operations = plan(&Installed::default(), &wanted);
    assert_eq!(
        names(&operations),
        [
            "settings",
            "trust 1",
            "addresses 2 1",
            "resolve 2",
            "put 10.99.0.1",
            "put 10.99.0.2",
            "attach egress eth0",
            "attach egress pod0",
            "attach eth0",
        ]
    );
}

#[test]
fn checks_need_the_egress_program_on_the_uplinks() {
    let edge = EDGE_AND_NODE.replace("[edge, node]", "[edge]");
    let without_nodes = edge.replacen("services:", "node_health: off\nservices:", 1);
    let plain = target(&without_nodes);
    assert!(plain.egress.is_empty() && !plain.settings.probes);
    let backends = without_nodes.replacen("protocol: tcp,", "protocol: tcp, health: {},", 1);
    for checked in [edge, backends].map(|text| target(&text)) {
        assert_eq!(checked.egress, BTreeSet::from(["eth0".to_owned()]));
        assert!(checked.settings.probes);
    }
}

#[test]
fn nothing_changes_when_everything_is_as_desired() {
    let wanted = target(EDGE_AND_NODE);
    assert_eq!(names(&plan(&installed(&wanted), &wanted)), ["resolve 2"]);
}

#[test]
fn what_an_earlier_agent_left_is_confirmed_and_the_rest_removed() {
    let wanted = target(EDGE_AND_NODE);
    let mut before = installed(&wanted);
    before.unknown = std::mem::take(&mut before.services)
        .keys()
        .copied()
        .collect();
    before.interfaces = [("eth0".to_owned(), None), ("eth9".to_owned(), None)].into();
    assert_eq!(
        names(&plan(&before, &wanted)),
        [
            "resolve 2",
            "put 10.99.0.1",
            "put 10.99.0.2",
            "detach eth9",
            "attach eth0"
        ]
    );
}

#[test]
fn without_a_desired_state_programs_are_taken_over_and_nothing_is_removed() {
    let wanted = target(EDGE_AND_NODE);
    let mut before = installed(&wanted);
    before.interfaces = [("eth0".to_owned(), None), ("eth9".to_owned(), None)].into();
    before.egress = [("eth0".to_owned(), false), ("pod0".to_owned(), true)].into();
    assert_eq!(
        names(&hold(&before, &wanted.interfaces)),
        ["attach egress eth0", "attach eth0"]
    );
    assert!(hold(&installed(&wanted), &wanted.interfaces).is_empty());
}

#[test]
fn addresses_come_before_a_service_and_go_after_it() {
    let old = target(EDGE_AND_NODE);
    let new = target(&EDGE_AND_NODE.replace("10.99.0.2", "10.99.0.3"));
    assert_eq!(
        names(&plan(&installed(&old), &new)),
        [
            "addresses 3 1",
            "resolve 2",
            "put 10.99.0.3",
            "remove 10.99.0.2",
            "addresses 2 1"
        ]
    );
}

#[test]
fn another_edge_is_trusted_before_the_old_one_is_dropped() {
    let old = target(EDGE_AND_NODE);
    let new = target(&EDGE_AND_NODE.replace("10.0.0.8/29", "10.0.0.16/29"));
    assert_eq!(
        names(&plan(&installed(&old), &new)),
        ["trust 2", "resolve 2", "trust 1"]
    );
}

#[test]
fn only_the_changed_service_is_put() {
    let old = target(EDGE_AND_NODE);
    let new = target(&EDGE_AND_NODE.replace("address: 10.0.0.2}", "address: 10.0.0.2, weight: 2}"));
    assert_eq!(
        names(&plan(&installed(&old), &new)),
        ["resolve 2", "put 10.99.0.2"]
    );
}

#[test]
fn oldest_services_are_put_first_and_all_else_stays_in_order() {
    let wanted = target(EDGE_AND_NODE);
    let mut operations = plan(&Installed::default(), &wanted);
    let mut expected = names(&operations);
    let is_put = |name: &String| name.starts_with("put ");
    let puts: Vec<usize> = (0..expected.len())
        .filter(|index| is_put(&expected[*index]))
        .collect();
    // The last address belongs to the oldest service, and that of the first one is as old.
    oldest_first(&mut operations, |key| {
        key.address != "10.99.0.2".parse::<IpAddr>().unwrap()
    });
    expected.swap(puts[0], puts[1]);
    assert_eq!(names(&operations), expected);
    oldest_first(&mut operations, |_| 0);
    expected.swap(puts[0], puts[1]);
    assert_eq!(names(&operations), expected);
}

#[test]
fn another_seed_rebuilds_every_table() {
    let old = target(EDGE_AND_NODE);
    let new = target(&EDGE_AND_NODE.replace("hash_seed: 7", "hash_seed: 8"));
    assert_eq!(
        names(&plan(&installed(&old), &new)),
        ["settings", "resolve 2", "put 10.99.0.1", "put 10.99.0.2"]
    );
}

#[test]
fn egress_program_is_there_before_the_xdp_program_and_after_it() {
    let node = target(EDGE_AND_NODE);
    let edge = target(
        &EDGE_AND_NODE
            .replace("[edge, node]", "[edge]")
            .replace("services:", "node_health: off\nservices:")
            .replace("eth0", "eth1"),
    );
    let steps = names(&plan(&installed(&node), &edge));
    assert!(
        steps.ends_with(&[
            "detach eth0".to_owned(),
            "attach eth1".to_owned(),
            "detach egress eth0".to_owned(),
            "detach egress pod0".to_owned(),
        ]),
        "{steps:?}"
    );

    let mut before = installed(&node);
    before.egress = [("eth0".to_owned(), false), ("gone".to_owned(), true)].into();
    assert_eq!(
        names(&plan(&before, &node)),
        [
            "resolve 2",
            "attach egress eth0",
            "attach egress pod0",
            "detach egress gone"
        ]
    );
}
