//! Writes to the API server, only while this process leads and with a time limit.

use std::time::Duration;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Reporter};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::MANAGER;
use super::crd::Pool;
use super::lease::LeadershipTerm;
use super::pending_event::PendingEvent;
use super::pool_status::PoolWrite;
use super::service_status::Write;
use crate::chain::chain;
use crate::index::objects::ObjectName;
use crate::kubernetes::backoff::asked_pause;
use crate::kubernetes::events::publish_event;
use crate::kubernetes::request_errors::{Purpose, RequestErrors};
use crate::kubernetes::schema::Service;

/// Most characters of the API server's message that are passed on. An Event holds few more.
const LONGEST_REASON: usize = 400;
/// Number of simultaneous writes.
const CONCURRENT: usize = 8;

/// Time limit for the Events of one plan.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError<E = kube::Error> {
    /// The API server refused the write or did not answer.
    #[error("the request failed")]
    Refused(#[source] E),
    /// The write took longer than the term of a leader allows.
    #[error("the API server does not answer in time")]
    Late,
    #[error("not the leader")]
    NotLeading,
}

impl WriteError {
    /// Returns whether somebody has changed the object meanwhile.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if status.code == 409)
    }

    /// Returns why the API server refuses the write; `None` if a repetition may succeed by itself.
    pub(super) fn refusal(&self) -> Option<String> {
        let Self::Refused(kube::Error::Api(status)) = self else {
            return None;
        };
        let passes = matches!(status.code, 404 | 408 | 409 | 429);
        let lasts = (400..500).contains(&status.code) && !passes;
        lasts.then(|| status.message.chars().take(LONGEST_REASON).collect())
    }

    /// Returns the pause that the server asks for.
    pub(super) fn asked_pause(&self) -> Option<Duration> {
        match self {
            Self::Refused(kube::Error::Api(status)) => asked_pause(status),
            Self::Refused(_) | Self::Late | Self::NotLeading => None,
        }
    }
}

pub(super) struct Writer {
    client: Client,
    terms: watch::Receiver<LeadershipTerm>,
    timeout: Duration,
    request_errors: RequestErrors,
}

impl Writer {
    pub(super) fn new(
        client: Client,
        terms: watch::Receiver<LeadershipTerm>,
        timeout: Duration,
        request_errors: RequestErrors,
    ) -> Self {
        Self {
            client,
            terms,
            timeout,
            request_errors,
        }
    }

    /// Runs a request that only the leader may make, and counts its failure.
    pub(super) async fn counted<T, E: std::error::Error + 'static>(
        &self,
        purpose: Purpose,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, WriteError<E>> {
        let outcome = self.in_time(request).await;
        match &outcome {
            Ok(_) => drop(self.request_errors.take(purpose, Ok(()))),
            Err(WriteError::NotLeading) => {}
            Err(error) => drop(self.request_errors.take(purpose, Err(chain(error)))),
        }
        outcome
    }

    /// Runs a request that only the leader may make, with the time limit.
    async fn in_time<T, E>(
        &self,
        write: impl Future<Output = Result<T, E>>,
    ) -> Result<T, WriteError<E>> {
        if !self.terms.borrow().is_leading() {
            return Err(WriteError::NotLeading);
        }
        match timeout(self.timeout, write).await {
            Ok(outcome) => outcome.map_err(WriteError::Refused),
            Err(_) => Err(WriteError::Late),
        }
    }

