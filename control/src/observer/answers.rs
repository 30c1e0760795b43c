//! Answers to the socket, as lines of JSON, and the values of a scrape.

use serde::Serialize;

use super::Observation;
use crate::api::Reply;
use crate::api::server::{error_line, line};
use crate::metrics::Snapshot;

impl Observation<'_> {
    pub(super) fn status_line(&self) -> String {
        line(&Reply::Ok(self.status()))
    }

    pub(super) fn services_line(&self) -> String {
        rows(self.services())
    }

    pub(super) fn backends_line(&self) -> String {
        rows(self.backends())
    }

    pub(super) fn drops_line(&self) -> String {
        rows(self.drops())
    }

    /// Reads all values for the metrics; nothing if nobody waits for them.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        self.go_on().ok()?;
        let (interfaces, egress) = self.programs();
        let mut status = self.status();
        (status.interfaces, status.egress) = (interfaces, egress);
        let services = self.services().unwrap_or_default();
        let backends = self.each_backend().unwrap_or_default();
        self.go_on().ok()?;
        Some(Snapshot {
            status,
            started_at: self.sources.started_at,
            services,
            backends,
            reasons: self.reasons().unwrap_or_default(),
            failures: self.failures().unwrap_or_default(),
            health: self.health_values(),
            kubernetes: self.kubernetes_values(),
        })
    }
}

fn rows<T: Serialize>(rows: Result<Vec<T>, String>) -> String {
    rows.map_or_else(error_line, |rows| line(&Reply::Ok(rows)))
}
