//! Agents and kube-proxies on the same nodes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use lab::kubernetes::ProxyMode;
use lab::{Machine, Process, Topology, output, vip_v4, vip_v6, wait_for};
use serde_json::{Value, json};

use crate::objects;
use crate::outcome::{Outcome, expect};
use crate::support::{Echo, Flow, Protocol, Service, Traffic, guideway};
use crate::witness::{Witness, curl};
use crate::world::{PATIENCE, World, at};

/// Questions on every flow while all kinds of traffic are under way.
const ROUNDS: u64 = 50;
/// Where pods say whom they see, and where the Service has that.
const WITNESS: u16 = 8090;
const WITNESS_PORT: u16 = 81;
const WITNESS_NODE_PORT: u16 = 30_081;
/// A Service of the policy Local, with pods on the second node alone.
const LOCAL: &str = "local";
const LOCAL_NODE_PORT: u16 = 30_082;
/// Servers outside of the cluster.
const OUTSIDE_PORT: u16 = 9000;
const OUTSIDE_WITNESS: u16 = 9001;

#[test]
fn neither_disturbs_the_other_with_kube_proxy_in_nftables_mode() {
    neither_disturbs_the_other(ProxyMode::Nftables);
}

#[test]
fn neither_disturbs_the_other_with_kube_proxy_in_iptables_mode() {
    neither_disturbs_the_other(ProxyMode::Iptables);
}

fn neither_disturbs_the_other(mode: ProxyMode) {
    let net = Topology::builder().nodes(2).pods(2).build().unwrap();
    let mut world = World::new(&net);
    world.write_seed();
    world.show_presence();
    let pods: Vec<&Machine> = net.pods().collect();
    let all: Vec<(&Machine, bool)> = pods.iter().map(|pod| (*pod, true)).collect();
    world.balance(&vips());
    world.endpoints(&all);
    world.control.apply(&witness_service(&net)).unwrap();
    world.give("witness", &vips());
    let mut local = objects::service(LOCAL, LOCAL_NODE_PORT);
    local["spec"]["externalTrafficPolicy"] = "Local".into();
    world.apply(&local);
    world.give(LOCAL, &local_vips());
    world.endpoints_of(LOCAL, &all[2..]);
    let _witnesses: Vec<Witness> = net.pods().map(|pod| Witness::serve(pod, WITNESS)).collect();
    let run = |node: &Machine| -> Process {
        let proxy = world
            .control
            .run_kube_proxy(node.namespace(), node.label(), mode);
        proxy.unwrap()
    };
    let _proxies: Vec<Process> = net.nodes().iter().map(run).collect();
    let rules = || -> Vec<String> { net.nodes().iter().map(ruleset).collect() };
    let rules_before = rules();

    world.launch();
    for agent in &mut world.agents {
        agent.wait_until_in_step();
    }
    let inside = inside(&net, &world);
    let client = &net.clients()[0];
    let everybody = Outcome::by(pods.iter().copied());
    expect(client, &outside(&net), &everybody);
    for (machine, services) in &inside {
        expect(machine, services, &everybody);
    }

    each_traffic_goes_its_own_way(&net, &world, &inside);
    addresses_arrive_as_each_of_them_leaves_them(&net, &world);
    local_policy_is_for_clients_outside(&net);
    all_traffic_goes_on_at_the_same_time(&net, &inside);
    assert_eq!(
        rules(),
        rules_before,
        "the rules of the nodes are as before"
    );

    for agent in &world.agents {
        let machine = agent.machine().namespace();
        guideway().ask(machine, &["detach"]).unwrap();
    }
    kube_proxy_serves_node_ports(&net);
    for (machine, services) in &inside {
        expect(machine, services, &everybody);
    }
    assert_eq!(rules(), rules_before, "also after detaching");
}

/// What enters by the uplinks is the agents', what begins on the nodes kube-proxy's.
fn each_traffic_goes_its_own_way(
    net: &Topology,
    world: &World<'_>,
    inside: &[(&Machine, Vec<Service>)],
) {
    const FLOWS: usize = 8;
    let client = &net.clients()[0];
    for service in outside(net) {
        let before = delivered(world);
        Flow::open_many(client, &[service], FLOWS);
        let after = delivered(world);
        assert!(
            after - before >= FLOWS as f64,
            "{service}: {before}, {after}"
        );
    }
    wait_until_closed(client);
    let before = (delivered(world), forwarded(world));
    for (machine, services) in inside {
        Flow::open_many(machine, services, FLOWS);
    }
    assert_eq!((delivered(world), forwarded(world)), before);
}

