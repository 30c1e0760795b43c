//! The rules for services and their backends.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use serde_saphyr::Spanned;
use xdp_prog::maglev::{
    self, Identity, LENGTH_CLASSES, MAX_LOG2_LEN, MaglevError, Member, SLOTS_PER_BACKEND,
};

use super::super::problem::{Position, Problem};
use super::super::{Origins, raw};
use super::Rules;
use super::values::{decimal, position};
use crate::desired::{BackendSpec, ForwardMode, Protocol, Service, ServiceKey, ServiceSpec};

/// Largest weight of one backend; relative shares need no larger numbers.
const MAX_WEIGHT: u32 = 65_535;
/// Longest name of a service: a Kubernetes namespace, a slash and a name fit.
const MAX_NAME: usize = 253;

impl Rules {
    pub(super) fn services(
        &mut self,
        file: &raw::File,
        origins: &Origins,
        default_mode: ForwardMode,
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
            let key = self.service_key(&field, entry, origins, &mut keys);
            let mode = entry.value.mode.as_ref();
            let mode = match mode {
                Some(text) => self.mode(&format!("{field}.mode"), text),
                None => Some(default_mode),
            };
            let slots = entry.value.table_size.as_ref();
            let slots = slots.map(|text| self.table_size(&format!("{field}.table_size"), text));
            let vip = key.map(|key| key.address);
            let backends = self.backends(&field, entry, mode, vip, origins);
            let spec = ServiceSpec {
                mode: mode.unwrap_or(default_mode),
                log2_slots: slots.flatten(),
                backends,
                ..ServiceSpec::default()
            };
            self.backends_fit(&field, entry, &spec, seed);
            let health = entry.value.health.as_ref();
            let health = health
                .map(|block| self.health(&format!("{field}.health"), block, key, &health_defaults));
            if let (Some(name), Some(key), Some(_)) = (name, key, mode) {
                services.insert(key, Service { name, spec, health });
            }
        }
        services
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

