//! The whole agent in namespaces: traffic, reload, restart, detach. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "a panic at the place is how a test fails"
)]

mod support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lab::{Machine, Process, Signal, Topology, vip_v4, vip_v6};
use serde_json::Value;
use support::{Agent, Connection, GUIDEWAY, PORT, TIMEOUT, edge_config, node_config, serve_lines};

/// Asks over new connections until every node has answered; returns the number of questions.
fn reach_every_node(net: &Topology, vip: IpAddr) -> usize {
    let mut missing: BTreeSet<&str> = net.nodes().iter().map(Machine::label).collect();
    for questions in 1..=200 {
        let name = Connection::open(&net.clients()[0], vip).ask().unwrap();
        missing.remove(name.as_str());
        if missing.is_empty() {
            return questions;
        }
    }
    panic!("never reached: {missing:?}");
}

fn nodes_like(net: &Topology, family: IpAddr) -> Vec<(IpAddr, u32)> {
    net.nodes()
        .iter()
        .map(|node| (node.address_like(family), 1))
        .collect()
}

#[test]
fn traffic_flows_in_every_mode_and_the_commands_show_it() {
    let net = Topology::builder().nodes(2).build().unwrap();
    let _nodes: Vec<Agent<'_>> = net
        .nodes()
        .iter()
        .map(|node| Agent::start(node, &node_config(&net)))
        .collect();
    let edge = &net.edges()[0];
    for vip in [IpAddr::from(vip_v4(1)), IpAddr::from(vip_v6(1))] {
        serve_lines(&net, vip);
        let other_family: IpAddr = if vip.is_ipv4() { edge.v6() } else { edge.v4() };
        for (mode, family) in [("l2dsr", vip), ("ipip", vip), ("ipip", other_family)] {
            let mut agent = Agent::start(edge, &edge_config(vip, mode, &nodes_like(&net, family)));
            agent.wait_until_resolved();
            let questions = reach_every_node(&net, vip);

            let services = agent.json(&["services"]);
            assert_eq!(services[0]["name"], "lines");
            assert_eq!(services[0]["mode"], mode);
            assert!(
                services[0]["packets"].as_u64().unwrap() >= 5 * questions as u64,
                "{services}"
            );
            let backends = agent.json(&["backends"]);
            let slots: u64 = backends
                .as_array()
                .unwrap()
                .iter()
                .map(|row| row["slots"].as_u64().unwrap())
                .sum();
            assert_eq!(
                slots,
                backends[0]["table_size"].as_u64().unwrap(),
                "{backends}"
            );
            assert_eq!(backends[0]["next_hop"], "eth0");
            let drops = agent.json(&["drops"]);
            let dropped: Vec<&Value> = drops
                .as_array()
                .unwrap()
                .iter()
                .filter(|row| row["action"] == "drop" && row["packets"] != 0)
                .collect();
            assert!(dropped.is_empty(), "{dropped:?}");
            for page in ["status", "services", "backends", "drops"] {
                let output = agent.command(&[page]);
                assert!(output.status.success(), "{output:?}");
            }
            assert_which_tells_the_truth(&net, &agent, vip, family);
            detach(&mut agent, "eth0");
        }
    }
}

/// Asks over a few connections and compares with what `which` says of them.
fn assert_which_tells_the_truth(net: &Topology, agent: &Agent<'_>, vip: IpAddr, family: IpAddr) {
    let service = format!("{}/tcp", std::net::SocketAddr::new(vip, PORT));
    for _ in 0..5 {
        let mut connection = Connection::open(&net.clients()[0], vip);
        let from = connection.local().to_string();
        let which = agent.json(&["which", "--service", &service, "--from", &from]);
        assert_eq!(which["action"], "forward", "{which}");
        let name = connection.ask().unwrap();
        let node = net
            .nodes()
            .iter()
            .find(|node| node.label() == name)
            .unwrap();
        assert_eq!(
            which["choice"]["backend"],
            node.address_like(family).to_string(),
            "{which}"
        );
    }
}

fn detach(agent: &mut Agent<'_>, interfaces: &str) {
    let output = agent.command(&["detach"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        text,
        format!("detached from {interfaces}; no pins are left\n")
    );
    let status = agent.process().wait(TIMEOUT).unwrap();
    assert_eq!(status.code(), Some(0));
}

/// Keeps asking over one connection while `during` runs; every answer must come from the same node.
fn while_asking(net: &Topology, vip: IpAddr, during: impl FnOnce()) -> usize {
    let mut connection = Connection::open(&net.clients()[0], vip);
    let first = connection.ask().unwrap();
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut answers = 0;
            while !end.load(Ordering::Relaxed) {
                assert_eq!(connection.ask().expect("the connection lives"), first);
                answers += 1;
            }
            answers
        });
        during();
        end.store(true, Ordering::Relaxed);
        asking.join().unwrap()
    })
}

