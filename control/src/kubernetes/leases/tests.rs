//! Leases as other versions write them, and what is made of them.

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::format::{lease, lease_name};
use super::renewal::renewal_time;
use super::*;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 0x17]);

fn renewal(addresses: BTreeSet<IpAddr>) -> LeaseContent {
    LeaseContent {
        addresses,
        macs: [MAC].into(),
        owner: None,
    }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn label_excludes_and_selector_chooses() {
    let shown = |selector| Announceable {
        node_selector: Some(labels(selector)),
        macs: [MAC].into(),
        ..Announceable::default()
    };
    assert!(!Announceable::default().may_announce(None), "it is not to");
    let any = shown(&[]);
    assert!(any.may_announce(None));
    let deaf = Announceable {
        macs: BTreeSet::new(),
        ..any.clone()
    };
    assert!(!deaf.may_announce(None), "nobody who asks is answered");
    assert!(any.may_announce(Some(&labels(&[("role", "worker")]))));
    assert!(!any.may_announce(Some(&labels(&[(EXCLUDED, "")]))));
    let edges = shown(&[("role", "edge")]);
    assert!(!edges.may_announce(None), "no Node, no label");
    assert!(!edges.may_announce(Some(&labels(&[("role", "worker")]))));
    assert!(edges.may_announce(Some(&labels(&[("role", "edge")]))));
    assert!(!edges.may_announce(Some(&labels(&[("role", "edge"), (EXCLUDED, "true")]))));
}

#[test]
fn every_renewal_changes_the_lease_whatever_the_clock_does() {
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    let mut last = Timestamp::UNIX_EPOCH;
    for clock in [1_000, 1_000, 5, 4_000_000_000, 1_001] {
        let next = renewal_time(last, at(clock));
        assert!(next > last, "{next} after {last} at {clock}");
        last = next;
    }
}

#[test]
fn lease_that_speaks_for_another_edge_than_its_own_is_ignored() {
    let mut own = lease("node1", &renewal(BTreeSet::new()), Timestamp::UNIX_EPOCH);
    own.metadata.resource_version = Some("7".to_owned());
    assert!(edge_of(LeaseNamespace::Own, &own).is_some());
    let mut forged = own.clone();
    forged.metadata.name = Some(lease_name("node2"));
    assert_eq!(edge_of(LeaseNamespace::Own, &forged), None);
    let mut election = Election::new("node3", BTreeSet::new());
    let end = Event::Delete(ObjectName::new("", lease_name("node2")));
    for event in [Event::Apply(Ok(own)), Event::Apply(Ok(forged)), end] {
        take(&mut election, LeaseNamespace::Own, event);
    }
    assert_eq!(election.edges(), 1, "nor does its end take the other away");
}

#[test]
fn lease_of_an_agent_one_version_apart_is_read_and_written() {
    let first = json!({
        "metadata": {
            "name": "guideway-edge-node1", "labels": {"guideway.dev/lease": "edge"},
            "annotations": {
                "guideway.dev/node-addresses": "10.0.0.1", "guideway.dev/macs": "02:00:00:00:00:17",
            },
        },
        "spec": {
            "holderIdentity": "node1", "leaseDurationSeconds": 2,
            "renewTime": "1970-01-01T00:00:00.000000Z",
        },
    });
    let mut newer = first.clone();
    newer["metadata"]["resourceVersion"] = json!("7");
    newer["metadata"]["annotations"]["guideway.dev/newer"] = json!("x");
    newer["spec"]["strategy"] = json!("Newer");
    newer["newer"] = json!({});
    let read =
        |lease| edge_of(LeaseNamespace::Own, &serde_json::from_value(lease).unwrap()).unwrap();
    let edge = read(newer.clone());
    let addresses: BTreeSet<IpAddr> = ["10.0.0.1".parse().unwrap()].into();
    assert_eq!((edge.name.as_str(), &edge.addresses), ("node1", &addresses));
    assert_eq!(edge.macs, [MAC].into());
    newer["metadata"]["annotations"] = first["metadata"]["annotations"].clone();
    let annotations = newer["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove("guideway.dev/macs");
    assert_eq!(read(newer).macs, BTreeSet::new());
    let written = lease("node1", &renewal(addresses), Timestamp::UNIX_EPOCH);
    let written = serde_json::to_value(written).unwrap();
    for part in ["metadata", "spec"] {
        assert_eq!(written[part], first[part]);
    }
}

#[test]
fn lease_goes_with_the_node_of_its_edge() {
    let mut node = OwnNode::default();
    assert_eq!(node.as_owner(), None);
    let metadata = json!({"metadata": {"name": "node1", "uid": "7"}});
    let own: NodeMetadata = serde_json::from_value(metadata).unwrap();
    node.take(Event::InitApply(Ok(own)));
    node.take(Event::InitDone([ObjectName::new("", "node1")].into()));
    assert_eq!(
        serde_json::to_value(node.as_owner()).unwrap(),
        json!({"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "7"})
    );
    assert_eq!(node.labels(), Some(Some(&BTreeMap::new())));

    // It went while the watch was down.
    node.take(Event::Init);
    assert!(node.as_owner().is_some());
    node.take(Event::InitDone(BTreeSet::new()));
    assert_eq!((node.as_owner(), node.labels()), (None, Some(None)));
}

#[test]
fn lease_reads_back_as_the_edge_that_wrote_it() {
    let addresses: BTreeSet<IpAddr> = ["10.0.0.1", "fd00::1"]
        .map(|text| text.parse().unwrap())
        .into();
    for addresses in [addresses, BTreeSet::new()] {
        let said = renewal(addresses.clone());
        let mut written = lease("node1", &said, Timestamp::UNIX_EPOCH);
        written.metadata.resource_version = Some("7".to_owned());
        let edge = edge_of(LeaseNamespace::Own, &written).unwrap();
        assert_eq!(
            (edge.namespace, &edge.macs),
            (LeaseNamespace::Own, &said.macs)
        );
        assert_eq!((edge.name.as_str(), edge.renewal.as_str()), ("node1", "7"));
        assert_eq!(edge.addresses, addresses);
    }
}
