//! What a watch has shown so far, converted, by name.

use std::collections::BTreeMap;

use kube::runtime::watcher::Event;

use crate::index::objects::ObjectName;

/// The objects of one kind as the API server has them.
#[derive(Debug)]
pub(super) struct Mirror<T> {
    objects: BTreeMap<ObjectName, T>,
    /// What a list has shown until now; it replaces the rest when it is complete.
    listed: Option<BTreeMap<ObjectName, T>>,
    complete: bool,
}

impl<T> Default for Mirror<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            listed: None,
            complete: false,
        }
    }
}

impl<T: PartialEq> Mirror<T> {
    /// Returns the objects, which are all of them once a list was complete.
    pub(super) fn objects(&self) -> &BTreeMap<ObjectName, T> {
        &self.objects
    }

    /// Tells whether a list was complete.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Follows an event; tells whether anything changed.
    pub(super) fn follow(&mut self, event: Event<(ObjectName, T)>) -> bool {
        match event {
            Event::Init => {
                self.listed = Some(BTreeMap::new());
                false
            }
            Event::InitApply((name, object)) => {
                self.listed.get_or_insert_default().insert(name, object);
                false
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let changed = !self.complete || self.objects != listed;
                self.complete = true;
                self.objects = listed;
                changed
            }
            Event::Apply((name, object)) => self.put(name, object),
            Event::Delete((name, _)) => self.objects.remove(&name).is_some(),
        }
    }

    /// Adds or replaces an object; tells whether anything changed.
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
    use super::*;

    fn named(name: &str, value: u8) -> (ObjectName, u8) {
        let name = ObjectName::new("test", name);
        (name, value)
    }

    #[test]
    fn a_list_replaces_everything_once_it_is_complete() {
        let mut mirror = Mirror::default();
        assert!(!mirror.follow(Event::Init));
        assert!(!mirror.follow(Event::InitApply(named("a", 1))));
        assert!(mirror.objects().is_empty() && !mirror.is_complete());
        assert!(mirror.follow(Event::InitDone));
        assert!(mirror.is_complete());
        assert!(mirror.follow(Event::Apply(named("b", 2))));

        // A second list misses `a`.
        mirror.follow(Event::Init);
        mirror.follow(Event::InitApply(named("b", 2)));
        assert_eq!(mirror.objects().len(), 2);
        assert!(mirror.follow(Event::InitDone));
        assert_eq!(mirror.objects().values().collect::<Vec<_>>(), [&2]);
    }

    #[test]
    fn what_says_nothing_new_is_no_change() {
        let mut mirror = Mirror::default();
        mirror.follow(Event::Init);
        assert!(mirror.follow(Event::InitDone), "even an empty list is news");
        assert!(mirror.follow(Event::Apply(named("a", 1))));
        assert!(!mirror.follow(Event::Apply(named("a", 1))));
        assert!(mirror.follow(Event::Apply(named("a", 2))));
        assert!(mirror.follow(Event::Delete(named("a", 2))));
        assert!(!mirror.follow(Event::Delete(named("a", 2))));
    }
}
