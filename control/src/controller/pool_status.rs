//! Reads a pool's specification, and computes its status.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::address_range::{self, AddressRange, Family};
use super::allocate;
use super::crd::{BlockStatus, Condition, PoolSpec, PoolStatus, READY};
use super::deletion::{self, TERMINATING};
use super::objects::Pool;
use super::pending_event::PendingEvent;
use super::selector;
use super::write_scheduler::digest;
use crate::index::objects::ObjectName;

/// Reason of the condition of a pool that shares addresses with another pool.
const OVERLAP: &str = "Overlap";

/// A write to a pool, and the Event about it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PoolWrite {
    /// The version of the pool that was decided about.
    pub(super) version: String,
    /// The whole status; `None` to leave it.
    pub(super) status: Option<Value>,
    /// All finalizers that it must have; `None` to leave them.
    pub(super) finalizers: Option<Vec<String>>,
    pub(super) event: Option<PendingEvent>,
}

impl PoolWrite {
    /// Returns a digest of what is written.
    pub(super) fn digest(&self) -> u64 {
        digest(self.status.as_ref(), self.finalizers.as_deref())
    }
}

/// A pool's specification, and its usable part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PoolSource {
    /// The entries of `addresses`, each with its range if it is valid.
    pub(super) entries: Vec<(String, Option<AddressRange>)>,
    /// What is wrong with the specification: reason and message.
    pub(super) problem: Option<(&'static str, String)>,
    /// The usable part.
    pub(super) pool: Pool,
}

impl PoolSource {
    /// Reads a specification. Invalid parts are left out and recorded as the problem.
    pub(super) fn new(spec: &PoolSpec) -> Self {
        let mut problem = None;
        let mut entries = Vec::new();
        for text in &spec.addresses {
            match text.parse() {
                Ok(range) => entries.push((text.clone(), Some(range))),
                Err(error) => {
                    let text_of = || {
                        (
                            "InvalidAddresses",
                            format!("spec.addresses {text:?} is left out: {error}"),
                        )
                    };
                    problem.get_or_insert_with(text_of);
                    entries.push((text.clone(), None));
                }
            }
        }
        let read = |field: &str, selector: Option<&LabelSelector>| {
            selector::read(selector).map_err(|error| {
                format!(
                    "spec.{field}: {error}; until it can be read the pool gives no addresses, and Services keep those \
                     that they have"
                )
            })
        };
        let services = read("serviceSelector", spec.service_selector.as_ref());
        let namespaces = read("namespaceSelector", spec.namespace_selector.as_ref());
        let selectors = services.and_then(|services| Ok((services, namespaces?)));
        let unreadable = selectors.is_err();
        // With unreadable selectors, nobody knows whom the pool was meant for: all holders keep their addresses.
        let (services, namespaces) = selectors.unwrap_or_else(|text| {
            problem = Some(("InvalidSelector", text));
            Default::default()
        });
        let mut sharing: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for shared in spec.sharing.iter().flatten() {
            let named = sharing.entry(shared.key.clone()).or_default();
            named.extend(shared.namespaces.iter().cloned());
        }
        let ranges = entries.iter().filter_map(|(_, range)| *range).collect();
        Self {
            pool: Pool {
                ranges,
                services,
                namespaces,
                auto_assign: spec.auto_assign,
                terminating: false,
                unreadable,
                sharing,
            },
            entries,
            problem,
        }
    }

