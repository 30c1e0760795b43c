//! What threads over AF_XDP sockets need is named before they start, and their memory follows the MTU.

use std::{process::Command, time::Duration};

use fastpath::port::{
    Port,
    xsk::{Options, Xsk},
};
use lab::{Machine, Topology, wait_for};
use serde_json::Value;

use crate::support::{Agent, Echo, Flow, Mode, Service, TIMEOUT, edge_config, node_config};

const SERVICES: [Mode; 1] = [Mode::L2dsr];
/// How long to wait for an answer before the next question.
const SHORT: Duration = Duration::from_millis(500);

/// Has another program hold the edge's queue.
fn hold_queue(edge: &Machine) -> Port<Xsk> {
    let open = || Port::open("eth0", 0, &Options::default()).unwrap();
    edge.namespace().run(open)
}

/// Returns what `guideway check`, run by this command, says by this name.
fn finding(mut guideway: Command, edge: &Machine, config: &str, name: &str) -> Value {
    let path = edge.namespace().write_file("check.yaml", config).unwrap();
    guideway.args(["check", "--json", "--config"]).arg(path);
    let findings: Value = serde_json::from_slice(&guideway.output().unwrap().stdout).unwrap();
    let mut findings = findings.as_array().unwrap().iter();
    let found = findings.find(|finding| finding["check"] == name);
    found.unwrap_or_else(|| panic!("no finding {name}")).clone()
}

fn guideway(edge: &Machine) -> Command {
    edge.namespace().command(env!("CARGO_BIN_EXE_guideway"))
}

fn config(net: &Topology) -> String {
    let services = Service::all(&SERVICES);
    format!("datapath: afxdp\n{}", edge_config(&services, net.nodes()))
}

#[test]
fn queue_of_another_program_is_named() {
    let net = Topology::builder().build().unwrap();
    let edge = &net.edges()[0];
    let config = config(&net);
    let _held = hold_queue(edge);
    let named = finding(guideway(edge), edge, &config, "AF_XDP queues");
    assert_eq!(named["severity"], "FAIL", "{named}");
    let detail = named["detail"].as_str().unwrap();
    assert!(detail.contains("on 1 of 1 queues (0)"), "{named}");
}

#[test]
fn queue_of_another_program_is_taken_once_it_is_free() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let services = Service::all(&SERVICES);
    let _echo = Echo::start(node, &services);
    let _nodes = Agent::start_all(net.nodes(), &node_config([edge]));
    let held = hold_queue(edge);
    let mut agent = Agent::launch(edge, &config(&net));
    agent.wait_for_answer("the queue is named", &["status"], |status| {
        let problems = status["problems"].to_string();
        problems.contains("interface eth0: another AF_XDP socket has queue 0")
    });
    drop(held);
    agent.wait_for_answer("no problem is left", &["status"], |status| {
        status["problems"] == serde_json::json!([])
    });
    agent.wait_until_ready();
    Flow::open_many(&net.clients()[0], &services, 1);
}

#[test]
fn free_queue_is_found_free() {
    let net = Topology::builder().build().unwrap();
    let edge = &net.edges()[0];
    let found = finding(guideway(edge), edge, &config(&net), "AF_XDP queues");
    assert_eq!(found["severity"], "OK", "{found}");
}

#[test]
fn limit_of_locked_memory_is_named() {
    let net = Topology::builder().build().unwrap();
    let edge = &net.edges()[0];
    let mut confined = edge.namespace().command("prlimit");
    confined.args([
        "--memlock=1048576",
        "setpriv",
        "--bounding-set=-ipc_lock,-sys_resource",
        env!("CARGO_BIN_EXE_guideway"),
    ]);
    let found = finding(confined, edge, &config(&net), "file");
    assert_eq!(found["severity"], "FAIL", "{found}");
    let detail = found["detail"].as_str().unwrap();
    assert!(
        detail.contains("datapath \"afxdp\": 1 receive queues lock 16 MiB of memory"),
        "{found}"
    );
    let remedy = found["remedy"].as_str().unwrap();
    assert!(remedy.contains("LimitMEMLOCK="), "{found}");
}

#[test]
fn interface_whose_packets_find_no_buffer_is_named() {
    let net = Topology::builder().build().unwrap();
    let edge = &net.edges()[0];
    edge.link().unwrap().set_mtu(9000).unwrap();
    let found = finding(guideway(edge), edge, &config(&net), "file");
    assert_eq!(found["severity"], "FAIL", "{found}");
    let detail = found["detail"].as_str().unwrap();
    assert!(detail.contains("interface eth0 has MTU 9000"), "{found}");
}

#[test]
fn buffers_grow_with_the_mtu() {
    const LARGE_MTU: u32 = 3000;
    let net = Topology::builder()
        .nodes(1)
        .client_mtu(LARGE_MTU)
        .fabric_mtu(LARGE_MTU)
        .build()
        .unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let services = Service::all(&SERVICES);
    let _echo = Echo::start(node, &services);
    edge.link().unwrap().set_mtu(1500).unwrap();
    let _edge = Agent::start(edge, &config(&net));
    let _nodes = Agent::start_all(net.nodes(), &node_config([edge]));
    edge.link().unwrap().set_mtu(LARGE_MTU).unwrap();
    let large = "x".repeat(2500);
    for service in services {
        // What comes before the agent has seen the MTU is lost.
        let ask = || Flow::open_within(&net.clients()[0], &service, SHORT)?.ask_with(&large);
        wait_for("large packets pass", TIMEOUT, ask).unwrap();
    }
}
