//! What is asked of the agent's state is answered beside its loop.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use lab::{Guideway, Machine, Process, Topology, wait_for};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Agent, Mode, Service, TIMEOUT, edge_config};

#[test]
fn everything_but_changes_is_answered_while_the_agents_loop_is_held_up() {
    let net = Topology::builder().nodes(2).build().unwrap();
    let edge = &net.edges()[0];
    let services = Service::all(&[Mode::IpipV4]);
    let mut agent = Agent::start(edge, &edge_config(&services, net.nodes()));
    let ask = ["status", "services", "backends", "drops"];
    let [_, before, ..] = ask.map(|command| agent.json(&[command]));

    let held = Held::thread(agent.process().id(), "agent");
    agent.write_config(&edge_config(&services[..1], net.nodes()));
    for _ in 0..3 {
        let [status, services, backends, drops] = ask.map(|command| agent.json(&[command]));
        assert_eq!(status["config"]["reloads"], 1);
        assert_eq!(services, before);
        for (rows, of_each) in [(&backends, 2), (&services, 1)] {
            let rows = rows.as_array().unwrap().len();
            assert_eq!(rows, of_each * before.as_array().unwrap().len());
        }
        assert_ne!(drops.as_array().unwrap().len(), 0);
        let metrics = get(edge, "/metrics");
        assert!(
            metrics.contains("\nguideway_backend_packets_total{"),
            "{metrics}"
        );
        assert!(get(edge, "/healthz").ends_with("\r\n\r\nok\n"));
    }
    assert!(held.is_held());
    held.let_go();
    agent.wait_for_reloads(2);
    agent.wait_for_answer("the change is in force", &["services"], |services| {
        services.as_array().unwrap().len() == 1
    });
}

#[test]
fn every_page_that_the_documentation_names_is_served() {
    let net = Topology::builder().nodes(0).build().unwrap();
    let edge = &net.edges()[0];
    let _agent = Agent::start(edge, &edge_config(&[], net.nodes()));
    let documented = include_str!("../../../deploy/docs/api.md");
    let (_, pages) = documented.split_once("\n## HTTP\n").unwrap();
    let (pages, _) = pages.split_once("\n## ").unwrap();
    let pages = pages.split('`').skip(1).step_by(2);
    let pages: Vec<&str> = pages.filter(|code| code.starts_with('/')).collect();
    assert!(pages.len() > 5, "{pages:?}");
    for page in pages {
        let answer = get(edge, page);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{page}: {answer}");
    }
}

#[test]
fn askers_that_go_or_read_nothing_hold_up_nobody() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let edge = &net.edges()[0];
    let services = Service::all(&[Mode::L2dsr]);
    let agent = Agent::start(edge, &edge_config(&services, net.nodes()));
    let asks = |request: &str| {
        let mut asker = edge
            .namespace()
            .run(|| UnixStream::connect(Guideway::socket()))
            .unwrap();
        writeln!(asker, "{{\"request\":\"{request}\"}}").unwrap();
        asker
    };
    for _ in 0..100 {
        drop(asks("backends"));
    }
    // Fewer than there are connections, more than are answered at a time.
    let silent: Vec<UnixStream> = (0..8).map(|_| asks("backends")).collect();
    for _ in 0..10 {
        assert_eq!(agent.json(&["status"])["services"], services.len());
    }
    // They have waited for nothing else.
    for mut asker in silent {
        asker.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        asker.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("{\"ok\":["), "{answer}");
    }
}

fn get(machine: &Machine, path: &str) -> String {
    machine.namespace().run(|| {
        let mut stream = TcpStream::connect("127.0.0.1:9750").unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        std::io::read_to_string(stream).unwrap()
    })
}

#[test]
fn watched_answers_are_lines_of_json_with_their_times() {
    let net = Topology::builder().nodes(0).build().unwrap();
    let agent = Agent::start(&net.edges()[0], &edge_config(&[], net.nodes()));
    let mut command = agent.command(&["status", "--watch", "1", "--json"]);
    let watch = Process::spawn(&mut command).unwrap();
    let said = wait_for("two answers", TIMEOUT, || {
        let said = watch.stdout();
        let whole = said.matches('\n').count();
        (whole >= 2).then_some(said).ok_or(whole)
    })
    .unwrap();
    let lines = said.lines().take(2);
    let answers = lines.map(|line| serde_json::from_str::<Value>(line).expect(line));
    let times = answers.map(|stamped| {
        assert_eq!(stamped["answer"]["version"], env!("CARGO_PKG_VERSION"));
        let time = stamped["timestamp"].as_str().unwrap();
        time.parse::<Timestamp>().unwrap()
    });
    let times: Vec<Timestamp> = times.collect();
    assert!(times[0] < times[1], "{times:?}");
}

/// A thread of another process that is stopped, and goes on when this one ends at the latest.
struct Held(Pid);

impl Held {
    /// Stops the thread of a name while it sleeps, so that it holds no lock.
    fn thread(process: u32, name: &str) -> Self {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let mut tasks = tasks.map(|task| task.unwrap().path());
        let of_name = |task: &std::path::PathBuf| {
            fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        let task = tasks.find(of_name).unwrap();
        let id = task.file_name().unwrap().to_str().unwrap();
        let held = Self(Pid::from_raw(id.parse().unwrap()));
        wait_for("the thread sleeps", TIMEOUT, || match held.state() {
            'S' => Ok(()),
            other => Err(other.to_string()),
        })
        .unwrap();
        ptrace::seize(held.0, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(held.0).unwrap();
        waitpid(held.0, Some(WaitPidFlag::__WALL)).unwrap();
        assert!(held.is_held());
        held
    }

    fn is_held(&self) -> bool {
        thread::sleep(Duration::from_millis(10));
        self.state() == 't'
    }

    fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap();
        let (_, after_name) = stat.rsplit_once(") ").unwrap();
        after_name.chars().next().unwrap()
    }

    fn let_go(self) {
        ptrace::detach(self.0, None).unwrap();
    }
}
