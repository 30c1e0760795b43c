//! An edge whose next hops lie behind a bridge, which takes no frames from XDP.

use std::net::{IpAddr, SocketAddr};

use lab::{Machine, Signal, Topology, output, serve_page, vip_v4, vip_v6, wait_until};
use serde_json::Value;

use super::{MEND, SHORT, count, wait_until_mending};
use crate::support::{
    Agent, Cluster, Flow, Mode, PodService, Protocol, Service, TIMEOUT, cluster_config, nat_config,
    serve_on_pods,
};
use crate::uplinks::{lay_cable, second, with_second_uplink};

const FLOWS: usize = 8;
const ROUNDS: usize = 50;
const MODES: [Mode; 3] = [Mode::L2dsr, Mode::IpipV4, Mode::IpipV6];

/// Makes the machine's interface the port of a bridge, which gets the addresses and the routes.
fn put_bridge_above(machine: &Machine) {
    let ip = |arguments: String| {
        output(machine.namespace().command("ip").args(arguments.split(' '))).unwrap();
    };
    let port = machine.link().unwrap();
    let bridge = machine.namespace().add_bridge("br0").unwrap();
    bridge.set_mtu(1600).unwrap();
    let mac = port.mac().map(|byte| format!("{byte:02x}")).join(":");
    ip(format!("link set br0 address {mac}"));
    ip(format!("address flush dev {}", port.name()));
    port.set_bridge(&bridge).unwrap();
    ip(format!("address add {}/24 dev br0", machine.v4()));
    ip(format!("address add {}/64 dev br0 nodad", machine.v6()));
    for gateway in machine.gateways() {
        ip(format!("route replace default via {gateway} dev br0"));
    }
    bridge.wait_until_ready().unwrap();
}

/// Opens flows to each service, asks by each of them again and again, and returns the number of questions.
fn ask_much(net: &Topology, services: &[Service]) -> u64 {
    let mut flows = Flow::open_many(&net.clients()[0], services, FLOWS);
    for _ in 1..ROUNDS {
        for flow in &mut flows {
            let node = flow.ask().unwrap();
            assert_eq!(node, flow.node, "{}", flow.service);
        }
    }
    (flows.len() * ROUNDS) as u64
}

/// Waits until every punted packet is known to have been carried; returns their number.
fn carried(agent: &Agent<'_>) -> u64 {
    let mut carried = 0;
    wait_until("all that was punted is carried", TIMEOUT, || {
        let drops = agent.json(&["drops"]);
        let packets = |reason| {
            let mut rows = drops.as_array().unwrap().iter();
            let row = rows.find(|row| row["reason"] == reason).unwrap();
            row["packets"].as_u64().unwrap()
        };
        carried = packets("mend_carried");
        carried == packets("mend_taken") && packets("mend_carry_full") == 0
    })
    .unwrap();
    carried
}

fn assert_lost(net: &Topology, services: &[Service]) {
    for service in services {
        let flow = Flow::open_within(&net.clients()[0], service, SHORT);
        assert!(flow.is_err(), "{service}");
    }
}

/// Returns the findings of `guideway check` about the bridge.
fn findings(edge: &Machine, config: &str) -> Vec<Value> {
    let path = edge.namespace().write_file("check.yaml", config).unwrap();
    let mut check = edge.namespace().command(env!("CARGO_BIN_EXE_guideway"));
    check.args(["check", "--json", "--config"]).arg(path);
    let found: Vec<Value> = serde_json::from_slice(&check.output().unwrap().stdout).unwrap();
    let is_about_bridge = |finding: &Value| finding["subject"] == "br0";
    found.into_iter().filter(is_about_bridge).collect()
}

