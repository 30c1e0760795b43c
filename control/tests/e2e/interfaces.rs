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

/// The names of the interfaces in the status, with `+` before those that have the program.
fn interface_names(status: &Value) -> String {
    let rows = status["interfaces"].as_array().into_iter().flatten();
    let names = rows.map(|row| {
        let name = row["name"].as_str().unwrap_or_default();
        let mark = if row["mode"].is_string() { "+" } else { "" };
        format!("{mark}{name}")
    });
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn pattern_follows_devices_and_never_takes_cables() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let edge = &net.edges()[0];
    let config = edge_config(&Service::all(&[Mode::L2dsr]), net.nodes())
        .replace(ETH0, "{ pattern: 'extra?' }");
    let agent = Agent::launch(edge, &config);
    let status = ["status"];
    let nothing = agent.wait_for_answer("the agent runs without interfaces", &status, |status| {
        interface_names(status) == "extra?"
    });
    let problem = |status: &Value| status["problems"].to_string();
    let missing = "no device matches the pattern extra?; the devices here are ";
    assert!(problem(&nothing).contains(missing), "{nothing}");
    assert!(problem(&nothing).contains("eth0"), "{nothing}");

    // Both ends of a cable match. Only one gets a network, and so is an uplink.
    add_extra(edge);
    ip(
        edge,
        &["address", "add", "198.51.100.1/24", "dev", "extra0"],
    );
    let found = agent.wait_for_answer("the uplink is found", &status, |status| {
        interface_names(status) == "+extra0"
    });
    assert!(!problem(&found).contains(missing), "{found}");
    assert!(ip(edge, &["link", "show", "extra0"]).contains("prog/xdp"));
    assert!(!ip(edge, &["link", "show", "extra1"]).contains("prog/xdp"));

    ip(edge, &["link", "delete", "extra0"]);
    agent.wait_for_answer("the loss is a problem again", &status, |status| {
        problem(status).contains(missing)
    });
}

#[test]
fn default_route_is_followed_and_its_absence_takes_no_program_away() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let services = Service::all(&[Mode::IpipV4]);
    let _echo = Echo::start(node, &services);
    let _node = Agent::start(node, &node_config([edge]));
    let config = edge_config(&services, [node]).replace(ETH0, "{ default_route: true }");
    let mut agent = Agent::start(edge, &config);
    let status = ["status"];
    agent.wait_for_answer("the uplink has the program", &status, |status| {
        interface_names(status) == "+eth0"
    });
    Flow::open_many(&net.clients()[0], &services, 2);

    for family in ["-4", "-6"] {
        ip(edge, &[family, "route", "delete", "default"]);
    }
    agent.signal(Signal::SIGHUP);
    let reloaded = agent.wait_for_reloads(2);
    assert_eq!(interface_names(&reloaded), "+eth0");

    add_extra(edge);
    ip(
        edge,
        &["address", "add", "198.51.100.1/24", "dev", "extra0"],
    );
    for end in ["extra0", "extra1"] {
        ip(edge, &["link", "set", end, "up"]);
    }
    ip(edge, &["route", "add", "default", "via", "198.51.100.2"]);
    agent.wait_for_answer("the new way has the program", &status, |status| {
        interface_names(status) == "+extra0"
    });
    assert!(!ip(edge, &["link", "show", "eth0"]).contains("prog/xdp"));
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
