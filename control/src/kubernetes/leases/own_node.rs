//! The Node of this machine, which decides whether it announces and owns its Lease.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::api::ObjectMeta;

use crate::kubernetes::list_watch::Event;
use crate::kubernetes::schema::NodeMetadata;

/// What is known of this machine's Node.
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
            // One that cannot be read is as it was.
            Event::Init | Event::Watching | Event::InitApply(Err(_)) | Event::Apply(Err(_)) => {}
            Event::InitDone(listed) => {
                self.metadata = self.metadata.take().filter(|_| !listed.is_empty());
                self.is_listed = true;
            }
            Event::Delete(_) => self.metadata = None,
        }
    }

    /// Returns the labels, none within if there is no such Node; nothing until that is known.
    pub(super) fn labels(&self) -> Option<Option<&BTreeMap<String, String>>> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let metadata = self.metadata.as_ref();
        let labels = metadata.map(|metadata| metadata.labels.as_ref().unwrap_or(&NONE));
        self.is_listed.then_some(labels)
    }

    /// Returns the Node as the owner of its Lease, which goes with it.
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
