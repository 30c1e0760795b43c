//! The converted objects of one kind, as last seen in the watch or in answers to writes.
//!
//! After a write, the watch still reports older versions for a while. Using these would repeat a write that has
//! been made, and that would fail because of its old version. So older versions are skipped. Versions of one
//! kind compare as numbers: Kubernetes guarantees that since 1.35 (KEP-5504), and etcd's revisions have always
//! done so.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use crate::index::objects::ObjectName;
use crate::kubernetes::list_watch::{self, Decoded};
use crate::kubernetes::schema::{Unreadable, name};

/// The objects of one kind as the API server has them.
#[derive(Debug)]
pub(super) struct ObjectCache<T> {
    objects: BTreeMap<ObjectName, T>,
    /// The part of a running list that has arrived. It replaces the objects when the list is complete.
    listed: Option<BTreeMap<ObjectName, (Option<u64>, T)>>,
    complete: bool,
    /// Versions from answers to writes that the watch has not reached.
    ahead: BTreeMap<ObjectName, u64>,
    /// Why objects are unreadable.
    unreadable: BTreeMap<ObjectName, String>,
}

/// A converted event of a watch.
#[derive(Debug)]
pub(super) enum Event<T> {
    Init,
    InitApply(Versioned<T>),
    /// An object of the list that cannot be decoded.
    InitUnreadable(ObjectName),
    InitDone,
    Apply(Versioned<T>),
    Delete(ObjectName),
}

/// An object with its name and version.
#[derive(Debug)]
pub(super) struct Versioned<T> {
    pub(super) name: ObjectName,
    /// Its resource version, if that is a number.
    pub(super) version: Option<u64>,
    pub(super) object: T,
}

impl<T> Versioned<T> {
    /// Combines a converted object with the name and version from its metadata.
    pub(super) fn new(metadata: &ObjectMeta, object: T) -> Self {
        let version = metadata.resource_version.as_deref();
        Self {
            name: name(metadata),
            version: version.and_then(|version| version.parse().ok()),
            object,
        }
    }
}

impl<T> Default for ObjectCache<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            listed: None,
            complete: false,
            ahead: BTreeMap::new(),
            unreadable: BTreeMap::new(),
        }
    }
}

