//! Limits the room in the tables that all Services of a namespace may take together.
//!
//! The oldest Services get room first, so that all machines refuse the same ones. A Service that does not fit
//! is refused; a younger, smaller one may still fit.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::objects::{ObjectName, Text};
use super::table_entries::TableEntries;

/// The use of the tables by namespace, and the Services that are refused.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// Limit for each namespace; `None` for no limit.
    most: Option<TableEntries>,
    /// Use of each Service that takes anything, ordered by age, then name.
    namespaces: HashMap<Text, BTreeMap<(i64, ObjectName), TableEntries>>,
    /// Creation time of each of these Services.
    created: HashMap<ObjectName, i64>,
    /// Namespaces to decide again.
    touched: BTreeSet<Text>,
    refused: BTreeSet<ObjectName>,
}

impl Quotas {
    /// Replaces the limit and forgets everything: the caller must note all Services again.
    pub(super) fn set_most(&mut self, most: Option<TableEntries>) {
        *self = Self {
            most,
            ..Self::default()
        };
    }

    /// Sets what a Service takes, which may be nothing.
    pub(super) fn note(&mut self, name: &ObjectName, created: i64, takes: TableEntries) {
        if self.most.is_none() {
            return;
        }
        let before = self.created.get(name).copied();
        let namespace = self.namespaces.entry(name.namespace.clone()).or_default();
        let before = before.map(|before| (before, namespace.remove(&(before, name.clone()))));
        let takes_any = takes != TableEntries::default();
        if before != Some((created, Some(takes))) && (before.is_some() || takes_any) {
            self.touched.insert(name.namespace.clone());
        }
        if takes_any {
            namespace.insert((created, name.clone()), takes);
            self.created.insert(name.clone(), created);
        } else {
            self.created.remove(name);
        }
        if namespace.is_empty() {
            self.namespaces.remove(&name.namespace);
        }
    }

    /// Returns the limit if the Service is refused.
    pub(super) fn refusal(&self, name: &ObjectName) -> Option<TableEntries> {
        self.most.filter(|_| self.refused.contains(name))
    }

    /// Decides again for the namespaces that changed. Returns the Services that become refused or admitted.
    pub(super) fn settle(&mut self) -> Vec<ObjectName> {
        let mut changed = Vec::new();
        for namespace in std::mem::take(&mut self.touched) {
            let Some(mut left) = self.most else {
                continue;
            };
            let nobody = BTreeMap::new();
            let services = self.namespaces.get(&namespace).unwrap_or(&nobody);
            for ((_, name), takes) in services {
                let is_refused = match left.without(*takes) {
                    Some(rest) => {
                        left = rest;
                        false
                    }
                    None => true,
                };
                let is_news = if is_refused {
                    self.refused.insert(name.clone())
                } else {
                    self.refused.remove(name)
                };
                if is_news {
                    changed.push(name.clone());
                }
            }
        }
        let created = &self.created;
        self.refused.retain(|name| created.contains_key(name));
        changed
    }
}