/// Waits until the connections of a machine are closed at both ends, and their last packets are on no way any more.
fn wait_until_closed(machine: &Machine) {
    wait_for("connections are closed", PATIENCE, || {
        let mut ss = machine.namespace().command("ss");
        let open = output(ss.args(["-Htn", "state", "connected", "exclude", "time-wait"]));
        let open = open.unwrap();
        if open.is_empty() { Ok(()) } else { Err(open) }
    })
    .unwrap();
}

fn addresses_arrive_as_each_of_them_leaves_them(net: &Topology, world: &World<'_>) {
    let (client, node) = (&net.clients()[0], &net.nodes()[0]);
    let pod = &node.pods()[0];
    let outside = [client.v4(), client.v6()].map(|own| {
        let vip = if own.is_ipv4() { vips()[0] } else { vips()[1] };
        let node_port = SocketAddr::new(node.address_like(own), WITNESS_NODE_PORT);
        (own, [SocketAddr::new(vip, WITNESS_PORT), node_port])
    });
    for (own, services) in outside {
        for service in services {
            let (_, seen) = curl(client, service).unwrap();
            assert_eq!(seen, own, "{service} is asked from outside");
        }
    }
    for address in cluster_addresses(world, "witness") {
        for machine in [pod, node] {
            let (name, seen) = curl(machine, SocketAddr::new(address, WITNESS_PORT)).unwrap();
            // kube-proxy masquerades a pod that reaches itself.
            let own = if name == machine.label() {
                node
            } else {
                machine
            };
            let expected = own.address_like(address);
            assert_eq!(seen, expected, "{name} is asked by {}", machine.label());
        }
    }
    let _outside = Witness::serve(client, OUTSIDE_WITNESS);
    for own in [client.v4(), client.v6()] {
        let (_, seen) = curl(pod, SocketAddr::new(own, OUTSIDE_WITNESS)).unwrap();
        assert_eq!(seen, node.address_like(own), "a pod asks the world outside");
    }
}

/// What begins on a node that has no pods of the Service is kube-proxy's, which gives it to those elsewhere.
fn local_policy_is_for_clients_outside(net: &Topology) {
    let [without, with] = net.nodes() else {
        panic!("two nodes");
    };
    let port_of = |node: &Machine| [node.v4(), node.v6()].map(|own| (own, LOCAL_NODE_PORT));
    let balanced = local_vips().map(|vip| (vip, 80));
    let (there, elsewhere) = (port_of(with), port_of(without));
    let pods = Outcome::by(with.pods());
    let client = &net.clients()[0];
    let served = with_both_protocols(balanced.into_iter().chain(there));
    expect(client, &served, &pods);
    let unserved = with_both_protocols(elsewhere.into_iter());
    expect(client, &unserved, &Outcome::SILENCE);
    let own = with_both_protocols(balanced.into_iter().chain(elsewhere));
    for machine in [&without.pods()[0], without] {
        expect(machine, &own, &pods);
    }
}

fn all_traffic_goes_on_at_the_same_time(net: &Topology, inside: &[(&Machine, Vec<Service>)]) {
    let client = &net.clients()[0];
    let own = [client.v4(), client.v6()].map(|own| SocketAddr::new(own, OUTSIDE_PORT));
    let protocols = [Protocol::Tcp, Protocol::Udp];
    let both = own.map(|address| protocols.map(|protocol| (address, protocol)));
    let both: Vec<(SocketAddr, Protocol)> = both.into_iter().flatten().collect();
    let _outside = Echo::serve(client, both.iter().copied());
    let world_outside: Vec<Service> = both
        .iter()
        .map(|(address, protocol)| at(address.ip(), address.port(), *protocol))
        .collect();

    let mut pairs = vec![(client, outside(net))];
    pairs.extend(inside.iter().cloned());
    pairs.extend(net.pods().map(|pod| (pod, world_outside.clone())));
    let open = |each: usize| -> Vec<Flow> {
        let flows = pairs
            .iter()
            .map(|(machine, services)| Flow::open_many(machine, services, each));
        flows.flatten().collect()
    };
    let traffic = Traffic::over(open(1));
    traffic.wait_for_rounds(ROUNDS);
    drop(open(2));
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
}

/// It masquerades what comes from outside, which tells it from an agent.
fn kube_proxy_serves_node_ports(net: &Topology) {
    let client = &net.clients()[0];
    for node in net.nodes() {
        for own in [node.v4(), node.v6()] {
            let service = SocketAddr::new(own, WITNESS_NODE_PORT);
            wait_for(&format!("kube-proxy serves {service}"), PATIENCE, || {
                let (_, seen) = curl(client, service)?;
                (seen == own).then_some(()).ok_or(seen.to_string())
            })
            .unwrap();
        }
    }
}

