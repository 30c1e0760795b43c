//! EndpointSlices as the index keeps them: checked, and in little memory, because a cluster may have 250 000
//! endpoints.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::objects::{self, HEADLESS, ObjectName, SERVICE_NAME, SERVICE_PROXY_NAME, Text};
use super::parse;
use super::problem::{BrokenRule, Findings, quoted};
use super::sorted_vec_map::SortedVecMap;
use crate::desired::{Protocol, unusable};

/// The slices of a Service, by name.
pub(super) type Slices = SortedVecMap<Text, Slice>;

/// What the index keeps of a slice.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) is_ipv4: bool,
    pub(super) ports: Box<[Port]>,
    pub(super) endpoints: Box<[Endpoint]>,
}

/// A port that all endpoints of a slice have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) name: Arc<str>,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) address: IpAddr,
    pub(super) condition: EndpointCondition,
    pub(super) node: Option<Arc<str>>,
    pub(super) hints: Option<Arc<Hints>>,
}

/// What an endpoint may be used for. Of two duplicates the lesser value is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EndpointCondition {
    /// It gets new connections.
    Ready,
    /// It terminates and still serves: it gets new connections only if no endpoint is ready.
    Draining,
    /// It is not chosen. Its own machine still delivers what other machines send to it.
    Unusable,
}

/// The nodes and zones whose clients should use an endpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hints {
    pub(super) nodes: Box<[Arc<str>]>,
    pub(super) zones: Box<[Arc<str>]>,
}

/// Shares the memory of names that many endpoints have.
#[derive(Debug, Default)]
pub(super) struct Names {
    names: HashSet<Arc<str>>,
    /// Number of names at which unused ones are dropped.
    limit: usize,
}

impl Names {
    const FEWEST: usize = 1024;

    pub(super) fn share(&mut self, name: &str) -> Arc<str> {
        if let Some(name) = self.names.get(name) {
            return Arc::clone(name);
        }
        if self.names.len() >= self.limit.max(Self::FEWEST) {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.limit = self.names.len() * 2;
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
    }
}

/// Returns the Service of a slice; `None` if another proxy handles it or it names none.
pub(super) fn service_of(
    slice: &objects::EndpointSlice,
    findings: &mut Findings,
) -> Option<ObjectName> {
    let has = |label: &str| slice.labels.contains_key(label);
    if has(SERVICE_PROXY_NAME) || has(HEADLESS) {
        return None;
    }
    match slice.labels.get(SERVICE_NAME) {
        Some(service) if !service.is_empty() => {
            Some(ObjectName::new(slice.name.namespace.clone(), service))
        }
        _ => {
            findings.add(
                BrokenRule::NoServiceName,
                format_args!("without the label {SERVICE_NAME} it belongs to no Service"),
                "label it with the name of its Service",
            );
            None
        }
    }
}

/// Reads a slice. Invalid parts are left out and reported.
pub(super) fn read(
    slice: &objects::EndpointSlice,
    names: &mut Names,
    findings: &mut Findings,
) -> Slice {
    let is_ipv4 = match slice.address_type.as_str() {
        "IPv4" => true,
        "IPv6" => false,
        "FQDN" => return Slice::default(),
        other => {
            findings.add(
                BrokenRule::InvalidAddress,
                format_args!("addresses of type {} are not balanced", quoted(other)),
                "use addressType IPv4 or IPv6",
            );
            return Slice::default();
        }
    };
    let ports = slice.ports.iter();
    let ports = ports.filter_map(|port| read_port(port, names, findings));
    let ports = ports.collect();
    let endpoints = slice.endpoints.iter();
    let endpoints = endpoints.filter_map(|endpoint| {
        let address = read_address(endpoint, is_ipv4, findings)?;
        Some(Endpoint {
            address,
            condition: condition(endpoint),
            node: endpoint
                .node_name
                .as_ref()
                .filter(|name| !name.is_empty())
                .map(|name| names.share(name)),
            hints: hints(endpoint, names),
        })
    });
    Slice {
        is_ipv4,
        ports,
        endpoints: endpoints.collect(),
    }
}

fn read_port(
    port: &objects::EndpointPort,
    names: &mut Names,
    findings: &mut Findings,
) -> Option<Port> {
    let number = port.port.and_then(|port| u16::try_from(port).ok());
    let (Some(name), Some(number @ 1..)) = (&port.name, number) else {
        let name = quoted(port.name.as_deref().unwrap_or("(none)"));
        let number = port.port.map_or("none".to_owned(), |port| port.to_string());
        findings.add(
            BrokenRule::InvalidPort,
            format_args!("port {number} of name {name} is not balanced"),
            "give it a name, which may be empty, and a number from 1 to 65535",
        );
        return None;
    };
    Some(Port {
        name: names.share(name),
        protocol: protocol(port.protocol.as_deref(), findings)?,
        port: number,
    })
}

/// Reads a protocol; absent or empty means TCP.
pub(super) fn protocol(text: Option<&str>, findings: &mut Findings) -> Option<Protocol> {
    match text {
        None | Some("" | "TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(other) => {
            findings.add(
                BrokenRule::InvalidProtocol,
                format_args!("protocol {} is not balanced", quoted(other)),
                "use TCP, UDP or SCTP",
            );
            None
        }
    }
}

fn read_address(
    endpoint: &objects::Endpoint,
    is_ipv4: bool,
    findings: &mut Findings,
) -> Option<IpAddr> {
    let text = endpoint.addresses.first().map_or("", String::as_str);
    let Some(address) = parse::address(text) else {
        findings.add(
            BrokenRule::InvalidAddress,
            format_args!("endpoint {} has no address", quoted(text)),
            "give it one IP address",
        );
        return None;
    };
    if let Some(reason) = unusable(address) {
        findings.add(
            BrokenRule::InvalidAddress,
            format_args!("endpoint {address} gets no traffic: {reason}"),
            "give it an address that packets can be routed to",
        );
        return None;
    }
    if address.is_ipv4() != is_ipv4 {
        findings.add(
            BrokenRule::OtherFamily,
            format_args!(
                "endpoint {address} gets no traffic: it is not of the slice's addressType"
            ),
            "put it into a slice of its own family",
        );
        return None;
    }
    Some(address)
}

fn condition(endpoint: &objects::Endpoint) -> EndpointCondition {
    let is_serving = endpoint.serving.unwrap_or(true);
    let is_terminating = endpoint.terminating.unwrap_or(false);
    if endpoint.ready.unwrap_or(true) {
        EndpointCondition::Ready
    } else if is_serving && is_terminating {
        EndpointCondition::Draining
    } else {
        EndpointCondition::Unusable
    }
}

fn hints(endpoint: &objects::Endpoint, names: &mut Names) -> Option<Arc<Hints>> {
    if endpoint.for_nodes.is_empty() && endpoint.for_zones.is_empty() {
        return None;
    }
    let mut share = |list: &[String]| list.iter().map(|name| names.share(name)).collect();
    Some(Arc::new(Hints {
        nodes: share(&endpoint.for_nodes),
        zones: share(&endpoint.for_zones),
    }))
}
