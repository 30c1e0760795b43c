//! One agent has a machine's dataplane, whatever else is on the machine.

use std::os::unix::net::UnixDatagram;

use lab::{Machine, Namespace, Process, Topology, output, wait_for};

use crate::support::{Agent, Mode, Service, TIMEOUT, edge_config, guideway};

fn edge_and_config(net: &Topology) -> (&Machine, String) {
    let services = Service::all(&[Mode::L2dsr]);
    (&net.edges()[0], edge_config(&services, net.nodes()))
}

/// Runs a second agent with a file; returns its exit code and what it says.
fn run_second(machine: &Namespace) -> (Option<i32>, String) {
    let mut process = guideway().run(machine).unwrap();
    let status = process.wait(TIMEOUT).unwrap();
    (status.code(), process.stderr())
}

#[test]
fn second_agent_is_refused_with_the_pid_of_the_first() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let (edge, config) = edge_and_config(&net);
    let mut agent = Agent::start(edge, &config);
    let pid = agent.process().id();
    let (code, text) = run_second(edge.namespace());
    assert_eq!(code, Some(1));
    assert!(text.contains(&format!("(pid {pid})")), "{text}");
}

#[test]
fn another_socket_does_not_make_another_dataplane() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let (edge, config) = edge_and_config(&net);
    let mut agent = Agent::start(edge, &config);
    let other = config
        .replace("guideway.sock", "other.sock")
        .replace(":9750", ":9751");
    let path = edge.namespace().write_file("other.yaml", other).unwrap();
    let mut command = edge.namespace().command(env!("CARGO_BIN_EXE_guideway"));
    let mut second = Process::spawn(command.args(["run", "--config"]).arg(path)).unwrap();
    assert_eq!(second.wait(TIMEOUT).unwrap().code(), Some(1));
    let text = second.stderr();
    assert!(text.contains("another agent works on the pins"), "{text}");
    assert!(agent.process().is_running());
}

#[test]
fn tables_of_another_layout_version_do_not_stay() {
    const OTHER: &str = "/sys/fs/bpf/guideway/v0/maps";
    let net = Topology::builder().nodes(1).build().unwrap();
    let (edge, config) = edge_and_config(&net);
    let machine = edge.namespace();
    output(machine.command("mkdir").args(["-p", OTHER])).unwrap();
    let _agent = Agent::start(edge, &config);
    assert!(output(machine.command("test").args(["-e", OTHER])).is_err());
}

#[test]
fn agent_whose_log_nobody_reads_goes_on() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let (edge, config) = edge_and_config(&net);
    let machine = edge.namespace();
    let path = machine.write_file("guideway.yaml", config).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = machine.command(env!("CARGO_BIN_EXE_guideway"));
    command.args(["run", "--config"]).arg(path).stderr(writer);
    let mut process = command.spawn().unwrap();

    wait_for("the agent answers", TIMEOUT, || {
        guideway().ask(machine, &["status"])
    })
    .unwrap();
    guideway().ask(machine, &["detach"]).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(0));
}

#[test]
fn systemd_hears_of_an_agent_that_serves() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let (edge, config) = edge_and_config(&net);
    let machine = edge.namespace();
    let path = machine.write_file("guideway.yaml", config).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("notify");
    let socket = UnixDatagram::bind(&address).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = machine.command(env!("CARGO_BIN_EXE_guideway"));
    command.args(["run", "--config"]).arg(path);
    let mut agent = Process::spawn(command.env("NOTIFY_SOCKET", &address)).unwrap();

    let mut message = [0; 64];
    let length = socket.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1\n");
    let status = guideway().ask(machine, &["status"]).unwrap();
    assert_eq!(status["interfaces"][0]["mode"], "native", "{status}");
    assert!(agent.is_running());
}
