//! Objects of the API as Guideway reads them: the fields that something reads, and no others.
//!
//! Whoever may write an object chooses what stands in it, and a decoder that knows every field of it can be made to
//! fail by any of them. So nothing here is decoded that is not used, `metadata.managedFields` least of all: a time in it
//! of the year 0 is stored by the API server. What is used is read as leniently as it can be: enumerations and times are
//! texts, numbers of any size come as near as 32 bits can, and null is nothing. An object that is wrong all the same
//! is [`Unreadable`], alone.

mod convert;
mod objects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde::de::{DeserializeOwned, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

pub(crate) use self::objects::*;
use crate::index::objects::{LAST_CHANGE, ObjectName, Text};

/// Characters that are told of why an object cannot be read.
const LONGEST_REASON: usize = 200;
/// What the annotations begin with that mean something to Guideway.
const OURS: &str = "guideway.dev/";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// Its name, empty if not even that can be read.
    pub(crate) name: ObjectName,
    /// Its version, if that can be read.
    pub(crate) version: Option<String>,
    /// Where it is wrong, and how.
    pub(crate) reason: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

pub(crate) fn read<K>(json: &[u8]) -> Result<K, Unreadable>
where
    K: DeserializeOwned + Resource<DynamicType = ()>,
{
    match serde_json::from_slice::<K>(json) {
        Ok(object)
            if object
                .meta()
                .name
                .as_ref()
                .is_some_and(|name| !name.is_empty()) =>
        {
            Ok(object)
        }
        Ok(object) => Err(Unreadable {
            name: name(object.meta()),
            version: object.meta().resource_version.clone(),
            reason: "metadata.name: there is none".to_owned(),
        }),
        Err(_) => Err(unreadable::<K>(json)),
    }
}

/// Finds out what is wrong with an object.
fn unreadable<K: DeserializeOwned>(json: &[u8]) -> Unreadable {
    let mut decoder = serde_json::Deserializer::from_slice(json);
    let reason = match serde_path_to_error::deserialize::<_, K>(&mut decoder) {
        Ok(_) => "it is followed by something else".to_owned(),
        Err(error) => {
            let (path, cause) = (error.path().to_string(), error.into_inner());
            // Line and column are those of what the API server sent, which nobody sees.
            let cause = cause.to_string();
            let cause = cause.split(" at line ").next().unwrap_or_default();
            format!("{path}: {cause}")
        }
    };
    let head: Head = serde_json::from_slice(json).unwrap_or_default();
    Unreadable {
        name: name(&head.metadata),
        version: head.metadata.resource_version,
        reason: reason.chars().take(LONGEST_REASON).collect(),
    }
}

/// What an object is told from others by.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(deserialize_with = "identity")]
    metadata: ObjectMeta,
}

/// Names an object.
pub(crate) fn name(metadata: &ObjectMeta) -> ObjectName {
    let text = |text: &Option<String>| text.as_deref().map(Text::from).unwrap_or_default();
    ObjectName::new(text(&metadata.namespace), text(&metadata.name))
}

/// Names an object, be it one that cannot be read.
pub(crate) fn name_of<K: Resource>(object: &Result<K, Unreadable>) -> ObjectName {
    match object {
        Ok(object) => name(object.meta()),
        Err(unreadable) => unreadable.name.clone(),
    }
}

/// Reads when the change happened that a slice tells of.
pub(super) fn last_change(metadata: &ObjectMeta) -> Option<Timestamp> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.get(LAST_CHANGE)?.parse().ok()
}

fn identity<'de, D: Deserializer<'de>>(decoder: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Identity {
        namespace: Option<String>,
        name: Option<String>,
        resource_version: Option<String>,
    }
    let Identity {
        namespace,
        name,
        resource_version,
    } = Option::deserialize(decoder)?.unwrap_or_default();
    Ok(ObjectMeta {
        namespace,
        name,
        resource_version,
        ..ObjectMeta::default()
    })
}

/// Reads of the metadata what something reads.
pub(crate) fn metadata<'de, D: Deserializer<'de>>(decoder: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Metadata {
        namespace: Option<String>,
        name: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<String>,
        deletion_timestamp: Option<IgnoredAny>,
        finalizers: Option<Vec<String>>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<Annotations>,
    }
    let read: Metadata = Option::deserialize(decoder)?.unwrap_or_default();
    let created = read.creation_timestamp.as_deref();
    let created = created.and_then(|text| text.parse().ok());
    Ok(ObjectMeta {
        namespace: read.namespace,
        name: read.name,
        uid: read.uid,
        resource_version: read.resource_version,
        creation_timestamp: created.map(Time),
        // When it was deleted, nobody asks.
        deletion_timestamp: (read.deletion_timestamp).map(|_| Time(Timestamp::UNIX_EPOCH)),
        finalizers: read.finalizers,
        labels: read.labels,
        annotations: read.annotations.map(|annotations| annotations.0),
        ..ObjectMeta::default()
    })
}

/// The annotations that something reads.
struct Annotations(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        struct Ours;

        impl<'de> Visitor<'de> for Ours {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut ours = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if key.starts_with(OURS) || key == LAST_CHANGE {
                        ours.insert(key, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Annotations(ours))
            }
        }

        decoder.deserialize_map(Ours)
    }
}

/// Makes types of ours stand for the objects of others, of which the metadata suffice or not.
macro_rules! resources {
    ($($ours:ident: $theirs:ty, $metadata_only:literal;)*) => {$(
        impl kube::Resource for $ours {
            type DynamicType = ();
            type Scope = <$theirs as kube::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$theirs as kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$theirs as kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$theirs as kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$theirs as kube::Resource>::plural(&())
            }

            fn metadata_api() -> bool {
                $metadata_only
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*};
}
pub(crate) use resources;

/// Reads what nothing depends on: as nothing where it is wrong.
pub(crate) fn or_nothing<'de, D, T>(decoder: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = serde_json::Value::deserialize(decoder).map_err(D::Error::custom)?;
    Ok(serde_json::from_value(value).ok())
}
