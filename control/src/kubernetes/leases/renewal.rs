//! The renewal of this edge's own Lease.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use tokio::sync::watch;

use super::format::lease;
use crate::announce::election::RENEWAL;
use crate::announce::{Mac, Pulse};
use crate::chain::chain;
use crate::kubernetes::request_errors::{Purpose, RequestErrors};
use crate::kubernetes::schema::Lease;

/// How long a renewal may take before it is tried anew.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How old the last sign of life of the agent's loop may be for a renewal. Longer than the loop is busy with one
/// change, and short enough for another edge to have taken over once this one answers nobody any more:
/// [`xdp_prog::abi::ANNOUNCE_NS`] after the same sign.
const FRESH: Duration = Duration::from_millis(500);
/// How often a loop that gives none is looked at.
const FRESH_PAUSE: Duration = Duration::from_millis(50);

/// What this edge's Lease says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Renewal {
    /// The addresses by which endpoints name the edge's Node.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// The MACs by which it announces addresses.
    pub(super) macs: BTreeSet<Mac>,
    /// The Node, if the edge is one.
    pub(super) owner: Option<OwnerReference>,
}

/// Renews this edge's Lease for ever, while there is something to put into it.
pub(super) async fn renew(
    leases: Api<Lease>,
    edge: String,
    mut to_renew: watch::Receiver<Option<Renewal>>,
    pulse: Pulse,
    request_errors: RequestErrors,
) {
    let mut ticks = tokio::time::interval(RENEWAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Timestamp::UNIX_EPOCH;
    loop {
        if to_renew.wait_for(Option::is_some).await.is_err() {
            return;
        }
        ticks.tick().await;
        // A Lease that outlives what it stands for would keep the addresses from the other edges.
        while pulse.age(Instant::now()) >= FRESH {
            tokio::time::sleep(FRESH_PAUSE).await;
        }
        let Some(said) = to_renew.borrow().clone() else {
            continue;
        };
        last = renewal_time(last, Timestamp::now());
        let renewal = renew_once(&leases, lease(&edge, &said, last), said.owner);
        let outcome = match tokio::time::timeout(RENEWAL_TIMEOUT, renewal).await {
            Ok(outcome) => outcome.map_err(|error| chain(&error)),
            Err(_) => Err("the API server does not answer".to_owned()),
        };
        request_errors.take(Purpose::Lease, outcome);
    }
}

/// Returns the time to write after another: a clock that stands still or goes back would leave the Lease as it is.
pub(super) fn renewal_time(last: Timestamp, now: Timestamp) -> Timestamp {
    let microsecond = Duration::from_micros(1);
    now.max(last.saturating_add(microsecond).unwrap_or(last))
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
            // Not in a patch: where OwnerReferencesPermissionEnforcement is on, only who may delete an object
            // may change its owners.
            lease.metadata.owner_references = owner.map(|owner| vec![owner]);
            let created = leases.create(&PostParams::default(), &lease).await;
            created.map(drop)
        }
        outcome => outcome.map(drop),
    }
}
