//! Interfaces come, go, change their names and lose their carrier or program.

use std::{thread, time::Duration};

use lab::{Machine, Signal, Topology, Veth, output, wait_until};
use serde_json::Value;

use crate::support::{Agent, Echo, Flow, Mode, Service, TIMEOUT, edge_config, node_config};

/// As the configuration of an edge names its interface.
const ETH0: &str = "{ name: eth0, mode: native }";

/// Runs `ip` on a machine and returns what it prints.
fn ip(machine: &Machine, arguments: &[&str]) -> String {
    output(machine.namespace().command("ip").args(arguments)).unwrap()
}

fn add_extra(machine: &Machine) {
    let machine = machine.namespace();
    Veth::between((machine, "extra0"), (machine, "extra1"))
        .create()
        .unwrap();
}

/// The mode in which the second interface is attached, if it is.
fn second_mode(status: &Value) -> &Value {
    &status["interfaces"][1]["mode"]
}

#[test]
fn interfaces_are_followed_and_may_be_added_and_removed() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let edge = &net.edges()[0];
    let one = edge_config(&Service::all(&[Mode::L2dsr]), net.nodes());
    let two = one.replace(ETH0, &format!("{ETH0}, {{ name: extra0 }}"));
    add_extra(edge);
    let mut agent = Agent::start(edge, &one);
    agent.write_config(&two);
    let status = ["status"];
    agent.wait_for_answer("the second is attached", &status, |status| {
        second_mode(status).is_string()
    });

    ip(edge, &["link", "delete", "extra0"]);
    agent.wait_for_answer("the loss is noticed", &status, |status| {
        second_mode(status).is_null()
    });
    add_extra(edge);
    agent.wait_for_answer("it is attached again", &status, |status| {
        second_mode(status).is_string()
    });
    assert!(ip(edge, &["link", "show", "extra0"]).contains("xdp"));

    agent.write_config(&one);
    agent.wait_for_answer("the second is given up", &status, |status| {
        status["interfaces"].as_array().unwrap().len() == 1
    });
    assert!(!ip(edge, &["link", "show", "extra0"]).contains("xdp"));
    assert!(agent.process().is_running());
}

#[test]
fn interface_with_another_name_is_taken_over_under_it() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let edge = &net.edges()[0];
    let config = edge_config(&Service::all(&[Mode::L2dsr]), net.nodes())
        .replace(ETH0, &format!("{ETH0}, {{ name: extra0 }}"));
    add_extra(edge);
    let agent = Agent::start(edge, &config);
    let rename = |old, new| ip(edge, &["link", "set", old, "name", new]);
    let status = ["status"];

    // Back under its old name it is attached without waiting for the timer.
    rename("extra0", "extra2");
    agent.wait_for_answer("the loss is noticed", &status, |status| {
        second_mode(status).is_null()
    });
    rename("extra2", "extra0");
    agent.wait_for_answer("it is found again", &status, |status| {
        second_mode(status).is_string()
    });

    rename("extra0", "extra2");
    agent.wait_for_answer("the loss is noticed", &status, |status| {
        second_mode(status).is_null()
    });
    agent.write_config(&config.replace("extra0", "extra2"));
    agent.wait_for_answer("it is attached under its new name", &status, |status| {
        status["interfaces"][1]["name"] == "extra2" && second_mode(status).is_string()
    });
    let detached = "detached from eth0, extra2; no pins are left\n";
    assert_eq!(agent.page(&["detach"]), detached);
}

#[test]
fn lost_carrier_is_reported_and_its_return_restores_traffic() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let services = Service::all(&[Mode::IpipV4]);
    let _echo = Echo::start(node, &services);
    let _node = Agent::start(node, &node_config([edge]));
    let mut agent = Agent::start(edge, &edge_config(&services, [node]));

    net.far_end(edge).unwrap().set_down().unwrap();
    agent.wait_for_answer("the loss is noticed", &["status"], |status| {
        status["next_hops"]["resolved"] == 0
    });
    assert_eq!(agent.json(&["backends"])[0]["next_hop"], "link down");
    net.far_end(edge).unwrap().set_up().unwrap();
    agent.wait_until_ready();
    Flow::open_many(&net.clients()[0], &services, 2);
}

#[test]
fn program_that_somebody_removed_is_attached_again() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let edge = &net.edges()[0];
    let config = edge_config(&Service::all(&[Mode::L2dsr]), net.nodes());
    let mut agent = Agent::start(edge, &config);
    let remove = "rm /sys/fs/bpf/guideway/v*/links/xdp-eth0";
    output(edge.namespace().command("sh").args(["-c", remove])).unwrap();
    // The kernel frees a link some time after its last reference: until then nothing is missing.
    wait_until("the loss is noticed", TIMEOUT, || {
        agent.signal(Signal::SIGHUP);
        thread::sleep(Duration::from_millis(100));
        let log = agent.process().stderr();
        log.contains("somebody removed the program")
    })
    .unwrap();
    agent.wait_until_ready();
    assert!(ip(edge, &["link", "show", "eth0"]).contains("prog/xdp"));
}
