//! The rules for services.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde_saphyr::Spanned;
use xdp_prog::maglev::LENGTH_CLASSES;

use super::super::problem::{Position, Problem};
use super::super::{Origins, raw};
use super::Rules;
use super::backends::Shape;
use super::values::{decimal, position};
use crate::desired::{
    BackendSpec, ForwardMode, Protocol, Service, ServiceKey, ServiceSpec, TrafficPolicy,
    affinity_seed, owner,
};

const PORT_REMEDY: &str = "give a port from 1 to 65535";
/// Longest name of a service: a Kubernetes namespace, a slash and a name fit.
const MAX_NAME: usize = 253;

impl Rules {
    pub(super) fn services(
        &mut self,
        file: &raw::File,
        origins: &Origins,
        nodes: &BTreeSet<IpAddr>,
        default_mode: ForwardMode,
        node_ports: &RangeInclusive<u16>,
        seed: u64,
    ) -> BTreeMap<ServiceKey, Service> {
        let mut services = BTreeMap::new();
        let health_defaults = self.health_defaults(file);
        let mut names: BTreeMap<&str, Position> = BTreeMap::new();
        let mut keys: BTreeMap<ServiceKey, Position> = BTreeMap::new();
        for (index, entry) in file
            .services
            .iter()
            .flat_map(|listed| &listed.value)
            .enumerate()
        {
            let field = format!("services[{index}]");
            let name = self.service_name(&field, entry, &mut names);
            let service = &entry.value;
            let node_port = service
                .node_port
                .as_ref()
                .and_then(|text| self.node_port(&format!("{field}.node_port"), text, node_ports));
            let mode = match &service.mode {
                Some(text) => self.mode(&format!("{field}.mode"), text),
                None => Some(default_mode),
            };
            let shape = Shape {
                address: self.service_address(&field, entry, origins),
                port: self.service_port(&field, entry),
                node_port,
                protocol: self.service_protocol(&field, entry),
                mode,
                traffic_policy: self.traffic_policy(&field, service, mode),
                nodes,
                origins,
            };
            let slots = service.table_size.as_ref();
            let slots = slots.map(|text| self.table_size(&format!("{field}.table_size"), text));
            let with_affinity = self.session_affinity(&field, service);
            let spec = ServiceSpec {
                owner: name.as_deref().map_or(0, owner),
                mode: mode.unwrap_or(default_mode),
                log2_slots: slots.flatten(),
                backends: self.backends(&field, entry, &shape),
                traffic_policy: shape.traffic_policy,
                source_ranges: self.source_ranges(&field, service, shape.address),
                affinity: name
                    .as_ref()
                    .filter(|_| with_affinity)
                    .map(|name| affinity_seed(seed, name)),
                node_port: false,
            };
            self.backends_fit(&field, entry, &spec, seed);
            let specs = self.by_key(&field, entry, &shape, &spec, &mut keys);
            let health = service.health.as_ref().map(|block| {
                let key = specs.first().map(|(key, _)| *key);
                self.health(&format!("{field}.health"), block, key, &health_defaults)
            });
            if let (Some(name), Some(_)) = (name, mode) {
                services.extend(specs.into_iter().map(|(key, spec)| {
                    let service = Service {
                        name: name.clone(),
                        created: i64::try_from(index).unwrap_or(i64::MAX),
                        spec: spec.into(),
                        health: health.clone(),
                    };
                    (key, service)
                }));
            }
        }
        services
    }

