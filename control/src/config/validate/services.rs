//! The rules for services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde_saphyr::Spanned;
use xdp_prog::maglev::LENGTH_CLASSES;

use super::super::problem::Position;
use super::backends::Shape;
use super::nodes::node_port;
use super::values::{self, Refusal, decimal, refusal, word};
use super::{HealthDefaults, Rules, entries, note, position, raw};
use crate::desired::{
    BackendSpec, ForwardMode, Protocol, Service, ServiceKey, ServiceSpec, TrafficPolicy,
    affinity_seed, owner,
};

/// Longest name of a service, in bytes: a Kubernetes namespace, a slash and a name fit.
const MAX_NAME: usize = 253;

impl Rules {
    pub(super) fn services(
        &mut self,
        file: &raw::File,
        nodes: &BTreeSet<IpAddr>,
        default_mode: ForwardMode,
        health_defaults: &HealthDefaults,
        node_ports: &RangeInclusive<u16>,
        seed: u64,
    ) -> BTreeMap<ServiceKey, Service> {
        let mut services = BTreeMap::new();
        let mut names = BTreeMap::new();
        let mut keys = BTreeMap::new();
        for (index, (field, entry)) in entries("services", &file.services).enumerate() {
            let at = |name: &str| format!("{field}.{name}");
            let service = &entry.value;
            let name = self.service_name(&at("name"), entry, &mut names);
            let port = |text: &str| node_port(text, node_ports);
            let node_port = self.read(&at("node_port"), &service.node_port, port);
            let mode = match &service.mode {
                Some(text) => self.read(&at("mode"), text, values::mode),
                None => Some(default_mode),
            };
            let policy = |text: &str| traffic_policy(text, mode);
            let policy = self.read(&at("traffic_policy"), &service.traffic_policy, policy);
            let protocols = "use tcp, udp or sctp";
            let shape = Shape {
                address: self.service_address(&at("address"), entry),
                port: self.service_port(&at("port"), entry),
                node_port,
                protocol: self.required(
                    &at("protocol"),
                    entry,
                    &service.protocol,
                    protocols,
                    protocol,
                ),
                mode,
                traffic_policy: policy.unwrap_or(TrafficPolicy::Cluster),
                nodes,
            };
            let affinity = &service.session_affinity;
            let affinity = self.read(&at("session_affinity"), affinity, |text| {
                let words = [("none", false), ("client-ip", true)];
                word(text, &words, "not a session affinity")
            });
            let seconds = |text: &str| affinity_seconds(text, affinity == Some(true));
            let seconds = self.read(
                &at("session_affinity_seconds"),
                &service.session_affinity_seconds,
                seconds,
            );
            let affinity = name.as_ref().filter(|_| affinity == Some(true));
            let spec = ServiceSpec {
                owner: name.as_deref().map_or(0, owner),
                mode: mode.unwrap_or(default_mode),
                log2_slots: self.read(&at("table_size"), &service.table_size, log2_slots),
                backends: self.backends(&at("backends"), entry, &shape),
                traffic_policy: shape.traffic_policy,
                source_ranges: self.source_ranges(&at("source_ranges"), service, shape.address),
                affinity: affinity.map(|name| affinity_seed(seed, name)),
                affinity_seconds: seconds,
                node_port: false,
                hinted: false,
            };
            self.backends_fit(&field, entry, &spec, seed);
            let mut specs = by_key(&shape, &spec);
            specs.retain(|(key, _)| self.is_new(&field, entry, *key, &mut keys));
            let health = service.health.as_ref().map(|block| {
                let key = specs.first().map(|(key, _)| *key);
                self.health(&at("health"), block, key, health_defaults)
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

    fn service_name(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        names: &mut BTreeMap<String, Position>,
    ) -> Option<String> {
        let text = &entry.value.name;
        let remedy = "give the service a name";
        let name = self.required(field, entry, text, remedy, service_name)?;
        let text = text.as_ref()?;
        if let Err(first) = note(names, name.clone(), position(text)) {
            let reason = format!("a service of this name already stands at {first}");
            let refusal = refusal(reason, "give every service its own name");
            self.refuse(field, text, refusal);
            return None;
        }
        Some(name)
    }

    /// Reports a key that another service has already.
    fn is_new(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        key: ServiceKey,
        keys: &mut BTreeMap<ServiceKey, Position>,
    ) -> bool {
        let Err(first) = note(keys, key, position(entry)) else {
            return true;
        };
        let (value, what) = if key.address.is_unspecified() {
            let value = format!("{}/{}", key.port, key.protocol);
            (value, "NodePort and protocol")
        } else {
            (key.to_string(), "address, port and protocol")
        };
        let reason = format!("a service with this {what} already stands at {first}");
        let refusal = refusal(reason, "merge the two or change one of them");
        self.report(Some(position(entry)), field, &value, refusal);
        false
    }

    /// Reads a service's address. Only a service with a NodePort may have none.
    fn service_address(&mut self, field: &str, entry: &Spanned<raw::Service>) -> Option<IpAddr> {
        let service = &entry.value;
        if service.address.is_none() && service.node_port.is_none() {
            let remedy = "give one of the addresses under vips, or a node_port";
            self.missing(field, Some(position(entry)), remedy);
        }
        let address = self.read(field, &service.address, values::address)?;
        if self.origins.vips.contains_key(&address) {
            return Some(address);
        }
        let remedy = format!("add {address} to vips or use one of them");
        let refusal = refusal("this address is not among vips", remedy);
        self.refuse(field, service.address.as_ref()?, refusal);
        None
    }

    /// Reads a service's port. It may be absent only if there is a NodePort and no address.
    fn service_port(&mut self, field: &str, entry: &Spanned<raw::Service>) -> Option<u16> {
        let service = &entry.value;
        let is_wanted = service.address.is_some() || service.node_port.is_none();
        if service.port.is_none() && is_wanted {
            let at = Some(position(entry));
            self.missing(field, at, "give a port from 1 to 65535");
        }
        self.read(field, &service.port, values::traffic_port)
    }

    fn source_ranges(
        &mut self,
        field: &str,
        service: &raw::Service,
        vip: Option<IpAddr>,
    ) -> BTreeSet<IpNet> {
        let mut ranges = BTreeMap::new();
        for (field, text) in entries(field, &service.source_ranges) {
            let Some(range) = self.read(&field, text, values::network) else {
                continue;
            };
            if let Some(vip) = vip
                && vip.is_ipv4() != range.addr().is_ipv4()
            {
                let reason = format!("no client of the other family reaches {vip}");
                let remedy = "list networks of the address's own family";
                self.refuse(&field, text, refusal(reason, remedy));
            }
            self.is_first(&mut ranges, range, &field, text, "range");
        }
        ranges.into_keys().collect()
    }
}

fn service_name(text: &str) -> Result<String, Refusal> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_allowed) {
        return Ok(text.to_owned());
    }
    let remedy = format!("use 1 to {MAX_NAME} letters, digits, '-', '_', '.' or '/'");
    Err(refusal("not a service name", remedy))
}

fn protocol(text: &str) -> Result<Protocol, Refusal> {
    let protocols = [
        ("tcp", Protocol::Tcp),
        ("udp", Protocol::Udp),
        ("sctp", Protocol::Sctp),
    ];
    word(text, &protocols, "not a protocol that is balanced")
}

fn traffic_policy(text: &str, mode: Option<ForwardMode>) -> Result<TrafficPolicy, Refusal> {
    let policies = [
        ("cluster", TrafficPolicy::Cluster),
        ("local", TrafficPolicy::Local),
    ];
    let policy = word(text, &policies, "not a traffic policy")?;
    if policy == TrafficPolicy::Local && mode == Some(ForwardMode::Nat) {
        let remedy = "use traffic_policy: cluster, or mode ipip or l2dsr";
        return Err(refusal("nat has no pods of this machine", remedy));
    }
    Ok(policy)
}

/// Reads the number of slots of a lookup table. Returns its binary logarithm.
fn log2_slots(text: &str) -> Result<u8, Refusal> {
    let size = decimal::<u32>(text);
    let mut classes = LENGTH_CLASSES.into_iter();
    let class = classes.find(|log2| size == Some(1 << log2));
    class.ok_or_else(|| {
        let sizes = LENGTH_CLASSES.map(|log2| (1_u32 << log2).to_string());
        let sizes = sizes.join(", ");
        let remedy = format!("use one of {sizes}, or leave the field out to have it chosen");
        refusal("not a table size", remedy)
    })
}

/// Reads how long a client keeps its backend, in the bounds that Kubernetes has.
fn affinity_seconds(text: &str, has_affinity: bool) -> Result<u32, Refusal> {
    const MOST: u32 = 86_400;
    if !has_affinity {
        let remedy = "write session_affinity: client-ip, or leave the field out";
        return Err(refusal("of a service without affinity", remedy));
    }
    let seconds = decimal(text).filter(|seconds| (1..=MOST).contains(seconds));
    seconds.ok_or_else(|| {
        refusal(
            "not a number of seconds",
            format!("use 1 to {MOST}, or leave the field out for 10800"),
        )
    })
}

/// Returns one service for the address and one for the NodePort, which has the unspecified address.
fn by_key(shape: &Shape<'_>, spec: &ServiceSpec) -> Vec<(ServiceKey, ServiceSpec)> {
    let Some(protocol) = shape.protocol else {
        return Vec::new();
    };
    let mut specs = Vec::new();
    let mut add = |address, port, spec| {
        let key = ServiceKey {
            address,
            port,
            protocol,
        };
        specs.push((key, spec));
    };
    if let (Some(address), Some(port)) = (shape.address, shape.port) {
        add(address, port, spec.clone());
    }
    let unspecified = [
        IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Ipv6Addr::UNSPECIFIED.into(),
    ];
    for any in unspecified {
        let Some(port) = shape.node_port else {
            break;
        };
        let of_family = |address: IpAddr| address.is_ipv4() == any.is_ipv4();
        let mut backends = spec.backends.clone();
        backends.retain(|backend| backend.pod.is_some_and(|pod| of_family(pod.ip())));
        let is_wanted = match shape.address {
            Some(address) => of_family(address),
            None => spec.backends.is_empty() || !backends.is_empty(),
        };
        if is_wanted {
            add(any, port, node_port_spec(spec, backends));
        }
    }
    specs
}

/// Returns the service of a NodePort. L2 DSR becomes IPIP: the frame would carry the edge's own address, which
/// the node would not accept as its own.
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
