//! Events as the API server sends them, and the state that follows.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::index::objects::SERVICE_NAME;

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn service(name: &str, node_port: u16) -> Service {
    read(json!({
        "metadata": {"namespace": "default", "name": name},
        "spec": {"type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
                 "ports": [{"port": 80, "protocol": "TCP", "nodePort": node_port}]},
    }))
}

fn balancer(address: &str, port: u16) -> Service {
    let mut balancer = service("web", 30_001);
    let spec = balancer.spec.as_mut().unwrap();
    spec.type_ = Some("LoadBalancer".into());
    spec.load_balancer_class = Some(Options::DEFAULT_CLASS.into());
    spec.ports.as_mut().unwrap()[0].port = port.into();
    balancer.status = read(json!({"loadBalancer": {"ingress": [{"ip": address}]}}));
    balancer
}

fn slice(name: &str, change: &str) -> EndpointSlice {
    read(json!({
        "metadata": {"namespace": "default", "name": name,
                     "labels": {"kubernetes.io/service-name": "web"},
                     "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": change}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.244.0.1"], "nodeName": "n1"}],
        "ports": [{"port": 8080, "protocol": "TCP"}],
    }))
}

fn node(name: &str, address: &str) -> Node {
    read(json!({
        "metadata": {"name": name},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }))
}

fn cluster() -> ClusterObjects {
    cluster_that_follows(&[])
}

/// A cluster whose earlier agent sent to these addresses.
fn cluster_that_follows(inherited: &[&str]) -> ClusterObjects {
    let inherited = inherited.iter().map(|text| text.parse().unwrap()).collect();
    let options = Options {
        node_name: Some("n1".to_owned()),
        ..Options::default()
    };
    let started = "2026-01-01T00:00:00Z".parse().unwrap();
    ClusterObjects::new(options, "guideway", inherited, started)
}

type Take = Box<dyn FnOnce(&mut ClusterObjects)>;

fn take(cluster: &mut ClusterObjects, events: impl IntoIterator<Item = Take>) {
    events.into_iter().for_each(|event| event(cluster));
    cluster.update();
}

fn event<K: 'static>(
    take: fn(&mut ClusterObjects, Event<K>, Instant) -> bool,
    event: Event<K>,
) -> Take {
    Box::new(move |cluster| {
        take(cluster, event, Instant::now());
    })
}

fn list<K: kube::Resource + 'static>(
    take: fn(&mut ClusterObjects, Event<K>, Instant) -> bool,
    objects: Vec<K>,
) -> Vec<Take> {
    let names = objects.iter().map(|object| schema::name(object.meta()));
    let names = names.collect();
    let objects = objects
        .into_iter()
        .map(|object| Event::InitApply(Ok(object)));
    let events = [Event::Init].into_iter().chain(objects);
    events
        .chain([Event::InitDone(names)])
        .map(|told| event(take, told))
        .collect()
}

fn name(namespace: &str, name: &str) -> ObjectName {
    ObjectName::new(namespace, name)
}

fn ports(cluster: &ClusterObjects) -> Vec<u16> {
    cluster
        .state()
        .services
        .keys()
        .map(|key| key.port)
        .collect()
}

#[test]
fn nothing_is_complete_before_every_kind_was_listed() {
    let mut cluster = cluster();
    let missing =
        |cluster: &ClusterObjects| cluster.missing().map(WatchedKind::name).collect::<Vec<_>>();
    assert_eq!(
        missing(&cluster),
        ["services", "endpointslices", "nodes", "presence"]
    );
    take(
        &mut cluster,
        list(ClusterObjects::take_service, vec![service("web", 30_001)]),
    );
    take(&mut cluster, list(ClusterObjects::take_machines, vec![]));
    take(
        &mut cluster,
        [
            event(ClusterObjects::take_node, Event::Init),
            event(
                ClusterObjects::take_node,
                Event::InitApply(Ok(node("n1", "10.0.0.1"))),
            ),
        ],
    );
    assert_eq!(missing(&cluster), ["endpointslices", "nodes"]);
    take(&mut cluster, list(ClusterObjects::take_slice, vec![]));
    take(
        &mut cluster,
        [event(
            ClusterObjects::take_node,
            Event::InitDone([name("", "n1")].into()),
        )],
    );
    assert_eq!(missing(&cluster), [""; 0]);
}