    /// Spreads a service over its address and its NodePort, which stands at the unspecified address.
    fn by_key(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        shape: &Shape<'_>,
        spec: &ServiceSpec,
        keys: &mut BTreeMap<ServiceKey, Position>,
    ) -> Vec<(ServiceKey, ServiceSpec)> {
        let Some(protocol) = shape.protocol else {
            return Vec::new();
        };
        let mut specs = Vec::new();
        if let (Some(address), Some(port)) = (shape.address, shape.port) {
            specs.push((address, port, spec.clone()));
        }
        if let Some(port) = shape.node_port {
            let unspecified: [IpAddr; 2] =
                [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
            for any in unspecified {
                let of_family = |address: IpAddr| address.is_ipv4() == any.is_ipv4();
                let mut backends = spec.backends.clone();
                backends.retain(|backend| backend.pod.is_some_and(|pod| of_family(pod.ip())));
                let wanted = match shape.address {
                    Some(address) => of_family(address),
                    None => spec.backends.is_empty() || !backends.is_empty(),
                };
                if wanted {
                    specs.push((any, port, node_port_spec(spec, backends)));
                }
            }
        }
        let specs = specs.into_iter().map(|(address, port, spec)| {
            let key = ServiceKey {
                address,
                port,
                protocol,
            };
            (key, spec)
        });
        specs
            .filter(|(key, _)| self.is_new(field, entry, *key, keys))
            .collect()
    }

    fn service_name<'file>(
        &mut self,
        field: &str,
        entry: &'file Spanned<raw::Service>,
        names: &mut BTreeMap<&'file str, Position>,
    ) -> Option<String> {
        let field = format!("{field}.name");
        let Some(name) = &entry.value.name else {
            self.missing(&field, Some(position(entry)), "give the service a name");
            return None;
        };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        if name.value.is_empty() || name.value.len() > MAX_NAME || !name.value.bytes().all(allowed)
        {
            self.refuse(
                &field,
                name,
                "not a service name",
                format!("use 1 to {MAX_NAME} letters, digits, '-', '_', '.' or '/'"),
            );
            return None;
        }
        match names.entry(&name.value) {
            Entry::Vacant(vacant) => {
                vacant.insert(position(name));
                Some(name.value.clone())
            }
            Entry::Occupied(first) => {
                let reason = format!("a service of this name already stands at {}", first.get());
                self.refuse(&field, name, reason, "give every service its own name");
                None
            }
        }
    }

