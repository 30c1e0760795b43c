//! Follows this machine's Node: its labels decide whether the machine announces, and it owns the machine's Lease.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::api::ObjectMeta;

use crate::kubernetes::list_watch::Event;
use crate::kubernetes::schema::NodeMetadata;

/// What is known about this machine's Node.
#[derive(Debug, Default)]
pub(super) struct OwnNode {
    metadata: Option<ObjectMeta>,
    is_listed: bool,
}

impl OwnNode {
    pub(super) fn take(&mut self, event: Event<NodeMetadata>) {
        match event {
            Event::InitApply(Ok(node)) | Event::Apply(Ok(node)) => {
                self.metadata = Some(node.metadata);
            }
            // An unreadable version leaves the last readable one in force.
            Event::Init | Event::Watching | Event::InitApply(Err(_)) | Event::Apply(Err(_)) => {}
            Event::InitDone(listed) => {
                self.metadata = self.metadata.take().filter(|_| !listed.is_empty());
                self.is_listed = true;
            }
            Event::Delete(_) => self.metadata = None,
        }
    }

    /// Returns the Node's labels: `None` until the Node was listed, `Some(None)` if there is no such Node.
    pub(super) fn labels(&self) -> Option<Option<&BTreeMap<String, String>>> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let metadata = self.metadata.as_ref();
        let labels = metadata.map(|metadata| metadata.labels.as_ref().unwrap_or(&NONE));
        self.is_listed.then_some(labels)
    }

    /// Returns the Node as owner of its Lease, so that the Lease is deleted with it.
    pub(super) fn as_owner(&self) -> Option<OwnerReference> {
        let metadata = self.metadata.as_ref()?;
        Some(OwnerReference {
            api_version: NodeMetadata::api_version(&()).into_owned(),
            kind: NodeMetadata::kind(&()).into_owned(),
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
            ..OwnerReference::default()
        })
    }
}
