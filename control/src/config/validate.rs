//! The rules that a configuration file must keep, applied to all of it at once.
//!
//! A value that breaks a rule is reported and left out; the rest is still checked,
//! so one run of the agent names everything there is to mend.

mod announce;
mod backends;
mod health;
mod kubernetes;
mod nat;
mod nodes;
mod services;
mod values;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;

use fastpath::tables::OwnedBackend;
use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;
use serde_saphyr::Spanned;
use xdp_prog::maglev::MAX_LOG2_LEN;

use self::values::{decimal, is_interface_name, position};
pub(super) use self::values::{parse_network, parse_seed};
use super::problem::{Position, Problem};
use super::{
    Config, DEFAULT_HASH_SEED, DEFAULT_PIN_DIR, DEFAULT_SOCKET, Origins, Source, TableSizes, raw,
};
use crate::desired::{AttachMode, Desired, ForwardMode, Role, Service, ServiceKey, Sources};

/// Largest arena: 2^28 slots, as many as a service's word can address.
const MAX_ARENA_MIB: u32 = 1_024;
/// `sockaddr_un` has 108 bytes and the last is a zero.
const MAX_SOCKET_PATH: usize = 107;
/// `PATH_MAX` without its closing zero.
const MAX_PATH: usize = 4_095;
/// 2^18 slots of 4 bytes are one MiB.
const SLOTS_PER_MIB_LOG2: u32 = 18;

/// Applies every rule; returns the configuration or all problems, in the order of the file.
pub(super) fn validate(file: &raw::File, source: Source) -> Result<Config, Vec<Problem>> {
    let mut rules = Rules::default();
    let config = rules.file(file, source);
    if rules.problems.is_empty() {
        return Ok(config);
    }
    rules.problems.sort_by_key(|problem| problem.position);
    Err(rules.problems)
}

/// Collects problems while values are taken over.
#[derive(Default)]
struct Rules {
    problems: Vec<Problem>,
}

impl Rules {
    fn file(&mut self, file: &raw::File, source: Source) -> Config {
        let mut origins = Origins::default();
        let interfaces = self.interfaces(file, &mut origins);
        let (edge, node) = self.roles(file);
        let hash_seed = file.hash_seed.as_ref().and_then(|text| self.seed(text));
        let sources = self.sources(file.sources.as_ref(), &mut origins);
        let nat = self.nat(file.nat.as_ref(), &mut origins);
        let vips = self.vips(file, &sources, &mut origins);
        let default_mode = file.default_mode.as_ref();
        let default_mode = default_mode.and_then(|text| self.mode("default_mode", text));
        let default_mode = default_mode.unwrap_or(ForwardMode::Ipip);
        let seed = hash_seed.unwrap_or(DEFAULT_HASH_SEED);
        let nodes = self.nodes(file, &mut origins);
        let node_port_addresses = self.node_port_addresses(file);
        let node_port_range = self.node_port_range(file);
        let services = self.services(file, &origins, &nodes, default_mode, &node_port_range, seed);
        let node_health = self.node_health(file.node_health.as_ref());
        let trusted_edges = self.trusted_edges(file);
        let tables = self.tables(file.tables.as_ref());
        let kubernetes = self.kubernetes(file, source, default_mode, hash_seed, tables);
        if kubernetes.is_none() {
            self.roles_fit(file, node, &nodes);
        }
        self.nat_fits(file, nat.ports(), &services);
        self.tables_fit(file, &services, &trusted_edges, tables);

        let socket = file.api.as_ref().and_then(|api| api.socket.as_ref());
        let socket = socket.and_then(|text| self.path("api.socket", text, MAX_SOCKET_PATH));
        let pin_dir = file.pin_dir.as_ref();
        let pin_dir = pin_dir.and_then(|text| self.path("pin_dir", text, MAX_PATH));
        let metrics = file
            .metrics
            .as_ref()
            .and_then(|metrics| metrics.listen.as_ref());
        Config {
            desired: Desired {
                edge,
                node,
                nodes,
                hash_seed: seed,
                sources,
                nat,
                interfaces,
                vips,
                shared: OrdSet::new(),
                node_port_addresses,
                clamp_mss: self.switch("clamp_mss", file.clamp_mss.as_ref(), true),
                trusted_edges,
                announce: self.announce(file, source),
                node_health,
                services: services
                    .into_iter()
                    .map(|(key, service)| (key, Arc::new(service)))
                    .collect(),
                draining: OrdMap::new(),
            },
            tables,
            socket: socket.unwrap_or_else(|| PathBuf::from(DEFAULT_SOCKET)),
            metrics: metrics.and_then(|text| self.listen("metrics.listen", text)),
            pin_dir: pin_dir.unwrap_or_else(|| PathBuf::from(DEFAULT_PIN_DIR)),
            node_port_range,
            kubernetes,
            origins,
        }
    }

