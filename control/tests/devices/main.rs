//! The whole of Guideway over devices that not every kernel has: VLANs, bonds
//! and the kernel's own tunnels. Needs root and their modules:
//! `deploy/kernel-matrix/run.sh` runs it in a virtual machine.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

#[path = "../e2e/support/mod.rs"]
mod support;

use std::{io, net::IpAddr, time::Duration};

use lab::{Machine, Namespace, Topology, Veth, output};
use support::{
    Agent, Cluster, Echo, Flow, Mode, PodService, Protocol, Service, Traffic, cluster_config,
    edge_config, node_config, resolve_way, serve_on_pods,
};

/// Questions on every flow between events.
const ROUNDS: u64 = 5;
/// Enough that a node is left out by chance once in 2^30 runs.
const FLOWS: usize = 4;
/// As many for a service alone: one of two nodes is left out by chance once in 2^23 times.
const FLOWS_OF_ONE: usize = 24;
/// As many for each of two pods: one is left out by chance once in 2^11 times.
const POD_FLOWS: usize = 12;
const VLAN: u16 = 100;
const OTHER_VLAN: u16 = 200;
const MODES: [Mode; 3] = [Mode::L2dsr, Mode::IpipV4, Mode::IpipV6];

/// Runs `ip` in a namespace.
fn ip(machine: &Namespace, arguments: &str) {
    let mut ip = machine.command("ip");
    output(ip.args(arguments.split(' '))).unwrap();
}

/// Gives an interface an address of each family.
fn add_addresses(machine: &Namespace, interface: &str, addresses: [IpAddr; 2]) {
    for address in addresses {
        let add = if address.is_ipv6() {
            format!("address add {address}/64 dev {interface} nodad")
        } else {
            format!("address add {address}/24 dev {interface}")
        };
        ip(machine, &add);
    }
}

/// Moves a machine's addresses and default routes to another of its interfaces.
fn move_addresses(machine: &Machine, interface: &str) {
    let namespace = machine.namespace();
    ip(namespace, "address flush dev eth0 scope global");
    add_addresses(namespace, interface, [machine.v4(), machine.v6()]);
    for gateway in machine.gateways() {
        ip(
            namespace,
            &format!("route replace default via {gateway} dev {interface}"),
        );
    }
}

/// Adds a VLAN to an interface, and returns its name.
fn add_vlan(machine: &Namespace, interface: &str, vlan: u16) -> String {
    let name = format!("{interface}.{vlan}");
    ip(
        machine,
        &format!("link add link {interface} name {name} type vlan id {vlan}"),
    );
    ip(machine, &format!("link set {name} up"));
    name
}

fn every_node_answers(net: &Topology, services: &[Service], each: usize) {
    let mut nodes: Vec<String> = Flow::open_many(&net.clients()[0], services, each)
        .into_iter()
        .map(|flow| flow.node)
        .collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), net.nodes().len(), "{nodes:?}");
}

/// Moves edges, nodes and the router to a VLAN.
fn tag_all(net: &Topology) {
    tag(net, net.edges().iter().chain(net.nodes()));
}

/// Moves these machines and the router's address among them to a VLAN.
fn tag<'net>(net: &Topology, machines: impl IntoIterator<Item = &'net Machine>) {
    for machine in machines {
        let vlan = add_vlan(machine.namespace(), "eth0", VLAN);
        move_addresses(machine, &vlan);
    }
    let router = net.router();
    let vlan = add_vlan(router, "fabric", VLAN);
    ip(router, "address flush dev fabric scope global");
    add_addresses(router, &vlan, net.edges()[0].gateways());
    net.route_vips(&[0]).unwrap();
}

