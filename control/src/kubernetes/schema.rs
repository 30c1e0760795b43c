//! API objects as Guideway decodes them: only the fields that it uses.
//!
//! Whoever may write an object chooses its content, and any decoded field can make decoding fail. So unused
//! fields are not decoded, `metadata.managedFields` least of all: the API server even stores a time of the year
//! 0 there. Used fields are decoded leniently: enumerations and times are texts, a number outside 32 bits
//! becomes the nearest one within, null means absent. An object that still cannot be decoded is [`Unreadable`];
//! the others are not affected.

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

/// Longest text, in characters, of why an object is unreadable.
const LONGEST_REASON: usize = 200;
/// Prefix of the annotations that mean something to Guideway.
const OURS: &str = "guideway.dev/";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// Name of the object; empty if it cannot be read either.
    pub(crate) name: ObjectName,
    /// Resource version of the object, if it can be read.
    pub(crate) version: Option<String>,
    /// Path of the field that is wrong, and the cause.
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

/// Finds out why an object cannot be decoded.
fn unreadable<K: DeserializeOwned>(json: &[u8]) -> Unreadable {
    let mut decoder = serde_json::Deserializer::from_slice(json);
    let reason = match serde_path_to_error::deserialize::<_, K>(&mut decoder) {
        Ok(_) => "it is followed by something else".to_owned(),
        Err(error) => {
            let (path, cause) = (error.path().to_string(), error.into_inner());
            // Line and column refer to the server's JSON, which the user does not see.
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

/// The fields that identify an object.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(deserialize_with = "identity")]
    metadata: ObjectMeta,
}

/// Returns the namespace and name from metadata.
pub(crate) fn name(metadata: &ObjectMeta) -> ObjectName {
    let text = |text: &Option<String>| text.as_deref().map(Text::from).unwrap_or_default();
    ObjectName::new(text(&metadata.namespace), text(&metadata.name))
}

/// Returns the namespace and name of an object, readable or not.
pub(crate) fn name_of<K: Resource>(object: &Result<K, Unreadable>) -> ObjectName {
    match object {
        Ok(object) => name(object.meta()),
        Err(unreadable) => unreadable.name.clone(),
    }
}

/// Reads the time of the last change of a slice from its annotation.
pub(super) fn last_change(metadata: &ObjectMeta) -> Option<Timestamp> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.get(LAST_CHANGE)?.parse().ok()
}

/// Returns whether an annotation means something to Guideway.
pub(crate) fn is_used(annotation: &str) -> bool {
    annotation.starts_with(OURS) || annotation == LAST_CHANGE
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

/// Decodes the used fields of metadata.
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
        // Only whether it is set matters, not the time.
        deletion_timestamp: (read.deletion_timestamp).map(|_| Time(Timestamp::UNIX_EPOCH)),
        finalizers: read.finalizers,
        labels: read.labels,
        annotations: read.annotations.map(|annotations| annotations.0),
        ..ObjectMeta::default()
    })
}

/// The annotations that Guideway uses.
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
                    if is_used(&key) {
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

/// Implements `kube::Resource` for our types with the kind of the original; the flag says whether metadata suffice.
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

/// Reads a value that nothing depends on. An invalid one counts as absent.
pub(crate) fn or_nothing<'de, D, T>(decoder: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = serde_json::Value::deserialize(decoder).map_err(D::Error::custom)?;
    Ok(serde_json::from_value(value).ok())
}