    fn interfaces(
        &mut self,
        file: &raw::File,
        origins: &mut Origins,
    ) -> BTreeMap<String, AttachMode> {
        let mut interfaces = BTreeMap::new();
        let listed = file.interfaces.as_ref();
        let Some(listed) = listed.filter(|listed| !listed.value.is_empty()) else {
            self.missing(
                "interfaces",
                listed.map(position),
                "name the interfaces that service traffic enters by, such as `- name: eth0`",
            );
            return interfaces;
        };
        for (index, interface) in listed.value.iter().enumerate() {
            let field = format!("interfaces[{index}]");
            let mode = interface.value.mode.as_ref();
            let mode = mode.and_then(|text| self.attach_mode(&format!("{field}.mode"), text));
            let name_field = format!("{field}.name");
            let Some(name) = &interface.value.name else {
                self.missing(
                    &name_field,
                    Some(position(interface)),
                    "give the interface's name, such as eth0",
                );
                continue;
            };
            if !is_interface_name(&name.value) {
                self.refuse(
                    &name_field,
                    name,
                    "not an interface name",
                    "use 1 to 15 characters without spaces, slashes or colons, as `ip link` shows it",
                );
            } else if let Some(first) = origins.interfaces.get(&name.value) {
                self.refuse(
                    &name_field,
                    name,
                    format!("this interface is already listed at {first}"),
                    "list each interface once",
                );
            } else {
                origins
                    .interfaces
                    .insert(name.value.clone(), position(name));
                interfaces.insert(name.value.clone(), mode.unwrap_or_default());
            }
        }
        interfaces
    }

    /// Returns (edge, node).
    fn roles(&mut self, file: &raw::File) -> (bool, Role) {
        const REMEDY: &str = "use edge (balances services), node (decapsulates), or both";
        let Some(listed) = &file.roles else {
            return (true, Role::IfListed);
        };
        let (mut edge, mut node) = (false, false);
        if listed.value.is_empty() {
            self.missing("roles", Some(position(listed)), REMEDY);
        }
        for (index, role) in listed.value.iter().enumerate() {
            let field = format!("roles[{index}]");
            let flag = match role.value.as_str() {
                "edge" => &mut edge,
                "node" => &mut node,
                _ => {
                    self.refuse(&field, role, "not a role", REMEDY);
                    continue;
                }
            };
            if std::mem::replace(flag, true) {
                self.refuse(
                    &field,
                    role,
                    "this role is given twice",
                    "keep one of the two",
                );
            }
        }
        (edge, if node { Role::Yes } else { Role::No })
    }

    fn sources(&mut self, sources: Option<&raw::Sources>, origins: &mut Origins) -> Sources {
        let mut wanted = Sources::default();
        let Some(sources) = sources else {
            return wanted;
        };
        let origins = &mut origins.sources;
        if let Some(text) = &sources.ipv4 {
            wanted.ipv4 = self.own_v4("sources.ipv4", text, origins);
        }
        if let Some(text) = &sources.ipv6 {
            wanted.ipv6 = self.own_v6("sources.ipv6", text, origins);
        }
        let prefixes = [
            ("sources.ipv4_prefix", &sources.ipv4_prefix, true),
            ("sources.ipv6_prefix", &sources.ipv6_prefix, false),
        ];
        for (field, text, is_ipv4) in prefixes {
            let Some(text) = text else { continue };
            match self.source_prefix(field, text, is_ipv4) {
                Some(IpNet::V4(prefix)) => wanted.ipv4_prefix = Some(prefix),
                Some(IpNet::V6(prefix)) => wanted.ipv6_prefix = Some(prefix),
                None => {}
            }
        }
        wanted
    }

    /// Takes a prefix of one family that has an address for each of several flows.
    fn source_prefix(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        is_ipv4: bool,
    ) -> Option<IpNet> {
        let prefix = self.prefix(field, text)?;
        if prefix.addr().is_ipv4() != is_ipv4 {
            let (found, wanted) = if is_ipv4 {
                ("IPv6", "IPv4")
            } else {
                ("IPv4", "IPv6")
            };
            let reason = format!("an {found} prefix where {wanted} belongs");
            let remedy = format!("give an {wanted} prefix or leave the field out");
            self.refuse(field, text, reason, remedy);
            return None;
        }
        if prefix.prefix_len() == prefix.max_prefix_len() {
            let remedy =
                "give a shorter prefix, such as a /24 or /112, or the address as the source";
            self.refuse(
                field,
                text,
                "this prefix has one address for all flows",
                remedy,
            );
            return None;
        }
        Some(prefix)
    }