/// Moves a node that was routed to the switch, in a VLAN of its own that edge and router are in too.
/// Returns the edge's addresses there.
fn tag_apart(net: &Topology, node: &Machine) -> [IpAddr; 2] {
    let of_edge: [IpAddr; 2] =
        ["10.0.101.11", "fd00:101::11"].map(|address| address.parse().unwrap());
    let edge = net.edges()[0].namespace();
    add_addresses(edge, &add_vlan(edge, "eth0", OTHER_VLAN), of_edge);
    ip(node.namespace(), "link delete eth0");
    connect(net, node, "eth0", node.label());
    let vlan = add_vlan(node.namespace(), "eth0", OTHER_VLAN);
    move_addresses(node, &vlan);
    let router = net.router();
    let vlan = add_vlan(router, "fabric", OTHER_VLAN);
    add_addresses(router, &vlan, node.gateways());
    of_edge
}

/// Has the switch keep the VLANs apart: the ports of nodes are in one each, and take no frames without a tag.
fn separate(switch: &Namespace, nodes: [(&Machine, u16); 2]) {
    ip(switch, "link set br0 type bridge vlan_filtering 1");
    let bridge = |arguments: &str| {
        let mut bridge = switch.command("bridge");
        output(bridge.args(arguments.split(' '))).unwrap();
    };
    for port in ["router", "edge0"] {
        for vlan in [VLAN, OTHER_VLAN] {
            bridge(&format!("vlan add dev {port} vid {vlan}"));
        }
    }
    for (node, vlan) in nodes {
        let port = node.label();
        bridge(&format!("vlan del dev {port} vid 1"));
        bridge(&format!("vlan add dev {port} vid {vlan}"));
    }
}

#[test]
fn backends_in_two_vlans_of_one_uplink_are_both_reached() {
    let net = Topology::builder()
        .nodes(1)
        .routed_nodes(1)
        .build()
        .unwrap();
    let (edge, near, apart) = (&net.edges()[0], &net.nodes()[0], &net.nodes()[1]);
    let of_edge = tag_apart(&net, apart);
    tag(&net, [edge, near]);
    separate(net.switch(), [(near, VLAN), (apart, OTHER_VLAN)]);

    let services = Service::all(&MODES);
    let _echoes = [near, apart].map(|node| Echo::start(node, &services));
    let _edge = Agent::start(edge, &edge_config(&services, net.nodes()));
    // The edge sends from the address that it has in the node's VLAN.
    let [v4, v6] = of_edge;
    let of_apart = node_config([edge]).replace(
        "trusted_edges: [",
        &format!("trusted_edges: [\"{v4}\", \"{v6}\", "),
    );
    let _near = Agent::start(near, &node_config([edge]));
    let _apart = Agent::start(apart, &of_apart);
    for service in services {
        every_node_answers(&net, &[service], FLOWS_OF_ONE);
    }
}

/// Services of all pods, at VIPs and at a NodePort.
fn of_pods(modes: &[Mode]) -> Vec<PodService<'static>> {
    let services = Service::all(modes).into_iter().zip(30_000..);
    let of_pods = services.map(|(service, port)| PodService {
        node_port: Some(port),
        ..PodService::over_all(service)
    });
    of_pods.collect()
}

/// Every pod answers at the VIPs, and at every node's NodePorts, with data in several segments.
fn every_pod_replies(net: &Topology, services: &[PodService<'_>]) {
    let client = &net.clients()[0];
    let mut every: Vec<&str> = net.pods().map(Machine::label).collect();
    every.sort_unstable();
    for of_pods in services {
        let service = of_pods.service;
        let at = |node: &Machine| Service {
            address: (
                node.address_like(service.address.ip()),
                of_pods.node_port.unwrap(),
            )
                .into(),
            ..service
        };
        for service in net.nodes().iter().map(at).chain([service]) {
            let mut answered: Vec<String> = Flow::open_many(client, &[service], POD_FLOWS)
                .into_iter()
                .map(|mut flow| {
                    assert_eq!(flow.ask_with(&"x".repeat(1200)).unwrap(), flow.node);
                    flow.node
                })
                .collect();
            answered.sort();
            answered.dedup();
            assert_eq!(answered, every, "{service}");
        }
    }
}

/// Services of all pods whose ports stay, as they must by SCTP.
fn by_sctp() -> Vec<PodService<'static>> {
    let services = Service::all(&MODES).into_iter();
    let tcp = services.filter(|service| service.protocol == Protocol::Tcp);
    tcp.map(|service| PodService {
        target_port: service.address.port(),
        ..PodService::over_all(Service {
            protocol: Protocol::Sctp,
            ..service
        })
    })
    .collect()
}

