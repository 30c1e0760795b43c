//! The flows of a scenario, without a network.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::{
    BACKENDS, PlannedFlow,
    addresses::{self, FIRST_CLIENT_PORT, first_node},
    ports,
};
use crate::{
    load::clients_of_frames,
    scenario::{Load, Ports, Scenario, System},
};

/// A system under a load.
#[derive(Clone, Debug)]
pub struct PlannedSeries {
    /// Name of the series.
    pub name: String,
    /// The system.
    pub system: System,
    /// The load.
    pub load: Load,
    /// The flows, without those that are new in a trial.
    pub flows: Vec<PlannedFlow>,
    /// Where flows go to, in turn.
    pub targets: Vec<SocketAddr>,
    /// The backends, by their numbers.
    pub backends: Vec<String>,
}

/// Lists the series of a scenario, in their order.
///
/// # Errors
///
/// When the client has not enough ports for all flows.
pub fn planned(scenario: &Scenario) -> Result<Vec<PlannedSeries>> {
    if let Some(cards) = &scenario.ports {
        return through_ports(scenario, cards);
    }
    let mut next_port = FIRST_CLIENT_PORT;
    let mut series = Vec::new();
    for (load, number) in scenario.loads.iter().zip(1..) {
        for &system in &scenario.systems {
            let targets = addresses::targets(scenario, system, load)?;
            let clients = match clients_of_frames(load, targets.len()) {
                Some(clients) => clients,
                None => {
                    let first = next_port;
                    next_port = first.saturating_add(u16::try_from(load.flows)?);
                    addresses::clients(load.family, first, load.flows)?
                }
            };
            let first = first_node(system);
            let nodes = first..first + BACKENDS;
            series.push(PlannedSeries {
                name: format!("{system}-{number}"),
                system,
                load: load.clone(),
                targets,
                flows: addresses::flows(scenario, system, load, clients.into_iter())?,
                backends: nodes.map(|node| format!("node{node}")).collect(),
            });
        }
    }
    Ok(series)
}

/// Lists the series of a wire with network cards.
fn through_ports(scenario: &Scenario, cards: &Ports) -> Result<Vec<PlannedSeries>> {
    let mut next_port = ports::FIRST_CLIENT_PORT;
    let mut series = Vec::new();
    for (load, number) in scenario.loads.iter().zip(1..) {
        for &system in &scenario.systems {
            let first = next_port;
            if !load.generator.makes_frames() {
                next_port = first.saturating_add(u16::try_from(load.flows)?);
            }
            let device = scenario.device_of(system);
            let device = device.with_context(|| format!("{system} is not under test"))?;
            let backends = cards.backends(load.family);
            series.push(PlannedSeries {
                name: format!("{system}-{number}"),
                system,
                load: load.clone(),
                targets: device.targets(load.family),
                flows: ports::planned_flows(cards, device, load, first)?,
                backends: backends.iter().map(ToString::to_string).collect(),
            });
        }
    }
    Ok(series)
}
