//! What the controller makes of a pool's specification, and writes to its status.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::allocate;
use super::block::{self, Block, Family};
use super::crd::{BlockStatus, Condition, PoolSpec, PoolStatus, READY};
use super::deletion::{self, TERMINATING};
use super::notice::Notice;
use super::objects::Pool;
use super::pacer::digest;
use super::selector;
use crate::index::objects::ObjectName;

/// Why a pool that has addresses of another one is not ready, in a word.
const OVERLAP: &str = "Overlap";

/// Something to write to a pool, and what to tell about it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PoolWrite {
    /// The version of the pool that was decided about.
    pub(super) version: String,
    /// The whole of its status.
    pub(super) status: Option<Value>,
    /// All finalizers that it has to have.
    pub(super) finalizers: Option<Vec<String>>,
    pub(super) notice: Option<Notice>,
}

impl PoolWrite {
    /// Tells what is written from other things.
    pub(super) fn digest(&self) -> u64 {
        digest(self.status.as_ref(), self.finalizers.as_deref())
    }
}

/// A pool as it is written, and what of it can be used.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PoolSource {
    /// The entries, with the block that each stands for.
    pub(super) entries: Vec<(String, Option<Block>)>,
    /// What is wrong with the specification, in a word and a sentence.
    pub(super) problem: Option<(&'static str, String)>,
    /// What of it can be used.
    pub(super) pool: Pool,
}

impl PoolSource {
    /// Reads a specification; what is wrong with it is left out and told.
    pub(super) fn new(spec: &PoolSpec) -> Self {
        let mut problem = None;
        let mut entries = Vec::new();
        for text in &spec.addresses {
            match text.parse() {
                Ok(block) => entries.push((text.clone(), Some(block))),
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
        // Who has an address of it may be whom it was meant for.
        let (services, namespaces) = selectors.unwrap_or_else(|text| {
            problem = Some(("InvalidSelector", text));
            Default::default()
        });
        let mut sharing: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for shared in spec.sharing.iter().flatten() {
            let named = sharing.entry(shared.key.clone()).or_default();
            named.extend(shared.namespaces.iter().cloned());
        }
        let blocks = entries.iter().filter_map(|(_, block)| *block).collect();
        Self {
            pool: Pool {
                blocks,
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

    /// Says what the pool has come to: `ours` are the addresses that Services have from the
    /// controller and that it counts, `taken` all that somebody has, `before_it` the pools that count what it has too,
    /// `users` the Services that keep it from being deleted.
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
            let having = having.filter_map(|(index, (_, block))| {
                let block = block.filter(|block| block.contains(*address))?;
                Some((block.size(), index))
            });
            // In the smallest: who makes a block smaller adds the smaller one first.
            if let Some((_, index)) = having.min() {
                blocks[index].used += 1;
                used += 1;
            }
        }
        let others = before_it.iter().flat_map(|(_, pool)| &pool.blocks);
        let counted = block::without(&self.pool.blocks, others);
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

    /// Says which addresses another pool has too.
    fn overlap(&self, before_it: &[(&str, &Pool)]) -> Option<String> {
        let entries = self.entries.iter();
        let mut entries = entries.filter_map(|(text, block)| Some((text, (*block)?)));
        entries.find_map(|(text, block)| {
            let mut pools = before_it.iter();
            let meets = |other: &&Block| other.meets(&block);
            let (name, _) = pools.find(|(_, pool)| pool.blocks.iter().any(|other| meets(&other)))?;
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