    /// Writes the status and finalizers of a pool. Each write fails if somebody has changed the pool meanwhile.
    /// Returns the pool as written.
    pub(super) async fn pool(
        &self,
        name: &ObjectName,
        write: &PoolWrite,
    ) -> Result<Option<Pool>, WriteError> {
        let pools: Api<Pool> = Api::all(self.client.clone());
        let mut version = Some(write.version.clone());
        let mut written = None;
        if let Some(status) = &write.status {
            let (parameters, patch) = (parameters(), Patch::Apply(status));
            let patching = pools.patch_status(&name.name, &parameters, &patch);
            let pool = self.in_time(patching).await?;
            if let Some(event) = &write.event {
                self.publish_one("DeletePool", &pool.object_ref(&()), event)
                    .await;
            }
            version = pool.resource_version();
            written = Some(pool);
        }
        if let Some(finalizers) = &write.finalizers {
            let metadata = json!({"resourceVersion": version, "finalizers": finalizers});
            // A merge patch, because a server-side apply would create a pool that is gone.
            let patch = Patch::Merge(json!({"metadata": metadata}));
            let parameters = PatchParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let patching = pools.patch(&name.name, &parameters, &patch);
            written = Some(self.in_time(patching).await?);
        }
        Ok(written)
    }

    pub(super) async fn read_pool(&self, name: &ObjectName) -> Result<Pool, WriteError> {
        let pools: Api<Pool> = Api::all(self.client.clone());
        self.counted(Purpose::Pool, pools.get(&name.name)).await
    }

    /// Writes the status of Services, several at a time, and publishes their Events. Yields each Service with
    /// the digest of its write.
    pub(super) fn services(
        &self,
        writes: Vec<(ObjectName, u64, Write)>,
    ) -> impl Stream<Item = (ObjectName, u64, Result<Service, WriteError>)> + Unpin {
        let writes = futures_util::stream::iter(writes);
        let writes = writes.map(move |(name, digest, write)| async move {
            let written = self.service(&name, &write).await;
            (name, digest, written)
        });
        Box::pin(writes.buffer_unordered(CONCURRENT))
    }

    async fn service(&self, name: &ObjectName, write: &Write) -> Result<Service, WriteError> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &name.namespace);
        let (parameters, patch) = (parameters(), Patch::Apply(&write.patch));
        let written = services.patch_status(&name.name, &parameters, &patch);
        let service = self.in_time(written).await?;
        let reference = service.object_ref(&());
        for event in &write.events {
            self.publish_one("AssignAddress", &reference, event).await;
        }
        Ok(service)
    }

    /// Publishes Events that come without a write, several at a time. Those that take longer than a second are
    /// dropped, because address assignments wait for this.
    pub(super) async fn publish(&self, events: Vec<(ObjectName, String, PendingEvent)>) {
        let end = Instant::now() + EVENTS_TIMEOUT;
        let events = futures_util::stream::iter(events);
        let published = events.for_each_concurrent(CONCURRENT, async |(name, uid, event)| {
            let reference = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Service".to_owned()),
                namespace: Some(name.namespace.to_string()),
                name: Some(name.name.to_string()),
                uid: Some(uid),
                ..ObjectReference::default()
            };
            let publishing = self.publish_one("ReadService", &reference, &event);
            if timeout_at(end, publishing).await.is_err() {
                let late = WriteError::<kube::Error>::Late;
                self.request_errors.take(Purpose::Event, Err(chain(&late)));
            }
        });
        published.await;
    }

    /// Publishes an Event. A lost Event is not repeated.
    async fn publish_one(&self, action: &str, reference: &ObjectReference, event: &PendingEvent) {
        let event = Event {
            type_: if event.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: event.reason.to_owned(),
            note: Some(event.text.clone()),
            action: action.to_owned(),
            secondary: None,
        };
        let publishing = publish_event(&self.client, Reporter::from(MANAGER), &event, reference);
        let _ = self.counted(Purpose::Event, publishing).await;
    }
}

/// Forces the write: of two writers of one Service, the one whose class it has is right.
fn parameters() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn what_another_attempt_may_change_is_no_refusal() {
        let refusal = |code| {
            let status = Status::failure("because", "Any").with_code(code);
            WriteError::Refused(kube::Error::Api(status.boxed())).refusal()
        };
        for code in [400, 403, 422] {
            assert_eq!(refusal(code).as_deref(), Some("because"), "{code}");
        }
        for code in [404, 408, 409, 429, 500, 503] {
            assert_eq!(refusal(code), None, "{code}");
        }
        assert_eq!(WriteError::<kube::Error>::Late.refusal(), None);
    }
}
