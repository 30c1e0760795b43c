//! BIRD beside an edge, as the page about outside edges sets it up: a router has the addresses while the agent is healthy.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use lab::{Namespace, Process, Veth, output, wait_for};

use super::chart::{deploy, text};

/// How long a busy machine may take to open a session, which takes some 5 s.
const PATIENCE: Duration = Duration::from_secs(120);
/// What the page has run, and asked by the script.
const SCRIPT: (&str, &str) = (
    "examples/announce-while-healthy.sh",
    "http://127.0.0.1:10791/readyz",
);
/// What the page has typed before an edge is stopped.
const DISABLE: &str = "birdc disable vips";
/// A router that takes whatever the edge of the example announces.
const ROUTER: &str = r"
router id 198.51.100.254;
protocol device {}
protocol bgp edge1 {
	local as 64500;
	neighbor 198.51.100.1 as 64512;
	ipv4 { import all; export none; };
}
";
const SHOW_ROUTE: [&str; 3] = ["show", "route", "192.0.2.0/28"];
/// The only way that the router ever learns.
const ROUTE: &str = "via 198.51.100.1 on eth0";

#[test]
fn router_has_the_addresses_while_the_agent_is_healthy() {
    let [edge, router] = ["edge", "router"].map(|label| Namespace::new(label).unwrap());
    let cable = Veth::between((&edge, "eth0"), (&router, "eth0"));
    let _ends = cable.create().unwrap();
    let edge = Bird::start(&edge, "198.51.100.1/24", &text("examples/bird.conf"));
    let router = Bird::start(&router, "198.51.100.254/24", ROUTER);
    let agent = Agent::start(edge.machine);
    let mut script = edge.command(deploy(SCRIPT.0));
    let mut script = Process::spawn(script.arg(SCRIPT.1)).unwrap();
    router.wait_for("a session", &["show", "protocols"], |said| {
        said.contains("Established")
    });
    assert!(!router.ask(&SHOW_ROUTE).contains(ROUTE));

    for is_healthy in [true, false, true] {
        agent.is_healthy.store(is_healthy, SeqCst);
        router.wait_for("the route by health", &SHOW_ROUTE, |said| {
            said.contains(ROUTE) == is_healthy
        });
    }

    script.stop(PATIENCE).unwrap();
    let words: Vec<&str> = DISABLE.split(' ').collect();
    output(edge.command(words[0]).args(&words[1..])).unwrap();
    router.wait_for("no route", &SHOW_ROUTE, |said| !said.contains(ROUTE));
}

/// BIRD on a machine.
struct Bird<'m> {
    machine: &'m Namespace,
    /// Where its `birdc` finds its socket.
    path: String,
    _files: tempfile::TempDir,
    _process: Process,
}

impl<'m> Bird<'m> {
    fn start(machine: &'m Namespace, address: &str, configuration: &str) -> Self {
        let add = ["address", "add", address, "dev", "eth0"];
        output(machine.command("ip").args(add)).unwrap();
        let file = machine.write_file("bird.conf", configuration).unwrap();
        let socket = Path::new(Namespace::FILES).join("bird.ctl");
        let process = Process::spawn(
            (machine.command("bird").arg("-f"))
                .arg("-c")
                .arg(file)
                .arg("-s")
                .arg(&socket),
        );
        // `birdc` looks below /run, which all machines of a test share.
        let files = tempfile::tempdir().unwrap();
        let client = files.path().join("birdc");
        let path = std::env::var("PATH").unwrap();
        let script = format!(
            "#!/bin/sh\nPATH={path} exec birdc -s {} \"$@\"\n",
            socket.display()
        );
        std::fs::write(&client, script).unwrap();
        std::fs::set_permissions(&client, Permissions::from_mode(0o755)).unwrap();
        let bird = Self {
            machine,
            path: format!("{}:{path}", files.path().display()),
            _files: files,
            _process: process.unwrap(),
        };
        bird.wait_for("BIRD answers", &["show", "status"], |said| {
            said.contains("Daemon is up and running")
        });
        bird
    }

    /// Prepares a command that finds this machine's `birdc`.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.machine.command("env");
        command
            .arg(format!("PATH={}", self.path))
            .arg(program.as_ref());
        command
    }

    fn ask(&self, words: &[&str]) -> String {
        output(self.command("birdc").args(words)).unwrap_or_else(|error| error.to_string())
    }

    fn wait_for(&self, what: &str, words: &[&str], is_so: impl Fn(&str) -> bool) {
        wait_for(what, PATIENCE, || {
            let said = self.ask(words);
            if is_so(&said) { Ok(()) } else { Err(said) }
        })
        .unwrap();
    }
}

/// What stands for the agent: a page that says whether it is healthy.
struct Agent {
    is_healthy: Arc<AtomicBool>,
}

impl Agent {
    fn start(machine: &Namespace) -> Self {
        let address = SCRIPT.1.split('/').nth(2).unwrap();
        let listener = machine.run(|| TcpListener::bind(address)).unwrap();
        let is_healthy = Arc::new(AtomicBool::new(false));
        let healthy = Arc::clone(&is_healthy);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let code = if healthy.load(SeqCst) { 200 } else { 503 };
                answer(stream.unwrap(), code);
            }
        });
        Self { is_healthy }
    }
}

/// Answers a request, once it is there.
fn answer(mut stream: TcpStream, code: u16) {
    let mut request = [0; 1024];
    let _ = stream.read(&mut request);
    let _ = write!(stream, "HTTP/1.0 {code} so\r\n\r\n");
}
