//! Reads one Service: the ports and addresses that are captured here, and the rules for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use xdp_prog::maglev::LENGTH_CLASSES;

use super::machines::Machines;
use super::objects::{self, HEADLESS, MODE, SERVICE_PROXY_NAME, TABLE_SIZE, Text};
use super::problem::{BrokenRule, Findings, quoted};
use super::slice::protocol;
use super::{Options, parse};
use crate::desired::{ForwardMode, Protocol, unusable};

/// The longest table that an annotation gets, as a power of two. Anyone who may write a Service can ask for a
/// length, and all tables share one arena: a dozen ports of the greatest length would fill it.
pub(super) const MOST_ASKED: u8 = 14;

/// A Service of which something is captured.
#[derive(Debug)]
pub(super) struct CapturedService {
    pub(super) ports: Vec<Port>,
    /// Whether the Service has a cluster address of each family: IPv4, then IPv6.
    pub(super) families: [bool; 2],
    /// Addresses that a controller assigned, for our class.
    pub(super) load_balancer: BTreeSet<IpAddr>,
    /// External addresses, which the owner of the Service routes to the edges.
    pub(super) external: BTreeSet<IpAddr>,
    /// External addresses that machines have. They are not served: anyone who may write a Service could
    /// otherwise take over a machine's port.
    pub(super) of_machines: BTreeSet<IpAddr>,
    /// Clients admitted at the load-balancer addresses; empty for all.
    pub(super) source_ranges: BTreeSet<IpNet>,
    pub(super) only_local: bool,
    pub(super) affinity: bool,
    /// How long a client keeps its pod, in seconds.
    pub(super) affinity_seconds: Option<u32>,
    pub(super) mode: ForwardMode,
    pub(super) log2_slots: Option<u8>,
    /// The `healthCheckNodePort`, where the number of local endpoints is reported.
    pub(super) health_check_port: Option<u16>,
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) protocol: Protocol,
    pub(super) number: u16,
    pub(super) node_port: Option<u16>,
}

/// Reads a Service. Invalid parts are left out and reported. Returns `None` if nothing is captured.
pub(super) fn read(
    service: &objects::Service,
    options: &Options,
    machines: &Machines,
    findings: &mut Findings,
) -> Option<CapturedService> {
    let families = families(service)?;
    let is_load_balancer = service.kind.as_deref() == Some("LoadBalancer");
    let has_family = |address: &IpAddr| families[usize::from(address.is_ipv6())];
    let mut addresses = Addresses {
        findings,
        has_family: &has_family,
    };
    let mut load_balancer = BTreeSet::new();
    if is_load_balancer && is_ours(service, options) {
        let captured = |mode: Option<&str>| matches!(mode, None | Some("" | "VIP"));
        let ingress = service.ingress.iter();
        let ingress = ingress.filter(|ingress| captured(ingress.ip_mode.as_deref()));
        let texts = ingress.filter_map(|ingress| ingress.ip.as_deref());
        load_balancer = addresses.read(texts.filter(|text| !text.is_empty()));
    }
    let mut external = BTreeSet::new();
    if !options.external_ips.is_empty() {
        external = addresses.read(service.external_ips.iter().map(Text::as_str));
        external.retain(|address| is_allowed(*address, options, findings));
        // An address that is both assigned and external follows the load balancer's rules.
        external.retain(|address| !load_balancer.contains(address));
    }
    let mut source_ranges = BTreeSet::new();
    if !load_balancer.is_empty() {
        let (ranges, any_good) = read_ranges(service, findings);
        source_ranges = ranges;
        // Ranges were given but none can be read: nobody knows who may come in, so nobody may.
        if !any_good {
            load_balancer.clear();
        }
    }
    let (of_machines, external): (BTreeSet<_>, BTreeSet<_>) = external
        .into_iter()
        .partition(|address| machines.has(*address));
    for (addresses, so) in [(&load_balancer, ONLY_PORTS), (&of_machines, NOT_SERVED)] {
        for address in addresses.iter().filter(|address| machines.has(**address)) {
            if machines.is_only_here(*address) {
                findings.add_here(
                    BrokenRule::AddressIsNode,
                    format_args!("{address} belongs to an interface of this machine: {so}"),
                    FREE_ADDRESS,
                );
            } else if so == NOT_SERVED || machines.withholds(*address) {
                name_machine(*address, so, findings);
            } else {
                name_claim(*address, findings);
            }
        }
    }
    let is_local = matches!(service.external_traffic_policy.as_deref(), Some("Local"));
    let health_check_port = service
        .health_check_node_port
        .filter(|_| is_load_balancer && is_local)
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0);
    let has_node_port = |port: &objects::ServicePort| port.node_port.is_some_and(|port| port != 0);
    if load_balancer.is_empty()
        && external.is_empty()
        && of_machines.is_empty()
        && health_check_port.is_none()
        && !service.ports.iter().any(has_node_port)
    {
        return None;
    }
    Some(CapturedService {
        ports: read_ports(service, findings),
        families,
        load_balancer,
        external,
        of_machines,
        source_ranges,
        only_local: is_one_of(
            "externalTrafficPolicy",
            service.external_traffic_policy.as_deref(),
            ["Cluster", "Local"],
            findings,
        ),
        affinity: is_one_of(
            "sessionAffinity",
            service.session_affinity.as_deref(),
            ["None", "ClientIP"],
            findings,
        ),
        affinity_seconds: service
            .affinity_seconds
            .and_then(|seconds| u32::try_from(seconds).ok()),
        mode: read_mode(service, findings).unwrap_or(options.default_mode),
        log2_slots: read_table_size(service, findings),
        health_check_port,
    })
}