#[test]
fn restart_and_reload_keep_established_connections() {
    let net = Topology::builder().nodes(2).build().unwrap();
    let _nodes: Vec<Agent<'_>> = net
        .nodes()
        .iter()
        .map(|node| Agent::start(node, &node_config(&net)))
        .collect();
    for vip in [IpAddr::from(vip_v4(1)), IpAddr::from(vip_v6(1))] {
        serve_lines(&net, vip);
        let config = edge_config(vip, "ipip", &nodes_like(&net, vip));
        let mut agent = Agent::start(&net.edges()[0], &config);
        agent.wait_until_resolved();
        let packets = |agent: &Agent<'_>| agent.json(&["services"])[0]["packets"].as_u64().unwrap();

        let answers = while_asking(&net, vip, || {
            for _ in 0..5 {
                let before = packets(&agent);
                agent.stop();
                agent.run();
                assert!(packets(&agent) >= before, "counters survive a restart");
            }
            for reloads in 2..7 {
                agent.process().signal(Signal::SIGHUP).unwrap();
                agent.wait_for_status("the file is read again", |status| {
                    status["config"]["reloads"] == reloads
                });
            }
        });
        assert!(answers > 0);
        let log = agent.process().stderr();
        assert!(log.contains("adopted=true"), "{log}");
        detach(&mut agent, "eth0");
    }
}

#[test]
fn bad_file_keeps_the_last_good_state_and_says_so() {
    let net = Topology::builder().nodes(2).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    serve_lines(&net, vip);
    let good = edge_config(vip, "l2dsr", &nodes_like(&net, vip));
    let mut agent = Agent::start(&net.edges()[0], &good);
    agent.wait_until_resolved();
    let backends = agent.json(&["backends"])[0]["table_size"].clone();

    agent.write(&good.replace("weight: 1", "weight: 0"));
    let status = agent.wait_for_status("the file is refused", |status| {
        status["config"]["failures"] == 1
    });
    let error = status["config"]["error"].as_str().unwrap();
    assert!(
        error.contains("guideway.yaml:5:") && error.contains("weight 0"),
        "{error}"
    );
    assert_eq!(agent.json(&["backends"])[0]["table_size"], backends);
    reach_every_node(&net, vip);
    agent
        .process()
        .wait_for_line("configuration refused", TIMEOUT)
        .unwrap();

    let one_node = edge_config(vip, "l2dsr", &nodes_like(&net, vip)[..1]);
    agent.write(&one_node);
    agent.wait_for_status("the file is taken", |status| {
        status["config"]["error"].is_null() && status["config"]["reloads"] == 2
    });
    let first = net.nodes()[0].label();
    for _ in 0..20 {
        assert_eq!(
            Connection::open(&net.clients()[0], vip).ask().unwrap(),
            first
        );
    }
    detach(&mut agent, "eth0");
}

#[test]
fn second_agent_is_refused_with_the_pid_of_the_first() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    let edge = &net.edges()[0];
    let config = edge_config(vip, "l2dsr", &nodes_like(&net, vip));
    let mut agent = Agent::start(edge, &config);
    let pid = agent.process().id();

    let second = |config: &std::path::Path| {
        let mut command = edge.namespace().command(GUIDEWAY);
        let mut process = Process::spawn(command.args(["run", "--config"]).arg(config)).unwrap();
        let status = process.wait(TIMEOUT).unwrap();
        (status.code(), process.stderr())
    };
    let (code, text) = second(&agent.config());
    assert_eq!(code, Some(1));
    assert!(text.contains(&format!("(pid {pid})")), "{text}");

    // Another socket does not make it another dataplane.
    let other = agent.directory().join("other.yaml");
    let socket = agent.directory().join("other.sock");
    std::fs::write(
        &other,
        format!("{config}\napi: {{socket: {}}}\n", socket.display()),
    )
    .unwrap();
    let (code, text) = second(&other);
    assert_eq!(code, Some(1));
    assert!(text.contains("another agent works on the pins"), "{text}");
    detach(&mut agent, "eth0");
}

#[test]
fn detach_works_without_an_agent() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    let mut agent = Agent::start(
        &net.edges()[0],
        &edge_config(vip, "l2dsr", &nodes_like(&net, vip)),
    );
    agent.stop();
    let check = agent.command(&["detach"]);
    assert_eq!(
        String::from_utf8_lossy(&check.stdout),
        "detached from eth0; no pins are left\n"
    );
    let again = agent.command(&["detach"]);
    assert_eq!(
        String::from_utf8_lossy(&again.stdout),
        "nothing was attached; no pins are left\n"
    );
}

