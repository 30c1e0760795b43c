//! The objects that agents and the controller follow, with the fields that they use.

use anyhow::Result;
use kube::Client;
use kube::core::ListMeta;
use serde::Deserialize;
use serde_json::Value;

use super::archive::Archive;
use super::{LONGEST, Target};
use crate::api::MAX_REPLY_BYTES;
use crate::cli::ClusterScope;
use crate::kubernetes::schema::is_used;

/// Objects of one answer of the API server.
const CHUNK: usize = 500;
/// Fields of every object that tell which it is. Others of the metadata say who wrote it, and all that it ever was.
const METADATA: [&str; 7] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.generation",
    "metadata.creationTimestamp",
    "metadata.deletionTimestamp",
    "metadata.labels",
];

/// A part of an answer to a list.
#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMeta,
    items: Vec<Value>,
}

/// Adds a file for each kind.
pub(super) async fn add(
    client: &Client,
    scope: &ClusterScope,
    archive: &mut Archive,
) -> Result<()> {
    let leases =
        |namespace: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let kinds: [(&str, String, &[&str]); 6] = [
        (
            "services",
            "/api/v1/services".to_owned(),
            &["spec", "status"],
        ),
        (
            "endpointslices",
            "/apis/discovery.k8s.io/v1/endpointslices".to_owned(),
            &["addressType", "endpoints", "ports"],
        ),
        ("nodes", "/api/v1/nodes".to_owned(), &OF_NODE),
        ("edge-leases", leases(&scope.lease_namespace()), &["spec"]),
        ("leases", leases(&scope.namespace), &["spec"]),
        (
            "loadbalancerpools",
            "/apis/guideway.dev/v1alpha1/loadbalancerpools".to_owned(),
            &["spec", "status"],
        ),
    ];
    for (kind, path, fields) in kinds {
        let name = format!("objects/{kind}.json");
        let (objects, reason) = list(client, &path, fields).await;
        if let Some(reason) = &reason {
            archive.miss(&name, reason);
        }
        // Without a reason, an empty list is an answer.
        if reason.is_none() || !objects.is_empty() {
            let text = format!("[\n{}\n]\n", objects.join(",\n"));
            archive.add(&name, text.as_bytes())?;
        }
    }
    Ok(())
}

/// Fields of a Node: its addresses, what keeps traffic from it, and which kernel it has.
const OF_NODE: [&str; 10] = [
    "spec.podCIDRs",
    "spec.taints",
    "spec.unschedulable",
    "status.addresses",
    "status.conditions",
    "status.nodeInfo.kernelVersion",
    "status.nodeInfo.osImage",
    "status.nodeInfo.architecture",
    "status.nodeInfo.kubeletVersion",
    "status.nodeInfo.containerRuntimeVersion",
];

/// Lists objects, a line of JSON each, until a file is full. Also says why they are not all.
async fn list(client: &Client, path: &str, fields: &[&str]) -> (Vec<String>, Option<String>) {
    let mut objects = Vec::new();
    let mut length = 0;
    let mut next = String::new();
    loop {
        let target = Target::Api(format!("{path}?limit={CHUNK}&continue={next}"));
        let part = match part(client, &target).await {
            Ok(part) => part,
            Err(reason) => return (objects, Some(reason)),
        };
        for object in &part.items {
            let object = kept(object, fields).to_string();
            length += object.len();
            if length > LONGEST {
                let reason = format!("cut after {} objects: {LONGEST} bytes", objects.len());
                return (objects, Some(reason));
            }
            objects.push(object);
        }
        match part.metadata.continue_ {
            Some(token) if !token.is_empty() => next = token,
            _ => return (objects, None),
        }
    }
}

async fn part(client: &Client, target: &Target) -> Result<List, String> {
    let most = usize::try_from(MAX_REPLY_BYTES).unwrap_or(usize::MAX);
    let answer = target.read(client, most).await?;
    if let Some(refusal) = answer.refusal() {
        return Err(refusal);
    }
    serde_json::from_slice(&answer.text).map_err(|error| format!("not understood: {error}"))
}

/// Returns an object with these fields, its identity, and the annotations that mean something to Guideway.
fn kept(object: &Value, fields: &[&str]) -> Value {
    let mut kept = Value::Null;
    for field in METADATA.iter().chain(fields) {
        let value = field.split('.').fold(object, |value, key| &value[key]);
        if !value.is_null() {
            *field
                .split('.')
                .fold(&mut kept, |value, key| &mut value[key]) = value.clone();
        }
    }
    let annotations = object["metadata"]["annotations"].as_object();
    for (name, value) in annotations.into_iter().flatten() {
        if is_used(name) {
            kept["metadata"]["annotations"][name] = value.clone();
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_an_object_only_the_used_fields_are_kept() {
        let node = json!({
            "metadata": {
                "name": "n1", "managedFields": [{}],
                "annotations": {"guideway.dev/mode": "nat", "example.com/token": "feedf00d"},
            },
            "spec": {"taints": [{"key": "a"}], "providerID": "x"},
            "status": {"nodeInfo": {"kernelVersion": "6.12", "machineID": "y"}, "images": [{}]},
        });
        assert_eq!(
            kept(&node, &OF_NODE),
            json!({
                "metadata": {"name": "n1", "annotations": {"guideway.dev/mode": "nat"}},
                "spec": {"taints": [{"key": "a"}]},
                "status": {"nodeInfo": {"kernelVersion": "6.12"}},
            })
        );
    }
}
