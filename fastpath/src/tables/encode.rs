//! Converts user space's types to table entries and back.

use std::net::{IpAddr, SocketAddr};

use aya::maps::lpm_trie::Key;
use ipnet::IpNet;
use xdp_prog::abi::{
    AddressKey, BACKEND_DOWN, BACKEND_LOCAL, BACKEND_NAT, BACKEND_POD, BACKEND_V4, BACKEND_V6,
    Backend, CONFIG_MEND, CONFIG_NODE, CONFIG_PROBES, Config, EdgePrefix, HOP_CARRIED, HOP_GATEWAY,
    IndexKey, NAMESPACE_OWN, NAMESPACE_UNKNOWN, NextHop, SERVICE_DROP_WHEN_EMPTY, SERVICE_NAT,
    SERVICE_NODE_PORT, SERVICE_PODS, SERVICE_SOURCE_RANGES, Service, ServiceKeyV4, ServiceKeyV6,
    SourcePrefix, Tag, namespace_of_id,
};

use super::{
    BackendKey, ForwardMode, NatSettings, OwnedBackend, PodNamespace, Protocol, ServiceKey,
    ServiceSpec, Settings, TrafficPolicy,
    types::{address_key, address_of},
};

enum KeyOf {
    V4(ServiceKeyV4),
    V6(ServiceKeyV6),
}

fn key_of(key: &ServiceKey) -> KeyOf {
    let port = key.port.to_be_bytes();
    let protocol = key.protocol.number();
    match key.address {
        IpAddr::V4(v4) => KeyOf::V4(ServiceKeyV4::new(v4.octets(), port, protocol)),
        IpAddr::V6(v6) => KeyOf::V6(ServiceKeyV6::new(v6.octets(), port, protocol)),
    }
}

/// Returns a service's key in an index with this seed.
pub(super) fn index_key(key: &ServiceKey, seed: u64) -> IndexKey {
    match key_of(key) {
        KeyOf::V4(wire) => IndexKey::v4(wire),
        KeyOf::V6(wire) => IndexKey::v6(&wire, seed),
    }
}

/// Returns the key of a service's entry; `None` if its protocol is unknown.
pub(super) fn key_of_entry(entry: &Service) -> Option<ServiceKey> {
    Some(ServiceKey {
        address: address_of(entry.address),
        port: u16::from_be_bytes(entry.port),
        protocol: Protocol::from_number(entry.protocol)?,
    })
}

/// Makes the entry of a service, without the places of its tables.
pub(super) fn service_entry(key: &ServiceKey, spec: &ServiceSpec) -> Service {
    Service {
        address: address_key(key.address),
        port: key.port.to_be_bytes(),
        protocol: key.protocol.number(),
        ..service_rules(spec)
    }
}

/// How long a client keeps its backend unless the specification says otherwise, in seconds
/// (`sessionAffinityConfig.clientIP.timeoutSeconds` of Kubernetes).
const AFFINITY_SECONDS: u32 = 10_800;

/// Makes the rules part of a service's entry: mode, flags and affinity.
pub(super) fn service_rules(spec: &ServiceSpec) -> Service {
    let is_nat = spec.mode == ForwardMode::Nat;
    let has_pods = !is_nat && spec.backends.iter().any(|backend| backend.pod.is_some());
    let flags = [
        (has_pods, SERVICE_PODS),
        (is_nat, SERVICE_NAT),
        (!spec.source_ranges.is_empty(), SERVICE_SOURCE_RANGES),
        (spec.node_port, SERVICE_NODE_PORT),
        (
            spec.traffic_policy == TrafficPolicy::Local && spec.sharing().next().is_some(),
            SERVICE_DROP_WHEN_EMPTY,
        ),
    ];
    Service {
        mode: spec.mode.to_abi(),
        flags: flags
            .into_iter()
            .filter(|(set, _)| *set)
            .fold(0, |flags, (_, flag)| flags | flag),
        affinity: spec.affinity.map_or(0, |seed| seed.max(1)),
        affinity_seconds: match spec.affinity {
            Some(_) => spec.affinity_seconds.unwrap_or(AFFINITY_SECONDS),
            None => 0,
        },
        ..Service::default()
    }
}

pub(super) fn key_check(key: &ServiceKey) -> u32 {
    match key_of(key) {
        KeyOf::V4(wire) => wire.check(),
        KeyOf::V6(wire) => wire.check(),
    }
}

/// Converts an address to the form in `BACKENDS`: IPv4 in the first four bytes.
pub(super) fn wire_address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

pub(super) const fn family_flag(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => BACKEND_V4,
        IpAddr::V6(_) => BACKEND_V6,
    }
}

