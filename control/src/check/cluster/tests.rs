use super::super::finding::Severity;
use super::*;
use crate::config;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// What a machine named `n1` hears where nothing is wrong.
fn answers() -> Answers {
    Answers {
        server: "https://api:6443/".to_owned(),
        version: "v1.36.3".to_owned(),
        denied: Ok(Vec::new()),
        node: Ok(Some([address("198.51.100.1")].into())),
        listed: Ok(ListedMachines {
            nodes: ["n1".to_owned()].into(),
            edges: BTreeSet::new(),
        }),
        others: BTreeSet::new(),
        seed: Ok(7),
        peers_key: Some(Ok(())),
    }
}

/// Judges a machine named `n1` that sends from `198.51.100.1`; returns what is not as it should be.
fn judged(change: impl Fn(&mut Answers)) -> Vec<(&'static str, Severity, String)> {
    let config = config::parse("interfaces: [{name: eth0}]\nkubernetes: {node_name: n1}\n");
    let options = config.unwrap().kubernetes.unwrap();
    let identity = Identity {
        node_name: "n1".to_owned(),
        namespace: "guideway-system".to_owned(),
        lease_namespace: "guideway-edges".to_owned(),
    };
    let mut answers = answers();
    change(&mut answers);
    let mut report = SubjectReport::of("kubernetes");
    let sources = [address("198.51.100.1")].into();
    answers.add_findings(&mut report, &options, &identity, &sources);
    let wrong = report.findings.into_iter();
    wrong
        .filter(|finding| finding.severity != Severity::Ok)
        .map(|finding| {
            assert_ne!(finding.remedy, "");
            (finding.check, finding.severity, finding.detail)
        })
        .collect()
}

#[test]
fn node_that_our_slices_show_has_nothing_to_mend() {
    assert_eq!(judged(|_| {}), []);
}

#[test]
fn what_a_token_may_not_is_named() {
    let config = config::parse("interfaces: [{name: eth0}]\nkubernetes: {}\n").unwrap();
    let options = config.kubernetes.as_ref().unwrap();
    let without = rights(options, &config.desired, false);
    assert!(
        without
            .iter()
            .all(|right| right.name != Some("guideway-peers"))
    );
    let rights = rights(options, &config.desired, true);
    let found = judged(|answers| answers.denied = Ok(rights.clone()));
    let [(check, severity, detail)] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((*check, *severity), ("rights", Severity::Fail));
    for right in [
        "list nodes",
        "watch endpointslices.discovery.k8s.io",
        "get secrets/guideway-seed",
        "get secrets/guideway-peers",
    ] {
        assert!(detail.contains(right), "{detail}");
    }
    assert!(!detail.contains("leases"), "nothing is announced: {detail}");
    let events = |right: &&Right| right.resource == "events";
    let events: Vec<Right> = rights.iter().filter(events).copied().collect();
    let outside = judged(|answers| {
        answers.denied = Ok(events.clone());
        answers.node = Ok(None);
    });
    let mut checks = outside.iter().map(|one| one.0);
    assert!(checks.all(|check| check != "rights"), "{outside:?}");
}

#[test]
fn two_seeds_are_named_by_their_fingerprints() {
    let found = |of_file, seed: Result<u64, String>| {
        let answers = Answers { seed, ..answers() };
        let mut report = SubjectReport::of("kubernetes");
        answers.add_seed(&mut report, of_file, "guideway-system");
        let finding = report.findings.remove(0);
        (finding.severity, finding.detail)
    };
    let (severity, detail) = found(Some(8), Ok(7));
    assert_eq!(severity, Severity::Warn);
    for seed in [7, 8] {
        assert!(detail.contains(&fingerprint(seed)), "{detail}");
    }
    let none = || Err("there is none".to_owned());
    assert_eq!(found(Some(7), Ok(7)).0, Severity::Ok);
    assert_eq!(found(Some(7), none()).0, Severity::Ok);
    assert_eq!(found(None, Ok(7)).0, Severity::Ok);
    assert_eq!(found(None, none()).0, Severity::Fail);
}

#[test]
fn edge_that_exchanges_and_has_no_key_is_told() {
    let found = judged(|answers| answers.peers_key = Some(Err("there is none".to_owned())));
    let expected = "nothing is exchanged with other edges: there is none".to_owned();
    assert_eq!(found, [("key of edges", Severity::Warn, expected)]);
    assert_eq!(judged(|answers| answers.peers_key = None), []);
}

#[test]
fn host_without_a_node_is_told_that_it_is_an_edge_outside_and_whether_nodes_trust_it() {
    let found = judged(|answers| answers.node = Ok(None));
    let checks: Vec<_> = found.iter().map(|one| (one.0, one.1)).collect();
    assert_eq!(
        checks,
        [("Node", Severity::Warn), ("presence", Severity::Warn)]
    );
    assert!(found[0].2.contains("edge outside the cluster"), "{found:?}");
    let text = "our outer source 198.51.100.1 is in no EndpointSlice of guideway-system/guideway";
    assert!(found[1].2.starts_with(text), "{found:?}");

    let found = judged(|answers| {
        answers.node = Ok(None);
        answers.listed = Ok(ListedMachines {
            edges: [address("198.51.100.1")].into(),
            ..ListedMachines::default()
        });
    });
    assert_eq!(found.len(), 1, "it is listed: {found:?}");
}

#[test]
fn node_that_is_not_present_or_sends_from_elsewhere_is_named() {
    let absent = judged(|answers| answers.listed = Ok(ListedMachines::default()));
    assert_eq!(absent.len(), 1);
    assert!(absent[0].2.contains("has Node n1"), "{absent:?}");
    let elsewhere = judged(|answers| answers.node = Ok(Some([address("10.0.0.1")].into())));
    assert_eq!(elsewhere.len(), 1);
    let text = "our outer source 198.51.100.1 is in no EndpointSlice of guideway-system/guideway \
                and is no address of Node n1";
    assert!(elsewhere[0].2.starts_with(text), "{elsewhere:?}");
}
