//! The egress program on a node: it stays across agents and goes with the role.

use fastpath::facts::{self, TcxProgram};
use lab::{Machine, Signal, Topology, wait_for};
use serde_json::json;

use crate::support::{Agent, TIMEOUT, node_config};

fn egress(machine: &Machine) -> Vec<TcxProgram> {
    let egress = machine
        .namespace()
        .run(|| facts::egress(Machine::INTERFACE).unwrap());
    assert_eq!(egress.filters, [], "tcx leaves no filter");
    egress.tcx.unwrap()
}

#[test]
fn node_has_the_egress_program_until_it_is_detached() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let node = &net.nodes()[0];
    let mut agent = Agent::start(node, &node_config(net.edges()));
    let status = agent.json(&["status"]);
    assert_eq!(
        status["egress"],
        json!([{ "device": "eth0", "mode": "tcx", "note": null }])
    );
    let page = agent.page(&["status"]);
    assert!(page.contains("EGRESS  MODE\neth0    tcx\n"), "{page}");
    let [first] = egress(node)[..] else {
        panic!("{:?}", egress(node));
    };

    agent.signal(Signal::SIGTERM);
    agent.wait_for_end();
    assert_eq!(egress(node), [first], "it stays without an agent");
    agent.start_again();
    let [second] = egress(node)[..] else {
        panic!("{:?}", egress(node));
    };
    assert_eq!(second.link, first.link);
    assert_ne!(second.program, first.program);

    agent.json(&["detach"]);
    agent.wait_for_end();
    assert_eq!(egress(node), []);
}

#[test]
fn edge_alone_has_no_egress_program() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let node = &net.nodes()[0];
    let config = node_config(net.edges());
    let agent = Agent::start(node, &config);
    assert_eq!(egress(node).len(), 1);

    agent.write_config(&config.replace("roles: [node]", "roles: [edge]"));
    wait_for("it is taken off", TIMEOUT, || match egress(node).len() {
        0 => Ok(()),
        left => Err(format!("{left} programs")),
    })
    .unwrap();
    agent.wait_for_answer("status shows none", &["status"], |status| {
        status["egress"] == json!([])
    });
}
