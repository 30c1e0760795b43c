//! `guideway run` on a machine, and the commands that ask it.

use std::collections::BTreeMap;
use std::process::Command;

use lab::{Guideway, Machine, Process, Signal, output, wait_for};
use serde_json::Value;

use super::TIMEOUT;

/// An agent. When a test panics, its log is shown.
#[derive(Debug)]
pub(crate) struct Agent<'net> {
    machine: &'net Machine,
    process: Process,
}

impl<'net> Agent<'net> {
    /// Starts an agent and waits until it is ready.
    pub(crate) fn start(machine: &'net Machine, config: &str) -> Self {
        let mut agent = Self::launch(machine, config);
        agent.wait_until_ready();
        agent
    }

    /// Starts agents with one configuration, all at the same time, and waits until they are ready.
    pub(crate) fn start_all(
        machines: impl IntoIterator<Item = &'net Machine>,
        config: &str,
    ) -> Vec<Self> {
        let machines = machines.into_iter();
        let mut agents: Vec<Self> = machines
            .map(|machine| Self::launch(machine, config))
            .collect();
        agents.iter_mut().for_each(Self::wait_until_ready);
        agents
    }

    /// Starts an agent without waiting for it.
    pub(crate) fn launch(machine: &'net Machine, config: &str) -> Self {
        Self::launch_of(&guideway(), machine, config)
    }

    /// Starts an agent of a certain program without waiting for it.
    pub(crate) fn launch_of(guideway: &Guideway, machine: &'net Machine, config: &str) -> Self {
        guideway.configure(machine.namespace(), config).unwrap();
        Self {
            machine,
            process: guideway.run(machine.namespace()).unwrap(),
        }
    }

    pub(crate) fn machine(&self) -> &'net Machine {
        self.machine
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Replaces the configuration file, which the agent has to notice by itself.
    pub(crate) fn write_config(&self, config: &str) {
        let machine = self.machine.namespace();
        guideway().configure(machine, config).unwrap();
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
        self.process = guideway().run(self.machine.namespace()).unwrap();
        self.wait_until_ready();
    }

    /// Starts an agent that has ended again, where it takes over flows of former tables and leaves nothing of these.
    /// Returns its log.
    pub(crate) fn start_over_former_tables(&mut self) -> String {
        self.start_again();
        let log = self.process.stderr();
        assert!(log.contains("flows of the former tables go on"), "{log}");
        assert!(!log.contains("adopted=false"), "{log}");
        let mut list = self.machine.namespace().command("ls");
        let left = output(list.arg("/sys/fs/bpf/guideway")).unwrap();
        assert_eq!(left.lines().count(), 1, "{left}");
        log
    }

    /// Asks the program under test what it would do to the machine's tables. Returns what becomes of each map, and whether
    /// connections go on.
    pub(crate) fn check_upgrade(&self) -> (BTreeMap<String, String>, bool) {
        let machine = self.machine.namespace();
        let mut check = machine.command(env!("CARGO_BIN_EXE_guideway"));
        check.args(["upgrade", "--check", "--json", "--config"]);
        let answer = check.arg(Guideway::config()).output().unwrap();
        let upgrade: Value = serde_json::from_slice(&answer.stdout)
            .unwrap_or_else(|error| panic!("{error}: {answer:?}"));
        let goes_on = upgrade["connections_go_on"].as_bool().unwrap();
        assert_eq!(answer.status.code(), Some(i32::from(!goes_on)));
        let tables = upgrade["tables"].as_array().unwrap().iter();
        let text = |table: &Value, field| table[field].as_str().unwrap().to_owned();
        let becomes = tables.map(|table| (text(table, "name"), text(table, "becomes")));
        (becomes.collect(), goes_on)
    }

    pub(crate) fn wait_until_ready(&mut self) {
        let machine = self.machine.namespace();
        let ready = guideway().wait_until_ready(machine, &mut self.process);
        ready.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until an answer of the agent is as it should be, and returns it.
    pub(crate) fn wait_for_answer(
        &self,
        awaited: &str,
        arguments: &[&str],
        is_right: impl Fn(&Value) -> bool,
    ) -> Value {
        wait_for(awaited, TIMEOUT, || {
            let answer = guideway().ask(self.machine.namespace(), arguments);
            let answer = answer.map_err(|error| error.to_string())?;
            if is_right(&answer) {
                Ok(answer)
            } else {
                Err(answer.to_string())
            }
        })
        .unwrap()
    }

    /// Waits until the agent has taken its file for the `reloads`-th time.
    pub(crate) fn wait_for_reloads(&self, reloads: u64) -> Value {
        self.wait_for_answer("the reload takes effect", &["status"], |status| {
            status["config"]["reloads"] == reloads
        })
    }

    /// Runs a command against the agent and returns its JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        guideway().ask(self.machine.namespace(), arguments).unwrap()
    }

    /// Runs a command against the agent and returns what it prints for people.
    pub(crate) fn page(&self, arguments: &[&str]) -> String {
        lab::output(&mut self.command(arguments)).unwrap()
    }

    /// Lists the flows that these words select.
    pub(crate) fn flows(&self, words: &[&str]) -> Vec<Value> {
        let answer = self.json(&[&["flows"], words].concat());
        answer["flows"].as_array().unwrap().clone()
    }

    /// Gets a page of the agent's own listener.
    pub(crate) fn get(&self, path: &str) -> String {
        let url = format!("http://127.0.0.1:9750{path}");
        let mut curl = self.machine.namespace().command("curl");
        lab::output(curl.args(["-sSf", &url])).unwrap()
    }

    /// Prepares a command against the agent.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        guideway().command(self.machine.namespace(), arguments)
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

/// The program under test.
pub(crate) fn guideway() -> Guideway {
    Guideway::new(env!("CARGO_BIN_EXE_guideway"))
}
