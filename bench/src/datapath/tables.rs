//! The content of the product's tables: services for each path, and flows for the paths that remember them.
//!
//! The product's own user space writes everything except the flows. So a table with a new layout is filled correctly.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::{Context, Result};
use aya::maps::{Array, HashMap, Map, MapData};
use fastpath::{
    clock::monotonic_ns,
    load::{Loaded, Loader},
    nexthop::{NextHop, Resolution},
    tables::{
        Addresses, BackendKey, BackendSpec, ForwardMode, NatSettings, OwnedBackend, PodNamespace,
        ServiceKey, ServiceSpec, Settings, Tables,
    },
};
use xdp_prog::{
    abi::{
        AddressKey, DeliveryNotes, FlowNote, NAT_ANSWERED, NAT_OPEN, NatForward, NatLink, NatMark,
        NatReverse, Pin, PodFlow, Tag, Tuple, map,
    },
    bench::client,
};

use super::{
    Case, System,
    frames::{self, EDGE_V4, EDGE_V6, Family, PORT, Protocol},
    past,
};

/// Number of backends of a service.
const BACKENDS: u8 = 100;
/// Slots of a service's lookup table as a power of two: the default for this number of backends.
const LOG2_SLOTS: u8 = 14;
/// The largest table that a service gets by default, as a power of two.
const LOG2_MANY_SLOTS: u8 = 17;
/// Number of services of [`System::Services`], for each family and protocol.
pub(super) const SERVICES: u32 = 10_000;
/// Number of backends of each of them. They share no backends.
const FEW_BACKENDS: u32 = 4;
/// First port of NAT mode, and the number of ports: those that [`client`] uses.
const NAT_PORTS: (u16, u16) = (32_768, 64);
/// Number of backends of NAT mode: one for all flows that share a port.
const NAT_BACKENDS: u32 = 160;
/// Number of edges that a node trusts.
const EDGES: u8 = 64;
/// The port that pods and backends of NAT mode listen on.
pub(super) const TARGET_PORT: u16 = 8080;
/// Number of flows that a table knows.
pub(super) const KNOWN_FLOWS: u32 = 10_000;
/// Number of flows that a node, or an edge, is asked about: both limit how many they return in a moment.
pub(super) const ASKED_FLOWS: u32 = 1_000;

/// The addresses of one family.
pub(super) struct CaseAddresses {
    pub(super) vip: IpAddr,
    /// The client of the first flow.
    pub(super) client: IpAddr,
    /// The edge that sends packets to this node.
    pub(super) edge: IpAddr,
    /// This machine.
    pub(super) here: IpAddr,
    pub(super) pod: IpAddr,
    /// The NAT mode backend of the first flow.
    pub(super) backend: IpAddr,
    /// A machine that no table knows.
    pub(super) stranger: IpAddr,
    /// The client of the first flow that no table knows.
    pub(super) unknown_client: IpAddr,
}

pub(super) fn addresses(family: Family) -> CaseAddresses {
    match family {
        Family::V4 => CaseAddresses {
            vip: frames::VIP_V4.into(),
            client: frames::CLIENT_V4.into(),
            edge: frames::node(family, EDGES - 1),
            here: EDGE_V4.into(),
            pod: Ipv4Addr::new(172, 16, 0, 1).into(),
            backend: Ipv4Addr::new(172, 17, 0, 0).into(),
            stranger: Ipv4Addr::new(203, 0, 113, 1).into(),
            unknown_client: Ipv4Addr::new(11, 0, 0, 0).into(),
        },
        Family::V6 => CaseAddresses {
            vip: frames::VIP_V6.into(),
            client: frames::CLIENT_V6.into(),
            edge: frames::node(family, EDGES - 1),
            here: EDGE_V6.into(),
            pod: Ipv6Addr::new(0x2001, 0xdb8, 4, 0, 0, 0, 0, 1).into(),
            backend: Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 0).into(),
            stranger: Ipv6Addr::new(0x2001, 0xdb8, 6, 0, 0, 0, 0, 1).into(),
            unknown_client: Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 0).into(),
        },
    }
}

