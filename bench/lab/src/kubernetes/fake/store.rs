//! The objects of the fake API server, and the log of their changes.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use serde_json::Value;

use super::http::Request;

/// Resource, namespace and name of an object.
type Key = (String, String, String);

/// Everything that was put into the server.
#[derive(Debug, Default)]
pub(super) struct Store {
    version: u64,
    objects: BTreeMap<Key, Arc<Object>>,
    /// The changes after `compacted`, one for each version.
    log: Vec<Change>,
    compacted: u64,
}

/// An object as it is sent.
#[derive(Debug)]
struct Object {
    namespace: String,
    labels: BTreeMap<String, String>,
    text: String,
}

#[derive(Debug)]
struct Change {
    resource: String,
    before: Option<Arc<Object>>,
    /// The object after the change; if it was deleted, before it.
    object: Arc<Object>,
    is_deleted: bool,
}

impl Store {
    pub(super) fn put(&mut self, object: Value) {
        let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
        let kind = object["kind"].as_str().expect("an object has a kind");
        let resource = format!("{}s", kind.to_lowercase());
        let namespace = text("namespace").unwrap_or_default();
        let key = (resource, namespace, text("name").expect("it has a name"));
        let before = self.objects.get(&key).cloned();
        let object = self.versioned(object);
        self.objects.insert(key.clone(), Arc::clone(&object));
        self.log.push(Change {
            resource: key.0,
            before,
            object,
            is_deleted: false,
        });
    }

    pub(super) fn delete(&mut self, resource: &str, namespace: &str, name: &str) {
        let key = [resource, namespace, name].map(str::to_owned).into();
        let Some(before) = self.objects.remove(&key) else {
            return;
        };
        let last = serde_json::from_str(&before.text).expect("it was JSON when it was put");
        let object = self.versioned(last);
        self.log.push(Change {
            resource: key.0,
            before: Some(before),
            object,
            is_deleted: true,
        });
    }

    fn versioned(&mut self, mut object: Value) -> Arc<Object> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let labels = object["metadata"]["labels"].as_object();
        let labels = labels.into_iter().flatten();
        let label = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.into()));
        let namespace = object["metadata"]["namespace"].as_str();
        Arc::new(Object {
            namespace: namespace.unwrap_or_default().to_owned(),
            labels: labels.filter_map(label).collect(),
            text: object.to_string(),
        })
    }

    pub(super) fn compact(&mut self) {
        self.log.clear();
        self.compacted = self.version;
    }

    /// Returns one object.
    pub(super) fn get(&self, request: &Request) -> Option<String> {
        let namespace = request.namespace.clone().unwrap_or_default();
        let key = (request.resource.clone(), namespace, request.name.clone()?);
        Some(self.objects.get(&key)?.text.clone())
    }

    /// Returns a page of a list. All pages have the version of the first: a watch from it reports changes
    /// between the pages.
    pub(super) fn list(&self, request: &Request) -> String {
        let limit = request.number("limit").unwrap_or(u64::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        // VERSION NAMESPACE NAME of the last object; names contain no spaces.
        let token: Vec<&str> = request
            .option("continue")
            .unwrap_or("")
            .split(' ')
            .collect();
        let (version, after) = match *token {
            [version, namespace, name] => (version.to_owned(), Some((namespace, name))),
            _ => (self.version.to_string(), None),
        };
        let from = (request.resource.clone(), String::new(), String::new());
        let selector = Selector::of(request);
        let mut found = self
            .objects
            .range(from..)
            .take_while(|(key, _)| key.0 == request.resource)
            .filter(|(key, _)| after.is_none_or(|after| (key.1.as_str(), key.2.as_str()) > after))
            .filter(|(_, object)| selector.has(object))
            .peekable();
        let mut items = String::new();
        let mut last = None;
        for (key, object) in found.by_ref().take(limit) {
            let comma = if last.is_some() { "," } else { "" };
            let _ = write!(items, "{comma}{}", object.text);
            last = Some(key);
        }
        let more = last.filter(|_| found.peek().is_some());
        let token = more.map_or_else(String::new, |(_, namespace, name)| {
            format!("{version} {namespace} {name}")
        });
        format!(
            r#"{{"apiVersion":"v1","kind":"List","metadata":{{"resourceVersion":"{version}","continue":"{token}"}},"items":[{items}]}}"#
        )
    }

    /// Returns the newest version.
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// Returns the lines of a watch for the changes since a version; `None` if the log does not reach back to it.
    pub(super) fn since(&self, version: u64, request: &Request) -> Option<Vec<String>> {
        let known = usize::try_from(version.checked_sub(self.compacted)?).ok()?;
        let selector = Selector::of(request);
        let told = |change: &Change| {
            let was = change
                .before
                .as_ref()
                .is_some_and(|object| selector.has(object));
            let is = !change.is_deleted && selector.has(&change.object);
            let event = match (was, is) {
                (false, false) => return None,
                (false, true) => "ADDED",
                (true, true) => "MODIFIED",
                (true, false) => "DELETED",
            };
            Some(line(event, &change.object.text))
        };
        let changes = self.log.get(known..).unwrap_or_default().iter();
        let changes = changes.filter(|change| change.resource == request.resource);
        Some(changes.filter_map(told).collect())
    }
}