impl<T: Clone + PartialEq> ObjectCache<T> {
    /// Returns the known objects. These are all objects once a list was complete.
    pub(super) fn objects(&self) -> &BTreeMap<ObjectName, T> {
        &self.objects
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Applies an event of a watch, converting its object. Returns whether anything changed.
    pub(super) fn take<K: Resource>(
        &mut self,
        kind: &str,
        event: list_watch::Event<K>,
        convert: impl Fn(&K) -> T,
    ) -> bool {
        let converted = |object: K| Versioned::new(object.meta(), convert(&object));
        let event = match event {
            list_watch::Event::Init => Event::Init,
            list_watch::Event::InitApply(object) => match self.read(kind, object) {
                Ok(object) => Event::InitApply(converted(object)),
                Err(name) => Event::InitUnreadable(name),
            },
            list_watch::Event::InitDone(_) => Event::InitDone,
            list_watch::Event::Watching => return false,
            list_watch::Event::Apply(object) => match self.read(kind, object) {
                Ok(object) => Event::Apply(converted(object)),
                Err(_) => return false,
            },
            list_watch::Event::Delete(name) => {
                self.unreadable.remove(&name);
                Event::Delete(name)
            }
        };
        self.follow(event)
    }

    /// Returns a readable object, or the name of an unreadable one, and logs the reason once.
    fn read<K: Resource>(&mut self, kind: &str, object: Decoded<K>) -> Result<K, ObjectName> {
        match object {
            Ok(object) => {
                if !self.unreadable.is_empty() {
                    self.unreadable.remove(&name(object.meta()));
                }
                Ok(object)
            }
            Err(Unreadable { name, reason, .. }) => {
                let before = self.unreadable.insert(name.clone(), reason.clone());
                if before.as_ref() != Some(&reason) {
                    tracing::warn!(kind, %name, reason, "an object cannot be read; what it was before stays in force");
                }
                Err(name)
            }
        }
    }

    /// Applies a converted event. Returns whether anything changed.
    pub(super) fn follow(&mut self, event: Event<T>) -> bool {
        match event {
            Event::Init => {
                self.listed = Some(BTreeMap::new());
                // The list includes these writes. And if the storage was restored from a backup, versions may
                // have gone back.
                self.ahead.clear();
                false
            }
            Event::InitApply(shown) => {
                let listed = self.listed.get_or_insert_default();
                listed.insert(shown.name, (shown.version, shown.object));
                false
            }
            Event::InitUnreadable(name) => {
                // The last readable version stays.
                if let Some(known) = self.objects.get(&name).cloned() {
                    let listed = self.listed.get_or_insert_default();
                    listed.insert(name, (None, known));
                }
                false
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let objects = listed.into_iter().map(|(name, (version, object))| {
                    // The list may lack a write that was made while it was read.
                    let known = self
                        .objects
                        .get(&name)
                        .filter(|_| self.is_past(&name, version));
                    let object = known.cloned().unwrap_or(object);
                    (name, object)
                });
                let objects = objects.collect();
                let changed = !self.complete || self.objects != objects;
                self.complete = true;
                self.objects = objects;
                changed
            }
            Event::Apply(shown) => {
                if self.is_past(&shown.name, shown.version) {
                    return false;
                }
                self.ahead.remove(&shown.name);
                self.put(shown.name, shown.object)
            }
            Event::Delete(name) => {
                self.ahead.remove(&name);
                self.objects.remove(&name).is_some()
            }
        }
    }

    /// Applies the answer to a write. The watch reports the same object later.
    pub(super) fn take_answer(&mut self, shown: Versioned<T>) {
        match shown.version {
            Some(version) => drop(self.ahead.insert(shown.name.clone(), version)),
            None => drop(self.ahead.remove(&shown.name)),
        }
        self.put(shown.name, shown.object);
    }

    /// Returns whether a version is older than the answer to a write.
    fn is_past(&self, name: &ObjectName, version: Option<u64>) -> bool {
        let both = version.zip(self.ahead.get(name));
        both.is_some_and(|(version, ahead)| version < *ahead)
    }

    /// Adds or replaces an object. Returns whether that changed anything.
    pub(super) fn put(&mut self, name: ObjectName, object: T) -> bool {
        if self.objects.get(&name) == Some(&object) {
            return false;
        }
        self.objects.insert(name, object);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn named(name: &str, value: u8) -> Versioned<u8> {
        versioned(name, "", value)
    }

    fn versioned<T>(name: &str, version: &str, object: T) -> Versioned<T> {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        };
        Versioned::new(&metadata, object)
    }

    #[test]
    fn a_list_replaces_everything_once_it_is_complete() {
        let mut object_cache = ObjectCache::default();
        assert!(!object_cache.follow(Event::Init));
        assert!(!object_cache.follow(Event::InitApply(named("a", 1))));
        assert!(object_cache.objects().is_empty() && !object_cache.is_complete());
        assert!(object_cache.follow(Event::InitDone));
        assert!(object_cache.is_complete());
        assert!(object_cache.follow(Event::Apply(named("b", 2))));

        // A second list misses `a`.
        object_cache.follow(Event::Init);
        object_cache.follow(Event::InitApply(named("b", 2)));
        assert_eq!(object_cache.objects().len(), 2);
        assert!(object_cache.follow(Event::InitDone));
        assert_eq!(object_cache.objects().values().collect::<Vec<_>>(), [&2]);
    }

    #[test]
    fn what_cannot_be_read_stays_as_it_was() {
        let mut object_cache = ObjectCache::default();
        object_cache.follow(Event::Apply(named("a", 1)));
        let unreadable = |name| Event::InitUnreadable(ObjectName::new("", name));
        object_cache.follow(Event::Init);
        object_cache.follow(unreadable("a"));
        object_cache.follow(unreadable("b"));
        object_cache.follow(Event::InitDone);
        assert_eq!(object_cache.objects().values().collect::<Vec<_>>(), [&1]);
        object_cache.follow(Event::Init);
        assert!(object_cache.follow(Event::InitDone), "it is gone");
        assert!(object_cache.objects().is_empty());
    }

    #[test]
    fn what_says_nothing_new_is_no_change() {
        let mut object_cache = ObjectCache::default();
        object_cache.follow(Event::Init);
        assert!(
            object_cache.follow(Event::InitDone),
            "even an empty list is news"
        );
        assert!(object_cache.follow(Event::Apply(named("a", 1))));
        assert!(!object_cache.follow(Event::Apply(named("a", 1))));
        assert!(object_cache.follow(Event::Apply(named("a", 2))));
        assert!(object_cache.follow(Event::Delete(ObjectName::new("", "a"))));
        assert!(!object_cache.follow(Event::Delete(ObjectName::new("", "a"))));
    }

    #[test]
    fn what_a_write_has_shown_is_not_replaced_by_what_was_before() {
        let mut object_cache = ObjectCache::default();
        object_cache.take_answer(versioned("a", "10", 10));
        assert!(!object_cache.follow(Event::Apply(versioned("a", "9", 9))));
        assert!(object_cache.follow(Event::Apply(versioned("b", "3", 3))));
        assert!(object_cache.follow(Event::Apply(versioned("a", "11", 11))));
        // A deletion and a list count whatever the versions.
        object_cache.take_answer(versioned("a", "20", 20));
        assert!(object_cache.follow(Event::Delete(ObjectName::new("", "a"))));
        assert!(object_cache.follow(Event::Apply(versioned("a", "5", 5))));
        object_cache.take_answer(versioned("a", "20", 20));
        object_cache.follow(Event::Init);
        object_cache.follow(Event::InitApply(versioned("a", "6", 6)));
        assert!(object_cache.follow(Event::InitDone));
        assert!(object_cache.follow(Event::Apply(versioned("a", "7", 7))));
        let left: Vec<_> = object_cache.objects().values().collect();
        assert_eq!(left, [&7]);
    }

    #[test]
    fn a_list_that_a_write_overlaps_does_not_undo_it() {
        let mut object_cache = ObjectCache::default();
        // Before and after what the list has of them.
        object_cache.follow(Event::Init);
        object_cache.take_answer(versioned("a", "41", 41));
        object_cache.follow(Event::InitApply(versioned("a", "31", 31)));
        object_cache.follow(Event::InitApply(versioned("b", "32", 32)));
        object_cache.follow(Event::InitApply(versioned("c", "33", 33)));
        object_cache.take_answer(versioned("b", "42", 42));
        object_cache.follow(Event::InitDone);
        let left = |object_cache: &ObjectCache<u64>| {
            object_cache.objects().values().copied().collect::<Vec<_>>()
        };
        assert_eq!(left(&object_cache), [41, 42, 33]);
        assert!(!object_cache.follow(Event::Apply(versioned("a", "40", 40))));
        assert!(object_cache.follow(Event::Apply(versioned("a", "43", 43))));

        // One that was deleted after the answer is in no list.
        object_cache.follow(Event::Init);
        object_cache.take_answer(versioned("b", "50", 50));
        object_cache.follow(Event::InitApply(versioned("a", "43", 43)));
        assert!(object_cache.follow(Event::InitDone));
        assert_eq!(left(&object_cache), [43]);
    }

    #[test]
    fn versions_that_are_no_numbers_tell_nothing() {
        let mut object_cache = ObjectCache::default();
        for (answer, event) in [("x", "9"), ("10", "x"), ("10", "")] {
            object_cache.take_answer(versioned("a", answer, 1));
            assert!(object_cache.follow(Event::Apply(versioned("a", event, 2))));
        }
    }

    proptest! {
        /// Whatever is written by us and by others, and however late the watch is: what the object_cache has never
        /// gets older, is never older than an answer to us, and is the last in the end.
        #[test]
        fn an_object_never_gets_older(steps in vec(0..3_u8, 1..40)) {
            let mut object_cache = ObjectCache::default();
            let (mut last, mut told, mut known) = (0_u64, 0_u64, 0_u64);
            let show = |version: u64| versioned("a", &version.to_string(), version);
            for step in steps {
                match step {
                    0 => last += 1,
                    1 => {
                        last += 1;
                        object_cache.take_answer(show(last));
                        known = last;
                    }
                    _ if told < last => {
                        told += 1;
                        object_cache.follow(Event::Apply(show(told)));
                        known = known.max(told);
                    }
                    _ => {}
                }
                prop_assert_eq!(object_cache.objects().values().copied().next().unwrap_or(0), known);
            }
            for version in told + 1..=last {
                object_cache.follow(Event::Apply(show(version)));
            }
            prop_assert_eq!(object_cache.objects().values().copied().next().unwrap_or(0), last);
        }
    }
}
