//! Elects the controller that acts, by a Lease and the rules of client-go.
//!
//! A candidate takes the Lease when it is free, or when the candidate has not seen it change for its duration.
//! Only the candidate's own clock counts, so clocks need not agree. A leader stops acting when it could not
//! renew for two thirds of the duration. Existing crates either compare the clocks of both machines or do not
//! tell the leader when to stop; the code around one would be longer than this.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::MANAGER;
use crate::chain::chain;
use crate::kubernetes::request_errors::{Purpose, RequestErrors};
use crate::kubernetes::schema::{Lease, LeaseSpec, micro_time};

pub(super) const LEASE: &str = "guideway-controller";
/// How long a process that ends may take to give the Lease back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether this process may act, and until when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeadershipTerm {
    until: Option<Instant>,
    /// How often this process has become leader. What it knew in an earlier term may be wrong.
    pub(super) number: u64,
}

impl LeadershipTerm {
    /// Returns whether this process may act now.
    pub(super) fn is_leading(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

pub(super) struct Candidate {
    api: Api<Lease>,
    identity: String,
    duration: Duration,
    /// The Lease when it was last seen to change, and the time of that.
    seen: Option<(LeaseSpec, Instant)>,
    request_errors: RequestErrors,
}

impl Candidate {
    pub(super) fn new(
        api: Api<Lease>,
        identity: String,
        duration: Duration,
        request_errors: RequestErrors,
    ) -> Self {
        Self {
            api,
            identity,
            duration,
            seen: None,
            request_errors,
        }
    }

    /// Returns how long a write may take, so that a leader's last write ends before another controller leads.
    pub(super) fn write_timeout(duration: Duration) -> Duration {
        duration / 4
    }

    /// Takes part in the election until `stop` ends, then gives the Lease back.
    pub(super) async fn run(
        mut self,
        term: &watch::Sender<LeadershipTerm>,
        stop: impl Future<Output = ()>,
    ) {
        tokio::pin!(stop);
        let pause = self.duration / 5;
        loop {
            let asked = Instant::now();
            let outcome = tokio::time::timeout(pause, self.stand()).await;
            let failed = match &outcome {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(chain(error)),
                Err(_) => Err("the API server does not answer in time".to_owned()),
            };
            self.request_errors.take(Purpose::Lease, failed);
            // After a failure the current term goes on: the rest of it is the time for further attempts.
            if let Ok(Ok(leads)) = outcome {
                let until = leads.then_some(asked + self.duration * 2 / 3);
                term.send_if_modified(|term| {
                    // A term that expired unnoticed counts as a change too.
                    let turned = term.is_leading() != leads;
                    if turned {
                        tracing::info!(leads, "leader election");
                    }
                    term.number += u64::from(turned && leads);
                    term.until = until;
                    turned
                });
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = &mut stop => break,
            }
        }
        if term.borrow().is_leading() {
            match tokio::time::timeout(RELEASE_TIMEOUT, self.release()).await {
                Ok(Ok(())) => tracing::info!("gave the Lease back"),
                _ => tracing::warn!("could not give the Lease back; it ends by itself"),
            }
        }
    }

    /// Takes or renews the Lease if allowed. Returns whether this process holds it.
    async fn stand(&mut self) -> Result<bool, kube::Error> {
        let Some(lease) = self.api.get_opt(LEASE).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(LEASE.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.renewed(&LeaseSpec::default())),
            };
            let parameters = PostParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PostParams::default()
            };
            self.api.create(&parameters, &lease).await?;
            return Ok(true);
        };
        let now = Instant::now();
        let spec = lease.spec.clone().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == spec => *since,
            _ => now,
        };
        self.seen = Some((spec.clone(), since));
        if !may_hold(&spec, &self.identity, now - since) {
            return Ok(false);
        }
        self.write(&lease, &self.renewed(&spec)).await?;
        Ok(true)
    }

    /// Writes the specification of the Lease and keeps the fields of others. Fails if the Lease has changed
    /// since it was read.
    async fn write(&self, lease: &Lease, spec: &LeaseSpec) -> Result<(), kube::Error> {
        let version = lease.resource_version();
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": spec});
        let parameters = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        self.api
            .patch(LEASE, &parameters, &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Returns the Lease as held by this process from now on.
    fn renewed(&self, spec: &LeaseSpec) -> LeaseSpec {
        let now = micro_time(Timestamp::now());
        let mine = spec.holder_identity.as_deref() == Some(&self.identity);
        let transitions = spec.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
            acquire_time: spec
                .acquire_time
                .clone()
                .filter(|_| mine)
                .or(Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(if mine { transitions } else { transitions + 1 }),
        }
    }

    async fn release(&self) -> Result<(), kube::Error> {
        let lease = self.api.get(LEASE).await?;
        let mut spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() == Some(&self.identity) {
            spec.holder_identity = Some(String::new());
            self.write(&lease, &spec).await?;
        }
        Ok(())
    }
}

/// Returns whether a candidate may take or renew a Lease that has not changed for a time.
fn may_hold(spec: &LeaseSpec, identity: &str, unchanged: Duration) -> bool {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or(0);
    let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    holder.is_empty() || holder == identity || unchanged > duration
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_when_it_is_free_or_stale_by_the_own_clock() {
        let lease = |holder: &str| LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(10),
            ..LeaseSpec::default()
        };
        let seconds = Duration::from_secs;
        assert!(may_hold(&LeaseSpec::default(), "me", seconds(0)));
        assert!(may_hold(&lease(""), "me", seconds(0)));
        assert!(may_hold(&lease("me"), "me", seconds(0)));
        assert!(!may_hold(&lease("you"), "me", seconds(10)));
        assert!(may_hold(&lease("you"), "me", seconds(11)));
    }
}