/// Returns the line of a watch for an event.
pub(super) fn line(event: &str, object: &str) -> String {
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n")
}

/// Selects objects by namespace and labels.
#[derive(Debug, Default)]
struct Selector {
    namespace: Option<String>,
    /// Labels with their allowed values. `None` means any value; the flag then says whether the label must
    /// exist or must not.
    labels: Vec<(String, Option<Vec<String>>, bool)>,
}

impl Selector {
    fn of(request: &Request) -> Self {
        let mut rest = request.option("labelSelector").unwrap_or("");
        let mut labels = Vec::new();
        while !rest.is_empty() {
            // A comma within parentheses separates values, not requirements.
            let set = rest.find('(').unwrap_or(rest.len());
            let mut end = rest.find(',').unwrap_or(rest.len());
            if set < end {
                end = rest.find(')').map_or(rest.len(), |end| end + 1);
            }
            labels.push(requirement(&rest[..end]));
            rest = rest[end..].trim_start_matches(',');
        }
        Self {
            namespace: request.namespace.clone(),
            labels,
        }
    }

    fn has(&self, object: &Object) -> bool {
        let is_there = self.namespace.as_ref();
        is_there.is_none_or(|namespace| *namespace == object.namespace)
            && self.labels.iter().all(|(label, values, must)| {
                let value = object.labels.get(label);
                let is_right = value.is_some_and(|value| {
                    values.as_ref().is_none_or(|values| values.contains(value))
                });
                is_right == *must
            })
    }
}

/// Parses `label`, `!label`, `label=value` or `label in (value,value)`.
fn requirement(text: &str) -> (String, Option<Vec<String>>, bool) {
    if let Some(label) = text.strip_prefix('!') {
        return (label.to_owned(), None, false);
    }
    if let Some((label, values)) = text.split_once(" in ") {
        let values = values.trim_matches(['(', ')']).split(',');
        let values = values.map(str::to_owned).collect();
        return (label.to_owned(), Some(values), true);
    }
    match text.split_once('=') {
        Some((label, value)) => (label.to_owned(), Some(vec![value.to_owned()]), true),
        None => (text.to_owned(), None, true),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use serde_json::json;

    use super::*;

    fn request(target: &str) -> Request {
        let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        Request::read(&mut Cursor::new(head)).unwrap().unwrap()
    }

    fn node(name: &str, labels: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    }

    fn names(list: &Value) -> Vec<&str> {
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn list_comes_in_pages_of_one_version() {
        let mut store = Store::default();
        for name in ["a", "b", "c"] {
            store.put(node(name, &json!({})));
        }
        let list = |store: &Store, target: &str| -> Value {
            serde_json::from_str(&store.list(&request(target))).unwrap()
        };
        let first = list(&store, "/api/v1/nodes?limit=2");
        assert_eq!(names(&first), ["a", "b"]);
        store.put(node("a", &json!({})));
        let token = first["metadata"]["continue"].as_str().unwrap();
        let second = list(
            &store,
            &format!("/api/v1/nodes?limit=2&continue={}", token.replace(' ', "+")),
        );
        assert_eq!(names(&second), ["c"]);
        for page in [first, second] {
            assert_eq!(page["metadata"]["resourceVersion"], "3");
        }
        assert_eq!(store.since(3, &request("/api/v1/nodes")).unwrap().len(), 1);
    }

    #[test]
    fn watch_tells_what_comes_into_and_leaves_the_selection() {
        let mut store = Store::default();
        let chosen = request("/api/v1/nodes?labelSelector=!x,y+in+(1,2)");
        for labels in [
            json!({"y": "3"}),
            json!({"y": "1"}),
            json!({"y": "2"}),
            json!({"y": "2", "x": ""}),
        ] {
            store.put(node("a", &labels));
        }
        store.delete("nodes", "", "a");
        let lines = store.since(0, &chosen).unwrap();
        let events = lines.iter().map(|line| line.split('"').nth(3).unwrap());
        assert_eq!(events.collect::<Vec<_>>(), ["ADDED", "MODIFIED", "DELETED"]);
        store.compact();
        assert_eq!(store.since(4, &chosen), None);
        assert_eq!(store.since(5, &chosen), Some(vec![]));
    }
}