#[test]
fn edge_whose_way_to_the_nodes_is_a_bridge_serves_without_loss() {
    let net = Topology::builder().pods(1).build().unwrap();
    let edge = &net.edges()[0];
    put_bridge_above(edge);
    let over_pods: Vec<PodService<'_>> = Service::all(&MODES)
        .into_iter()
        .map(PodService::over_all)
        .collect();
    let services: Vec<Service> = over_pods.iter().map(|one| one.service).collect();
    let _echoes = serve_on_pods(&net, &over_pods);
    let config = cluster_config(&net, &over_pods);
    let Cluster {
        edge: mut agent,
        nodes: _nodes,
    } = Cluster::start(&net, &over_pods);

    let unsupported = count(&agent, "fail", "unsupported");
    assert_lost(&net, &services);
    assert!(count(&agent, "fail", "unsupported") >= unsupported + services.len() as u64);
    assert_eq!(count(&agent, "punt", "punted_carry"), 0);
    let found = findings(edge, &config);
    assert_eq!(found[0]["severity"], "WARN", "{found:?}");

    let with_mending = config + MEND;
    let found = findings(edge, &with_mending);
    assert_eq!(found[0]["severity"], "OK", "{found:?}");
    agent.write_config(&with_mending);
    wait_until_mending(&agent);
    let nodes: Vec<IpAddr> = net
        .nodes()
        .iter()
        .flat_map(|node| [node.v4(), node.v6()])
        .collect();
    let is_carrying = |agent: &Agent<'_>| {
        agent.wait_for_answer("all next hops are carried", &["status"], |status| {
            status["mend"]["carried"]["br0"] == nodes.len()
        });
    };
    is_carrying(&agent);
    let asked = ask_much(&net, &services);
    let carried_of_all = carried(&agent);
    assert!(carried_of_all >= asked, "{carried_of_all} of {asked}");
    assert!(count(&agent, "punt", "punted_carry") >= asked);
    let page = agent.page(&["status"]);
    let told = "carried, about 1 us of one CPU for each packet: 4 next hops by br0";
    assert!(page.contains(told), "{page}");
    let backends = agent.page(&["backends"]);
    assert!(backends.contains("br0 (carried)"), "{backends}");
    let metrics = agent.get("/metrics");
    let metric = "guideway_mend_carried_next_hops{device=\"br0\"} 4";
    assert!(metrics.contains(metric), "{metrics}");

    // Without an agent, it is as without mending; the next one goes on.
    agent.signal(Signal::SIGKILL);
    agent.wait_for_end();
    assert_lost(&net, &services);
    agent.start_again();
    wait_until_mending(&agent);
    is_carrying(&agent);
    let asked = ask_much(&net, &services);
    assert!(carried(&agent) >= asked);
}

/// Gets the page of a VIP, within so many seconds.
fn page_of(client: &Machine, vip: SocketAddr, seconds: &str) -> Result<String, String> {
    let mut curl = client.namespace().command("curl");
    let page = output(curl.args(["-sSf", "-m", seconds, &format!("http://{vip}/")]));
    page.map_err(|error| error.to_string())
}

/// The packets of clients come in by one uplink, and the replies by another one.
#[test]
fn replies_by_nat_leave_by_an_uplink_that_takes_no_frames() {
    const PAGE: usize = 200_000;
    let net = Topology::builder().nodes(1).build().unwrap();
    let (client, edge, host) = (&net.clients()[0], &net.edges()[0], &net.nodes()[0]);
    let [_near, far] = lay_cable(edge.namespace(), (host.namespace(), "eth1"));
    far.attach_pass().unwrap();
    net.far_end(edge).unwrap().detach_xdp().unwrap();
    let vips = [IpAddr::from(vip_v4(1)), vip_v6(1).into()].map(|vip| SocketAddr::new(vip, 80));
    let hosts = second(2).map(|host| SocketAddr::new(host, 8080));
    let page = "x".repeat(PAGE);
    let _server = serve_page(host, &hosts, &page).unwrap();
    let services = vips.into_iter().zip(hosts);
    let config = with_second_uplink(&nat_config(&[Protocol::Tcp], services));
    let agent = Agent::start(edge, &config);
    for vip in vips {
        assert!(page_of(client, vip, "1").is_err(), "{vip}");
    }

    agent.write_config(&(config + MEND));
    wait_until_mending(&agent);
    for vip in vips {
        let got = page_of(client, vip, "60").unwrap();
        assert!(got == page, "{vip}: {} bytes", got.len());
    }
    let segments = 2 * PAGE as u64 / 1500;
    assert!(carried(&agent) > segments);
}
