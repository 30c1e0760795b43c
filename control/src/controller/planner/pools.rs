//! Plans the writes to pools, and decides which pool counts which address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::json;

use super::super::allocate::Inventory;
use super::super::convert::ObservedPool;
use super::super::crd::PoolStatus;
use super::super::deletion;
use super::super::metrics::PoolValues;
use super::super::objects::{Pool, Service};
use super::super::pool_status::PoolWrite;
use super::{Decisions, Plan, Planner};
use crate::index::objects::ObjectName;

impl Planner {
    pub(super) fn plan_pools(
        &self,
        plan: &mut Plan,
        inventory: &Inventory,
        decisions: &Decisions,
        now: &str,
    ) {
        let mut held: Vec<(&ObjectName, IpAddr)> = Vec::new();
        for (name, decision) in decisions {
            // An address counts until it is removed from the Service's status.
            let seen = self.services.objects().get(name);
            let had = seen.into_iter().flat_map(|seen| seen.observed.addresses());
            let addresses = had.chain(decision.addresses.iter().copied());
            held.extend(addresses.map(|address| (name, address)));
        }
        let ours = held.iter().map(|(_, address)| address);
        let foreign = inventory.foreign.keys();
        let machines = inventory.machines().into_iter();
        let machines = machines.flat_map(|(addresses, _)| addresses);
        let taken = ours.chain(machines).chain(foreign).copied().collect();
        let pools = self.pools.objects();
        let guarded = pools
            .iter()
            .filter(|(_, seen)| deletion::is_guarded(&seen.finalizers));
        let guarded = guarded.map(|(name, _)| name.name.as_str()).collect();
        let at_stake = deletion::at_stake(inventory, &guarded, &held);
        let mut counted = counted(inventory, &held);
        // The first of two pools with the same address counts it. A pool that is being deleted comes last.
        let mut in_order: Vec<(&str, &Pool)> = inventory
            .pools
            .iter()
            .map(|(name, pool)| (name.as_str(), pool))
            .collect();
        in_order.sort_by_key(|(_, pool)| pool.terminating);
        for (name, seen) in pools {
            let pool = &seen.source.pool;
            let is_itself = |(other, _): &&(&str, &Pool)| **other == *name.name;
            let before_it = in_order.iter().take_while(|other| !is_itself(other));
            let before_it: Vec<_> = before_it
                .filter(|(_, pool)| !pool.terminating)
                .copied()
                .collect();
            let ours = counted.remove(name.name.as_str()).unwrap_or_default();
            let users = at_stake
                .iter()
                .filter(|(_, address)| pool.terminating && pool.contains(*address));
            let users = users.map(|(user, _)| *user).collect();
            let status = seen
                .source
                .status(&ours, &taken, &before_it, &users, &seen.status, now);
            let values = PoolValues {
                used: status.used,
                free_ipv4: status.free_ipv4,
                free_ipv6: status.free_ipv6,
            };
            plan.usage.insert(name.name.to_string(), values);
            let write = pool_write(name, seen, &status, &users);
            plan.pools.extend(write.map(|write| (name.clone(), write)));
        }
    }
}

/// Returns, by pool, the addresses held by Services that the pool counts. One pool counts each address: the
/// first one that contains the address, admits a holder and is not being deleted.
fn counted<'a>(
    inventory: &'a Inventory,
    held: &[(&ObjectName, IpAddr)],
) -> BTreeMap<&'a str, BTreeSet<IpAddr>> {
    let mut holders: BTreeMap<IpAddr, Vec<&Service>> = BTreeMap::new();
    for (name, address) in held {
        let holders = holders.entry(*address).or_default();
        holders.extend(inventory.services.get(*name));
    }
    let mut counted: BTreeMap<&str, BTreeSet<IpAddr>> = BTreeMap::new();
    for (address, holders) in holders {
        let having = inventory.pools.iter();
        let having = having.filter(|(_, pool)| pool.contains(address));
        let first = having.min_by_key(|(_, pool)| {
            let admits = |service: &&Service| {
                let namespace = inventory.namespaces.get(service.name.namespace.as_str());
                pool.admits(&service.labels, namespace)
            };
            (pool.terminating, !holders.iter().any(admits))
        });
        if let Some((name, _)) = first {
            counted.entry(name).or_default().insert(address);
        }
    }
    counted
}

/// Returns the write that a pool needs; `None` if the API server has everything already.
fn pool_write(
    name: &ObjectName,
    seen: &ObservedPool,
    status: &PoolStatus,
    users: &BTreeSet<&ObjectName>,
) -> Option<PoolWrite> {
    let terminating = seen.source.pool.terminating;
    let in_use = if terminating {
        !users.is_empty()
    } else {
        status.used > 0
    };
    let finalizers = deletion::finalizers(&seen.finalizers, in_use, terminating);
    let patch = (*status != seen.status).then(|| {
        json!({
            "apiVersion": "guideway.dev/v1alpha1",
            "kind": "LoadBalancerPool",
            // Bound to the version that was decided about: a pool that has become smaller may lack these addresses.
            "metadata": {"name": name.name, "resourceVersion": seen.version},
            "status": status,
        })
    });
    let ready = status.ready();
    let event = ready.and_then(|ready| deletion::event(seen.status.ready(), ready, users));
    (patch.is_some() || finalizers.is_some()).then(|| PoolWrite {
        version: seen.version.clone(),
        status: patch,
        finalizers,
        event,
    })
}
