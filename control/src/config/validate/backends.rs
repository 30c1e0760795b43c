//! The rules for the backends of a service.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_saphyr::Spanned;
use xdp_prog::maglev::{self, MAX_LOG2_LEN, MaglevError, Member};

use super::super::problem::{Position, Problem};
use super::super::{Origins, raw};
use super::Rules;
use super::values::{decimal, position};
use crate::desired::{BackendSpec, ForwardMode, Protocol, ServiceSpec, TrafficPolicy};

/// Largest weight of one backend; relative shares need no larger numbers.
const MAX_WEIGHT: u32 = 65_535;

/// What a service says that its backends must fit; nothing where that is wrong or missing.
pub(super) struct Shape<'a> {
    pub(super) address: Option<IpAddr>,
    pub(super) port: Option<u16>,
    pub(super) node_port: Option<u16>,
    pub(super) protocol: Option<Protocol>,
    pub(super) mode: Option<ForwardMode>,
    pub(super) traffic_policy: TrafficPolicy,
    /// Machines that run Guideway.
    pub(super) nodes: &'a BTreeSet<IpAddr>,
    pub(super) origins: &'a Origins,
}

impl Rules {
    pub(super) fn backends(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        shape: &Shape<'_>,
    ) -> Vec<BackendSpec> {
        let mut backends = Vec::new();
        let mut seen: BTreeMap<SocketAddr, Position> = BTreeMap::new();
        let Some(listed) = &entry.value.backends else {
            self.missing(
                &format!("{field}.backends"),
                Some(position(entry)),
                "list the pods, nodes or NAT backends that serve it; an empty list [] rejects its traffic",
            );
            return backends;
        };
        for (index, backend) in listed.value.iter().enumerate() {
            let field = format!("{field}.backends[{index}]");
            let weight = match &backend.value.weight {
                Some(text) => self.weight(&format!("{field}.weight"), text),
                None => Some(1),
            };
            let port = match &backend.value.port {
                Some(text) => match self.traffic_port(&format!("{field}.port"), text) {
                    Some(port) => Some(port),
                    None => continue,
                },
                None => shape.port,
            };
            let Some(text) = &backend.value.address else {
                self.missing(
                    &format!("{field}.address"),
                    Some(position(backend)),
                    "give the address of the pod, or of the node that has the VIP on lo",
                );
                continue;
            };
            let Some(address) = self.address(&format!("{field}.address"), text) else {
                continue;
            };
            let Some(spec) = self.backend(&field, backend, text, address, port, shape) else {
                continue;
            };
            let identity = spec.pod.unwrap_or(SocketAddr::new(address, 0));
            match seen.entry(identity) {
                Entry::Vacant(vacant) => {
                    vacant.insert(position(text));
                    backends.extend(weight.map(|weight| BackendSpec { weight, ..spec }));
                }
                Entry::Occupied(first) => {
                    let reason =
                        format!("this service already has this backend at {}", first.get());
                    let remedy = "list each backend once and use weight for a larger share";
                    self.refuse(&format!("{field}.address"), text, reason, remedy);
                }
            }
        }
        // A set: the order in the file must not reach a table.
        backends.sort_unstable();
        backends
    }

    /// Takes one backend; its weight is left to the caller.
    fn backend(
        &mut self,
        field: &str,
        backend: &Spanned<raw::Backend>,
        text: &Spanned<String>,
        address: IpAddr,
        port: Option<u16>,
        shape: &Shape<'_>,
    ) -> Option<BackendSpec> {
        let address_field = format!("{field}.address");
        if let Some(first) = shape.origins.vips.get(&address) {
            let reason = format!("this address is the VIP at {first}");
            let remedy = "a backend is a node's own address; the VIP goes on the node's lo";
            self.refuse(&address_field, text, reason, remedy);
            return None;
        }
        let by_nat = shape.mode == Some(ForwardMode::Nat);
        let node = backend.value.node.as_ref();
        let node = match node {
            Some(text) if by_nat => {
                self.refuse(
                    &format!("{field}.node"),
                    text,
                    "nat sends to the backend's own address",
                    "leave node out, or use mode ipip or l2dsr",
                );
                return None;
            }
            Some(text) => Some(self.node_of(&format!("{field}.node"), text, shape)?),
            None => None,
        };
        if !by_nat && node.is_none() {
            return self.plain(field, backend, text, address, shape);
        }
        let Some(port) = port else {
            // A port of the service that is wrong has been reported.
            if shape.node_port.is_some() {
                let remedy = "give the port that the backend listens on";
                self.missing(&format!("{field}.port"), Some(position(backend)), remedy);
            }
            return None;
        };
        if let Some(vip) = shape.address
            && vip.is_ipv4() != address.is_ipv4()
        {
            let (own, wanted) = (family(address), family(vip));
            self.refuse(
                &address_field,
                text,
                format!(
                    "an {own} backend cannot serve the {wanted} VIP {vip}: addresses are \
                     translated within a family"
                ),
                format!("give its {wanted} address"),
            );
            return None;
        }
        let service_port = shape.node_port.or(shape.port);
        if shape.protocol == Some(Protocol::Sctp)
            && let Some(wanted) = service_port.filter(|wanted| *wanted != port)
        {
            self.problems.push(Problem {
                position: Some(position(backend.value.port.as_ref().unwrap_or(text))),
                field: format!("{field}.port"),
                value: port.to_string(),
                reason: format!("SCTP's ports are never translated and the service's is {wanted}"),
                remedy: "use one port for the service, its node_port and its backends".to_owned(),
            });
            return None;
        }
        let pod = SocketAddr::new(address, port);
        Some(match node {
            Some(node) => BackendSpec::pod(node, pod, 1),
            None => BackendSpec::nat(pod, 1),
        })
    }