#[test]
fn tables_of_another_layout_version_do_not_stay() {
    const OTHER: &str = "/sys/fs/bpf/guideway/v0/maps";
    let net = Topology::builder().nodes(1).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    let edge = &net.edges()[0];
    let succeeds = |program: &str, arguments: &[&str]| {
        let mut command = edge.namespace().command(program);
        command.args(arguments).status().unwrap().success()
    };
    assert!(succeeds("mkdir", &["-p", OTHER]));
    let config = edge_config(vip, "l2dsr", &nodes_like(&net, vip));
    let mut agent = Agent::start(edge, &config);
    assert!(!succeeds("test", &["-e", OTHER]));
    detach(&mut agent, "eth0");
}

#[test]
fn interfaces_are_followed_and_may_be_added_and_removed() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    let edge = &net.edges()[0];
    let one = edge_config(vip, "l2dsr", &nodes_like(&net, vip));
    let two = one.replace(
        "{name: eth0, mode: native}",
        "{name: eth0, mode: native}, {name: extra0}",
    );
    let extra = || {
        lab::Veth::between((edge.namespace(), "extra0"), (edge.namespace(), "extra1"))
            .create()
            .unwrap()
    };
    extra();
    let mut agent = Agent::start(edge, &one);
    agent.write(&two);
    let mode = |status: &Value| status["interfaces"][1]["mode"].clone();
    agent.wait_for_status("the second is attached", |status| !mode(status).is_null());

    let ip = |arguments: &[&str]| {
        let output = edge
            .namespace()
            .command("ip")
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    ip(&["link", "delete", "extra0"]);
    agent.wait_for_status("the loss is noticed", |status| mode(status).is_null());
    extra();
    agent.wait_for_status("it is attached again", |status| !mode(status).is_null());
    assert!(ip(&["link", "show", "extra0"]).contains("xdp"));

    agent.write(&one);
    agent.wait_for_status("the second is given up", |status| {
        status["interfaces"].as_array().unwrap().len() == 1
    });
    assert!(!ip(&["link", "show", "extra0"]).contains("xdp"));
    detach(&mut agent, "eth0");
}

#[test]
fn lost_carrier_is_reported_and_its_return_restores_traffic() {
    let net = Topology::builder().nodes(2).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    serve_lines(&net, vip);
    let edge = &net.edges()[0];
    let mut agent = Agent::start(edge, &edge_config(vip, "l2dsr", &nodes_like(&net, vip)));
    agent.wait_until_resolved();

    net.far_end(edge).unwrap().set_down().unwrap();
    agent.wait_for_status("the loss is noticed", |status| {
        status["next_hops"]["resolved"] == 0
    });
    assert_eq!(agent.json(&["backends"])[0]["next_hop"], "link down");
    net.far_end(edge).unwrap().set_up().unwrap();
    agent.wait_until_resolved();
    reach_every_node(&net, vip);
    detach(&mut agent, "eth0");
}

#[test]
fn metrics_and_health_are_served() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    serve_lines(&net, vip);
    let edge = &net.edges()[0];
    let config = edge_config(vip, "l2dsr", &nodes_like(&net, vip));
    let mut agent = Agent::start(
        edge,
        &format!("{config}metrics: {{listen: '127.0.0.1:9750'}}\n"),
    );
    agent.wait_until_resolved();
    reach_every_node(&net, vip);

    let packets = agent.json(&["services"])[0]["packets"].clone();
    let (head, body) = http_get(edge, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let line = format!(
        "guideway_service_packets_total{{service=\"lines\",address=\"{vip}\",port=\"{PORT}\",protocol=\"tcp\"}} {packets}"
    );
    assert!(
        body.lines().any(|other| other == line),
        "{line} is not in:\n{body}"
    );
    let attached = "guideway_interface_attached{interface=\"eth0\",mode=\"native\"} 1";
    assert!(body.contains(attached), "{body}");
    let (head, body) = http_get(edge, "/healthz");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && body == "ok\n",
        "{head}{body}"
    );
    detach(&mut agent, "eth0");
}

