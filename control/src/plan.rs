//! Computes the operations that lead from the installed state to the desired one.
//!
//! It is pure: it reads and writes no table. The order of the operations ensures that no packet meets half of a
//! change. Trusted edges, addresses and next hops are added before the services that need them and removed
//! after those (next hops of nodes that still have backends stay: `Tables::retain_next_hops`). The XDP program is attached last. The egress program, which translates replies, is attached
//! before it and detached after it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use fastpath::tables::{Addresses, Settings, Specs};
use ipnet::IpNet;

use crate::desired::{AttachMode, ServiceKey, ServiceSpec};
use crate::target_state::TargetState;
use crate::versions::sides;

/// The state of the dataplane.
#[derive(Debug, Default)]
pub struct Installed {
    /// Machine-wide settings; `None` in new tables.
    pub settings: Option<Settings>,
    /// Virtual addresses and the machine's own addresses.
    pub addresses: Arc<Addresses>,
    /// Prefixes from which IP-in-IP is accepted.
    pub trusted_edges: BTreeSet<IpNet>,
    /// Services.
    pub services: Specs,
    /// Services of an earlier agent. Nobody knows the specifications that they were made from.
    pub unknown: BTreeSet<ServiceKey>,
    /// Interfaces with their attach modes; `None` for an interface of an earlier agent.
    pub interfaces: BTreeMap<String, Option<AttachMode>>,
    /// Devices with the egress program, and whether this agent has attached its own program there.
    pub egress: BTreeMap<String, bool>,
}

/// One operation; it is done completely or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Set the machine-wide settings.
    Settings(Settings),
    /// Replace the trusted prefixes.
    Trust(BTreeSet<IpNet>),
    /// Replace the addresses.
    Addresses(Arc<Addresses>),
    /// Find the next hops, and follow their changes.
    Resolve {
        /// Addresses that packets are sent to.
        nodes: BTreeSet<IpAddr>,
        /// Those of `nodes` that are reached by NAT only.
        by_nat: BTreeSet<IpAddr>,
        /// Addresses of edges from whose MACs L2 DSR frames come.
        edges: BTreeSet<IpAddr>,
    },
    /// Add or change a service.
    Put(ServiceKey, Arc<ServiceSpec>),
    /// Remove a service.
    Remove(ServiceKey),
    /// Attach the XDP program to an interface, or replace the program that an earlier agent attached.
    Attach(String, AttachMode),
    /// Detach the XDP program from an interface.
    Detach(String),
    /// Attach the egress program to a device, or replace the program that an earlier agent attached.
    AttachEgress(String),
    /// Detach the egress program from a device.
    DetachEgress(String),
}

impl Operation {
    /// Returns whether packets may meet our programs after the operation where they did not before.
    pub const fn attaches(&self) -> bool {
        matches!(self, Self::Attach(..) | Self::AttachEgress(..))
    }
}

/// Returns the operations that keep the installed state while no desired state is known. Programs of an earlier
/// agent are replaced by this agent's, and interfaces without a program get it.
pub fn hold(installed: &Installed, interfaces: &BTreeMap<String, AttachMode>) -> Vec<Operation> {
    let inherited = installed.egress.iter().filter(|(_, ours)| !**ours);
    let egress = inherited.map(|(device, _)| Operation::AttachEgress(device.clone()));
    let missing = interfaces
        .iter()
        .filter(|(name, mode)| installed.interfaces.get(*name) != Some(&Some(**mode)));
    let attach = missing.map(|(name, mode)| Operation::Attach(name.clone(), *mode));
    egress.chain(attach).collect()
}

/// Sorts the services to be put by age: if a table is full, the oldest get the room.
pub fn oldest_first<A: Ord>(operations: &mut [Operation], age: impl Fn(&ServiceKey) -> A) {
    let is_put = |operation: &Operation| matches!(operation, Operation::Put(..));
    // `plan` leaves all of these next to each other.
    let Some(first) = operations.iter().position(is_put) else {
        return;
    };
    let puts = operations[first..].partition_point(is_put);
    operations[first..first + puts].sort_by_cached_key(|operation| match operation {
        Operation::Put(key, _) => Some((age(key), *key)),
        _ => None,
    });
}

/// Returns the operations that lead from `installed` to `target`.
pub fn plan(installed: &Installed, target: &TargetState) -> Vec<Operation> {
    let mut operations = Vec::new();
    let reseeded = installed
        .settings
        .is_none_or(|settings| settings.hash_seed != target.settings.hash_seed);
    if installed.settings != Some(target.settings) {
        operations.push(Operation::Settings(target.settings));
    }

    // First both the old and the new prefixes; at the end only the new ones.
    let trust: BTreeSet<IpNet> = installed
        .trusted_edges
        .union(&target.trusted_edges)
        .copied()
        .collect();
    if trust != installed.trusted_edges {
        operations.push(Operation::Trust(trust.clone()));
    }
    let mut addresses = Arc::clone(&installed.addresses);
    if addresses != target.addresses {
        let both = Arc::new(addresses.union(&target.addresses));
        if both != addresses {
            operations.push(Operation::Addresses(Arc::clone(&both)));
        }
        addresses = both;
    }

    operations.push(Operation::Resolve {
        nodes: target.nodes.clone(),
        by_nat: target.by_nat.clone(),
        edges: target.l2dsr_edges(),
    });
    let put =
        |(key, spec): (&ServiceKey, &Arc<ServiceSpec>)| Operation::Put(*key, Arc::clone(spec));
    let changes = installed.services.diff(&target.services).map(sides);
    let mut removed: BTreeSet<&ServiceKey> = installed.unknown.iter().collect();
    removed.retain(|key| !target.services.contains_key(*key));
    for (old, new) in changes {
        match (old, new) {
            (Some((key, _)), None) => drop(removed.insert(key)),
            (_, new) => operations.extend(new.filter(|_| !reseeded).map(put)),
        }
    }
    if reseeded {
        operations.extend(target.services.iter().map(put));
    }
    operations.extend(removed.into_iter().copied().map(Operation::Remove));

    if addresses != target.addresses {
        operations.push(Operation::Addresses(target.addresses.clone()));
    }
    if trust != target.trusted_edges {
        operations.push(Operation::Trust(target.trusted_edges.clone()));
    }
    for name in installed
        .interfaces
        .keys()
        .filter(|name| !target.interfaces.contains_key(*name))
    {
        operations.push(Operation::Detach(name.clone()));
    }
    for device in &target.egress {
        if installed.egress.get(device) != Some(&true) {
            operations.push(Operation::AttachEgress(device.clone()));
        }
    }
    for (name, mode) in &target.interfaces {
        if installed.interfaces.get(name) != Some(&Some(*mode)) {
            operations.push(Operation::Attach(name.clone(), *mode));
        }
    }
    for device in installed
        .egress
        .keys()
        .filter(|device| !target.egress.contains(*device))
    {
        operations.push(Operation::DetachEgress(device.clone()));
    }
    operations
}

#[cfg(test)]
mod tests;
