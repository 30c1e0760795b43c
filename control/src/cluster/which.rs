//! Which edge announces an address, by what every agent says of itself.

use std::net::IpAddr;

use serde::Serialize;

use super::findings::silence;
use super::report::Report;
use crate::render::Page;

/// The document of `guideway cluster which`.
#[derive(Debug, Serialize)]
pub(super) struct Announced {
    address: IpAddr,
    /// The edges that announce it.
    pub(super) announced_by: Vec<Edge>,
    /// Agents that do not answer, one line each: they may announce it too.
    silent: Vec<String>,
}

/// An edge that announces the address.
#[derive(Debug, Serialize)]
pub(super) struct Edge {
    name: String,
    /// The interfaces on which it does.
    interfaces: Vec<String>,
}

impl Announced {
    pub(super) fn of(report: &Report, address: IpAddr) -> Self {
        let agents = report.agents.iter();
        let edges = agents.filter_map(|agent| {
            let announced = &agent.status.as_ref()?.announced;
            announced.addresses.contains(&address).then(|| Edge {
                name: agent.name.clone(),
                interfaces: announced.interfaces.clone(),
            })
        });
        Self {
            address,
            announced_by: edges.collect(),
            silent: report.agents.iter().filter_map(silence).collect(),
        }
    }

    pub(super) fn page(&self, page: &mut Page) {
        let address = self.address;
        for edge in &self.announced_by {
            let interfaces = edge.interfaces.join(", ");
            page.line(&format!(
                "{address} is announced by {}, on {interfaces}",
                edge.name
            ));
        }
        if self.announced_by.is_empty() {
            page.line(&format!("nobody who answers announces {address}"));
        }
        for line in &self.silent {
            page.line(line);
        }
    }
}
