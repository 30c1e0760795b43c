//! The rules for what is announced to neighbours.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Problem;
use super::values::{is_interface_name, position};
use super::{Rules, Source, raw};
use crate::desired::Announce;

impl Rules {
    pub(super) fn announce(&mut self, file: &raw::File, source: Source) -> Option<Announce> {
        let section = file.announce.as_ref()?;
        let mut interfaces = BTreeSet::new();
        let listed = section.value.interfaces.iter();
        for (index, name) in listed.flat_map(|listed| &listed.value).enumerate() {
            let field = format!("announce.interfaces[{index}]");
            if !is_interface_name(&name.value) {
                self.refuse(
                    &field,
                    name,
                    "not an interface name",
                    "use 1 to 15 characters without spaces, slashes or colons, as `ip link` shows it",
                );
            } else if !interfaces.insert(name.value.clone()) {
                self.refuse(
                    &field,
                    name,
                    "this interface is given twice",
                    "keep one of the two",
                );
            }
        }
        let listed = section.value.interfaces.as_ref();
        if listed.is_none_or(|listed| listed.value.is_empty()) {
            self.missing(
                "announce.interfaces",
                Some(position(section)),
                "name the interfaces whose neighbours should learn the virtual addresses, such as [eth0]",
            );
        }
        let mut within = BTreeSet::new();
        let listed = section.value.addresses.iter();
        for (index, text) in listed.flat_map(|listed| &listed.value).enumerate() {
            let field = format!("announce.addresses[{index}]");
            within.extend(self.prefix(&field, text));
        }
        let selector = section.value.node_selector.as_ref();
        if let (Source::File, Some(selector)) = (source, selector) {
            self.problems.push(Problem {
                position: Some(position(selector)),
                field: "announce.node_selector".to_owned(),
                value: String::new(),
                reason: "labels of Nodes are the API's".to_owned(),
                remedy: "start the agent with `guideway run --kubernetes`, or remove it".to_owned(),
            });
        }
        Some(Announce {
            interfaces,
            within,
            node_selector: selector.map_or_else(BTreeMap::new, |selector| selector.value.clone()),
        })
    }
}