/// Returns the service of a system's packets; if there are several, the first.
pub(super) fn service(system: System, family: Family, protocol: Protocol) -> Option<ServiceKey> {
    let CaseAddresses { vip, here, .. } = addresses(family);
    let (address, port) = match system.of_service() {
        System::Guideway => (vip, PORT),
        System::Node => (vip, 81),
        System::Nat => (vip, 82),
        System::Slots => (vip, 83),
        System::Services => (vip, 84),
        System::L2Dsr => (vip, 85),
        System::Past => (vip, 86),
        System::Pinned => (vip, 87),
        System::Retry => (vip, 88),
        System::NodePort => (here, 30_080),
        _ => return None,
    };
    Some(ServiceKey {
        address,
        port,
        protocol: protocol.into(),
    })
}

/// Lists a pod of each node. They have consecutive addresses, from this number on.
pub(super) fn pods_of_nodes(family: Family, first: u32) -> impl Iterator<Item = BackendSpec> {
    let pod = addresses(family).pod;
    (0..BACKENDS).map(move |index| {
        let pod = plus(pod, first + u32::from(index));
        BackendSpec::pod(frames::node(family, index), (pod, TARGET_PORT).into(), 1)
    })
}

pub(super) fn spec(system: System, family: Family) -> ServiceSpec {
    let CaseAddresses {
        here, pod, backend, ..
    } = addresses(family);
    let backends = match system {
        System::Node => vec![BackendSpec::pod(here, (pod, TARGET_PORT).into(), 1)],
        System::Nat => (0..NAT_BACKENDS)
            .map(|index| BackendSpec::nat((plus(backend, index), TARGET_PORT).into(), 1))
            .collect(),
        System::NodePort => pods_of_nodes(family, 1).collect(),
        System::Past | System::Pinned | System::Retry => past::owners(system, family),
        _ => (0..BACKENDS)
            .map(|index| BackendSpec::node(frames::node(family, index), 1))
            .collect(),
    };
    ServiceSpec {
        mode: match system {
            System::Nat => ForwardMode::Nat,
            System::L2Dsr => ForwardMode::L2dsr,
            _ => ForwardMode::Ipip,
        },
        log2_slots: Some(match system {
            System::Slots => LOG2_MANY_SLOTS,
            _ => LOG2_SLOTS,
        }),
        node_port: system == System::NodePort,
        backends,
        ..ServiceSpec::default()
    }
}

/// Loads the product with tables large enough for all services.
pub(super) fn load() -> Result<Loaded> {
    const ALL_SERVICES: u32 = 1 << 16;
    const ALL_BACKENDS: u32 = 1 << 17;
    let loader = Loader::unpinned()
        .max_entries(map::SERVICE, ALL_SERVICES)
        .max_entries(map::SERVICE_TRAFFIC, ALL_SERVICES)
        .max_entries(map::SERVICE_INDEX, ALL_SERVICES / 2)
        .max_entries(map::BACKENDS, ALL_BACKENDS)
        .max_entries(map::BACKEND_TRAFFIC, ALL_BACKENDS);
    loader.load().context("loading the BPF object")
}

/// Returns the settings with NAT mode at these ports, by the first one and their number.
pub(super) fn with_nat((first_port, ports): (u16, u16)) -> Settings {
    Settings {
        nat: Some(NatSettings {
            v4: None,
            v6: None,
            first_port,
            ports,
        }),
        ..Settings::default()
    }
}

/// Fills everything that does not depend on the flows. Frames leave by `device`, the one that they arrive on.
pub(super) fn fill(tables: &mut Tables, device: u32) -> Result<()> {
    let both = || Family::ALL.map(addresses).into_iter();
    tables.set_settings(with_nat(NAT_PORTS))?;
    let vips =
        both().flat_map(|addresses| (0..SERVICES).map(move |index| plus(addresses.vip, index)));
    let here: BTreeSet<IpAddr> = both().map(|addresses| addresses.here).collect();
    let addresses = Addresses {
        vips: vips.collect(),
        local: here.clone(),
        node_ports: here,
        ..Addresses::default()
    };
    tables.set_addresses(addresses.into())?;
    let edges = Family::ALL.map(|family| (0..EDGES).map(move |index| frames::node(family, index)));
    let edges = edges.into_iter().flatten().map(Into::into).collect();
    tables.set_trusted_edges(&edges)?;
    let pods = both().map(|addresses| (addresses.pod, PodNamespace::Own));
    tables.set_pod_namespaces(&pods.collect());
    for family in Family::ALL {
        fill_next_hops(tables, family, device)?;
        for protocol in Protocol::ALL {
            fill_services(tables, family, protocol)?;
        }
    }
    Ok(())
}