    /// Takes a backend that has the VIP on `lo`.
    fn plain(
        &mut self,
        field: &str,
        backend: &Spanned<raw::Backend>,
        text: &Spanned<String>,
        address: IpAddr,
        shape: &Shape<'_>,
    ) -> Option<BackendSpec> {
        const REMEDY: &str = "give the node that the backend is a pod of, or set mode: nat";
        let address_field = format!("{field}.address");
        if let Some(port) = &backend.value.port {
            self.refuse(
                &format!("{field}.port"),
                port,
                "a backend that has the VIP on lo takes packets as they are, on the service's port",
                REMEDY,
            );
            return None;
        }
        if shape.node_port.is_some() {
            self.refuse(
                &address_field,
                text,
                "no other machine can take packets to a NodePort as they are",
                REMEDY,
            );
            return None;
        }
        if shape.traffic_policy == TrafficPolicy::Local {
            self.refuse(
                &address_field,
                text,
                "with traffic_policy: local every backend is a pod",
                "give the node that the backend is a pod of, or use traffic_policy: cluster",
            );
            return None;
        }
        if let (Some(ForwardMode::L2dsr), Some(vip)) = (shape.mode, shape.address)
            && vip.is_ipv4() != address.is_ipv4()
        {
            let (own, wanted) = (family(address), family(vip));
            self.refuse(
                &address_field,
                text,
                format!(
                    "an {own} backend cannot serve the {wanted} VIP {vip} by l2dsr, which keeps \
                     the packet"
                ),
                format!("give the node's {wanted} address or set mode: ipip"),
            );
            return None;
        }
        Some(BackendSpec::node(address, 1))
    }

    /// Takes the node of a pod.
    fn node_of(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        shape: &Shape<'_>,
    ) -> Option<IpAddr> {
        let node = self.address(field, text)?;
        if shape.nodes.contains(&node) {
            return Some(node);
        }
        match shape.origins.nodes.get(&node) {
            Some(first) => self.refuse(
                field,
                text,
                format!("the node at {first} does not run Guideway, which hands packets to pods"),
                "set mode: nat and leave node out",
            ),
            None => self.refuse(
                field,
                text,
                "this address is not among nodes",
                format!("add {node} to nodes or use one of them"),
            ),
        }
        None
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
    pub(super) fn backends_fit(
        &mut self,
        field: &str,
        entry: &Spanned<raw::Service>,
        spec: &ServiceSpec,
        seed: u64,
    ) {
        let backends = spec.backends.len();
        let log2 = spec.log2_slots_for(backends).unwrap_or(MAX_LOG2_LEN);
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
        let members: Vec<Member> = spec.backends.iter().map(BackendSpec::member).collect();
        if let Err(MaglevError::NoSlot { member }) = maglev::table(seed, &members, log2) {
            let backend = spec.backends[member];
            let weight = backend.weight;
            self.problems.push(Problem {
                position: Some(position(entry)),
                field: format!("{field}.backends"),
                value: backend.key(spec.mode).to_string(),
                reason: format!(
                    "weight {weight} of a total of {total} is too small for one of {slots} slots"
                ),
                remedy: "raise it, lower the others, or choose a larger table_size".to_owned(),
            });
        }
    }
}

const fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}
