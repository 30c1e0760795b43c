//! The flows that this machine knows: those of its pods and those of NAT mode.

use std::collections::HashMap;
use std::net::SocketAddr;

use fastpath::tables::{KnownFlow, ServiceKey};

use super::counters::describe;
use super::{GONE, Observation};
use crate::api::{Flow, FlowFilter, Flows};
use crate::target_state::name_of;

/// Most flows that an answer lists.
const MOST_FLOWS: usize = 100_000;

/// Number of flows of each service and each of its backends.
#[derive(Default)]
pub(super) struct Connections {
    pub(super) services: HashMap<ServiceKey, u64>,
    pub(super) backends: HashMap<(ServiceKey, SocketAddr), u64>,
}

impl Observation<'_> {
    /// Counts the flows of each service and each of its backends.
    pub(super) fn connections(&self) -> Result<Connections, String> {
        let mut counted = Connections::default();
        self.walk_flows(|flow| {
            *counted.services.entry(flow.service).or_default() += 1;
            let backend = (flow.service, flow.backend);
            *counted.backends.entry(backend).or_default() += 1;
        })?;
        Ok(counted)
    }

    /// Lists the selected flows up to the limit, and counts the others.
    pub(super) fn flows(&self, of: &FlowFilter) -> Result<Flows, String> {
        let limit = of.limit.min(MOST_FLOWS);
        let mut found = Flows::default();
        // Many flows have the same service, and finding its name takes a lookup and a text comparison.
        let mut names: HashMap<ServiceKey, Option<String>> = HashMap::new();
        self.walk_flows(|flow| {
            let is_other = |wanted, one: SocketAddr| wanted != one.ip();
            if of
                .client
                .is_some_and(|client| is_other(client, flow.client))
                || of
                    .backend
                    .is_some_and(|backend| is_other(backend, flow.backend))
            {
                return;
            }
            let name = names.entry(flow.service).or_insert_with(|| {
                let name = name_of(&self.view.services, &flow.service);
                let name = name.unwrap_or_else(|| flow.service.to_string());
                of.services.includes(&name, &flow.service).then_some(name)
            });
            match name {
                None => {}
                Some(_) if found.flows.len() >= limit => found.more += 1,
                Some(name) => found.flows.push(row(&flow, name)),
            }
        })?;
        Ok(found)
    }

    fn walk_flows(&self, mut take: impl FnMut(KnownFlow)) -> Result<(), String> {
        self.go_on()?;
        let walked = self.inputs.reader.flows(|flow| {
            take(flow);
            !(self.is_gone)()
        });
        walked.map_err(describe)?;
        match (self.is_gone)() {
            true => Err(GONE.to_owned()),
            false => Ok(()),
        }
    }
}

fn row(flow: &KnownFlow, name: &str) -> Flow {
    Flow {
        client: flow.client.to_string(),
        name: name.to_owned(),
        service: flow.service.to_string(),
        backend: flow.backend.to_string(),
        table: if flow.is_nat { "nat" } else { "node" }.to_owned(),
        open: flow.is_open,
        idle_seconds: flow.idle.as_secs(),
    }
}