#[test]
fn replies_of_pods_leave_by_the_vlan() {
    let net = Topology::builder().pods(1).build().unwrap();
    tag_all(&net);
    let (services, by_sctp) = (of_pods(&MODES), by_sctp());
    let all = [&services[..], &by_sctp].concat();
    let _echoes = serve_on_pods(&net, &all);
    let _cluster = Cluster::start(&net, &all);
    every_pod_replies(&net, &services);
    let by_sctp: Vec<Service> = by_sctp.iter().map(|service| service.service).collect();
    every_node_answers(&net, &by_sctp, FLOWS);
}

/// What an edge sends by IP-in-IP to a node that knows less than the edge: a connection to a pod that is not there gets a RST,
/// and what no service there has goes round no circle.
fn strays_end(net: &Topology, with_devices: impl Fn(String) -> String) {
    const SHORT: Duration = Duration::from_millis(500);
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let [own, foreign] = node.pods() else {
        panic!("two pods");
    };
    let over = |only, protocol, port| {
        let all = Service::all(&[Mode::IpipV4, Mode::IpipV6]).into_iter();
        let of_protocol = all.filter(move |service| service.protocol == protocol);
        of_protocol.map(move |mut service| {
            service.address.set_port(port);
            PodService {
                only: Some(only),
                ..PodService::over_all(service)
            }
        })
    };
    let known: Vec<PodService<'_>> = over(own, Protocol::Tcp, 7000).collect();
    let misnamed: Vec<PodService<'_>> = over(foreign, Protocol::Tcp, 7000).collect();
    let unknown: Vec<PodService<'_>> = over(own, Protocol::Udp, 7100).collect();
    let at_edge: Vec<PodService<'_>> = misnamed.iter().chain(&unknown).copied().collect();
    let _echoes = serve_on_pods(net, &known);
    let agent = Agent::start(node, &with_devices(cluster_config(net, &known)));
    let config = cluster_config(net, &at_edge) + "node_health: off\n";
    let _edge = Agent::start(edge, &with_devices(config));

    let mut sent = 0;
    for client in net.clients() {
        resolve_way(node, client);
        for PodService { service, .. } in &misnamed {
            let error = Flow::resume(client, service).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{service}");
        }
        for PodService { service, .. } in &unknown {
            let error = Flow::open_within(client, service, SHORT).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{service}");
            sent += 1;
            Cluster::wait_for_packets(&agent, "drop", "sent_back", sent);
        }
    }
    assert_eq!(Cluster::packets(&agent, "pass", "decapsulated"), 0);
}

/// One client is behind the VLAN that the edge is in, the other one behind another.
#[test]
fn strays_end_at_a_node_on_a_vlan() {
    let net = Topology::builder().clients(2).nodes(1).pods(2);
    let net = net.build().unwrap();
    tag_all(&net);
    let node = net.nodes()[0].namespace();
    for (machine, interface, addresses) in [
        (node, "eth0", ["10.0.102.2", "fd00:102::2"]),
        (net.router(), "fabric", ["10.0.102.1", "fd00:102::1"]),
    ] {
        let vlan = add_vlan(machine, interface, OTHER_VLAN);
        add_addresses(machine, &vlan, addresses.map(|one| one.parse().unwrap()));
    }
    let other = &net.clients()[1];
    for (client, router) in [(other.v4(), "10.0.102.1"), (other.v6(), "fd00:102::1")] {
        ip(node, &format!("route add {client} via {router}"));
    }
    strays_end(&net, |config| config);
}

