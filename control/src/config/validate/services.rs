//! The rules for services and their backends.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use serde_saphyr::Spanned;

use super::super::problem::{Position, Problem};
use super::super::{Origins, raw};
use super::Rules;
use super::values::{decimal, position};
use crate::desired::{BackendSpec, ForwardMode, Protocol, Service, ServiceKey, ServiceSpec};

/// Logarithms of the table sizes that `table_size` may ask for.
const TABLE_CLASSES: [u8; 6] = [0, 8, 11, 14, 17, 20];
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
    ) -> BTreeMap<ServiceKey, Service> {
        let mut services = BTreeMap::new();
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
            self.backends_fit(&field, entry, slots.flatten(), backends.len());
            if let (Some(name), Some(key), Some(mode)) = (name, key, mode) {
                let spec = ServiceSpec {
                    mode,
                    log2_slots: slots.flatten(),
                    backends,
                };
                services.insert(key, Service { name, spec });
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
            TABLE_CLASSES
                .into_iter()
                .find(|&log2| 1_u32 << log2 == size)
        });
        if class.is_none() {
            let sizes = TABLE_CLASSES.map(|log2| (1_u32 << log2).to_string());
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
                    backends.extend(weight.map(|weight| BackendSpec { address, weight }));
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

    fn backends_fit(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        slots: Option<u8>,
        backends: usize,
    ) {
        let largest = TABLE_CLASSES[TABLE_CLASSES.len() - 1];
        let slots = 1_usize << slots.unwrap_or(largest);
        if backends <= slots {
            return;
        }
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
            remedy: "leave table_size out, choose a larger one, or split the service".to_owned(),
        });
    }
}
