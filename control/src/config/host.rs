//! The rules of a configuration that depend on the machine: its own addresses and the MTU of its interfaces.
//!
//! They apply when a configuration is about to take effect, and in `guideway check --config`; not when a file
//! is only parsed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

use fastpath::mend::MENDED_END;
use fastpath::whole_edge::{LARGEST_MTU, locked_bytes};
use nix::sys::socket::SockaddrStorage;

use super::problem::{Position, Problem};
use super::{Config, ConfigError, Datapath, PeersFound};
use crate::chain::chain;
use crate::desired::{ForwardMode, Role, Service, unspecified};
use crate::peers::Key;

/// Facts about this machine that the rules need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// MTU of every interface, by name.
    pub mtus: BTreeMap<String, u32>,
    /// Addresses of this machine, each with the name of its interface.
    pub addresses: BTreeMap<IpAddr, String>,
    /// The same addresses in the kernel's order: the primary address of an interface comes first.
    pub in_order: Vec<IpAddr>,
    /// Bonds and VLAN devices, each with the interfaces below it.
    pub above: BTreeMap<String, String>,
    /// Interfaces that have a network: an address with a prefix that holds others too.
    pub networked: BTreeSet<String>,
}

/// Reads the facts of the calling thread's network namespace.
///
/// # Errors
///
/// When the kernel does not list interfaces or addresses.
pub fn facts() -> std::io::Result<HostFacts> {
    let mut facts = HostFacts {
        // Not from /sys/class/net, which shows the namespace that mounted it.
        mtus: fastpath::facts::mtus().map_err(std::io::Error::other)?,
        above: fastpath::facts::above_others().map_err(std::io::Error::other)?,
        ..HostFacts::default()
    };
    for interface in nix::ifaddrs::getifaddrs()? {
        let name = interface.interface_name;
        // What it has is nobody's address.
        if name == MENDED_END {
            continue;
        }
        let Some(address) = interface.address else {
            continue;
        };
        if let Some(address) = ip(&address) {
            let mask = interface.netmask.as_ref().and_then(ip);
            if is_routed(&address) && mask.is_some_and(|mask| !is_full(mask)) {
                facts.networked.insert(name.clone());
            }
            facts.in_order.push(address);
            facts.addresses.insert(address, name);
        }
    }
    Ok(facts)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
}

/// Returns whether a mask is that of a single address.
fn is_full(mask: IpAddr) -> bool {
    mask == Ipv4Addr::BROADCAST || mask == Ipv6Addr::from(u128::MAX)
}

