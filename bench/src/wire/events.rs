//! What happens to balancers while a trial runs.

use std::{sync::PoisonError, time::Duration};

use anyhow::{Context, Result, bail};
use lab::{Machine, wait_for};

use super::{Lab, kube_proxy::Cluster};
use crate::scenario::{EventKind, System};

/// How long an agent may take to end, and an edge to have all backends back.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Lab {
    pub(super) fn cause_event(&self, system: System, event: EventKind) -> Result<()> {
        let edge = self.edge(system)?;
        let changed = self.listing(system)?.changed_by(event);
        match (self.cluster_of(system), event) {
            (Some(cluster), EventKind::AgentRestart) => cluster.restart(edge, TIMEOUT),
            (None, EventKind::AgentRestart) => self.restart_agent(edge),
            (Some(cluster), _) => cluster.take_last_endpoint(edge, &changed),
            (None, _) => self.configure_edge(system, &changed),
        }
    }

    pub(super) fn undo_event(&self, system: System, event: EventKind) -> Result<()> {
        let edge = self.edge(system)?;
        let is_change = event != EventKind::AgentRestart;
        if let Some(cluster) = self.cluster_of(system) {
            if is_change {
                let changed = self.listing(system)?.changed_by(event);
                let proxies = self.systems.iter().filter(|one| one.proxy_mode().is_some());
                let machines: Result<Vec<_>> = proxies.map(|&one| self.edge(one)).collect();
                cluster.give_back(machines?.into_iter(), &changed)?;
            }
            // Each flow must be answered before the next trial begins.
            return Ok(());
        }
        if is_change {
            self.configure_edge(system, &[])?;
            self.wait_for_backends(system)?;
        }
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let agent = agents.get_mut(edge.label()).context("it has an agent")?;
        Ok(self.guideway.wait_until_ready(edge.namespace(), agent)?)
    }

    /// Returns the API server that a system follows, if it is kube-proxy.
    pub(super) fn cluster_of(&self, system: System) -> Option<&Cluster> {
        let cluster = self.cluster.as_ref();
        cluster.filter(|_| system.proxy_mode().is_some())
    }

    fn restart_agent(&self, edge: &Machine) -> Result<()> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let agent = agents.get_mut(edge.label()).context("it has an agent")?;
        agent.stop(TIMEOUT)?;
        *agent = self.guideway.run(edge.namespace())?;
        Ok(())
    }

    fn configure_edge(&self, system: System, changed: &[u32]) -> Result<()> {
        let config = self.edge_config(system, changed)?;
        let edge = self.edge(system)?.namespace();
        Ok(self.guideway.configure(edge, &config)?)
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
