//! Runs the `guideway` program on machines. Each machine has its configuration and its socket in
//! [`Namespace::FILES`].

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::Value;

use crate::{Error, Namespace, Process, Result, output, wait_for};

const CONFIG: &str = "guideway.yaml";
const SOCKET: &str = "guideway.sock";
/// Long, because the kernel verifies programs of some hundred thousand steps, which a busy machine delays.
const READY_TIMEOUT: Duration = Duration::from_secs(600);

/// The `guideway` program.
#[derive(Debug, Clone)]
pub struct Guideway {
    binary: PathBuf,
}

impl Guideway {
    /// Uses the program at this path.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
        }
    }

    /// Returns the path of a machine's socket. Its configuration must have it as `api.socket`.
    pub fn socket() -> PathBuf {
        Path::new(Namespace::FILES).join(SOCKET)
    }

    /// Returns the path of a machine's configuration.
    pub fn config() -> PathBuf {
        Path::new(Namespace::FILES).join(CONFIG)
    }

    /// Writes a machine's configuration. A running agent has to notice the change by itself.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when the file cannot be written.
    pub fn configure(&self, machine: &Namespace, config: &str) -> Result<()> {
        machine.write_file(CONFIG, config).map(drop)
    }

    /// Starts the agent of a machine with its configuration. Does not wait for it.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] when there is no such program.
    pub fn run(&self, machine: &Namespace) -> Result<Process> {
        let mut command = machine.command(&self.binary);
        command
            .env("GUIDEWAY_LOG", "debug")
            .args(["run", "--config"])
            .arg(Self::config());
        Process::spawn(&mut command)
    }

    /// Waits until an agent is attached to every interface, has no problem, and has a next hop for every backend.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] when it ends first, [`Error::Timeout`] with its last status.
    pub fn wait_until_ready(&self, machine: &Namespace, agent: &mut Process) -> Result<()> {
        let awaited = format!("the agent of {} is ready", machine.label());
        wait_for(&awaited, READY_TIMEOUT, || {
            if let Err(ended) = agent.expect_running("being ready") {
                return Ok(Err(ended));
            }
            match self.ask(machine, &["status"]) {
                Ok(status) if is_ready(&status) => Ok(Ok(())),
                Ok(status) => Err(status.to_string()),
                Err(error) => Err(error.to_string()),
            }
        })?
    }

    /// Prepares a `guideway` command that talks to the agent of a machine.
    pub fn command(&self, machine: &Namespace, arguments: &[&str]) -> Command {
        let mut command = machine.command(&self.binary);
        command.args(arguments).arg("--socket").arg(Self::socket());
        command
    }

    /// Runs a `guideway` command that talks to the agent of a machine, and returns its JSON.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with the command's output, for example when no agent runs.
    pub fn ask(&self, machine: &Namespace, arguments: &[&str]) -> Result<Value> {
        let answer = output(self.command(machine, arguments).arg("--json"))?;
        serde_json::from_str(&answer).map_err(|_| Error::Invalid {
            what: "answer",
            value: answer,
            expected: "JSON",
        })
    }
}

fn is_ready(status: &Value) -> bool {
    let interfaces = status["interfaces"].as_array();
    interfaces.is_some_and(|all| all.iter().all(|one| one["mode"].is_string()))
        && status["unapplied"] == 0
        && status["next_hops"]["unresolved"].as_u64().unwrap_or(0) == 0
}
