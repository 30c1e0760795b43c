//! What a Lease says of its edge.

use std::collections::BTreeSet;
use std::str::FromStr;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::renewal::Renewal;
use crate::announce::election::DURATION;
use crate::announce::{Edge, Home};
use crate::kubernetes::schema::{Lease, LeaseSpec, micro_time};

/// What the name of an edge's Lease begins with, before the edge's own; the chart's admission policy has it too.
pub(super) const LEASE_PREFIX: &str = "guideway-edge-";
/// Label of edges' Leases, which tells them from others in the namespace.
pub(super) const LABEL: &str = "guideway.dev/lease";
pub(super) const LABEL_VALUE: &str = "edge";
/// Annotation with the addresses by which endpoints name the edge's Node.
const ADDRESSES: &str = "guideway.dev/node-addresses";
/// Annotation with the MACs by which the edge announces addresses.
const MACS: &str = "guideway.dev/macs";

/// Reads who lives by a Lease. One of another name than its holder's counts for nothing: who may write one Lease would
/// speak for all edges.
pub(super) fn edge_of(home: Home, lease: &Lease) -> Option<Edge> {
    let spec = lease.spec.as_ref()?;
    let name = spec.holder_identity.clone()?;
    if lease.metadata.name.as_deref() != Some(&*lease_name(&name)) {
        return None;
    }
    Some(Edge {
        name,
        home,
        macs: listed_in(lease, MACS),
        addresses: listed_in(lease, ADDRESSES),
        // Every write changes it, whatever the writer's clock says.
        renewal: lease.resource_version()?,
    })
}

/// Reads what an annotation lists, except what cannot be read.
fn listed_in<T: FromStr + Ord>(lease: &Lease, annotation: &str) -> BTreeSet<T> {
    let texts = lease.annotations().get(annotation).into_iter();
    let texts = texts.flat_map(|text| text.split(','));
    texts.filter_map(|text| text.parse().ok()).collect()
}

pub(super) fn lease_name(edge: &str) -> String {
    format!("{LEASE_PREFIX}{edge}")
}

pub(super) fn lease(edge: &str, said: &Renewal, now: Timestamp) -> Lease {
    let addresses: Vec<String> = said.addresses.iter().map(ToString::to_string).collect();
    let macs: Vec<String> = said.macs.iter().map(ToString::to_string).collect();
    let annotations = [(ADDRESSES, addresses), (MACS, macs)];
    let annotations = annotations.map(|(name, listed)| (name.to_owned(), listed.join(",")));
    Lease {
        metadata: ObjectMeta {
            name: Some(lease_name(edge)),
            labels: Some([(LABEL.to_owned(), LABEL_VALUE.to_owned())].into()),
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(edge.to_owned()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            renew_time: Some(micro_time(now)),
            ..LeaseSpec::default()
        }),
    }
}