fn vips() -> [IpAddr; 2] {
    [vip_v4(1).into(), vip_v6(1).into()]
}

fn local_vips() -> [IpAddr; 2] {
    [vip_v4(2).into(), vip_v6(2).into()]
}

/// The ways from outside to `web`.
fn outside(net: &Topology) -> Vec<Service> {
    let nodes = net.nodes().iter();
    let node_ports = nodes.flat_map(|node| [(node.v4(), 30_080), (node.v6(), 30_080)]);
    let places = vips().map(|vip| (vip, 80)).into_iter().chain(node_ports);
    with_both_protocols(places)
}

/// The ways to `web` of a pod and of a host: the cluster's addresses, the load balancer's, their own node's port.
fn inside<'net>(net: &'net Topology, world: &World<'_>) -> Vec<(&'net Machine, Vec<Service>)> {
    let cluster = cluster_addresses(world, "web");
    let of = |node: &Machine| {
        let addresses = cluster.iter().copied().chain(vips());
        let places = addresses.map(|address| (address, 80));
        let own = [(node.v4(), 30_080), (node.v6(), 30_080)];
        with_both_protocols(places.chain(own))
    };
    let [first, second] = net.nodes() else {
        panic!("two nodes");
    };
    vec![
        (&first.pods()[0], of(first)),
        (&second.pods()[1], of(second)),
        (first, of(first)),
    ]
}

fn with_both_protocols(places: impl Iterator<Item = (IpAddr, u16)>) -> Vec<Service> {
    let protocols = [Protocol::Tcp, Protocol::Udp];
    places
        .flat_map(|(address, port)| protocols.map(|protocol| at(address, port, protocol)))
        .collect()
}

fn cluster_addresses(world: &World<'_>, service: &str) -> Vec<IpAddr> {
    let service = world.control.get(&["service", service]).unwrap();
    let addresses = service["spec"]["clusterIPs"].as_array().unwrap().iter();
    addresses
        .map(|address| address.as_str().unwrap().parse().unwrap())
        .collect()
}

/// Packets that the nodes' agents gave to pods.
fn delivered(world: &World<'_>) -> f64 {
    let agents = world.agents.iter();
    agents
        .map(|agent| agent.metric(r#"guideway_packets_total{action="pass",reason="delivered"}"#))
        .sum()
}

/// Packets that all agents counted for a service.
fn forwarded(world: &World<'_>) -> Vec<Value> {
    let agents = world.agents.iter();
    let of = |services: Value| {
        let services = services.as_array().unwrap().iter();
        json!(
            services
                .map(|one| one["packets"].clone())
                .collect::<Vec<_>>()
        )
    };
    agents
        .map(|agent| {
            of(guideway()
                .ask(agent.machine().namespace(), &["services"])
                .unwrap())
        })
        .collect()
}

/// The netfilter rules of a machine, also those of iptables, without counters and in any order.
fn ruleset(machine: &Machine) -> String {
    let mut nft = machine.namespace().command("nft");
    let rules = output(nft.args(["--stateless", "list", "ruleset"])).unwrap();
    let names = ["KUBE-NODEPORTS", "nodeport"].map(|name| rules.contains(name));
    assert!(names.contains(&true), "{rules}");
    let lines: BTreeSet<&str> = rules.lines().collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

/// The Service whose pods say whom they see, and its slices.
fn witness_service(net: &Topology) -> String {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "witness"},
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "guideway.dev/guideway",
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [{"port": WITNESS_PORT, "nodePort": WITNESS_NODE_PORT}],
        },
    });
    let slice = |kind: &str, address: fn(&Machine) -> IpAddr| {
        let on = |node: &Machine| -> Vec<Value> {
            let pods = node.pods().iter();
            pods.map(
                |pod| json!({"addresses": [address(pod).to_string()], "nodeName": node.label()}),
            )
            .collect()
        };
        let endpoints: Vec<Value> = net.nodes().iter().flat_map(on).collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("witness-{}", kind.to_lowercase()),
                "labels": {"kubernetes.io/service-name": "witness"},
            },
            "addressType": kind, "ports": [{"name": "", "port": WITNESS}], "endpoints": endpoints,
        })
    };
    let slices = [slice("IPv4", Machine::v4), slice("IPv6", Machine::v6)];
    [&service, &slices[0], &slices[1]]
        .map(Value::to_string)
        .join("\n---\n")
}