/// Returns the address from which the kernel would send to a machine. Sends nothing.
pub(crate) fn source_towards(machine: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((unspecified(machine.is_ipv4()), 0)).ok()?;
    socket.connect((machine, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Applies the rules to a configuration that was read from `path`.
///
/// # Errors
///
/// With every rule that is broken.
pub fn validate(path: &Path, config: &Config, facts: &HostFacts) -> Result<(), ConfigError> {
    let mut problems = problems(config, facts);
    problems.extend(locked_memory(
        config,
        fastpath::facts::process().lockable_bytes(),
        &queues(config),
    ));
    if problems.is_empty() {
        return Ok(());
    }
    Err(ConfigError::Invalid {
        path: path.to_owned(),
        problems,
    })
}

/// Requires of a configuration that is read again that its datapath is the running one, which ends with the agent alone.
///
/// # Errors
///
/// With this rule, if it is broken.
pub(crate) fn keep_datapath(
    path: &Path,
    config: &Config,
    running: Datapath,
) -> Result<(), ConfigError> {
    if config.datapath == running {
        return Ok(());
    }
    let running = running.name();
    Err(ConfigError::Invalid {
        path: path.to_owned(),
        problems: vec![Problem {
            position: config.origins.datapath,
            field: "datapath".to_owned(),
            value: config.datapath.name().to_owned(),
            reason: format!(
                "the agent has begun with {running}, and a reload does not change that"
            ),
            remedy: format!("restart the agent, or set datapath: {running}"),
        }],
    })
}

/// Returns the rules that a configuration breaks on a machine with these facts.
pub(super) fn problems(config: &Config, facts: &HostFacts) -> Vec<Problem> {
    let mut problems = vips(config, facts);
    problems.extend(sources(config, facts));
    problems.extend(nat(config, facts));
    problems.extend(interfaces(config, facts));
    problems.extend(nodes(config, facts));
    problems.extend(peers(config));
    problems.extend(whole_edge(config, facts));
    problems.sort_by_key(|problem| problem.position);
    problems
}

/// Requires that a VIP is on no interface but `lo`. An address of another interface belongs to the machine:
/// balancing it would take the machine's own traffic away.
fn vips(config: &Config, facts: &HostFacts) -> Vec<Problem> {
    let own = |(address, position): (&IpAddr, &Position)| {
        let interface = facts.addresses.get(address).filter(|name| *name != "lo")?;
        Some(Problem {
            position: Some(*position),
            field: "vips".to_owned(),
            value: address.to_string(),
            reason: format!("this address is the machine's own, on interface {interface}"),
            remedy: format!("remove it from {interface}, or give the VIP another address"),
        })
    };
    config.origins.vips.iter().filter_map(own).collect()
}

/// Requires of `datapath: afxdp` that the machine is no node, and that its interfaces have queues of their own.
fn whole_edge(config: &Config, facts: &HostFacts) -> Vec<Problem> {
    if config.datapath != Datapath::Afxdp {
        return Vec::new();
    }
    let problem = |reason: String, remedy: String| Problem {
        position: config.origins.datapath,
        field: "datapath".to_owned(),
        value: config.datapath.name().to_owned(),
        reason,
        remedy,
    };
    let own: BTreeSet<IpAddr> = facts.addresses.keys().copied().collect();
    let interfaces = config.desired.interfaces.keys();
    let large = interfaces.clone().filter_map(|name| {
        let mtu = facts.mtus.get(name).filter(|mtu| **mtu > LARGEST_MTU)?;
        Some(problem(
            format!("interface {name} has MTU {mtu}, and packets of more than {LARGEST_MTU} bytes find no buffer"),
            format!("lower the interface's MTU to {LARGEST_MTU}, or leave datapath out"),
        ))
    });
    let node = config.desired.is_node(&own).then(|| {
        problem(
            "not with pods on this machine (role node)".to_owned(),
            "set roles: [edge], or leave datapath out".to_owned(),
        )
    });
    let above = interfaces.clone().filter_map(|name| {
        let below = facts.above.get(name)?;
        Some(problem(
            format!("interface {name} has no queues of its own"),
            format!("name what is below it ({below}), or leave datapath out"),
        ))
    });
    node.into_iter().chain(above).chain(large).collect()
}

/// Returns the number of receive queues and the MTU of each interface, as far as `datapath: afxdp` asks for it.
fn queues(config: &Config) -> Vec<(u32, u32)> {
    if config.datapath != Datapath::Afxdp {
        return Vec::new();
    }
    let interfaces = config.desired.interfaces.keys();
    // An interface that is not there has a problem of its own.
    let found = interfaces.filter_map(|name| fastpath::facts::interface(name).ok());
    found
        .map(|interface| (interface.rx_queues, interface.mtu))
        .collect()
}

/// Requires that all queues may lock their memory.
pub(super) fn locked_memory(
    config: &Config,
    lockable: Option<u64>,
    queues: &[(u32, u32)],
) -> Option<Problem> {
    let bytes = queues
        .iter()
        .map(|(queues, mtu)| u64::from(*queues) * locked_bytes(*mtu));
    let needed: u64 = bytes.sum();
    let limit = lockable.filter(|limit| *limit < needed)?;
    let queues: u32 = queues.iter().map(|(queues, _)| queues).sum();
    let mib = needed >> 20;
    Some(Problem {
        position: config.origins.datapath,
        field: "datapath".to_owned(),
        value: config.datapath.name().to_owned(),
        reason: format!(
            "{queues} receive queues lock {mib} MiB of memory, and the limit of locked memory is {} KiB",
            limit >> 10
        ),
        remedy: format!(
            "grant CAP_IPC_LOCK to the unit or container, raise the limit to {mib} MiB (LimitMEMLOCK=), or leave \
             datapath out"
        ),
    })
}

/// Requires a key with which edges know each other.
fn peers(config: &Config) -> Option<Problem> {
    let peers = config.peers.as_ref().filter(|_| config.desired.edge)?;
    let PeersFound::InFile { key_file, .. } = &peers.found else {
        return None;
    };
    let error = Key::read(key_file).err()?;
    Some(Problem {
        position: config.origins.key_file,
        field: "peers.key_file".to_owned(),
        value: key_file.display().to_string(),
        reason: chain(&error),
        remedy: "give every edge the same file with 32 random bytes or more, such as by \
                 `openssl rand -base64 48`"
            .to_owned(),
    })
}

/// Requires that outer sources are addresses of this machine: replies and ICMP errors go there.
fn sources(config: &Config, facts: &HostFacts) -> Vec<Problem> {
    foreign("sources", &config.origins.sources, facts)
}

/// Requires that NAT mode sends from addresses of this machine: backends reply there.
fn nat(config: &Config, facts: &HostFacts) -> Vec<Problem> {
    let mut problems = foreign("nat", &config.origins.nat, facts);
    let nat = &config.desired.nat;
    for (field, family, is_v4, is_given) in [
        ("nat.ipv4", "IPv4", true, nat.v4.is_some()),
        ("nat.ipv6", "IPv6", false, nat.v6.is_some()),
    ] {
        let is_ours = |address: &&IpAddr| {
            address.is_ipv4() == is_v4
                && is_routed(address)
                && !config.desired.vips.contains(*address)
        };
        if is_given || facts.addresses.keys().any(|address| is_ours(&address)) {
            continue;
        }
        let is_of_family = |service: &&Service| {
            let mut backends = service.spec.backends.iter();
            backends.any(|backend| backend.address.is_ipv4() == is_v4)
        };
        let mut services = config.desired.by_nat();
        if let Some(service) = services.find(is_of_family) {
            problems.push(Problem {
                position: None,
                field: field.to_owned(),
                value: String::new(),
                reason: format!(
                    "service {} has {family} backends by nat, and this machine has no {family} \
                     address to send from",
                    service.name
                ),
                remedy: format!("give an interface an {family} address that is no VIP"),
            });
        }
    }
    problems
}

/// Returns whether other machines can send to an address: neither loopback nor link-local.
pub(crate) const fn is_routed(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

/// Returns the addresses of a field that this machine does not have.
fn foreign(field: &str, origins: &BTreeMap<IpAddr, Position>, facts: &HostFacts) -> Vec<Problem> {
    let foreign = origins
        .iter()
        .filter(|(address, _)| !facts.addresses.contains_key(address));
    foreign
        .map(|(address, position)| Problem {
            position: Some(*position),
            field: format!(
                "{field}.{}",
                if address.is_ipv4() { "ipv4" } else { "ipv6" }
            ),
            value: address.to_string(),
            reason: "no interface of this machine has this address".to_owned(),
            remedy: "give an address of this machine, or leave it out for the route's own source"
                .to_owned(),
        })
        .collect()
}

/// Requires the role `node` if this machine has pods that are backends.
fn nodes(config: &Config, facts: &HostFacts) -> Vec<Problem> {
    if config.desired.node != Role::No {
        return Vec::new();
    }
    let own = |(address, position): (&IpAddr, &Position)| {
        let has_pods = config.desired.services.values().any(|service| {
            let mut backends = service.spec.backends.iter();
            service.spec.mode != ForwardMode::Nat
                && backends.any(|backend| backend.pod.is_some() && backend.address == *address)
        });
        (has_pods && facts.addresses.contains_key(address)).then(|| Problem {
            position: Some(*position),
            field: "nodes".to_owned(),
            value: address.to_string(),
            reason: "this machine is the node of pods, and roles has no node".to_owned(),
            remedy: "add node to roles, or leave roles out".to_owned(),
        })
    };
    config.origins.nodes.iter().filter_map(own).collect()
}

fn interfaces(config: &Config, facts: &HostFacts) -> Vec<Problem> {
    let needed = smallest_mtu(config);
    let unfit = |name: &String| {
        // A device that was found by pattern or route has no position of its own.
        let position = config.origins.interfaces.get(name).copied();
        let problem = |reason: String, remedy: String| Problem {
            position,
            field: "interfaces".to_owned(),
            value: name.clone(),
            reason,
            remedy,
        };
        match (facts.mtus.get(name), &needed) {
            (None, _) if position.is_some() => Some(problem(
                "this machine has no such interface".to_owned(),
                "use a name that `ip link` shows".to_owned(),
            )),
            (Some(&mtu), Some(needed)) if mtu < needed.mtu => Some(problem(
                format!(
                    "MTU {mtu} is too small: service {} adds an outer header of {} bytes to \
                     packets of at least {}",
                    needed.service, needed.outer, needed.inner
                ),
                format!(
                    "raise the interface's MTU to {} or more, or use mode l2dsr",
                    needed.mtu
                ),
            )),
            (None | Some(_), _) => None,
        }
    };
    config.desired.interfaces.keys().filter_map(unfit).collect()
}

/// The largest MTU that a service requires, in bytes, and its parts.
#[derive(Debug, PartialEq, Eq)]
struct Needed {
    mtu: u32,
    inner: u32,
    outer: u32,
    service: String,
}

/// Finds the smallest MTU that an interface may have. A packet that every path must carry has to fit behind the
/// outer header: 1280 bytes for an IPv6 client (RFC 8200 section 5), 576 for IPv4 (RFC 1122 section 3.3.3),
/// plus 20 or 40. With any larger MTU clients learn by ICMP how large packets may be.
fn smallest_mtu(config: &Config) -> Option<Needed> {
    let services = config.desired.services.iter();
    let tunnelled = services.filter(|(_, service)| service.spec.mode == ForwardMode::Ipip);
    let needs = tunnelled.flat_map(|(key, service)| {
        let inner = if key.address.is_ipv4() { 576 } else { 1280 };
        service.spec.backends.iter().map(move |backend| {
            let outer = if backend.address.is_ipv4() { 20 } else { 40 };
            Needed {
                mtu: inner + outer,
                inner,
                outer,
                service: service.name.clone(),
            }
        })
    });
    needs.max_by_key(|needed| needed.mtu)
}