/// Puts the settings, and the VIPs of both families without any service.
pub(super) fn fill_vips(tables: &mut Tables, settings: Settings) -> Result<()> {
    tables.set_settings(settings)?;
    let vips = Family::ALL.map(|family| addresses(family).vip);
    let addresses = Addresses {
        vips: vips.into(),
        ..Addresses::default()
    };
    tables.set_addresses(addresses.into())?;
    Ok(())
}

/// Fills what an edge has that forwards by IPIP and L2 DSR alone. Frames leave by `device`, the one that they arrive on.
pub(super) fn fill_edge(tables: &mut Tables, device: u32) -> Result<()> {
    fill_vips(tables, Settings::default())?;
    for family in Family::ALL {
        fill_next_hops(tables, family, device)?;
        for protocol in Protocol::ALL {
            for system in [System::Guideway, System::L2Dsr] {
                let key = service(system, family, protocol).context("the system has a service")?;
                tables.put_service(key, &spec(system, family))?;
            }
        }
    }
    Ok(())
}

/// Puts all machines on one link, as in a rack.
fn fill_next_hops(tables: &mut Tables, family: Family, device: u32) -> Result<()> {
    let CaseAddresses { here, backend, .. } = addresses(family);
    let hop = Resolution::Resolved(next_hop(family, device));
    let nodes = (0..BACKENDS).map(|index| frames::node(family, index));
    let backends = (0..NAT_BACKENDS).map(|index| plus(backend, index));
    for target in nodes.chain(backends) {
        tables.set_next_hop(target, hop)?;
    }
    Ok(tables.set_next_hop(here, Resolution::Local)?)
}

/// Returns the next hop to any machine by a device.
pub(super) fn next_hop(family: Family, device: u32) -> NextHop {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = frames::MACS_BACK;
    NextHop {
        ifindex: device,
        source_mac: [g, h, i, j, k, l],
        destination_mac: [a, b, c, d, e, f],
        is_carried: false,
        via_gateway: false,
        vlan: None,
        mtu: 1500,
        source: Some(addresses(family).here),
    }
}

fn fill_services(tables: &mut Tables, family: Family, protocol: Protocol) -> Result<()> {
    for system in System::ALL {
        let Some(key) = service(system, family, protocol) else {
            continue;
        };
        if system.of_service() != system || !system.has(protocol) {
            continue;
        }
        if system != System::Services {
            if let Some(former) = past::former_spec(system, family) {
                tables.put_service(key, &former)?;
            }
            tables.put_service(key, &spec(system, family))?;
            continue;
        }
        for index in 0..SERVICES {
            let address = plus(key.address, index);
            let first = FEW_BACKENDS * index;
            let backends = (first..first + FEW_BACKENDS).map(|backend| {
                let node = backend % u32::from(BACKENDS);
                BackendSpec::node(plus(frames::node(family, 0), node), 1)
            });
            let spec = ServiceSpec {
                owner: 1 + index,
                backends: backends.collect(),
                ..ServiceSpec::default()
            };
            tables.put_service(ServiceKey { address, ..key }, &spec)?;
        }
    }
    Ok(())
}