/// Makes the entry of a backend whose node has this next hop, or is this machine; `down` if it is unreachable. `namespace`
/// is that of its pod, if that is known.
pub(super) fn backend_entry(
    backend: &OwnedBackend,
    next_hop: u32,
    local: bool,
    down: bool,
    namespace: Option<PodNamespace>,
) -> Backend {
    let OwnedBackend { key, owner } = backend;
    let pod = key
        .pod
        .map_or(AddressKey::default(), |pod| address_key(pod.ip()));
    Backend {
        address: wire_address(key.address),
        next_hop,
        flags: backend_flags(key, local, down),
        pod,
        port: key.pod.map_or(0, |pod| pod.port()).to_be_bytes(),
        tag: if is_pod(key) { Tag::pod(pod).0 } else { 0 },
        owner: *owner,
        namespace: namespace_word(namespace),
        ..Backend::default()
    }
}

/// Makes the word that tells programs the network namespace of a pod.
pub(super) const fn namespace_word(namespace: Option<PodNamespace>) -> u32 {
    match namespace {
        None => NAMESPACE_UNKNOWN,
        Some(PodNamespace::Own) => NAMESPACE_OWN,
        Some(PodNamespace::Other(id)) => namespace_of_id(id),
    }
}

pub(super) fn backend_flags(key: &BackendKey, local: bool, down: bool) -> u32 {
    let mut flags = family_flag(key.address);
    if down {
        flags |= BACKEND_DOWN;
    }
    if local {
        flags |= BACKEND_LOCAL;
    }
    if key.nat {
        flags |= BACKEND_NAT;
    }
    if is_pod(key) {
        flags |= BACKEND_POD;
    }
    flags
}

const fn is_pod(key: &BackendKey) -> bool {
    key.pod.is_some() && !key.nat
}

/// Reads a backend and its owner back.
pub(super) fn owned_backend(backend: &Backend) -> OwnedBackend {
    OwnedBackend {
        key: backend_key(backend),
        owner: backend.owner,
    }
}

/// Reads a backend's key back.
pub(super) fn backend_key(backend: &Backend) -> BackendKey {
    let pod = backend.flags & (BACKEND_POD | BACKEND_NAT) != 0;
    let port = u16::from_be_bytes(backend.port);
    BackendKey {
        address: backend_address(backend),
        pod: pod.then(|| SocketAddr::new(address_of(backend.pod), port)),
        nat: backend.flags & BACKEND_NAT != 0,
    }
}

pub(super) fn backend_address(backend: &Backend) -> IpAddr {
    if backend.flags & BACKEND_V4 != 0 {
        backend.address_v4().into()
    } else {
        backend.address.into()
    }
}

pub(super) fn config_of(settings: &Settings) -> Config {
    const NO_NAT: NatSettings = NatSettings {
        v4: None,
        v6: None,
        first_port: 0,
        ports: 0,
    };
    let nat = settings.nat.unwrap_or(NO_NAT);
    Config {
        hash_seed: settings.hash_seed,
        source_v4: settings
            .source_v4
            .map_or([0; 16], |v4| wire_address(v4.into())),
        source_v6: settings.source_v6.map_or([0; 16], |v6| v6.octets()),
        nat_v4: nat.v4.map_or([0; 16], |v4| wire_address(v4.into())),
        nat_v6: nat.v6.map_or([0; 16], |v6| v6.octets()),
        nat_port: nat.first_port,
        nat_ports: nat.ports,
        mtu: settings.mtu.unwrap_or(0),
        flags: if settings.node { CONFIG_NODE } else { 0 }
            | if settings.probes { CONFIG_PROBES } else { 0 }
            | if settings.mend { CONFIG_MEND } else { 0 },
        ..Config::default()
    }
}

pub(super) fn settings_of(config: &Config) -> Settings {
    let [e, f, g, h, ..] = config.nat_v4;
    let nat = NatSettings {
        v4: Some([e, f, g, h].into()).filter(|v4: &std::net::Ipv4Addr| !v4.is_unspecified()),
        v6: Some(config.nat_v6.into()).filter(|v6: &std::net::Ipv6Addr| !v6.is_unspecified()),
        first_port: config.nat_port,
        ports: config.nat_ports,
    };
    let [a, b, c, d, ..] = config.source_v4;
    Settings {
        hash_seed: config.hash_seed,
        source_v4: Some([a, b, c, d].into()).filter(|v4: &std::net::Ipv4Addr| !v4.is_unspecified()),
        source_v6: Some(config.source_v6.into())
            .filter(|v6: &std::net::Ipv6Addr| !v6.is_unspecified()),
        // The prefixes are in the next hops.
        prefix_v4: None,
        prefix_v6: None,
        node: config.flags & CONFIG_NODE != 0,
        probes: config.flags & CONFIG_PROBES != 0,
        mend: config.flags & CONFIG_MEND != 0,
        mtu: Some(config.mtu).filter(|mtu| *mtu != 0),
        nat: Some(nat).filter(|nat| nat.ports != 0),
    }
}

