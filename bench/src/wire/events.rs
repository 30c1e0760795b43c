//! What happens to balancers while a trial runs.

use std::{sync::PoisonError, time::Duration};

use anyhow::{Context, Result, bail};
use lab::{Machine, wait_for};

use super::Lab;
use crate::scenario::{EventKind, System};

/// How long an agent may take to end, and an edge to have all backends back.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Lab {
    pub(super) fn cause_event(&self, system: System, event: EventKind) -> Result<()> {
        match event {
            EventKind::AgentRestart => match &self.cluster {
                Some(cluster) if system.proxy_mode().is_some() => {
                    cluster.restart(self.edge(system)?, TIMEOUT)
                }
                _ => self.restart_agent(self.edge(system)?),
            },
            EventKind::BackendChange => {
                let nodes = self.nodes(system);
                self.configure_edge(system, &nodes[..nodes.len() - 1])
            }
        }
    }

    pub(super) fn undo_event(&self, system: System, event: EventKind) -> Result<()> {
        if system.proxy_mode().is_some() {
            // Each flow must be answered before the next trial begins.
            return Ok(());
        }
        let edge = self.edge(system)?;
        if event == EventKind::BackendChange {
            self.configure_edge(system, self.nodes(system))?;
            self.wait_for_backends(system)?;
        }
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let agent = agents.get_mut(edge.label()).context("it has an agent")?;
        Ok(self.guideway.wait_until_ready(edge.namespace(), agent)?)
    }

    fn restart_agent(&self, edge: &Machine) -> Result<()> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let agent = agents.get_mut(edge.label()).context("it has an agent")?;
        agent.stop(TIMEOUT)?;
        *agent = self.guideway.run(edge.namespace())?;
        Ok(())
    }

    fn configure_edge(&self, system: System, nodes: &[Machine]) -> Result<()> {
        let config = self.edge_config(system, nodes)?;
        Ok(self
            .guideway
            .configure(self.edge(system)?.namespace(), &config)?)
    }

    /// Waits until every Service has slots for every backend.
    fn wait_for_backends(&self, system: System) -> Result<()> {
        let edge = self.edge(system)?.namespace();
        let expected = self.listing(system)?.all().len() * self.nodes(system).len();
        let awaited = format!("{system} has {expected} backends");
        Ok(wait_for(&awaited, TIMEOUT, || {
            let rows = self.guideway.ask(edge, &["backends"])?;
            let rows = rows.as_array().map_or(&[][..], Vec::as_slice);
            let in_use = rows.iter().filter(|row| row["slots"].as_u64() > Some(0));
            match in_use.count() {
                all if all == expected => Ok(()),
                other => bail!("{other} have slots"),
            }
        })?)
    }
}
