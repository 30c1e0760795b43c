//! The agent under test.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use lab::{Guideway, Namespace, Process, wait_for};

use super::{cluster::Cluster, wire::INTERFACE};
use crate::usage;

/// Longer than lists and tables need on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(600);
const END_LIMIT: Duration = Duration::from_secs(30);
/// Lines of the agent's log: the last list is complete; the tables contain what was listed.
const LISTED: &str = "every kind is listed to its end";
const FULL: &str = "the tables have the first state of the cluster";
/// Number of log lines in an error.
const LOG_LINES: usize = 20;
const DAY: f64 = 86_400.0;
/// Services whose old tables and backends are kept for a moment after a change, at most.
const MOST_RETIRED: u32 = 1024;
/// Bytes of a slot of a lookup table.
const SLOT: f64 = 4.0;

/// A running agent.
#[derive(Debug)]
pub(super) struct Agent<'machine> {
    machine: &'machine Namespace,
    guideway: Guideway,
    process: Process,
    started: f64,
}

/// The duration of a start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// Time from the end of the last list to full tables.
    pub(super) tables: Duration,
    /// Time from the start of the program to full tables.
    pub(super) total: Duration,
}

impl<'machine> Agent<'machine> {
    /// Starts an agent with tables large enough for a cluster.
    pub(super) fn start(
        binary: &Path,
        machine: &'machine Namespace,
        cluster: &Cluster,
    ) -> Result<Self> {
        ensure!(
            binary.exists(),
            "{} is not built: cargo build --release --package control",
            binary.display()
        );
        let guideway = Guideway::new(binary);
        guideway.configure(machine, &config(cluster))?;
        let files = PathBuf::from(Namespace::FILES);
        let mut command = machine.command(binary);
        command
            .env("GUIDEWAY_LOG", "info")
            .env("KUBECONFIG", files.join("kubeconfig"))
            .args(["run", "--kubernetes", "--config"])
            .arg(files.join("guideway.yaml"));
        let started = time_of_day(SystemTime::now());
        Ok(Self {
            machine,
            guideway,
            process: Process::spawn(&mut command)?,
            started,
        })
    }

    /// Waits until the tables have all services.
    pub(super) fn wait_until_full(&mut self, services: u32) -> Result<Start> {
        let full = self.process.wait_for_line(FULL, START_LIMIT)?;
        let listed = self.process.wait_for_line(LISTED, START_LIMIT)?;
        let status = wait_for("the agent has no problem", START_LIMIT, || {
            let status = self.guideway.ask(self.machine, &["status"]);
            let status = status.map_err(|error| error.to_string())?;
            let unresolved = status["next_hops"]["unresolved"].as_u64().unwrap_or(0);
            if status["unapplied"] == 0 && unresolved == 0 {
                Ok(status)
            } else {
                Err(format!(
                    "{} next hops unresolved, {}",
                    unresolved, status["problems"]
                ))
            }
        });
        let status = status?;
        ensure!(
            status["services"] == services,
            "{} services are in the tables, not {services}",
            status["services"],
        );
        let [listed, full] =
            [&listed, &full].map(|line| logged_at(line).with_context(|| line.clone()));
        let (listed, full) = (listed?, full?);
        Ok(Start {
            tables: between(listed, full),
            total: between(self.started, full),
        })
    }

    /// Prepares a command that asks it.
    pub(super) fn command(&self, command: &str) -> Command {
        self.guideway.command(self.machine, &[command])
    }

    pub(super) fn cpu_time(&self) -> Result<Duration> {
        usage::cpu_time(self.process.id())
    }

    pub(super) fn memory(&self) -> Result<usage::Memory> {
        usage::Memory::of(self.process.id())
    }

    /// Returns the size of all lookup tables in use, in bytes.
    pub(super) fn lookup_table_bytes(&self) -> Result<f64> {
        let status = self.guideway.ask(self.machine, &["status"])?;
        let tables = status["tables"].as_array();
        let mut tables = tables.into_iter().flatten();
        let slots = tables.find(|table| table["name"] == "lut_slots");
        let slots = slots.and_then(|table| table["used"].as_f64());
        Ok(SLOT * slots.context("the agent tells nothing of lut_slots")?)
    }

    /// Returns the last lines of its log.
    pub(super) fn end_of_log(&self) -> String {
        let log = self.process.stderr();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// Ends the agent as a service manager would.
    pub(super) fn stop(mut self) -> Result<()> {
        let status = self.process.stop(END_LIMIT)?;
        ensure!(status.success(), "the agent ended with {status}");
        Ok(())
    }
}

fn config(cluster: &Cluster) -> String {
    const TABLE_SIZES: [(u32, u32); 3] = [(1, 1), (6, 256), (64, 2048)];
    let size = TABLE_SIZES
        .iter()
        .find(|(most, _)| cluster.endpoints <= *most)
        .map_or(2048, |(_, size)| *size);
    let services = cluster.services + MOST_RETIRED;
    let slots = services * size;
    format!(
        "interfaces: [{{ name: {INTERFACE}, mode: native }}]
tables: {{ lut_arena_mib: {}, services: {}, backends: {} }}
api: {{ socket: {} }}
hash_seed: 1
kubernetes: {{ node_name: edge, healthz: \"127.0.0.1:9751\" }}
",
        (slots >> 18) + 1,
        services,
        services * cluster.endpoints,
        Guideway::socket().display(),
    )
}

/// Reads the time of a log line, in seconds since midnight.
fn logged_at(line: &str) -> Option<f64> {
    let (_, time) = line.split_once('T')?;
    let (time, _) = time.split_once('Z')?;
    let [hours, minutes, seconds] = *time.split(':').collect::<Vec<_>>() else {
        return None;
    };
    let [hours, minutes, seconds] = [hours, minutes, seconds].map(str::parse::<f64>);
    Some(hours.ok()? * 3600.0 + minutes.ok()? * 60.0 + seconds.ok()?)
}

fn time_of_day(now: SystemTime) -> f64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs_f64() % DAY
}

/// Returns the time between two log lines, which may span midnight.
fn between(from: f64, to: f64) -> Duration {
    Duration::from_secs_f64((to - from).rem_euclid(DAY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_log_are_seconds_of_their_day() {
        let line = "2026-11-21T17:02:03.500000Z  INFO every kind is listed to its end";
        assert_eq!(logged_at(line), Some(61_323.5));
        assert_eq!(logged_at("no time"), None);
    }

    #[test]
    fn midnight_may_lie_between() {
        assert_eq!(between(86_399.5, 0.5), Duration::from_secs(1));
    }
}