/// Returns the index of a device as the programs read it.
pub(super) const fn device_word(ifindex: u32, is_carried: bool) -> u32 {
    if is_carried {
        ifindex | HOP_CARRIED
    } else {
        ifindex
    }
}

pub(super) fn next_hop_entry(
    target: IpAddr,
    hop: &crate::nexthop::NextHop,
    settings: &Settings,
) -> NextHop {
    let [a, b, c, d, e, f] = hop.destination_mac;
    let [g, h, i, j, k, l] = hop.source_mac;
    let own = hop.source.filter(|own| own.is_ipv4() == target.is_ipv4());
    let outer = settings.outer_source(target, own);
    NextHop {
        ifindex: device_word(hop.ifindex, hop.is_carried),
        mtu: hop.mtu,
        source: outer.map_or([0; 16], |outer| wire_address(outer.address)),
        spread: outer.map_or(0, |outer| outer.spread),
        own: own.map_or([0; 16], wire_address),
        macs: [a, b, c, d, e, f, g, h, i, j, k, l],
        vlan: hop.vlan.unwrap_or(0).to_be_bytes(),
        flags: if hop.via_gateway { HOP_GATEWAY } else { 0 },
        ..NextHop::default()
    }
}

/// Bits in front of a prefix's own bits, for IPv4 and IPv6.
const EDGE_FRONT: [u32; 2] = [EdgePrefix::FRONT_BITS_V4, EdgePrefix::FRONT_BITS_V6];
const SOURCE_FRONT: [u32; 2] = [SourcePrefix::FRONT_BITS_V4, SourcePrefix::FRONT_BITS_V6];

pub(super) fn edge_prefix_key(net: IpNet) -> Key<EdgePrefix> {
    let data = EdgePrefix::new(address_key(net.network()));
    Key::new(key_length(net, EDGE_FRONT), data)
}

pub(super) fn edge_prefix_of(key: Key<EdgePrefix>) -> Option<IpNet> {
    net_of(key.data().address(), key.prefix_len(), EDGE_FRONT)
}

pub(super) fn source_prefix_key(service: u32, net: IpNet) -> Key<SourcePrefix> {
    let data = SourcePrefix::new(service, address_key(net.network()));
    Key::new(key_length(net, SOURCE_FRONT), data)
}

/// Reads a source range back with its service id.
pub(super) fn source_prefix_of(key: Key<SourcePrefix>) -> Option<(u32, IpNet)> {
    let data = key.data();
    let net = net_of(data.address(), key.prefix_len(), SOURCE_FRONT)?;
    Some((data.service(), net))
}

fn key_length(net: IpNet, front: [u32; 2]) -> u32 {
    front[usize::from(net.addr().is_ipv6())] + u32::from(net.prefix_len())
}

fn net_of(address: AddressKey, length: u32, front: [u32; 2]) -> Option<IpNet> {
    let address = address_of(address);
    let length = length.checked_sub(front[usize::from(address.is_ipv6())])?;
    IpNet::new(address, u8::try_from(length).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::{super::BackendSpec, *};

    #[test]
    fn local_policy_drops_only_while_some_backend_takes_new_connections() {
        let rules = |traffic_policy, weights: &[u32]| {
            let pod = |weight| {
                let [node, pod] = ["10.0.0.1", "10.244.0.5"].map(|text| text.parse().unwrap());
                BackendSpec::pod(node, SocketAddr::new(pod, 80), weight)
            };
            service_rules(&ServiceSpec {
                traffic_policy,
                backends: weights.iter().copied().map(pod).collect(),
                ..ServiceSpec::default()
            })
            .flags
        };
        let (local, cluster) = (TrafficPolicy::Local, TrafficPolicy::Cluster);
        assert_eq!(rules(local, &[]), 0);
        assert_eq!(rules(local, &[0]), SERVICE_PODS);
        let drops = SERVICE_PODS | SERVICE_DROP_WHEN_EMPTY;
        assert_eq!(rules(local, &[0, 1]), drops);
        assert_eq!(rules(cluster, &[0, 1]), SERVICE_PODS);
    }
}
