//! The agent's pages: `/metrics` for Prometheus, `/healthz` for probes of its programs, and what the commands
//! show as JSON, for `guideway cluster`. They only read: which page there is, [`read_only`] says.

use std::sync::{Arc, PoisonError};

use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::{Observation, Observer};
use crate::api::{Request, ServiceFilter};
use crate::http::{self, Answer};
use crate::metrics::{self, Snapshot};

impl Observer {
    /// Returns the page at a path.
    pub async fn page(&self, path: &str) -> Answer {
        let Some(request) = read_only(path) else {
            return page(path, self.metrics(), self.unattached()).await;
        };
        let permit = match request {
            Request::Services(_) | Request::Backends(_) => {
                Arc::clone(&self.large_pages).acquire_owned().await.ok()
            }
            _ => None,
        };
        let text = self.answer(request).await;
        http::json(Bytes::from_owner(PageText {
            text,
            _permit: permit,
        }))
    }
}

/// The text of a page, which has its permit until it is sent.
struct PageText {
    text: String,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for PageText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// Returns the request that the page at a path answers as the socket does: one that changes nothing, and does
/// not show clients.
fn read_only(path: &str) -> Option<Request> {
    let every = ServiceFilter::default();
    Some(match path {
        "/status" => Request::Status {},
        "/config" => Request::Config {},
        "/services" => Request::Services(every),
        "/backends" => Request::Backends(every),
        "/drops" => Request::Drops {},
        _ => return None,
    })
}

/// Returns the page at a path: the metrics, or the devices that lack their program. `None` in place of these
/// means that the agent hangs.
///
/// The agent is healthy if its programs are on every device that needs them. A rejected file or service is no
/// reason to restart an agent that serves; the metrics report those.
pub(crate) async fn page(
    path: &str,
    scrape: impl Future<Output = Option<String>>,
    unattached: impl Future<Output = Option<Vec<String>>>,
) -> Answer {
    match path {
        "/metrics" => metrics::page(scrape.await),
        "/healthz" => match unattached.await {
            Some(unattached) => http::ok_unless(&unattached),
            None => http::text(
                StatusCode::SERVICE_UNAVAILABLE,
                "the dataplane does not answer\n",
            ),
        },
        _ => http::text(
            StatusCode::NOT_FOUND,
            "try /metrics, /healthz, /status, /config, /services, /backends or /drops\n",
        ),
    }
}

impl Observation<'_> {
    /// Reads all values for the metrics; `None` if nobody waits for them.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        self.go_on().ok()?;
        let (interfaces, egress) = self.programs();
        let mut status = self.status();
        (status.interfaces, status.egress) = (interfaces, egress);
        let mut services = self.services(&ServiceFilter::default()).unwrap_or_default();
        let mut backends = self.each_backend().unwrap_or_default();
        // An answer that broke off has too few rows.
        self.go_on().ok()?;
        // A panic while it was held leaves sums that are still sums.
        let others = self.inputs.others.lock();
        let mut others = others.unwrap_or_else(PoisonError::into_inner);
        let other_services = others.services.follow(&mut services);
        let other_backends = others.backends.follow(&mut backends);
        Some(Snapshot {
            status,
            started_at: self.inputs.started_at,
            services,
            other_services,
            backends,
            other_backends,
            reasons: self.reasons(),
            failures: self.failures().unwrap_or_default(),
            health: self.health_values(),
            kubernetes: self.kubernetes_values(),
        })
    }
}
