//! Whether the programs of a system still run. What they have put into the kernel stays there when they end, and goes on
//! forwarding: so a trial alone does not tell.

use std::sync::PoisonError;

use anyhow::{Context, Result};
use lab::{Machine, Process};

use super::Lab;
use crate::scenario::System;

/// Lines of a program's log that tell of its end.
const LAST_LINES: usize = 20;

/// A system has ended while it was measured.
#[derive(Debug, thiserror::Error)]
#[error("{system} has ended while it was measured: {what}; the last that it wrote:\n{log}")]
pub struct SystemEnded {
    /// The system.
    pub system: System,
    /// Which part of it, and how.
    pub what: String,
    /// The last lines that it wrote.
    pub log: String,
}

impl Lab {
    /// Checks that all programs of a system run.
    ///
    /// # Errors
    ///
    /// [`SystemEnded`] when one has ended.
    pub(super) fn expect_programs(&self, system: System) -> Result<()> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        for machine in self.machines_with_agents(system) {
            let agent = agents.get_mut(machine.label());
            expect_program(system, machine.label(), agent.context("it has an agent")?)?;
        }
        match self.cluster_of(system) {
            Some(cluster) => cluster.expect_programs(system, self.edge(system)?),
            None => Ok(()),
        }
    }

    /// Returns the machines that have agents of a system.
    pub(super) fn machines_with_agents(&self, system: System) -> impl Iterator<Item = &Machine> {
        let machines = self.nodes(system).iter().chain(self.edge(system).ok());
        machines.filter(move |_| system.is_ours())
    }
}

/// Checks that a program of a system runs.
///
/// # Errors
///
/// [`SystemEnded`] when it has ended.
pub(super) fn expect_program(
    system: System,
    machine: &str,
    program: &mut Process,
) -> Result<(), SystemEnded> {
    let Some(status) = program.ended() else {
        return Ok(());
    };
    Err(SystemEnded {
        system,
        what: format!("{} of {machine}: {status}", program.program()),
        log: program.last_lines(LAST_LINES),
    })
}
