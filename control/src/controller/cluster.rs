//! What is known of the cluster, and what has to be written for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::allocate::{self, Inventory};
use super::convert::{Seen, SeenPool};
use super::metrics::PoolValues;
use super::mirror::Mirror;
use super::objects::Labels;
use super::status::{self, Write};
use crate::index::objects::ObjectName;

/// The objects that the controller follows, and what it decided about them.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) services: Mirror<Seen>,
    pub(super) pools: Mirror<SeenPool>,
    pub(super) nodes: Mirror<Vec<IpAddr>>,
    pub(super) namespaces: Mirror<Labels>,
    /// The addresses last decided in this term, by name and uid: the watch may not show yet that they are written.
    decided: BTreeMap<ObjectName, (String, Vec<IpAddr>)>,
}

/// What has to be written.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Status of pools, which have to count an address before a Service has it.
    pub(super) pools: Vec<(ObjectName, Value)>,
    /// Status of Services.
    pub(super) services: Vec<(ObjectName, Write)>,
    /// Services that have what they want, and those that wait.
    pub(super) assigned: u64,
    pub(super) waiting: u64,
    /// Use of the pools.
    pub(super) usage: BTreeMap<String, PoolValues>,
}

impl Cluster {
    /// Lists what is not known yet.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        [
            ("services", self.services.is_complete()),
            ("loadbalancerpools", self.pools.is_complete()),
            ("nodes", self.nodes.is_complete()),
            ("namespaces", self.namespaces.is_complete()),
        ]
        .into_iter()
        .filter(|(_, complete)| !complete)
        .map(|(kind, _)| kind)
        .collect()
    }

    /// Forgets what was decided: another controller may have decided since.
    pub(super) fn forget(&mut self) {
        self.decided.clear();
    }

    /// Decides, and says what has to be written for it; `now` is the time in RFC 3339.
    pub(super) fn plan(&mut self, now: &str) -> Plan {
        let inventory = self.inventory();
        let decisions = allocate::allocate(&inventory);
        let mut plan = Plan::default();
        let mut ours: BTreeSet<IpAddr> = BTreeSet::new();
        let mut decided = BTreeMap::new();
        for (name, seen) in self.services.objects() {
            let Some((service, decision)) = inventory.services.get(name).zip(decisions.get(name))
            else {
                if seen.observed.condition.is_some() {
                    let write = Write {
                        patch: status::withdraw(name),
                        notices: Vec::new(),
                    };
                    plan.services.push((name.clone(), write));
                }
                continue;
            };
            // What it still has counts until it is taken back.
            ours.extend(seen.observed.addresses());
            ours.extend(&decision.addresses);
            match decision.problem {
                None => plan.assigned += 1,
                Some(_) => plan.waiting += 1,
            }
            if let Some(write) = status::service(service, &seen.observed, decision, now) {
                plan.services.push((name.clone(), write));
            }
            decided.insert(name.clone(), (seen.uid.clone(), decision.addresses.clone()));
        }
        self.decided = decided;

        let foreign = inventory.foreign.keys();
        let taken = ours
            .iter()
            .chain(&inventory.nodes)
            .chain(foreign)
            .copied()
            .collect();
        for (name, seen) in self.pools.objects() {
            let status = seen.source.status(&ours, &taken, &seen.status, now);
            let values = PoolValues {
                used: status.used,
                free_ipv4: status.free_ipv4,
                free_ipv6: status.free_ipv6,
            };
            plan.usage.insert(name.name.clone(), values);
            if status != seen.status {
                let patch = json!({
                    "apiVersion": "guideway.dev/v1alpha1",
                    "kind": "LoadBalancerPool",
                    // Of the pool that was decided about: a smaller one may not hold what was decided.
                    "metadata": {"name": name.name, "resourceVersion": seen.version},
                    "status": status,
                });
                plan.pools.push((name.clone(), patch));
            }
        }
        plan
    }

    fn inventory(&self) -> Inventory {
        let services = self.services.objects();
        let ours = services.iter().filter_map(|(name, seen)| {
            let mut service = seen.ours.clone()?;
            if let Some((uid, addresses)) = self.decided.get(name)
                && *uid == seen.uid
            {
                service.held.clone_from(addresses);
            }
            Some((name.clone(), service))
        });
        let foreign = services
            .iter()
            .flat_map(|(name, seen)| seen.foreign.iter().map(|address| (*address, name.clone())));
        let pools = self.pools.objects().iter();
        let namespaces = self.namespaces.objects().iter();
        Inventory {
            pools: pools
                .map(|(name, seen)| (name.name.clone(), seen.source.pool.clone()))
                .collect(),
            namespaces: namespaces
                .map(|(name, labels)| (name.name.clone(), labels.clone()))
                .collect(),
            nodes: self.nodes.objects().values().flatten().copied().collect(),
            foreign: foreign.collect(),
            services: ours.collect(),
        }
    }
}
