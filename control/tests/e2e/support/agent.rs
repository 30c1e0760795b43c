//! `guideway run` on a machine, and the commands that ask it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use lab::{Machine, Namespace, Process, Signal, wait_for};
use serde_json::Value;

use super::TIMEOUT;

const CONFIG: &str = "guideway.yaml";

/// An agent. When a test panics, its log is shown.
#[derive(Debug)]
pub(crate) struct Agent<'net> {
    machine: &'net Machine,
    process: Process,
}

impl<'net> Agent<'net> {
    /// Starts an agent and waits until it is ready.
    pub(crate) fn start(machine: &'net Machine, config: &str) -> Self {
        machine.namespace().write_file(CONFIG, config).unwrap();
        let process = spawn(machine);
        let mut agent = Self { machine, process };
        agent.wait_until_ready();
        agent
    }

    pub(crate) fn machine(&self) -> &'net Machine {
        self.machine
    }

    /// Replaces the configuration file, which the agent has to notice by itself.
    pub(crate) fn write_config(&self, config: &str) {
        let machine = self.machine.namespace();
        machine.write_file(CONFIG, config).unwrap();
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.process.signal(signal).unwrap();
    }

    /// Waits until the process has ended and returns its exit code, if it has one.
    pub(crate) fn wait_for_end(&mut self) -> Option<i32> {
        self.process.wait(TIMEOUT).unwrap().code()
    }

    /// Starts an agent again after it has ended, and waits until it is ready.
    pub(crate) fn start_again(&mut self) {
        self.process = spawn(self.machine);
        self.wait_until_ready();
    }

    pub(crate) fn wait_until_ready(&mut self) {
        let label = self.machine.label();
        let ended = wait_for(&format!("the agent of {label} is ready"), TIMEOUT, || {
            if !self.process.is_running() {
                return Ok(true);
            }
            let status = self.ask(&["status"])?;
            if is_ready(&status) {
                Ok(false)
            } else {
                Err(status.to_string())
            }
        });
        assert!(!ended.unwrap(), "the agent of {label} has ended");
    }

    /// Waits until an answer of the agent is as it should be, and returns it.
    pub(crate) fn wait_for_answer(
        &self,
        awaited: &str,
        arguments: &[&str],
        is_right: impl Fn(&Value) -> bool,
    ) -> Value {
        wait_for(awaited, TIMEOUT, || {
            let answer = self.ask(arguments)?;
            if is_right(&answer) {
                Ok(answer)
            } else {
                Err(answer.to_string())
            }
        })
        .unwrap()
    }

    /// Runs a command against the agent and returns its JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        self.ask(arguments).unwrap()
    }

    /// Runs a command against the agent and returns what it prints for people.
    pub(crate) fn page(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        text(&output).unwrap()
    }

    /// Prepares a command against the agent.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = guideway(self.machine.namespace());
        command.args(arguments).arg("--socket").arg(socket());
        command
    }

    fn ask(&self, arguments: &[&str]) -> Result<Value, String> {
        let output = self.command(arguments).arg("--json").output().unwrap();
        serde_json::from_str(&text(&output)?).map_err(|error| error.to_string())
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.process.stdout() + &self.process.stderr();
            eprintln!("--- agent of {}\n{log}", self.machine.label());
        }
    }
}

/// Prepares a run of the binary on a machine.
pub(crate) fn guideway(machine: &Namespace) -> Command {
    machine.command(env!("CARGO_BIN_EXE_guideway"))
}

fn spawn(machine: &Machine) -> Process {
    let mut command = guideway(machine.namespace());
    command
        .env("GUIDEWAY_LOG", "debug")
        .args(["run", "--config"])
        .arg(Path::new(Namespace::FILES).join(CONFIG));
    Process::spawn(&mut command).unwrap()
}

fn socket() -> PathBuf {
    Path::new(Namespace::FILES).join("guideway.sock")
}

fn text(output: &Output) -> Result<String, String> {
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout.clone()).map_err(|error| error.to_string())
}

fn is_ready(status: &Value) -> bool {
    let interfaces = status["interfaces"].as_array();
    let problems = status["problems"].as_array();
    interfaces.is_some_and(|all| all.iter().all(|one| one["mode"].is_string()))
        && problems.is_some_and(Vec::is_empty)
        && status["next_hops"]["unresolved"].as_u64().unwrap_or(0) == 0
}
