//! `guideway run --kubernetes`: from objects to packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use lab::{Cidr, Machine, Route, Topology, kubernetes, vip_v4, vip_v6, wait_for};
use serde_json::json;

use crate::objects::{self, TARGET_PORT};
use crate::outages::wait_for_tables;
use crate::support::{Echo, Flow, Protocol, Service, Traffic, guideway};
use crate::world::{PATIENCE, World, at};

/// Questions on every flow before, between and after the events.
const ROUNDS: u64 = 20;

fn network() -> Topology {
    Topology::builder().nodes(2).pods(2).build().unwrap()
}

fn vips() -> [IpAddr; 2] {
    [vip_v4(1).into(), vip_v6(1).into()]
}

/// The ways to `web`: its addresses, and a NodePort of each node.
fn ways(net: &Topology) -> Vec<Service> {
    let mut ways = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        ways.extend(vips().map(|vip| at(vip, 80, protocol)));
        for node in net.nodes() {
            ways.push(at(node.v4(), 30_080, protocol));
            ways.push(at(node.v6(), 30_080, protocol));
        }
    }
    ways
}

#[test]
fn service_is_served_at_its_addresses_and_node_ports_and_followed() {
    let net = network();
    let world = World::start(&net);
    let pods: Vec<&Machine> = net.pods().collect();
    let ways = ways(&net);
    world.balance(&vips());
    world.endpoints(&[(pods[0], true), (pods[1], true), (pods[2], true)]);
    world.wait_for_pods(&ways, &pods[..3]);

    // Readiness goes and comes, and the set moves to another node.
    let some = &ways[..2];
    world.endpoints(&[(pods[0], true), (pods[1], false), (pods[2], true)]);
    world.wait_for_pods(some, &[pods[0], pods[2]]);
    world.endpoints(&[(pods[3], true)]);
    world.wait_for_pods(&ways, &pods[3..]);
    world.endpoints(&[]);
    world.wait_until_nobody_answers(some);
    world.endpoints(&[(pods[1], true)]);
    world.wait_for_pods(some, &[pods[1]]);

    world
        .control
        .kubectl(&["delete", "service", "web"])
        .unwrap();
    world.wait_until_nobody_answers(&ways);
    let edge = &world.agents[0];
    wait_for("the edge has no service", PATIENCE, || {
        let services = &edge.status()["services"];
        (*services == json!(0))
            .then_some(())
            .ok_or(services.clone())
    })
    .unwrap();
    assert!(edge.metric("guideway_kubernetes_sync_duration_seconds_count") > 0.0);
    assert!(edge.metric("guideway_kubernetes_synced") > 0.0);
}

#[test]
fn agents_serve_on_and_restart_without_the_api_server() {
    let net = network();
    let mut world = World::start(&net);
    let pods: Vec<&Machine> = net.pods().collect();
    let ways = ways(&net);
    world.balance(&vips());
    let all: Vec<(&Machine, bool)> = pods.iter().map(|pod| (*pod, true)).collect();
    world.endpoints(&all);
    world.wait_for_pods(&ways, &pods);

    let client = &net.clients()[0];
    let traffic = Traffic::over(Flow::open_many(client, &ways, 2));
    traffic.wait_for_rounds(ROUNDS);
    world.control.kill_api_server().unwrap();
    let mut agents = std::mem::take(&mut world.agents);
    for agent in &mut agents {
        agent.wait_for_status("the watches are broken", |status| {
            status["kubernetes"]["broken"]
                .as_array()
                .is_some_and(|broken| !broken.is_empty())
        });
        agent.restart();
        agent.wait_for_status("attached, and in wait", |status| {
            status["interfaces"][0]["mode"].is_string()
                && status["kubernetes"]["synced_seconds"].is_null()
        });
        traffic.wait_for_rounds(ROUNDS);
    }
    // New flows, too.
    Flow::open_many(client, &ways, 4);
    world.control.start_api_server().unwrap();
    world.control.wait_until_ready().unwrap();
    for agent in &mut agents {
        agent.wait_until_in_step();
    }
    traffic.wait_for_rounds(ROUNDS);
    traffic.stop_unharmed();
    world.agents = agents;
    world.endpoints(&all[..1]);
    world.wait_for_pods(&ways, &pods[..1]);
}