    /// Takes an IPv4 address of this machine, and notes where it stands.
    fn own_v4(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        origins: &mut BTreeMap<IpAddr, Position>,
    ) -> Option<Ipv4Addr> {
        match self.address(field, text)? {
            IpAddr::V4(address) => {
                origins.insert(address.into(), position(text));
                Some(address)
            }
            IpAddr::V6(_) => {
                let remedy = "give an IPv4 address of this machine or leave the field out";
                self.refuse(field, text, "an IPv6 address where IPv4 belongs", remedy);
                None
            }
        }
    }

    /// Takes an IPv6 address of this machine, and notes where it stands.
    fn own_v6(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        origins: &mut BTreeMap<IpAddr, Position>,
    ) -> Option<Ipv6Addr> {
        match self.address(field, text)? {
            IpAddr::V6(address) => {
                origins.insert(address.into(), position(text));
                Some(address)
            }
            IpAddr::V4(_) => {
                let remedy = "give an IPv6 address of this machine or leave the field out";
                self.refuse(field, text, "an IPv4 address where IPv6 belongs", remedy);
                None
            }
        }
    }

    fn vips(
        &mut self,
        file: &raw::File,
        sources: &Sources,
        origins: &mut Origins,
    ) -> OrdSet<IpAddr> {
        for (index, text) in file
            .vips
            .iter()
            .flat_map(|listed| &listed.value)
            .enumerate()
        {
            let field = format!("vips[{index}]");
            let Some(address) = self.address(&field, text) else {
                continue;
            };
            match origins.vips.entry(address) {
                Entry::Vacant(vacant) => {
                    vacant.insert(position(text));
                }
                Entry::Occupied(first) => {
                    let reason = format!("this VIP is already listed at {}", first.get());
                    self.refuse(&field, text, reason, "list each VIP once");
                }
            }
            if let Some(source) = origins.sources.get(&address) {
                let reason = format!("this VIP is also an outer source address at {source}");
                let remedy = "a VIP belongs to the edges together, a source to one machine: \
                              use another address for one of them";
                self.refuse(&field, text, reason, remedy);
            }
            let holds = |prefix: &IpNet| prefix.contains(&address);
            if let Some(prefix) = sources.prefixes().find(holds) {
                let reason = format!("this VIP is in {prefix}, the prefix of outer sources");
                let remedy = "nodes would take packets for it to be an edge's: use another prefix";
                self.refuse(&field, text, reason, remedy);
            }
            if let Some(nat) = origins.nat.get(&address) {
                let reason = format!("this VIP is also the address of NAT mode at {nat}");
                let remedy = "clients send to a VIP, backends reply to an address of the machine: \
                              use another address for one of them";
                self.refuse(&field, text, reason, remedy);
            }
        }
        origins.vips.keys().copied().collect()
    }

    fn trusted_edges(&mut self, file: &raw::File) -> BTreeSet<IpNet> {
        let mut seen: BTreeMap<IpNet, Position> = BTreeMap::new();
        let listed = file.trusted_edges.iter().flat_map(|listed| &listed.value);
        for (index, text) in listed.enumerate() {
            let field = format!("trusted_edges[{index}]");
            let Some(prefix) = self.prefix(&field, text) else {
                continue;
            };
            match seen.entry(prefix) {
                Entry::Vacant(vacant) => {
                    vacant.insert(position(text));
                }
                Entry::Occupied(first) => {
                    let reason = format!("this prefix is already listed at {}", first.get());
                    self.refuse(&field, text, reason, "list each prefix once");
                }
            }
        }
        seen.into_keys().collect()
    }

