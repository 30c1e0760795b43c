//! The machine that a target is for: its addresses and their purposes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::config::host::{self, HostFacts};
use crate::desired::{Desired, NodePortAddresses};
use crate::service_totals::ServiceTotals;

/// The facts about the machine that the target depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Addresses that other machines can send to.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them on `lo`. A machine has the virtual addresses there that its own stack serves.
    pub on_loopback: BTreeSet<IpAddr>,
    /// For each attached interface and family the first address; or the address listed as a node, on whatever
    /// interface.
    pub primary: BTreeSet<IpAddr>,
    /// Smallest MTU of the attached interfaces, in bytes.
    pub mtu: Option<u32>,
    /// Devices that lead to its pods.
    pub pod_devices: BTreeSet<String>,
}

impl Machine {
    /// Selects the relevant facts of a machine. The caller adds the devices of pods.
    pub fn of(desired: &Desired, facts: &HostFacts) -> Self {
        let routed = |address: &&IpAddr| host::is_routed(address);
        let mut primary: BTreeMap<(&str, bool), IpAddr> = BTreeMap::new();
        for address in facts.in_order.iter().filter(routed) {
            let interface = facts.addresses.get(address).map(String::as_str);
            let is_listed = desired.nodes.contains(address);
            // A listed address may be on a VLAN or bridge above an attached interface.
            let counts = |name: &&str| is_listed || desired.interfaces.contains_key(*name);
            let Some(interface) = interface.filter(counts) else {
                continue;
            };
            let first = primary
                .entry((interface, address.is_ipv4()))
                .or_insert(*address);
            if is_listed && !desired.nodes.contains(first) {
                *first = *address;
            }
        }
        let mtus = desired.interfaces.keys();
        let on_loopback = facts.addresses.iter().filter(|(_, name)| *name == "lo");
        let on_loopback = on_loopback.map(|(address, _)| address).filter(routed);
        Self {
            on_loopback: on_loopback.copied().collect(),
            primary: primary.into_values().collect(),
            addresses: facts.addresses.keys().filter(routed).copied().collect(),
            mtu: mtus.filter_map(|name| facts.mtus.get(name)).min().copied(),
            pod_devices: BTreeSet::new(),
        }
    }
}

/// Returns the addresses to which replies to NAT mode come. If none is configured, NAT mode may send from any
/// address of the machine, as the route to the next hop says.
pub(super) fn nat_addresses(
    desired: &Desired,
    totals: &ServiceTotals,
    machine: &Machine,
) -> BTreeSet<IpAddr> {
    let is_vip = |address: &IpAddr| desired.vips.contains(address);
    let of_family = |is_ipv4: bool, configured: Option<IpAddr>| {
        let own = machine.addresses.iter().copied();
        let own = own.filter(|one| one.is_ipv4() == is_ipv4 && !is_vip(one));
        match configured {
            _ if !totals.has_nat_backends(is_ipv4) => BTreeSet::new(),
            Some(address) => BTreeSet::from([address]),
            None => own.collect(),
        }
    };
    let mut addresses = of_family(true, desired.nat.v4.map(IpAddr::V4));
    addresses.append(&mut of_family(false, desired.nat.v6.map(IpAddr::V6)));
    addresses
}

/// Returns the addresses of a machine at which NodePorts are served. A VIP is never among them.
pub(super) fn node_port_addresses(desired: &Desired, machine: &Machine) -> BTreeSet<IpAddr> {
    let mut addresses = match &desired.node_port_addresses {
        NodePortAddresses::Primary => machine.primary.clone(),
        NodePortAddresses::All => machine.addresses.clone(),
        NodePortAddresses::Within(networks) => {
            let within = |address: &&IpAddr| networks.iter().any(|net| net.contains(*address));
            machine.addresses.iter().filter(within).copied().collect()
        }
    };
    addresses.retain(|address| !desired.vips.contains(address));
    addresses
}
