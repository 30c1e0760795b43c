//! Renews this edge's own Lease.

use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use tokio::sync::watch;

use super::format::{LeaseContent, drain_patch, lease, lease_name};
use crate::announce::LoopHeartbeat;
use crate::announce::election::RENEWAL_PERIOD;
use crate::chain::chain;
use crate::kubernetes::request_errors::{Purpose, RequestErrors};
use crate::kubernetes::schema::Lease;

/// How long one renewal may take before the next attempt.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum age of the last sign of life of the agent's loop for a renewal. It must exceed the time that one
/// change takes. It must also be short enough for another edge to take over when this one stops answering,
/// [`xdp_prog::abi::ANNOUNCE_NS`] after the same sign of life.
const FRESH: Duration = Duration::from_millis(500);
/// How long the API server may take to write that an edge is drained.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two looks at a loop that shows no sign of life.
const FRESH_PAUSE: Duration = Duration::from_millis(50);

/// Renews this edge's Lease for ever, while `to_renew` has a content.
pub(super) async fn renew(
    leases: Api<Lease>,
    edge: String,
    mut to_renew: watch::Receiver<Option<LeaseContent>>,
    heartbeat: LoopHeartbeat,
    request_errors: RequestErrors,
) {
    let mut ticks = tokio::time::interval(RENEWAL_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Timestamp::UNIX_EPOCH;
    loop {
        if to_renew.wait_for(Option::is_some).await.is_err() {
            return;
        }
        ticks.tick().await;
        // If the loop hangs, a valid Lease would keep the addresses from the other edges.
        while heartbeat.age(Instant::now()) >= FRESH {
            tokio::time::sleep(FRESH_PAUSE).await;
        }
        let Some(said) = to_renew.borrow().clone() else {
            continue;
        };
        last = renewal_time(last, Timestamp::now());
        let outcome = write(&leases, lease(&edge, &said, last), said.owner).await;
        request_errors.take(Purpose::Lease, outcome);
    }
}

/// Writes a Lease, with this owner if there is none yet. The error is a line for people.
pub(super) async fn write(
    leases: &Api<Lease>,
    lease: Lease,
    owner: Option<OwnerReference>,
) -> Result<(), String> {
    let renewal = renew_once(leases, lease, owner);
    match tokio::time::timeout(RENEWAL_TIMEOUT, renewal).await {
        Ok(outcome) => outcome.map_err(|error| chain(&error)),
        Err(_) => Err("the API server does not answer".to_owned()),
    }
}

/// Returns a time later than `last`. If the clock stood still, the write would not change the Lease.
pub(super) fn renewal_time(last: Timestamp, now: Timestamp) -> Timestamp {
    let microsecond = Duration::from_micros(1);
    now.max(last.saturating_add(microsecond).unwrap_or(last))
}

/// Writes into an edge's Lease that the edge is drained, or is no longer. The error is a line for people.
pub(super) async fn write_drained(
    leases: &Api<Lease>,
    edge: &str,
    is_drained: bool,
) -> Result<(), String> {
    let name = lease_name(edge);
    let (params, patch) = (
        PatchParams::default(),
        Patch::Merge(drain_patch(is_drained)),
    );
    let written = leases.patch(&name, &params, &patch);
    match tokio::time::timeout(DRAIN_TIMEOUT, written).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.is_not_found() => Err(format!(
            "there is no Lease {name}: this edge takes no part in announcing addresses"
        )),
        Ok(Err(error)) => Err(format!("cannot write the Lease {name}: {}", chain(&error))),
        Err(_) => Err("the API server does not answer".to_owned()),
    }
}

async fn renew_once(
    leases: &Api<Lease>,
    mut lease: Lease,
    owner: Option<OwnerReference>,
) -> kube::Result<()> {
    let name = lease.name_any();
    let patched = leases
        .patch(&name, &PatchParams::default(), &Patch::Merge(&lease))
        .await;
    match patched {
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            // Owners are set only here, on creation: with OwnerReferencesPermissionEnforcement, changing an
            // object's owners needs the right to delete it.
            lease.metadata.owner_references = owner.map(|owner| vec![owner]);
            let created = leases.create(&PostParams::default(), &lease).await;
            created.map(drop)
        }
        outcome => outcome.map(drop),
    }
}