    fn tables(&mut self, tables: Option<&raw::Tables>) -> TableSizes {
        let mut sizes = TableSizes::default();
        let Some(tables) = tables else {
            return sizes;
        };
        let mut arena_mib = sizes.lut_slots >> SLOTS_PER_MIB_LOG2;
        let mut take = |field: &str, text: &raw::Text, largest: u32, size: &mut u32| {
            let Some(text) = text else { return };
            match decimal::<u32>(&text.value).filter(|value| (1..=largest).contains(value)) {
                Some(value) => *size = value,
                None => self.refuse(
                    &format!("tables.{field}"),
                    text,
                    "not a table size",
                    format!("give a number from 1 to {largest}"),
                ),
            }
        };
        take(
            "lut_arena_mib",
            &tables.lut_arena_mib,
            MAX_ARENA_MIB,
            &mut arena_mib,
        );
        take("services", &tables.services, 1 << 20, &mut sizes.services);
        take("backends", &tables.backends, 1 << 24, &mut sizes.backends);
        take(
            "next_hops",
            &tables.next_hops,
            1 << 20,
            &mut sizes.next_hops,
        );
        take("vips", &tables.vips, 1 << 20, &mut sizes.vips);
        take(
            "trusted_edges",
            &tables.trusted_edges,
            1 << 20,
            &mut sizes.trusted_edges,
        );
        take("pods", &tables.pods, 1 << 20, &mut sizes.pods);
        take(
            "source_ranges",
            &tables.source_ranges,
            1 << 20,
            &mut sizes.source_ranges,
        );
        take("flows", &tables.flows, 1 << 24, &mut sizes.flows);
        take(
            "nat_flows",
            &tables.nat_flows,
            1 << 24,
            &mut sizes.nat_flows,
        );
        sizes.lut_slots = arena_mib << SLOTS_PER_MIB_LOG2;
        sizes
    }

    /// Refuses a node that nobody could send to.
    fn roles_fit(&mut self, file: &raw::File, node: Role, nodes: &BTreeSet<IpAddr>) {
        if node == Role::Yes
            && nodes.is_empty()
            && file
                .trusted_edges
                .as_ref()
                .is_none_or(|listed| listed.value.is_empty())
        {
            self.missing(
                "trusted_edges",
                file.roles.as_ref().map(position),
                "a node accepts IP-in-IP from listed edges only: list their outer source addresses",
            );
        }
    }

    /// Refuses more entries than the tables have room for.
    fn tables_fit(
        &mut self,
        file: &raw::File,
        services: &BTreeMap<ServiceKey, Service>,
        trusted_edges: &BTreeSet<IpNet>,
        sizes: TableSizes,
    ) {
        let backends = services.values().flat_map(|service| {
            let spec = &service.spec;
            spec.backends.iter().map(|backend| OwnedBackend {
                key: backend.key(spec.mode),
                owner: spec.owner,
            })
        });
        let backends: BTreeSet<OwnedBackend> = backends.collect();
        let vips = file.vips.as_ref();
        let full = [
            (
                "services",
                services.len(),
                sizes.services,
                file.services.as_ref().map(position),
            ),
            (
                "backends",
                backends.len(),
                sizes.backends,
                file.services.as_ref().map(position),
            ),
            (
                "vips",
                vips.map_or(0, |listed| listed.value.len()),
                sizes.vips,
                vips.map(position),
            ),
            (
                "trusted_edges",
                trusted_edges.len(),
                sizes.trusted_edges,
                file.trusted_edges.as_ref().map(position),
            ),
        ];
        self.arena_fits(file, services, sizes.lut_slots);
        for (table, entries, room, at) in full {
            if u32::try_from(entries).is_ok_and(|entries| entries <= room) {
                continue;
            }
            self.problems.push(Problem {
                position: at,
                field: format!("tables.{table}"),
                value: room.to_string(),
                reason: format!("{entries} entries do not fit a table with room for {room}"),
                remedy: format!("raise tables.{table}"),
            });
        }
    }

    /// Refuses more lookup tables than the arena holds.
    fn arena_fits(
        &mut self,
        file: &raw::File,
        services: &BTreeMap<ServiceKey, Service>,
        slots: u32,
    ) {
        let tables = services
            .values()
            .map(|service| &service.spec)
            .map(|spec| {
                spec.log2_slots_for(spec.backends.len())
                    .unwrap_or(MAX_LOG2_LEN)
            })
            .map(|log2| 1_u64 << log2);
        // Slot 0 is never used.
        let needed = tables.sum::<u64>() + 1;
        if needed <= slots.into() {
            return;
        }
        let mib = needed.div_ceil(1 << SLOTS_PER_MIB_LOG2);
        self.problems.push(Problem {
            position: file.services.as_ref().map(position),
            field: "tables.lut_arena_mib".to_owned(),
            value: (slots >> SLOTS_PER_MIB_LOG2).to_string(),
            reason: format!("the lookup tables need {needed} slots, the arena has {slots}"),
            remedy: format!(
                "raise tables.lut_arena_mib to {mib} or more, or ask for smaller tables"
            ),
        });
    }
}
