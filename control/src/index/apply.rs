//! Takes objects into the index and forgets them. Marks the Services that each of them touches.

use std::collections::BTreeSet;

use super::machines::Node;
use super::objects::{self, ObjectName};
use super::problem::{Findings, Object};
use super::{Index, slice};

impl Index {
    /// Adds or replaces a Service.
    pub fn apply_service(&mut self, mut service: objects::Service) {
        service.name = self.shared(service.name);
        let entry = self.entries.entry(service.name.clone()).or_default();
        if entry.service.as_deref() != Some(&service) {
            self.dirty.insert(service.name.clone());
            self.services_known += usize::from(entry.service.is_none());
            entry.service = Some(Box::new(service));
        }
    }

    /// Forgets a Service.
    pub fn delete_service(&mut self, name: &ObjectName) {
        if let Some(entry) = self.entries.get_mut(name)
            && entry.service.take().is_some()
        {
            self.services_known -= 1;
            self.dirty.insert(name.clone());
        }
    }

    /// Adds or replaces an EndpointSlice.
    pub fn apply_slice(&mut self, slice: objects::EndpointSlice) {
        let mut findings = Findings::default();
        let service = slice::service_of(&slice, &mut findings).map(|name| self.shared(name));
        let read = service
            .is_some()
            .then(|| slice::read(&slice, &mut self.names, &mut findings));
        let old = self
            .services_of_slices
            .insert(slice.name.clone(), service.clone());
        if let Some(old) = old.flatten().filter(|old| Some(old) != service.as_ref()) {
            self.remove_slice_from(&old, &slice.name.name);
        }
        if let (Some(service), Some(read)) = (service, read) {
            let entry = self.entries.entry(service.clone()).or_default();
            let name = slice.name.name.as_str();
            if entry.slices.get(name) != Some(&read) {
                entry.slices.insert(slice.name.name.clone(), read);
                self.dirty.insert(service);
            }
        }
        let object = Object::Slice(slice.name);
        let problems = findings.problems(&object);
        self.set_problems(object, problems);
    }

    /// Returns the copy of this name that an entry already holds, so that equal names share memory.
    fn shared(&self, name: ObjectName) -> ObjectName {
        let known = self.entries.get_key_value(&name);
        known.map_or(name, |(known, _)| known.clone())
    }

    /// Forgets an EndpointSlice.
    pub fn delete_slice(&mut self, name: &ObjectName) {
        if let Some(service) = self.services_of_slices.remove(name).flatten() {
            self.remove_slice_from(&service, &name.name);
        }
        self.set_problems(Object::Slice(name.clone()), Vec::new());
    }

    /// Removes a slice from a Service, and marks the Service.
    fn remove_slice_from(&mut self, service: &ObjectName, slice: &str) {
        if let Some(entry) = self.entries.get_mut(service)
            && entry.slices.remove(slice).is_some()
        {
            self.dirty.insert(service.clone());
        }
    }

    /// Adds or replaces a Node. Returns whether that changed the Node or its problems.
    pub fn apply_node(&mut self, node: objects::Node) -> bool {
        let mut findings = Findings::default();
        let read = Node::read(&node, &mut findings);
        let is_new = self.set_node(&node.name, Some(read));
        let object = Object::Node(node.name);
        let problems = findings.problems(&object);
        self.set_problems(object, problems) | is_new
    }

    /// Forgets a Node.
    pub fn delete_node(&mut self, name: &str) {
        self.set_node(name, None);
        self.set_problems(Object::Node(name.to_owned()), Vec::new());
    }

    fn set_node(&mut self, name: &str, node: Option<Node>) -> bool {
        if self.machines.node(name) == node.as_ref() {
            return false;
        }
        let old = self.machines.set_node(name, node);
        let addresses = |node: Option<&Node>| node.map(|node| node.addresses.clone());
        let new = addresses(self.machines.node(name)).unwrap_or_default();
        let old = addresses(old.as_ref()).unwrap_or_default();
        if self.machines.is_own(name) {
            self.dirty.extend(self.entries.keys().cloned());
        } else {
            self.touch_pods_of(|node| node == name);
        }
        self.touch_addresses(old.symmetric_difference(&new));
        self.machines_changed();
        true
    }

    /// Forgets the Services that a new list does not contain.
    pub fn retain_services(&mut self, listed: &BTreeSet<ObjectName>) {
        let gone = self.services().filter(|name| !listed.contains(name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.delete_service(&name);
        }
    }

    /// Forgets the EndpointSlices that a new list does not contain.
    pub fn retain_slices(&mut self, listed: &BTreeSet<ObjectName>) {
        let gone = self.slices().filter(|name| !listed.contains(name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.delete_slice(&name);
        }
    }

    /// Forgets the Nodes that a new list does not contain.
    pub fn retain_nodes(&mut self, listed: &BTreeSet<String>) {
        let gone = self.nodes().filter(|name| !listed.contains(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.delete_node(&name);
        }
    }
}
