//! Clients on the segment of the edges, with no router in front: `announce` in the configuration.

use std::net::IpAddr;

use lab::{Cidr, Machine, Route, Topology, output, wait_until};

use crate::support::{Agent, Echo, Flow, Mode, Service, TIMEOUT, edge_config};

/// What the pages have typed on the segment of the clients.
const ASK_NEIGHBOURS: &str = "arping -I eth0 192.0.2.10";
const ANNOUNCE: &str = "announce: { interfaces: [eth0] }\n";

/// Makes a machine take the VIPs of services for its neighbours' addresses.
fn expect_on_link(client: &Machine, services: &[Service]) {
    let link = client.link().unwrap();
    for service in services {
        let route = Route::to(Cidr::host(service.address.ip())).through(&link);
        client.namespace().replace_route(&route).unwrap();
    }
}

/// Returns what the neighbour table of a machine says of an address.
fn neighbour(machine: &Machine, address: IpAddr) -> String {
    let mut command = machine.namespace().command("ip");
    output(command.args(["neighbour", "show", "to", &address.to_string()])).unwrap()
}

/// Tells whether a machine takes all these services to be at another one.
fn sends_to(client: &Machine, services: &[Service], edge: &Machine) -> bool {
    let mac = mac(edge);
    let mut services = services.iter();
    services.all(|service| neighbour(client, service.address.ip()).contains(&mac))
}

fn mac(machine: &Machine) -> String {
    let [a, b, c, d, e, f] = machine.mac();
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// Returns who answers a machine's ARP requests for an address, as the pages have it asked.
fn answering(client: &Machine, address: IpAddr) -> String {
    let asked = ASK_NEIGHBOURS.replace("192.0.2.10", &address.to_string());
    let mut words = asked.split(' ');
    let mut command = client.namespace().command(words.next().unwrap());
    // It asks until it is ended otherwise.
    command.args(["-c", "1"]).args(words);
    output(&mut command).unwrap().to_lowercase()
}

#[test]
fn address_moves_to_another_edge_with_its_flows() {
    let net = Topology::builder().edges(2).nodes(2).build().unwrap();
    let services = Service::all(&[Mode::L2dsr]);
    let [node, client] = net.nodes() else {
        panic!("two nodes were asked for");
    };
    let _echo = Echo::start(node, &services);
    expect_on_link(client, &services);
    let silent = edge_config(&services, [node]);
    let announcing = silent.clone() + ANNOUNCE;
    let [first, second] = net.edges() else {
        panic!("two edges were asked for");
    };
    let first_agent = Agent::start(first, &announcing);
    let mut flows = Flow::open_many(client, &services, 4);
    assert!(sends_to(client, &services, first));
    let address = services[0].address.ip().to_string();
    let at = first_agent.json(&["which", "--address", &address]);
    assert_eq!(at["announced_on"], serde_json::json!(["eth0"]), "{at}");
    assert!(first_agent.page(&["status"]).contains("announced on eth0"));
    let answer = answering(client, services[0].address.ip());
    assert!(answer.contains(&mac(first)), "{answer}");
    let series = format!("guideway_announced{{address=\"{address}\",interface=\"eth0\"}} 1");
    let is_told = || {
        first_agent
            .get("/metrics")
            .lines()
            .any(|line| line == series)
    };
    assert!(is_told(), "{series}");

    let _second_agent = Agent::start(second, &announcing);
    wait_until("the client knows the second edge", TIMEOUT, || {
        sends_to(client, &services, second)
    })
    .unwrap();
    first_agent.write_config(&silent);
    first_agent.wait_for_reloads(2);
    let at = first_agent.json(&["which", "--address", &address]);
    assert_eq!(at["announced_on"], serde_json::json!([]), "{at}");
    assert!(!is_told(), "{series}");
    for flow in &mut flows {
        assert_eq!(flow.ask().unwrap(), node.label());
    }
    for flow in &mut Flow::open_many(client, &services, 4) {
        assert_eq!(flow.ask().unwrap(), node.label());
    }
    // An announcement that the first repeated before may have come later than the second's.
    wait_until("the client stays with the second edge", TIMEOUT, || {
        sends_to(client, &services, second)
    })
    .unwrap();
}

#[test]
fn interface_that_hears_nobody_is_named() {
    const PROBLEM: &str =
        "interface eth7: nothing can be announced on it: it is not there, or not Ethernet";
    let net = Topology::builder().nodes(1).build().unwrap();
    let services = Service::all(&[Mode::L2dsr]);
    let config = edge_config(&services, net.nodes());
    let config = config + "announce: { interfaces: [eth0, eth7] }\n";
    let agent = Agent::launch(&net.edges()[0], &config);
    agent.wait_for_answer("the interface is named", &["status"], |status| {
        status["problems"] == serde_json::json!([PROBLEM])
    });
}
