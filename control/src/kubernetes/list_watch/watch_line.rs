//! Decodes one line of a watch.

use kube::Resource;
use kube::core::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Decoded, Event, WatchError};
use crate::kubernetes::schema;

#[derive(Deserialize)]
struct WatchLine<T> {
    r#type: Kind,
    object: T,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// Reads the event of a line, if it has one, and the resource version up to which the watch has reported everything.
pub(super) fn read<K>(line: &[u8]) -> Result<(Option<Event<K>>, Option<String>), WatchError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let is_object = |line: &WatchLine<K>| {
        let is_object = matches!(line.r#type, Kind::Added | Kind::Modified | Kind::Deleted);
        is_object && line.object.meta().name.is_some()
    };
    // Nearly all lines hold a whole object and are decoded in one pass: those of Nodes are many and long.
    let whole = serde_json::from_slice(line).ok().filter(is_object);
    let (kind, object) = match whole {
        Some(WatchLine { r#type, object }) => (r#type, Ok(object)),
        None => {
            let line: WatchLine<Value> =
                serde_json::from_slice(line).map_err(WatchError::NoEvent)?;
            if line.r#type == Kind::Error {
                let status: Box<Status> =
                    serde_json::from_value(line.object).map_err(WatchError::NoEvent)?;
                return Err(WatchError::Ended(status));
            }
            (
                line.r#type,
                schema::read(line.object.to_string().as_bytes()),
            )
        }
    };
    let version = version_of(&object);
    let event = match kind {
        Kind::Added | Kind::Modified => Some(Event::Apply(object)),
        Kind::Deleted => Some(Event::Delete(schema::name_of(&object))),
        Kind::Bookmark | Kind::Error => None,
    };
    Ok((event, version))
}

fn version_of<K: Resource<DynamicType = ()>>(object: &Decoded<K>) -> Option<String> {
    let version = match object {
        Ok(object) => &object.meta().resource_version,
        Err(unreadable) => &unreadable.version,
    };
    version.clone().filter(|version| !version.is_empty())
}