    /// Refuses a key that another service has.
    fn is_new(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        key: ServiceKey,
        keys: &mut BTreeMap<ServiceKey, Position>,
    ) -> bool {
        let first = match keys.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(position(entry));
                return true;
            }
            Entry::Occupied(first) => *first.get(),
        };
        let (value, what) = if key.address.is_unspecified() {
            let value = format!("{}/{}", key.port, key.protocol);
            (value, "NodePort and protocol")
        } else {
            (key.to_string(), "address, port and protocol")
        };
        self.problems.push(Problem {
            position: Some(position(entry)),
            field: field.to_owned(),
            value,
            reason: format!("a service with this {what} already stands at {first}"),
            remedy: "merge the two or change one of them".to_owned(),
        });
        false
    }

    fn service_address(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        origins: &Origins,
    ) -> Option<IpAddr> {
        let field = format!("{field}.address");
        let Some(text) = &entry.value.address else {
            if entry.value.node_port.is_none() {
                self.missing(
                    &field,
                    Some(position(entry)),
                    "give one of the addresses under vips, or a node_port",
                );
            }
            return None;
        };
        let address = self.address(&field, text)?;
        if !origins.vips.contains_key(&address) {
            self.refuse(
                &field,
                text,
                "this address is not among vips",
                format!("add {address} to vips or use one of them"),
            );
            return None;
        }
        Some(address)
    }

    /// A service that is a NodePort only may leave its port out.
    fn service_port(&mut self, field: &str, entry: &Spanned<raw::Service>) -> Option<u16> {
        let field = format!("{field}.port");
        let Some(text) = &entry.value.port else {
            if entry.value.address.is_some() || entry.value.node_port.is_none() {
                self.missing(&field, Some(position(entry)), PORT_REMEDY);
            }
            return None;
        };
        self.traffic_port(&field, text)
    }

    pub(super) fn traffic_port(&mut self, field: &str, text: &Spanned<String>) -> Option<u16> {
        match decimal::<u16>(&text.value) {
            Some(0) => self.refuse(field, text, "port 0 is reserved", PORT_REMEDY),
            Some(port) => return Some(port),
            None => self.refuse(field, text, "not a port", PORT_REMEDY),
        }
        None
    }

    fn service_protocol(&mut self, field: &str, entry: &Spanned<raw::Service>) -> Option<Protocol> {
        const REMEDY: &str = "use tcp, udp or sctp";
        let field = format!("{field}.protocol");
        let Some(text) = &entry.value.protocol else {
            self.missing(&field, Some(position(entry)), REMEDY);
            return None;
        };
        match text.value.as_str() {
            "tcp" => Some(Protocol::Tcp),
            "udp" => Some(Protocol::Udp),
            "sctp" => Some(Protocol::Sctp),
            _ => {
                self.refuse(&field, text, "not a protocol that is balanced", REMEDY);
                None
            }
        }
    }

    /// Returns the logarithm of the size.
    fn table_size(&mut self, field: &str, text: &Spanned<String>) -> Option<u8> {
        let size = decimal::<u32>(&text.value);
        let class = size.and_then(|size| {
            LENGTH_CLASSES
                .into_iter()
                .find(|&log2| 1_u32 << log2 == size)
        });
        if class.is_none() {
            let sizes = LENGTH_CLASSES.map(|log2| (1_u32 << log2).to_string());
            self.refuse(
                field,
                text,
                "not a table size",
                format!(
                    "use one of {}, or leave the field out to have it chosen",
                    sizes.join(", ")
                ),
            );
        }
        class
    }

    fn traffic_policy(
        &mut self,
        field: &str,
        service: &raw::Service,
        mode: Option<ForwardMode>,
    ) -> TrafficPolicy {
        let field = format!("{field}.traffic_policy");
        let Some(text) = &service.traffic_policy else {
            return TrafficPolicy::Cluster;
        };
        match text.value.as_str() {
            "cluster" => return TrafficPolicy::Cluster,
            "local" if mode == Some(ForwardMode::Nat) => self.refuse(
                &field,
                text,
                "nat has no pods of this machine",
                "use traffic_policy: cluster, or mode ipip or l2dsr",
            ),
            "local" => return TrafficPolicy::Local,
            _ => self.refuse(&field, text, "not a traffic policy", "use cluster or local"),
        }
        TrafficPolicy::Cluster
    }

    fn session_affinity(&mut self, field: &str, service: &raw::Service) -> bool {
        let Some(text) = &service.session_affinity else {
            return false;
        };
        match text.value.as_str() {
            "client-ip" => return true,
            "none" => {}
            _ => self.refuse(
                &format!("{field}.session_affinity"),
                text,
                "not a session affinity",
                "use none or client-ip",
            ),
        }
        false
    }

    fn source_ranges(
        &mut self,
        field: &str,
        service: &raw::Service,
        vip: Option<IpAddr>,
    ) -> BTreeSet<IpNet> {
        let mut ranges: BTreeMap<IpNet, Position> = BTreeMap::new();
        let listed = service.source_ranges.iter();
        for (index, text) in listed.flat_map(|listed| &listed.value).enumerate() {
            let field = format!("{field}.source_ranges[{index}]");
            let Some(range) = self.network(&field, text) else {
                continue;
            };
            if let Some(vip) = vip
                && vip.is_ipv4() != range.addr().is_ipv4()
            {
                let reason = format!("no client of the other family reaches {vip}");
                let remedy = "list networks of the address's own family";
                self.refuse(&field, text, reason, remedy);
            }
            match ranges.entry(range) {
                Entry::Vacant(vacant) => drop(vacant.insert(position(text))),
                Entry::Occupied(first) => {
                    let reason = format!("this range is already listed at {}", first.get());
                    self.refuse(&field, text, reason, "list each range once");
                }
            }
        }
        ranges.into_keys().collect()
    }
}

/// Makes a service's NodePort. It has no l2dsr: the frame would carry the edge's own address, and the node
/// would take it for a stranger's.
fn node_port_spec(spec: &ServiceSpec, backends: Vec<BackendSpec>) -> ServiceSpec {
    ServiceSpec {
        mode: match spec.mode {
            ForwardMode::L2dsr => ForwardMode::Ipip,
            mode => mode,
        },
        backends,
        node_port: true,
        ..spec.clone()
    }
}
