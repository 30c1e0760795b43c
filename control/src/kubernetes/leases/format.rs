//! The content of an edge's Lease.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use crate::announce::election::LEASE_DURATION;
use crate::announce::{Edge, LeaseNamespace, Mac};
use crate::kubernetes::schema::{Lease, LeaseSpec, micro_time};

/// Prefix of a Lease's name, before the edge's name. The chart's admission policy uses it too.
pub(super) const LEASE_PREFIX: &str = "guideway-edge-";
/// Label that tells edges' Leases from others in the namespace.
pub(crate) const LABEL: &str = "guideway.dev/lease";
pub(crate) const LABEL_VALUE: &str = "edge";
/// Annotation with the addresses by which endpoints name the edge's Node, separated by commas.
const ADDRESSES: &str = "guideway.dev/node-addresses";
/// Annotation with the MACs by which the edge announces addresses, separated by commas.
const MACS: &str = "guideway.dev/macs";
/// Annotation of an edge that hands its addresses over, and gets none until it is removed.
const DRAINED: &str = "guideway.dev/drained";

/// The content of this edge's Lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseContent {
    /// The addresses by which endpoints name the edge's Node.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// The MACs by which it announces addresses.
    pub(super) macs: BTreeSet<Mac>,
    /// The Node as owner, if the edge is a Node.
    pub(super) owner: Option<OwnerReference>,
}

/// Reads the edge that a Lease stands for. Returns `None` if the Lease's name does not match its holder:
/// otherwise a writer of one Lease could speak for every edge.
pub(super) fn edge_of(namespace: LeaseNamespace, lease: &Lease) -> Option<Edge> {
    let spec = lease.spec.as_ref()?;
    let name = spec.holder_identity.clone()?;
    if lease.metadata.name.as_deref() != Some(&*lease_name(&name)) {
        return None;
    }
    Some(Edge {
        name,
        namespace,
        macs: listed_in(lease, MACS),
        addresses: listed_in(lease, ADDRESSES),
        // Every write changes the resource version, whatever the writer's clock says.
        renewal: lease.resource_version()?,
        is_drained: lease
            .annotations()
            .get(DRAINED)
            .is_some_and(|it| it == "true"),
    })
}

/// Returns the merge patch by which an edge's Lease says that the edge is drained, or is no longer.
pub(super) fn drain_patch(is_drained: bool) -> Value {
    let value = is_drained.then_some("true");
    json!({"metadata": {"annotations": {DRAINED: value}}})
}

/// Reads the values of an annotation that can be read; leaves out the others.
pub(super) fn listed_in<T: FromStr + Ord>(lease: &Lease, annotation: &str) -> BTreeSet<T> {
    let texts = lease.annotations().get(annotation).into_iter();
    let texts = texts.flat_map(|text| text.split(','));
    texts.filter_map(|text| text.parse().ok()).collect()
}

pub(super) fn lease_name(edge: &str) -> String {
    format!("{LEASE_PREFIX}{edge}")
}

pub(super) fn lease(edge: &str, said: &LeaseContent, now: Timestamp) -> Lease {
    let addresses: Vec<String> = said.addresses.iter().map(ToString::to_string).collect();
    let macs: Vec<String> = said.macs.iter().map(ToString::to_string).collect();
    let annotations = [(ADDRESSES, addresses.join(",")), (MACS, macs.join(","))];
    held(
        edge,
        (lease_name(edge), LABEL_VALUE),
        &annotations,
        (now, LEASE_DURATION),
    )
}

/// Returns a Lease that an edge holds, of this name and with this value of the label.
pub(super) fn held(
    edge: &str,
    (name, label): (String, &str),
    annotations: &[(&str, String)],
    (now, duration): (Timestamp, Duration),
) -> Lease {
    let annotations = annotations.iter();
    let annotations = annotations.map(|(name, value)| ((*name).to_owned(), value.clone()));
    Lease {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some([(LABEL.to_owned(), label.to_owned())].into()),
            annotations: Some(annotations.collect()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(edge.to_owned()),
            lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
            renew_time: Some(micro_time(now)),
            ..LeaseSpec::default()
        }),
    }
}