    /// Computes the status. `ours` are the addresses of Services that this pool counts, `taken` all addresses
    /// in use by anyone, `before_it` the pools that count shared addresses before this one, and `users` the
    /// Services that keep it from being deleted.
    pub(super) fn status(
        &self,
        ours: &BTreeSet<IpAddr>,
        taken: &BTreeSet<IpAddr>,
        before_it: &[(&str, &Pool)],
        users: &BTreeSet<&ObjectName>,
        before: &PoolStatus,
        now: &str,
    ) -> PoolStatus {
        let mut blocks: Vec<BlockStatus> = self
            .entries
            .iter()
            .map(|(text, _)| BlockStatus {
                addresses: text.clone(),
                used: 0,
            })
            .collect();
        let mut used = 0;
        for address in ours {
            let having = self.entries.iter().enumerate();
            let having = having.filter_map(|(index, (_, range))| {
                let range = range.filter(|range| range.contains(*address))?;
                Some((range.size(), index))
            });
            // An address counts for the smallest range: to shrink a range, its owner first adds the smaller one.
            if let Some((_, index)) = having.min() {
                blocks[index].used += 1;
                used += 1;
            }
        }
        let others = before_it.iter().flat_map(|(_, pool)| &pool.ranges);
        let counted = address_range::without(&self.pool.ranges, others);
        let free = |family| {
            let (used, size) = allocate::usage(&counted, family, taken);
            i64::try_from(size - used).unwrap_or(i64::MAX)
        };
        let (status, reason, message) = match &self.problem {
            _ if self.pool.terminating => ("False", TERMINATING, deletion::message(users)),
            Some((reason, message)) => ("False", *reason, message.clone()),
            None => match self.overlap(before_it) {
                Some(message) => ("False", OVERLAP, message),
                None => ("True", "Valid", String::new()),
            },
        };
        let ready = Condition {
            kind: READY.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: String::new(),
        };
        PoolStatus {
            used,
            free_ipv4: free(Family::V4),
            free_ipv6: free(Family::V6),
            blocks,
            conditions: vec![ready.since(before.ready(), now)],
        }
    }

    /// Returns a text about addresses that an earlier pool has too; `None` if there are none.
    fn overlap(&self, before_it: &[(&str, &Pool)]) -> Option<String> {
        let entries = self.entries.iter();
        let mut entries = entries.filter_map(|(text, range)| Some((text, (*range)?)));
        entries.find_map(|(text, range)| {
            let mut pools = before_it.iter();
            let meets = |other: &&AddressRange| other.meets(&range);
            let (name, _) = pools.find(|(_, pool)| pool.ranges.iter().any(|other| meets(&other)))?;
            Some(format!(
                "spec.addresses {text:?} has addresses that LoadBalancerPool {name} has too, which counts them; take them \
                 out of one of the two"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-21T12:00:00Z";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_counts_for_the_smallest_entry_that_has_it() {
        let spec = PoolSpec {
            addresses: ["192.0.2.0/24", "192.0.2.0/30", "192.0.2.1-192.0.2.9", "x"]
                .map(str::to_owned)
                .into(),
            ..PoolSpec::default()
        };
        let ours = ["192.0.2.1", "192.0.2.5", "192.0.2.77", "198.51.100.1"]
            .map(ip)
            .into();
        let taken = ["192.0.2.1", "192.0.2.5", "192.0.2.77", "192.0.2.99"]
            .map(ip)
            .into();
        let source = PoolSource::new(&spec);
        let users = BTreeSet::new();
        let status = source.status(&ours, &taken, &[], &users, &PoolStatus::default(), NOW);
        let used: Vec<i64> = status.blocks.iter().map(|block| block.used).collect();
        assert_eq!(used, [1, 1, 1, 0]);
        assert_eq!(
            (status.used, status.free_ipv4, status.free_ipv6),
            (3, 252, 0)
        );
        assert_eq!(status.conditions[0].reason, "InvalidAddresses");
        let again = source.status(&ours, &taken, &[], &users, &status, "later");
        assert_eq!(again, status);
    }

    #[test]
    fn more_addresses_than_fit_are_told_as_the_most() {
        let spec = PoolSpec {
            addresses: vec!["2001:db8::/32".to_owned()],
            ..PoolSpec::default()
        };
        let (none, users) = (BTreeSet::new(), BTreeSet::new());
        let before = PoolStatus::default();
        let status = PoolSource::new(&spec).status(&none, &none, &[], &users, &before, NOW);
        assert_eq!(status.free_ipv6, i64::MAX);
    }
}
