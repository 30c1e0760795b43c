//! The rules for this machine: its interfaces and roles, and the addresses that it sends from and announces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use imbl::OrdSet;
use ipnet::IpNet;
use serde_saphyr::Spanned;

use super::super::problem::Position;
use super::super::{InterfaceEntry, InterfaceSelector};
use super::health::duration;
use super::values::{self, Refusal, decimal, family, number, refusal};
use super::{Rules, Source, entries, note, position, raw};
use crate::desired::{
    Announce, ForwardMode, MendLimits, NatSettings, OuterSources, Role, Service, ServiceKey,
};

impl Rules {
    pub(super) fn interfaces(&mut self, file: &raw::File) -> Vec<InterfaceEntry> {
        let mut interfaces = Vec::new();
        let listed = file.interfaces.as_ref();
        if listed.is_none_or(|listed| listed.value.is_empty()) {
            let remedy =
                "name the interfaces that service traffic enters by, such as `- name: eth0`";
            self.missing("interfaces", listed.map(position), remedy);
        }
        let mut seen = BTreeMap::new();
        for (field, entry) in entries("interfaces", &file.interfaces) {
            let mode = &entry.value.mode;
            let mode = self.read(&format!("{field}.mode"), mode, values::attach_mode);
            if let Some((selector, field, text)) = self.interface_selector(&field, entry)
                && self.is_first(&mut seen, selector.clone(), &field, text, "interface")
            {
                interfaces.push(InterfaceEntry::new(selector, mode.unwrap_or_default()));
            }
        }
        let names = seen
            .into_iter()
            .filter_map(|(selector, at)| match selector {
                InterfaceSelector::Name(name) => Some((name, at)),
                InterfaceSelector::Pattern(_) | InterfaceSelector::DefaultRoute => None,
            });
        self.origins.interfaces = names.collect();
        interfaces
    }