#[test]
fn strays_end_at_a_node_on_a_bond() {
    let net = Topology::builder().nodes(1).pods(2).build().unwrap();
    for machine in [&net.edges()[0], &net.nodes()[0]] {
        bond(&net, machine);
    }
    net.route_vips(&[0]).unwrap();
    strays_end(&net, |config| config.replace("name: eth0", "name: bond0"));
}

/// Gives a machine a cable to a port of the switch.
fn connect(net: &Topology, machine: &Machine, interface: &str, port: &str) {
    let switch = net.switch();
    let (near, far) = Veth::between((machine.namespace(), interface), (switch, port))
        .mtu(1600)
        .create()
        .unwrap();
    for link in [&near, &far] {
        link.disable_tx_offloads().unwrap();
    }
    far.set_bridge(&switch.link("br0").unwrap()).unwrap();
    far.attach_pass().unwrap();
}

/// Gives a machine a second cable to the switch, and one bond over both.
fn bond(net: &Topology, machine: &Machine) {
    let namespace = machine.namespace();
    connect(net, machine, "eth1", &format!("{}b", machine.label()));
    ip(
        namespace,
        "link add bond0 mtu 1600 type bond mode active-backup miimon 10",
    );
    for member in ["eth0", "eth1"] {
        ip(namespace, &format!("link set {member} down"));
        ip(namespace, &format!("link set {member} master bond0"));
    }
    ip(namespace, "link set bond0 up");
    move_addresses(machine, "bond0");
}

#[test]
fn bond_carries_replies_of_pods_and_goes_on_with_the_member_that_is_left() {
    let net = Topology::builder().pods(1).build().unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    bond(&net, edge);
    bond(&net, node);
    net.route_vips(&[0]).unwrap();

    let services = of_pods(&MODES);
    let _echoes = serve_on_pods(&net, &services);
    let config = cluster_config(&net, &services);
    let bonded = config.replace("name: eth0", "name: bond0");
    let _edge = Agent::start(edge, &bonded);
    let _bonded = Agent::start(node, &bonded);
    let _other = Agent::start(&net.nodes()[1], &config);
    every_pod_replies(&net, &services);

    let services: Vec<Service> = services.iter().map(|service| service.service).collect();
    let traffic = Traffic::over(Flow::open_many(&net.clients()[0], &services, 1));
    traffic.wait_for_rounds(ROUNDS);
    // The members that carry the traffic lose their cables.
    for machine in [edge, node] {
        net.far_end(machine).unwrap().set_down().unwrap();
    }
    every_tcp_flow_goes_on(traffic);
    every_node_answers(&net, &services, FLOWS);
}

/// A datagram on the way when a cable is cut is lost; a connection sends again.
fn every_tcp_flow_goes_on(traffic: Traffic) {
    traffic.wait_for_rounds(ROUNDS);
    let broken: Vec<String> = traffic
        .stop()
        .into_iter()
        .filter(|watched| watched.flow.service.protocol == Protocol::Tcp)
        .filter_map(|watched| watched.broken)
        .collect();
    assert!(broken.is_empty(), "{broken:?}");
}

#[test]
fn tunnel_devices_are_backends_without_an_agent() {
    let net = Topology::builder().build().unwrap();
    let edge = &net.edges()[0];
    let services = Service::all(&[Mode::IpipV4, Mode::IpipV6]);
    let mut echoes = Vec::new();
    for node in net.nodes() {
        let (namespace, v4, v6) = (node.namespace(), node.v4(), node.v6());
        for tunnel in [
            format!("in44 type ipip mode ipip local {v4} remote any"),
            format!("in64 type sit mode ip6ip local {v4} remote any"),
            format!("in6 type ip6tnl mode any local {v6} remote any"),
        ] {
            ip(namespace, &format!("link add {tunnel}"));
        }
        for device in ["in44", "in64", "in6"] {
            ip(namespace, &format!("link set {device} up"));
        }
        echoes.push(Echo::start(node, &services));
    }
    let _edge = Agent::start(edge, &edge_config(&services, net.nodes()));
    every_node_answers(&net, &services, FLOWS);
}