#[test]
fn nodes_that_move_go_come_back_and_detach_are_followed() {
    const OTHER: &str = "10.0.1.200";
    let net = network();
    let world = World::start(&net);
    let pods: Vec<&Machine> = net.pods().collect();
    let ways = &ways(&net)[..2];
    world.balance(&vips());
    let all: Vec<(&Machine, bool)> = pods.iter().map(|pod| (*pod, true)).collect();
    world.endpoints(&all);
    world.wait_for_pods(ways, &pods);

    let node = &net.nodes()[1];
    let address = |verb: &str, address: &str| {
        let mut ip = node.namespace().command("ip");
        let place = format!("{address}/24");
        lab::output(ip.args(["address", verb, &place, "dev", Machine::INTERFACE])).unwrap();
    };
    let own = node.v4().to_string();
    // Else the second address of a network goes with the first one.
    let promote = "net/ipv4/conf/all/promote_secondaries";
    node.namespace().set_sysctl(promote, "1").unwrap();
    address("add", OTHER);
    address("delete", &own);
    let addresses = json!([{"type": "InternalIP", "address": OTHER}]);
    let status = json!({"status": {"addresses": addresses}}).to_string();
    let patch = ["patch", "node", node.label(), "--subresource=status"];
    world
        .control
        .kubectl(&[&patch[..], &["--type=merge", "-p", &status]].concat())
        .unwrap();
    world.wait_for_pods(ways, &pods);

    let others_alone = || {
        wait_for_tables(&world.agents[..1], &pods[..2]);
        world.wait_for_pods(ways, &pods[..2]);
    };
    let delete = ["delete", "node", node.label()];
    world.control.kubectl(&delete).unwrap();
    others_alone();
    address("add", &own);
    // It comes back with other prefixes for pods, before its pods have addresses of them.
    let prefixes = node.pod_prefixes().unwrap().map(|prefix| {
        let address = renumbered(prefix.address);
        Cidr { address, ..prefix }.to_string()
    });
    let mut back = kubernetes::node(node);
    back["spec"] = json!({"podCIDR": prefixes[0], "podCIDRs": prefixes});
    world.apply(&back);
    world.wait_for_pods(ways, &pods);
    let _echoes = renumber_pods(&net, node);
    for mut slice in objects::slices(&net, "web", &all) {
        let endpoints = slice["endpoints"].as_array_mut().unwrap().iter_mut();
        for endpoint in endpoints.filter(|endpoint| endpoint["nodeName"] == node.label()) {
            let before = endpoint["addresses"][0].as_str().unwrap();
            let address = renumbered(before.parse().unwrap());
            endpoint["addresses"] = json!([address.to_string()]);
        }
        world.apply(&slice);
    }
    world.wait_for_pods(ways, &pods);

    guideway().ask(node.namespace(), &["detach"]).unwrap();
    let [mut detached, _] = objects::presence([node], &[]);
    detached["metadata"]["name"] = "guideway-detached-1".into();
    detached["metadata"]["labels"]["kubernetes.io/service-name"] = "guideway-detached".into();
    world.apply(&detached);
    others_alone();
}

/// Returns an address in place of a pod's, or of its prefix.
fn renumbered(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let [a, _, c, d] = address.octets();
            Ipv4Addr::new(a, 3, c, d).into()
        }
        IpAddr::V6(address) => {
            let mut segments = address.segments();
            segments[1] = 3;
            Ipv6Addr::from(segments).into()
        }
    }
}

/// Gives a node's pods other addresses, and takes theirs away; returns their servers.
fn renumber_pods(net: &Topology, node: &Machine) -> Vec<Echo> {
    let renumber = |pod: &Machine| {
        let link = pod.link().unwrap();
        let addresses = [pod.v4(), pod.v6()].map(|before| {
            let after = renumbered(before);
            let route = Route::to(Cidr::host(after)).through(&net.far_end(pod).unwrap());
            link.add_address(Cidr::host(after)).unwrap();
            link.remove_address(Cidr::host(before)).unwrap();
            node.namespace().add_route(&route).unwrap();
            node.namespace().delete_route(Cidr::host(before)).unwrap();
            SocketAddr::new(after, TARGET_PORT)
        });
        Echo::serve(pod, addresses.map(|address| (address, Protocol::Tcp)))
    };
    node.pods().iter().map(renumber).collect()
}

#[test]
fn nothing_is_programmed_before_the_seed_is_there() {
    let net = network();
    let mut world = World::new(&net);
    let pods: Vec<&Machine> = net.pods().collect();
    let ways = ways(&net);
    world.balance(&vips());
    world.endpoints(&[(pods[0], true)]);
    world.show_presence();
    world.launch();
    for agent in &mut world.agents {
        agent.wait_for_status("waits for the seed", |status| {
            let missing = status["kubernetes"]["missing"][0].as_str();
            missing.is_some_and(|missing| missing.contains("guideway-system/guideway-seed"))
        });
        assert_eq!(agent.status()["services"], json!(0));
    }
    world.write_seed();
    world.wait_for_pods(&ways, &pods[..1]);
}