/// Returns head and body of a response of the agent's listener.
fn http_get(machine: &Machine, path: &str) -> (String, String) {
    let mut stream = machine
        .namespace()
        .run(|| TcpStream::connect("127.0.0.1:9750").unwrap());
    write!(stream, "GET {path} HTTP/1.1\r\nHost: edge\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

#[test]
fn full_arena_refuses_one_service_and_the_rest_serves() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    serve_lines(&net, vip);
    let good = edge_config(vip, "l2dsr", &nodes_like(&net, vip));
    let mut agent = Agent::start(&net.edges()[0], &good);
    agent.wait_until_resolved();
    // The pinned arena keeps its 1 MiB, whatever the file says now.
    let node = net.nodes()[0].address_like(vip);
    let large = format!(
        "  - {{name: large, address: '{vip}', port: 1, protocol: tcp, table_size: 131072, backends: [{{address: '{node}'}}]}}\n"
    );
    agent.write(&(good.replace("lut_arena_mib: 1", "lut_arena_mib: 4") + &large));
    let status = agent.wait_for_status("the file is taken", |status| {
        status["config"]["reloads"] == 2
    });
    assert_eq!(status["config"]["needs_restart"][0], "tables");
    let problem = status["problems"][0].as_str().unwrap();
    assert!(problem.contains("the LUT arena is full"), "{problem}");
    reach_every_node(&net, vip);

    agent.write(&good);
    agent.wait_for_status("nothing is left to do", |status| {
        status["config"]["reloads"] == 3 && status["problems"].as_array().unwrap().is_empty()
    });
    detach(&mut agent, "eth0");
}

#[test]
fn program_that_somebody_removed_is_attached_again() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    let edge = &net.edges()[0];
    let mut agent = Agent::start(edge, &edge_config(vip, "l2dsr", &nodes_like(&net, vip)));
    let removed = edge
        .namespace()
        .command("sh")
        .args(["-c", "rm /sys/fs/bpf/guideway/v*/links/xdp-eth0"])
        .status()
        .unwrap();
    assert!(removed.success());
    // The kernel frees a link some time after its last reference.
    lab::wait_for("the program is gone", TIMEOUT, || {
        let mut command = edge.namespace().command("ip");
        let output = command.args(["link", "show", "eth0"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains("prog/xdp") {
            Err(text)
        } else {
            Ok(())
        }
    })
    .unwrap();

    agent.process().signal(Signal::SIGHUP).unwrap();
    agent
        .process()
        .wait_for_line("somebody removed the program", TIMEOUT)
        .unwrap();
    agent.wait_for_status("it is attached again", |status| {
        status["interfaces"][0]["mode"] == "native"
            && status["problems"].as_array().is_some_and(Vec::is_empty)
    });
    detach(&mut agent, "eth0");
}

#[test]
fn interface_with_another_name_is_taken_over_under_it() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    let edge = &net.edges()[0];
    let config = edge_config(vip, "l2dsr", &nodes_like(&net, vip)).replace(
        "{name: eth0, mode: native}",
        "{name: eth0, mode: native}, {name: extra0}",
    );
    lab::Veth::between((edge.namespace(), "extra0"), (edge.namespace(), "extra1"))
        .create()
        .unwrap();
    let mut agent = Agent::start(edge, &config);
    let mode = |status: &Value| status["interfaces"][1]["mode"].clone();
    let rename = |old: &str, new: &str| {
        let mut command = edge.namespace().command("ip");
        command.args(["link", "set", old, "name", new]);
        assert!(command.status().unwrap().success());
    };

    // Back under its old name it is attached without waiting for the timer.
    rename("extra0", "extra2");
    agent.wait_for_status("the loss is noticed", |status| mode(status).is_null());
    rename("extra2", "extra0");
    agent.wait_for_status("it is found again", |status| !mode(status).is_null());

    rename("extra0", "extra2");
    agent.wait_for_status("the loss is noticed", |status| mode(status).is_null());
    agent.write(&config.replace("extra0", "extra2"));
    agent.wait_for_status("it is attached under its new name", |status| {
        status["interfaces"][1]["name"] == "extra2" && !mode(status).is_null()
    });
    detach(&mut agent, "eth0, extra2");
}

#[test]
fn agent_whose_log_nobody_reads_goes_on() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let vip = IpAddr::from(vip_v4(1));
    let edge = &net.edges()[0];
    let mut agent = Agent::start(edge, &edge_config(vip, "l2dsr", &nodes_like(&net, vip)));
    agent.stop();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = edge.namespace().command(GUIDEWAY);
    let mut process = command
        .args(["run", "--config"])
        .arg(agent.config())
        .stderr(writer)
        .spawn()
        .unwrap();

    lab::wait_for("the agent answers", TIMEOUT, || {
        let output = agent.command(&["status"]);
        if output.status.success() {
            Ok(())
        } else {
            Err(format!("{output:?}"))
        }
    })
    .unwrap();
    let output = agent.command(&["detach"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(process.wait().unwrap().code(), Some(0));
}