#[test]
fn second_list_is_a_difference() {
    let mut cluster = cluster();
    let both = vec![service("a", 30_001), service("b", 30_002)];
    take(&mut cluster, list(ClusterObjects::take_service, both));
    let before = cluster.state().services.clone();
    take(
        &mut cluster,
        [event(ClusterObjects::take_service, Event::Init)],
    );
    take(
        &mut cluster,
        [event(
            ClusterObjects::take_service,
            Event::InitApply(Ok(service("b", 30_002))),
        )],
    );
    assert_eq!(
        ports(&cluster),
        [30_001, 30_002],
        "nothing is gone before the list's end"
    );
    take(
        &mut cluster,
        [event(
            ClusterObjects::take_service,
            Event::InitDone([name("default", "b")].into()),
        )],
    );
    assert_eq!(ports(&cluster), [30_002]);
    for (key, service) in &cluster.state().services {
        assert!(
            std::sync::Arc::ptr_eq(service, &before[key]),
            "{key} is untouched"
        );
    }
}

#[test]
fn nodes_that_a_new_list_lacks_are_gone() {
    let mut cluster = cluster();
    take(
        &mut cluster,
        list(
            ClusterObjects::take_node,
            vec![node("n1", "10.0.0.1"), node("n2", "10.0.0.2")],
        ),
    );
    let of_ours = json!({
        "metadata": {"namespace": "guideway-system", "name": "guideway-1"}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.2"], "nodeName": "n2", "conditions": {"ready": false}}],
    });
    take(
        &mut cluster,
        list(ClusterObjects::take_machines, vec![read(of_ours)]),
    );
    assert_eq!(
        cluster.state().nodes.len(),
        2,
        "this machine and the one that is present"
    );
    take(
        &mut cluster,
        list(ClusterObjects::take_node, vec![node("n1", "10.0.0.1")]),
    );
    assert_eq!(cluster.state().nodes, ["10.0.0.1".parse().unwrap()].into());
    take(
        &mut cluster,
        [event(
            ClusterObjects::take_node,
            Event::Delete(name("", "n1")),
        )],
    );
    assert!(cluster.state().nodes.is_empty());
}

fn machines(nodes: &[&str]) -> EndpointSlice {
    let endpoints = nodes
        .iter()
        .map(|node| json!({"addresses": ["10.0.0.99"], "nodeName": node}));
    read(json!({
        "metadata": {"namespace": "guideway-system", "name": "guideway-1"}, "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>(),
    }))
}