const FREE_ADDRESS: &str = "give the Service an address that no machine has";

/// Consequence for an assigned address that this machine has.
const ONLY_PORTS: &str = "the Service's ports are served there, everything else passes";
/// Consequence for an external address that any machine has.
pub(super) const NOT_SERVED: &str = "it is not served";

/// Reports that, according to Node or slice objects, a machine has an address; `so` is the consequence.
pub(super) fn name_machine(address: IpAddr, so: &str, findings: &mut Findings) {
    findings.add(
        BrokenRule::AddressIsNode,
        format_args!("{address} belongs to a machine: {so}"),
        FREE_ADDRESS,
    );
}

/// Reports that, according to Node or slice objects, a machine has claimed an assigned address.
pub(super) fn name_claim(address: IpAddr, findings: &mut Findings) {
    findings.add(
        BrokenRule::AddressClaimed,
        format_args!(
                "{address} is an address of a machine too, which came to have it later: the Service keeps it"
            ),
        "take the address from the machine, or give the Service another one",
    );
}

/// Returns the address families of a Service's cluster addresses; `None` for a Service that has none or that
/// another proxy handles.
fn families(service: &objects::Service) -> Option<[bool; 2]> {
    let is_ignored = [SERVICE_PROXY_NAME, HEADLESS]
        .iter()
        .any(|label| service.labels.contains_key(*label));
    let kind = service.kind.as_deref();
    let first = service.cluster_ips.first().map_or("", Text::as_str);
    if is_ignored || kind == Some("ExternalName") || matches!(first, "" | "None") {
        return None;
    }
    let addresses = service.cluster_ips.iter();
    let addresses: Vec<IpAddr> = addresses.filter_map(|text| parse::address(text)).collect();
    let of = |is_ipv4| addresses.iter().any(|address| address.is_ipv4() == is_ipv4);
    Some([of(true), of(false)])
}

/// Returns whether the addresses in a Service's status are of our class. Another class has its own
/// implementation, which may expect the packets.
fn is_ours(service: &objects::Service, options: &Options) -> bool {
    match service.load_balancer_class.as_deref() {
        Some(class) => class == options.load_balancer_class,
        None => options.serve_unset_class,
    }
}

/// Reads addresses that may become virtual ones.
struct Addresses<'a> {
    findings: &'a mut Findings,
    has_family: &'a dyn Fn(&IpAddr) -> bool,
}

impl Addresses<'_> {
    fn read<'t>(&mut self, texts: impl Iterator<Item = &'t str>) -> BTreeSet<IpAddr> {
        texts.filter_map(|text| self.read_one(text)).collect()
    }

    fn read_one(&mut self, text: &str) -> Option<IpAddr> {
        let Some(address) = parse::address(text) else {
            self.findings.add(
                BrokenRule::InvalidAddress,
                format_args!("{} is no address", quoted(text)),
                "give an IP address",
            );
            return None;
        };
        if let Some(reason) = unusable(address) {
            self.findings.add(
                BrokenRule::InvalidAddress,
                format_args!("{address} is not served: {reason}"),
                "give a unicast address",
            );
            return None;
        }
        if !(self.has_family)(&address) {
            self.findings.add(
                BrokenRule::OtherFamily,
                format_args!(
                    "{address} is not served: the Service has no cluster address of its family"
                ),
                "add the family to ipFamilies, or take the address away",
            );
            return None;
        }
        Some(address)
    }
}

fn is_allowed(address: IpAddr, options: &Options, findings: &mut Findings) -> bool {
    let is_allowed = options
        .external_ips
        .iter()
        .any(|net| net.contains(&address));
    if !is_allowed {
        findings.add(
            BrokenRule::ExternalAddressNotAllowed,
            format_args!(
                "the external address {address} is outside the networks that may be served"
            ),
            "take it away, or add its network to kubernetes.external_ips",
        );
    }
    is_allowed
}