    fn service_key(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        origins: &Origins,
        keys: &mut BTreeMap<ServiceKey, Position>,
    ) -> Option<ServiceKey> {
        let address = self.service_address(field, entry, origins);
        let port = self.service_port(field, entry);
        let protocol = self.service_protocol(field, entry);
        let (address, port, protocol) = (address?, port?, protocol?);
        let key = ServiceKey {
            address,
            port,
            protocol,
        };
        match keys.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(position(entry));
                Some(key)
            }
            Entry::Occupied(first) => {
                self.problems.push(Problem {
                    position: Some(position(entry)),
                    field: field.to_owned(),
                    value: key.to_string(),
                    reason: format!(
                        "a service with this address, port and protocol already stands at {}",
                        first.get()
                    ),
                    remedy: "merge the two or change one of them".to_owned(),
                });
                None
            }
        }
    }

    fn service_address(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        origins: &Origins,
    ) -> Option<IpAddr> {
        let field = format!("{field}.address");
        let Some(text) = &entry.value.address else {
            self.missing(
                &field,
                Some(position(entry)),
                "give one of the addresses under vips",
            );
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

    fn service_port(&mut self, field: &str, entry: &Spanned<raw::Service>) -> Option<u16> {
        const REMEDY: &str = "give a port from 1 to 65535";
        let field = format!("{field}.port");
        let Some(text) = &entry.value.port else {
            self.missing(&field, Some(position(entry)), REMEDY);
            return None;
        };
        match decimal::<u16>(&text.value) {
            Some(0) => self.refuse(&field, text, "port 0 is reserved", REMEDY),
            Some(port) => return Some(port),
            None => self.refuse(&field, text, "not a port", REMEDY),
        }
        None
    }

    fn service_protocol(&mut self, field: &str, entry: &Spanned<raw::Service>) -> Option<Protocol> {
        const REMEDY: &str = "use tcp or udp";
        let field = format!("{field}.protocol");
        let Some(text) = &entry.value.protocol else {
            self.missing(&field, Some(position(entry)), REMEDY);
            return None;
        };
        match text.value.as_str() {
            "tcp" => Some(Protocol::Tcp),
            "udp" => Some(Protocol::Udp),
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

    fn backends(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        mode: Option<ForwardMode>,
        vip: Option<IpAddr>,
        origins: &Origins,
    ) -> Vec<BackendSpec> {
        let mut backends = Vec::new();
        let mut seen: BTreeMap<IpAddr, Position> = BTreeMap::new();
        let Some(listed) = &entry.value.backends else {
            self.missing(
                &format!("{field}.backends"),
                Some(position(entry)),
                "list the nodes that serve it; an empty list [] drops its traffic and counts it",
            );
            return backends;
        };
        for (index, backend) in listed.value.iter().enumerate() {
            let field = format!("{field}.backends[{index}]");
            let weight = match &backend.value.weight {
                Some(text) => self.weight(&format!("{field}.weight"), text),
                None => Some(1),
            };
            let field = format!("{field}.address");
            let Some(text) = &backend.value.address else {
                self.missing(
                    &field,
                    Some(position(backend)),
                    "give the address of the node that has the VIP on lo",
                );
                continue;
            };
            let Some(address) = self.address(&field, text) else {
                continue;
            };
            self.backend_fits(&field, text, address, mode, vip, origins);
            match seen.entry(address) {
                Entry::Vacant(vacant) => {
                    vacant.insert(position(text));
                    backends.extend(weight.map(|weight| BackendSpec::node(address, weight)));
                }
                Entry::Occupied(first) => {
                    let reason =
                        format!("this service already has this backend at {}", first.get());
                    let remedy = "list each backend once and use weight for a larger share";
                    self.refuse(&field, text, reason, remedy);
                }
            }
        }
        // A set: the order in the file must not reach a table.
        backends.sort_by_key(|backend| backend.address);
        backends
    }

    fn backend_fits(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        address: IpAddr,
        mode: Option<ForwardMode>,
        vip: Option<IpAddr>,
        origins: &Origins,
    ) {
        if let Some(first) = origins.vips.get(&address) {
            let reason = format!("this address is the VIP at {first}");
            let remedy = "a backend is a node's own address; the VIP goes on the node's lo";
            self.refuse(field, text, reason, remedy);
        }
        if let (Some(ForwardMode::L2dsr), Some(vip)) = (mode, vip)
            && vip.is_ipv4() != address.is_ipv4()
        {
            let family = |address: IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
            self.refuse(
                field,
                text,
                format!(
                    "an {} backend cannot serve the {} VIP {vip} by l2dsr, which keeps the packet",
                    family(address),
                    family(vip)
                ),
                format!("give the node's {} address or set mode: ipip", family(vip)),
            );
        }
    }

    fn weight(&mut self, field: &str, text: &Spanned<String>) -> Option<u32> {
        let remedy = format!("use a weight from 1 to {MAX_WEIGHT}");
        let reason = match decimal::<u128>(&text.value) {
            Some(0) => {
                let remedy = format!("{remedy}; to stop its traffic, remove the backend");
                self.refuse(field, text, "weight 0 gives the backend no slot", remedy);
                return None;
            }
            Some(weight) => match u32::try_from(weight) {
                Ok(weight) if weight <= MAX_WEIGHT => return Some(weight),
                _ => "the weight is too large",
            },
            None => "not a weight",
        };
        self.refuse(field, text, reason, remedy);
        None
    }

    /// Refuses a table in which a backend would have no slot.
    fn backends_fit(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        spec: &ServiceSpec,
        seed: u64,
    ) {
        let backends = spec.backends.len();
        let log2 = log2_slots(spec);
        let slots = 1_usize << log2;
        if backends > slots {
            let (field, at, value) = match &entry.value.table_size {
                Some(text) => (
                    format!("{field}.table_size"),
                    position(text),
                    text.value.clone(),
                ),
                None => (format!("{field}.backends"), position(entry), String::new()),
            };
            self.problems.push(Problem {
                position: Some(at),
                field,
                value,
                reason: format!("{backends} backends need a slot each and the table has {slots}"),
                remedy: "leave table_size out, choose a larger one, or split the service"
                    .to_owned(),
            });
            return;
        }
        let total: u64 = spec
            .backends
            .iter()
            .map(|backend| u64::from(backend.weight))
            .sum();
        let slotless = |backend: &BackendSpec| u64::from(backend.weight) << log2 < total;
        // Only a share below one slot can be rounded to none; then the table itself tells.
        if !spec.backends.iter().any(slotless) {
            return;
        }
        let members: Vec<Member> = spec
            .backends
            .iter()
            .map(|backend| Member {
                identity: Identity::new(backend.address, 0),
                weight: backend.weight,
            })
            .collect();
        if let Err(MaglevError::NoSlot { member }) = maglev::table(seed, &members, log2) {
            let BackendSpec {
                address, weight, ..
            } = spec.backends[member];
            self.problems.push(Problem {
                position: Some(position(entry)),
                field: format!("{field}.backends"),
                value: address.to_string(),
                reason: format!(
                    "weight {weight} of a total of {total} is too small for one of {slots} slots"
                ),
                remedy: "raise it, lower the others, or choose a larger table_size".to_owned(),
            });
        }
    }
}

/// Returns the logarithm of the table size that a service gets.
pub(super) fn log2_slots(spec: &ServiceSpec) -> u8 {
    let backends = u32::try_from(spec.backends.len()).unwrap_or(u32::MAX);
    let by_count = match backends {
        0 => Some(0),
        _ => maglev::class_for(backends, SLOTS_PER_BACKEND),
    };
    spec.log2_slots.or(by_count).unwrap_or(MAX_LOG2_LEN)
}