#[test]
fn nodes_that_an_earlier_agent_sent_to_are_present_at_the_start() {
    let nodes = || {
        list(
            ClusterObjects::take_node,
            vec![
                node("n1", "10.0.0.1"),
                node("n2", "10.0.0.2"),
                node("n3", "10.0.0.3"),
            ],
        )
    };
    for machines_first in [false, true] {
        let mut cluster = cluster_that_follows(&["10.0.0.2", "10.0.0.9"]);
        let present = list(ClusterObjects::take_machines, vec![machines(&["n1"])]);
        if machines_first {
            take(&mut cluster, present);
            take(&mut cluster, nodes());
        } else {
            take(&mut cluster, nodes());
            take(&mut cluster, present);
        }
        let known: BTreeSet<IpAddr> = ["10.0.0.1", "10.0.0.2"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(cluster.state().nodes, known);
        assert!(cluster.expire(Instant::now()).is_some(), "for a while");
    }
}

#[test]
fn node_that_is_gone_for_too_long_is_present_no_more() {
    let mut cluster = cluster();
    let nodes = [("n1", "10.0.0.1"), ("n2", "10.0.0.2")];
    let nodes = nodes.map(|(name, address)| node(name, address));
    take(&mut cluster, list(ClusterObjects::take_node, nodes.into()));
    for shown in [&["n1", "n2"][..], &["n1"]] {
        take(
            &mut cluster,
            list(ClusterObjects::take_machines, vec![machines(shown)]),
        );
        assert_eq!(cluster.count(WatchedKind::GuidewayMachines), 2);
    }
    let end = cluster.expire(Instant::now()).unwrap();
    assert_eq!(cluster.expire(end), None);
    cluster.update();
    assert_eq!(cluster.count(WatchedKind::GuidewayMachines), 1);
    assert_eq!(cluster.state().nodes, ["10.0.0.1".parse().unwrap()].into());
}

#[test]
fn node_that_comes_back_under_its_name_is_not_present_by_that() {
    let mut cluster = cluster();
    take(
        &mut cluster,
        list(
            ClusterObjects::take_node,
            vec![node("n1", "10.0.0.1"), node("n2", "10.0.0.2")],
        ),
    );
    take(
        &mut cluster,
        list(ClusterObjects::take_machines, vec![machines(&["n1", "n2"])]),
    );
    assert_eq!(cluster.state().nodes.len(), 2);
    // The slice controller hears of it later than we do.
    take(
        &mut cluster,
        [event(
            ClusterObjects::take_node,
            Event::Delete(name("", "n2")),
        )],
    );
    take(
        &mut cluster,
        [event(
            ClusterObjects::take_machines,
            Event::Apply(Ok(machines(&["n1"]))),
        )],
    );
    take(
        &mut cluster,
        [event(
            ClusterObjects::take_node,
            Event::Apply(Ok(node("n2", "10.0.0.2"))),
        )],
    );
    assert_eq!(cluster.state().nodes, ["10.0.0.1".parse().unwrap()].into());
}

#[test]
fn change_is_accounted_for_once_and_not_from_before_the_start() {
    let mut cluster = cluster();
    let [old, new] = ["2025-12-31T23:59:59Z", "2026-01-01T00:00:01Z"];
    take(
        &mut cluster,
        list(
            ClusterObjects::take_slice,
            vec![slice("a", old), slice("b", new)],
        ),
    );
    assert_eq!(cluster.take_change_times(), [new.parse().unwrap()]);
    take(
        &mut cluster,
        list(ClusterObjects::take_slice, vec![slice("b", new)]),
    );
    assert_eq!(cluster.take_change_times(), []);
    take(
        &mut cluster,
        [event(
            ClusterObjects::take_slice,
            Event::Delete(name("default", "b")),
        )],
    );
    take(
        &mut cluster,
        [event(
            ClusterObjects::take_slice,
            Event::Apply(Ok(slice("b", new))),
        )],
    );
    assert_eq!(cluster.take_change_times().len(), 1);
}

#[test]
fn own_addresses_are_never_virtual() {
    let mut cluster = cluster();
    take(
        &mut cluster,
        list(
            ClusterObjects::take_service,
            vec![balancer("192.0.2.1", 80)],
        ),
    );
    let vip: IpAddr = "192.0.2.1".parse().unwrap();
    assert!(cluster.state().vips.iter().eq([&vip]));
    let own = OwnMachine {
        addresses: [vip].into(),
        edge_only: false,
    };
    cluster.take_machine(own, BTreeSet::new());
    cluster.update();
    assert!(cluster.state().vips.is_empty());
    assert_eq!(
        ports(&cluster),
        [30_001, 80],
        "its ports are served all the same"
    );
}

#[test]
fn address_that_any_api_server_has_is_never_virtual() {
    let mut cluster = cluster();
    take(
        &mut cluster,
        list(
            ClusterObjects::take_service,
            vec![balancer("192.0.2.1", 6443)],
        ),
    );
    assert_eq!(cluster.state().vips.len(), 1);
    let of_api: EndpointSlice = read(json!({
        "metadata": {"namespace": "default", "name": "kubernetes", "labels": {SERVICE_NAME: "kubernetes"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.9"]}, {"addresses": ["192.000.2.01"]}],
        "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
    }));
    let mut of_a_namesake = of_api.clone();
    of_a_namesake.metadata.namespace = Some("other".to_owned());
    let mut of_somebody_else = of_api.clone();
    of_somebody_else.metadata.name = Some("claims".to_owned());
    take(
        &mut cluster,
        list(
            ClusterObjects::take_slice,
            vec![of_a_namesake, of_somebody_else],
        ),
    );
    assert_eq!(cluster.state().vips.len(), 1);
    take(
        &mut cluster,
        list(ClusterObjects::take_slice, vec![of_api.clone()]),
    );
    assert!(cluster.state().vips.is_empty());
    assert_eq!(ports(&cluster), [30_001], "its port is left to it");
    take(
        &mut cluster,
        [event(
            ClusterObjects::take_slice,
            Event::Delete(name("default", "kubernetes")),
        )],
    );
    assert_eq!(cluster.state().vips.len(), 1);
}
