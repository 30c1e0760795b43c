//! A network with agents on its edge and nodes, and servers behind a VIP.

#![expect(
    clippy::unwrap_used,
    reason = "a panic at the place is how a test fails"
)]
#![allow(
    dead_code,
    reason = "every test binary compiles this module and uses a part"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use lab::{Machine, Process, Topology};
use serde_json::Value;

/// The longest that anything here may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// Where the servers listen.
pub(crate) const PORT: u16 = 7000;
/// The binary under test.
pub(crate) const GUIDEWAY: &str = env!("CARGO_BIN_EXE_guideway");

/// An agent with its files; ended without detaching when dropped.
pub(crate) struct Agent<'lab> {
    machine: &'lab Machine,
    directory: tempfile::TempDir,
    process: Option<Process>,
}

impl<'lab> Agent<'lab> {
    /// Starts an agent and waits until it serves; the socket's path is put into the configuration.
    pub(crate) fn start(machine: &'lab Machine, config: &str) -> Self {
        let mut agent = Self {
            machine,
            directory: tempfile::tempdir().unwrap(),
            process: None,
        };
        agent.write(config);
        agent.run();
        agent
    }

    /// Replaces the configuration file.
    pub(crate) fn write(&self, config: &str) {
        let socket = self.socket();
        let text = format!("{config}\napi: {{socket: {}}}\n", socket.display());
        let fresh = self.directory.path().join("fresh");
        fs::write(&fresh, text).unwrap();
        fs::rename(fresh, self.config()).unwrap();
    }

    /// Starts the process of an agent that was ended.
    pub(crate) fn run(&mut self) {
        let mut command = self.machine.namespace().command(GUIDEWAY);
        command.args(["run", "--config"]).arg(self.config());
        let mut process = Process::spawn(&mut command).unwrap();
        process
            .wait_for_line("the dataplane serves", TIMEOUT)
            .unwrap();
        self.process = Some(process);
    }

    /// Ends the agent by SIGTERM; it must end well.
    pub(crate) fn stop(&mut self) {
        let status = self.process().stop(TIMEOUT).unwrap();
        assert_eq!(status.code(), Some(0), "{}", self.process().stderr());
        self.process = None;
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the agent runs")
    }

    /// Runs a command of the binary against this agent.
    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        let mut command = self.machine.namespace().command(GUIDEWAY);
        command.args(arguments).arg("--socket").arg(self.socket());
        command.output().unwrap()
    }

    /// Runs a command with `--json`.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until the status fulfils a condition.
    pub(crate) fn wait_for_status(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        lab::wait_for(what, TIMEOUT, || {
            let status = self.json(&["status"]);
            if condition(&status) {
                Ok(status)
            } else {
                Err(status.to_string())
            }
        })
        .unwrap()
    }

    /// Waits until every backend has a next hop.
    pub(crate) fn wait_until_resolved(&self) {
        self.wait_for_status("every next hop is resolved", |status| {
            status["next_hops"]["unresolved"] == 0
        });
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.directory.path().join("guideway.yaml")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("guideway.sock")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// Puts a VIP on every node and serves on it: each line is answered with the node's name.
pub(crate) fn serve_lines(net: &Topology, vip: IpAddr) {
    for node in net.nodes() {
        node.add_vip(vip).unwrap();
        let name = format!("{}\n", node.label());
        let listener = node
            .namespace()
            .run(|| TcpListener::bind((vip, PORT)).unwrap());
        // The thread ends with the process; its sockets die with their namespace.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let name = name.clone();
                std::thread::spawn(move || answer_lines(stream, &name));
            }
        });
    }
}

fn answer_lines(mut stream: TcpStream, name: &str) {
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) {
        if byte == *b"\n" && stream.write_all(name.as_bytes()).is_err() {
            return;
        }
    }
}

/// A client's connection to the VIP.
pub(crate) struct Connection(TcpStream);

impl Connection {
    pub(crate) fn open(client: &Machine, vip: IpAddr) -> Self {
        let stream = client
            .namespace()
            .run(|| TcpStream::connect_timeout(&SocketAddr::new(vip, PORT), TIMEOUT).unwrap());
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Asks for the name of the node at the other end.
    pub(crate) fn ask(&mut self) -> std::io::Result<String> {
        self.0.write_all(b"\n")?;
        let mut name = Vec::new();
        let mut byte = [0];
        loop {
            self.0.read_exact(&mut byte)?;
            if byte == *b"\n" {
                return Ok(String::from_utf8_lossy(&name).into_owned());
            }
            name.extend(byte);
        }
    }
}

/// Writes the configuration of a node that trusts the edges of the network.
pub(crate) fn node_config(net: &Topology) -> String {
    let edges: Vec<String> = net
        .edges()
        .iter()
        .flat_map(|edge| [format!("{}", edge.v4()), format!("'{}'", edge.v6())])
        .collect();
    format!(
        "interfaces: [{{name: eth0, mode: native}}]\nroles: [node]\ntables: {{lut_arena_mib: 1}}\ntrusted_edges: [{}]\n",
        edges.join(", ")
    )
}

/// Writes the configuration of an edge with one TCP service over nodes.
pub(crate) fn edge_config(vip: IpAddr, mode: &str, nodes: &[(IpAddr, u32)]) -> String {
    let backends: Vec<String> = nodes
        .iter()
        .map(|(node, weight)| format!("{{address: '{node}', weight: {weight}}}"))
        .collect();
    format!(
        "interfaces: [{{name: eth0, mode: native}}]\n\
         tables: {{lut_arena_mib: 1}}\n\
         vips: ['{vip}']\n\
         services:\n  \
         - {{name: lines, address: '{vip}', port: {PORT}, protocol: tcp, mode: {mode}, backends: [{}]}}\n",
        backends.join(", ")
    )
}

/// Runs the binary outside of any network.
pub(crate) fn guideway(arguments: &[&str]) -> Output {
    Command::new(GUIDEWAY).args(arguments).output().unwrap()
}