    /// Reads which interfaces an entry means. Returns the field that says so and its text too.
    fn interface_selector<'file>(
        &mut self,
        field: &str,
        entry: &'file Spanned<raw::Interface>,
    ) -> Option<(InterfaceSelector, String, &'file Spanned<String>)> {
        type Reader = fn(&str) -> Result<InterfaceSelector, Refusal>;
        let raw::Interface {
            name,
            pattern,
            default_route,
            mode: _,
        } = &entry.value;
        let readers: [(&str, &raw::Text, Reader); 3] = [
            ("name", name, |text| {
                values::interface_name(text).map(InterfaceSelector::Name)
            }),
            ("pattern", pattern, |text| {
                values::interface_pattern(text).map(InterfaceSelector::Pattern)
            }),
            ("default_route", default_route, |text| match text {
                "true" => Ok(InterfaceSelector::DefaultRoute),
                _ => Err(refusal("not true", "use true, or leave it out")),
            }),
        ];
        let mut given = readers
            .into_iter()
            .filter_map(|(key, text, read)| Some((key, text.as_ref()?, read)));
        let Some((key, text, read)) = given.next() else {
            let remedy = "give the interface's name, such as eth0, or pattern, or default_route";
            self.missing(&format!("{field}.name"), Some(position(entry)), remedy);
            return None;
        };
        if let Some((other, text, _)) = given.next() {
            let reason = format!("{key} is given too");
            let refusal = refusal(reason, "make two entries of them, or keep one");
            self.refuse(&format!("{field}.{other}"), text, refusal);
            return None;
        }
        let field = format!("{field}.{key}");
        let selector = self.read(&field, text, read)?;
        Some((selector, field, text))
    }

    /// Reads how much is held of packets that XDP cannot finish.
    pub(super) fn mend(&mut self, file: &raw::File) -> Option<MendLimits> {
        const MOST_KIB: usize = 1 << 20;
        const MOST_PACKETS: usize = 4096;
        const LONGEST: Duration = Duration::from_secs(30);
        let mut limits = MendLimits::default();
        if let Some(given) = &file.mend_limits {
            for (name, text, bytes) in [
                ("memory_kib", &given.memory_kib, &mut limits.bytes),
                ("source_kib", &given.source_kib, &mut limits.bytes_of_source),
            ] {
                let remedy = format!("give a number from 4 to {MOST_KIB}");
                let read = |text: &str| number(text, &(4..=MOST_KIB), "not a size", remedy);
                let kib = self.read(&format!("mend_limits.{name}"), text, read);
                *bytes = kib.map_or(*bytes, |kib| kib << 10);
            }
            if let Some(text) = &given.source_kib
                && limits.bytes_of_source > limits.bytes
            {
                let reason = "more than mend_limits.memory_kib, which is for all sources";
                let refusal = refusal(reason, "give less, or raise memory_kib");
                self.refuse("mend_limits.source_kib", text, refusal);
            }
            for (name, text, wait) in [
                ("wait", &given.wait, &mut limits.wait),
                (
                    "next_hop_wait",
                    &given.next_hop_wait,
                    &mut limits.next_hop_wait,
                ),
            ] {
                let read = |text: &str| {
                    let wait = duration(text);
                    let wait =
                        wait.filter(|wait| (Duration::from_millis(1)..=LONGEST).contains(wait));
                    wait.ok_or_else(|| refusal("not a time to wait", "give one from 1ms to 30s"))
                };
                let given = self.read(&format!("mend_limits.{name}"), text, read);
                *wait = given.unwrap_or(*wait);
            }
            let remedy = format!("give a number from 1 to {MOST_PACKETS}");
            let range = 1..=MOST_PACKETS;
            let read = |text: &str| number(text, &range, "not a number of packets", remedy);
            let packets = self.read(
                "mend_limits.next_hop_packets",
                &given.next_hop_packets,
                read,
            );
            limits.packets_of_next_hop = packets.unwrap_or(limits.packets_of_next_hop);
        }
        let is_on = self.read("mend", &file.mend, values::switch);
        is_on.unwrap_or(false).then_some(limits)
    }

    /// Reads the roles: whether the machine is an edge, and whether it is a node.
    pub(super) fn roles(&mut self, file: &raw::File) -> (bool, Role) {
        const REMEDY: &str = "use edge (balances services), node (decapsulates), or both";
        let Some(listed) = &file.roles else {
            return (true, Role::IfListed);
        };
        if listed.value.is_empty() {
            self.missing("roles", Some(position(listed)), REMEDY);
        }
        let mut roles = BTreeSet::new();
        for (field, text) in entries("roles", &file.roles) {
            if !["edge", "node"].contains(&text.value.as_str()) {
                self.refuse(&field, text, refusal("not a role", REMEDY));
            } else if !roles.insert(text.value.as_str()) {
                let refusal = refusal("this role is given twice", "keep one of the two");
                self.refuse(&field, text, refusal);
            }
        }
        let node = roles.contains("node");
        (
            roles.contains("edge"),
            if node { Role::Yes } else { Role::No },
        )
    }

    /// Rejects a node that trusts no sender: nobody could send to it.
    pub(super) fn roles_fit(&mut self, file: &raw::File, node: Role, nodes: &BTreeSet<IpAddr>) {
        let edges = file.trusted_edges.as_ref();
        let trusts_nobody = edges.is_none_or(|listed| listed.value.is_empty());
        if node == Role::Yes && nodes.is_empty() && trusts_nobody {
            let at = file.roles.as_ref().map(position);
            let remedy =
                "a node accepts IP-in-IP from listed edges only: list their outer source addresses";
            self.missing("trusted_edges", at, remedy);
        }
    }

    pub(super) fn sources(&mut self, sources: Option<&raw::Sources>) -> OuterSources {
        let Some(sources) = sources else {
            return OuterSources::default();
        };
        let (ipv4, ipv6, origins) = self.own_addresses("sources", &sources.ipv4, &sources.ipv6);
        self.origins.sources = origins;
        let mut prefix = |field: &str, text: &raw::Text, is_ipv4| {
            self.read(field, text, |text| source_prefix(text, is_ipv4))
        };
        let prefixes = (
            prefix("sources.ipv4_prefix", &sources.ipv4_prefix, true),
            prefix("sources.ipv6_prefix", &sources.ipv6_prefix, false),
        );
        OuterSources {
            ipv4,
            ipv6,
            ipv4_prefix: match prefixes.0 {
                Some(IpNet::V4(prefix)) => Some(prefix),
                _ => None,
            },
            ipv6_prefix: match prefixes.1 {
                Some(IpNet::V6(prefix)) => Some(prefix),
                _ => None,
            },
        }
    }

    pub(super) fn nat(&mut self, nat: Option<&raw::Nat>) -> NatSettings {
        let mut wanted = NatSettings::default();
        let Some(nat) = nat else {
            return wanted;
        };
        (wanted.v4, wanted.v6, self.origins.nat) = self.own_addresses("nat", &nat.ipv4, &nat.ipv6);
        let range = |text: &str| values::port_range(text, "61001-65535");
        if let Some(range) = self.read("nat.ports", &nat.ports, range) {
            wanted.first_port = *range.start();
            wanted.ports = range.end() - range.start() + 1;
        }
        wanted
    }

    /// Reads addresses of this machine, at most one of each family. Returns their positions too.
    fn own_addresses(
        &mut self,
        section: &str,
        ipv4: &raw::Text,
        ipv6: &raw::Text,
    ) -> (
        Option<Ipv4Addr>,
        Option<Ipv6Addr>,
        BTreeMap<IpAddr, Position>,
    ) {
        let mut origins = BTreeMap::new();
        let mut own = |name: &str, text: &raw::Text, is_ipv4| {
            let field = format!("{section}.{name}");
            let address = self.read(&field, text, |text| own_address(text, is_ipv4))?;
            origins.insert(address, position(text.as_ref()?));
            Some(address)
        };
        let (ipv4, ipv6) = (own("ipv4", ipv4, true), own("ipv6", ipv6, false));
        let ipv4 = ipv4.and_then(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        let ipv6 = ipv6.and_then(|address| match address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        });
        (ipv4, ipv6, origins)
    }

    /// Rejects NodePorts among the source ports of NAT mode: replies to NAT mode would arrive there.
    pub(super) fn nat_fits(
        &mut self,
        file: &raw::File,
        ports: RangeInclusive<u16>,
        services: &BTreeMap<ServiceKey, Service>,
    ) {
        let mut specs = services.values().map(|service| &service.spec);
        if !specs.any(|spec| spec.mode == ForwardMode::Nat) {
            return;
        }
        let by = match file.nat.as_ref().and_then(|nat| nat.ports.as_ref()) {
            Some(range) => format!("by nat.ports at {}", position(range)),
            None => format!("one of {}-{}", ports.start(), ports.end()),
        };
        for (field, service) in entries("services", &file.services) {
            let Some(text) = &service.value.node_port else {
                continue;
            };
            if decimal(&text.value).is_some_and(|port: u16| ports.contains(&port)) {
                let reason = format!("NAT mode sends from this port, {by}");
                let remedy = "use another NodePort, or another range for nat.ports";
                self.refuse(&format!("{field}.node_port"), text, refusal(reason, remedy));
            }
        }
    }

    pub(super) fn vips(&mut self, file: &raw::File, sources: &OuterSources) -> OrdSet<IpAddr> {
        let mut vips = BTreeMap::new();
        for (field, text) in entries("vips", &file.vips) {
            let Some(address) = self.read(&field, text, values::address) else {
                continue;
            };
            self.is_first(&mut vips, address, &field, text, "VIP");
            if let Some(source) = self.origins.sources.get(&address) {
                let reason = format!("this VIP is also an outer source address at {source}");
                let remedy = "a VIP belongs to the edges together, a source to one machine: \
                              use another address for one of them";
                self.refuse(&field, text, refusal(reason, remedy));
            }
            let holds = |prefix: &IpNet| prefix.contains(&address);
            if let Some(prefix) = sources.prefixes().find(holds) {
                let reason = format!("this VIP is in {prefix}, the prefix of outer sources");
                let remedy = "nodes would take packets for it to be an edge's: use another prefix";
                self.refuse(&field, text, refusal(reason, remedy));
            }
            if let Some(nat) = self.origins.nat.get(&address) {
                let reason = format!("this VIP is also the address of NAT mode at {nat}");
                let remedy = "clients send to a VIP, backends reply to an address of the machine: \
                              use another address for one of them";
                self.refuse(&field, text, refusal(reason, remedy));
            }
        }
        let addresses = vips.keys().copied().collect();
        self.origins.vips = vips;
        addresses
    }

    /// Reads the section `announce`.
    pub(super) fn announce(&mut self, file: &raw::File, source: Source) -> Option<Announce> {
        let section = file.announce.as_ref()?;
        let listed = &section.value.interfaces;
        if listed.as_ref().is_none_or(|listed| listed.value.is_empty()) {
            let remedy = "name the interfaces whose neighbours should learn the virtual addresses, such as [eth0]";
            self.missing("announce.interfaces", Some(position(section)), remedy);
        }
        let mut interfaces = BTreeMap::new();
        for (field, text) in entries("announce.interfaces", listed) {
            if let Some(name) = self.read(&field, text, values::interface_name)
                && note(&mut interfaces, name, position(text)).is_err()
            {
                let refusal = refusal("this interface is given twice", "keep one of the two");
                self.refuse(&field, text, refusal);
            }
        }
        let within = entries("announce.addresses", &section.value.addresses);
        let within =
            within.filter_map(|(field, text)| self.read(&field, text, values::edge_prefix));
        let within = within.collect();
        let selector = section.value.node_selector.as_ref();
        if let (Source::File, Some(selector)) = (source, selector) {
            let remedy = "start the agent with `guideway run --kubernetes`, or remove it";
            let refusal = refusal("labels of Nodes are the API's", remedy);
            let at = Some(position(selector));
            self.report(at, "announce.node_selector", "", refusal);
        }
        Some(Announce {
            interfaces: interfaces.into_keys().collect(),
            within,
            node_selector: selector.map_or_else(BTreeMap::new, |selector| selector.value.clone()),
        })
    }
}

/// Reads an address of this machine, of the given family.
fn own_address(text: &str, is_ipv4: bool) -> Result<IpAddr, Refusal> {
    let address = values::address(text)?;
    if address.is_ipv4() == is_ipv4 {
        return Ok(address);
    }
    let (found, wanted) = (family(!is_ipv4), family(is_ipv4));
    Err(refusal(
        format!("an {found} address where {wanted} belongs"),
        format!("give an {wanted} address of this machine or leave the field out"),
    ))
}

/// Reads a prefix of the given family that has more than one address, so that flows can differ in it.
fn source_prefix(text: &str, is_ipv4: bool) -> Result<IpNet, Refusal> {
    let prefix = values::edge_prefix(text)?;
    if prefix.addr().is_ipv4() != is_ipv4 {
        let (found, wanted) = (family(!is_ipv4), family(is_ipv4));
        return Err(refusal(
            format!("an {found} prefix where {wanted} belongs"),
            format!("give an {wanted} prefix or leave the field out"),
        ));
    }
    if prefix.prefix_len() == prefix.max_prefix_len() {
        let remedy = "give a shorter prefix, such as a /24 or /112, or the address as the source";
        return Err(refusal("this prefix has one address for all flows", remedy));
    }
    Ok(prefix)
}
