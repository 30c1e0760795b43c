//! The steps of Kubernetes' own tests of Services, from outside the cluster and with real packets.
//!
//! `e2e.md` says which test has become which of these scenarios. They share a
//! cluster, and each has a namespace, addresses and node ports of its own.
//!
//! Tests start in the order of their names. This one takes longest, so its name is among the first.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

use lab::{Machine, Topology, vip_v4, vip_v6, wait_for};
use serde_json::{Value, json};

use crate::outcome::{Outcome, expect};
use crate::scenario::{Scenario, State, TARGETS, both_protocols, only};
use crate::support::{Echo, Flow, Protocol, Service};
use crate::witness::{Witness, curl};
use crate::world::{PATIENCE, World};

/// From the number of a scenario to that of another Service in it: more than there are scenarios.
const ASIDE: u8 = 25;
/// Scenarios that are under way at a time.
const WORKERS: usize = 4;

macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        [$((stringify!($name), $name as fn(&Scenario<'_>))),+]
    };
}

#[test]
fn services_are_followed_through_all_their_changes() {
    let scenarios = scenarios![
        external_name_and_node_port_change_into_each_other,
        affinity_is_kept_and_switched,
        protocols_of_one_port_come_and_go,
        local_policy_is_for_nodes_with_pods_and_is_switched,
        internal_policy_keeps_nobody_outside_out,
        terminating_pods_serve_while_no_other_is_ready,
        published_pods_serve_beside_ready_ones,
        service_without_endpoints_is_refused,
        external_address_is_served_where_no_machine_has_it,
        address_of_a_machine_is_served_at_the_services_port_alone,
        address_that_its_load_balancer_translates_is_left_to_it,
        address_of_another_class_is_left_to_it,
        labels_take_a_service_away_and_give_it_back,
        ports_are_added_and_deleted,
        services_go_and_come_back_beside_each_other,
        slices_may_differ_in_pods_ports_and_numbers,
        source_ranges_admit_some_clients_at_the_address,
        load_balancer_works_without_node_ports_and_gets_them,
        type_and_ports_of_a_load_balancer_change,
        datagrams_follow_a_pod_that_is_replaced,
        pods_of_the_hosts_network_serve,
    ];
    let net = Topology::builder()
        .clients(2)
        .nodes(2)
        .pods(2)
        .build()
        .unwrap();
    let world = World::start(&net);
    let (waiting, failed) = (Mutex::new(scenarios.iter().zip(1..)), Mutex::default());
    let failed: &Mutex<Vec<&str>> = &failed;
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let next = || waiting.lock().unwrap().next();
                while let Some(((name, steps), number)) = next() {
                    let run = || steps(&Scenario::new(&net, &world, number));
                    if catch_unwind(AssertUnwindSafe(run)).is_err() {
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    let failed = failed.lock().unwrap();
    assert!(failed.is_empty(), "{failed:?}");
}

fn external_name_and_node_port_change_into_each_other(web: &Scenario<'_>) {
    let name = json!({"type": "ExternalName", "externalName": "example.com"});
    let connections = only(Protocol::Tcp, &web.node_ports());
    web.create(name.clone());
    web.serve(&ready(&web.pods()));
    expect(web.client(), &connections, &Outcome::REFUSED);
    web.change(&json!({
        "type": "NodePort", "externalName": null, "ipFamilyPolicy": "RequireDualStack",
        "ports": [web.port("tcp"), web.port("udp")],
    }));
    expect(web.client(), &web.node_ports(), &Outcome::by(web.pods()));
    web.change(&name);
    expect(web.client(), &connections, &Outcome::REFUSED);
}

fn affinity_is_kept_and_switched(web: &Scenario<'_>) {
    let everybody = Outcome::by(web.pods());
    web.balance(json!({"sessionAffinity": "ClientIP"}));
    web.serve(&ready(&web.pods()));
    expect_one_pod(web, &web.ways());
    expect_another_when_the_pod_goes(web);
    web.change(&json!({"sessionAffinity": "None", "sessionAffinityConfig": null}));
    expect(web.client(), &web.ways(), &everybody);
    web.change(&json!({"sessionAffinity": "ClientIP"}));
    expect_one_pod(web, &web.ways());

    let node = &web.net.nodes()[0];
    web.change(&json!({"externalTrafficPolicy": "Local", "sessionAffinity": "None"}));
    expect(
        web.client(),
        &web.node_ports_of(node),
        &Outcome::by(node.pods()),
    );
    expect(web.client(), &web.balanced(), &everybody);
    web.change(&json!({"sessionAffinity": "ClientIP"}));
    expect_one_pod(web, &[web.node_ports_of(node), web.balanced()].concat());
}

fn protocols_of_one_port_come_and_go(web: &Scenario<'_>) {
    let (connections, datagrams) = (
        only(Protocol::Tcp, &web.node_ports()),
        only(Protocol::Udp, &web.node_ports()),
    );
    let everybody = Outcome::by(web.pods());
    web.create(json!({"ports": plain_ports()}));
    web.serve(&ready(&web.pods()));
    expect(web.client(), &connections, &Outcome::REFUSED);
    web.change(&json!({"type": "NodePort", "ports": [web.port("tcp"), web.port("udp")]}));
    expect(web.client(), &web.node_ports(), &everybody);
    web.change(&json!({"ports": [web.port("tcp")]}));
    expect(web.client(), &datagrams, &Outcome::REFUSED);
    expect(web.client(), &connections, &everybody);
    web.change(&json!({"ports": [web.port("udp")]}));
    expect(web.client(), &connections, &Outcome::REFUSED);
    expect(web.client(), &datagrams, &everybody);
}

fn local_policy_is_for_nodes_with_pods_and_is_switched(web: &Scenario<'_>) {
    const WITNESS: u16 = 8090;
    let [with, without] = web.net.nodes() else {
        panic!("two nodes");
    };
    let pods: Vec<&Machine> = with.pods().iter().collect();
    let (local, client) = (Outcome::by(with.pods()), web.client());
    let _witnesses: Vec<Witness> = pods
        .iter()
        .map(|pod| Witness::serve(pod, WITNESS))
        .collect();
    let witness = web.beside("witness", ASIDE);
    let port = json!({"name": "tcp", "port": 80, "nodePort": witness.node_port()});
    for (service, spec) in [(web, json!({})), (&witness, json!({"ports": [port]}))] {
        service.balance(spec);
        service.change(&json!({"externalTrafficPolicy": "Local"}));
    }
    web.serve(&ready(&pods));
    witness.slice("", &[("tcp", "TCP", WITNESS)], &ready(&pods));

    let there = [web.node_ports_of(with), web.balanced()].concat();
    let elsewhere = web.node_ports_of(without);
    for _ in 0..2 {
        expect(client, &there, &local);
        expect(client, &elsewhere, &Outcome::SILENCE);
        expect_address_to_arrive(&witness, with);
        for service in [web, &witness] {
            service.change(&json!({"externalTrafficPolicy": "Cluster"}));
        }
        expect(client, &web.ways(), &local);
        expect_address_to_arrive(&witness, without);
        for service in [web, &witness] {
            service.change(&json!({"externalTrafficPolicy": "Local"}));
        }
    }
}

fn internal_policy_keeps_nobody_outside_out(web: &Scenario<'_>) {
    let with = &web.net.nodes()[0];
    let pods: Vec<&Machine> = with.pods().iter().collect();
    web.balance(json!({"internalTrafficPolicy": "Local"}));
    web.serve(&ready(&pods));
    expect(web.client(), &web.ways(), &Outcome::by(pods));
}

fn terminating_pods_serve_while_no_other_is_ready(web: &Scenario<'_>) {
    let pods = web.pods();
    web.balance(json!({}));
    web.serve(&[(pods[0], State::Ready), (pods[1], State::Leaving)]);
    expect(web.client(), &web.ways(), &Outcome::by([pods[0]]));
    web.serve(&[
        (pods[0], State::Unready),
        (pods[1], State::Leaving),
        (pods[2], State::Gone),
    ]);
    expect(web.client(), &web.ways(), &Outcome::by([pods[1]]));

    // Each node falls back on its own.
    web.change(&json!({"externalTrafficPolicy": "Local"}));
    web.serve(&[
        (pods[0], State::Unready),
        (pods[1], State::Leaving),
        (pods[2], State::Ready),
        (pods[3], State::Leaving),
    ]);
    for (node, pod) in web.net.nodes().iter().zip([pods[1], pods[2]]) {
        expect(web.client(), &web.node_ports_of(node), &Outcome::by([pod]));
    }
}

fn published_pods_serve_beside_ready_ones(web: &Scenario<'_>) {
    let pods = web.pods();
    let with = |state| [(pods[0], State::Ready), (pods[1], state)];
    web.balance(json!({"publishNotReadyAddresses": true}));
    web.serve(&with(State::Published));
    expect(web.client(), &web.ways(), &Outcome::by([pods[0], pods[1]]));
    web.serve(&[(pods[1], State::Published)]);
    expect(web.client(), &web.ways(), &Outcome::by([pods[1]]));
    web.change(&json!({"publishNotReadyAddresses": false}));
    web.serve(&with(State::Gone));
    expect(web.client(), &web.ways(), &Outcome::by([pods[0]]));
}

fn service_without_endpoints_is_refused(web: &Scenario<'_>) {
    let pods = web.pods();
    web.balance(json!({}));
    expect(web.client(), &web.ways(), &Outcome::REFUSED);
    web.serve(&ready(&pods));
    expect(web.client(), &web.ways(), &Outcome::by(web.pods()));
    web.serve(&[(pods[0], State::Unready), (pods[2], State::Gone)]);
    expect(web.client(), &web.ways(), &Outcome::REFUSED);
    web.change(&json!({"externalTrafficPolicy": "Local"}));
    expect(web.client(), &web.ways(), &Outcome::REFUSED);
}

fn external_address_is_served_where_no_machine_has_it(web: &Scenario<'_>) {
    let addresses = [vip_v4(201).into(), vip_v6(201).into()];
    let beyond = vip_v4(100).into();
    web.create(json!({
        "ports": plain_ports(), "externalIPs": [addresses[0], addresses[1], beyond],
    }));
    web.serve(&ready(&web.pods()));
    let served = both_protocols(addresses, 80);
    expect(web.client(), &served, &Outcome::by(web.pods()));
    let beyond = only(Protocol::Tcp, &both_protocols([beyond; 2], 80)[..1]);
    expect(web.client(), &beyond, &Outcome::SILENCE);
    // Other ports are somebody else's, and are not refused in that one's name.
    let others = only(Protocol::Tcp, &both_protocols(addresses, 81));
    expect(web.client(), &others, &Outcome::SILENCE);
}

fn address_of_a_machine_is_served_at_the_services_port_alone(web: &Scenario<'_>) {
    const OTHER: u16 = 8086;
    let machine = &web.net.nodes()[1];
    let addresses = [machine.v4(), machine.v6()];
    let of_machine = both_protocols(addresses, OTHER);
    let sockets = of_machine.iter().map(|way| (way.address, way.protocol));
    let _servers = Echo::serve(machine, sockets);
    web.balance(json!({}));
    web.give(addresses, "VIP");
    web.serve(&ready(&web.pods()));
    let served = both_protocols(addresses, 80);
    expect(web.client(), &served, &Outcome::by(web.pods()));
    expect(web.client(), &of_machine, &Outcome::by([machine]));
}

fn address_that_its_load_balancer_translates_is_left_to_it(web: &Scenario<'_>) {
    let everybody = Outcome::by(web.pods());
    web.balance(json!({}));
    web.serve(&ready(&web.pods()));
    expect(web.client(), &web.ways(), &everybody);
    web.give(web.addresses(), "Proxy");
    expect(web.client(), &web.balanced(), &Outcome::SILENCE);
    expect(web.client(), &web.node_ports(), &everybody);
    web.give_addresses();
    expect(web.client(), &web.balanced(), &everybody);
}

fn address_of_another_class_is_left_to_it(web: &Scenario<'_>) {
    web.create(json!({"type": "LoadBalancer"}));
    web.give_addresses();
    web.serve(&ready(&web.pods()));
    expect(web.client(), &web.node_ports(), &Outcome::by(web.pods()));
    expect(web.client(), &web.balanced(), &Outcome::SILENCE);
}

fn labels_take_a_service_away_and_give_it_back(web: &Scenario<'_>) {
    let connections = only(Protocol::Tcp, &web.node_ports());
    web.create(json!({"type": "NodePort"}));
    web.serve(&ready(&web.pods()));
    for label in [
        "service.kubernetes.io/service-proxy-name=other",
        "service.kubernetes.io/headless=",
    ] {
        expect(web.client(), &web.node_ports(), &Outcome::by(web.pods()));
        web.kubectl(&["label", "service", "web", label]);
        expect(web.client(), &connections, &Outcome::REFUSED);
        let (key, _) = label.split_once('=').unwrap();
        web.kubectl(&["label", "service", "web", &format!("{key}-")]);
    }
    expect(web.client(), &web.node_ports(), &Outcome::by(web.pods()));
}

fn ports_are_added_and_deleted(web: &Scenario<'_>) {
    let everybody = Outcome::by(web.pods());
    let (first, second) = (web.node_ports(), web.beside("web", ASIDE).node_ports());
    let [first, second] = [first, second].map(|ways| only(Protocol::Tcp, &ways));
    let (one, mut two) = (web.port("tcp"), web.port("tcp"));
    two["name"] = "more".into();
    two["port"] = 81.into();
    two["nodePort"] = web.beside("web", ASIDE).node_port().into();
    web.create(json!({"type": "NodePort", "ports": [one]}));
    web.slice(
        "",
        &[TARGETS[0], ("more", "TCP", 8080)],
        &ready(&web.pods()),
    );
    expect(web.client(), &first, &everybody);
    expect(web.client(), &second, &Outcome::REFUSED);
    web.change(&json!({"ports": [one, two]}));
    expect(
        web.client(),
        &[first.clone(), second.clone()].concat(),
        &everybody,
    );
    web.change(&json!({"ports": [two]}));
    expect(web.client(), &first, &Outcome::REFUSED);
    expect(web.client(), &second, &everybody);
}

fn services_go_and_come_back_beside_each_other(first: &Scenario<'_>) {
    let pods = first.pods();
    let (second, third) = (
        first.beside("second", ASIDE),
        first.beside("third", 2 * ASIDE),
    );
    for (service, pod) in [(first, pods[0]), (&second, pods[1])] {
        service.balance(json!({}));
        service.serve(&ready(&[pod]));
        expect(first.client(), &service.ways(), &Outcome::by([pod]));
    }
    first.delete();
    let connections = only(Protocol::Tcp, &first.node_ports());
    expect(first.client(), &connections, &Outcome::REFUSED);
    expect(first.client(), &second.ways(), &Outcome::by([pods[1]]));
    third.balance(json!({}));
    third.serve(&ready(&[pods[2]]));
    expect(first.client(), &third.ways(), &Outcome::by([pods[2]]));
    expect(first.client(), &second.ways(), &Outcome::by([pods[1]]));
    first.balance(json!({}));
    for (service, pod) in [(first, pods[0]), (&second, pods[1]), (&third, pods[2])] {
        expect(first.client(), &service.ways(), &Outcome::by([pod]));
    }
}

fn slices_may_differ_in_pods_ports_and_numbers(web: &Scenario<'_>) {
    const OTHER: u16 = 8081;
    let pods = web.pods();
    let sockets = [pods[1].v4(), pods[1].v6()].map(|own| ((own, OTHER).into(), Protocol::Tcp));
    let _other = Echo::serve(pods[1], sockets);
    let [tcp, udp] = TARGETS;
    web.balance(json!({}));
    web.slice("", &[tcp], &ready(&pods[..1]));
    web.slice("-2", &[("tcp", "TCP", OTHER)], &ready(&pods[1..2]));
    web.slice("-3", &[udp], &ready(&pods[2..]));
    let ways = [Protocol::Tcp, Protocol::Udp].map(|protocol| only(protocol, &web.ways()));
    let halves = [&pods[..2], &pods[2..]];
    for (ways, half) in ways.iter().zip(halves) {
        expect(web.client(), ways, &Outcome::by(half.iter().copied()));
    }
    // A slice of more pods for both ports, one of them in another slice, too.
    web.slice("-4", &TARGETS, &ready(&[pods[0], pods[3]]));
    let [of_tcp, of_udp] = [[0, 1, 3], [0, 2, 3]].map(|pods_of| pods_of.map(|pod| pods[pod]));
    expect(web.client(), &ways[0], &Outcome::by(of_tcp));
    expect(web.client(), &ways[1], &Outcome::by(of_udp));
}

fn source_ranges_admit_some_clients_at_the_address(web: &Scenario<'_>) {
    let everybody = Outcome::by(web.pods());
    let [one, other] = web.net.clients() else {
        panic!("two clients");
    };
    let ranges = |client: &Machine| {
        [
            format!("{}/32", client.v4()),
            format!("{}/128", client.v6()),
        ]
    };
    web.balance(json!({"loadBalancerSourceRanges": ranges(one)}));
    web.serve(&ready(&web.pods()));
    for (admitted, kept_out) in [(one, other), (other, one)] {
        web.change(&json!({"loadBalancerSourceRanges": ranges(admitted)}));
        expect(admitted, &web.balanced(), &everybody);
        expect(kept_out, &web.balanced(), &Outcome::SILENCE);
        expect(kept_out, &web.node_ports(), &everybody);
    }
    web.change(&json!({"loadBalancerSourceRanges": null}));
    expect(one, &web.balanced(), &everybody);
    expect(other, &web.balanced(), &everybody);
}

fn load_balancer_works_without_node_ports_and_gets_them(web: &Scenario<'_>) {
    let everybody = Outcome::by(web.pods());
    web.balance(json!({"allocateLoadBalancerNodePorts": false, "ports": plain_ports()}));
    web.serve(&ready(&web.pods()));
    expect(web.client(), &web.balanced(), &everybody);
    web.change(&json!({
        "allocateLoadBalancerNodePorts": true, "ports": [web.port("tcp"), web.port("udp")],
    }));
    expect(web.client(), &web.ways(), &everybody);
}

fn type_and_ports_of_a_load_balancer_change(web: &Scenario<'_>) {
    let everybody = Outcome::by(web.pods());
    let refused = |ways: &[Service]| {
        expect(web.client(), &only(Protocol::Tcp, ways), &Outcome::REFUSED);
    };
    web.create(json!({"ports": plain_ports()}));
    web.serve(&ready(&web.pods()));
    refused(&web.node_ports());
    web.change(&json!({"type": "NodePort", "ports": [web.port("tcp"), web.port("udp")]}));
    expect(web.client(), &web.node_ports(), &everybody);
    web.change(&json!({
        "type": "LoadBalancer", "loadBalancerClass": "guideway.dev/guideway",
    }));
    web.give_addresses();
    expect(web.client(), &web.ways(), &everybody);

    let other = web.beside("web", ASIDE);
    let ports = ["tcp", "udp"].map(|name| {
        let mut port = other.port(name);
        port["port"] = 82.into();
        port
    });
    web.change(&json!({"ports": ports}));
    expect(web.client(), &other.node_ports(), &everybody);
    expect(
        web.client(),
        &both_protocols(web.addresses(), 82),
        &everybody,
    );
    // The address is a load balancer's; the node port is nobody's.
    refused(&web.ways());
    web.change(&json!({"type": "ClusterIP", "ports": [{"name": "tcp", "port": 82}]}));
    refused(&other.node_ports());
    let gone = only(Protocol::Tcp, &both_protocols(web.addresses(), 82)[..1]);
    expect(web.client(), &gone, &Outcome::SILENCE);
}

fn datagrams_follow_a_pod_that_is_replaced(web: &Scenario<'_>) {
    const OTHER: u16 = 8082;
    let pods = web.pods();
    web.balance(json!({}));
    web.serve(&ready(&pods[..1]));
    let ways = only(Protocol::Udp, &web.ways());
    expect(web.client(), &ways, &Outcome::by([pods[0]]));
    let mut flows = Flow::open_many(web.client(), &ways, 1);
    // To the same node, to another one, and after a time in which no pod was ready. The pods live on, and so flows stay.
    for pod in [pods[1], pods[2]] {
        web.serve(&ready(&[pod]));
        expect(web.client(), &ways, &Outcome::by([pod]));
        for flow in &mut flows {
            assert_eq!(flow.ask().unwrap(), pods[0].label(), "{}", flow.service);
        }
    }
    web.serve(&[(pods[3], State::Unready)]);
    expect(web.client(), &ways, &Outcome::REFUSED);
    web.serve(&ready(&pods[3..]));
    expect(web.client(), &ways, &Outcome::by([pods[3]]));

    // To another port, where nobody else listens.
    let target = |port| [TARGETS[0], ("udp", "UDP", port)];
    web.slice("", &target(OTHER), &ready(&pods[..1]));
    expect(web.client(), &ways, &Outcome::REFUSED);
    let sockets = [pods[0].v4(), pods[0].v6()].map(|own| ((own, OTHER).into(), Protocol::Udp));
    let _other = Echo::serve(pods[0], sockets);
    expect(web.client(), &ways, &Outcome::by([pods[0]]));
}

fn pods_of_the_hosts_network_serve(web: &Scenario<'_>) {
    const PORT: u16 = 8085;
    let nodes: Vec<&Machine> = web.net.nodes().iter().collect();
    let serve = |node: &&Machine| {
        let sockets = [node.v4(), node.v6()].map(|own| (own, PORT).into());
        let protocols = [Protocol::Tcp, Protocol::Udp];
        let both = sockets.map(|socket| protocols.map(|protocol| (socket, protocol)));
        Echo::serve(node, both.into_iter().flatten())
    };
    let _echoes: Vec<Echo> = nodes.iter().map(serve).collect();
    web.balance(json!({}));
    web.slice(
        "",
        &[("tcp", "TCP", PORT), ("udp", "UDP", PORT)],
        &ready(&nodes),
    );
    expect(web.client(), &web.ways(), &Outcome::by(nodes));
}

/// Ports without a node port.
fn plain_ports() -> [Value; 2] {
    ["tcp", "udp"].map(|name| json!({"name": name, "protocol": name.to_uppercase(), "port": 80}))
}

fn ready<'net>(pods: &[&'net Machine]) -> Vec<(&'net Machine, State)> {
    pods.iter().map(|pod| (*pod, State::Ready)).collect()
}

/// Waits until all new flows by one way have one pod.
fn expect_one_pod(web: &Scenario<'_>, ways: &[Service]) {
    for way in ways {
        wait_for(
            &format!("{way} is answered by one pod"),
            PATIENCE,
            || match Outcome::of(web.client(), way) {
                Outcome::Answers(pods) if pods.len() == 1 => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .unwrap();
    }
}

/// Takes the client's pod away, waits until it has another one, and gives it back.
fn expect_another_when_the_pod_goes(web: &Scenario<'_>) {
    let way = web.balanced()[0];
    let gone = Flow::open(web.client(), &way).unwrap().node;
    let mut others = web.pods();
    others.retain(|pod| pod.label() != gone);
    web.serve(&ready(&others));
    wait_for("another pod answers", PATIENCE, || {
        match Outcome::of(web.client(), &way) {
            Outcome::Answers(pods) if pods.len() == 1 && !pods.contains(&gone) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
    web.serve(&ready(&web.pods()));
}

/// The pods see the client's address, by the load balancer's and by a node's.
fn expect_address_to_arrive(witness: &Scenario<'_>, node: &Machine) {
    let client = witness.client();
    let ways = [witness.node_ports_of(node), witness.balanced()].concat();
    for way in only(Protocol::Tcp, &ways) {
        wait_for(&format!("{way} shows the client"), PATIENCE, || {
            let (_, seen) = curl(client, way.address)?;
            let own = client.address_like(way.address.ip());
            (seen == own).then_some(()).ok_or(seen.to_string())
        })
        .unwrap();
    }
}
