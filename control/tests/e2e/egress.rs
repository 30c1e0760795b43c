//! The egress program on a node: it stays across agents and goes with the role.

use fastpath::facts::{self, TcxProgram};
use lab::{Machine, Signal, Topology, output, wait_for, wait_until};
use serde_json::json;

use crate::support::{Agent, TIMEOUT, node_config};

fn egress(machine: &Machine) -> Vec<TcxProgram> {
    let egress = machine
        .namespace()
        .run(|| facts::egress(Machine::INTERFACE).unwrap());
    assert_eq!(egress.filters, [], "tcx leaves no filter");
    egress.tcx.unwrap()
}

/// Gets a page of the agent's own listener, headers included.
fn get(machine: &Machine, path: &str) -> String {
    let url = format!("http://127.0.0.1:9750{path}");
    let mut curl = machine.namespace().command("curl");
    output(curl.args(["-sSi", &url])).unwrap()
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
fn egress_program_that_somebody_removed_makes_unhealthy_until_it_is_back() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let node = &net.nodes()[0];
    let agent = Agent::start(node, &node_config(net.edges()));
    assert!(get(node, "/healthz").starts_with("HTTP/1.1 200 "));

    // The agent, which looks by itself now and then, may have put it back before it is asked.
    let told = wait_for("an agent without its program is asked", TIMEOUT, || {
        let [before] = egress(node)[..] else {
            return Err("not attached".to_owned());
        };
        let remove = "rm /sys/fs/bpf/guideway/v*/links/egress-eth0";
        output(node.namespace().command("sh").args(["-c", remove])).unwrap();
        // The kernel frees a link some time after its last reference.
        wait_until("the program is gone", TIMEOUT, || {
            !egress(node).contains(&before)
        })
        .unwrap();
        let told = get(node, "/healthz");
        let is_unhealthy = told.starts_with("HTTP/1.1 503 ");
        if is_unhealthy { Ok(told) } else { Err(told) }
    })
    .unwrap();
    assert!(told.contains("\nno egress program on eth0: "), "{told}");
    assert!(told.contains("`guideway check`"), "{told}");

    // Who asked has had the agent look.
    wait_for("the program is back", TIMEOUT, || {
        let told = get(node, "/healthz");
        let is_healthy = told.starts_with("HTTP/1.1 200 ");
        if is_healthy { Ok(()) } else { Err(told) }
    })
    .unwrap();
    assert_eq!(egress(node).len(), 1);
    let metrics = get(node, "/metrics");
    let attached = "guideway_egress_attached{device=\"eth0\",mode=\"tcx\"} 1\n";
    assert!(metrics.contains(attached), "{metrics}");
    drop(agent);
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