/// Puts the flows into the tables, as if each had been used just now.
pub(super) fn fill_flows(product: &Loaded, tables: &Tables, case: Case, device: u32) -> Result<()> {
    let Case {
        family, protocol, ..
    } = case;
    let addresses = addresses(family);
    let service = |system| {
        service(system, family, protocol)
            .map(|key| key.port.to_be_bytes())
            .context("the way has a service")
    };
    let (pods, nat) = (service(System::Node)?, service(System::Nat)?);
    let backend_ids: BTreeMap<&OwnedBackend, u32> = tables
        .backends()
        .map(|(key, backend)| (key, backend.id))
        .collect();
    let number = protocol.number();
    let now = monotonic_ns();
    let outer = u8::try_from(family.header_length())?;
    let vip = key(addresses.vip);
    let (answered, told) = match protocol {
        Protocol::Udp => (map::FLOWS_DATAGRAM, NAT_OPEN | NAT_ANSWERED),
        Protocol::Tcp => (map::FLOWS, NAT_OPEN),
    };
    let mark = NatMark::new(now, told);
    let link = link();
    let mut flows: HashMap<MapData, Tuple, PodFlow> =
        HashMap::try_from(Map::LruHashMap(product.map(answered)?))?;
    let mut forward_flows: HashMap<MapData, Tuple, NatForward> =
        HashMap::try_from(Map::HashMap(product.map(map::NAT_FORWARD)?))?;
    let mut reverse_flows: HashMap<MapData, Tuple, NatReverse> =
        HashMap::try_from(Map::HashMap(product.map(map::NAT_REVERSE)?))?;
    for flow in 0..KNOWN_FLOWS {
        let (bits, _) = client(flow);
        let client = client_of(family, flow);
        let (from, port) = (key(client.ip()), client.port().to_be_bytes());
        let target = TARGET_PORT.to_be_bytes();
        let tuple = pod_tuple(family, protocol, flow);
        flows.insert(tuple, PodFlow::new(&tuple, vip, pods, outer, 0, now), 0)?;

        let forward = Tuple::new(from, vip, port, nat, number);
        let backend = plus(addresses.backend, bits);
        let reverse = Tuple::new(key(backend), key(addresses.here), target, port, number);
        let backend = OwnedBackend {
            key: BackendKey {
                address: backend,
                pod: Some((backend, TARGET_PORT).into()),
                nat: true,
            },
            owner: 0,
        };
        let id = *backend_ids.get(&backend).context("a backend of NAT mode")?;
        let entry = NatForward::new(&forward, &reverse, id, link.fingerprint(device), mark);
        forward_flows.insert(forward, entry, 0)?;
        let entry = NatReverse::new(&reverse, &forward, device, link.with_mtu(1500), mark);
        reverse_flows.insert(reverse, entry, 0)?;
    }
    if System::Pinned.has(protocol) {
        past::pin_flows(product, tables, family)?;
    }
    Ok(())
}

/// Returns the Ethernet header of frames to the client.
fn link() -> NatLink {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = frames::MACS_OUT;
    NatLink::new([g, h, i, j, k, l, a, b, c, d, e, f], [0; 2], 0)
}

pub(super) fn pod_tag(pod: IpAddr) -> Tag {
    Tag::pod(key(pod))
}

/// Returns the client's end of a flow.
pub(super) fn client_of(family: Family, flow: u32) -> SocketAddr {
    let (bits, port) = client(flow);
    SocketAddr::new(plus(addresses(family).client, bits), port)
}

/// Returns the tuple of a flow as the pod sees it.
pub(super) fn pod_tuple(family: Family, protocol: Protocol, flow: u32) -> Tuple {
    let pod = SocketAddr::new(addresses(family).pod, TARGET_PORT);
    tuple(client_of(family, flow), pod, protocol)
}

/// Returns the tuple of packets from one end to another.
pub(super) fn tuple(from: SocketAddr, to: SocketAddr, protocol: Protocol) -> Tuple {
    let [source, destination] = [from, to].map(|end| key(end.ip()));
    let [from, to] = [from, to].map(|end| end.port().to_be_bytes());
    Tuple::new(source, destination, from, to, protocol.number())
}

/// Takes away what programs have noted of flows within the last second, and what they expect of them.
pub(super) fn forget_notes(product: &Loaded) -> Result<()> {
    let mut flows: Array<MapData, FlowNote> =
        Array::try_from(Map::Array(product.map(map::FLOW_NOTES)?))?;
    for place in 0..flows.len() {
        flows.set(place, FlowNote::default(), 0)?;
    }
    let mut deliveries: Array<MapData, DeliveryNotes> =
        Array::try_from(Map::Array(product.map(map::DELIVERY_NOTES)?))?;
    for place in 0..deliveries.len() {
        deliveries.set(place, DeliveryNotes::default(), 0)?;
    }
    let mut pins: HashMap<MapData, Tuple, Pin> =
        HashMap::try_from(Map::LruHashMap(product.map(map::PINS_YOUNG)?))?;
    let pinned: Result<Vec<Tuple>, _> = pins.keys().collect();
    for flow in pinned? {
        pins.remove(&flow)?;
    }
    Ok(())
}

/// Returns an address with a number added to its low bits.
pub(super) fn plus(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() + bits).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() + u128::from(bits)).into(),
    }
}

fn key(address: IpAddr) -> AddressKey {
    match address {
        IpAddr::V4(address) => AddressKey::v4(address.octets()),
        IpAddr::V6(address) => AddressKey::v6(address.octets()),
    }
}