/// Reads the source ranges. The flag is false if there are ranges but none can be read.
fn read_ranges(service: &objects::Service, findings: &mut Findings) -> (BTreeSet<IpNet>, bool) {
    let mut ranges = BTreeSet::new();
    for text in &service.source_ranges {
        match parse::network(text) {
            Some(range) => drop(ranges.insert(range)),
            None => findings.add(
                BrokenRule::InvalidSourceRange,
                format_args!("source range {} admits nobody", quoted(text)),
                "write it like 192.0.2.0/24 or 2001:db8::/64",
            ),
        }
    }
    let any_good = service.source_ranges.is_empty() || !ranges.is_empty();
    (ranges, any_good)
}

/// Reads the ports. Of two with the same name or number the first one stays.
fn read_ports(service: &objects::Service, findings: &mut Findings) -> Vec<Port> {
    let mut ports: Vec<Port> = Vec::new();
    let mut names = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    let mut node_ports: BTreeMap<(u16, Protocol), ()> = BTreeMap::new();
    for port in &service.ports {
        let name = port.name.as_deref().unwrap_or("");
        let Some(protocol) = protocol(port.protocol.as_deref(), findings) else {
            continue;
        };
        let Ok(number @ 1..) = u16::try_from(port.port) else {
            findings.add(
                BrokenRule::InvalidPort,
                format_args!("{} is no port", port.port),
                "use a port from 1 to 65535",
            );
            continue;
        };
        if !names.insert(name) || !numbers.insert((number, protocol)) {
            findings.add(
                BrokenRule::DuplicatePort,
                format_args!(
                    "port {number}/{protocol} of name {} is there twice",
                    quoted(name)
                ),
                "give each port a name, and a number and protocol, of its own",
            );
            continue;
        }
        let node_port = port.node_port.filter(|port| *port != 0);
        let node_port = node_port.and_then(|node_port| {
            let number = u16::try_from(node_port).ok().filter(|port| *port != 0);
            let is_free =
                number.is_some_and(|port| node_ports.insert((port, protocol), ()).is_none());
            if !is_free {
                findings.add(
                    BrokenRule::InvalidPort,
                    format_args!("nodePort {node_port}/{protocol} is no port, or is there twice"),
                    "use a port of the range of node ports for each port and protocol",
                );
            }
            number.filter(|_| is_free)
        });
        ports.push(Port {
            name: name.to_owned(),
            protocol,
            number,
            node_port,
        });
    }
    ports
}

/// Reads a choice of two words; absent means the first. Returns whether it is the second.
fn is_one_of(
    field: &str,
    text: Option<&str>,
    [default, other]: [&str; 2],
    findings: &mut Findings,
) -> bool {
    match text {
        Some(text) if text == other => return true,
        None | Some("") => {}
        Some(text) if text == default => {}
        Some(text) => findings.add(
            BrokenRule::InvalidPolicy,
            format_args!(
                "{field} {} is unknown and counts as {default}",
                quoted(text)
            ),
            "use a value that Kubernetes has",
        ),
    }
    false
}

fn read_mode(service: &objects::Service, findings: &mut Findings) -> Option<ForwardMode> {
    match service.annotations.get(MODE)?.as_str() {
        "ipip" => Some(ForwardMode::Ipip),
        "l2dsr" => Some(ForwardMode::L2dsr),
        "nat" => Some(ForwardMode::Nat),
        other => {
            findings.add(
                BrokenRule::InvalidAnnotation,
                format_args!("{MODE} {} is no mode, so the default counts", quoted(other)),
                "use ipip, l2dsr or nat",
            );
            None
        }
    }
}

fn read_table_size(service: &objects::Service, findings: &mut Findings) -> Option<u8> {
    let text = service.annotations.get(TABLE_SIZE)?;
    let mut classes = LENGTH_CLASSES.into_iter();
    let class = classes.find(|log2| (1_u32 << log2).to_string() == *text);
    if class.is_none() {
        findings.add(
            BrokenRule::InvalidAnnotation,
            format_args!(
                "{TABLE_SIZE} {} is no size, so the default counts",
                quoted(text)
            ),
            "use 1, 256, 2048 or 16384",
        );
    }
    if class.is_some_and(|log2| log2 > MOST_ASKED) {
        findings.add(
            BrokenRule::InvalidAnnotation,
            format_args!(
                "{TABLE_SIZE} {} is more than a Service may ask for, which is {}",
                quoted(text),
                1_u32 << MOST_ASKED
            ),
            "leave the annotation out: with many backends the table is larger by itself",
        );
    }
    class
}
